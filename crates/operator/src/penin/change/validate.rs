//! A request and what is known → a proposal that the policy allows, or the rule that said no.

use gantry_crds::{
    common::Fragment,
    penin::{ChangePlan, FieldChange, InfrastructureChange, SelfArchitecting},
};
use gantry_kit::wish::digest;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Map, Value, json};

use super::{
    fields, owners,
    policy::{self, Asked, Denied, History},
};

/// A request that the policy allows, before the server was asked what it would make of it.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub patch: Map<String, Value>,
    pub plan: ChangePlan,
}

/// The policy of a cluster; everything is refused without one.
pub fn policy_of(cluster: &DynamicObject) -> SelfArchitecting {
    serde_json::from_value(cluster.data["spec"]["selfArchitecting"].clone()).unwrap_or_default()
}

/// Digest of a request, to find out whether it was edited.
pub fn request_digest(change: &InfrastructureChange) -> String {
    digest(&json!(change.spec))
}

/// Checks a request against the cluster as it is now.
pub fn propose(
    change: &InfrastructureChange,
    cluster: &DynamicObject,
    requested_by: Option<&str>,
    history: &History,
    now: Timestamp,
) -> Result<Proposal, Denied> {
    if let Some(problem) = change.spec.problems().first() {
        return Err(Denied {
            rule: "schema",
            message: problem.to_string(),
        });
    }
    let patch = change
        .spec
        .patch
        .as_ref()
        .map(gantry_crds::penin::ChangePatch::to_object)
        .unwrap_or_default();
    if let Some(path) = fields::hollow(&patch) {
        return Err(Denied {
            rule: "schema",
            message: format!("spec.patch.{path} sets nothing: name the fields to change, or leave it out"),
        });
    }
    let leaves = fields::leaves(&patch);
    // What was checked is what is written.
    let patch = fields::patch(&leaves);
    let spec = &cluster.data["spec"];
    let managed = cluster.metadata.managed_fields.clone().unwrap_or_default();
    let owners: Vec<(String, Vec<String>)> = leaves
        .iter()
        .map(|(path, _)| (path.clone(), owners::of(&managed, path)))
        .collect();
    policy::check(&Asked {
        policy: &policy_of(cluster),
        spec,
        leaves: &leaves,
        requested_by,
        owners: &owners,
        history,
        now,
    })?;
    let plan = ChangePlan {
        cluster_uid: cluster.metadata.uid.clone(),
        request_digest: Some(request_digest(change)),
        fields: Some(
            leaves
                .iter()
                .map(|(path, value)| FieldChange {
                    field: Some(path.clone()),
                    from: fields::get(spec, path).cloned(),
                    to: Some(value.clone()),
                })
                .collect(),
        ),
        before: Some(Fragment(fields::blocks(spec, &patch))),
        after: None,
    };
    Ok(Proposal { patch, plan })
}

impl Proposal {
    /// The plan, with what the server said that it would store.
    pub fn with_answer(mut self, stored: &DynamicObject) -> ChangePlan {
        self.plan.after = Some(Fragment(fields::blocks(&stored.data["spec"], &self.patch)));
        self.plan
    }

