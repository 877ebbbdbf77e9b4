//! Every controller against everything that can go wrong between it and the API server. The oracle is differential:
//! whatever happened on the way, the children must be those of an undisturbed run.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{self, Fixture, wait_ready, wait_ready_for},
    operator,
    snapshot::{self, Snapshot},
};
use gantry_kit::{
    Options,
    store::version,
    testing::{Fault, Faults, Rule},
};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

fn assert_same(found: &Snapshot, expected: &Snapshot, when: &str) {
    let differences = snapshot::differences(found, expected);
    assert!(differences.is_empty(), "{when}: {differences:#?}");
}

async fn settled(cluster: &Cluster, fixture: &Fixture) -> anyhow::Result<Snapshot> {
    wait_ready(cluster, &fixture.resource, fixture.name, "True", None).await?;
    snapshot::children(cluster).await
}

/// The same, once what is no longer wished for is gone: a volume goes when the last pod that uses it has ended.
async fn settles_as(
    cluster: &Cluster,
    fixture: &Fixture,
    expected: &Snapshot,
    when: &str,
) -> anyhow::Result<()> {
    let same = eventually(async || {
        let differences = snapshot::differences(&settled(cluster, fixture).await?, expected);
        ensure!(differences.is_empty(), "{differences:#?}");
        Ok(())
    });
    same.await.with_context(|| when.to_owned())
}

/// Creates `object` in a new namespace with nothing in the way.
async fn undisturbed(home: &Cluster, fixture: &Fixture, object: &Value) -> anyhow::Result<(Snapshot, usize)> {
    let cluster = home.in_new_namespace().await?;
    let faults = Faults::default();
    let operator = Running::start(&cluster, &faults).await?;
    cluster.apply(&fixture.resource, object).await?;
    let snapshot = settled(&cluster, fixture).await?;
    let writes = faults.writes().len();
    operator.kill().await;
    cluster.done().await?;
    ensure!(!snapshot.is_empty(), "an undisturbed run makes no children");
    Ok((snapshot, writes))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_any_write_is_recovered_from() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, writes) = undisturbed(&home, fixture, &fixture.base).await?;
        for after in 1..=writes {
            let cluster = home.in_new_namespace().await?;
            let faults = Faults::default();
            faults.die_after(after);
            let first = Running::start(&cluster, &faults).await?;
            cluster.apply(&fixture.resource, &fixture.base).await?;
            let died = eventually(async || {
                ensure!(faults.is_dead(), "still alive");
                Ok(())
            });
            // Status writes are merged when the cluster is quick, so that the last ones may not come.
            let ready = settled(&cluster, fixture);
            tokio::select! {
                died = died => died?,
                _ = ready => {}
            }
            first.kill().await;
            let second = Running::start(&cluster, &Faults::default()).await?;
            let found = settled(&cluster, fixture).await?;
            assert_same(
                &found,
                &expected,
                &format!("killed after write {after} of {writes}"),
            );
            second.kill().await;
            cluster.done().await?;
        }
        Ok(())
    })
    .await?;
    home.done().await
}

/// The same in the midst of a change that adds, alters and removes children.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_midst_of_a_change_is_recovered_from() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    // The long version (`make soak`) stops after every write, the short one after a few.
    let most = if is_soak() { usize::MAX } else { 5 };
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.base).await?;
        let writes = changed(&home, fixture, None, &expected).await?;
        for after in (1..=writes).step_by(writes.div_ceil(most).max(1)) {
            changed(&home, fixture, Some(after), &expected)
                .await
                .with_context(|| format!("killed after write {after} of {writes} of a change"))?;
        }
        Ok(())
    })
    .await?;
    home.done().await
}

fn is_soak() -> bool {
    std::env::var_os("GANTRY_SOAK").is_some()
}

