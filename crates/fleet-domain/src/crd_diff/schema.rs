//! A structural schema in the one form that is compared: `allOf` is folded in, what constrains nothing is gone, and
//! numbers have one spelling. `parse` makes it from JSON of any shape, however hostile.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::Value;

use super::number::{Bound, Number, canonical};

/// The kinds of JSON values, as a set. Whole and broken numbers are told apart, because `integer` is less than `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    pub const NULL: Self = Self(1);
    pub const BOOLEAN: Self = Self(2);
    pub const INTEGER: Self = Self(4);
    pub const FRACTION: Self = Self(8);
    pub const STRING: Self = Self(16);
    pub const ARRAY: Self = Self(32);
    pub const OBJECT: Self = Self(64);
    pub const NUMBER: Self = Self(4 | 8);
    pub const INT_OR_STRING: Self = Self(4 | 16);
    pub const ANY: Self = Self(127);
    /// One by one.
    pub const EACH: [Self; 7] = [
        Self::NULL,
        Self::BOOLEAN,
        Self::INTEGER,
        Self::FRACTION,
        Self::STRING,
        Self::ARRAY,
        Self::OBJECT,
    ];

    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            "null" => Self::NULL,
            _ => return None,
        })
    }

    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => match Number::from_json(value) {
                Some(number) if number.is_integer() => Self::INTEGER,
                _ => Self::FRACTION,
            },
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Display for Types {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.without(Self::NULL) == Self::ANY.without(Self::NULL) {
            return f.write_str("anything");
        }
        let names = [
            (Self::OBJECT, "object"),
            (Self::ARRAY, "array"),
            (Self::STRING, "string"),
            (Self::BOOLEAN, "boolean"),
        ];
        let mut words: Vec<&str> = names
            .iter()
            .filter(|(kind, _)| self.has(*kind))
            .map(|(_, name)| *name)
            .collect();
        if self.has(Self::FRACTION) {
            words.push("number");
        } else if self.has(Self::INTEGER) {
            words.push("integer");
        }
        if self.has(Self::NULL) {
            words.push("null");
        }
        f.write_str(&words.join(" or "))
    }
}

/// A closed list of values.
#[derive(Clone, Debug, Default)]
pub struct Enumeration {
    pub values: Vec<Value>,
    /// In a long list membership is by hash, so that a giant one costs no more than its length: words as they are, which
    /// most values are, and others as canonical text.
    words: HashSet<String>,
    others: HashSet<String>,
}

impl Enumeration {
    const LONG: usize = 16;

    pub fn new(values: impl IntoIterator<Item = Value>) -> Self {
        let values = values.into_iter();
        let many = values.size_hint().0;
        let mut all = Self::default();
        for value in values {
            if all.contains(&value) {
                continue;
            }
            if all.is_long() {
                all.note(&value);
            }
            all.values.push(value);
            if all.values.len() == Self::LONG {
                all.words.reserve(many);
                for value in std::mem::take(&mut all.values) {
                    all.note(&value);
                    all.values.push(value);
                }
            }
        }
        all
    }

    fn is_long(&self) -> bool {
        self.values.len() >= Self::LONG
    }

    fn note(&mut self, value: &Value) {
        match value {
            Value::String(word) => self.words.insert(word.clone()),
            other => self.others.insert(canonical(other)),
        };
    }

    pub fn contains(&self, value: &Value) -> bool {
        match value {
            _ if !self.is_long() => self.values.iter().any(|known| is_same(known, value)),
            Value::String(word) => self.words.contains(word),
            other => self.others.contains(&canonical(other)),
        }
    }
}

impl PartialEq for Enumeration {
    fn eq(&self, other: &Self) -> bool {
        self.values.len() == other.values.len() && self.values.iter().all(|value| other.contains(value))
    }
}

fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::String(one), Value::String(other)) => one == other,
        (Value::String(_), _) | (_, Value::String(_)) => false,
        _ => one == other || canonical(one) == canonical(other),
    }
}

/// How many there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub min: u64,
    pub max: Option<u64>,
}

impl Count {
    pub fn admits(self, count: u64) -> bool {
        count >= self.min && self.max.is_none_or(|max| count <= max)
    }

