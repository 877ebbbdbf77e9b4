//! Agents and what they need: whatever comes, goes and comes back, in whichever order.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{agent_resource, condition, mcpserver_resource, modelapi_resource, wait_ready},
    snapshot::child_kinds,
};
use gantry_kit::testing::Faults;
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    events::v1::Event,
};
use kube::{
    Api,
    api::ListParams,
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

fn of(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kaos.tools/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn model_api(name: &str, models: &[&str]) -> Value {
    let config = json!({"models": models, "apiBase": "http://stub"});
    of("ModelAPI", name, json!({"mode": "Proxy", "proxyConfig": config}))
}

fn tools(name: &str) -> Value {
    of("MCPServer", name, json!({"runtime": "python-string"}))
}

fn agent(name: &str, model_api: &str, tools: &[&str], peers: &[&str]) -> Value {
    let spec = json!({
        "modelAPI": model_api, "model": "m", "mcpServers": tools, "agentNetwork": {"access": peers},
    });
    of("Agent", name, spec)
}

fn resource(object: &Value) -> ApiResource {
    match object["kind"].as_str() {
        Some("ModelAPI") => modelapi_resource(),
        Some("MCPServer") => mcpserver_resource(),
        _ => agent_resource(),
    }
}

async fn create(cluster: &Cluster, object: &Value) -> anyhow::Result<()> {
    cluster.apply(&resource(object), object).await?;
    Ok(())
}

async fn delete(cluster: &Cluster, object: &Value) -> anyhow::Result<()> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    cluster.delete(&resource(object), name).await
}

async fn ready(cluster: &Cluster, name: &str) -> anyhow::Result<DynamicObject> {
    wait_ready(cluster, &agent_resource(), name, "True", None).await
}

async fn waits(cluster: &Cluster, name: &str, reason: &str, words: &str) -> anyhow::Result<()> {
    eventually(async || {
        let object = cluster.api(&agent_resource()).get(name).await?;
        let told = condition(&object, "Ready").context("nothing told yet")?;
        ensure!(
            told["status"] == "False" && told["reason"] == reason,
            "{name}: {told}"
        );
        ensure!(told["message"].to_string().contains(words), "{name}: {told}");
        Ok(())
    })
    .await
}

async fn degraded(cluster: &Cluster, name: &str, status: &str, words: &[&str]) -> anyhow::Result<()> {
    eventually(async || {
        let object = cluster.api(&agent_resource()).get(name).await?;
        let told = condition(&object, "Degraded").context("nothing told yet")?;
        ensure!(told["status"] == status, "{name}: {told}");
        for words in words {
            ensure!(told["message"].to_string().contains(words), "{name}: {told}");
        }
        ensure!(
            object.data["status"]["phase"] == "Ready",
            "{}",
            object.data["status"]["phase"]
        );
        Ok(())
    })
    .await
}

/// Names of the pods of an agent: a new one would have another name.
async fn pods(cluster: &Cluster, label: &str) -> anyhow::Result<BTreeSet<String>> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let list = api.list(&ListParams::default().labels(label)).await?;
    Ok(list.into_iter().filter_map(|pod| pod.metadata.uid).collect())
}

async fn deployment(cluster: &Cluster, name: &str) -> anyhow::Result<DynamicObject> {
    Ok(cluster.api(&child_kinds()[0]).get(name).await?)
}

/// Visits of agents and ModelAPIs; an MCPServer of simulated pods is asked for its tools again and again.
fn reconciles(operator: &Running) -> Vec<String> {
    let counts = |line: &&str| line.starts_with("gantry_reconciles_total") && !line.contains("mcpserver");
    operator
        .metrics
        .render()
        .lines()
        .filter(counts)
        .map(ToOwned::to_owned)
        .collect()
}

fn orders<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, first) in items.iter().enumerate() {
        let mut rest = items.to_vec();
        rest.remove(index);
        for mut order in orders(&rest) {
            order.insert(0, first.clone());
            all.push(order);
        }
    }
    all
}

