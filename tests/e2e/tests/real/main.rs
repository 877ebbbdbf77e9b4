//! Real pods on a real node.

mod agents;
mod changes;
mod mcpservers;
mod models;
mod models_counted;
mod models_inherited;
mod models_reached;
mod penin;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, Running, eventually_for, operator, snapshot::child_kinds};
use gantry_kit::{Options, testing::Faults};
use gantry_operator::Settings;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use kube::{Client, client::Body, core::ApiResource};
use serde_json::{Value, json};

/// What the test image is called on the node.
const PYTHON_STRING: &str = "gantry/mcp-python-string:dev";

async fn start(cluster: &Cluster) -> anyhow::Result<Running> {
    let registry = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kaos-mcp-runtimes"},
        "data": {"runtimes.yaml": format!(
            "runtimes:\n  python-string: {{image: \"{PYTHON_STRING}\", paramsEnvVar: MCP_TOOLS_STRING}}\n"
        )},
    });
    cluster
        .apply(
            &ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&()),
            &registry,
        )
        .await?;
    let settings = Settings {
        agent_image: "gantry/test-agent:dev".into(),
        litellm_image: "gantry/test-litellm:dev".into(),
        ollama_image: "gantry/test-ollama:dev".into(),
        gantry_image: "gantry:dev".into(),
        ..operator::settings()
    };
    Running::start_with(cluster, &Faults::default(), Options::default(), settings).await
}

/// The host as pods see it: the first address of the cluster's own network.
fn host(cluster: &Cluster) -> anyhow::Result<String> {
    let api = cluster.admin.cluster_url.host().context("no host")?;
    let (network, _) = api.rsplit_once('.').context("not an address")?;
    Ok(format!("{network}.1"))
}

/// A Service as this machine reaches it, once it does: pods are ready a moment before the node's rules lead to them.
async fn address(cluster: &Cluster, service: &str, port: u16) -> anyhow::Result<String> {
    let object = cluster.api(&child_kinds()[1]).get(service).await?;
    let ip = object.data["spec"]["clusterIP"].as_str().context("no address")?;
    eventually_for(Duration::from_secs(10), async || {
        let connection = tokio::net::TcpStream::connect(format!("{ip}:{port}")).await;
        connection.with_context(|| format!("{service}:{port}")).map(drop)
    })
    .await?;
    Ok(format!("http://{ip}:{port}"))
}

async fn post(url: &str, message: &Value) -> anyhow::Result<String> {
    let request = Request::post(url)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    send(request.body(Body::from(message.to_string().into_bytes()))?).await
}

async fn get(url: &str) -> anyhow::Result<Value> {
    let text = send(Request::get(url).body(Body::empty())?).await?;
    Ok(serde_json::from_str(&text)?)
}

async fn send(request: Request<Body>) -> anyhow::Result<String> {
    Ok(exchange(request).await?.1)
}

/// What was answered, with its headers.
async fn exchange(request: Request<Body>) -> anyhow::Result<(HeaderMap, String)> {
    let executor = hyper_util::rt::TokioExecutor::new();
    let plain = hyper_util::client::legacy::Client::builder(executor).build_http::<Body>();
    let response = Client::new(plain, "default").send(request).await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    ensure!(status.is_success(), "{status}: {text}");
    Ok((headers, text))
}
