//! The two writes to a cluster: the change, and the way back. Both carry a mark that tells afterwards whether they were
//! made, and both hold only for the very version of the cluster that they were planned on.

use gantry_crds::penin::{ChangePlan, PeninOmegaCluster};
use kube::{Resource, core::DynamicObject};
use serde_json::{Map, Value, json};

use super::fields;

/// Annotation on a cluster: the last change that was made to it, and whether it still stands.
pub const MARK: &str = "penin.ai/change";

/// What the mark of a cluster says about one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    None,
    Applied,
    RolledBack,
}

pub fn mark(cluster: &DynamicObject, uid: &str) -> Mark {
    let found = cluster
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(MARK))
        .and_then(|mark| mark.split_once('/'));
    match found {
        Some((of, "applied")) if of == uid => Mark::Applied,
        Some((of, "rolled-back")) if of == uid => Mark::RolledBack,
        _ => Mark::None,
    }
}

/// For server-side apply with the change's own field manager: the proposed fields and nothing else.
pub fn change(cluster: &DynamicObject, patch: &Map<String, Value>, uid: &str) -> Value {
    json!({
        "apiVersion": PeninOmegaCluster::api_version(&()),
        "kind": PeninOmegaCluster::kind(&()),
        "metadata": {
            "name": cluster.metadata.name,
            "namespace": cluster.metadata.namespace,
            "uid": cluster.metadata.uid,
            "resourceVersion": cluster.metadata.resource_version,
            "annotations": {MARK: format!("{uid}/applied")},
        },
        "spec": patch,
    })
}

/// A merge patch that makes the spec what it was.
pub fn way_back(cluster: &DynamicObject, plan: &ChangePlan, uid: &str) -> Value {
    let spec = &cluster.data["spec"];
    let mut body = json!({
        "metadata": {
            "uid": cluster.metadata.uid,
            "resourceVersion": cluster.metadata.resource_version,
            "annotations": {MARK: format!("{uid}/rolled-back")},
        },
    });
    if let Some(difference) = fields::difference(spec, &fields::undone(spec, plan)) {
        body["spec"] = difference;
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_crds::{common::Fragment, penin::FieldChange};

    fn cluster(mark: Option<&str>, spec: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster",
            "metadata": {
                "name": "demo", "namespace": "ns", "uid": "c-1", "resourceVersion": "7",
                "annotations": mark.map(|mark| json!({MARK: mark})),
            },
            "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn marks_are_of_one_change() {
        assert_eq!(mark(&cluster(None, json!({})), "u"), Mark::None);
        assert_eq!(mark(&cluster(Some("u/applied"), json!({})), "u"), Mark::Applied);
        assert_eq!(
            mark(&cluster(Some("u/rolled-back"), json!({})), "u"),
            Mark::RolledBack
        );
        assert_eq!(mark(&cluster(Some("other/applied"), json!({})), "u"), Mark::None);
    }

    #[test]
    fn a_change_names_its_fields_only_and_the_version_it_was_planned_on() {
        let patch = json!({"replicas": {"sigmaGuard": 3}});
        let body = change(
            &cluster(None, json!({"version": "1"})),
            patch.as_object().unwrap(),
            "u",
        );
        assert_eq!(body["spec"], patch);
        assert_eq!(body["metadata"]["resourceVersion"], "7");
        assert_eq!(body["metadata"]["uid"], "c-1");
    }

    #[test]
    fn the_way_back_removes_what_was_not_there() {
        let object = |value: Value| value.as_object().cloned().unwrap();
        let plan = ChangePlan {
            before: Some(Fragment::default()),
            after: Some(Fragment(object(
                json!({"replicas": {"omegaMeta": 1, "sigmaGuard": 3}}),
            ))),
            fields: Some(vec![FieldChange {
                field: Some("replicas.sigmaGuard".into()),
                from: None,
                to: Some(json!(3)),
            }]),
            ..ChangePlan::default()
        };
        let now = cluster(
            Some("u/applied"),
            json!({"version": "1", "replicas": {"omegaMeta": 1, "sigmaGuard": 3}}),
        );
        let body = way_back(&now, &plan, "u");
        assert_eq!(body["spec"], json!({"replicas": null}));
        assert_eq!(body["metadata"]["annotations"][MARK], "u/rolled-back");
    }
}
