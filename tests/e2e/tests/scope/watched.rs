//! Namespaces, and ConfigMaps that users' objects depend on.

use std::time::Duration;

use anyhow::ensure;
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{mcpserver_resource, wait_ready},
    operator, snapshot,
};
use gantry_kit::{Options, testing::Faults};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ApiResource};
use serde_json::{Value, json};

use super::{deployments, server};

fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

#[tokio::test(flavor = "multi_thread")]
async fn config_maps_are_waited_for_and_roll_the_pods() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let from = json!({"configMapKeyRef": {"name": "settings", "key": "level"}});
    let env = json!([{"name": "LEVEL", "valueFrom": from}]);
    let spec = json!({"runtime": "python-string", "container": {"env": env}});
    cluster.apply(&mcpserver_resource(), &server("a", spec)).await?;
    let waits = Some("WaitingForConfigMap");
    wait_ready(&cluster, &mcpserver_resource(), "a", "False", waits).await?;
    let config_maps = ApiResource::erase::<ConfigMap>(&());
    let set = async |data: Value| cluster.apply(&config_maps, &config_map("settings", &data)).await;
    set(json!({"level": "info", "other": "x"})).await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    let api = deployments(&cluster);
    let template = async || -> anyhow::Result<Value> {
        Ok(api.get("mcpserver-a").await?.data["spec"]["template"].clone())
    };
    let before = template().await?;
    set(json!({"level": "info", "other": "y"})).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(template().await?, before, "a key that is not used rolls nothing");
    set(json!({"level": "debug", "other": "y"})).await?;
    eventually(async || {
        ensure!(template().await? != before, "not rolled yet");
        Ok(())
    })
    .await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    // Deleted and made again as it was, it rolls them back.
    cluster.delete(&config_maps, "settings").await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "False", waits).await?;
    set(json!({"level": "info"})).await?;
    eventually(async || {
        ensure!(template().await? == before, "not rolled back yet");
        Ok(())
    })
    .await?;
    operator.stop().await;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_changes_reaches_a_running_server() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let config_maps = ApiResource::erase::<ConfigMap>(&());
    let offer = async |image: &str| {
        let text = format!("runtimes:\n  mine: {{image: '{image}'}}\n");
        let registry = config_map("kaos-mcp-runtimes", &json!({"runtimes.yaml": text}));
        cluster.apply(&config_maps, &registry).await
    };
    let api = deployments(&cluster);
    cluster
        .apply(&mcpserver_resource(), &server("a", json!({"runtime": "mine"})))
        .await?;
    for image in ["mine:1", "mine:2"] {
        offer(image).await?;
        eventually(async || {
            let live = api.get("mcpserver-a").await?;
            let found = &live.data["spec"]["template"]["spec"]["containers"][0]["image"];
            ensure!(*found == image, "{found}");
            Ok(())
        })
        .await?;
        wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    }
    // Without its entry it is told, and its pods go on.
    cluster.delete(&config_maps, "kaos-mcp-runtimes").await?;
    let reason = Some("RuntimeNotFound");
    wait_ready(&cluster, &mcpserver_resource(), "a", "False", reason).await?;
    assert_eq!(api.get("mcpserver-a").await?.data["status"]["readyReplicas"], 1);
    operator.stop().await;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_namespaces_two_are_looked_after() -> anyhow::Result<()> {
    let first = Cluster::simulated().await?;
    let (second, third) = (first.in_new_namespace().await?, first.in_new_namespace().await?);
    let all = [&first, &second, &third];
    let spec = json!({"runtime": "python-string"});
    for cluster in all {
        cluster
            .apply(&mcpserver_resource(), &server("a", spec.clone()))
            .await?;
    }
    let options = Options {
        namespaces: vec![first.namespace.clone(), second.namespace.clone()],
        ..Options::default()
    };
    let operator = Running::start_as(&first, &Faults::default(), options, operator::settings()).await?;
    for cluster in [&first, &second] {
        wait_ready(cluster, &mcpserver_resource(), "a", "True", None).await?;
    }
    // Changes are followed as well, and a child comes back in its own namespace.
    for cluster in all {
        let spec = json!({"runtime": "python-string", "replicas": 2});
        cluster.apply(&mcpserver_resource(), &server("a", spec)).await?;
    }
    for cluster in [&first, &second] {
        wait_ready(cluster, &mcpserver_resource(), "a", "True", None).await?;
        let before = deployments(cluster).get("mcpserver-a").await?;
        assert_eq!(before.data["spec"]["replicas"], 2);
        cluster.delete(&snapshot::child_kinds()[0], "mcpserver-a").await?;
        eventually(async || {
            let found = deployments(cluster).get("mcpserver-a").await?;
            ensure!(found.uid() != before.uid(), "still the old one");
            Ok(())
        })
        .await?;
    }
    let told = operator.metrics.render();
    assert!(told.contains("gantry_leader 1"), "it needs no lease: {told}");
    let left = third.api(&mcpserver_resource()).get("a").await?;
    assert!(left.data["status"].is_null(), "{}", left.data["status"]);
    assert!(snapshot::children(&third).await?.is_empty());
    operator.stop().await;
    for cluster in [first, second, third] {
        cluster.done().await?;
    }
    Ok(())
}
