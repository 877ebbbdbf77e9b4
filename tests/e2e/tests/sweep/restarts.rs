//! What an operator is shown, and writes, when it comes again.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, Running, eventually, fixtures, fixtures::Fixture, snapshot};
use gantry_kit::testing::{Fault, Faults, Rule};
use http::Method;

use super::{all_struck, assert_same, settled};

#[tokio::test(flavor = "multi_thread")]
async fn stale_lists_at_a_restart_harm_nothing() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let cluster = home.in_new_namespace().await?;
        let faults = Faults::default();
        // What the second operator will be shown: the world before anything was made.
        faults.remember();
        let first = Running::start(&cluster, &faults).await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        let expected = settled(&cluster, fixture).await?;
        first.kill().await;
        for path in [
            "/deployments?",
            "/services?",
            "/horizontalpodautoscalers?",
            "/persistentvolumeclaims?",
            "/poddisruptionbudgets?",
            "/pods?",
        ] {
            faults.inject(Rule::new(Fault::Stale).on(Method::GET, path));
        }
        let uid = deployment_uid(&cluster, fixture).await?;
        let second = Running::start(&cluster, &faults).await?;
        all_struck(&faults).await.context("the old view was not shown")?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_same(&settled(&cluster, fixture).await?, &expected, "in the end");
        assert_eq!(
            deployment_uid(&cluster, fixture).await?,
            uid,
            "the same Deployment as before"
        );
        second.kill().await;
        cluster.done().await?;
        Ok(())
    })
    .await?;
    home.done().await
}

/// Deleted and made again under the same name while nobody looked: the old one's view must not touch the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_namesake_is_not_mistaken_for_its_predecessor() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let cluster = home.in_new_namespace().await?;
        let faults = Faults::default();
        let first = Running::start(&cluster, &faults).await?;
        let old = cluster.apply(&fixture.resource, &fixture.base).await?;
        let expected = settled(&cluster, fixture).await?;
        faults.remember();
        first.kill().await;
        // A short-lived operator fills the memory with lists that show the old object.
        let looker = Running::start(&cluster, &faults).await?;
        let path = format!("/{}", fixture.resource.plural);
        eventually(async || {
            ensure!(faults.remembers(&path), "it has not listed yet");
            Ok(())
        })
        .await?;
        looker.kill().await;
        cluster.delete(&fixture.resource, fixture.name).await?;
        cluster.release(&fixture.resource, fixture.name).await?;
        let new = eventually(async || {
            let new = cluster.apply(&fixture.resource, &fixture.base).await?;
            ensure!(new.metadata.uid != old.metadata.uid, "the old one is still there");
            Ok(new)
        })
        .await?;
        faults.inject(Rule::new(Fault::Stale).on(Method::GET, &format!("{path}?")));
        let second = Running::start(&cluster, &faults).await?;
        all_struck(&faults).await.context("the old one was not shown")?;
        assert_same(&settled(&cluster, fixture).await?, &expected, "in the end");
        let children = cluster.list(&snapshot::child_kinds()[0]).await?;
        for child in children {
            let owner = &child.metadata.owner_references.context("owned")?[0];
            assert_eq!(Some(&owner.uid), new.metadata.uid.as_ref());
        }
        second.kill().await;
        cluster.done().await?;
        Ok(())
    })
    .await?;
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_at_rest_nor_by_a_restart() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        for object in [&fixture.base, &fixture.other] {
            let cluster = home.in_new_namespace().await?;
            let operator = Running::start(&cluster, &Faults::default()).await?;
            cluster.apply(&fixture.resource, object).await?;
            settled(&cluster, fixture).await?;
            // Tools are asked for, pods settle, an autoscaler looks: let that come to rest.
            tokio::time::sleep(Duration::from_secs(12)).await;
            let before = operator.faults.writes();
            let status = fixtures::get(&cluster, fixture).await?.data["status"].clone();
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(
                fixtures::get(&cluster, fixture).await?.data["status"],
                status,
                "at rest"
            );
            assert_eq!(operator.faults.writes()[before.len()..], [], "at rest");
            operator.kill().await;
            for _ in 0..2 {
                let again = Running::start(&cluster, &Faults::default()).await?;
                tokio::time::sleep(Duration::from_secs(4)).await;
                let writes = again.faults.writes();
                assert_eq!(writes, [], "after a restart");
                again.kill().await;
            }
            cluster.done().await?;
        }
        Ok(())
    })
    .await?;
    home.done().await
}

async fn deployment_uid(cluster: &Cluster, fixture: &Fixture) -> anyhow::Result<Option<String>> {
    let deployments = cluster.api(&snapshot::child_kinds()[0]);
    Ok(deployments.get(fixture.deployment).await?.metadata.uid)
}
