//! Requests that go wrong.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Context as _;
use gantry_e2e::{Cluster, Running, fixtures, operator};
use gantry_kit::{
    Options,
    testing::{Fault, Faults, Rule, Write},
};
use http::Method;

use super::{all_struck, assert_same, is_soak, settled, settles_as, undisturbed, written};

/// The kinds of children that were written, as parts of paths.
fn kinds_written(writes: &[Write], root: &str) -> Vec<String> {
    let kinds: BTreeSet<&str> = writes
        .iter()
        .filter(|write| write.method == Method::PATCH && !write.path.contains("/status?"))
        .filter_map(|write| write.path.split('?').next()?.split('/').rev().nth(1))
        .filter(|kind| *kind != root)
        .collect();
    kinds.into_iter().map(|kind| format!("/{kind}/")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn api_faults_delay_but_do_not_change_the_outcome() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    fixtures::each(async |fixture| {
        let (expected, writes) = written(&home, fixture, &fixture.other).await?;
        let kinds = kinds_written(&writes, &fixture.resource.plural);
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
        // Two kinds with each fault, in turn, so that it strikes each of them: after a failure more a visit would come
        // minutes later. The long version (`make soak`) lets each fault strike all of them.
        let turns = if is_soak() { kinds.len().div_ceil(2) } else { 1 };
        let schedules = faults_to_try
            .iter()
            .enumerate()
            .flat_map(|(at, fault)| (0..turns).map(move |turn| (fault, (at + turn) * 2)));
        for (fault, first) in schedules {
            let cluster = home.in_new_namespace().await?;
            let faults = Faults::default();
            let struck = [&kinds[first % kinds.len()], &kinds[(first + 1) % kinds.len()]];
            // The first write of a kind goes wrong, reads too, and so does the first status.
            for path in struck {
                faults.inject(Rule::new(fault.clone()).on(Method::PATCH, path));
            }
            faults.inject(Rule::new(fault.clone()).on(Method::PATCH, "/status"));
            faults.inject(Rule::new(fault.clone()).on(Method::GET, "/deployments/"));
            // What never answers is given up after this.
            let options = Options {
                deadline: Duration::from_secs(3),
                ..Options::default()
            };
            let operator = Running::start_with(&cluster, &faults, options, operator::settings()).await?;
            cluster.apply(&fixture.resource, &fixture.other).await?;
            let found = settled(&cluster, fixture).await?;
            let when = format!("with {fault:?} on {struck:?}");
            assert_same(&found, &expected, &when);
            all_struck(&faults).await.context(when)?;
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
