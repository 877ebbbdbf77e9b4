//! Specs that change, cannot work or cannot be read.

use std::time::Duration;

use anyhow::ensure;
use gantry_e2e::{
    Cluster, Running, eventually, fixtures,
    fixtures::{wait_ready, wait_ready_for},
};
use gantry_kit::testing::Faults;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

use super::{settled, settles_as, undisturbed};

/// The same spec leads to the same children, whichever way one came.
#[tokio::test(flavor = "multi_thread")]
async fn every_path_to_a_spec_ends_the_same() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.base).await?;
        let (other, _) = undisturbed(&home, fixture, &fixture.other).await?;
        let cluster = home.in_new_namespace().await?;
        let operator = Running::start(&cluster, &Faults::default()).await?;
        let (broken, reason) = &fixture.broken;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        settled(&cluster, fixture).await?;
        cluster.apply(&fixture.resource, &fixture.other).await?;
        settles_as(&cluster, fixture, &other, "to another spec").await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        settles_as(&cluster, fixture, &expected, "from another spec").await?;
        cluster.apply(&fixture.resource, broken).await?;
        wait_ready(&cluster, &fixture.resource, fixture.name, "False", Some(reason)).await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        settles_as(&cluster, fixture, &expected, "from a spec that cannot work").await?;
        operator.kill().await;
        cluster.done().await?;
        Ok(())
    })
    .await?;
    home.done().await
}

/// A pod of the spec before, made anew while the one after cannot start, is younger than those that are in trouble.
#[tokio::test(flavor = "multi_thread")]
async fn trouble_stays_told_when_older_pods_are_replaced() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let cluster = home.in_new_namespace().await?;
        let operator = Running::start(&cluster, &Faults::default()).await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        settled(&cluster, fixture).await?;
        let (broken, reason) = &fixture.broken;
        cluster.apply(&fixture.resource, broken).await?;
        wait_ready(&cluster, &fixture.resource, fixture.name, "False", Some(reason)).await?;
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let is_ready = |pod: &Pod| {
            let conditions = pod
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        let ready: Vec<Pod> = pods
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .filter(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none())
            .collect();
        ensure!(!ready.is_empty(), "the pods of the spec before are gone");
        for pod in &ready {
            pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
                .await?;
        }
        eventually(async || {
            let now = pods.list(&ListParams::default()).await?.items;
            let anew: Vec<&Pod> = now
                .iter()
                .filter(|pod| is_ready(pod) && ready.iter().all(|old| old.uid() != pod.uid()))
                .collect();
            // By their set: others may have been on their way.
            let set = |pod: &Pod| pod.owner_references().first().map(|owner| owner.uid.clone());
            let missing = ready
                .iter()
                .find(|old| anew.iter().all(|pod| set(pod) != set(old)));
            ensure!(
                missing.is_none(),
                "none is made anew for {:?}",
                missing.map(ResourceExt::name_any)
            );
            Ok(())
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        wait_ready_for(
            Duration::from_secs(5),
            &cluster,
            &fixture.resource,
            fixture.name,
            "False",
            Some(reason),
        )
        .await?;
        operator.kill().await;
        cluster.done().await?;
        Ok(())
    })
    .await?;
    home.done().await
}

/// An object that does not decode says so, and the others are served.
#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_object_stops_nobody() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let cluster = home.in_new_namespace().await?;
        let mut poison = fixture.poison.clone();
        poison["metadata"]["name"] = "poison".into();
        cluster.apply(&fixture.resource, &poison).await?;
        let operator = Running::start(&cluster, &Faults::default()).await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        settled(&cluster, fixture).await?;
        let object = wait_ready(
            &cluster,
            &fixture.resource,
            "poison",
            "False",
            Some("InvalidSpec"),
        )
        .await?;
        let message = fixtures::condition(&object, "Ready").map(|ready| ready["message"].to_string());
        assert!(
            message.clone().unwrap_or_default().contains("cannot be read"),
            "{message:?}"
        );
        // Its own status must not make it look changed.
        let writes = || {
            let all = operator.faults.writes().into_iter();
            all.filter(|write| write.path.contains("/poison")).count()
        };
        let before = writes();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(writes(), before);
        let mut cured = fixture.base.clone();
        cured["metadata"]["name"] = "poison".into();
        cluster.apply(&fixture.resource, &cured).await?;
        let cured = wait_ready(&cluster, &fixture.resource, "poison", "True", None).await?;
        // One that holds our finalizer and cannot be read any more can still go.
        poison["metadata"]["finalizers"] = json!(cured.metadata.finalizers);
        cluster.apply(&fixture.resource, &poison).await?;
        let reason = Some("InvalidSpec");
        wait_ready(&cluster, &fixture.resource, "poison", "False", reason).await?;
        cluster.delete(&fixture.resource, "poison").await?;
        eventually(async || {
            let left = cluster.api(&fixture.resource).get_opt("poison").await?;
            ensure!(
                left.is_none(),
                "held by {:?}",
                left.map(|left| left.metadata.finalizers)
            );
            Ok(())
        })
        .await?;
        operator.kill().await;
        cluster.done().await
    })
    .await?;
    home.done().await
}
