//! Stores of Models, which belong to no single one: taken over from ollama-operator, argued about, and removed.

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{condition, model_resource, wait_ready},
    snapshot::{self, child_kinds},
};
use gantry_kit::testing::{Fault, Faults, Rule};
use http::Method;
use kube::{
    Api,
    api::{PostParams, ResourceExt},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

fn model(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": name}, "spec": spec})
}

fn api(cluster: &Cluster, kind: &str) -> anyhow::Result<Api<DynamicObject>> {
    let found: Option<ApiResource> = child_kinds().into_iter().find(|known| known.kind == kind);
    Ok(cluster.api(&found.context("unknown kind")?))
}

/// As the original writes: plain creation under the name of its binary, its Model as owner but not as controller.
async fn left_by_original(cluster: &Cluster, kind: &str, object: Value) -> anyhow::Result<DynamicObject> {
    let params = PostParams {
        field_manager: Some("manager".to_owned()),
        ..PostParams::default()
    };
    let object: DynamicObject = serde_json::from_value(object)?;
    Ok(api(cluster, kind)?.create(&params, &object).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ollama_operator_left_is_taken_over_with_its_pods() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let root = cluster
        .apply(&model_resource(), &model("phi", json!({"image": "phi3"})))
        .await?;
    let store = json!({"app": "ollama-models-store", "model.ollama.ayaka.io/type": "image-store"});
    left_by_original(
        &cluster,
        "PersistentVolumeClaim",
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "ollama-models-store-pvc"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}},
        }),
    )
    .await?;
    let pod = |read_only: bool| {
        json!({
            "containers": [{"name": "server", "image": "ollama/ollama", "args": ["serve"],
                            "volumeMounts": [{"name": "image-storage", "mountPath": "/root/.ollama"}]}],
            "volumes": [{"name": "image-storage", "persistentVolumeClaim": {
                "claimName": "ollama-models-store-pvc", "readOnly": read_only}}],
        })
    };
    let set = left_by_original(
        &cluster,
        "StatefulSet",
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "ollama-models-store"},
            "spec": {"replicas": 1, "serviceName": "", "selector": {"matchLabels": store},
                     "template": {"metadata": {"labels": store}, "spec": pod(false)}},
        }),
    )
    .await?;
    left_by_original(
        &cluster,
        "Service",
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "ollama-models-store", "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "ollama-models-store", "uid": set.uid()}]},
            "spec": {"selector": store, "ports": [{"name": "ollama", "port": 11434, "targetPort": 11434}]},
        }),
    )
    .await?;
    let labels = json!({"app": "ollama-model-phi"});
    let deployment = left_by_original(
        &cluster,
        "Deployment",
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "ollama-model-phi", "ownerReferences": [{
                "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "name": "phi", "uid": root.uid(),
                "blockOwnerDeletion": true}]},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels}, "spec": pod(true)}},
        }),
    )
    .await?;
    // What does not work anyway would be replaced at once.
    for (kind, name) in [
        ("StatefulSet", "ollama-models-store"),
        ("Deployment", "ollama-model-phi"),
    ] {
        eventually(async || {
            let live = api(&cluster, kind)?.get(name).await?;
            ensure!(
                live.data["status"]["readyReplicas"] == 1,
                "{kind} does not run yet"
            );
            Ok(())
        })
        .await?;
    }
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    wait_ready(&cluster, &model_resource(), "phi", "True", None).await?;
    for (kind, name, before) in [
        ("StatefulSet", "ollama-models-store", &set),
        ("Deployment", "ollama-model-phi", &deployment),
    ] {
        let after = api(&cluster, kind)?.get(name).await?;
        ensure!(
            after.labels().contains_key("app.kubernetes.io/managed-by"),
            "{kind} was not taken over"
        );
        ensure!(after.uid() == before.uid(), "{kind} was replaced");
        let (after, before) = (&after.data["spec"]["template"], &before.data["spec"]["template"]);
        ensure!(after == before, "pods of {kind} were changed to {after}");
    }
    // The first change brings our own pods, under the selector that cannot change.
    let changed = model("phi", json!({"image": "phi3", "runtimeClassName": "nvidia"}));
    cluster.apply(&model_resource(), &changed).await?;
    eventually(async || {
        let live = api(&cluster, "Deployment")?.get("ollama-model-phi").await?;
        let pod = &live.data["spec"]["template"]["spec"];
        ensure!(pod["runtimeClassName"] == "nvidia", "{pod}");
        ensure!(pod["securityContext"]["runAsUser"] == 1001, "{pod}");
        Ok(())
    })
    .await?;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn models_that_disagree_are_told_and_the_last_one_turns_out_the_light() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let spec = |size: &str| json!({"image": "phi3", "store": {"size": size, "deletionPolicy": "Delete"}});
    cluster.apply(&model_resource(), &model("a", spec("1Gi"))).await?;
    wait_ready(&cluster, &model_resource(), "a", "True", None).await?;
    cluster.apply(&model_resource(), &model("b", spec("2Gi"))).await?;
    let told = wait_ready(&cluster, &model_resource(), "b", "True", None).await?;
    let accepted = condition(&told, "Accepted").context("Accepted")?;
    ensure!(accepted["reason"] == "StoreConflict", "{accepted}");
    let message = accepted["message"].to_string();
    ensure!(
        message.contains("store.size") && message.contains("Model a"),
        "{message}"
    );
    // Agreeing again is noticed, whichever of the two does it.
    cluster.apply(&model_resource(), &model("b", spec("1Gi"))).await?;
    eventually(async || {
        let b = cluster.api(&model_resource()).get("b").await?;
        let accepted = condition(&b, "Accepted").context("Accepted")?;
        ensure!(accepted["status"] == "True", "{accepted}");
        Ok(())
    })
    .await?;
    cluster.delete(&model_resource(), "b").await?;
    cluster.delete(&model_resource(), "a").await?;
    eventually(async || {
        let left = snapshot::children(&cluster).await?;
        ensure!(left.is_empty(), "left: {:?}", left.keys());
        Ok(())
    })
    .await?;
    cluster.done().await
}

