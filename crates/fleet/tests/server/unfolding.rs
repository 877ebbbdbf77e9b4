//! What is small in bytes and large in memory, from those whom nobody has to trust. How much the server takes for it is
//! seen in this process, which every test has to itself.

use serde_json::json;

use super::support::{Asker, Running, charts::Repository, kube::StandIn, until};

/// The most that this process has had so far, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib >> 10
}

/// With what is sent, by a stand-in that is in this process too. What it would unfold to is several times as much.
const MOST: u64 = 160;

fn list(item: &str, times: usize) -> String {
    format!("[{}]", vec![item; times].join(","))
}

async fn is_refused(admin: &Asker, repository: &str) {
    let body =
        json!({"name": "widget", "namespace": "ops", "chartRepository": repository, "chartName": "widget"});
    let refused = admin.post("/operators", &body).await;
    refused.refused(400, "CHART_NOT_FOUND");
}

#[tokio::test]
async fn an_index_with_a_million_versions_takes_no_memory() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let before = peak();
    let entries = list(r#"{"version":"1"}"#, 1_000_000);
    let index = format!(r#"{{"entries":{{"widget":{entries}}}}}"#);
    drop(entries);
    repository.put("charts/index.yaml", index.into_bytes());
    is_refused(&running.admin, &repository.url).await;
    let took = peak() - before;
    assert!(took < MOST, "{took} MiB");
    running.server.stop().await;
}

#[tokio::test]
async fn a_million_tags_take_no_memory() {
    let (running, repository) = (Running::start().await, Repository::start().await);
    let before = peak();
    let tags = format!(r#"{{"tags":{}}}"#, list(r#""""#, 1_300_000));
    repository.put("v2/charts/widget/tags/list", tags.into_bytes());
    is_refused(&running.admin, &repository.oci_url()).await;
    let took = peak() - before;
    assert!(took < MOST, "{took} MiB");
    running.server.stop().await;
}

#[tokio::test]
async fn an_api_server_with_a_million_nodes_takes_no_memory_and_is_named() {
    let running =
        Running::with(|settings| settings.health_interval = jiff::SignedDuration::from_secs(1)).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let registration = cluster.registration("c", "t");
    admin.post("/clusters", &registration).await.expect(201);
    let before = peak();
    let items = list("{}", 1_000_000);
    let wide = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{}},"items":{items}}}"#);
    drop(items);
    *cluster.wide.lock().unwrap() = wide;
    for path in ["/api/v1/nodes", "/version"] {
        cluster.widens(path);
        until(&format!("{path} is too much"), async || {
            let got = admin.get("/clusters/c").await.expect(200).body;
            (got["healthReason"] == "AnswerTooLarge").then_some(())
        })
        .await;
        cluster.widens("");
        until("it is well again", async || {
            let got = admin.get("/clusters/c").await.expect(200).body;
            (got["healthReason"] == "NodesReady").then_some(())
        })
        .await;
    }
    // Definitions say nothing of the health.
    cluster.widens("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
    let asked = cluster.asked();
    until("it is looked at again", async || {
        (cluster.asked() > asked + 9).then_some(())
    })
    .await;
    let took = peak() - before;
    assert!(took < MOST, "{took} MiB");
    running.server.stop().await;
}
