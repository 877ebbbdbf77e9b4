//! One way to write a JSON value: no spaces, members sorted by their names' bytes, fractions as text.
//!
//! Fractions are the one place where readers of JSON disagree (`0.1` read and written again need not be `0.1`), so a
//! ledger holds none: [`settle`] turns them into text before they are hashed.

use serde_json::Value;

/// The value as it is kept: every number that is not an integer becomes text.
pub fn settle(value: Value) -> Value {
    match value {
        Value::Number(number) if !(number.is_i64() || number.is_u64()) => Value::String(number.to_string()),
        Value::Array(items) => Value::Array(items.into_iter().map(settle).collect()),
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(name, member)| (name, settle(member)))
                .collect(),
        ),
        other => other,
    }
}

/// Appends the one way to write the value.
pub fn write(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            // Sorted here, because whether the map is sorted already depends on a feature that any crate may turn on.
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by(|left, right| left.0.cmp(right.0));
            out.push('{');
            for (place, (name, member)) in sorted.into_iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                text(name, out);
                out.push(':');
                write(member, out);
            }
            out.push('}');
        }
        Value::String(string) => text(string, out),
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&number.to_string()),
    }
}

/// Appends a string, with the escapes of `serde_json`: only what JSON demands.
pub fn text(string: &str, out: &mut String) {
    out.push_str(&Value::String(string.to_owned()).to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::members_are_sorted(json!({"b": 1, "a": {"d": null, "c": [true, false]}}), r#"{"a":{"c":[true,false],"d":null},"b":1}"#)]
    #[case::by_bytes(json!({"é": 1, "z": 2, "Z": 3, "a\"": 4}), r#"{"Z":3,"a\"":4,"z":2,"é":1}"#)]
    #[case::strings(json!("a\n\"\\\u{1}/é😀"), "\"a\\n\\\"\\\\\\u0001/é😀\"")]
    #[case::integers(json!([0, -1, u64::MAX, i64::MIN]), "[0,-1,18446744073709551615,-9223372036854775808]")]
    #[case::empty(json!([{}, [], ""]), r#"[{},[],""]"#)]
    fn there_is_one_way_to_write(#[case] value: Value, #[case] expected: &str) {
        let mut out = String::new();
        write(&value, &mut out);
        assert_eq!(out, expected);
        assert_eq!(
            serde_json::from_str::<Value>(&out).unwrap(),
            value,
            "it reads back"
        );
    }

    #[test]
    fn fractions_become_text_and_integers_stay() {
        assert_eq!(
            settle(json!({"a": [0.5, 1, -2], "b": {"c": 1e300}, "d": "0.5"})),
            json!({"a": ["0.5", 1, -2], "b": {"c": "1e+300"}, "d": "0.5"})
        );
    }
}
