//! Whatever happens to the operator or its requests, a change is made once, and undone at most once.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, Running, eventually_for};
use gantry_kit::testing::{Fault, Faults, Rule};
use http::Method;
use serde_json::json;

use super::{PATIENCE, World, changes};

/// Each of these stands in the ledger once.
fn once(steps: &[String], when: &str) {
    for step in [
        "Requested",
        "Validated",
        "Applied",
        "Observing",
        "Decided",
        "Ended",
    ] {
        let count = steps.iter().filter(|found| *found == step).count();
        assert_eq!(count, 1, "{step} {when}: {steps:?}");
    }
}

/// The operator dies after its first write, `step` writes later, and so on; another takes over. The end is the same, with
/// one change and at most one way back.
async fn dying(effect: &'static str, end: &'static str, edits: i64, step: usize) -> anyhow::Result<()> {
    const AT_ONCE: usize = 8;
    let home = Cluster::simulated().await?;
    let mut survived = false;
    for first in (1..).step_by(AT_ONCE * step) {
        if survived {
            break;
        }
        let runs = (0..AT_ONCE).map(|run| first + run * step).map(|writes| {
            let home = &home;
            async move {
                // One reading: many of these at once are slow, and how many are needed is another test's business.
                let policy = json!({"verdict": {"minSamples": 1}});
                let world = World::new(home, effect, json!({}), policy).await?;
                let faults = Faults::default();
                let operator = Running::start(&world.cluster, &faults).await?;
                world.one_more_guard("more").await?;
                faults.die_after(writes);
                let api = world.cluster.api(&changes());
                // Dead, or done before it could die.
                let died = eventually_for(PATIENCE, async || {
                    let change = api.get("more").await?;
                    let ended = change.data["status"]["endedAt"].is_string();
                    ensure!(faults.is_dead() || ended, "neither dead nor done");
                    Ok(faults.is_dead())
                })
                .await?;
                operator.kill().await;
                let _next = Running::start(&world.cluster, &Faults::default()).await?;
                let change = world
                    .until("more", end)
                    .await
                    .with_context(|| format!("after {writes} writes"))?;
                assert_eq!(world.edits().await?, edits, "after {writes} writes");
                let spec = world.live().await?.data["spec"].clone();
                if end == "RolledBack" {
                    assert_eq!(spec, world.before.data["spec"], "after {writes} writes");
                } else {
                    assert_eq!(spec["replicas"]["sigmaGuard"], 3, "after {writes} writes");
                }
                assert!(change.data["status"]["gain"].is_number(), "after {writes} writes");
                once(&world.steps().await?, &format!("after {writes} writes"));
                world.cluster.done().await?;
                anyhow::Ok(died)
            }
        });
        let died = futures::future::try_join_all(runs).await?;
        survived = died.iter().any(|died| !died);
    }
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_the_operator_dies_good_is_kept() -> anyhow::Result<()> {
    // The way to the end is the other test's, write by write; each phase has several.
    dying("improves", "Kept", 1, 3).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_the_operator_dies_harm_is_rolled_back_once() -> anyhow::Result<()> {
    dying("worsens", "RolledBack", 2, 1).await
}

/// It dies on the way to the approval, and again while it is waited for; the approval comes when nobody is there to see it.
#[tokio::test(flavor = "multi_thread")]
async fn whenever_the_operator_dies_an_approval_counts() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let runs = (1..=6).map(|writes| {
        let home = &home;
        async move {
            let policy = json!({"requireApproval": true, "verdict": {"minSamples": 1}});
            let world = World::new(home, "improves", json!({}), policy).await?;
            let faults = Faults::default();
            let first = Running::start(&world.cluster, &faults).await?;
            world.one_more_guard("more").await?;
            faults.die_after(writes);
            let api = world.cluster.api(&changes());
            eventually_for(PATIENCE, async || {
                let waits = api.get("more").await?.data["status"]["phase"] == "AwaitingApproval";
                ensure!(faults.is_dead() || waits, "neither dead nor waiting");
                Ok(())
            })
            .await?;
            first.kill().await;
            let second = Running::start(&world.cluster, &Faults::default()).await?;
            world.until("more", "AwaitingApproval").await?;
            second.kill().await;
            let (good, said) = world.command("approve more --by alice").await?;
            ensure!(good, "{said}");
            let _third = Running::start(&world.cluster, &Faults::default()).await?;
            world
                .until("more", "Kept")
                .await
                .with_context(|| format!("after {writes} writes"))?;
            assert_eq!(world.edits().await?, 1, "after {writes} writes");
            once(&world.steps().await?, &format!("after {writes} writes"));
            world.cluster.done().await
        }
    });
    futures::future::try_join_all(runs).await?;
    home.done().await
}

/// Every kind of request that a change is made of goes wrong once. A lost reply is the worst: it was done, and nobody
/// knows.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_go_wrong_change_nothing_about_the_end() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let runs = [
        Fault::Answer(409),
        Fault::Answer(429),
        Fault::Answer(500),
        Fault::Drop,
        Fault::LoseReply,
        Fault::Delay(Duration::from_millis(700)),
        Fault::CutWatch(1),
        Fault::ExpireWatch(0),
    ]
    .map(async |fault| {
        let world = World::new(&home, "worsens", json!({}), json!({})).await?;
        let faults = Faults::default();
        let watches = matches!(fault, Fault::CutWatch(_) | Fault::ExpireWatch(_));
        if watches {
            faults.inject(Rule::new(fault.clone()).on(Method::GET, "watch=true").times(16));
        } else {
            strike_everywhere(&faults, &fault);
        }
        let _operator = Running::start(&world.cluster, &faults).await?;
        world.one_more_guard("more").await?;
        world
            .until("more", "RolledBack")
            .await
            .with_context(|| format!("with {fault:?}"))?;
        assert!(
            watches || faults.unspent() == 0,
            "{fault:?} did not strike everywhere"
        );
        assert_eq!(
            world.live().await?.data["spec"],
            world.before.data["spec"],
            "{fault:?}"
        );
        assert_eq!(world.edits().await?, 2, "{fault:?}");
        once(&world.steps().await?, &format!("with {fault:?}"));
        world.cluster.done().await
    });
    futures::future::try_join_all(runs).await?;
    home.done().await
}

