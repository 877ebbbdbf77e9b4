//! The values that rules see: what is in an object, typed by its schema as the server types it, and what rules make of
//! it. Nothing of the object is copied.

use std::{net::IpAddr, ops::Deref, rc::Rc, sync::LazyLock};

use base64::Engine as _;
use serde_json::{Map as Fields, Value as Json};

use super::{names, time};
use crate::crd_diff::schema::{ListType, Schema, Types};

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The server fails in the same way, and so refuses the object.
    Fails(String),
    /// The server knows; we do not.
    Undecided(String),
}

/// Such a value is refused anyway.
pub const MISTYPED: &str = "a value is not of its type";

pub fn undecided<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Undecided(reason.into()))
}

pub fn fails<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fails(reason.into()))
}

/// Text of the object or of the rule, or made on the way.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    Found(&'a str),
    Made(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Found(text) => text,
            Self::Made(text) => text,
        }
    }
}

#[derive(Clone, Debug)]
pub enum List<'a> {
    Found {
        items: &'a [Json],
        schema: &'a Schema,
        /// Sets and maps of entries are equal in any order.
        ordered: bool,
    },
    Made(Rc<Vec<Value<'a>>>),
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Found { items, .. } => items.len(),
            Self::Made(items) => items.len(),
        }
    }

    pub fn get(&self, index: usize) -> Option<Result<Value<'a>, Stop>> {
        match self {
            Self::Found { items, schema, .. } => items.get(index).map(|item| typed(item, schema, false)),
            Self::Made(items) => items.get(index).cloned().map(Ok),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, Stop>> + '_ {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    pub fn is_ordered(&self) -> bool {
        !matches!(self, Self::Found { ordered: false, .. })
    }
}

#[derive(Clone, Debug)]
pub enum Map<'a> {
    Found {
        fields: &'a Fields<String, Json>,
        schema: &'a Schema,
    },
    Made(Rc<Vec<(Value<'a>, Value<'a>)>>),
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Found { fields, .. } => fields.len(),
            Self::Made(entries) => entries.len(),
        }
    }

    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Self::Found { fields, .. } => {
                let fields: &'a Fields<String, Json> = fields;
                fields.keys().map(|key| Value::Text(Text::Found(key))).collect()
            }
            Self::Made(entries) => entries.iter().map(|(key, _)| key.clone()).collect(),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Text<'a>),
    Bytes(Rc<[u8]>),
    /// Nanoseconds, as Go counts.
    Duration(i64),
    Timestamp(jiff::Timestamp),
    List(List<'a>),
    Map(Map<'a>),
    Object {
        fields: &'a Fields<String, Json>,
        schema: &'a Schema,
        /// The root of a resource: it has a kind and metadata, whatever the schema says.
        whole: bool,
    },
    Type(&'static str),
    Optional(Option<Rc<Value<'a>>>),
    /// In units of a thousand millionth, and whether it is written as a whole number.
    Quantity(i128, bool),
    Ip(IpAddr),
    Cidr(IpAddr, u8),
    Url(Rc<super::net::Url>),
}

impl<'a> Value<'a> {
    pub fn text(text: impl Into<Rc<str>>) -> Self {
        Self::Text(Text::Made(text.into()))
    }

    pub fn list(items: Vec<Self>) -> Self {
        Self::List(List::Made(Rc::new(items)))
    }

    pub fn some(value: Self) -> Self {
        Self::Optional(Some(Rc::new(value)))
    }

    /// A field of an object or a key of a map; nothing if it is not there.
    pub fn field(&self, name: &str) -> Result<Option<Value<'a>>, Stop> {
        match self {
            Self::Object {
                fields,
                schema,
                whole,
            } => {
                let Some(name) = names::unescape(name) else {
                    return undecided(format!("the field {name} is not understood"));
                };
                let child = match child(schema, &name, *whole) {
                    Some(child) if is_visible(child) => child,
                    _ => return undecided(format!("the schema says nothing of the field {name}")),
                };
                match fields.get(name.as_ref()) {
                    // A null is as good as nothing here.
                    None | Some(Json::Null) => Ok(None),
                    Some(value) => typed(value, child, false).map(Some),
                }
            }
            Self::Map(Map::Found { fields, schema }) => {
                let found: Option<&'a Json> = fields.get(name);
                found.map(|value| typed(value, schema, false)).transpose()
            }
            Self::Map(Map::Made(entries)) => {
                let is_it = |key: &Value<'a>| matches!(key, Self::Text(text) if **text == *name);
                Ok(entries
                    .iter()
                    .find(|(key, _)| is_it(key))
                    .map(|(_, value)| value.clone()))
            }
            _ => undecided(format!("the field {name} is asked of something without fields")),
        }
    }
}

static TEXT: LazyLock<Schema> = LazyLock::new(|| Schema {
    types: Types::STRING,
    ..Schema::empty()
});

/// All that rules see of an object's metadata.
static METADATA: LazyLock<Schema> = LazyLock::new(|| Schema {
    types: Types::OBJECT,
    properties: ["name", "generateName"]
        .into_iter()
        .map(|name| (name.to_owned(), TEXT.clone()))
        .collect(),
    ..Schema::empty()
});

fn child<'a>(schema: &'a Schema, name: &str, whole: bool) -> Option<&'a Schema> {
    match name {
        "apiVersion" | "kind" if whole => Some(&TEXT),
        "metadata" if whole => Some(&METADATA),
        _ => schema.properties.get(name).filter(|child| !child.unstructured),
    }
}

