//! JSON → [`Schema`]. Takes anything: what is not a schema becomes a schema that could not be read.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    normalise::{self, Role},
    number::{Bound, Number},
    object::cel::Source,
    schema::{Count, Enumeration, Limits, ListType, Rare, Rule, Schema, Types},
};

/// Deeper than any schema that a server takes in practice, and shallow enough for every stack.
pub const MAX_DEPTH: usize = 100;

pub fn parse(value: &Value) -> Schema {
    parse_at(value, MAX_DEPTH, false, Role::Structure)
}

/// For a definition under which nothing is pruned, wherever it is.
pub fn parse_preserving(value: &Value) -> Schema {
    parse_at(value, MAX_DEPTH, true, Role::Structure)
}

fn parse_at(value: &Value, depth: usize, preserve: bool, role: Role) -> Schema {
    let unread = || {
        let mut schema = Schema::open();
        schema.unread = Some(Box::new(value.clone()));
        schema
    };
    let Value::Object(node) = value else {
        // `additionalProperties: true` is the one place where a schema may be a word.
        return if *value == Value::Bool(true) {
            Schema {
                preserve,
                ..Schema::empty()
            }
        } else {
            unread()
        };
    };
    let words = Words::of(node);
    if depth == 0 || words.reference.is_some() {
        return unread();
    }
    let child = |value: &Value| Box::new(parse_at(value, depth - 1, preserve, role));
    let branches = |word: Option<&Value>| -> Vec<Schema> {
        let values = word.and_then(Value::as_array).map(Vec::as_slice);
        let values = values.unwrap_or_default().iter();
        values
            .map(|value| parse_at(value, depth - 1, false, Role::Check))
            .collect()
    };
    let int_or_string = flag(words.int_or_string);
    let mut schema = Schema::empty();
    schema.types = types(&words);
    schema.nullable = flag(words.nullable);
    schema.preserve = preserve || flag(words.preserve);
    schema.embedded = flag(words.embedded);
    schema.atomic_map = words.map_type.is_some_and(|word| word == "atomic");
    // A default that is null is none to the server.
    let default = words.default.filter(|default| !default.is_null());
    schema.default = default.cloned().map(Box::new);
    if let Some(properties) = words.properties.and_then(Value::as_object) {
        schema.properties = properties
            .iter()
            .map(|(name, value)| (name.clone(), parse_at(value, depth - 1, preserve, role)))
            .collect();
    }
    schema.additional = words
        .additional
        .filter(|value| **value != Value::Bool(false))
        .map(child);
    schema.items = words.items.map(child);
    if schema.preserve {
        preserve_entries(&mut schema);
    }
    schema.required = texts(words.required);
    schema.limits = limits(&words);
    schema.list = list_type(&words);
    schema.rules = rules(words.rules);
    let mut any = branches(words.any_of);
    if int_or_string {
        any = normalise::without_int_or_string(any);
    }
    let one = branches(words.one_of);
    if !any.is_empty() {
        schema.choices.any.push(any);
    }
    if !one.is_empty() {
        schema.choices.one.push(one);
    }
    if let Some(not) = words.not {
        schema
            .choices
            .not
            .push(parse_at(not, depth - 1, false, Role::Check));
    }
    // One after the other: all at once would take much room for what is soon a part of this one.
    for value in elements(words.all_of) {
        let mut branch = parse_at(value, depth - 1, preserve, Role::Check);
        if int_or_string && let Some(choices) = branch.choices.given() {
            choices.any = std::mem::take(&mut choices.any)
                .into_iter()
                .map(normalise::without_int_or_string)
                .filter(|group| !group.is_empty())
                .collect();
            branch.forget();
        }
        normalise::fold(&mut schema, branch, role);
    }
    normalise::tidy(&mut schema, role);
    schema
}

/// A list that preserves unknown fields keeps those of its entries; and of their entries, where they are lists.
fn preserve_entries(list: &mut Schema) {
    if let Some(entries) = &mut list.items {
        entries.forget();
        entries.preserve = true;
        preserve_entries(entries);
    }
}

