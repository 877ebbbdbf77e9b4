//! An operator that dies at any step.

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, Running, eventually, fixtures, fixtures::Fixture, snapshot, snapshot::Snapshot};
use gantry_kit::testing::Faults;

use super::{assert_same, is_soak, settled, settles_as, undisturbed};

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