fn has_type(schema: &Schema) -> bool {
    matches!(
        schema.types.without(Types::NULL),
        Types::ARRAY
            | Types::OBJECT
            | Types::STRING
            | Types::BOOLEAN
            | Types::INTEGER
            | Types::NUMBER
            | Types::INT_OR_STRING
    )
}

/// Whether rules see such a value at all: only what has a type does exist for them.
fn is_visible(schema: &Schema) -> bool {
    let below = |child: &Option<Box<Schema>>| child.as_deref().is_some_and(is_visible);
    schema.unread.is_none()
        && match schema.types.without(Types::NULL) {
            Types::ARRAY => below(&schema.items),
            Types::OBJECT => schema.additional.is_none() || below(&schema.additional),
            _ => has_type(schema),
        }
}

/// A value of an object, as its schema types it.
pub fn typed<'a>(json: &'a Json, schema: &'a Schema, root: bool) -> Result<Value<'a>, Stop> {
    let types = schema.types.without(Types::NULL);
    let whole = root || schema.embedded;
    match json {
        _ if schema.unread.is_some() => undecided("a part of the schema could not be read"),
        Json::Null if schema.nullable => Ok(Value::Null),
        Json::Bool(yes) if types == Types::BOOLEAN => Ok(Value::Bool(*yes)),
        Json::Number(number) if types == Types::INTEGER || types == Types::INT_OR_STRING => {
            number.as_i64().map_or_else(
                || undecided("a number is no integer of 64 bits"),
                |n| Ok(Value::Int(n)),
            )
        }
        Json::Number(number) if types == Types::NUMBER => number
            .as_f64()
            .map_or_else(|| undecided("a number is too large"), |n| Ok(Value::Double(n))),
        Json::String(text) if types == Types::INT_OR_STRING => Ok(Value::Text(Text::Found(text))),
        Json::String(text) if types == Types::STRING => formatted(text, schema),
        Json::Array(items) if types == Types::ARRAY => match &schema.items {
            Some(entries) => Ok(Value::List(List::Found {
                items,
                schema: entries,
                ordered: schema.list == ListType::Atomic,
            })),
            None => undecided("the schema says nothing of a list's entries"),
        },
        Json::Object(fields) if types == Types::OBJECT => match &schema.additional {
            Some(values) if !whole && schema.properties.values().all(|property| property.unstructured) => {
                Ok(Value::Map(Map::Found {
                    fields,
                    schema: values,
                }))
            }
            _ => Ok(Value::Object {
                fields,
                schema,
                whole,
            }),
        },
        _ if has_type(schema) => undecided(MISTYPED),
        _ => undecided("the schema does not say what type a value has"),
    }
}

/// Text that is a time or bytes for the server.
fn formatted<'a>(text: &'a str, schema: &'a Schema) -> Result<Value<'a>, Stop> {
    const TYPED: [&str; 4] = ["byte", "duration", "date", "date-time"];
    let formats = &schema.limits.formats;
    let mut typed = formats.iter().filter(|format| TYPED.contains(&format.as_str()));
    match (typed.next().map(String::as_str), formats.len()) {
        (None, _) => Ok(Value::Text(Text::Found(text))),
        (Some("byte"), 1) => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Ok(Value::Bytes(bytes.into())),
            Err(_) => undecided("a text is no base64"),
        },
        (Some("duration"), 1) => time::duration(text),
        (Some("date"), 1) => time::timestamp(&format!("{text}T00:00:00Z")),
        (Some("date-time"), 1) => time::timestamp(text),
        _ => undecided("a text has more than one format"),
    }
}
