//! News that comes late, not at all, or as its outcome only.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, Running, eventually, fixtures, snapshot};
use gantry_kit::{
    store::version,
    testing::{Fault, Faults, Rule},
};
use http::Method;
use kube::ResourceExt;
use serde_json::json;

use super::{all_struck, assert_same, is_soak, settled, settles_as, undisturbed};

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_break_or_expire_miss_nothing() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.other).await?;
        // The long version (`make soak`) loses every event that there is, one after the other.
        let events: &[usize] = if is_soak() {
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
        } else {
            &[0, 1]
        };
        let cuts = events
            .iter()
            .flat_map(|&after| [Fault::CutWatch(after), Fault::ExpireWatch(after)]);
        for fault in cuts {
            let cluster = home.in_new_namespace().await?;
            let faults = Faults::default();
            // Every kind of watch, several times over.
            faults.inject(Rule::new(fault.clone()).on(Method::GET, "watch=true").times(16));
            let operator = Running::start(&cluster, &faults).await?;
            cluster.apply(&fixture.resource, &fixture.base).await?;
            tokio::time::sleep(Duration::from_millis(400)).await;
            cluster.apply(&fixture.resource, &fixture.other).await?;
            let found = settled(&cluster, fixture).await?;
            assert_same(&found, &expected, &format!("with {fault:?}"));
            all_struck(&faults).await.with_context(|| format!("{fault:?}"))?;
            operator.kill().await;
            cluster.done().await?;
        }
        Ok(())
    })
    .await?;
    home.done().await
}

/// Connections that stay open and say nothing any more, the first ones and those that follow: nobody ends them but we. Some
/// never begin to answer.
#[tokio::test(flavor = "multi_thread")]
async fn watches_that_fall_silent_for_ever_miss_nothing() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.other).await?;
        for fault in [Fault::Hang, Fault::MuteWatch] {
            let cluster = home.in_new_namespace().await?;
            let faults = Faults::default().with_silence(Duration::from_secs(2));
            faults.inject(Rule::new(fault.clone()).on(Method::GET, "watch=true").times(64));
            let operator = Running::start(&cluster, &faults).await?;
            cluster.apply(&fixture.resource, &fixture.base).await?;
            eventually(async || {
                ensure!(!faults.struck().is_empty(), "nothing is watched yet");
                Ok(())
            })
            .await?;
            cluster.apply(&fixture.resource, &fixture.other).await?;
            let found = settled(&cluster, fixture).await?;
            assert_same(&found, &expected, &format!("with {fault:?}"));
            all_struck(&faults).await.with_context(|| format!("{fault:?}"))?;
            let told = operator.metrics.render();
            ensure!(
                told.contains("reason=\"Unreachable\""),
                "silence is not told: {told}"
            );
            operator.kill().await;
            cluster.done().await?;
        }
        Ok(())
    })
    .await?;
    home.done().await
}

/// What nobody saw, and what was taken back before anybody saw it, counts by its outcome.
#[tokio::test(flavor = "multi_thread")]
async fn what_happens_unseen_is_made_good() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (changed, _) = undisturbed(&home, fixture, &fixture.other).await?;
        let cluster = home.in_new_namespace().await?;
        let faults = Faults::default();
        let operator = Running::start(&cluster, &faults).await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        let first = settled(&cluster, fixture).await?;
        let before = children_by_uid(&cluster).await?;

        // The answer to a status that is still to be written would show the next spec.
        let writes = eventually(async || {
            let writes = faults.writes();
            // Longer than a server may take to be asked for its tools.
            tokio::time::sleep(Duration::from_secs(12)).await;
            ensure!(faults.writes() == writes, "it still writes");
            Ok(writes)
        })
        .await?;
        faults.be_blind(true);
        cluster.apply(&fixture.resource, &fixture.other).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        assert_eq!(faults.writes(), writes, "it was seen");
        faults.be_blind(false);
        settles_as(&cluster, fixture, &first, "changed and changed back").await?;
        assert_eq!(children_by_uid(&cluster).await?, before, "nothing is made anew");

        faults.be_blind(true);
        let deployment = cluster
            .api(&snapshot::child_kinds()[0])
            .get(fixture.deployment)
            .await?;
        cluster
            .delete(&snapshot::child_kinds()[0], fixture.deployment)
            .await?;
        faults.be_blind(false);
        eventually(async || {
            let anew = cluster
                .api(&snapshot::child_kinds()[0])
                .get(fixture.deployment)
                .await?;
            ensure!(anew.uid() != deployment.uid(), "the Deployment is not made anew");
            Ok(())
        })
        .await
        .context("deleted unseen")?;

        faults.be_blind(true);
        cluster.apply(&fixture.resource, &fixture.other).await?;
        faults.be_blind(false);
        settles_as(&cluster, fixture, &changed, "changed unseen").await?;
        operator.kill().await;
        cluster.done().await
    })
    .await?;
    home.done().await
}