/// A model, tools, an agent behind and an agent in front, for each of the 24 orders in which they can come.
#[tokio::test(flavor = "multi_thread")]
async fn every_order_ends_the_same_and_then_nothing_moves() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let orders = orders(&[0, 1, 2, 3]);
    let sets: Vec<[Value; 4]> = (0..orders.len())
        .map(|n| {
            let name = |what: &str| format!("{what}-{n}");
            let (api, tool, back) = (name("api"), name("tool"), name("back"));
            [
                model_api(&api, &["m"]),
                tools(&tool),
                agent(&back, &api, &[], &[]),
                agent(&name("front"), &api, &[&tool], &[&back]),
            ]
        })
        .collect();
    for step in 0..4 {
        for (set, order) in sets.iter().zip(&orders) {
            create(&cluster, &set[order[step]]).await?;
        }
    }
    let front = |n: usize| format!("front-{n}");
    let mut before = Vec::new();
    for n in 0..sets.len() {
        ready(&cluster, &front(n)).await?;
        degraded(&cluster, &front(n), "False", &[]).await?;
        before.push(pods(&cluster, &format!("agent={}", front(n))).await?);
    }
    // All that the front needs goes, in every order, and comes back in another.
    let needs = |order: &[usize]| -> Vec<usize> { order.iter().copied().filter(|item| *item < 3).collect() };
    for step in 0..3 {
        for (set, order) in sets.iter().zip(&orders) {
            delete(&cluster, &set[needs(order)[step]]).await?;
        }
    }
    for n in 0..sets.len() {
        let lost = [
            format!("ModelAPI api-{n}"),
            format!("MCPServer tool-{n}"),
            format!("Agent back-{n}"),
        ];
        let lost: Vec<&str> = lost.iter().map(String::as_str).collect();
        degraded(&cluster, &front(n), "True", &lost).await?;
    }
    for step in 0..3 {
        for (set, order) in sets.iter().zip(orders.iter().rev()) {
            create(&cluster, &set[needs(order)[step]]).await?;
        }
    }
    for (n, before) in before.iter().enumerate() {
        degraded(&cluster, &front(n), "False", &[]).await?;
        let after = pods(&cluster, &format!("agent={}", front(n))).await?;
        assert_eq!(&after, before, "the pods of {} were left alone", front(n));
    }
    tokio::time::sleep(Duration::from_secs(12)).await;
    let (writes, visits) = (operator.faults.writes().len(), reconciles(&operator));
    assert!(!visits.is_empty(), "visits are counted");
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(operator.faults.writes().len(), writes, "at rest");
    assert_eq!(reconciles(&operator), visits, "at rest");
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named_and_its_arrival_wakes() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let front = agent("front", "api", &["tool"], &["back"]);
    create(&cluster, &front).await?;
    waits(
        &cluster,
        "front",
        "WaitingForModelAPI",
        "ModelAPI api does not exist",
    )
    .await?;
    let phase = cluster.api(&agent_resource()).get("front").await?.data["status"]["phase"].clone();
    assert_eq!(phase, "Waiting");
    create(&cluster, &model_api("api", &["m"])).await?;
    waits(
        &cluster,
        "front",
        "WaitingForMCPServer",
        "MCPServer tool does not exist",
    )
    .await?;
    create(&cluster, &tools("tool")).await?;
    waits(&cluster, "front", "WaitingForPeer", "Agent back does not exist").await?;
    let children = cluster.list(&child_kinds()[0]).await?;
    assert!(
        children
            .iter()
            .all(|child| child.metadata.name.as_deref() != Some("agent-front")),
        "no pods while it waits"
    );
    create(&cluster, &agent("back", "api", &[], &[])).await?;
    let object = ready(&cluster, "front").await?;
    let status = &object.data["status"];
    assert_eq!(status["model"], "m");
    let namespace = &cluster.namespace;
    let links = &status["linkedResources"];
    assert_eq!(links["modelapi"], "api");
    assert_eq!(
        links["agent/back"],
        format!("http://agent-back.{namespace}.svc.cluster.local:8000")
    );
    // Told not to wait, an agent starts with nothing there at all.
    let mut eager = agent("eager", "nowhere", &["none"], &["nobody"]);
    eager["spec"]["waitForDependencies"] = json!(false);
    create(&cluster, &eager).await?;
    ready(&cluster, "eager").await?;
    degraded(
        &cluster,
        "eager",
        "True",
        &["ModelAPI nowhere", "MCPServer none", "Agent nobody"],
    )
    .await?;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_wait_for_each_other_start() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    for ring in ["one", "two"] {
        let name = |n: usize| format!("{ring}-{n}");
        for n in 0..3 {
            // In the second ring, one member lacks its tools.
            let needs: &[&str] = if ring == "two" && n == 1 { &["late"] } else { &[] };
            create(&cluster, &agent(&name(n), "api", needs, &[&name((n + 1) % 3)])).await?;
        }
        let last = name(2);
        create(&cluster, &agent(&format!("{ring}-outside"), "api", &[], &[&last])).await?;
        create(
            &cluster,
            &agent(&format!("{ring}-self"), "api", &[], &[&format!("{ring}-self")]),
        )
        .await?;
    }
    waits(&cluster, "one-0", "WaitingForModelAPI", "api").await?;
    create(&cluster, &model_api("api", &["m"])).await?;
    for name in ["one-0", "one-1", "one-2", "one-outside", "one-self", "two-self"] {
        ready(&cluster, name).await?;
        degraded(&cluster, name, "False", &[]).await?;
    }
    waits(&cluster, "two-0", "WaitingForPeer", "two-1").await?;
    waits(&cluster, "two-1", "WaitingForMCPServer", "late").await?;
    waits(&cluster, "two-2", "WaitingForPeer", "two-0").await?;
    create(&cluster, &tools("late")).await?;
    for name in ["two-0", "two-1", "two-2", "two-outside"] {
        ready(&cluster, name).await?;
    }
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_must_be_served() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    create(&cluster, &model_api("api", &["other", "local/*"])).await?;
    create(&cluster, &agent("a", "api", &[], &[])).await?;
    waits(&cluster, "a", "ModelNotServed", "other, local/*").await?;
    let phase = cluster.api(&agent_resource()).get("a").await?.data["status"]["phase"].clone();
    assert_eq!(phase, "Failed");
    // Served after all.
    create(&cluster, &model_api("api", &["m"])).await?;
    ready(&cluster, "a").await?;
    // The only one need not be named.
    let mut unnamed = agent("b", "api", &[], &[]);
    unnamed["spec"]["model"] = Value::Null;
    create(&cluster, &unnamed).await?;
    assert_eq!(ready(&cluster, "b").await?.data["status"]["model"], "m");
    // A reference into another namespace is refused by an operator that sees its own only.
    create(&cluster, &agent("c", "elsewhere/api", &[], &[])).await?;
    waits(&cluster, "c", "ReferenceNotAllowed", "--watch-namespace").await?;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn exposing_is_undone_and_clashes_are_told_once() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    create(&cluster, &model_api("api", &["*"])).await?;
    let mut object = agent("a", "api", &[], &[]);
    object["spec"]["config"] = json!({"env": [{"name": "AGENT_NAME", "value": "mine"}]});
    create(&cluster, &object).await?;
    ready(&cluster, "a").await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let ports = services
        .get("agent-a")
        .await?
        .spec
        .and_then(|spec| spec.ports)
        .unwrap_or_default();
    assert_eq!(ports.iter().map(|port| port.port).collect::<Vec<_>>(), [80, 8000]);
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let clashes = async || -> anyhow::Result<Vec<Event>> {
        let all = events.list(&ListParams::default()).await?;
        let clash = |event: &Event| event.reason.as_deref() == Some("EnvironmentClash");
        Ok(all.into_iter().filter(clash).collect())
    };
    let told = clashes().await?;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].note.clone().unwrap_or_default().contains("AGENT_NAME"));
    assert_eq!(told[0].type_.as_deref(), Some("Warning"));
    object["spec"]["agentNetwork"]["expose"] = json!(false);
    create(&cluster, &object).await?;
    eventually(async || {
        ensure!(services.get_opt("agent-a").await?.is_none(), "still exposed");
        let status = cluster.api(&agent_resource()).get("a").await?.data["status"].clone();
        ensure!(status["endpoint"].is_null(), "{}", status["endpoint"]);
        Ok(())
    })
    .await?;
    // Somebody who wants to talk to it is told that nobody can.
    create(&cluster, &agent("b", "api", &[], &["a"])).await?;
    waits(&cluster, "b", "ReferenceNotAllowed", "not exposed").await?;
    object["spec"]["agentNetwork"]["expose"] = json!(true);
    create(&cluster, &object).await?;
    ready(&cluster, "b").await?;
    assert!(services.get_opt("agent-a").await?.is_some());
    cluster.done().await
}

