//! Taking over what an original operator made for the same root, while it runs.
//!
//! Two things have to happen that an ordinary apply does not do. The original wrote with plain updates, so the fields
//! that it set belong to its field manager and would outlive their removal from our wish: they are handed to ours. And
//! our pods differ from the original's, so applying ours at once would restart every workload on the day of the
//! migration: where pods serve, the original's template stays until our own wish for it changes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use crate::{KEPT_TEMPLATE, project::covers, wish::digest};

/// Field managers of the originals: the name of a kubebuilder binary, and how the Python client calls itself.
const ORIGINALS: &[&str] = &["manager", "OpenAPI-Generator"];

/// Whether an object comes from an original: none of our field managers ever wrote it.
pub fn is_inherited(live: &DynamicObject) -> bool {
    let entries = live.metadata.managed_fields.iter().flatten();
    let mut managers = entries.filter_map(|entry| entry.manager.as_deref());
    !managers.any(|manager| manager.starts_with("gantry-"))
}

/// Whether one of the originals wrote it.
pub fn is_original(live: &DynamicObject) -> bool {
    let entries = live.metadata.managed_fields.iter().flatten();
    let mut managers = entries.filter_map(|entry| entry.manager.as_deref());
    managers.any(|manager| ORIGINALS.contains(&manager))
}

/// The wish for a workload whose pods are to stay as the original made them: everything but the template.
pub fn keeping_template(wish: &Value) -> Value {
    let mut kept = wish.clone();
    if let Some(template) = kept["spec"]
        .as_object_mut()
        .and_then(|spec| spec.remove("template"))
    {
        kept["metadata"]["annotations"][KEPT_TEMPLATE] = json!(digest(&template));
    }
    kept
}

/// Whether a workload has pods worth keeping: what does not work anyway is replaced at once.
pub fn serves(live: &Value) -> bool {
    // Old servers count no available pods of a StatefulSet.
    let counts = ["availableReplicas", "readyReplicas"];
    live["spec"]["replicas"] == 0
        || counts
            .iter()
            .any(|count| live["status"][count].as_i64() > Some(0))
}

/// Whether the pods of this workload are still the original's, and our wish for them is what it was at take-over.
pub fn keeps_template(wish: &Value, live: &Value) -> bool {
    let kept = &live["metadata"]["annotations"][KEPT_TEMPLATE];
    kept.as_str()
        .is_some_and(|kept| kept == digest(&wish["spec"]["template"]))
}

/// Whether this workload's pods were kept as the original made them, until now.
pub fn kept_template(live: &Value) -> bool {
    !live["metadata"]["annotations"][KEPT_TEMPLATE].is_null()
}

/// A merge patch that hands the fields of the originals to `manager`, refused by the server when somebody wrote
/// meanwhile; `None` when there is nothing to hand over.
pub fn hand_over(live: &DynamicObject, manager: &str) -> Option<Value> {
    let entries = live.metadata.managed_fields.as_ref()?;
    let is_original = |entry: &&ManagedFieldsEntry| {
        entry
            .manager
            .as_deref()
            .is_some_and(|name| ORIGINALS.contains(&name))
            && entry.operation.as_deref() == Some("Update")
            && entry.subresource.is_none()
    };
    let (theirs, others): (Vec<_>, Vec<_>) = entries.iter().partition(is_original);
    let first = theirs.first()?;
    let mut ours = ManagedFieldsEntry {
        manager: Some(manager.to_owned()),
        operation: Some("Apply".to_owned()),
        fields_v1: None,
        ..(*first).clone()
    };
    let mut fields = Map::new();
    let mut kept = Vec::new();
    for entry in others {
        if entry.manager == ours.manager && entry.operation == ours.operation {
            ours.api_version.clone_from(&entry.api_version);
            unite(&mut fields, entry);
        } else {
            kept.push(entry);
        }
    }
    for entry in &theirs {
        unite(&mut fields, entry);
    }
    ours.fields_v1 = serde_json::from_value(Value::Object(fields)).ok();
    kept.push(&ours);
    Some(json!({"metadata": {"resourceVersion": live.metadata.resource_version, "managedFields": kept}}))
}

