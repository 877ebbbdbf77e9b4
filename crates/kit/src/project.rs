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
        // A variable without a value comes back without the field.
        None => is_empty(wish) || (key == "value" && wish == ""),
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
    match (nanos(live), nanos(wish)) {
        (Some(live), Some(wish)) => live == wish,
        _ => false,
    }
}

/// A Kubernetes quantity in thousandths, or nothing when it is none. Less than one counts as one, as Kubernetes does.
pub fn quantity(value: &Value) -> Option<i128> {
    let nanos = nanos(value)?;
    Some(nanos.signum() * up(nanos.abs(), 1_000_000))
}

/// A Kubernetes quantity in billionths, which is as fine as Kubernetes reckons; or nothing when it is none, or too large
/// to be any amount of anything.
pub fn nanos(value: &Value) -> Option<i128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let (sign, text) = match text.split_at_checked(1) {
        Some(("-", rest)) => (-1, rest),
        Some(("+", rest)) => (1, rest),
        _ => (1, text.as_str()),
    };
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let (factor, divisor) = scale(suffix)?;
    // Digits that are too fine to reckon with count as one of the last that is not.
    let mut digits = format!("{whole}{fraction}");
    let mut places = fraction.len();
    let mut rounded = 0;
    loop {
        let exact = digits.parse::<i128>().ok().and_then(|unscaled| {
            let divisor = divisor.checked_mul(10_i128.checked_pow(u32::try_from(places).ok()?)?)?;
            let amount = unscaled.checked_add(rounded)?.checked_mul(factor)?;
            Some(sign * up(amount, divisor))
        });
        if exact.is_some() || places == 0 {
            return exact;
        }
        let dropped = digits.pop();
        rounded = i128::from(rounded > 0 || dropped != Some('0'));
        places -= 1;
    }
}

/// A quotient of what is not negative, rounded up.
fn up(amount: i128, divisor: i128) -> i128 {
    amount / divisor + i128::from(amount % divisor > 0)
}

/// What a number with this suffix is multiplied by and divided by to be billionths.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    const ONE: i128 = 1_000_000_000;
    let decimal = |power: u32| Some((10_i128.checked_pow(power)?, 1));
    match suffix {
        "n" => decimal(0),
        "u" => decimal(3),
        "m" => decimal(6),
        "" => decimal(9),
        "k" => decimal(12),
        "M" => decimal(15),
        "G" => decimal(18),
        "T" => decimal(21),
        "P" => decimal(24),
        "E" => decimal(27),
        "Ki" => Some((ONE << 10, 1)),
        "Mi" => Some((ONE << 20, 1)),
        "Gi" => Some((ONE << 30, 1)),
        "Ti" => Some((ONE << 40, 1)),
        "Pi" => Some((ONE << 50, 1)),
        "Ei" => Some((ONE << 60, 1)),
        _ => {
            let power: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128.checked_pow(power.unsigned_abs())?;
            Some(if power < 0 {
                (ONE, factor)
            } else {
                (ONE.checked_mul(factor)?, 1)
            })
        }
    }
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
    #[case::empty_variable(json!({"env": [{"name": "A"}]}), json!({"env": [{"name": "A", "value": ""}]}), true)]
    #[case::empty_class(json!({}), json!({"storageClassName": ""}), false)]
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
    #[case("1e3", "1k")]
    #[case("2E3", "2000")]
    #[case("15e-1", "1500m")]
    #[case("3E", "3000P")]
    #[case("7Ei", "7168Pi")]
    #[case("+1", "1")]
    #[case("5u", "5000n")]
    #[case("0.1", "0.10000000000000000000000000000000000000000000000000")]
    #[case("1.5Ei", "1536Pi")]
    #[case("0.0000000001", "1n")]
    fn quantities_are_equal_by_value(#[case] one: &str, #[case] other: &str) {
        assert!(covers(&json!(one), &json!(other)));
    }

    #[rstest]
    #[case("")]
    #[case("abc")]
    #[case("1Zi")]
    #[case("1.2.3")]
    #[case("1-2")]
    #[case("-")]
    #[case("1e")]
    #[case("1e1.5")]
    #[case("1e99")]
    fn rubbish_is_no_quantity(#[case] text: &str) {
        assert_eq!(quantity(&json!(text)), None);
    }

    #[rstest]
    #[case("1500m", 1500)]
    #[case("-1500m", -1500)]
    #[case("1n", 1)]
    #[case("1e3", 1_000_000)]
    #[case("0.33333333333333333333333333333333333333333333", 334)]
    #[case("123456789012.00000000000000000000000000000000000001", 123_456_789_012_001)]
    fn quantities_are_told_in_thousandths(#[case] text: &str, #[case] expected: i128) {
        assert_eq!(quantity(&json!(text)), Some(expected));
    }

    #[test]
    fn the_finest_amounts_differ() {
        assert!(!covers(&json!("1n"), &json!("2n")));
    }
}
