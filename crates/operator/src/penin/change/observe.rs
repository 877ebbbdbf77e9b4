//! Every read: the ledger, the cluster as the server has it now, and who may approve.

use gantry_crds::penin::{ChangePlan, InfrastructureChange, PeninOmegaCluster};
use gantry_kit::{Context, Controller, ObjectKey, Result, client::Caller, dependents::Target};
use k8s_openapi::{api::authorization::v1::SubjectAccessReview, jiff::Timestamp};
use kube::{
    Api, Resource, ResourceExt,
    api::PostParams,
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    Changes, belief,
    book::Page,
    decide::Watched,
    fields, identity, owners,
    record::{Body, Step},
};
use crate::penin::cluster::Clusters;

/// What is known of a change before anything is decided.
pub struct Observed {
    pub key: ObjectKey,
    pub cluster_key: ObjectKey,
    pub uid: String,
    pub page: Page,
    /// Who asked, where that is proven.
    pub requested_by: Option<String>,
}

/// Nothing when the cluster is not there.
pub async fn observe(
    controller: &Changes,
    change: &InfrastructureChange,
    context: &Context,
) -> Result<Option<Observed>> {
    let key = ObjectKey::of(change.meta());
    let cluster_key = ObjectKey::new(key.namespace.clone(), change.spec.cluster());
    // Before looking, so that no change falls between.
    let looks_at = Target {
        kind: Clusters::NAME,
        key: cluster_key.clone(),
    };
    context.links.set(Changes::NAME, &key, &[looks_at].into());
    let uid = change.uid().unwrap_or_default();
    let started = change.status.as_ref().is_some_and(|status| status.plan.is_some());
    if !started && controller.clusters.get(&cluster_key).is_none() {
        return Ok(None);
    }
    let mut page = page(controller, change, context).await?;
    if abandon(controller, &key, &cluster_key, &page, &uid, context).await? {
        page = controller.books.page(&cluster_key, &context.caller).await?;
    }
    let requested_by = match identity::claimed(change) {
        Some(claim) => {
            let signer = controller.books.signer(&context.caller).await?;
            claim.proven(&signer.public_key()).then_some(claim.user)
        }
        None => None,
    };
    Ok(Some(Observed {
        key,
        cluster_key,
        uid,
        page,
        requested_by,
    }))
}

/// The ledger of a change's cluster, as far as the change has to know it.
pub async fn page(controller: &Changes, change: &InfrastructureChange, context: &Context) -> Result<Page> {
    let cluster_key = ObjectKey::new(change.namespace().unwrap_or_default(), change.spec.cluster());
    let uid = change.uid().unwrap_or_default();
    let page = controller.books.page(&cluster_key, &context.caller).await?;
    let told = change.status.as_ref();
    if told.is_some_and(|told| belief::contradicts(told, &page.memory, &uid)) {
        controller.books.close(&cluster_key).await;
        return controller.books.page(&cluster_key, &context.caller).await;
    }
    Ok(page)
}

/// A change whose object was deleted before it was judged stands in nobody's way; that it was left so is recorded.
async fn abandon(
    controller: &Changes,
    key: &ObjectKey,
    cluster_key: &ObjectKey,
    page: &Page,
    uid: &str,
    context: &Context,
) -> Result<bool> {
    let Some((open, name)) = page.memory.open().filter(|(open, _)| *open != uid) else {
        return Ok(false);
    };
    let api = Api::<InfrastructureChange>::namespaced(context.caller.client(), &key.namespace);
    let action = format!("get InfrastructureChange {name}");
    let found = context.caller.read(action, api.get_opt(name)).await?;
    if found.is_some_and(|found| found.uid().as_deref() == Some(open)) {
        return Ok(false);
    }
    let body = Body::new(name, open, Step::Abandoned, json!({}));
    controller
        .books
        .append(cluster_key, &body, &context.caller)
        .await?;
    Ok(true)
}

/// The cluster as the server has it now, with who owns what.
pub async fn live(cluster: &ObjectKey, caller: &Caller) -> Result<Option<DynamicObject>> {
    let resource = ApiResource::erase::<PeninOmegaCluster>(&());
    let api = Api::<DynamicObject>::namespaced_with(caller.client(), &cluster.namespace, &resource);
    let action = format!("get PeninOmegaCluster {}", cluster.name);
    caller.read(action, api.get_opt(&cluster.name)).await
}

