//! Servers of tools: packages installed by the pod, code given as text, tools listed and called, and failures told in
//! words.

use std::{cell::RefCell, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, eventually_for,
    fixtures::{condition, mcpserver_resource},
    snapshot::child_kinds,
};
use http::Request;
use kube::{client::Body, core::DynamicObject};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
};

use super::{address, exchange, host, start};

/// What a server that keeps sessions calls one.
const SESSION: &str = "mcp-session-id";

async fn make(cluster: &Cluster, name: &str, spec: Value) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer", "metadata": {"name": name}, "spec": spec,
    });
    cluster.apply(&mcpserver_resource(), &object).await?;
    Ok(())
}

/// Real pods take their time: a package is downloaded, unpacked and compiled.
async fn until(
    cluster: &Cluster,
    name: &str,
    wanted: impl Fn(&DynamicObject) -> bool,
) -> anyhow::Result<DynamicObject> {
    let api = cluster.api(&mcpserver_resource());
    eventually_for(Duration::from_secs(240), async || {
        let object = api.get(name).await?;
        ensure!(wanted(&object), "{name}: {}", object.data["status"]);
        Ok(object)
    })
    .await
}

fn tools(object: &DynamicObject) -> Vec<&str> {
    object.data["status"]["availableTools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn has_reason(object: &DynamicObject, reason: &str) -> bool {
    condition(object, "Ready").is_some_and(|ready| ready["reason"] == reason)
}

/// The spec of an example, with packages from that index.
fn of_example(transport: &str, index: &Index) -> anyhow::Result<Value> {
    let file = format!("../../examples/mcpserver-package-{transport}.yaml");
    let mut object: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
    object["spec"]["config"]["indexUrl"] = json!(index.url);
    Ok(object["spec"].take())
}

/// A package index for pods, with real wheels.
struct Index {
    _server: Child,
    url: String,
}

async fn index(cluster: &Cluster) -> anyhow::Result<Index> {
    // What the examples need, in the versions that they name.
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../dev/index");
    let fetched = Command::new(&script).arg("fetch").output().await?;
    ensure!(
        fetched.status.success(),
        "{}",
        String::from_utf8_lossy(&fetched.stderr)
    );
    let folder = String::from_utf8(fetched.stdout)?.trim().to_owned();
    let mut server = Command::new(&script)
        .args([
            "serve",
            "--until-stdin-ends",
            &folder,
            "--address",
            &format!("{}:0", host(cluster)?),
        ])
        // Held open by this process: also when it is killed, the index ends.
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().context("no output")?).lines();
    let printed = lines.next_line().await?.context("the index printed no address")?;
    let url = printed
        .split_whitespace()
        .find(|word| word.starts_with("http"))
        .context(printed.clone())?;
    let url = url.trim_end_matches('/').trim_end_matches("/simple").to_owned();
    Ok(Index {
        _server: server,
        url: format!("{url}/simple/"),
    })
}

/// Calls a tool through the Service, as an agent would.
async fn call(cluster: &Cluster, server: &str, tool: &str, arguments: Value) -> anyhow::Result<String> {
    // Port 80, as the seed has it.
    let url = format!(
        "{}/mcp",
        address(cluster, &format!("mcpserver-{server}"), 80).await?
    );
    let session = RefCell::new(None);
    let post = async |message: Value| -> anyhow::Result<String> {
        let mut request = Request::post(&url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(session) = &*session.borrow() {
            request = request.header(SESSION, session);
        }
        let body = Body::from(message.to_string().into_bytes());
        let (headers, answer) = exchange(request.body(body)?).await?;
        if let Some(given) = headers.get(SESSION) {
            session.replace(Some(given.clone()));
        }
        Ok(answer)
    };
    let client_info = json!({"name": "e2e", "version": "1"});
    post(json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": client_info},
    }))
    .await?;
    post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
    post(json!({
        "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments},
    }))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_is_installed_by_its_pod_and_its_tools_answer() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    let index = index(&cluster).await?;
    make(&cluster, "time", of_example("stdio", &index)?).await?;
    let object = until(&cluster, "time", |object| !tools(object).is_empty()).await?;
    assert_eq!(tools(&object), ["convert_time", "get_current_time"]);
    assert_eq!(object.data["status"]["phase"], "Ready");
    let answer = call(
        &cluster,
        "time",
        "get_current_time",
        json!({"timezone": "Europe/Vienna"}),
    )
    .await?;
    assert!(answer.contains("Europe/Vienna"), "{answer}");
    // One that speaks HTTP by itself, and keeps sessions.
    make(&cluster, "search", of_example("http", &index)?).await?;
    let object = until(&cluster, "search", |object| !tools(object).is_empty()).await?;
    let found = tools(&object);
    assert!(
        found.contains(&"search") && found.contains(&"fetch_content"),
        "{found:?}"
    );
    // There is no Internet, and it may not look at private addresses: either way it says so.
    let answer = call(&cluster, "search", "fetch_content", json!({"url": index.url})).await?;
    assert!(answer.contains("\"content\""), "{answer}");
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn code_given_as_text_is_served_and_changes_reach_the_pods() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    let code = "def add(a: int, b: int) -> int:\n    \"\"\"Adds.\"\"\"\n    return a + b\n";
    make(&cluster, "sums", json!({"config": {"toolsString": code}})).await?;
    until(&cluster, "sums", |object| tools(object) == ["add"]).await?;
    let answer = call(&cluster, "sums", "add", json!({"a": 40, "b": 2})).await?;
    assert!(answer.contains("42"), "{answer}");
    let code = "def times(a: int, b: int) -> int:\n    \"\"\"Multiplies.\"\"\"\n    return a * b\n";
    make(&cluster, "sums", json!({"config": {"toolsString": code}})).await?;
    until(&cluster, "sums", |object| tools(object) == ["times"]).await?;
    let answer = call(&cluster, "sums", "times", json!({"a": 6, "b": 7})).await?;
    assert!(answer.contains("42"), "{answer}");
    work_brings_another_pod(&cluster).await?;
    cluster.done().await
}

