//! The counting proxy beside a real Model: clients notice nothing, every request is counted, and an autoscaler goes by
//! the counts.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, eventually_for, fixtures::model_resource, snapshot::child_kinds};
use gantry_kit::admin::Readiness;
use gantry_operator::{metrics_api, settings::Reach};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::{
    api::core::v1::{Endpoints, Pod, Service},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
    client::Body,
    core::ApiResource,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    address, host,
    models::{PATIENCE, chat, gone, is_ready, until},
    post, start,
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
fn total(text: &str, metric: &str, labels: &str) -> u64 {
    text.lines()
        .filter(|line| line.starts_with(metric) && line.contains(labels))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
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
        ensure!(chats == 3, "{chats} requests in\n{text}");
        ensure!(
            total(&text, "gantry_model_completion_tokens_total", "phi3") > 0,
            "no tokens in\n{text}"
        );
        ensure!(
            total(&text, "gantry_model_in_flight", "phi3") == 0,
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

/// The groups and versions that an autoscaler asks for.
const SERVED: [(&str, &str); 3] = [
    ("custom.metrics.k8s.io", "v1beta1"),
    ("custom.metrics.k8s.io", "v1beta2"),
    ("external.metrics.k8s.io", "v1beta1"),
];

/// The operator's metrics API in this process, as the API server reaches it: through a Service that leads to this machine.
async fn serve_metrics(cluster: &Cluster, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
    let ip = host(cluster)?;
    let port = TcpListener::bind(format!("{ip}:0"))?.local_addr()?.port();
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "metrics"},
        "subsets": [{"addresses": [{"ip": ip}], "ports": ports}],
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics"},
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port, "protocol": "TCP"}]},
    });
    cluster
        .apply(&ApiResource::erase::<Service>(&()), &service)
        .await?;
    cluster
        .apply(&ApiResource::erase::<Endpoints>(&()), &endpoints)
        .await?;
    let api: Api<APIService> = Api::all(cluster.client.clone());
    for (group, version) in SERVED {
        let object = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {
                "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": {"name": "metrics", "namespace": cluster.namespace},
            },
        });
        api.create(
            &kube::api::PostParams::default(),
            &serde_json::from_value(object)?,
        )
        .await?;
    }
    let options = metrics_api::Options {
        listen: format!("{ip}:{port}").parse()?,
        service: "metrics".to_owned(),
        namespace: cluster.namespace.clone(),
        reach: Reach::Direct,
    };
    let client = cluster.client.clone();
    let gate = Readiness::default().gate("metrics");
    tasks.spawn(async move {
        if let Err(error) = metrics_api::run(client, options, gate).await {
            tracing::error!(%error, "the metrics API ended");
        }
    });
    Ok(())
}

/// What nobody serves any more would hold up the deletion of every namespace.
async fn withdraw_metrics(cluster: &Cluster) {
    let api: Api<APIService> = Api::all(cluster.client.clone());
    for (group, version) in SERVED {
        let _ = api
            .delete(&format!("{version}.{group}"), &DeleteParams::default())
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_autoscaler_scales_a_model_by_its_queue() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let operator = start(&cluster).await?;
    let mut serving = JoinSet::new();
    let outcome = async {
        serve_metrics(&cluster, &mut serving).await?;
        scale_by_queue(&cluster).await
    }
    .await;
    withdraw_metrics(&cluster).await;
    outcome?;
    operator.stop().await;
    cluster.done().await
}

async fn scale_by_queue(cluster: &Cluster) -> anyhow::Result<()> {
    let model = json!({
        "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": "phi"},
        "spec": {
            "image": "phi3", "store": {"size": "1Gi", "deletionPolicy": "Delete"},
            "extraEnv": [{"name": "STUB_ANSWER_SECONDS", "value": "0.5"}],
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 2, "targetQueueDepth": 1},
        },
    });
    cluster.apply(&model_resource(), &model).await?;
    until(cluster, "phi", is_ready).await?;
    let url = format!(
        "{}/v1/chat/completions",
        address(cluster, "ollama-model-phi", 11434).await?
    );
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        clients.spawn(async move {
            let question = json!({"model": "phi3", "messages": [{"role": "user", "content": "hello"}]});
            // Until they are stopped; a question that fails is asked again.
            for _ in 0..100_000 {
                if post(&url, &question).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
    }
    until(cluster, "phi", |model| model.data["status"]["readyReplicas"] == 2).await?;
    clients.shutdown().await;
    until(cluster, "phi", |model| model.data["status"]["replicas"] == 1).await?;
    Ok(())
}
