//! Does a live object already hold everything a wish asks for?
//!
//! The server adds defaults, other writers add fields of their own, quantities come back in another spelling: none of
//! that is a difference. Lists that server-side apply merges by key are compared by that key, all others as a whole.

use serde_json::{Map, Value};

/// True when `live` holds every leaf of `wish`. Kind and version say how an object was asked for, not what it is, and
/// items of a list come without them.
pub fn covers(live: &Value, wish: &Value) -> bool {
    match (live, wish) {
        (Value::Object(live), Value::Object(wish)) => covers_map(
            live,
            wish.iter()
                .filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind")),
        ),
        _ => covers_at(live, wish, ""),
    }
}

fn covers_map<'a>(
    live: &Map<String, Value>,
    mut wish: impl Iterator<Item = (&'a String, &'a Value)>,
) -> bool {
    wish.all(|(key, wish)| match live.get(key) {
        Some(live) => covers_at(live, wish, key),
        None => is_empty(wish),
    })
}

fn covers_at(live: &Value, wish: &Value, field: &str) -> bool {
    match (live, wish) {
        (Value::Object(live), Value::Object(wish)) => covers_map(live, wish.iter()),
        (Value::Array(live), Value::Array(wish)) => covers_list(live, wish, field),
        (live, wish) => live == wish || same_quantity(live, wish),
    }
}

fn covers_list(live: &[Value], wish: &[Value], field: &str) -> bool {
    match merge_key(field, wish) {
        Some(keys) => wish.iter().all(|wish| {
            live.iter()
                .find(|live| keys.iter().all(|key| same_key(live, wish, key)))
                .is_some_and(|live| covers_at(live, wish, field))
        }),
        None => {
            live.len() == wish.len()
                && live
                    .iter()
                    .zip(wish)
                    .all(|(live, wish)| covers_at(live, wish, field))
        }
    }
}

/// The keys by which the API server merges this list, as its schema says.
pub fn merge_key(field: &str, items: &[Value]) -> Option<&'static [&'static str]> {
    let keys: &[&str] = match field {
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" => &["name"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "ownerReferences" => &["uid"],
        "hostAliases" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        "ports" if items.iter().all(|item| item.get("containerPort").is_some()) => {
            &["containerPort", "protocol"]
        }
        "ports" if items.iter().all(|item| item.get("port").is_some()) => &["port", "protocol"],
        _ => return None,
    };
    Some(keys)
}

fn same_key(live: &Value, wish: &Value, key: &str) -> bool {
    // The server fills the protocol in; a wish may leave it out.
    let default = if key == "protocol" {
        Value::from("TCP")
    } else {
        Value::Null
    };
    live.get(key).unwrap_or(&default) == wish.get(key).unwrap_or(&default)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn same_quantity(live: &Value, wish: &Value) -> bool {
    match (quantity(live), quantity(wish)) {
        (Some(live), Some(wish)) => live == wish,
        _ => false,
    }
}

/// A Kubernetes quantity in thousandths, or nothing when it is none.
pub fn quantity(value: &Value) -> Option<i128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let factor: i128 = match suffix {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "P" => 1_000_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        "Pi" => 1_000 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let scale = 10_i128.pow(fraction.len() as u32);
    let unscaled: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some(unscaled.checked_mul(factor)? / scale)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::server_defaults(json!({"a": 1, "added": 2}), json!({"a": 1}), true)]
    #[case::item_of_a_list(json!({"a": 1}), json!({"a": 1, "apiVersion": "v1", "kind": "K"}), true)]
    #[case::changed(json!({"a": 2}), json!({"a": 1}), false)]
    #[case::missing(json!({}), json!({"a": 1}), false)]
    #[case::pruned_empty(json!({}), json!({"a": {"b": []}}), true)]
    #[case::quantity(json!({"cpu": "1"}), json!({"cpu": "1000m"}), true)]
    #[case::other_quantity(json!({"cpu": "1"}), json!({"cpu": "100m"}), false)]
    #[case::number_and_text_port(json!({"port": 80}), json!({"port": "http"}), false)]
    #[case::merged_env(
        json!({"env": [{"name": "FOREIGN", "value": "x"}, {"name": "OURS", "value": "1"}]}),
        json!({"env": [{"name": "OURS", "value": "1"}]}), true)]
    #[case::edited_env(
        json!({"env": [{"name": "OURS", "value": "2"}]}), json!({"env": [{"name": "OURS", "value": "1"}]}), false)]
    #[case::atomic_grew(json!({"args": ["a", "b"]}), json!({"args": ["a"]}), false)]
    #[case::atomic_order(json!({"args": ["b", "a"]}), json!({"args": ["a", "b"]}), false)]
    #[case::protocol_default(
        json!({"ports": [{"port": 80, "protocol": "TCP"}]}), json!({"ports": [{"port": 80}]}), true)]
    #[case::protocol_differs(
        json!({"ports": [{"port": 80, "protocol": "UDP"}]}), json!({"ports": [{"port": 80}]}), false)]
    fn tells_a_difference_from_a_default(#[case] live: Value, #[case] wish: Value, #[case] expected: bool) {
        assert_eq!(covers(&live, &wish), expected);
    }

    #[rstest]
    #[case("1", "1000m")]
    #[case("1Gi", "1024Mi")]
    #[case("0.5", "500m")]
    #[case("1.5Gi", "1536Mi")]
    #[case("1e3", "1e3")]
    fn quantities_are_equal_by_value(#[case] one: &str, #[case] other: &str) {
        assert!(covers(&json!(one), &json!(other)));
    }

    #[rstest]
    #[case("")]
    #[case("abc")]
    #[case("1Zi")]
    #[case("1.2.3")]
    fn rubbish_is_no_quantity(#[case] text: &str) {
        assert_eq!(quantity(&json!(text)), None);
    }
}