/// By what the kubelet measures.
async fn work_brings_another_pod(cluster: &Cluster) -> anyhow::Result<()> {
    let code = "import time\n\ndef burn() -> str:\n    \"\"\"Works.\"\"\"\n    end = time.time() + 0.3\n    \
                while time.time() < end:\n        pass\n    return \"done\"\n";
    let spec = json!({
        "config": {"toolsString": code},
        "autoscaling": {"minReplicas": 1, "maxReplicas": 2, "targetCPU": 100},
        "container": {"resources": {"requests": {"cpu": "50m"}}},
    });
    make(cluster, "sums", spec).await?;
    until(cluster, "sums", |object| tools(object) == ["burn"]).await?;
    let deployments = cluster.api(&child_kinds()[0]);
    eventually_for(Duration::from_secs(120), async || {
        let answer = call(cluster, "sums", "burn", json!({})).await?;
        ensure!(answer.contains("done"), "{answer}");
        let replicas = &deployments.get("mcpserver-sums").await?.data["spec"]["replicas"];
        ensure!(*replicas == 2, "there are {replicas}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_real_pods_are_told_in_words_and_cured_by_a_new_spec() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    let index = index(&cluster).await?;
    // Accepts connections and says nothing.
    let silent = TcpListener::bind(format!("{}:0", host(&cluster)?)).await?;
    let silent_url = format!("http://{}/simple/", silent.local_addr()?);
    make(
        &cluster,
        "wrong",
        json!({"config": {"mcp": "no-such-mcp-server", "indexUrl": index.url}}),
    )
    .await?;
    make(
        &cluster,
        "hangs",
        json!({"config": {"mcp": "mcp-server-time", "indexUrl": silent_url}}),
    )
    .await?;
    make(
        &cluster,
        "code",
        json!({"config": {"toolsString": "def broken(:\n"}}),
    )
    .await?;
    make(
        &cluster,
        "image",
        json!({"runtime": "custom", "container": {"image": "no.such/image:1"}}),
    )
    .await?;
    let wrong = until(&cluster, "wrong", |object| {
        has_reason(object, "PackageInstallFailed")
    })
    .await?;
    let message = wrong.data["status"]["message"].to_string();
    assert!(message.contains("no-such-mcp-server"), "{message}");
    let code = until(&cluster, "code", |object| has_reason(object, "CrashLoop")).await?;
    assert!(
        code.data["status"]["message"].to_string().contains("line 1"),
        "{}",
        code.data["status"]["message"]
    );
    until(&cluster, "image", |object| has_reason(object, "ImagePullFailed")).await?;
    let hangs = until(&cluster, "hangs", |object| {
        has_reason(object, "PackageInstallFailed")
    })
    .await?;
    assert!(!hangs.data["status"]["message"].to_string().is_empty());
    // The cure does not wait for the patient.
    let code = "def fine() -> str:\n    \"\"\"Works.\"\"\"\n    return \"fine\"\n";
    make(&cluster, "code", json!({"config": {"toolsString": code}})).await?;
    until(&cluster, "code", |object| tools(object) == ["fine"]).await?;
    drop(silent);
    cluster.done().await
}