/// Every word of a schema that is understood, found in one pass: most of a large definition is descriptions, and most
/// of its nodes say three words.
#[derive(Default)]
struct Words<'a> {
    reference: Option<&'a Value>,
    type_: Option<&'a Value>,
    nullable: Option<&'a Value>,
    int_or_string: Option<&'a Value>,
    preserve: Option<&'a Value>,
    embedded: Option<&'a Value>,
    default: Option<&'a Value>,
    properties: Option<&'a Value>,
    additional: Option<&'a Value>,
    items: Option<&'a Value>,
    required: Option<&'a Value>,
    enumeration: Option<&'a Value>,
    minimum: Option<&'a Value>,
    exclusive_minimum: Option<&'a Value>,
    maximum: Option<&'a Value>,
    exclusive_maximum: Option<&'a Value>,
    multiple_of: Option<&'a Value>,
    min_length: Option<&'a Value>,
    max_length: Option<&'a Value>,
    min_items: Option<&'a Value>,
    max_items: Option<&'a Value>,
    min_properties: Option<&'a Value>,
    max_properties: Option<&'a Value>,
    pattern: Option<&'a Value>,
    format: Option<&'a Value>,
    unique: Option<&'a Value>,
    any_of: Option<&'a Value>,
    one_of: Option<&'a Value>,
    all_of: Option<&'a Value>,
    not: Option<&'a Value>,
    list_type: Option<&'a Value>,
    list_keys: Option<&'a Value>,
    map_type: Option<&'a Value>,
    rules: Option<&'a Value>,
}

impl<'a> Words<'a> {
    fn of(node: &'a Map<String, Value>) -> Self {
        let mut words = Self::default();
        for (name, value) in node {
            let word = match name.as_str() {
                "$ref" => &mut words.reference,
                "type" => &mut words.type_,
                "nullable" => &mut words.nullable,
                "x-kubernetes-int-or-string" => &mut words.int_or_string,
                "x-kubernetes-preserve-unknown-fields" => &mut words.preserve,
                "x-kubernetes-embedded-resource" => &mut words.embedded,
                "default" => &mut words.default,
                "properties" => &mut words.properties,
                "additionalProperties" => &mut words.additional,
                "items" => &mut words.items,
                "required" => &mut words.required,
                "enum" => &mut words.enumeration,
                "minimum" => &mut words.minimum,
                "exclusiveMinimum" => &mut words.exclusive_minimum,
                "maximum" => &mut words.maximum,
                "exclusiveMaximum" => &mut words.exclusive_maximum,
                "multipleOf" => &mut words.multiple_of,
                "minLength" => &mut words.min_length,
                "maxLength" => &mut words.max_length,
                "minItems" => &mut words.min_items,
                "maxItems" => &mut words.max_items,
                "minProperties" => &mut words.min_properties,
                "maxProperties" => &mut words.max_properties,
                "pattern" => &mut words.pattern,
                "format" => &mut words.format,
                "uniqueItems" => &mut words.unique,
                "anyOf" => &mut words.any_of,
                "oneOf" => &mut words.one_of,
                "allOf" => &mut words.all_of,
                "not" => &mut words.not,
                "x-kubernetes-list-type" => &mut words.list_type,
                "x-kubernetes-list-map-keys" => &mut words.list_keys,
                "x-kubernetes-map-type" => &mut words.map_type,
                "x-kubernetes-validations" => &mut words.rules,
                _ => continue,
            };
            *word = Some(value);
        }
        words
    }
}

fn types(words: &Words<'_>) -> Types {
    let named = if flag(words.int_or_string) {
        Some(Types::INT_OR_STRING)
    } else {
        words.type_.and_then(Value::as_str).and_then(Types::from_name)
    };
    match named {
        Some(types) if flag(words.nullable) => types.or(Types::NULL),
        Some(types) => types,
        None => Types::ANY,
    }
}

