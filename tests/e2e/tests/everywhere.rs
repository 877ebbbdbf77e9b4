//! An operator for the whole cluster. It runs alone: it would look after the objects of other tests as well.

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{agent_resource, condition, modelapi_resource, wait_ready},
};
use gantry_kit::testing::Faults;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn references_into_another_namespace_need_its_leave() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let shared = home.in_new_namespace().await?;
    let operator = Running::start_everywhere(&home, &Faults::default()).await?;
    let of = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kaos.tools/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let proxy = json!({"mode": "Proxy", "proxyConfig": {"models": ["m"]}});
    shared
        .apply(&modelapi_resource(), &of("ModelAPI", "api", proxy))
        .await?;
    wait_ready(&shared, &modelapi_resource(), "api", "True", None).await?;
    let reference = format!("{}/api", shared.namespace);
    let spec = json!({"modelAPI": reference, "networkPolicy": {}});
    home.apply(&agent_resource(), &of("Agent", "a", spec)).await?;
    let told = async |reason: &str| -> anyhow::Result<String> {
        eventually(async || {
            let object = home.api(&agent_resource()).get("a").await?;
            let ready = condition(&object, "Ready").context("nothing told")?;
            ensure!(ready["reason"] == reason, "{ready}");
            Ok(ready["message"].to_string())
        })
        .await
    };
    let message = told("ReferenceNotAllowed").await?;
    let cure = format!("gantry.dev/allow-references-from={}", home.namespace);
    assert!(message.contains(&cure), "{message}");
    let namespaces: Api<Namespace> = Api::all(home.client.clone());
    let mark = async |metadata: Value| -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": metadata}));
        namespaces
            .patch(&shared.namespace, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    };
    mark(json!({"annotations": {"gantry.dev/allow-references-from": format!("x, {}", home.namespace)}}))
        .await?;
    told("Ready").await?;
    let object = home.api(&agent_resource()).get("a").await?;
    let address = format!("http://modelapi-api.{}.svc.cluster.local:8000", shared.namespace);
    assert_eq!(
        object.data["status"]["linkedResources"][format!("modelapi/{reference}")],
        address
    );
    assert_eq!(object.data["status"]["model"], "m");
    // Leave that is taken back stops new pods, not those that run.
    mark(json!({"annotations": {"gantry.dev/allow-references-from": "x"}})).await?;
    told("ReferenceNotAllowed").await?;
    assert_eq!(
        home.api(&agent_resource()).get("a").await?.data["status"]["deployment"]["availableReplicas"],
        1
    );
    mark(json!({"labels": {"gantry.dev/allow-references": "true"}})).await?;
    told("Ready").await?;
    operator.stop().await;
    shared.done().await?;
    home.done().await
}
