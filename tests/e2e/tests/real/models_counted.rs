//! The counting proxy beside a real Model: clients notice nothing, and every request is counted.

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, eventually_for, fixtures::model_resource, snapshot::child_kinds};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams, client::Body};
use serde_json::{Value, json};

use super::{
    models::{PATIENCE, chat, gone, is_ready, until},
    start,
};

fn model(server: Value) -> Value {
    json!({
        "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": "phi"},
        "spec": {"image": "phi3", "store": {"size": "1Gi", "deletionPolicy": "Delete"}, "server": server},
    })
}

/// What the proxy of the only pod tells.
async fn counts(cluster: &Cluster) -> anyhow::Result<String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let of_model = ListParams::default().labels("ollama.ayaka.io/type=model");
    let list = pods.list(&of_model).await?.items;
    ensure!(list.len() == 1, "{} pods", list.len());
    let uri = format!(
        "/api/v1/namespaces/{}/pods/{}:9114/proxy/metrics",
        cluster.namespace,
        list[0].name_any()
    );
    let answer = cluster
        .client
        .send(Request::get(uri).body(Body::empty())?)
        .await?;
    ensure!(answer.status().is_success(), "{}", answer.status());
    let bytes = answer.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The sum of a metric over what the part of its labels fits.
fn total(text: &str, metric: &str, labels: &str) -> f64 {
    text.lines()
        .filter(|line| line.starts_with(metric) && line.contains(labels))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_through_the_proxy_are_answered_and_counted() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let operator = start(&cluster).await?;
    let counted = json!({"proxy": {"enabled": true, "maxConcurrency": 2}});
    cluster.apply(&model_resource(), &model(counted)).await?;
    until(&cluster, "phi", is_ready).await?;
    for _ in 0..3 {
        let said = chat(&cluster, "ollama-model-phi", "phi3").await?;
        ensure!(said.contains("hello"), "{said}");
    }
    eventually_for(PATIENCE, async || {
        let text = counts(&cluster).await?;
        let chats = total(&text, "gantry_model_requests_total", "model=\"phi3:latest\"");
        ensure!(chats == 3.0, "{chats} requests in\n{text}");
        ensure!(
            total(&text, "gantry_model_completion_tokens_total", "phi3") > 0.0,
            "no tokens in\n{text}"
        );
        ensure!(
            total(&text, "gantry_model_in_flight", "phi3") == 0.0,
            "nobody is left in\n{text}"
        );
        Ok(())
    })
    .await?;
    // Without it again, and nobody who asks meanwhile is turned away.
    cluster.apply(&model_resource(), &model(json!({}))).await?;
    eventually_for(PATIENCE, async || {
        let said = chat(&cluster, "ollama-model-phi", "phi3")
            .await
            .context("while it rolls")?;
        ensure!(said.contains("hello"), "{said}");
        let live = cluster.api(&child_kinds()[0]).get("ollama-model-phi").await?;
        let containers = live.data["spec"]["template"]["spec"]["containers"]
            .as_array()
            .map(Vec::len);
        let status = &live.data["status"];
        ensure!(
            containers == Some(1) && status["replicas"] == 1 && status["updatedReplicas"] == 1,
            "{containers:?} {status}"
        );
        Ok(())
    })
    .await?;
    gone(&cluster, "phi").await?;
    operator.stop().await;
    cluster.done().await
}
