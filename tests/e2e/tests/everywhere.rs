//! What concerns the whole cluster, and so runs alone: an operator that would look after the objects of other tests as
//! well, and definitions that come and go.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running,
    cluster::install_crds,
    eventually,
    fixtures::{agent_resource, condition, mcpserver_resource, modelapi_resource, wait_ready},
    optional,
};
use gantry_kit::{Options, testing::Faults};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::wait::{await_condition, conditions},
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

async fn undefine(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    if let Some(crd) = api.get_opt(name).await? {
        api.delete(name, &DeleteParams::default()).await?;
        let uid = crd.uid().unwrap_or_default();
        let gone = await_condition(api, name, conditions::is_deleted(&uid));
        tokio::time::timeout(Duration::from_secs(60), gone).await??;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_may_come_and_go() -> anyhow::Result<()> {
    const OURS: &str = "mcpservers.kaos.tools";
    const ROUTES: &str = "httproutes.gateway.networking.k8s.io";
    let cluster = Cluster::simulated().await?;
    undefine(&cluster, OURS).await?;
    undefine(&cluster, ROUTES).await?;
    let (faults, settings) = (Faults::default(), optional::settings());
    let operator = Running::start_with(&cluster, &faults, Options::default(), settings).await?;
    let of = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kaos.tools/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let (apis, servers) = (modelapi_resource(), mcpserver_resource());
    // Kinds that are there are looked after.
    let proxy = json!({"mode": "Proxy", "proxyConfig": {"models": ["m"]}});
    cluster.apply(&apis, &of("ModelAPI", "api", proxy)).await?;
    wait_ready(&cluster, &apis, "api", "True", None).await?;
    let missing = "gantry_watch_errors_total{kind=\"MCPServer\",reason=\"CrdMissing\"}";
    let told = operator.metrics.render();
    assert!(told.contains(missing), "{told}");
    let serve = async |name: &str, replicas: i32| -> anyhow::Result<()> {
        let spec = json!({"runtime": "python-string", "replicas": replicas});
        let server = of("MCPServer", name, spec);
        eventually(async || cluster.apply(&servers, &server).await).await?;
        wait_ready(&cluster, &servers, name, "True", None).await?;
        Ok(())
    };
    let routed = async |expected: &[&str]| {
        eventually(async || {
            let found = cluster.list(&optional::routes()).await?;
            let names: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
            let is_there = |name: &&str| names.iter().any(|found| found == name);
            ensure!(expected.iter().all(is_there), "{names:?}");
            Ok(())
        })
        .await
    };
    install_crds(&cluster.client).await?;
    serve("s", 1).await?;
    optional::install(&cluster).await?;
    let both = ["mcp-s", "modelapi-api"];
    routed(&both).await?;
    // Without them all goes on as before, and they come back with their definition.
    undefine(&cluster, ROUTES).await?;
    serve("s", 2).await?;
    optional::install(&cluster).await?;
    routed(&both).await?;
    undefine(&cluster, OURS).await?;
    install_crds(&cluster.client).await?;
    // By another name: what is left of the first is the server's to clear away, which takes it up to minutes.
    serve("t", 1).await?;
    routed(&["mcp-t", "modelapi-api"]).await?;
    operator.stop().await;
    cluster.done().await
}
