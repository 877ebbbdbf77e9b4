//! Every controller against everything that can go wrong between it and the API server. The oracle is differential:
//! whatever happened on the way, the children must be those of an undisturbed run.

mod crashes;
mod faults;
mod restarts;
mod specs;
mod watches;

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{Fixture, wait_ready},
    snapshot,
    snapshot::Snapshot,
};
use gantry_kit::testing::{Faults, Write};
use serde_json::Value;

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

/// Creates `object` in a new namespace with nothing in the way. Returns its children, and how many writes that took.
async fn undisturbed(home: &Cluster, fixture: &Fixture, object: &Value) -> anyhow::Result<(Snapshot, usize)> {
    let (snapshot, writes) = written(home, fixture, object).await?;
    Ok((snapshot, writes.len()))
}

/// The same, with the writes.
async fn written(
    home: &Cluster,
    fixture: &Fixture,
    object: &Value,
) -> anyhow::Result<(Snapshot, Vec<Write>)> {
    let cluster = home.in_new_namespace().await?;
    let faults = Faults::default();
    let operator = Running::start(&cluster, &faults).await?;
    cluster.apply(&fixture.resource, object).await?;
    let snapshot = settled(&cluster, fixture).await?;
    let writes = faults.writes();
    operator.kill().await;
    cluster.done().await?;
    ensure!(!snapshot.is_empty(), "an undisturbed run makes no children");
    Ok((snapshot, writes))
}

fn is_soak() -> bool {
    std::env::var_os("GANTRY_SOAK").is_some()
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
