//! Models on a real node, with a stand-in for Ollama: from applied to answering, shared weights, failures in words, and
//! what is left afterwards.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, eventually_for,
    fixtures::{condition, model_resource},
};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    client::Body,
    core::DynamicObject,
};
use serde_json::{Value, json};

use super::start;

pub const PATIENCE: Duration = Duration::from_secs(240);

async fn make(cluster: &Cluster, name: &str, image: &str, pull_seconds: u32) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": name},
        "spec": {"image": image, "store": {
            "size": "1Gi", "deletionPolicy": "Delete",
            "env": [{"name": "STUB_PULL_SECONDS", "value": pull_seconds.to_string()}],
        }},
    });
    cluster.apply(&model_resource(), &object).await?;
    Ok(())
}

pub async fn until(
    cluster: &Cluster,
    name: &str,
    check: impl Fn(&DynamicObject) -> bool,
) -> anyhow::Result<DynamicObject> {
    eventually_for(PATIENCE, async || {
        let model = cluster.api(&model_resource()).get(name).await?;
        ensure!(check(&model), "{name} is {}", model.data["status"]);
        Ok(model)
    })
    .await
}

pub fn is_ready(model: &DynamicObject) -> bool {
    condition(model, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// Through the Service, by the API server.
async fn ask(cluster: &Cluster, service: &str, path: &str, body: Option<Value>) -> anyhow::Result<Value> {
    let method = if body.is_some() { "POST" } else { "GET" };
    let uri = format!(
        "/api/v1/namespaces/{}/services/{service}:11434/proxy{path}",
        cluster.namespace
    );
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string().into_bytes()));
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("content-type", "application/json")
        .body(body)?;
    let answer = cluster.client.send(request).await?;
    ensure!(answer.status().is_success(), "{path} answers {}", answer.status());
    let bytes = answer.into_body().collect().await?.to_bytes();
    serde_json::from_slice(&bytes).context("no JSON")
}

pub async fn chat(cluster: &Cluster, service: &str, model: &str) -> anyhow::Result<String> {
    let body = json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
    let answer = ask(cluster, service, "/v1/chat/completions", Some(body)).await?;
    Ok(answer["choices"][0]["message"]["content"].to_string())
}

async fn stored(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let tags = ask(cluster, "ollama-models-store", "/api/tags", None).await?;
    let models = tags["models"].as_array().cloned().unwrap_or_default();
    Ok(models.iter().map(|model| model["name"].to_string()).collect())
}

pub async fn gone(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    cluster.delete(&model_resource(), name).await?;
    eventually_for(PATIENCE, async || {
        let left = cluster.api(&model_resource()).get_opt(name).await?;
        ensure!(left.is_none(), "{name} is still there");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn from_applied_to_answering_and_gone_again() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let operator = start(&cluster).await?;
    make(&cluster, "one", "smollm2:135m", 0).await?;
    let one = until(&cluster, "one", is_ready).await?;
    ensure!(one.data["status"]["phase"] == "Ready", "{}", one.data["status"]);
    ensure!(
        one.data["status"]["digest"].is_string(),
        "what Ollama tells is told"
    );
    let said = chat(&cluster, "ollama-model-one", "smollm2:135m").await?;
    ensure!(said.contains("hello"), "{said}");

    make(&cluster, "same", "smollm2:135m", 0).await?;
    make(&cluster, "other.model", "phi3", 0).await?;
    until(&cluster, "same", is_ready).await?;
    until(&cluster, "other.model", is_ready).await?;
    make(&cluster, "bad", "missing-model", 0).await?;
    let bad = until(&cluster, "bad", |model| {
        condition(model, "Ready").is_some_and(|ready| ready["reason"] == "PullFailed")
    })
    .await?;
    let message = bad.data["status"]["message"].to_string();
    ensure!(
        message.contains("file does not exist"),
        "Ollama's words: {message}"
    );

    a_private_model_needs_a_known_key(&cluster).await?;

    gone(&cluster, "one").await?;
    ensure!(
        stored(&cluster)
            .await?
            .iter()
            .any(|name| name.contains("smollm2")),
        "another Model needs these weights"
    );
    gone(&cluster, "same").await?;
    ensure!(
        !stored(&cluster)
            .await?
            .iter()
            .any(|name| name.contains("smollm2")),
        "nobody needs these weights"
    );
    gone(&cluster, "bad").await?;
    gone(&cluster, "other.model").await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    eventually_for(PATIENCE, async || {
        let left = claims.list(&ListParams::default()).await?.items.len();
        ensure!(left == 0, "{left} volumes are left");
        Ok(())
    })
    .await?;
    operator.stop().await;
    cluster.done().await
}

async fn a_private_model_needs_a_known_key(cluster: &Cluster) -> anyhow::Result<()> {
    let told = |reason: &'static str, words: &'static str| {
        move |model: &DynamicObject| {
            condition(model, "Ready").is_some_and(|ready| {
                ready["reason"] == reason && ready["message"].to_string().contains(words)
            })
        }
    };
    make(cluster, "denied", "team/private:1b", 0).await?;
    until(cluster, "denied", told("PullFailed", "access denied")).await?;
    gone(cluster, "denied").await?;

    let model = json!({
        "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": "hidden"},
        "spec": {"image": "team/private:1b", "store": {
            "scope": "PerModel", "size": "1Gi", "deletionPolicy": "Delete",
            "registryKey": {"name": "registry", "key": "ours"},
        }},
    });
    cluster.apply(&model_resource(), &model).await?;
    until(cluster, "hidden", told("WaitingForSecret", "registry")).await?;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "registry"}, "stringData": {"ours": "KNOWN"},
    }))?;
    secrets.create(&PostParams::default(), &secret).await?;
    until(cluster, "hidden", is_ready).await?;
    gone(cluster, "hidden").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_outlives_the_store_and_the_operator() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let first = start(&cluster).await?;
    make(&cluster, "slow", "smollm2:135m", 40).await?;
    let is_under_way = |model: &DynamicObject| {
        let stage = model.data["status"]["stage"].as_str().unwrap_or_default();
        stage.starts_with("pulling ") && stage.ends_with('%')
    };
    let slow = until(&cluster, "slow", is_under_way).await?;
    ensure!(
        slow.data["status"]["phase"] == "Pulling",
        "{}",
        slow.data["status"]
    );
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    // Not 0: then the kubelet would let the old container go on for a while.
    let params = DeleteParams::default().grace_period(1);
    let lost = pods.get("ollama-models-store-0").await?.uid();
    pods.delete("ollama-models-store-0", &params).await?;
    eventually_for(PATIENCE, async || {
        let store = pods.get("ollama-models-store-0").await?;
        ensure!(store.uid() != lost, "the old one is still there");
        Ok(())
    })
    .await?;
    until(&cluster, "slow", is_under_way).await?;
    first.kill().await;
    let second = start(&cluster).await?;
    until(&cluster, "slow", is_ready).await?;
    second.stop().await;
    cluster.done().await
}
