//! People, tools and other operators write to what is ours.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually, eventually_for, fixtures,
    fixtures::{condition, mcpserver_resource, wait_ready},
    snapshot::child_kinds,
};
use gantry_kit::testing::Faults;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::json;

use super::{deployments, merge, server};

#[tokio::test(flavor = "multi_thread")]
async fn our_fields_are_healed_and_others_are_left_alone() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    cluster
        .apply(
            &mcpserver_resource(),
            &server("a", json!({"runtime": "python-string"})),
        )
        .await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    let api = deployments(&cluster);
    let ours =
        api.get("mcpserver-a").await?.data["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    merge(
        &api,
        "mcpserver-a",
        json!({
            "metadata": {"annotations": {"somebody": "was here"}},
            "spec": {"replicas": 3, "template": {"spec": {"containers": [
                {"name": "mcp-server", "image": "wrong:1", "env": [{"name": "THEIRS", "value": "1"}]},
            ]}}},
        }),
    )
    .await?;
    eventually(async || {
        let live = api.get("mcpserver-a").await?;
        let container = &live.data["spec"]["template"]["spec"]["containers"][0];
        ensure!(container["image"] == ours, "image is {}", container["image"]);
        let theirs = container["env"]
            .as_array()
            .context("env")?
            .iter()
            .any(|entry| entry["name"] == "THEIRS");
        ensure!(theirs, "their variable is gone");
        ensure!(
            live.annotations().contains_key("somebody"),
            "their annotation is gone"
        );
        ensure!(live.data["spec"]["replicas"] == 3, "replicas were fought over");
        Ok(())
    })
    .await?;
    // A child that is deleted comes back.
    api.delete("mcpserver-a", &DeleteParams::default()).await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    // Asked for through the object itself, replicas follow.
    let scaled = cluster.api(&mcpserver_resource());
    let patch = Patch::Merge(json!({"spec": {"replicas": 2}}));
    scaled.patch_scale("a", &PatchParams::default(), &patch).await?;
    eventually(async || {
        let live = api.get("mcpserver-a").await?;
        ensure!(
            live.data["spec"]["replicas"] == 2,
            "replicas are {}",
            live.data["spec"]["replicas"]
        );
        Ok(())
    })
    .await?;
    cluster.done().await
}

/// Without our label a child leaves the watch as if it were deleted. It is labelled again, and is still known to be ours: it
/// goes when it is no longer wished for.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_lost_our_label_is_healed_and_still_pruned() -> anyhow::Result<()> {
    const LABEL: &str = "app.kubernetes.io/managed-by";
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let scaled = json!({"runtime": "python-string", "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targetCPU": 50}});
    cluster.apply(&mcpserver_resource(), &server("a", scaled)).await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    let autoscalers = cluster.api(&child_kinds()[2]);
    let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: null}}}));
    autoscalers
        .patch("mcpserver-a", &PatchParams::default(), &patch)
        .await?;
    eventually(async || {
        let live = autoscalers.get("mcpserver-a").await?;
        ensure!(live.labels().contains_key(LABEL), "not labelled again");
        Ok(())
    })
    .await?;
    let plain = server("a", json!({"runtime": "python-string"}));
    cluster.apply(&mcpserver_resource(), &plain).await?;
    eventually(async || {
        let left = autoscalers.get_opt("mcpserver-a").await?;
        ensure!(left.is_none(), "the autoscaler outlives its switch");
        Ok(())
    })
    .await?;
    cluster.done().await
}