/// What became of a cluster since a change was applied. `None` for a cluster that is not there.
pub fn watched(
    cluster: Option<&DynamicObject>,
    plan: &ChangePlan,
    applied: Option<(Timestamp, i64)>,
    now: Timestamp,
) -> Watched {
    let Some(cluster) = cluster.filter(|cluster| cluster.metadata.uid == plan.cluster_uid) else {
        return Watched {
            gone: true,
            ..Watched::default()
        };
    };
    let status = &cluster.data["status"];
    let generation = cluster.metadata.generation.unwrap_or(0);
    let ready = status["observedGeneration"].as_i64() == Some(generation)
        && status["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let spec = &cluster.data["spec"];
    let managed = cluster.metadata.managed_fields.clone().unwrap_or_default();
    let mut edited = fields::edited(spec, plan);
    // Whoever applies the very same value wants it as well. What had the value before may have had an owner already.
    for (path, change) in fields::planned(plan) {
        let changed = !fields::same(change.from.as_ref(), change.to.as_ref());
        if changed
            && !edited.iter().any(|known| known == path)
            && !owners::of_itself(&managed, path).is_empty()
        {
            edited.push(path.to_owned());
        }
    }
    let seconds = applied.map_or(0, |(at, _)| now.as_second() - at.as_second());
    Watched {
        gone: false,
        edited,
        edited_beside: applied.is_some_and(|(_, made)| generation != made),
        ready,
        since_applied: std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    }
}

/// Whether whoever asked for a change could approve it as well.
pub async fn may_approve(user: &str, change: &ObjectKey, caller: &Caller) -> Result<bool> {
    let api = Api::<SubjectAccessReview>::all(caller.client());
    for review in reviews(user, change) {
        let review: SubjectAccessReview = serde_json::from_value(review).unwrap_or_default();
        let params = PostParams::default();
        let call = api.create(&params, &review);
        let answer = caller.read(format!("ask what {user} may do"), call).await?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Every way to write the status of this very change: a role may name verbs, and objects.
fn reviews(user: &str, change: &ObjectKey) -> impl Iterator<Item = Value> {
    ["patch", "update"].into_iter().map(move |verb| {
        json!({"spec": {
            "user": user,
            "groups": identity::groups(user),
            "resourceAttributes": {
                "namespace": change.namespace, "name": change.name, "verb": verb, "group": "penin.ai",
                "resource": "infrastructurechanges", "subresource": "status",
            },
        }})
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_crds::penin::FieldChange;
    use rstest::rstest;

    fn cluster(uid: &str, generation: i64, sigma_guard: i32, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster",
            "metadata": {"name": "demo", "uid": uid, "generation": generation},
            "spec": {"replicas": {"sigmaGuard": sigma_guard}}, "status": status,
        }))
        .unwrap()
    }

    fn ready(generation: i64, truth: &str) -> Value {
        json!({"observedGeneration": generation, "conditions": [{"type": "Ready", "status": truth}]})
    }

    #[rstest]
    #[case::quiet(Some(cluster("c", 4, 3, ready(4, "True"))), (false, 0, false, true))]
    #[case::not_ready(Some(cluster("c", 4, 3, ready(4, "False"))), (false, 0, false, false))]
    #[case::ready_before_the_change(Some(cluster("c", 4, 3, ready(3, "True"))), (false, 0, false, false))]
    #[case::edited(Some(cluster("c", 5, 2, ready(5, "True"))), (false, 1, true, true))]
    #[case::edited_beside(Some(cluster("c", 5, 3, ready(5, "True"))), (false, 0, true, true))]
    #[case::another_of_the_same_name(Some(cluster("d", 4, 3, ready(4, "True"))), (true, 0, false, false))]
    #[case::gone(None, (true, 0, false, false))]
    fn what_became_of_it(
        #[case] cluster: Option<DynamicObject>,
        #[case] expected: (bool, usize, bool, bool),
    ) {
        let plan = ChangePlan {
            cluster_uid: Some("c".into()),
            fields: Some(vec![FieldChange {
                field: Some("replicas.sigmaGuard".into()),
                from: None,
                to: Some(json!(3)),
            }]),
            ..ChangePlan::default()
        };
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let found = watched(cluster.as_ref(), &plan, Some((at, 4)), now);
        assert_eq!(
            (found.gone, found.edited.len(), found.edited_beside, found.ready),
            expected
        );
        assert_eq!(found.since_applied.as_secs(), if found.gone { 0 } else { 60 });
    }

    /// Somebody applies the value that the change gave the field: it is theirs from then on.
    #[rstest]
    #[case::ours("gantry-change-u", json!(2), 0)]
    #[case::theirs("argocd", json!(2), 1)]
    #[case::it_had_that_value_and_that_owner_before("argocd", json!(3), 0)]
    fn an_owner_of_the_field_counts_as_an_edit(
        #[case] manager: &str,
        #[case] from: Value,
        #[case] edited: usize,
    ) {
        let mut cluster = cluster("c", 4, 3, ready(4, "True"));
        cluster.metadata.managed_fields = serde_json::from_value(json!([
            {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {"f:sigmaGuard": {}}}}},
        ]))
        .unwrap();
        let plan = ChangePlan {
            cluster_uid: Some("c".into()),
            fields: Some(vec![FieldChange {
                field: Some("replicas.sigmaGuard".into()),
                from: Some(from),
                to: Some(json!(3)),
            }]),
            ..ChangePlan::default()
        };
        let found = watched(Some(&cluster), &plan, None, Timestamp::UNIX_EPOCH);
        assert_eq!(found.edited.len(), edited, "{:?}", found.edited);
    }

    #[test]
    fn every_way_to_approve_is_asked_about() {
        let asked: Vec<Value> = reviews("alice", &ObjectKey::new("ns", "more")).collect();
        let verbs: Vec<&Value> = asked
            .iter()
            .map(|review| &review["spec"]["resourceAttributes"]["verb"])
            .collect();
        assert_eq!(verbs, ["patch", "update"]);
        for review in asked {
            assert_eq!(review["spec"]["resourceAttributes"]["name"], "more");
            serde_json::from_value::<SubjectAccessReview>(review).unwrap();
        }
    }
}
