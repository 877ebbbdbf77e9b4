//! Autoscalers, and people who scale by hand.

use std::time::Duration;

use anyhow::ensure;
use gantry_e2e::{
    Cluster, Running, eventually, eventually_for, fixtures,
    fixtures::{mcpserver_resource, model_resource, wait_ready},
    snapshot::child_kinds,
};
use gantry_kit::testing::{Fault, Faults, Rule};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::{deployments, merge, server};

/// What an autoscaler, KEDA or a person does to the Deployment of any kind, and what they add to it, stays; what is ours in
/// it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_scales_a_workload_is_not_fought() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let api = deployments(&cluster);
    fixtures::each(async |fixture| {
        cluster.apply(&fixture.resource, &fixture.base).await?;
        let name = fixture.deployment;
        let made = eventually(async || Ok(api.get(name).await?)).await?;
        let ours = made.data["spec"]["template"]["spec"]["containers"][0].clone();
        let theirs = json!({
            "metadata": {"annotations": {"somebody.example.com/note": "theirs"}},
            "spec": {"replicas": 3, "template": {"spec": {"containers": [
                {"name": ours["name"], "image": "somebody/elses:1"},
            ]}}},
        });
        merge(&api, name, theirs).await?;
        // Healed: so it was looked at after they wrote.
        let healed = eventually(async || {
            let found = api.get(name).await?;
            let image = &found.data["spec"]["template"]["spec"]["containers"][0]["image"];
            ensure!(*image == ours["image"], "{image}");
            Ok(found)
        })
        .await?;
        assert_eq!(healed.data["spec"]["replicas"], 3, "{name}");
        assert_eq!(
            healed
                .annotations()
                .get("somebody.example.com/note")
                .map(String::as_str),
            Some("theirs"),
            "{name}"
        );
        Ok(())
    })
    .await?;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_autoscaler_scales_a_server_and_is_not_fought() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let spec = json!({"runtime": "python-string", "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targetCPU": 50}});
    cluster
        .apply(&mcpserver_resource(), &server("a", spec.clone()))
        .await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let busy = async |cpu: &str| -> anyhow::Result<()> {
        for pod in pods.list(&ListParams::default()).await? {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"simnode.gantry.dev/cpu": cpu}}}));
            pods.patch(&pod.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    };
    let api = deployments(&cluster);
    let replicas = async || -> anyhow::Result<i64> {
        Ok(api.get("mcpserver-a").await?.data["spec"]["replicas"]
            .as_i64()
            .unwrap_or(0))
    };
    eventually_for(Duration::from_secs(150), async || {
        busy("400m").await?;
        let now = replicas().await?;
        ensure!(now == 4, "at {now} replicas");
        Ok(())
    })
    .await?;
    // Another change of the spec must not touch what the autoscaler decided.
    let mut changed = spec;
    changed["resources"] = json!({"limits": {"memory": "600Mi"}});
    cluster
        .apply(&mcpserver_resource(), &server("a", changed))
        .await?;
    // In one look: later the autoscaler sees new pods, which are not busy, and has its own idea.
    let spec = eventually(async || {
        let spec = api.get("mcpserver-a").await?.data["spec"].clone();
        let limits = &spec["template"]["spec"]["containers"][0]["resources"]["limits"];
        ensure!(limits["memory"] == "600Mi", "{limits}");
        Ok(spec)
    })
    .await?;
    assert_eq!(spec["replicas"], 4);
    eventually_for(Duration::from_secs(150), async || {
        busy("1m").await?;
        let now = replicas().await?;
        ensure!(now == 1, "at {now} replicas");
        Ok(())
    })
    .await?;
    cluster.done().await
}

/// What we know of a Deployment is always a little old. Here it is seconds: who scaled it meanwhile is not undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_was_changed_behind_our_back_stays() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let spec = json!({"runtime": "python-string"});
    let first = Running::start(&cluster, &Faults::default()).await?;
    cluster.apply(&mcpserver_resource(), &server("a", spec)).await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    first.kill().await;
    let faults = Faults::default();
    // It lists once and then hears nothing for a while.
    let late = Rule::new(Fault::Delay(Duration::from_secs(8)));
    faults.inject(late.on(Method::GET, "/deployments?&watch=true"));
    let _second = Running::start(&cluster, &faults).await?;
    eventually(async || {
        ensure!(faults.unspent() == 0, "it has not listed yet");
        Ok(())
    })
    .await?;
    let api = deployments(&cluster);
    merge(&api, "mcpserver-a", json!({"spec": {"replicas": 3}})).await?;
    let changed = json!({"runtime": "python-string", "params": "# changed"});
    cluster
        .apply(&mcpserver_resource(), &server("a", changed))
        .await?;
    let spec = eventually(async || {
        let spec = api.get("mcpserver-a").await?.data["spec"].clone();
        ensure!(
            spec["template"].to_string().contains("# changed"),
            "the change has not arrived"
        );
        Ok(spec)
    })
    .await?;
    assert_eq!(spec["replicas"], 3);
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_autoscaler_scales_a_model_up_and_down() -> anyhow::Result<()> {
    scale_a_model(true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_of_the_users_scales_a_model_by_its_scale() -> anyhow::Result<()> {
    scale_a_model(false).await
}

async fn scale_a_model(ours: bool) -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let mut model = json!({
        "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": "phi"},
        "spec": {"image": "phi3", "store": {"size": "1Gi", "deletionPolicy": "Delete"}},
    });
    if ours {
        model["spec"]["autoscaling"] = json!({"minReplicas": 1, "maxReplicas": 3, "targetCPU": 50});
    }
    cluster.apply(&model_resource(), &model).await?;
    wait_ready(&cluster, &model_resource(), "phi", "True", None).await?;
    if !ours {
        cluster
            .apply(
                &child_kinds()[2],
                &json!({
                    "apiVersion": "autoscaling/v2beta2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "mine"},
                    "spec": {
                        "scaleTargetRef": {"apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "name": "phi"},
                        "minReplicas": 1, "maxReplicas": 3,
                        "metrics": [{"type": "Resource", "resource": {
                            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50},
                        }}],
                    },
                }),
            )
            .await?;
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    for (cpu, wanted) in [("400m", 3), ("1m", 1)] {
        eventually_for(Duration::from_secs(150), async || {
            let theirs = ListParams::default().labels("ollama.ayaka.io/type=model");
            for pod in pods.list(&theirs).await? {
                let patch =
                    Patch::Merge(json!({"metadata": {"annotations": {"simnode.gantry.dev/cpu": cpu}}}));
                pods.patch(&pod.name_any(), &PatchParams::default(), &patch)
                    .await?;
            }
            let live = cluster.api(&model_resource()).get("phi").await?;
            let status = &live.data["status"];
            ensure!(
                status["replicas"] == wanted && status["readyReplicas"] == wanted,
                "wanted {wanted}: {status}"
            );
            Ok(())
        })
        .await?;
    }
    cluster.done().await
}