fn limits(words: &Words<'_>) -> Rare<Limits> {
    let given = [
        words.enumeration,
        words.minimum,
        words.exclusive_minimum,
        words.maximum,
        words.exclusive_maximum,
        words.multiple_of,
        words.min_length,
        words.max_length,
        words.min_items,
        words.max_items,
        words.min_properties,
        words.max_properties,
        words.pattern,
        words.format,
        words.unique,
    ];
    if given.iter().all(Option::is_none) {
        return Rare::default();
    }
    let count = |min: Option<&Value>, max: Option<&Value>| Count {
        min: min.and_then(whole).unwrap_or(0),
        max: max.and_then(whole),
    };
    let text = |text: Option<&str>| {
        let mut texts = BTreeSet::new();
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            texts.insert(text.to_owned());
        }
        texts
    };
    let format = words.format.and_then(Value::as_str).map(normalise::format_name);
    Limits {
        enumeration: words
            .enumeration
            .and_then(Value::as_array)
            .filter(|values| !values.is_empty())
            .map(|values| {
                let mut listed = Enumeration::new(values.clone());
                listed.spare_null(false);
                Box::new(listed)
            }),
        minimum: bound(words.minimum, words.exclusive_minimum),
        maximum: bound(words.maximum, words.exclusive_maximum),
        multiples: words
            .multiple_of
            .and_then(Number::from_json)
            .into_iter()
            .collect(),
        length: count(words.min_length, words.max_length),
        items: count(words.min_items, words.max_items),
        fields: count(words.min_properties, words.max_properties),
        patterns: text(words.pattern.and_then(Value::as_str)),
        formats: text(format),
        unique: flag(words.unique),
    }
    .into()
}

fn bound(value: Option<&Value>, exclusive: Option<&Value>) -> Option<Bound> {
    // Apiextensions has the boolean of OpenAPI 3.0; a number is what newer drafts write, and easy to understand.
    if let Some(number) = exclusive.and_then(Number::from_json) {
        return Some(Bound {
            value: number,
            exclusive: true,
        });
    }
    Some(Bound {
        value: value.and_then(Number::from_json)?,
        exclusive: flag(exclusive),
    })
}

fn list_type(words: &Words<'_>) -> ListType {
    match words.list_type.and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(texts(words.list_keys)),
        _ => ListType::Atomic,
    }
}

fn rules(word: Option<&Value>) -> Vec<Rule> {
    elements(word)
        .filter_map(|rule| {
            let source: Source = rule.get("rule")?.as_str()?.to_owned().into();
            let expression = normalise::expression(&source.text);
            let text = |word: &str| rule.get(word).and_then(Value::as_str).map(str::to_owned);
            Some(Rule {
                transition: is_about_changes(&source, &expression),
                expression,
                source,
                message: text("message"),
                message_expression: text("messageExpression").map(Into::into),
                optional_old_self: flag(rule.get("optionalOldSelf")),
            })
        })
        .collect()
}

/// Whether a rule speaks of the value before an update. Most do not have the name in them at all, and are not read.
fn is_about_changes(source: &Source, expression: &str) -> bool {
    const BEFORE: &str = "oldSelf";
    source.text.contains(BEFORE)
        && match source.program() {
            Ok(program) => program.about_changes,
            Err(_) => normalise::mentions(expression, BEFORE),
        }
}

fn whole(value: &Value) -> Option<u64> {
    match Number::from_json(value)? {
        Number::Whole(whole) => u64::try_from(whole).ok(),
        Number::Real(_) => None,
    }
}

fn flag(word: Option<&Value>) -> bool {
    word.and_then(Value::as_bool).unwrap_or(false)
}

fn elements(word: Option<&Value>) -> impl Iterator<Item = &Value> {
    word.and_then(Value::as_array).into_iter().flatten()
}

fn texts(word: Option<&Value>) -> BTreeSet<String> {
    elements(word)
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