/// Goes from `other` to `base`, by an operator that dies after so many writes of that and one that comes after it. Returns
/// the writes of the first.
async fn changed(
    home: &Cluster,
    fixture: &Fixture,
    die_after: Option<usize>,
    expected: &Snapshot,
) -> anyhow::Result<usize> {
    let cluster = home.in_new_namespace().await?;
    let faults = Faults::default();
    let first = Running::start(&cluster, &faults).await?;
    cluster.apply(&fixture.resource, &fixture.other).await?;
    settled(&cluster, fixture).await?;
    let before = faults.writes().len();
    if let Some(after) = die_after {
        faults.die_after(after);
    }
    cluster.apply(&fixture.resource, &fixture.base).await?;
    let died = eventually(async || {
        ensure!(faults.is_dead(), "still alive");
        Ok(())
    });
    tokio::select! {
        Ok(()) = died => {}
        settled = settled(&cluster, fixture) => { settled?; }
    }
    let writes = faults.writes().len() - before;
    first.kill().await;
    let second = Running::start(&cluster, &Faults::default()).await?;
    // The first may have told that it is ready and died before it was at rest: that the second is there is what counts.
    settles_as(&cluster, fixture, expected, "in the end").await?;
    second.kill().await;
    cluster.done().await?;
    Ok(writes)
}

#[tokio::test(flavor = "multi_thread")]
async fn api_faults_delay_but_do_not_change_the_outcome() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.base).await?;
        let faults_to_try = [
            Fault::Answer(409),
            Fault::Answer(429),
            Fault::Busy(1),
            Fault::Answer(500),
            Fault::Drop,
            Fault::LoseReply,
            Fault::Delay(Duration::from_millis(700)),
            Fault::Hang,
        ];
        // The long version (`make soak`) lets each fault strike later and later.
        let schedules = faults_to_try
            .iter()
            .flat_map(|fault| (0..if is_soak() { 6 } else { 1 }).map(move |n| (fault, n)));
        for (fault, skip) in schedules {
            let cluster = home.in_new_namespace().await?;
            let faults = Faults::default();
            // The first write of every kind goes wrong, reads too, and so does the first status.
            for path in ["/deployments/", "/services/", "/status"] {
                faults.inject(Rule::new(fault.clone()).on(Method::PATCH, path).skip(skip));
            }
            faults.inject(Rule::new(fault.clone()).on(Method::GET, "/deployments/"));
            // What never answers is given up after this.
            let options = Options {
                deadline: Duration::from_secs(3),
                ..Options::default()
            };
            let operator = Running::start_with(&cluster, &faults, options, operator::settings()).await?;
            cluster.apply(&fixture.resource, &fixture.base).await?;
            let found = settled(&cluster, fixture).await?;
            assert_same(&found, &expected, &format!("with {fault:?} after {skip}"));
            eventually(async || {
                let struck = skip > 0 || faults.unspent() == 0;
                ensure!(struck, "{} faults did not strike", faults.unspent());
                Ok(())
            })
            .await
            .with_context(|| format!("{fault:?}"))?;
            operator.kill().await;
            cluster.done().await?;
        }
        Ok(())
    })
    .await?;
    home.done().await
}

