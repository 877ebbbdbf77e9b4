//! What a running ollama-operator made is taken over live: no pod restarts, and nothing is downloaded again.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, eventually_for, fixtures::model_resource, snapshot::child_kinds};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, LogParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    models::{PATIENCE, chat, is_ready, until},
    start,
};

const IMAGE: &str = "gantry/test-ollama:dev";

fn model(spec: Value) -> Value {
    json!({"apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": "phi"}, "spec": spec})
}

/// As the original writes: plain creation under the name of its binary.
async fn create(cluster: &Cluster, object: Value) -> anyhow::Result<DynamicObject> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let resource: ApiResource = child_kinds()
        .into_iter()
        .find(|known| known.kind == kind)
        .context("unknown kind")?;
    let params = PostParams {
        field_manager: Some("manager".to_owned()),
        ..PostParams::default()
    };
    let object = serde_json::from_value(object)?;
    Ok(cluster.api(&resource).create(&params, &object).await?)
}

/// As root, in root's home: so does the original.
fn server(read_only: bool) -> Value {
    json!({
        "name": "server", "image": IMAGE, "args": ["serve"],
        "env": [{"name": "OLLAMA_HOST", "value": "0.0.0.0"}, {"name": "HOME", "value": "/root"}],
        "ports": [{"name": "ollama", "containerPort": 11434}],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "image-storage", "mountPath": "/root/.ollama", "readOnly": read_only}],
        "readinessProbe": {"httpGet": {"path": "/api/tags", "port": 11434}, "failureThreshold": 2500},
    })
}

/// The objects of ollama-operator 0.10, with its names and labels.
async fn play_the_original(cluster: &Cluster) -> anyhow::Result<()> {
    let root = cluster
        .apply(&model_resource(), &model(json!({"image": "phi3"})))
        .await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "ollama-models-store-pvc"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}},
    });
    claims
        .create(
            &PostParams {
                field_manager: Some("manager".to_owned()),
                ..PostParams::default()
            },
            &serde_json::from_value(claim)?,
        )
        .await?;
    let volume =
        json!([{"name": "image-storage", "persistentVolumeClaim": {"claimName": "ollama-models-store-pvc"}}]);
    let labels = json!({"app": "ollama-image-store", "ollama.ayaka.io/type": "image-store"});
    let set = create(
        cluster,
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "ollama-models-store", "labels": labels},
            "spec": {
                "replicas": 1, "serviceName": "", "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels}, "spec": {"containers": [server(false)], "volumes": volume},
                },
            },
        }),
    )
    .await?;
    let ports = json!([{"name": "ollama", "port": 11434, "targetPort": 11434, "protocol": "TCP"}]);
    create(
        cluster,
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "ollama-models-store", "labels": labels, "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "ollama-models-store", "uid": set.uid()}]},
            "spec": {"type": "ClusterIP", "selector": labels, "ports": ports},
        }),
    )
    .await?;
    let labels = json!({
        "app": "ollama-model-phi", "ollama.ayaka.io/type": "model",
        "model.ollama.ayaka.io": "phi", "model.ollama.ayaka.io/name": "phi",
    });
    let puller = json!({
        "name": "ollama-image-pull", "image": IMAGE, "securityContext": {"runAsUser": 0},
        "command": ["sh", "-c", "until ollama pull phi3; do sleep 1; done"],
        "env": [{"name": "OLLAMA_HOST", "value": "ollama-models-store:11434"}],
    });
    let deployment = create(
        cluster,
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "ollama-model-phi", "labels": labels, "ownerReferences": [{
                "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "name": "phi", "uid": root.uid(),
                "blockOwnerDeletion": true}]},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "initContainers": [puller], "containers": [server(true)], "volumes": volume,
                }},
            },
        }),
    )
    .await?;
    create(
        cluster,
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "ollama-srv-a1b2c3", "labels": labels, "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": "ollama-model-phi", "uid": deployment.uid()}]},
            "spec": {"type": "ClusterIP", "selector": labels, "ports": ports},
        }),
    )
    .await?;
    Ok(())
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), &cluster.namespace)
}

/// Uid and restarts, by name.
async fn running(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, (Option<String>, i32)>> {
    let list = pods(cluster).list(&ListParams::default()).await?;
    Ok(list
        .into_iter()
        .map(|pod| {
            let statuses = pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.clone());
            let restarts = statuses.iter().flatten().map(|status| status.restart_count).sum();
            (pod.name_any(), (pod.uid(), restarts))
        })
        .collect())
}

async fn downloads(cluster: &Cluster) -> anyhow::Result<usize> {
    let log = pods(cluster)
        .logs("ollama-models-store-0", &LogParams::default())
        .await?;
    Ok(log.lines().filter(|line| line.contains("POST /api/pull")).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_ollama_operator_is_taken_over_without_a_restart_or_a_download() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    play_the_original(&cluster).await?;
    let deployments = cluster.api(&child_kinds()[0]);
    eventually_for(PATIENCE, async || {
        let live = deployments.get("ollama-model-phi").await?;
        ensure!(
            live.data["status"]["readyReplicas"] == 1,
            "{}",
            live.data["status"]
        );
        Ok(())
    })
    .await?;
    let (before, downloaded) = (running(&cluster).await?, downloads(&cluster).await?);
    ensure!(downloaded > 0, "the original downloads");

    let operator = start(&cluster).await?;
    until(&cluster, "phi", |model| {
        is_ready(model) && model.data["status"]["digest"].is_string()
    })
    .await?;
    let said = chat(&cluster, "ollama-model-phi", "phi3").await?;
    ensure!(said.contains("hello"), "by its predictable name: {said}");
    let said = chat(&cluster, "ollama-srv-a1b2c3", "phi3").await?;
    ensure!(said.contains("hello"), "and by the old one: {said}");
    ensure!(
        running(&cluster).await? == before,
        "pods changed: {before:?} {:?}",
        running(&cluster).await?
    );
    ensure!(
        downloads(&cluster).await? == downloaded,
        "it was downloaded again"
    );

    // The first change brings our own pods, which find the weights where they are.
    let spec = json!({"image": "phi3", "extraEnv": [{"name": "OLLAMA_KEEP_ALIVE", "value": "1h"}]});
    cluster.apply(&model_resource(), &model(spec)).await?;
    eventually_for(PATIENCE, async || {
        let live = deployments.get("ollama-model-phi").await?;
        let pod = &live.data["spec"]["template"]["spec"];
        ensure!(pod["securityContext"]["runAsUser"] == 1001, "{pod}");
        let status = &live.data["status"];
        let generation = live.metadata.generation;
        ensure!(
            status["observedGeneration"].as_i64() == generation
                && status["updatedReplicas"] == 1
                && status["replicas"] == 1
                && status["readyReplicas"] == 1,
            "{status}"
        );
        Ok(())
    })
    .await?;
    ensure!(
        downloads(&cluster).await? == downloaded,
        "it was downloaded again"
    );
    operator.stop().await;
    cluster.done().await
}
