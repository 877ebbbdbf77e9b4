//! Changes that have ended stay for a while, to be looked at; the record of them is the ledger's and stays for good.

use std::sync::Arc;

use gantry_crds::penin::{ChangePhase, InfrastructureChange};
use gantry_kit::{Context, ObjectKey, Result, error::Error, manager::Roots};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
    core::DeserializeGuard,
};

use super::record::Memory;

/// Most that are removed at one look, so that it stays short; the next one goes on.
const AT_ONCE: usize = 20;

/// Removes the oldest changes of a cluster that have ended, beyond the newest `kept`.
pub async fn sweep(
    changes: &Roots<InfrastructureChange>,
    cluster: &ObjectKey,
    kept: usize,
    memory: &Memory,
    context: &Context,
) -> Result<()> {
    let known = changes.in_namespace(&cluster.namespace);
    let api = Api::<InfrastructureChange>::namespaced(context.caller.client(), &cluster.namespace);
    for change in surplus(&known, &cluster.name, kept, memory)
        .into_iter()
        .take(AT_ONCE)
    {
        let name = change.name_any();
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: change.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let action = format!("delete InfrastructureChange {name}, which ended long ago");
        match context.caller.write(action, api.delete(&name, &params)).await {
            Ok(_) => {}
            // Somebody was faster.
            Err(Error::Api { source, .. }) if matches!(gantry_kit::error::code(&source), Some(404 | 409)) => {
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Those that ended first, beyond the newest `kept`. Only what the ledger says has ended counts.
fn surplus<'a>(
    known: &'a [Arc<DeserializeGuard<InfrastructureChange>>],
    cluster: &str,
    kept: usize,
    memory: &Memory,
) -> Vec<&'a InfrastructureChange> {
    let mut ended: Vec<_> = known
        .iter()
        .filter_map(|change| change.0.as_ref().ok())
        .filter(|change| change.spec.cluster() == cluster && change.metadata.deletion_timestamp.is_none())
        .filter_map(|change| {
            let phase = change.status.as_ref()?.phase?;
            let end = memory.ended(change.metadata.uid.as_deref()?)?;
            let at = end.ended_at.as_ref().map(|at| at.0);
            ChangePhase::is_end(phase).then_some((at, change))
        })
        .collect();
    ended.sort_by_key(|(at, change)| (*at, change.metadata.creation_timestamp.as_ref().map(|at| at.0)));
    let surplus = ended.len().saturating_sub(kept);
    ended
        .into_iter()
        .take(surplus)
        .map(|(_, change)| change)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_ledger::{Entry, Head};
    use serde_json::json;

    use super::super::record::{Body, Step, with_exact};

    fn change(uid: &str, cluster: &str, phase: &str) -> Arc<DeserializeGuard<InfrastructureChange>> {
        let change = serde_json::from_value(json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "InfrastructureChange",
            "metadata": {"name": format!("c-{uid}"), "namespace": "ns", "uid": uid},
            "spec": {"cluster": cluster, "reason": "why", "patch": {"replicas": {"sigmaGuard": 3}}},
            "status": {"phase": phase},
        }))
        .unwrap();
        Arc::new(DeserializeGuard(Ok(change)))
    }

    /// A ledger in which these ended, one hour after the other.
    fn ledger(ended: &[&str]) -> Memory {
        let mut head = Head::genesis("t");
        let mut memory = Memory::default();
        for (hour, uid) in ended.iter().enumerate() {
            let at = format!("2026-01-01T{hour:02}:00:00Z");
            let status = json!({"phase": "Kept", "endedAt": at});
            let body = Body::new(uid, uid, Step::Ended, with_exact(json!({}), &status));
            let entry = Entry::next(&head, at, body.to_value());
            head = entry.head();
            memory.read(&entry);
        }
        memory
    }

    #[test]
    fn the_oldest_go_and_only_those_that_have_ended() {
        let known = [
            change("3", "demo", "Rejected"),
            change("1", "demo", "Kept"),
            change("2", "demo", "RolledBack"),
            change("forged", "demo", "Kept"),
            change("going", "demo", "Observing"),
            change("other", "another", "Kept"),
        ];
        let memory = ledger(&["1", "2", "3", "other"]);
        let names = |kept: usize| -> Vec<String> {
            let found = surplus(&known, "demo", kept, &memory);
            found.into_iter().map(ResourceExt::name_any).collect()
        };
        assert_eq!(names(1), ["c-1", "c-2"]);
        assert_eq!(names(2), ["c-1"]);
        assert!(names(3).is_empty());
    }
}