/// The same for what is no longer wished for: one deletion after the other goes wrong, each in its own way.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_to_go_goes_whatever_happens_to_its_deletion() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.base).await?;
        let cluster = home.in_new_namespace().await?;
        let faults = Faults::default();
        let options = Options {
            deadline: Duration::from_secs(3),
            ..Options::default()
        };
        let operator = Running::start_with(&cluster, &faults, options, operator::settings()).await?;
        cluster.apply(&fixture.resource, &fixture.other).await?;
        settled(&cluster, fixture).await?;
        // The last one is carried out, and there may be nothing left to delete then.
        for fault in [
            Fault::Answer(409),
            Fault::Answer(500),
            Fault::Hang,
            Fault::LoseReply,
        ] {
            faults.inject(Rule::new(fault).on(Method::DELETE, ""));
        }
        cluster.apply(&fixture.resource, &fixture.base).await?;
        settles_as(&cluster, fixture, &expected, "in the end").await?;
        assert_eq!(faults.unspent(), 0, "some faults did not strike");
        operator.kill().await;
        cluster.done().await
    })
    .await?;
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_break_or_expire_miss_nothing() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, _) = undisturbed(&home, fixture, &fixture.other).await?;
        for fault in [
            Fault::CutWatch(0),
            Fault::CutWatch(1),
            Fault::ExpireWatch(0),
            Fault::ExpireWatch(2),
        ] {
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

/// A fault that never strikes shows nothing.
async fn all_struck(faults: &Faults) -> anyhow::Result<()> {
    eventually(async || {
        let unspent = faults.unspent();
        ensure!(unspent == 0, "{unspent} faults did not strike");
        Ok(())
    })
    .await
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

/// A server that sheds load says how long it wants to be left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_server_is_left_alone_for_as_long_as_it_asks() -> anyhow::Result<()> {
    // More than would be waited anyhow after a first failure, with its spread.
    const ASKED: u32 = 6;
    let cluster = Cluster::simulated().await?;
    let fixtures = fixtures::all();
    let fixture = fixtures
        .iter()
        .find(|fixture| fixture.resource == fixtures::mcpserver_resource())
        .context("MCPServer")?;
    let faults = Faults::default();
    let operator = Running::start(&cluster, &faults).await?;
    cluster.apply(&fixture.resource, &fixture.base).await?;
    settled(&cluster, fixture).await?;
    // Its pods, and what is asked of them, come to rest: news of them would wake it before its time.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let before = faults.writes().len();
    // The first write of a change, so that no other child wakes it either.
    let path = format!("/deployments/{}?", fixture.deployment);
    // Not once only: news of our own first status may wake it early.
    faults.inject(Rule::new(Fault::Busy(ASKED)).on(Method::PATCH, &path).times(3));
    cluster.apply(&fixture.resource, &fixture.other).await?;
    settled(&cluster, fixture).await?;
    let struck = faults.struck().pop().context("it was never busy")?;
    let writes = faults.writes();
    let again = writes[before..]
        .iter()
        .find(|write| write.method == Method::PATCH && write.path.contains(&path))
        .context("it was not written again")?;
    let waited = again.at.duration_since(struck.at);
    let asked = Duration::from_secs(ASKED.into());
    assert!(waited >= asked, "asked again after {waited:?}");
    let told = operator.metrics.render();
    let counted = "gantry_api_requests_total{method=\"PATCH\",code=\"429\"} 3";
    assert!(told.contains(counted), "it is not counted: {told}");
    operator.kill().await;
    cluster.done().await
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

        let writes = faults.writes();
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

#[tokio::test(flavor = "multi_thread")]
async fn deleting_at_any_step_leaves_nothing() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    // The long version (`make soak`) goes on to the last write.
    let most = if is_soak() { usize::MAX } else { 5 };
    fixtures::each(async |fixture| {
        let (_, writes) = undisturbed(&home, fixture, &fixture.other).await?;
        for after in 1..=writes.min(most) {
            let cluster = home.in_new_namespace().await?;
            let faults = Faults::default();
            faults.die_after(after);
            let first = Running::start(&cluster, &faults).await?;
            cluster.apply(&fixture.resource, &fixture.other).await?;
            let died = eventually(async || {
                ensure!(faults.is_dead(), "still alive");
                Ok(())
            });
            // Status writes are merged when the cluster is quick, so that the last ones may not come.
            tokio::select! {
                died = died => died?,
                ready = settled(&cluster, fixture), if is_soak() => { ready?; }
            }
            cluster.delete(&fixture.resource, fixture.name).await?;
            first.kill().await;
            let second = Running::start(&cluster, &Faults::default()).await?;
            eventually(async || {
                let left = snapshot::children(&cluster).await?;
                ensure!(left.is_empty(), "left: {:?}", left.keys());
                Ok(())
            })
            .await
            .with_context(|| format!("deleted after write {after}"))?;
            second.kill().await;
            cluster.done().await?;
        }
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

async fn deployment_uid(cluster: &Cluster, fixture: &Fixture) -> anyhow::Result<Option<String>> {
    let deployments = cluster.api(&snapshot::child_kinds()[0]);
    Ok(deployments.get(fixture.deployment).await?.metadata.uid)
}
