//! What the status says of what goes on around it.

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{condition, mcpserver_resource, wait_ready},
};
use gantry_kit::testing::Faults;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use serde_json::{Value, json};

use super::{deployments, server};

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_waited_for_and_roll_the_pods() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let spec = json!({"config": {"tools": {"fromSecretKeyRef": {"name": "code", "key": "tools.py"}}}});
    cluster.apply(&mcpserver_resource(), &server("a", spec)).await?;
    let object = wait_ready(
        &cluster,
        &mcpserver_resource(),
        "a",
        "False",
        Some("WaitingForSecret"),
    )
    .await?;
    assert_eq!(object.data["status"]["phase"], "Waiting");
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "code"}, "stringData": {"other": "x"}}))?;
    secrets.create(&PostParams::default(), &secret).await?;
    let object = eventually(async || {
        let object = cluster.api(&mcpserver_resource()).get("a").await?;
        ensure!(
            object.data["status"]["message"].to_string().contains("tools.py"),
            "the key is not named"
        );
        Ok(object)
    })
    .await?;
    assert_eq!(object.data["status"]["phase"], "Waiting");
    let set = async |key: &str, value: &str| -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"stringData": {key: value}}));
        secrets.patch("code", &PatchParams::default(), &patch).await?;
        Ok(())
    };
    set("tools.py", "def a(): pass").await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    let api = deployments(&cluster);
    let template = async || -> anyhow::Result<Value> {
        Ok(api.get("mcpserver-a").await?.data["spec"]["template"].clone())
    };
    let before = template().await?;
    set("other", "y").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(template().await?, before, "a key that is not used rolls nothing");
    set("tools.py", "def b(): pass").await?;
    eventually(async || {
        ensure!(template().await? != before, "not rolled yet");
        Ok(())
    })
    .await?;
    operator.stop().await;
    cluster.done().await
}

/// The pod's trouble is named in the object's condition, and goes when the trouble goes.
#[tokio::test(flavor = "multi_thread")]
async fn causes_of_trouble_are_named() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    for (fail, reason) in [
        ("crash-loop", "CrashLoop"),
        ("image-pull", "ImagePullFailed"),
        ("oom", "OutOfMemory"),
    ] {
        cluster
            .apply(
                &mcpserver_resource(),
                &server(fail, json!({"runtime": "python-string"})),
            )
            .await?;
        wait_ready(&cluster, &mcpserver_resource(), fail, "True", None).await?;
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let selector = ListParams::default().labels(&format!("mcpserver={fail}"));
        let annotate = async |value: Value| -> anyhow::Result<()> {
            for pod in pods.list(&selector).await? {
                let patch = Patch::Merge(json!({"metadata": {"annotations": {
                    "simnode.gantry.dev/fail": value,
                    "simnode.gantry.dev/fail-message": "error: the disk of the moon is full",
                    "simnode.gantry.dev/crash-backoff": "500ms",
                }}}));
                pods.patch(&pod.name_any(), &PatchParams::default(), &patch)
                    .await?;
            }
            Ok(())
        };
        annotate(json!(fail)).await?;
        let object = wait_ready(&cluster, &mcpserver_resource(), fail, "False", Some(reason)).await?;
        assert_eq!(object.data["status"]["phase"], "Failed", "{fail}");
        if fail != "oom" {
            let message = object.data["status"]["message"].to_string();
            assert!(
                message.contains("disk of the moon"),
                "the pod's last words: {message}"
            );
        }
        if fail == "image-pull" {
            the_cause_stays_told(&cluster, fail).await?;
        }
        annotate(Value::Null).await?;
        wait_ready(&cluster, &mcpserver_resource(), fail, "True", None).await?;
    }
    cluster.done().await
}

