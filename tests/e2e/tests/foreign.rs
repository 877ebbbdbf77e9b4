//! Others write too: people, autoscalers, other operators, the kubelet. And what they do must be told truthfully.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually, eventually_for,
    fixtures::{self, condition, mcpserver_resource, model_resource, wait_ready},
    snapshot::child_kinds,
};
use gantry_kit::testing::{Fault, Faults, Rule};
use http::Method;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

fn server(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer", "metadata": {"name": name}, "spec": spec})
}

fn deployments(cluster: &Cluster) -> Api<DynamicObject> {
    cluster.api(&child_kinds()[0])
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> anyhow::Result<DynamicObject> {
    Ok(api
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?)
}

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