/// The field manager that has set something else where `wish` has a say; the last one when there are several.
pub fn rival(live: &DynamicObject, wish: &Value, ours: &str) -> Option<String> {
    let json = json!(live);
    let entries = live.metadata.managed_fields.iter().flatten();
    let others = entries.filter(|entry| {
        let fields = entry
            .fields_v1
            .as_ref()
            .map(|fields| json!(fields))
            .unwrap_or_default();
        entry.subresource.is_none()
            && entry.manager.as_deref() != Some(ours)
            && sets_otherwise(&fields, &json, wish)
    });
    let last = others.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?;
    last.manager.clone()
}

/// Lists are not looked into: whoever has something in one that differs counts.
fn sets_otherwise(fields: &Value, live: &Value, wish: &Value) -> bool {
    let mut fields = fields.as_object().into_iter().flatten();
    fields.any(|(name, below)| {
        let Some((name, wish)) = name
            .strip_prefix("f:")
            .and_then(|name| Some((name, wish.get(name)?)))
        else {
            return false;
        };
        let live = &live[name];
        match wish {
            Value::Object(_) => sets_otherwise(below, live, wish),
            // The name tells how a list is compared.
            _ => !covers(&json!({name: live}), &json!({name: wish})),
        }
    })
}

fn unite(fields: &mut Map<String, Value>, entry: &ManagedFieldsEntry) {
    if let Some(Value::Object(more)) = entry
        .fields_v1
        .as_ref()
        .and_then(|more| serde_json::to_value(more).ok())
    {
        unite_maps(fields, more);
    }
}

fn unite_maps(fields: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (fields.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(value)) => unite_maps(known, value),
            (_, value) => {
                fields.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(entries: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "a", "resourceVersion": "7", "managedFields": entries},
        }))
        .unwrap()
    }

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
               "fieldsV1": fields})
    }

    #[test]
    fn only_what_we_never_wrote_is_inherited() {
        let theirs = entry("manager", "Update", json!({}));
        assert!(is_inherited(&object(json!([theirs]))));
        let ours = entry("gantry-agent", "Apply", json!({}));
        assert!(!is_inherited(&object(json!([theirs, ours]))));
    }

    #[test]
    fn fields_of_the_original_become_ours_and_all_others_stay() {
        let live = object(json!([
            entry("manager", "Update", json!({"f:spec": {"f:a": {}, "f:b": {}}})),
            entry("kube-controller-manager", "Update", json!({"f:status": {}})),
            entry("gantry-agent", "Apply", json!({"f:spec": {"f:b": {}, "f:c": {}}})),
        ]));
        let patch = hand_over(&live, "gantry-agent").unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let entries = patch["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0]["manager"], "kube-controller-manager");
        assert_eq!(entries[1]["operation"], "Apply");
        assert_eq!(
            entries[1]["fieldsV1"],
            json!({"f:spec": {"f:a": {}, "f:b": {}, "f:c": {}}})
        );
    }

    #[test]
    fn nothing_is_handed_over_twice() {
        let live = object(json!([entry("gantry-agent", "Apply", json!({"f:spec": {}}))]));
        assert!(hand_over(&live, "gantry-agent").is_none());
    }

    #[test]
    fn only_pods_that_serve_are_worth_keeping() {
        assert!(serves(
            &json!({"spec": {"replicas": 3}, "status": {"availableReplicas": 1}})
        ));
        assert!(serves(&json!({"spec": {"replicas": 0}, "status": {}})));
        assert!(serves(
            &json!({"spec": {"replicas": 1}, "status": {"replicas": 1, "readyReplicas": 1}})
        ));
        assert!(!serves(
            &json!({"spec": {"replicas": 1}, "status": {"replicas": 1, "unavailableReplicas": 1}})
        ));
    }

    #[test]
    fn a_kept_template_is_kept_until_the_wish_for_it_changes() {
        let wish =
            |image: &str| json!({"metadata": {"name": "a"}, "spec": {"x": 1, "template": {"image": image}}});
        let sent = keeping_template(&wish("one"));
        assert!(sent["spec"]["template"].is_null() && sent["spec"]["x"] == 1);
        assert!(keeps_template(&wish("one"), &sent));
        assert!(!keeps_template(&wish("two"), &sent));
        assert!(!keeps_template(&wish("one"), &json!({"metadata": {}})));
    }
}
