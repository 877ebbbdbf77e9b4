//! By what a definition is recognised, in a chart and in a cluster.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// What digests begin with. Another way to make them gets another number: those that are stored are made anew then.
pub const FORM: &str = "2:";

/// What two definitions have in common when neither objects nor clients can tell them apart: the same for a chart's file
/// and for what a cluster made of it. Everything is in it that may break. Words for people, where a webhook is and what the
/// server fills in are left out.
pub fn digest(definition: &Value) -> String {
    let spec = &definition["spec"];
    let is_beta = definition["apiVersion"] == "apiextensions.k8s.io/v1beta1";
    let single = [json!({"name": spec["version"], "served": true, "storage": true})];
    let listed = spec["versions"].as_array().filter(|list| !list.is_empty());
    let versions: BTreeMap<&str, Value> = listed
        .map_or(&single[..], Vec::as_slice)
        .iter()
        .map(|version| {
            let name = version["name"].as_str().unwrap_or_default();
            // In v1beta1 what all versions share stands beside them.
            let own = |own: &str, shared: &str| match &version[own] {
                Value::Null => spec[shared].clone(),
                given => given.clone(),
            };
            let schema = without_words(&own("schema", "validation")["openAPIV3Schema"]);
            (
                name,
                json!([
                    version["served"],
                    version["storage"],
                    schema,
                    subresources(&own("subresources", "subresources")),
                    selectable(&version["selectableFields"]),
                ]),
            )
        })
        .collect();
    let same = json!([
        spec["group"],
        spec["names"]["plural"],
        spec["names"]["kind"],
        spec["scope"],
        spec["preserveUnknownFields"].as_bool().unwrap_or(is_beta),
        spec["conversion"]["strategy"].as_str().unwrap_or("None"),
        versions
    ]);
    let mut text = String::new();
    write_sorted(&same, &mut text);
    format!("{FORM}{}", crate::hex(&Sha256::digest(text.as_bytes())))
}

/// Whether there is a status, and the paths of the scale; one that is `null` is none.
fn subresources(given: &Value) -> Value {
    let scale = &given["scale"];
    let paths = ["specReplicasPath", "statusReplicasPath", "labelSelectorPath"]
        .map(|path| scale[path].as_str().unwrap_or_default());
    json!([!given["status"].is_null(), scale.is_object().then_some(paths)])
}

/// Their order means nothing.
fn selectable(given: &Value) -> BTreeSet<&str> {
    let fields = given.as_array().into_iter().flatten();
    fields.filter_map(|field| field["jsonPath"].as_str()).collect()
}

fn without_words(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                // A property may be called `description`; its value is a schema then, and not text.
                .filter(|(name, value)| !(name.as_str() == "description" && value.is_string()))
                .map(|(name, value)| (name.clone(), without_words(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_words).collect()),
        other => other.clone(),
    }
}

/// JSON with sorted members: whether a map keeps its order depends on a feature that any crate may turn on.
fn write_sorted(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| name.as_str());
            out.push('{');
            for (name, value) in sorted {
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                write_sorted(value, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(properties: Value) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {"spec": {"type": "object", "properties": properties}},
                }}}],
            },
        })
    }

    #[test]
    fn a_digest_is_blind_to_words_and_to_what_servers_add() {
        let one = definition(json!({"a": {"type": "string"}}));
        let mut same = definition(json!({"a": {"type": "string", "description": "words"}}));
        same["spec"]["conversion"] = json!({"strategy": "None"});
        same["spec"]["preserveUnknownFields"] = json!(false);
        same["spec"]["names"]["listKind"] = json!("ThingList");
        same["spec"]["versions"][0]["subresources"] = json!({"status": null});
        same["spec"]["versions"][0]["selectableFields"] = json!([]);
        same["status"] = json!({"storedVersions": ["v1"]});
        assert_eq!(digest(&one), digest(&same));
        let named = definition(json!({"a": {"type": "string"}, "description": {"type": "string"}}));
        assert_ne!(digest(&one), digest(&named));
    }

    #[test]
    fn what_breaks_beside_the_schema_is_in_the_digest() {
        let plain = definition(json!({"a": {"type": "string"}}));
        let version = |field: &str, value: Value| {
            let mut other = plain.clone();
            other["spec"]["versions"][0][field] = value;
            other
        };
        let scale = |selector: &str| {
            let paths = json!({
                "specReplicasPath": ".spec.a", "statusReplicasPath": ".status.a", "labelSelectorPath": selector});
            version("subresources", json!({"scale": paths}))
        };
        let mut webhook = plain.clone();
        webhook["spec"]["conversion"] =
            json!({"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": "x"}}});
        let mut preserving = plain.clone();
        preserving["spec"]["preserveUnknownFields"] = json!(true);
        let all = [
            plain.clone(),
            version("subresources", json!({"status": {}})),
            scale(".status.s"),
            scale(".status.t"),
            version("selectableFields", json!([{"jsonPath": ".spec.a"}])),
            webhook.clone(),
            preserving,
        ];
        let digests: BTreeSet<String> = all.iter().map(digest).collect();
        assert_eq!(digests.len(), all.len(), "each is another one");
        // Where the webhook is, changes by itself.
        webhook["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = json!("y");
        assert_eq!(digest(&webhook), digest(&all[5]));
    }

    #[test]
    fn a_digest_reads_v1beta1_as_a_server_would() {
        let mut one = definition(json!({"a": {"type": "string"}}));
        one["spec"]["preserveUnknownFields"] = json!(true);
        one["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        let mut beta = one.clone();
        beta["apiVersion"] = json!("apiextensions.k8s.io/v1beta1");
        let spec = beta["spec"].as_object_mut().unwrap();
        spec.remove("preserveUnknownFields");
        let versions = spec.remove("versions").unwrap();
        spec.insert("version".to_owned(), json!("v1"));
        spec.insert("validation".to_owned(), versions[0]["schema"].clone());
        spec.insert("subresources".to_owned(), json!({"status": {}}));
        assert_eq!(digest(&one), digest(&beta));
    }
}
