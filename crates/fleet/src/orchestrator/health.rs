//! Looking at clusters. Who looks at which is shared out by the database: a claimed cluster is passed over by other
//! replicas, and comes back by itself when its holder dies.

use std::time::{Duration, Instant};

use gantry_fleet_domain::cluster::{Health, verdict};
use jiff::SignedDuration;
use serde_json::json;
use uuid::Uuid;

use super::{Fleet, Record, SYSTEM, Work, clusters, reach};
use crate::{
    Error,
    infrastructure::{
        kubernetes::{self, Look, Unreachable},
        store::{
            Terms, accesses,
            clusters::{self as store, Claim, ClusterRow, Seen},
        },
    },
};

/// Longer than a look can take that has to connect and to make the reader first; a holder that needs more has died.
const LEASE: SignedDuration = SignedDuration::from_secs(60);
/// For the look itself: what it found has to be written within the lease. Each part of it has a shorter deadline of its own.
const PATIENCE: Duration = Duration::from_secs(50);

/// Takes clusters whose time has come; other replicas look past them.
pub async fn claim(fleet: &Fleet, most: usize) -> Result<Vec<(Claim, ClusterRow)>, Error> {
    let most = i64::try_from(most).unwrap_or(1);
    let terms = Terms {
        lease: LEASE,
        farthest: fleet.health_interval + LEASE + LEASE,
    };
    Ok(store::claim(&fleet.pool, fleet.holder, terms, most).await?)
}

/// Looks at one that was taken. Whoever needs longer than the lease has lost it, and gives the turn to others.
#[tracing::instrument(name = "cluster.connect", skip_all, fields(cluster = row.name))]
pub async fn visit(fleet: &Fleet, claim: Claim, row: &ClusterRow) -> Result<(), Error> {
    let visited = tokio::time::timeout(LEASE.unsigned_abs(), look_at(fleet, claim, row)).await;
    visited.unwrap_or_else(|_| {
        Err(Error::Unavailable {
            code: "TIMEOUT",
            message: format!("it took longer than {} s", LEASE.as_secs()),
        })
    })
}

async fn look_at(fleet: &Fleet, claim: Claim, row: &ClusterRow) -> Result<(), Error> {
    let begin = Instant::now();
    let until = tokio::time::Instant::from_std(begin + PATIENCE);
    let late = |_| Unreachable::timeout(PATIENCE);
    let access = tokio::time::timeout_at(until, reach::reader(fleet, row.id, reach::HEALTH, None)).await;
    let access = access.map_err(late).flatten();
    let found = match &access {
        Ok(access) => {
            let known = store::seen_crds(&fleet.pool, row.id).await?;
            let look = kubernetes::look(&access.client, &known, kubernetes::DEFINITIONS);
            tokio::time::timeout_at(until, look).await.map_err(late).flatten()
        }
        Err(why) => Err(why.clone()),
    };
    if let Err(why) = &found
        && why.is_ours()
    {
        // It is looked at again when the lease ends.
        tracing::warn!(cluster = row.name, "{}", why.message);
        if let Ok(access) = &access {
            super::accesses::failed(fleet, &access.counted).await;
        }
        return Ok(());
    }
    match &found {
        Ok(_) => fleet.connections.worked(row.id),
        Err(why) => fleet.connections.failed(row.id, why),
    }
    let verdict = verdict(&Look::sight(&found));
    fleet.metrics.looked(verdict.health.name(), begin.elapsed());
    let look = found.as_ref().ok();
    let seen = Seen {
        kubernetes_version: look.map(|look| look.version.clone()),
        nodes: look.map(|look| (look.ready as i32, look.not_ready as i32)),
        latency_ms: look.and_then(|look| i32::try_from(look.latency.as_millis()).ok()),
        health: verdict.health.name(),
        reason: verdict.reason,
        message: verdict.message,
    };
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    let after = spread(fleet.health_interval, row.id);
    if !store::seen(work.db(), row.id, claim, &seen, after).await? {
        // Another look has it by now, perhaps with other credentials: that one counts.
        return Ok(());
    }
    if let Some(Ok(crds)) = look.map(|look| &look.crds) {
        store::set_crds(work.db(), row.id, crds).await?;
    }
    if let (Ok(access), Err(_)) = (&access, &found) {
        accesses::failed(work.db(), &access.counted).await?;
    }
    let changed = row.health != seen.health || row.health_reason != seen.reason;
    if changed {
        tracing::info!(
            cluster = row.name,
            health = seen.health,
            reason = seen.reason,
            "the health of a cluster changed"
        );
        work.record(Record {
            action: "cluster.health-changed",
            outcome: if verdict.health == Health::Unhealthy {
                "Failed"
            } else {
                "Succeeded"
            },
            target_kind: clusters::KIND,
            target_id: &row.id.to_string(),
            details: json!({"from": row.health, "to": seen.health, "reason": seen.reason}),
        })
        .await?;
    }
    work.commit().await
}

/// Up to a tenth earlier, by the id: clusters that were registered together are not looked at together for ever.
fn spread(interval: SignedDuration, id: Uuid) -> SignedDuration {
    let part = i32::from(id.as_bytes()[0]);
    interval - interval / 2560 * part
}
