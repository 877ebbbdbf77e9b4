//! Two replicas: one acts, and never both.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually_for, fixtures, operator,
    process::{Process, Watcher},
    snapshot,
};
use gantry_kit::testing::{Fault, Faults, Rule};
use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::DeleteParams};

const LEASE: Duration = Duration::from_secs(4);
/// A candidate looks every tenth of a lease, and waits for nine tenths from when it saw the last renewal; the rest is for
/// requests.
const TAKEOVER: Duration = Duration::from_millis(4000 + 1000);

async fn replica(cluster: &Cluster, name: &str) -> anyhow::Result<Running> {
    let options = operator::with_lease(&cluster.namespace, name, LEASE);
    Running::start_with(cluster, &Faults::default(), options, operator::settings()).await
}

/// Applies one object of every kind, as it is or as it is changed, and waits until it has been looked at.
async fn apply_all(cluster: &Cluster, changed: bool) -> anyhow::Result<()> {
    for fixture in fixtures::all() {
        let object = if changed { &fixture.other } else { &fixture.base };
        cluster.apply(&fixture.resource, object).await?;
        eventually_for(Duration::from_secs(60), async || {
            let found = fixtures::get(cluster, &fixture).await?;
            let looked_at = found.data["status"]["observedGeneration"].as_i64();
            ensure!(looked_at.is_some(), "{}: never looked at", fixture.resource.kind);
            ensure!(
                looked_at == found.metadata.generation,
                "{}: its change was not looked at",
                fixture.resource.kind
            );
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn is_leading(replica: &Running) -> bool {
    replica
        .metrics
        .render()
        .lines()
        .any(|line| line == "gantry_leader 1")
}

async fn leads(replica: &Running) -> anyhow::Result<()> {
    eventually_for(Duration::from_secs(20), async || {
        ensure!(is_leading(replica), "does not lead");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_acts_and_a_killed_one_is_replaced() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let first = replica(&cluster, "first").await?;
    leads(&first).await?;
    let second = replica(&cluster, "second").await?;
    apply_all(&cluster, false).await?;
    assert!(!first.faults.writes().is_empty());
    assert_eq!(second.faults.writes(), [], "the standby writes nothing");
    let told = second.metrics.render();
    let mut queues = told
        .lines()
        .filter(|line| line.starts_with("gantry_queue_depth{"));
    assert!(
        queues.all(|line| line.ends_with(" 0")),
        "the standby queues nothing: {told}"
    );
    let killed = Instant::now();
    first.kill().await;
    // What changes while nobody leads is looked at by the next one, which did not queue it.
    for fixture in fixtures::all() {
        cluster.apply(&fixture.resource, &fixture.other).await?;
    }
    leads(&second).await?;
    let took = killed.elapsed();
    assert!(took < TAKEOVER, "took over after {took:?}");
    apply_all(&cluster, true).await?;
    // Stopped in order, it gives the lease back at once.
    let third = replica(&cluster, "third").await?;
    let stopped = Instant::now();
    second.stop().await;
    leads(&third).await?;
    assert!(
        stopped.elapsed() < LEASE,
        "a released lease need not run out: {:?}",
        stopped.elapsed()
    );
    third.stop().await;
    cluster.done().await
}

/// Only the lease cannot be renewed: everything else would get through, a write that is under way included.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_when_the_lease_runs_out_is_not_written() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let first = replica(&cluster, "first").await?;
    leads(&first).await?;
    let mut unrenewed = Rule::new(Fault::Drop).times(usize::MAX);
    "/leases".clone_into(&mut unrenewed.path);
    let late = Rule::new(Fault::Delay(LEASE * 2)).on(Method::PATCH, "/deployments/");
    first.faults.inject(unrenewed);
    first.faults.inject(late);
    let fixtures = fixtures::all();
    let fixture = fixtures
        .iter()
        .find(|fixture| fixture.resource.kind == "MCPServer")
        .context("MCPServer")?;
    cluster.apply(&fixture.resource, &fixture.base).await?;
    eventually_for(LEASE, async || {
        ensure!(first.faults.unspent() == 1, "nothing is under way");
        ensure!(is_leading(&first), "the lease ran out before");
        Ok(())
    })
    .await?;
    eventually_for(LEASE * 2, async || {
        ensure!(!is_leading(&first), "still leads");
        Ok(())
    })
    .await?;
    let written = first.faults.writes();
    let deployments = cluster.api(&snapshot::child_kinds()[0]);
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(first.faults.writes(), written, "written without the lease");
    assert!(deployments.get_opt(fixture.deployment).await?.is_none());
    // It takes the lease again as soon as it can, and goes on.
    first.faults.reset();
    eventually_for(Duration::from_secs(60), async || {
        ensure!(
            deployments.get_opt(fixture.deployment).await?.is_some(),
            "never written"
        );
        Ok(())
    })
    .await?;
    first.stop().await;
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_cut_off_stops_before_another_starts() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let first = replica(&cluster, "first").await?;
    leads(&first).await?;
    let second = replica(&cluster, "second").await?;
    apply_all(&cluster, false).await?;
    // From here on nothing of the first gets out, and nobody tells it.
    first.faults.die_after(0);
    let mut overlap = false;
    let until = Instant::now() + LEASE * 3;
    let mut taken_over = None;
    let cut = Instant::now();
    while Instant::now() < until {
        let both = is_leading(&first) && is_leading(&second);
        overlap |= both;
        if taken_over.is_none() && is_leading(&second) {
            taken_over = Some(cut.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!overlap, "both believed to lead");
    let taken_over = taken_over.expect("the second never took over");
    assert!(taken_over < TAKEOVER, "took over after {taken_over:?}");
    apply_all(&cluster, true).await?;
    first.kill().await;
    second.stop().await;
    cluster.done().await
}

/// Somebody deletes the lease. Its holder makes it again, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_deleted_makes_no_second_leader() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let first = replica(&cluster, "first").await?;
    leads(&first).await?;
    let second = replica(&cluster, "second").await?;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    // The standby must have seen the holder: it looks every tenth of a lease.
    tokio::time::sleep(LEASE / 2).await;
    for _ in 0..3 {
        let before = leases.get("gantry-operator").await?;
        leases.delete("gantry-operator", &DeleteParams::default()).await?;
        let mut both = false;
        eventually_for(LEASE, async || {
            both |= is_leading(&second);
            let made = leases.get("gantry-operator").await?;
            ensure!(made.metadata.uid != before.metadata.uid, "still the old one");
            let holder = made.spec.and_then(|spec| spec.holder_identity);
            ensure!(holder.as_deref() == Some("first"), "{holder:?} holds it");
            Ok(())
        })
        .await?;
        assert!(is_leading(&first) && !both, "the standby leads as well");
    }
    // Deleted when its holder is dead, it is made after the time that a dead one is waited for anyway.
    first.kill().await;
    leases.delete("gantry-operator", &DeleteParams::default()).await?;
    let deleted = Instant::now();
    leads(&second).await?;
    let took = deleted.elapsed();
    assert!(took < TAKEOVER, "took over after {took:?}");
    second.stop().await;
    cluster.done().await
}

/// What the program does by itself, as a Deployment runs it: the lease as long as it is by default, two namespaces of three.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_one_leads_and_a_killed_one_is_replaced() -> anyhow::Result<()> {
    const DEFAULT_LEASE: Duration = Duration::from_secs(15);
    let own = Cluster::simulated().await?;
    let (other, foreign) = (own.in_new_namespace().await?, own.in_new_namespace().await?);
    let start = async |name: &str| {
        let arguments = [
            ["--watch-namespace", &own.namespace],
            ["--watch-namespace", &other.namespace],
            ["--namespace", &own.namespace],
            ["--identity", name],
            ["--reach", "direct"],
        ];
        let arguments = [&["--leader-elect"], arguments.as_flattened()].concat();
        let process = Process::start(&own, name, &arguments).await?;
        let watcher = process.watcher();
        eventually_for(Duration::from_secs(60), async || watcher.is_ready().await).await?;
        anyhow::Ok(process)
    };
    let first = start("first").await?;
    let second = start("second").await?;
    let leaders = (first.watcher(), second.watcher());
    eventually_for(Duration::from_secs(60), async || {
        ensure!(leaders.0.leads().await?, "does not lead");
        Ok(())
    })
    .await?;
    let overlap_before = tokio::spawn(overlap(leaders.0, leaders.1.clone()));
    let fixtures = fixtures::all();
    let fixture = fixtures
        .iter()
        .find(|fixture| fixture.resource.kind == "MCPServer")
        .context("MCPServer")?;
    for cluster in [&foreign, &own, &other] {
        cluster.apply(&fixture.resource, &fixture.base).await?;
    }
    for cluster in [&own, &other] {
        fixtures::wait_ready(cluster, &fixture.resource, fixture.name, "True", None).await?;
    }
    assert!(!leaders.1.leads().await?, "the standby leads as well");

    first.kill().await?;
    let killed = Instant::now();
    eventually_for(Duration::from_secs(60), async || {
        ensure!(leaders.1.leads().await?, "does not lead");
        Ok(())
    })
    .await?;
    let took = killed.elapsed();
    // The rest is for requests, and to look.
    assert!(
        took < DEFAULT_LEASE + Duration::from_secs(2),
        "took over after {took:?}"
    );
    for cluster in [&own, &other] {
        cluster.apply(&fixture.resource, &fixture.other).await?;
        fixtures::wait_ready(cluster, &fixture.resource, fixture.name, "True", None).await?;
    }
    // Who comes back later finds the lease taken.
    let third = start("third").await?;
    let leaders = (leaders.1, third.watcher());
    let overlap_again = tokio::spawn(overlap(leaders.0.clone(), leaders.1.clone()));
    tokio::time::sleep(DEFAULT_LEASE).await;
    assert!(
        leaders.0.leads().await? && !leaders.1.leads().await?,
        "it lost the lease"
    );
    // In the namespace that was not named, nothing happened all the while.
    let left_alone = fixtures::get(&foreign, fixture).await?;
    assert!(left_alone.data["status"].is_null(), "{}", left_alone.data);
    assert!(snapshot::children(&foreign).await?.is_empty(), "it has children");
    for overlap in [overlap_before, overlap_again] {
        assert!(!overlap.is_finished(), "both led");
        overlap.abort();
    }
    for cluster in [foreign, other, own] {
        cluster.done().await?;
    }
    Ok(())
}

/// Ends when both lead at once: one says so before and after the other does.
async fn overlap(first: Watcher, second: Watcher) {
    let leads = async |watcher: &Watcher| watcher.leads().await.unwrap_or(false);
    while !(leads(&first).await && leads(&second).await && leads(&first).await) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
