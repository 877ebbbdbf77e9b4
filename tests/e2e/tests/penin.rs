//! What is special about PeninOmegaClusters: volumes and passwords that outlive everything, and changes that touch one
//! service of several.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{condition, peninomegacluster_resource as resource, wait_ready},
    snapshot::{child_kinds, children},
};
use gantry_kit::testing::Faults;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Event, PersistentVolumeClaim, Secret},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

fn of(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster", "metadata": {"name": name}, "spec": spec})
}

async fn generations(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, (Option<String>, Option<i64>)>> {
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let list = api.list(&ListParams::default()).await?;
    let facts = list
        .into_iter()
        .map(|d| (d.name_any(), (d.metadata.uid, d.metadata.generation)));
    Ok(facts.collect())
}

fn secrets(cluster: &Cluster) -> Api<Secret> {
    Api::namespaced(cluster.client.clone(), &cluster.namespace)
}

fn claims(cluster: &Cluster) -> Api<PersistentVolumeClaim> {
    Api::namespaced(cluster.client.clone(), &cluster.namespace)
}

/// `a` with its parts waited for.
async fn ready(cluster: &Cluster) -> anyhow::Result<DynamicObject> {
    wait_ready(cluster, &resource(), "a", "True", None).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_original_reach_running_and_the_ledger_outlives_them() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    // The class that the example for production names.
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "ssd"},
        "provisioner": "kubernetes.io/host-path",
    });
    Api::<StorageClass>::all(cluster.client.clone())
        .patch("ssd", &PatchParams::apply("e2e").force(), &Patch::Apply(&class))
        .await?;
    for (name, text) in [
        (
            "penin-dev",
            include_str!("../../../examples/penin/peninomegacluster-dev.yaml"),
        ),
        (
            "penin-production",
            include_str!("../../../examples/penin/peninomegacluster-production.yaml"),
        ),
    ] {
        let object: Value = serde_saphyr::from_str(text)?;
        cluster.apply(&resource(), &object).await?;
        let live = wait_ready(&cluster, &resource(), name, "True", Some("AllServicesHealthy")).await?;
        assert_eq!(live.data["status"]["phase"], "Running");
        assert_eq!(live.data["status"]["services"]["sigmaGuard"]["ready"], true);
        assert_eq!(
            condition(&live, "LedgerReady").context("LedgerReady")?["status"],
            "True"
        );
        let ledger = claims(&cluster).get(&format!("{name}-ledger")).await?;
        cluster.delete(&resource(), name).await?;
        let deployments = child_kinds()[0].clone();
        eventually(async || {
            ensure!(cluster.list(&deployments).await?.is_empty(), "still there");
            Ok(())
        })
        .await?;
        let left = claims(&cluster).get(&format!("{name}-ledger")).await?;
        assert_eq!(left.metadata.uid, ledger.metadata.uid, "the ledger stays");
        assert!(left.metadata.deletion_timestamp.is_none());
        let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        eventually(async || {
            let all = events.list(&ListParams::default()).await?;
            let told = all.iter().any(|event| {
                event.reason.as_deref() == Some("Deleted")
                    && event.involved_object.name.as_deref() == Some(name)
            });
            ensure!(told, "no event about the end");
            Ok(())
        })
        .await?;
        // One of the same name gets it back.
        cluster.apply(&resource(), &object).await?;
        wait_ready(&cluster, &resource(), name, "True", None).await?;
        let again = claims(&cluster).get(&format!("{name}-ledger")).await?;
        assert_eq!(again.metadata.uid, ledger.metadata.uid);
        cluster.delete(&resource(), name).await?;
    }
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_rolls_the_services_it_touches() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    cluster.apply(&resource(), &of("a", json!({}))).await?;
    ready(&cluster).await?;
    let before = generations(&cluster).await?;
    assert_eq!(before.len(), 5);
    let spec = json!({"config": {"sigmaGuard": {"eceThreshold": 0.5}}});
    cluster.apply(&resource(), &of("a", spec)).await?;
    ready(&cluster).await?;
    let after = generations(&cluster).await?;
    let changed: Vec<&String> = before
        .keys()
        .filter(|name| before[*name] != after[*name])
        .collect();
    assert_eq!(changed, ["a-sigma-guard"]);
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_is_made_once_and_a_new_one_rolls_the_pods() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    for after in 1..=3 {
        // Dies between the steps, again and again.
        let faults = Faults::default();
        faults.die_after(after);
        let operator = Running::start(&cluster, &faults).await?;
        cluster.apply(&resource(), &of("a", json!({}))).await?;
        eventually(async || {
            ensure!(faults.is_dead(), "still alive");
            Ok(())
        })
        .await?;
        operator.kill().await;
    }
    let password = async || -> anyhow::Result<Vec<u8>> {
        let secret = secrets(&cluster).get("a-redis-auth").await?;
        let mut data = secret.data.context("data")?;
        Ok(data.remove("password").context("password")?.0)
    };
    let first = password().await?;
    assert_eq!(first.len(), 48);
    let operator = Running::start(&cluster, &Faults::default()).await?;
    ready(&cluster).await?;
    operator.kill().await;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let before = generations(&cluster).await?;
    assert_eq!(password().await?, first, "stable");
    secrets(&cluster)
        .delete("a-redis-auth", &DeleteParams::default())
        .await?;
    eventually(async || {
        let after = generations(&cluster).await?;
        let same = before.keys().filter(|name| before[*name] == after[*name]).count();
        ensure!(same == 0, "{same} do not know the new password");
        Ok(())
    })
    .await?;
    assert_ne!(password().await?, first, "rotated");
    ready(&cluster).await?;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_cannot_change_says_so_and_nothing_is_tried_again_and_again() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let sized = |size: &str| json!({"storage": {"wormLedger": {"size": size}, "cache": {"enabled": false}}});
    cluster.apply(&resource(), &of("a", sized("2Gi"))).await?;
    ready(&cluster).await?;
    for (size, reason) in [
        ("1Gi", "VolumeCannotShrink"),
        ("3Gi", "VolumeCannotGrow"),
        ("2Gi", "Succeeded"),
    ] {
        cluster.apply(&resource(), &of("a", sized(size))).await?;
        eventually(async || {
            let live = cluster.api(&resource()).get("a").await?;
            let told = condition(&live, "LedgerReady").context("no condition")?;
            ensure!(told["reason"] == reason, "{told}");
            Ok(())
        })
        .await?;
        ready(&cluster).await?;
    }
    let refused = operator
        .faults
        .writes()
        .into_iter()
        .filter(|write| write.status >= 400);
    assert_eq!(refused.count(), 0, "nothing impossible is asked for");
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_of_the_ledger_comes_and_goes_and_restarts_nobody() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let spec = |changes: bool, volume: bool| {
        json!({
            "storage": {"wormLedger": {"enabled": volume}, "cache": {"enabled": false}},
            "networkPolicy": {},
            "selfArchitecting": {
                "enabled": changes, "allowedFields": ["replicas.sigmaGuard"], "verdict": {"metric": "srScore"},
            },
        })
    };
    // Waits for what the condition says, and for what there is of the keeper.
    let told = async |reason: &str, expected: &[&str]| {
        eventually(async || {
            let live = cluster.api(&resource()).get("a").await?;
            let kept = condition(&live, "LedgerKept").context("no condition")?;
            ensure!(kept["reason"] == reason, "{kept}");
            let all = children(&cluster).await?.into_keys();
            let own: Vec<String> = all
                .filter_map(|name| name.strip_suffix("/a-ledger-keeper").map(ToOwned::to_owned))
                .collect();
            ensure!(own == expected, "{own:?}");
            Ok(())
        })
        .await?;
        let live = ready(&cluster).await?;
        ensure!(live.data["status"]["phase"] == "Running");
        anyhow::Ok(())
    };
    cluster.apply(&resource(), &of("a", spec(false, true))).await?;
    told("NotRequested", &[]).await?;
    let before = generations(&cluster).await?;
    let everything = [
        "Deployment",
        "NetworkPolicy",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ];
    cluster.apply(&resource(), &of("a", spec(true, true))).await?;
    told("Succeeded", &everything).await?;
    let claim = claims(&cluster).get("a-ledger").await?;
    let mut with = generations(&cluster).await?;
    with.remove("a-ledger-keeper");
    assert_eq!(with, before, "its coming restarts nobody");
    cluster.apply(&resource(), &of("a", spec(false, true))).await?;
    told("NotRequested", &[]).await?;
    assert_eq!(generations(&cluster).await?, before);
    cluster.apply(&resource(), &of("a", spec(true, true))).await?;
    told("Succeeded", &everything).await?;
    cluster.apply(&resource(), &of("a", spec(true, false))).await?;
    told("NotRequested", &[]).await?;
    let left = claims(&cluster).get("a-ledger").await?;
    assert_eq!(left.metadata.uid, claim.metadata.uid, "the volume stays");
    cluster.done().await
}