/// A dependency that is rebuilt, or not ready for a while, is no reason to touch the agent's pods.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_told_and_the_pods_stay() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let api = model_api("api", &["m"]);
    create(&cluster, &api).await?;
    let mut unnamed = agent("a", "api", &[], &[]);
    unnamed["spec"]["model"] = Value::Null;
    create(&cluster, &unnamed).await?;
    ready(&cluster, "a").await?;
    degraded(&cluster, "a", "False", &[]).await?;
    let template = deployment(&cluster, "agent-a").await?.data["spec"]["template"].clone();
    let before = pods(&cluster, "agent=a").await?;
    delete(&cluster, &api).await?;
    degraded(&cluster, "a", "True", &["ModelAPI api does not exist"]).await?;
    // Also a new operator, which knows the ModelAPI from nothing but the agent's status.
    operator.kill().await;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        deployment(&cluster, "agent-a").await?.data["spec"]["template"],
        template
    );
    let object = ready(&cluster, "a").await?;
    assert_eq!(
        condition(&object, "Ready").context("told")?["reason"],
        "DependencyLost"
    );
    create(&cluster, &api).await?;
    degraded(&cluster, "a", "False", &[]).await?;
    assert_eq!(pods(&cluster, "agent=a").await?, before);
    cluster.done().await
}
