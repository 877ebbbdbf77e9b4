//! YAML and JSON that strangers send. Size, depth and what anchors multiply to are bounded before anything is built.

use std::{borrow::Cow, cell::Cell, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// What a text may be at most.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub bytes: usize,
    /// With what anchors multiply to.
    pub nodes: usize,
    pub depth: usize,
}

impl Bounds {
    /// Less by what was read and is kept, where several texts share them.
    pub fn spend(&mut self, kept: &[Value]) {
        let kept = kept.iter().map(nodes).sum();
        self.nodes = self.nodes.saturating_sub(kept);
    }
}

/// A kubeconfig, or something else that people write by hand.
pub const SMALL: Bounds = Bounds {
    bytes: 256 << 10,
    nodes: 20_000,
    depth: 64,
};
/// One definition; the API server itself takes no more than 3 MB.
pub const DEFINITION: Bounds = Bounds {
    bytes: 3 << 20,
    nodes: 500_000,
    depth: 200,
};
/// A chart's file, with many definitions.
pub const CHART: Bounds = Bounds {
    bytes: 32 << 20,
    nodes: 1_000_000,
    depth: 200,
};

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("is larger than {} KiB", .0 >> 10)]
    TooLarge(usize),
    #[error("is empty")]
    Empty,
    #[error("has {0} documents where one is expected")]
    Several(usize),
    /// Never the parser's own words: they quote the text.
    #[error("is neither YAML nor JSON that can be read (or it is nested or multiplied too far)")]
    Unreadable,
}

/// All documents of a text.
pub fn documents(text: &str, bounds: Bounds) -> Result<Vec<Value>, TextError> {
    if text.len() > bounds.bytes {
        return Err(TextError::TooLarge(bounds.bytes));
    }
    // JSON is YAML, and the one with a parser of its own is the more common here.
    if text.trim_start().starts_with('{')
        && let Some(documents) = json(text, bounds)?
    {
        return Ok(documents);
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: bounds.nodes,
            max_events: 2 * bounds.nodes,
            max_depth: bounds.depth,
            max_documents: 10_000,
        },
        // Few have any anchors; a bomb is told apart long before it has used up the rest.
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 20_000,
            max_replay_stack_depth: 16,
        },
    };
    let documents: Vec<Plain> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|_| TextError::Unreadable)?;
    Ok(documents.into_iter().map(|document| document.0).collect())
}

/// All documents of a text that is JSON; nothing where it is none.
fn json(text: &str, bounds: Bounds) -> Result<Option<Vec<Value>>, TextError> {
    let left = Left::of(bounds.nodes);
    let mut reader = serde_json::Deserializer::from_str(text);
    let mut documents = Vec::new();
    while reader.end().is_err() {
        match left.reader(bounds.depth, true).deserialize(&mut reader) {
            Ok(document) => documents.push(document),
            Err(_) if left.is_over.get() => return Err(TextError::Unreadable),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(documents))
}

/// Whether JSON has no more nodes than it may; nothing is built of it. What is no JSON is the next reader's business.
pub fn has_at_most(nodes: usize, json: &[u8]) -> bool {
    let left = Left::of(nodes);
    let mut reader = serde_json::Deserializer::from_slice(json);
    // The parser has a limit of its own for how deep it goes.
    let _ = left.reader(usize::MAX, false).deserialize(&mut reader);
    !left.is_over.get()
}

/// Part of the message where that is not so, by which the reason is known again.
pub const TOO_MUCH: &str = "more than is taken";

/// Reads a value that has no more nodes than it may.
pub fn value<'de, D: Deserializer<'de>>(nodes: usize, deserializer: D) -> Result<Value, D::Error> {
    Left::of(nodes).reader(usize::MAX, true).deserialize(deserializer)
}

/// How many nodes a value has, counted as they are when it is read: the names of fields are some.
pub fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(|field| 1 + nodes(field)).sum::<usize>(),
        _ => 1,
    }
}

/// `serde_json` reads what is under such a name as JSON once more, which nobody has counted.
const MAGIC: &str = "$serde_json::private::";

/// What may still be read.
struct Left {
    nodes: Cell<usize>,
    is_over: Cell<bool>,
}

impl Left {
    fn of(nodes: usize) -> Self {
        Self {
            nodes: Cell::new(nodes),
            is_over: Cell::new(false),
        }
    }

    fn reader(&self, depth: usize, keeps: bool) -> Reader<'_> {
        Reader {
            left: self,
            depth,
            keeps,
        }
    }

    fn take<E: de::Error>(&self) -> Result<(), E> {
        let left = self.nodes.get().checked_sub(1).ok_or_else(|| self.over())?;
        self.nodes.set(left);
        Ok(())
    }

    fn over<E: de::Error>(&self) -> E {
        self.is_over.set(true);
        E::custom(TOO_MUCH)
    }
}

/// Reads a value as `Value` does, and stops where it has too many nodes.
#[derive(Clone, Copy)]
struct Reader<'l> {
    left: &'l Left,
    depth: usize,
    /// Whether what is read is kept, or only counted.
    keeps: bool,
}