/// The Deployments and Services, and which ones they are.
async fn children_by_uid(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, Option<String>>> {
    let mut all = BTreeMap::new();
    for kind in &snapshot::child_kinds()[..2] {
        for child in cluster.list(kind).await? {
            all.insert(format!("{} {}", kind.kind, child.name_any()), child.uid());
        }
    }
    Ok(all)
}

const LAG: Duration = Duration::from_millis(1500);

/// All that is learnt comes this late, our own writes not.
fn lagging() -> Faults {
    let faults = Faults::default();
    let watches = Rule::new(Fault::LateWatch(LAG)).on(Method::GET, "watch=true");
    faults.inject(watches.times(1000));
    faults
}

/// What others did is then often older than what we know already, and must be looked at all the same.
#[tokio::test(flavor = "multi_thread")]
async fn watches_that_lag_miss_nothing() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.other).await?;
        let cluster = home.in_new_namespace().await?;
        let faults = lagging();
        let operator = Running::start(&cluster, &faults).await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        // Before the first visit, whose status is then written on top of this.
        tokio::time::sleep(LAG * 2 / 3).await;
        cluster.apply(&fixture.resource, &fixture.other).await?;
        let found = settled(&cluster, fixture).await?;
        assert_same(&found, &expected, "in the end");
        assert!(!faults.struck().is_empty(), "no watch lagged");
        operator.kill().await;
        cluster.done().await
    })
    .await?;
    home.done().await
}

/// The first spec has no children whose news would wake the object again.
#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_changes_before_the_status_of_the_last_one_is_written_is_looked_at() -> anyhow::Result<()>
{
    let cluster = Cluster::simulated().await?;
    let faults = lagging();
    let operator = Running::start(&cluster, &faults).await?;
    let resource = fixtures::mcpserver_resource();
    let fixtures = fixtures::all();
    let fixture = fixtures
        .iter()
        .find(|fixture| fixture.resource == resource)
        .context("MCPServer")?;
    let mut blocked = fixture.base.clone();
    blocked["spec"]["runtime"] = json!("absent");
    cluster.apply(&resource, &blocked).await?;
    tokio::time::sleep(LAG * 2 / 3).await;
    cluster.apply(&resource, &fixture.base).await?;
    settled(&cluster, fixture).await?;
    assert!(!faults.struck().is_empty(), "no watch lagged");
    operator.kill().await;
    cluster.done().await
}

/// The pods of a store are up and quiet before its Service is there, which Models ask through.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_comes_after_its_pods_is_looked_at() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let faults = lagging();
    let services = Rule::new(Fault::Answer(500)).on(Method::PATCH, "/services/");
    faults.inject(services.times(1000));
    let operator = Running::start(&cluster, &faults).await?;
    let resource = fixtures::model_resource();
    let fixtures = fixtures::all();
    let fixture = fixtures
        .iter()
        .find(|fixture| fixture.resource == resource)
        .context("Model")?;
    cluster.apply(&resource, &fixture.base).await?;
    let kinds = snapshot::child_kinds();
    let kind = |name: &str| kinds.iter().find(|kind| kind.kind == name).context("kind");
    let (sets, services) = (kind("StatefulSet")?, kind("Service")?);
    eventually(async || {
        let stores = cluster.list(sets).await?;
        let ready = stores
            .iter()
            .any(|store| store.data["status"]["readyReplicas"] == 1);
        ensure!(ready, "no store is up");
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(cluster.list(services).await?.is_empty(), "there is a Service");
    // The watches that are open stay slow: our own write is known before they tell of it.
    faults.reset();
    let mut touched = fixture.base.clone();
    touched["metadata"]["labels"] = json!({"try": "again"});
    cluster.apply(&resource, &touched).await?;
    settled(&cluster, fixture).await?;
    operator.kill().await;
    cluster.done().await
}

/// A watch expires with the very event that a child was deleted by: only the fresh list tells, by what it lacks. The child
/// is the one that was changed last, so that nothing in the list is newer.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_was_deleted_while_nobody_watched_comes_back() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let cluster = home.in_new_namespace().await?;
        let first = Running::start(&cluster, &Faults::default()).await?;
        cluster.apply(&fixture.resource, &fixture.base).await?;
        let expected = settled(&cluster, fixture).await?;
        first.kill().await;
        let faults = Faults::default();
        let watches = Rule::new(Fault::ExpireWatch(0)).on(Method::GET, "/deployments?&watch=true");
        faults.inject(watches.times(1000));
        let second = Running::start(&cluster, &faults).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let kind = &snapshot::child_kinds()[0];
        let children = cluster.list(kind).await?;
        let newest = children
            .iter()
            .max_by_key(|child| version(&child.metadata))
            .context("a Deployment")?;
        let name = newest.metadata.name.clone().context("name")?;
        cluster.delete(kind, &name).await?;
        eventually(async || {
            let found = cluster.api(kind).get(&name).await?;
            ensure!(
                found.metadata.uid != newest.metadata.uid,
                "the old one is still there"
            );
            Ok(())
        })
        .await
        .with_context(|| format!("Deployment {name} was deleted"))?;
        let told = second.metrics.render();
        assert!(told.contains("reason=\"Expired\""), "no watch expired: {told}");
        assert_same(&settled(&cluster, fixture).await?, &expected, "in the end");
        second.kill().await;
        cluster.done().await
    })
    .await?;
    home.done().await
}
