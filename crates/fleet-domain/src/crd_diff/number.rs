//! Numbers as the API server compares them: `1` and `1.0` are one number.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

use serde_json::Value;

/// A JSON number, told apart only by its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Whole(i128),
    Real(f64),
}

/// Whole numbers below this are exact as a float, so that both spellings can be made one.
const EXACT: f64 = 9_007_199_254_740_992.0;

impl Number {
    pub fn from_json(value: &Value) -> Option<Self> {
        let number = value.as_number()?;
        if let Some(whole) = number.as_i64() {
            return Some(Self::Whole(whole.into()));
        }
        if let Some(whole) = number.as_u64() {
            return Some(Self::Whole(whole.into()));
        }
        number.as_f64().map(Self::from_f64)
    }

    pub fn from_f64(real: f64) -> Self {
        if real.fract() == 0.0 && real.abs() <= EXACT {
            Self::Whole(real as i128)
        } else {
            Self::Real(real)
        }
    }

    pub fn as_f64(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }

    pub fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => a.cmp(&b),
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        }
    }

    /// The server holds whole numbers in 64 bits; beyond that they become floats, which are not integers to it.
    pub fn is_integer(self) -> bool {
        match self {
            Self::Whole(whole) => i64::try_from(whole).is_ok(),
            Self::Real(_) => false,
        }
    }

    pub fn is_multiple_of(self, step: Self) -> bool {
        match (self, step) {
            (_, Self::Whole(0)) => true,
            (Self::Whole(a), Self::Whole(b)) => a % b == 0,
            (a, b) => {
                let times = a.as_f64() / b.as_f64();
                (times - times.round()).abs() < 1e-9
            }
        }
    }
}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Whole(whole) => whole.hash(state),
            // Zero is whole, so that no two spellings of one number are left.
            Self::Real(real) => real.to_bits().hash(state),
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Real(real) => write!(f, "{real}"),
        }
    }
}

/// The JSON of a value in one spelling: keys sorted, numbers by value. Equal values have equal text.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

/// Adds that text.
pub fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Number(_) => match Number::from_json(value) {
            Some(number) => text.push_str(&number.to_string()),
            None => text.push_str(&value.to_string()),
        },
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Object(fields) => {
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_unstable();
            text.push('{');
            for (index, name) in names.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push(':');
                write_canonical(&fields[name], text);
            }
            text.push('}');
        }
        // Most values are plain words, which need no escapes.
        Value::String(word)
            if !word
                .bytes()
                .any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') =>
        {
            text.push('"');
            text.push_str(word);
            text.push('"');
        }
        other => text.push_str(&other.to_string()),
    }
}

/// One end of a range. `exclusive` means that the value itself is outside.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub struct Bound {
    pub value: Number,
    pub exclusive: bool,
}

impl Bound {
    /// For whole numbers, "more than 2" and "at least 3" are the same; so are "at least 2.5" and "at least 3".
    pub fn lower_for_integers(self) -> Self {
        self.for_integers(1)
    }

    pub fn upper_for_integers(self) -> Self {
        self.for_integers(-1)
    }

    fn for_integers(self, inward: i128) -> Self {
        let value = match self.value {
            Number::Whole(whole) if self.exclusive => Number::Whole(whole.saturating_add(inward)),
            Number::Real(real) if real.abs() < EXACT => {
                Number::Whole(if inward > 0 { real.ceil() } else { real.floor() } as i128)
            }
            Number::Real(_) => return self,
            whole @ Number::Whole(_) => whole,
        };
        Self {
            value,
            exclusive: false,
        }
    }

    /// Whether this lower bound lets less through than `other`.
    pub fn is_tighter_lower(self, other: Self) -> bool {
        match self.value.compare(other.value) {
            Ordering::Greater => true,
            Ordering::Equal => self.exclusive && !other.exclusive,
            Ordering::Less => false,
        }
    }

    /// Whether this upper bound lets less through than `other`.
    pub fn is_tighter_upper(self, other: Self) -> bool {
        match self.value.compare(other.value) {
            Ordering::Less => true,
            Ordering::Equal => self.exclusive && !other.exclusive,
            Ordering::Greater => false,
        }
    }

    pub fn admits_from_below(self, number: Number) -> bool {
        match number.compare(self.value) {
            Ordering::Greater => true,
            Ordering::Equal => !self.exclusive,
            Ordering::Less => false,
        }
    }

    pub fn admits_from_above(self, number: Number) -> bool {
        match number.compare(self.value) {
            Ordering::Less => true,
            Ordering::Equal => !self.exclusive,
            Ordering::Greater => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!(1.0), "1")]
    #[case(json!({"b": 1, "a": [2.50, null]}), r#"{"a":[2.5,null],"b":1}"#)]
    #[case(json!(18_446_744_073_709_551_615_u64), "18446744073709551615")]
    fn one_spelling(#[case] value: Value, #[case] text: &str) {
        assert_eq!(canonical(&value), text);
    }

    #[test]
    fn exclusive_bounds_of_integers_become_inclusive() {
        let more_than_two = Bound {
            value: Number::Whole(2),
            exclusive: true,
        };
        assert_eq!(more_than_two.lower_for_integers().value, Number::Whole(3));
        assert_eq!(more_than_two.upper_for_integers().value, Number::Whole(1));
        let half = Bound {
            value: Number::Real(2.5),
            exclusive: false,
        };
        assert_eq!(half.lower_for_integers().value, Number::Whole(3));
    }
}