/// Another controller wants a field of a Service to be otherwise, and sets it whenever it sees our value. It is told who that
/// is, and not fought without end; when the other one ends, all is well again.
#[tokio::test(flavor = "multi_thread")]
async fn a_rival_is_named_and_not_fought_without_end() -> anyhow::Result<()> {
    const NAME: &str = "mcpserver-a";
    let cluster = Cluster::simulated().await?;
    let operator = Running::start(&cluster, &Faults::default()).await?;
    let resource = mcpserver_resource();
    let spec = json!({"runtime": "python-string"});
    cluster.apply(&resource, &server("a", spec)).await?;
    wait_ready(&cluster, &resource, "a", "True", None).await?;
    let services = cluster.api(&child_kinds()[1]);
    let theirs = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": {"selector": {"app": "theirs"}},
    });
    let their_api = services.clone();
    let rival = tokio::spawn(async move {
        let params = PatchParams::apply("rival-controller").force();
        loop {
            let live = their_api.get(NAME).await?;
            if live.data["spec"]["selector"]["app"] != "theirs" {
                their_api.patch(NAME, &params, &Patch::Apply(&theirs)).await?;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        #[allow(unreachable_code, reason = "names the type of errors")]
        anyhow::Ok(())
    });
    let our_writes = || {
        let writes = operator.faults.writes().into_iter();
        writes
            .filter(|write| write.path.contains(&format!("/services/{NAME}?")))
            .count()
    };
    let before = our_writes();
    // The answer names the other one only after it was asked who that is.
    let told = eventually_for(Duration::from_secs(120), async || {
        let object = cluster.api(&resource).get("a").await?;
        let ready = condition(&object, "Ready").context("no condition")?.clone();
        ensure!(
            ready["status"] == "False" && ready["reason"] == "Conflict",
            "{ready}"
        );
        let message = ready["message"].as_str().unwrap_or_default().to_owned();
        ensure!(message.contains("\"rival-controller\""), "{message}");
        Ok(message)
    })
    .await?;
    assert!(told.contains("Service mcpserver-a"), "{told}");
    // The first six at once, then one after 15 s; the other one changes it ten times a second.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let writes = our_writes() - before;
    assert!((6..=8).contains(&writes), "{writes} writes");
    // Its other children are looked after all the while.
    deployments(&cluster)
        .delete("mcpserver-a", &DeleteParams::default())
        .await?;
    eventually(async || Ok(deployments(&cluster).get("mcpserver-a").await?)).await?;
    assert!(!rival.is_finished(), "the rival gave up: {:?}", rival.await);
    rival.abort();
    // After the pause it is written once more, and stays so for a minute.
    eventually_for(Duration::from_secs(240), async || {
        let object = cluster.api(&resource).get("a").await?;
        let ready = condition(&object, "Ready").context("no condition")?.clone();
        ensure!(ready["status"] == "True", "{ready}");
        Ok(())
    })
    .await?;
    let live = services.get(NAME).await?;
    assert_eq!(live.data["spec"]["selector"]["app"], "mcpserver");
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_others_is_not_taken() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let services = cluster.api(&child_kinds()[1]);
    let theirs: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "mcpserver-a"},
        "spec": {"ports": [{"port": 1}], "selector": {"theirs": "yes"}},
    }))?;
    services.create(&PostParams::default(), &theirs).await?;
    cluster
        .apply(
            &mcpserver_resource(),
            &server("a", json!({"runtime": "python-string"})),
        )
        .await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "False", Some("NotOurs"))
        .await
        .err();
    let object = eventually(async || {
        let object = cluster.api(&mcpserver_resource()).get("a").await?;
        let ready = condition(&object, "Ready").context("no condition")?.clone();
        ensure!(ready["reason"] == "NotOurs", "{ready}");
        Ok(object)
    })
    .await?;
    let message = condition(&object, "Ready").context("Ready")?["message"].to_string();
    assert!(
        message.contains("gantry.dev/adopt"),
        "the cure is named: {message}"
    );
    assert!(
        object.data["status"]["observedGeneration"].is_null(),
        "an error does not claim the generation"
    );
    assert_eq!(
        services.get("mcpserver-a").await?.data["spec"]["selector"]["theirs"],
        "yes"
    );
    cluster.delete(&mcpserver_resource(), "a").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(
        services.get_opt("mcpserver-a").await?.is_some(),
        "their Service outlives our object"
    );
    cluster.done().await
}

/// What an earlier version, or the original operator, left behind is taken over without restarting a pod.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_restarts_nothing_and_old_finalizers_let_go() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let first = Running::start(&cluster, &Faults::default()).await?;
    let mut object = server("a", json!({"runtime": "python-string"}));
    object["metadata"]["finalizers"] = json!(["kaos.tools/mcpserver-finalizer"]);
    cluster.apply(&mcpserver_resource(), &object).await?;
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    first.kill().await;
    let api = deployments(&cluster);
    let before = merge(
        &api,
        "mcpserver-a",
        json!({"metadata": {
            "annotations": {"gantry.dev/wish": "made-by-an-older-version", "gantry.dev/replicas": null},
            "labels": {"app.kubernetes.io/managed-by": null},
        }}),
    )
    .await?;
    let second = Running::start(&cluster, &Faults::default()).await?;
    let after = eventually(async || {
        let live = api.get("mcpserver-a").await?;
        let taken = live.labels().get("app.kubernetes.io/managed-by").is_some();
        ensure!(taken, "not taken over yet");
        Ok(live)
    })
    .await?;
    assert_eq!(
        after.data["spec"]["template"], before.data["spec"]["template"],
        "the same pods"
    );
    assert_eq!(after.metadata.uid, before.metadata.uid);
    cluster.delete(&mcpserver_resource(), "a").await?;
    eventually(async || {
        let left = cluster.api(&mcpserver_resource()).get_opt("a").await?;
        ensure!(
            left.is_none(),
            "held by {:?}",
            left.map(|object| object.finalizers().to_vec())
        );
        Ok(())
    })
    .await?;
    second.stop().await;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_object_is_left_alone() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    for fixture in fixtures::all() {
        let cluster = home.in_new_namespace().await?;
        let operator = Running::start(&cluster, &Faults::default()).await?;
        let mut paused = fixture.base.clone();
        paused["metadata"]["annotations"] = json!({"gantry.dev/paused": "true"});
        cluster.apply(&fixture.resource, &paused).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(operator.faults.writes(), []);
        cluster.apply(&fixture.resource, &fixture.base).await?;
        wait_ready(&cluster, &fixture.resource, fixture.name, "True", None).await?;
        operator.kill().await;
        cluster.done().await?;
    }
    home.done().await
}