/// The first of each kind of request that a change is made of.
fn strike_everywhere(faults: &Faults, fault: &Fault) {
    for (method, path) in [
        (Method::GET, "/peninaomegaclusters/demo"),
        // What the server would store, the change, and the way back.
        (Method::PATCH, "/peninaomegaclusters/demo?&dryRun=All&force=true"),
        (
            Method::PATCH,
            "/peninaomegaclusters/demo?&force=true&fieldManager=gantry-change-",
        ),
        (
            Method::PATCH,
            "/peninaomegaclusters/demo?&fieldManager=gantry-change-",
        ),
        (Method::POST, "/secrets"),
        (Method::GET, "labelSelector=penin.ai%2Fledger"),
        (Method::POST, "/configmaps"),
        (Method::PATCH, "/configmaps/demo-changes-"),
        (Method::PATCH, "/infrastructurechanges/more/status"),
    ] {
        faults.inject(Rule::new(fault.clone()).on(method, path));
    }
}

/// An operator that starts with an old view of the changes does not make them again.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_view_at_a_restart_changes_nothing_about_the_end() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let runs = ["Applied", "Observing", "RolledBack"].map(async |phase| {
        let world = World::new(&home, "worsens", json!({}), json!({})).await?;
        world.one_more_guard("more").await?;
        let faults = Faults::default();
        faults.remember();
        let first = Running::start(&world.cluster, &faults).await?;
        world.at_least("more", phase).await?;
        first.kill().await;
        faults.inject(Rule::new(Fault::Stale).on(Method::GET, "/infrastructurechanges?"));
        faults.inject(Rule::new(Fault::Stale).on(Method::GET, "/peninaomegaclusters?"));
        let _second = Running::start(&world.cluster, &faults).await?;
        eventually_for(PATIENCE, async || {
            ensure!(faults.unspent() == 0, "the old view was not shown yet");
            Ok(())
        })
        .await?;
        world
            .until("more", "RolledBack")
            .await
            .with_context(|| format!("restarted when {phase}"))?;
        assert_eq!(
            world.live().await?.data["spec"],
            world.before.data["spec"],
            "{phase}"
        );
        assert_eq!(world.edits().await?, 2, "{phase}");
        once(&world.steps().await?, phase);
        world.cluster.done().await
    });
    futures::future::try_join_all(runs).await?;
    home.done().await
}
