//! Fits our CRDs to servers that are older than CEL.

use crate::schema::walk;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value};

/// Fits a CRD to a server older than 1.25.
///
/// * CEL rules and selectable fields are taken out: such a server does not know them, and under server-side apply refuses
///   the whole CRD.
/// * Optional strings may be null, because a 1.20 that was built with a Go newer than its own, such as Debian's, takes every
///   empty string for a null. Strings only: an old server publishes a nullable object without its fields, which spoils
///   `kubectl explain` and makes server-side apply treat it as one value.
/// * Quantities become untyped, because 1.20 stumbles over its own rendering of int-or-string and from then on treats
///   every list of the kind as one value under server-side apply, conditions included. Their pattern stays.
pub fn strip_for_old_servers(crd: &mut CustomResourceDefinition) {
    for version in &mut crd.spec.versions {
        version.selectable_fields = None;
        let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        else {
            continue;
        };
        let Ok(mut value) = serde_json::to_value(&*schema) else {
            continue;
        };
        walk(&mut value, &mut |node| {
            node.remove("x-kubernetes-validations");
            if node.remove("x-kubernetes-int-or-string").is_some() {
                node.insert("x-kubernetes-preserve-unknown-fields".to_owned(), true.into());
            }
            allow_nulls(node);
        });
        if let Ok(stripped) = serde_json::from_value(value) {
            *schema = stripped;
        }
    }
}

/// Lets the optional strings of an object, and the strings of a list or map, be null. Not where there is a default: it would
/// no longer apply. Not for an enum, which would have to name the null.
fn allow_nulls(node: &mut Map<String, Value>) {
    let plain = |child: &Map<String, Value>| {
        child.get("type").is_some_and(|t| t == "string")
            && !child.contains_key("default")
            && !child.contains_key("enum")
    };
    let required = node.get("required").cloned().unwrap_or_default();
    let required = |name: &str| {
        required
            .as_array()
            .is_some_and(|names| names.iter().any(|n| n == name))
    };
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, child) in properties {
            if let Some(child) = child
                .as_object_mut()
                .filter(|child| plain(child) && !required(name))
            {
                child.insert("nullable".to_owned(), true.into());
            }
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = node
            .get_mut(key)
            .and_then(Value::as_object_mut)
            .filter(|child| plain(child))
        {
            child.insert("nullable".to_owned(), true.into());
        }
    }
}
