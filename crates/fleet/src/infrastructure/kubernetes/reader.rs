//! The reader in the target cluster: it may look at nodes, at definitions, and at the objects of definitions that the fleet
//! knows; nothing else, and nothing that is Kubernetes' own.

use std::collections::{BTreeMap, BTreeSet};

use gantry_fleet_domain::cluster::is_own_group;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, Client};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Unreachable, identity, lasting};

const SECONDS: i64 = 3600;

fn name(cluster: Uuid) -> String {
    identity::name("reader", cluster)
}

/// Whether what was uploaded may not do this: then it is used itself.
pub fn is_refused(why: &Unreachable) -> bool {
    why.reason == "Forbidden"
}

/// Makes the reader, if it is not there, and a token for it. It may read the objects of these definitions
/// (`PLURAL.GROUP`).
pub async fn open(
    client: &Client,
    cluster: Uuid,
    definitions: &[String],
    now: Timestamp,
) -> Result<(String, Timestamp), Unreachable> {
    let name = name(cluster);
    identity::make_account(client, &name).await?;
    // Who may not write Secrets there can have a reader all the same.
    if let Err(why) = lasting::prevent(client, &name).await {
        tracing::warn!(
            cluster = %cluster, reason = why.reason, why = why.message,
            "a token of the reader that does not end may be in the cluster"
        );
    }
    identity::apply(
        &Api::<ClusterRole>::all(client.clone()),
        &name,
        &role(&name, definitions),
    )
    .await?;
    identity::bind(client, &name, &name).await?;
    let token = identity::token(client, &name, SECONDS).await?;
    // Servers may shorten it, so it is renewed well before.
    Ok((token, now + SignedDuration::from_secs(SECONDS / 2)))
}

fn role(name: &str, definitions: &[String]) -> Value {
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}),
        json!({"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]}),
    ];
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for definition in definitions {
        if let Some((plural, group)) = definition.split_once('.')
            && is_own_group(group)
        {
            groups.entry(group).or_default().insert(plural);
        }
    }
    for (group, plurals) in groups {
        rules.push(json!({"apiGroups": [group], "resources": plurals, "verbs": ["get", "list"]}));
    }
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": identity::labels()}, "rules": rules,
    })
}

/// Takes the reader away.
pub async fn remove(client: &Client, cluster: Uuid) -> Result<(), Unreachable> {
    let name = name(cluster);
    identity::remove(client, &name).await?;
    identity::delete(&Api::<ClusterRole>::all(client.clone()), &name).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_reads_known_objects_and_nothing_of_kubernetes_itself() {
        let known = [
            "widgets.example.com",
            "gadgets.example.com",
            "roles.rbac.authorization.k8s.io",
            "secrets.",
            "deployments.apps",
        ]
        .map(str::to_owned);
        let role = role("r", &known);
        let rules = role["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 3, "{role}");
        assert_eq!(rules[2]["apiGroups"], json!(["example.com"]));
        assert_eq!(rules[2]["resources"], json!(["gadgets", "widgets"]));
        for rule in rules {
            assert_eq!(rule["verbs"], json!(["get", "list"]));
        }
    }
}
