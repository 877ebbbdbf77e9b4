//! Writes that are refused: they hold up no more than they must, are told once, and reach nobody else's objects.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{self, condition, mcpserver_resource, model_resource, modelapi_resource, wait_ready},
};
use gantry_kit::testing::{Fault, Faults, Rule};
use http::Method;
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event, networking::v1::Ingress};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use super::server;

/// An autoscaler that the server does not take keeps neither the Ingress from coming nor from going.
#[tokio::test(flavor = "multi_thread")]
async fn one_child_that_is_refused_does_not_hold_up_the_others() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let faults = Faults::default();
    let refused = Rule::new(Fault::Answer(422)).on(Method::PATCH, "/horizontalpodautoscalers/");
    faults.inject(refused.times(1000));
    let operator = Running::start(&cluster, &faults).await?;
    let fixtures = fixtures::all();
    let fixture = fixtures
        .iter()
        .find(|fixture| fixture.resource == model_resource())
        .context("Model")?;
    let ingresses: Api<Ingress> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let there = async |expected: bool| {
        eventually(async || {
            let found = !ingresses.list(&ListParams::default()).await?.items.is_empty();
            ensure!(found == expected, "an Ingress: {found}");
            let object = fixtures::get(&cluster, fixture).await?;
            let ready = condition(&object, "Ready").context("nothing told")?;
            ensure!(ready["reason"] == "Rejected", "{ready}");
            // What is not refused is told as ever.
            let (observed, now) = (
                &object.data["status"]["observedGeneration"],
                object.metadata.generation,
            );
            ensure!(*observed == json!(now), "{observed} of {now:?} was looked at");
            Ok(())
        })
        .await
    };
    cluster.apply(&fixture.resource, &fixture.other).await?;
    there(true).await?;
    let mut without = fixture.other.clone();
    without["spec"]["ingress"] = json!(null);
    cluster.apply(&fixture.resource, &without).await?;
    there(false).await?;
    faults.reset();
    without["metadata"]["labels"] = json!({"try": "again"});
    cluster.apply(&fixture.resource, &without).await?;
    wait_ready(&cluster, &fixture.resource, fixture.name, "True", None).await?;
    operator.stop().await;
    cluster.done().await
}

/// What cannot be told in the status is not announced at every try either.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_is_refused_makes_no_events() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let faults = Faults::default();
    for (code, path) in [(500, "/deployments/"), (422, "/status")] {
        faults.inject(Rule::new(Fault::Answer(code)).on(Method::PATCH, path).times(1000));
    }
    let operator = Running::start(&cluster, &faults).await?;
    let object = server("a", json!({"runtime": "python-string"}));
    cluster.apply(&mcpserver_resource(), &object).await?;
    eventually(async || {
        let told = operator.metrics.render();
        let failed = told.lines().find_map(|line| {
            line.strip_prefix("gantry_reconciles_total{kind=\"mcpserver\",result=\"error\"} ")
        });
        let failed: u32 = failed.unwrap_or("0").parse()?;
        ensure!(failed >= 3, "failed {failed} times");
        Ok(())
    })
    .await?;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let about_it = async || -> anyhow::Result<usize> {
        let all = events.list(&ListParams::default()).await?;
        let about = all.items.iter().filter_map(|event| event.regarding.as_ref());
        Ok(about
            .filter(|about| about.kind.as_deref() == Some("MCPServer"))
            .count())
    };
    assert_eq!(about_it().await?, 0);
    faults.reset();
    wait_ready(&cluster, &mcpserver_resource(), "a", "True", None).await?;
    eventually(async || {
        ensure!(about_it().await? > 0, "nothing is announced");
        Ok(())
    })
    .await?;
    operator.stop().await;
    cluster.done().await
}

/// What is known of a child is seconds old: another object has its name by now, which is somebody's.
#[tokio::test(flavor = "multi_thread")]
async fn a_namesake_of_a_child_is_not_written_to() -> anyhow::Result<()> {
    const LAG: Duration = Duration::from_secs(6);
    let cluster = Cluster::simulated().await?;
    let faults = Faults::default();
    let late = Rule::new(Fault::LateWatch(LAG)).on(Method::GET, "/configmaps?&watch=true");
    faults.inject(late.times(1000));
    let operator = Running::start(&cluster, &faults).await?;
    let serve = async |model: &str| {
        let spec = json!({"mode": "Proxy", "proxyConfig": {"models": [model]}});
        let object = json!({
            "apiVersion": "kaos.tools/v1alpha1", "kind": "ModelAPI", "metadata": {"name": "a"}, "spec": spec,
        });
        cluster.apply(&modelapi_resource(), &object).await
    };
    serve("one").await?;
    wait_ready(&cluster, &modelapi_resource(), "a", "True", None).await?;
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=gantry");
    let name = api
        .list(&ours)
        .await?
        .items
        .first()
        .context("a ConfigMap")?
        .name_any();
    api.delete(&name, &DeleteParams::default()).await?;
    let theirs = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"theirs": "yes"}}))?;
    let made = api.create(&PostParams::default(), &theirs).await?;
    serve("two").await?;
    eventually(async || {
        let object = cluster.api(&modelapi_resource()).get("a").await?;
        let ready = condition(&object, "Ready").context("nothing told")?;
        ensure!(ready["reason"] == "NotOurs", "{ready}");
        Ok(())
    })
    .await?;
    tokio::time::sleep(LAG).await;
    let now = api.get(&name).await?;
    assert_eq!(now.metadata.uid, made.metadata.uid);
    assert_eq!((now.data, now.metadata.labels), (made.data, None));
    operator.stop().await;
    cluster.done().await
}