/// While a kubelet tells in turn why an image was not pulled, and that it waits before it tries again.
async fn the_cause_stays_told(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let selector = ListParams::default().labels(&format!("mcpserver={name}"));
    let mut reasons = BTreeSet::new();
    eventually(async || {
        for pod in pods.list(&selector).await? {
            let statuses = pod.status.and_then(|status| status.container_statuses);
            let waits = statuses
                .into_iter()
                .flatten()
                .filter_map(|status| status.state?.waiting?.reason);
            reasons.extend(waits);
        }
        ensure!(reasons.len() > 1, "the pod only ever said {reasons:?}");
        Ok(())
    })
    .await?;
    let before = cluster.api(&mcpserver_resource()).get(name).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = cluster.api(&mcpserver_resource()).get(name).await?;
    assert_eq!(before.data["status"], after.data["status"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_named_and_lifting_it_helps() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let quota: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}))?;
    quotas.create(&PostParams::default(), &quota).await?;
    eventually(async || {
        ensure!(
            quotas
                .get("none")
                .await?
                .status
                .is_some_and(|status| status.hard.is_some()),
            "not in force"
        );
        Ok(())
    })
    .await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    cluster
        .apply(
            &mcpserver_resource(),
            &server("a", json!({"runtime": "python-string"})),
        )
        .await?;
    wait_ready(
        &cluster,
        &mcpserver_resource(),
        "a",
        "False",
        Some("QuotaExceeded"),
    )
    .await?;
    quotas.delete("none", &DeleteParams::default()).await?;
    // The ReplicaSet controller tries again later and later; a change of the spec makes it try at once.
    let spec = json!({"runtime": "python-string", "params": "def a(): pass"});
    cluster.apply(&mcpserver_resource(), &server("a", spec)).await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn rubbish_is_told_what_is_wrong() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    for (name, spec, reason, words) in [
        ("none", json!({}), "InvalidSpec", "exactly one source"),
        (
            "two",
            json!({"runtime": "slack", "config": {"mcp": "x"}}),
            "InvalidSpec",
            "exactly one source",
        ),
        (
            "missing",
            json!({"runtime": "no-such"}),
            "RuntimeNotFound",
            "kaos-mcp-runtimes",
        ),
        (
            "env",
            json!({"runtime": "slack"}),
            "InvalidSpec",
            "SLACK_BOT_TOKEN",
        ),
        (
            "params",
            json!({"runtime": "kubernetes", "params": "x"}),
            "InvalidSpec",
            "takes no params",
        ),
        (
            "pod",
            json!({"runtime": "kubernetes", "podSpec": {"volumes": 5}}),
            "InvalidOverride",
            "podSpec",
        ),
    ] {
        cluster.apply(&mcpserver_resource(), &server(name, spec)).await?;
        let object = wait_ready(&cluster, &mcpserver_resource(), name, "False", Some(reason)).await?;
        let message = object.data["status"]["message"].to_string();
        assert!(message.contains(words), "{name}: {message}");
        assert_eq!(object.data["status"]["phase"], "Failed", "{name}");
    }
    // A registry entry that comes later wakes the one that waits for it.
    let registry = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kaos-mcp-runtimes"},
        "data": {"runtimes.yaml": "runtimes:\n  no-such: {image: now-there}\n"},
    });
    let config_maps = ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&());
    cluster.apply(&config_maps, &registry).await?;
    wait_ready(&cluster, &mcpserver_resource(), "missing", "True", None).await?;
    cluster.done().await
}

/// While a spec changes again and again, the status never claims what was not looked at.
#[tokio::test(flavor = "multi_thread")]
async fn the_status_never_runs_ahead() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let api = cluster.api(&mcpserver_resource());
    let mut transition: Option<(String, String)> = None;
    for round in 0..12 {
        let spec = json!({"runtime": "python-string", "params": format!("# {round}")});
        cluster.apply(&mcpserver_resource(), &server("a", spec)).await?;
        for _ in 0..6 {
            let object = api.get("a").await?;
            let generation = object.metadata.generation.unwrap_or(0);
            let observed = object.data["status"]["observedGeneration"].as_i64().unwrap_or(0);
            ensure!(observed <= generation, "observed {observed} of {generation}");
            if let Some(ready) = condition(&object, "Ready") {
                let now = (
                    ready["lastTransitionTime"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    ready["status"].as_str().unwrap_or_default().to_owned(),
                );
                if let Some(before) = &transition {
                    ensure!(now.0 >= before.0, "time went back from {before:?} to {now:?}");
                }
                if now.1 == "True" && observed == generation {
                    let live = deployments(&cluster).get("mcpserver-a").await?;
                    let code = live.data["spec"]["template"]["spec"]["containers"][0]["env"].to_string();
                    ensure!(
                        code.contains(&format!("# {round}")),
                        "Ready before the child was changed"
                    );
                }
                transition = Some(now);
            }
            tokio::time::sleep(Duration::from_millis(80)).await;
        }
    }
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    cluster.done().await
}