/// Objects as the original makes them, with its field manager and without our labels.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_original_made_is_taken_over_and_what_serves_is_not_restarted() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let root = cluster.apply(&resource(), &of("a", json!({}))).await?;
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let owner = json!([{
        "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster", "name": "a", "uid": root.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let mut theirs = BTreeMap::new();
    for (component, node) in [
        ("sigma-guard", json!({})),
        // Never starts, as the original's own league.
        ("acfa-league", json!({"no-node": "has-this"})),
        ("redis", json!({})),
    ] {
        let labels = json!({"app": "penin-omega", "cluster": "a", "service": component});
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": format!("a-{component}"), "labels": labels, "ownerReferences": owner},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeSelector": node, "containers": [{"name": component, "image": "theirs:1"}]},
            }},
        }))?;
        let params = PostParams {
            field_manager: Some("OpenAPI-Generator".to_owned()),
            ..PostParams::default()
        };
        let made = api.create(&params, &deployment).await?;
        theirs.insert(component, made);
    }
    for component in ["sigma-guard", "redis"] {
        eventually(async || {
            let status = api.get_status(&format!("a-{component}")).await?.status;
            let available = status.and_then(|status| status.available_replicas);
            ensure!(available == Some(1), "{component} does not run yet");
            Ok(())
        })
        .await?;
    }
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    ready(&cluster).await?;
    for (component, theirs) in theirs {
        let taken = api.get(&format!("a-{component}")).await?;
        assert_eq!(taken.metadata.uid, theirs.metadata.uid);
        assert_eq!(taken.labels()["app.kubernetes.io/managed-by"], "gantry");
        let same = taken.spec.template == theirs.spec.template;
        assert_eq!(same, component == "sigma-guard", "{component}");
        let left = json!(taken.spec.template).to_string().contains("no-node");
        assert!(!left, "nothing of the original is left in {component}");
    }
    cluster.done().await
}
