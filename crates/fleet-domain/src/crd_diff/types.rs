//! The kinds of JSON values.

use serde_json::Value;

use super::number::Number;

/// The kinds of JSON values, as a set. Whole and broken numbers are told apart, because `integer` is less than `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// One bit for each kind, the same for ever.
    pub fn bits(self) -> u64 {
        self.0.into()
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
