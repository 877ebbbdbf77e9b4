//! YAML and JSON that strangers send. Size, depth and what anchors multiply to are bounded before anything is built.

use serde_json::Value;

/// What a text may be at most.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub bytes: usize,
    /// With what anchors multiply to.
    pub nodes: usize,
    pub depth: usize,
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
    if text.trim_start().starts_with('{') {
        let json = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if let Ok(documents) = json.collect::<Result<Vec<Value>, _>>() {
            return Ok(documents);
        }
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
    serde_saphyr::from_multiple_with_options(text, options).map_err(|_| TextError::Unreadable)
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