/// A quota, a webhook or a missing right may keep a store that nobody uses; the Models that are left do not suffer.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_removed_spoils_no_model() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let faults = Faults::default();
    let refused = Rule::new(Fault::Answer(403)).on(Method::DELETE, "/services/ollama-models-store-a");
    faults.inject(refused.times(1000));
    let _operator = Running::start(&cluster, &faults).await?;
    let own =
        json!({"image": "phi3", "store": {"scope": "PerModel", "size": "1Gi", "deletionPolicy": "Delete"}});
    cluster.apply(&model_resource(), &model("a", own)).await?;
    wait_ready(&cluster, &model_resource(), "a", "True", None).await?;
    let moved = cluster
        .apply(&model_resource(), &model("a", json!({"image": "phi3"})))
        .await?;
    eventually(async || {
        let a = cluster.api(&model_resource()).get("a").await?;
        let status = &a.data["status"];
        ensure!(
            status["observedGeneration"] == json!(moved.metadata.generation),
            "not seen yet: {status}"
        );
        ensure!(status["phase"] == "Ready", "{status}");
        Ok(())
    })
    .await?;
    // Its removal was refused, and not forgotten.
    api(&cluster, "Service")?.get("ollama-models-store-a").await?;
    cluster.done().await
}

/// On simulated nodes no store answers, so that weights that are to go hold their Model for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_waits_for_its_weights_to_go_and_says_so_unless_they_stay() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let kept = json!({"image": "llama3", "store": {"size": "1Gi", "weightsPolicy": "Retain"}});
    cluster.apply(&model_resource(), &model("kept", kept)).await?;
    cluster
        .apply(&model_resource(), &model("gone", json!({"image": "phi3"})))
        .await?;
    for name in ["kept", "gone"] {
        wait_ready(&cluster, &model_resource(), name, "True", None).await?;
        cluster.delete(&model_resource(), name).await?;
    }
    let models = cluster.api(&model_resource());
    eventually(async || {
        let left = models.get_opt("kept").await?;
        ensure!(
            left.is_none(),
            "{:?}",
            left.map(|left| left.data["status"].clone())
        );
        Ok(())
    })
    .await?;
    eventually(async || {
        let status = models.get("gone").await?.data["status"].clone();
        ensure!(status["phase"] == "Terminating", "{status}");
        Ok(())
    })
    .await?;
    cluster.done().await
}

/// The last word about a store goes with the Model that said it: those that are left look again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_said_of_the_store_goes_with_it() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let says = |word: &str| json!({"image": "phi3", "store": {"env": [{"name": word, "value": "1"}]}});
    let silent = json!({"image": "phi3", "store": {"size": "1Gi"}});
    cluster.apply(&model_resource(), &model("silent", silent)).await?;
    wait_ready(&cluster, &model_resource(), "silent", "True", None).await?;
    let store_says = async |word: &str, said: bool| {
        eventually(async || {
            let store = api(&cluster, "StatefulSet")?.get("ollama-models-store").await?;
            let env = store.data["spec"]["template"]["spec"]["containers"][0]["env"].to_string();
            ensure!(
                env.contains(word) == said,
                "{word} should be there: {said}; {env}"
            );
            Ok(())
        })
        .await
    };
    for (name, word) in [("moves", "MOVES"), ("goes", "GOES")] {
        cluster.apply(&model_resource(), &model(name, says(word))).await?;
        store_says(word, true).await?;
        if name == "goes" {
            cluster.delete(&model_resource(), name).await?;
        } else {
            let mut elsewhere = says(word);
            elsewhere["store"]["scope"] = json!("PerModel");
            cluster.apply(&model_resource(), &model(name, elsewhere)).await?;
        }
        store_says(word, false).await?;
    }
    cluster.done().await
}

/// On simulated nodes no store answers, so that what is to be removed stays named.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_served_before_is_to_be_removed_unless_another_uses_it() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let _operator = Running::start(&cluster, &Faults::default()).await?;
    let of = |image: &str| json!({"image": image, "store": {"size": "1Gi"}});
    for (name, image) in [("a", "phi3"), ("b", "phi3")] {
        cluster.apply(&model_resource(), &model(name, of(image))).await?;
        wait_ready(&cluster, &model_resource(), name, "True", None).await?;
    }
    for (name, replaced) in [("a", json!(null)), ("b", json!(["phi3:latest"]))] {
        let changed = cluster
            .apply(&model_resource(), &model(name, of("llama3")))
            .await?;
        eventually(async || {
            let live = cluster.api(&model_resource()).get(name).await?;
            let status = &live.data["status"];
            ensure!(
                status["observedGeneration"] == json!(changed.metadata.generation),
                "{status}"
            );
            ensure!(status["phase"] == "Ready", "{status}");
            ensure!(status["replaced"] == replaced, "{status}");
            Ok(())
        })
        .await?;
    }
    cluster.done().await
}