    /// Whether an earlier plan was made on the same values.
    pub fn still_holds(&self, earlier: &ChangePlan) -> bool {
        earlier.cluster_uid == self.plan.cluster_uid
            && earlier.before == self.plan.before
            && earlier.fields == self.plan.fields
            && earlier.after.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn change(patch: Value) -> InfrastructureChange {
        serde_json::from_value(json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "InfrastructureChange",
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {"cluster": "demo", "reason": "why", "patch": patch},
        }))
        .unwrap()
    }

    fn cluster(replicas: Value, owner: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster",
            "metadata": {"name": "demo", "uid": "c-1", "managedFields": [
                {"manager": owner, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {"f:sigmaGuard": {}}}}},
            ]},
            "spec": {"replicas": replicas, "selfArchitecting": {
                "enabled": true, "allowedFields": ["replicas.*"], "verdict": {"metric": "srScore"},
            }},
        }))
        .unwrap()
    }

    fn ask(change: &InfrastructureChange, cluster: &DynamicObject) -> Result<Proposal, Denied> {
        propose(change, cluster, None, &History::default(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_proposal_remembers_exactly_what_was_there() {
        let found = ask(
            &change(json!({"replicas": {"sigmaGuard": 3}})),
            &cluster(json!({"sigmaGuard": 2, "omegaMeta": 1}), "gantry-change-x"),
        )
        .unwrap();
        let field = found.plan.fields.as_ref().unwrap()[0].clone();
        assert_eq!((field.from, field.to), (Some(json!(2)), Some(json!(3))));
        assert_eq!(
            found.plan.before.unwrap().0["replicas"],
            json!({"sigmaGuard": 2, "omegaMeta": 1})
        );
    }

    /// Every field that a request can name is one of the cluster's, and gets into the plan and into the write.
    #[test]
    fn every_field_of_a_patch_reaches_the_cluster() {
        fn leaves(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
            if let Some(properties) = schema["properties"].as_object() {
                for (name, inner) in properties {
                    leaves(inner, &format!("{path}.{name}"), found);
                }
                return;
            }
            let value = match schema["type"].as_str() {
                Some("boolean") => json!(true),
                Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(0) + 7),
                // Half of it is within any step, where that is allowed.
                Some("number") => {
                    let least = schema["minimum"].as_f64().unwrap_or(0.0);
                    let default =
                        fields::default(path.trim_start_matches('.')).and_then(|value| value.as_f64());
                    json!(default.map_or(least + 0.5, |value| (value / 2.0).max(least)))
                }
                Some("array") => json!([]),
                _ => json!("333m"),
            };
            found.push((path.trim_start_matches('.').to_owned(), value));
        }
        let schema = gantry_crds::Kind::InfrastructureChange.spec_schema().unwrap();
        let mut found = Vec::new();
        leaves(&schema["properties"]["patch"], "", &mut found);
        assert!(found.len() > 40, "only {} fields", found.len());
        for (path, value) in found {
            assert!(fields::schema(&path).is_some(), "a cluster has no {path}");
            let mut patch = json!({});
            fields::set(&mut patch, &path, Some(value.clone()));
            let mut target = cluster(json!({}), "gantry-change-x");
            target.data["spec"]["selfArchitecting"]["allowedFields"] =
                json!(["replicas.*", "resources.*", "autoScaling.*", "config.*"]);
            target.data["spec"]["selfArchitecting"]["maxStep"] = json!({"replicas": 1000, "percent": 1000});
            target.data["spec"]["selfArchitecting"]["bounds"] = json!(
                ["autoScaling.*", "config.*"]
                    .map(|field| json!({"field": field, "min": 0, "max": 1_000_000}))
            );
            let proposal = match ask(&change(patch.clone()), &target) {
                Ok(proposal) => proposal,
                // One value alone may break a rule about two; it got as far as that rule.
                Err(denied) if denied.rule == "schema" && denied.message.contains("minReplicas") => continue,
                Err(denied) => panic!("{path}: {denied:?}"),
            };
            let planned = &proposal.plan.fields.as_ref().unwrap()[0];
            assert_eq!(
                (planned.field.as_deref(), planned.to.as_ref()),
                (Some(path.as_str()), Some(&value))
            );
            let body = super::super::build::change(&target, &proposal.patch, "u");
            assert_eq!(fields::get(&body["spec"], &path), Some(&value), "{path}");
        }
    }

    #[test]
    fn the_owner_is_named() {
        let denied = ask(
            &change(json!({"replicas": {"sigmaGuard": 3}})),
            &cluster(json!({"sigmaGuard": 2}), "argocd-controller"),
        )
        .unwrap_err();
        assert_eq!(denied.rule, "takeOwnership");
        assert!(denied.message.contains("argocd-controller"), "{}", denied.message);
    }

    #[test]
    fn an_impossible_request_is_refused() {
        let denied = ask(
            &change(json!({"replicas": {"sigmaGuard": "many"}})),
            &cluster(json!({}), "x"),
        )
        .unwrap_err();
        assert_eq!(denied.rule, "schema");
    }

    #[rstest]
    #[case::a_block(json!({"replicas": {"sigmaGuard": 3}, "autoScaling": {}}), "spec.patch.autoScaling")]
    #[case::within_one(
        json!({"replicas": {"sigmaGuard": 3}, "autoScaling": {"services": {"sigmaGuard": {}}}}),
        "spec.patch.autoScaling.services.sigmaGuard")]
    fn a_block_that_sets_nothing_is_refused(#[case] patch: Value, #[case] named: &str) {
        let denied = ask(
            &change(patch),
            &cluster(json!({"sigmaGuard": 2}), "gantry-change-x"),
        )
        .unwrap_err();
        assert_eq!(denied.rule, "schema");
        assert!(denied.message.contains(named), "{}", denied.message);
    }

    #[test]
    fn a_plan_holds_while_what_it_was_made_on_does() {
        let request = change(json!({"replicas": {"sigmaGuard": 3}}));
        let before = cluster(json!({"sigmaGuard": 2}), "gantry-change-x");
        let plan = ask(&request, &before)
            .unwrap()
            .with_answer(&cluster(json!({"sigmaGuard": 3}), "x"));
        assert!(ask(&request, &before).unwrap().still_holds(&plan));
        let edited = cluster(json!({"sigmaGuard": 2, "omegaMeta": 4}), "gantry-change-x");
        assert!(!ask(&request, &edited).unwrap().still_holds(&plan));
    }
}