impl Reader<'_> {
    fn inner<E: de::Error>(self) -> Result<Self, E> {
        let depth = self.depth.checked_sub(1).ok_or_else(|| self.left.over())?;
        Ok(Self { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.left.take()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        let number = Number::from_i128(value).ok_or_else(|| E::custom("a number out of range"))?;
        Ok(number.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        let number = Number::from_u128(value).ok_or_else(|| E::custom("a number out of range"))?;
        Ok(number.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(if self.keeps { value.into() } else { Value::Null })
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let (inner, mut items) = (self.inner()?, Vec::new());
        while let Some(item) = sequence.next_element_seed(inner)? {
            if self.keeps {
                items.push(item);
            }
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let (inner, mut fields) = (self.inner()?, Map::new());
        while let Some(Name(name)) = map.next_key()? {
            self.left.take()?;
            if name.starts_with(MAGIC) {
                return Err(self.left.over());
            }
            let name = self.keeps.then(|| name.into_owned());
            let value = map.next_value_seed(inner)?;
            if let Some(name) = name {
                fields.insert(name, value);
            }
        }
        Ok(fields.into())
    }
}

/// The name of a field, borrowed where that can be.
#[derive(Deserialize)]
struct Name<'n>(#[serde(borrow)] Cow<'n, str>);

/// A value in a text whose parser counts by itself.
struct Plain(Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        value(usize::MAX, deserializer).map(Self)
    }
}

/// The only document of a text.
pub fn document(text: &str, bounds: Bounds) -> Result<Value, TextError> {
    let mut all: Vec<Value> = documents(text, bounds)?
        .into_iter()
        .filter(|document| !document.is_null())
        .collect();
    match all.len() {
        0 => Err(TextError::Empty),
        1 => all.pop().ok_or(TextError::Empty),
        several => Err(TextError::Several(several)),
    }
}

/// How deep a value is nested; more than enough to say no.
pub fn is_too_deep(value: &Value, bounds: Bounds) -> bool {
    fn deeper(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left == 0 || items.iter().any(|item| deeper(item, left - 1)),
            Value::Object(fields) => left == 0 || fields.values().any(|field| deeper(field, left - 1)),
            _ => false,
        }
    }
    deeper(value, bounds.depth)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn bombs_are_refused() {
        let mut anchors = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            let _ = writeln!(anchors, "a{level}: &a{level} [{aliases}]");
        }
        let deep = "[".repeat(100_000);
        let deep_json = format!("{{\"a\":{}1{}}}", "[".repeat(200), "]".repeat(200));
        for text in [
            anchors.as_str(),
            deep.as_str(),
            deep_json.as_str(),
            "a: [",
            "",
            "a: 1\n---\nb: 2\n",
        ] {
            assert!(document(text, SMALL).is_err(), "{}", &text[..text.len().min(40)]);
        }
        let tiny = Bounds { bytes: 3, ..SMALL };
        assert!(matches!(document("a: 1", tiny), Err(TextError::TooLarge(3))));
        assert_eq!(document("a: 1", SMALL).unwrap()["a"], 1);
    }

    #[test]
    fn json_is_bounded_as_yaml_is() {
        let some = Bounds { nodes: 1000, ..SMALL };
        let wide = |items: usize| format!("{{\"kind\":\"X\",\"x\":[{}]}}", vec!["{\"\":0}"; items].join(","));
        assert!(document(&wide(300), some).is_ok());
        for text in [
            wide(400),
            format!("{}x", wide(400)),
            "{}".repeat(1001),
            format!("{{\"x\":{}}}", wide(400)),
        ] {
            let refused = documents(&text, some);
            assert!(matches!(refused, Err(TextError::Unreadable)), "{}", &text[..40]);
        }
        assert!(documents(&"{} ".repeat(900), some).is_ok_and(|all| all.len() == 900));
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(70), "]".repeat(70));
        assert!(document(&deep, some).is_err());
        for (text, nodes) in [("{}", 1), ("{\"a\":[1,\"b\",null,true,1.5]}", 8), ("0", 1)] {
            assert!(has_at_most(nodes, text.as_bytes()), "{text}");
            assert!(!has_at_most(nodes - 1, text.as_bytes()), "{text}");
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(super::nodes(&value), nodes, "{text}");
        }
        assert!(has_at_most(5, b"no JSON"));
    }

    #[test]
    fn values_are_what_they_were() {
        let text = r#"{"a":[1,-2,18446744073709551615,1.5,1e3,"x\u00e9\n",null,true],"b":{"a":{}},"a\"":1}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(document(text, SMALL).unwrap(), expected);
        assert_eq!(document(&format!("---\n{text}"), SMALL).unwrap(), expected);
        let yaml = "1: 0x10\ntrue: ~\na: [010, 1.0, 'x', 2026-01-01]\n";
        let as_value: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
        assert_eq!(documents(yaml, SMALL).unwrap(), as_value);
    }

    /// With one of the features that somebody else asks for, `Value` reads the text under this name as JSON.
    #[test]
    fn nothing_is_read_twice() {
        let inner = format!("[{}0]", "0,".repeat(1000));
        for name in [
            "$serde_json::private::RawValue",
            "\\u0024serde_json::private::RawValue",
            "$serde_json::private::Number",
        ] {
            let text = format!("{{\"a\":{{\"{name}\":\"{inner}\"}}}}");
            assert!(document(&text, SMALL).is_err(), "{text:.60}");
            assert!(document(&format!("---\n{text}"), SMALL).is_err(), "{text:.60}");
            assert!(!has_at_most(1000, text.as_bytes()), "{text:.60}");
        }
    }

    #[test]
    fn depth_is_found_without_going_all_the_way() {
        let mut value = Value::Null;
        for _ in 0..60 {
            value = Value::Array(vec![value]);
        }
        assert!(!is_too_deep(&value, SMALL));
        for _ in 0..10 {
            value = Value::Array(vec![value]);
        }
        assert!(is_too_deep(&value, SMALL));
    }
}
