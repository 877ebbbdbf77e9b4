//! Strategic merge of a user's fragment over what we generate.

use gantry_kit::project::merge_key;
use serde_json::{Map, Value};

/// Maps merge, lists that Kubernetes merges by key merge by that key, other lists and scalars are replaced, `null`
/// removes, and `$patch: delete` removes a list item.
pub fn strategic(base: &mut Value, patch: &Value) {
    merge_at(base, patch, "");
}

fn merge_at(base: &mut Value, patch: &Value, field: &str) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => merge_maps(base, patch),
        (Value::Array(base), Value::Array(patch)) => match merge_key(field, patch) {
            Some(keys) => patch.iter().for_each(|item| merge_item(base, item, keys, field)),
            None => base.clone_from(patch),
        },
        (base, patch) => *base = without_directives(patch),
    }
}

fn merge_maps(base: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch {
        if value.is_null() {
            base.remove(key);
        } else {
            merge_at(base.entry(key.clone()).or_insert(Value::Null), value, key);
        }
    }
}

fn merge_item(base: &mut Vec<Value>, item: &Value, keys: &[&str], field: &str) {
    let same = |known: &Value| {
        keys.iter().all(|key| {
            let default = Value::from(if *key == "protocol" { "TCP" } else { "" });
            known.get(key).unwrap_or(&default) == item.get(key).unwrap_or(&default)
        })
    };
    if item.get("$patch").and_then(Value::as_str) == Some("delete") {
        base.retain(|known| !same(known));
        return;
    }
    match base.iter_mut().find(|known| same(known)) {
        // An environment variable has one source: a new value replaces the old reference and the other way round.
        Some(known) if field == "env" => *known = item.clone(),
        Some(known) => merge_at(known, item, ""),
        None => base.push(without_directives(item)),
    }
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(key, value)| key.as_str() != "$patch" && !value.is_null())
            .map(|(key, value)| (key.clone(), without_directives(value)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::deep(json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 3}}), json!({"a": {"b": 3, "c": 2}}))]
    #[case::null_removes(json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2}))]
    #[case::atomic_list(json!({"args": ["x"]}), json!({"args": ["y", "z"]}), json!({"args": ["y", "z"]}))]
    #[case::containers_by_name(
        json!({"containers": [{"name": "main", "image": "a", "tty": true}]}),
        json!({"containers": [{"name": "main", "image": "b"}, {"name": "side", "image": "s"}]}),
        json!({"containers": [{"name": "main", "image": "b", "tty": true}, {"name": "side", "image": "s"}]}))]
    #[case::env_is_replaced_whole(
        json!({"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
        json!({"env": [{"name": "K", "value": "v"}]}),
        json!({"env": [{"name": "K", "value": "v"}]}))]
    #[case::delete_directive(
        json!({"volumes": [{"name": "tmp", "emptyDir": {}}]}),
        json!({"volumes": [{"name": "tmp", "$patch": "delete"}]}),
        json!({"volumes": []}))]
    #[case::new_parent(json!({}), json!({"affinity": {"nodeAffinity": {}}}), json!({"affinity": {"nodeAffinity": {}}}))]
    fn merges_as_kubernetes_does(#[case] mut base: Value, #[case] patch: Value, #[case] expected: Value) {
        strategic(&mut base, &patch);
        assert_eq!(base, expected);
    }
}
