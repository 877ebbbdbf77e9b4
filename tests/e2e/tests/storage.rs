//! Volumes that hold data: what cannot change is told and not tried, and what is to be kept is kept.

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{condition, modelapi_resource, wait_ready},
};
use gantry_kit::testing::Faults;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, core::DynamicObject};
use serde_json::{Value, json};

fn hosted(storage: Value) -> Value {
    json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": "ModelAPI", "metadata": {"name": "a"},
        "spec": {"mode": "Hosted", "hostedConfig": {"model": "m", "storage": storage}},
    })
}

async fn told(cluster: &Cluster, reason: &str) -> anyhow::Result<DynamicObject> {
    eventually(async || {
        let object = cluster.api(&modelapi_resource()).get("a").await?;
        let storage = condition(&object, "StorageReady")
            .context("no condition")?
            .clone();
        let current = object.data["status"]["observedGeneration"].as_i64() == object.metadata.generation;
        ensure!(current && storage["reason"] == reason, "{storage}");
        Ok(object)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_outlive_their_root_when_asked_to() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let claim = async || claims.get_opt("modelapi-a-models").await;
    let retained = hosted(json!({"size": "2Gi", "deletionPolicy": "Retain"}));
    cluster.apply(&modelapi_resource(), &retained).await?;
    wait_ready(&cluster, &modelapi_resource(), "a", "True", None).await?;
    told(&cluster, "Succeeded").await?;
    let first = claim().await?.context("a claim")?;

    for (storage, reason) in [
        (
            json!({"size": "1Gi", "deletionPolicy": "Retain"}),
            "VolumeCannotShrink",
        ),
        (
            json!({"size": "3Gi", "deletionPolicy": "Retain"}),
            "VolumeCannotGrow",
        ),
        (
            json!({"size": "2Gi", "accessMode": "ReadWriteMany", "deletionPolicy": "Retain"}),
            "InvalidClaim",
        ),
    ] {
        cluster.apply(&modelapi_resource(), &hosted(storage)).await?;
        told(&cluster, reason).await?;
        // The rest of the spec is served all the same.
        wait_ready(&cluster, &modelapi_resource(), "a", "True", None).await?;
    }
    let claim_writes = operator.faults.writes();
    let claim_writes = claim_writes
        .iter()
        .filter(|write| format!("{write:?}").contains("persistentvolumeclaims"));
    let count = claim_writes.count();
    ensure!(
        (1..=2).contains(&count),
        "only what can change is written, not {count} times"
    );

    cluster.delete(&modelapi_resource(), "a").await?;
    eventually(async || {
        let left = cluster.list(&gantry_e2e::snapshot::child_kinds()[0]).await?;
        ensure!(left.is_empty(), "the Deployment is still there");
        Ok(())
    })
    .await?;
    let kept = claim().await?.context("the claim is gone")?;
    assert_eq!(kept.metadata.uid, first.metadata.uid);

    // Taken up again, and now it goes with its root.
    cluster
        .apply(&modelapi_resource(), &hosted(json!({"size": "2Gi"})))
        .await?;
    wait_ready(&cluster, &modelapi_resource(), "a", "True", None).await?;
    let owned = claim().await?.context("a claim")?;
    assert_eq!(owned.metadata.uid, first.metadata.uid);
    assert!(owned.metadata.owner_references.is_some());
    cluster.delete(&modelapi_resource(), "a").await?;
    eventually(async || {
        ensure!(claim().await?.is_none(), "the claim is still there");
        Ok(())
    })
    .await?;
    cluster.done().await
}