    pub fn merge(&mut self, other: Self) {
        self.min = self.min.max(other.min);
        self.max = match (self.max, other.max) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// What single values have to meet, whatever their kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    pub enumeration: Option<Enumeration>,
    pub minimum: Option<Bound>,
    pub maximum: Option<Bound>,
    pub multiples: Vec<Number>,
    pub length: Count,
    pub items: Count,
    pub fields: Count,
    pub patterns: BTreeSet<String>,
    pub formats: BTreeSet<String>,
    pub unique: bool,
}

/// `anyOf`, `oneOf` and `not`. Several of each hold together: `allOf` may bring more than one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    pub any: Vec<Vec<Schema>>,
    pub one: Vec<Vec<Schema>>,
    pub not: Vec<Schema>,
}

impl Choices {
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.one.is_empty() && self.not.is_empty()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// What it is when nothing is said.
    #[default]
    Atomic,
    Set,
    Map(BTreeSet<String>),
}

impl std::fmt::Display for ListType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Atomic => f.write_str("atomic list"),
            Self::Set => f.write_str("set"),
            Self::Map(keys) => {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                write!(f, "map by {}", keys.join(", "))
            }
        }
    }
}

/// A CEL rule of `x-kubernetes-validations`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The expression, with its white space evened out.
    pub expression: String,
    pub message: Option<String>,
    /// Speaks of the value before the change, and so only of updates.
    pub transition: bool,
    /// A transition rule that also looks at new objects.
    pub optional_old_self: bool,
}

#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the API")]
pub struct Schema {
    pub types: Types,
    /// Said to be nullable. A schema without a type takes a null, but the server drops it before.
    pub nullable: bool,
    /// Keeps fields that the schema does not name.
    pub preserve: bool,
    pub embedded: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Schema>,
    pub additional: Option<Box<Schema>>,
    pub items: Option<Box<Schema>>,
    pub required: BTreeSet<String>,
    pub limits: Limits,
    pub choices: Choices,
    pub list: ListType,
    pub atomic_map: bool,
    pub rules: Vec<Rule>,
    /// Named only inside `allOf`: checked, but not kept from pruning.
    pub unstructured: bool,
    /// What could not be read, because it is too deep or not a schema.
    pub unread: Option<Value>,
}

impl Schema {
    /// Says nothing and keeps nothing.
    pub fn empty() -> Self {
        Self {
            types: Types::ANY,
            nullable: false,
            preserve: false,
            embedded: false,
            default: None,
            properties: BTreeMap::new(),
            additional: None,
            items: None,
            required: BTreeSet::new(),
            limits: Limits::default(),
            choices: Choices::default(),
            list: ListType::Atomic,
            atomic_map: false,
            rules: Vec::new(),
            unstructured: false,
            unread: None,
        }
    }

    /// Says nothing and keeps everything: what a version without a schema has.
    pub fn open() -> Self {
        Self {
            preserve: true,
            ..Self::empty()
        }
    }

    /// Takes every value and keeps all of it.
    pub fn is_open(&self) -> bool {
        self.preserve && self.is_vacuous()
    }

    /// Rejects nothing; what it prunes is another question.
    pub fn is_vacuous(&self) -> bool {
        self.types.or(Types::NULL) == Types::ANY
            && self.required.is_empty()
            && self.limits == Limits::default()
            && self.choices.is_empty()
            && self.list == ListType::Atomic
            && self.rules.is_empty()
            && !self.embedded
            && self.unread.is_none()
            && self.properties.values().all(Self::is_vacuous)
            && self.additional.as_deref().is_none_or(Self::is_vacuous)
            && self.items.as_deref().is_none_or(Self::is_vacuous)
    }

    /// The server puts defaults in before it validates, so a required field that has one is never missing.
    pub fn demands(&self, name: &str) -> bool {
        self.required.contains(name)
            && self
                .properties
                .get(name)
                .is_none_or(|property| property.default.is_none())
    }

    /// Whether an object may be refused because this field was dropped from it.
    pub fn misses(&self, name: &str) -> bool {
        self.demands(name) || self.counts_fields()
    }

    /// Whether an object may be refused for having too few fields, whichever they are.
    pub fn counts_fields(&self) -> bool {
        self.limits.fields.min > 0
    }

    /// Whether a field of this name survives pruning here.
    pub fn keeps(&self, name: &str) -> bool {
        self.preserve
            || self.additional.is_some()
            || self.properties.get(name).is_some_and(|p| !p.unstructured)
            || (self.embedded && matches!(name, "apiVersion" | "kind" | "metadata"))
    }
}
