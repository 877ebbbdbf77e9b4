//! What the audit log says of accesses to clusters: an entry before credentials are used, another one if nothing came of it,
//! and one for the looks of an hour.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Ask, Fleet, Record, SYSTEM, Work, clusters::KIND};
use crate::{
    Error,
    infrastructure::{
        kubernetes::Unreachable,
        store::{
            accesses::{self as store, AccessRow, Key},
            time,
        },
    },
};

const ACTION: &str = "cluster.accessed";
const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// Longer than anything that was counted can take to fail.
const AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Rows that become entries in one transaction, which holds the head of the log.
const AT_ONCE: i64 = 100;
/// Under which identity what was uploaded is used.
pub const UPLOADED: &str = "uploaded";

/// A use of credentials that is written down before it takes place. What becomes of it is not known then: one that comes to
/// nothing is written down again, with the same `access` in its details. No other entry follows, so that each costs the log
/// one. What is tried again and again by itself is counted instead: a cluster that is away must not fill a log that keeps
/// every line.
pub enum Attempt<'a> {
    Recorded {
        cluster: Uuid,
        details: Value,
        /// Who asked for it, if it was a person.
        ask: Option<&'a Ask>,
    },
    Counted(Key),
}

impl<'a> Attempt<'a> {
    /// What cannot be written down must not take place.
    pub async fn begin(
        fleet: &Fleet,
        ask: Option<&'a Ask>,
        cluster: Uuid,
        mut details: Value,
    ) -> Result<Self, Error> {
        details["access"] = json!(Uuid::new_v4());
        details["identity"] = json!(UPLOADED);
        record(fleet, ask, cluster, "Begun", details.clone()).await?;
        Ok(Self::Recorded {
            cluster,
            details,
            ask,
        })
    }

    /// One more after others that came to nothing.
    pub async fn again(fleet: &Fleet, cluster: Uuid, purpose: &'static str) -> Result<Self, Error> {
        count(fleet, cluster, UPLOADED, purpose).await.map(Self::Counted)
    }

    /// What it led to. A failure that cannot be written down is told in the log.
    pub async fn ended<T>(self, fleet: &Fleet, led_to: Result<T, Unreachable>) -> Result<T, Unreachable> {
        let Err(why) = &led_to else { return led_to };
        match self {
            Self::Recorded {
                cluster,
                mut details,
                ask,
            } => {
                details["reason"] = json!(why.reason);
                if let Err(error) = record(fleet, ask, cluster, "Failed", details).await {
                    tracing::warn!(
                        cluster = %cluster, reason = why.reason, error = &error as &dyn std::error::Error,
                        "an access to a cluster failed, and the audit log does not say so"
                    );
                }
            }
            Self::Counted(key) => failed(fleet, &key).await,
        }
        led_to
    }
}

async fn record(
    fleet: &Fleet,
    ask: Option<&Ask>,
    cluster: Uuid,
    outcome: &str,
    details: Value,
) -> Result<(), Error> {
    let mut work = match ask {
        Some(ask) => Work::by(fleet, &ask.caller, &ask.trace_id).await?,
        None => Work::of(fleet, SYSTEM, None).await?,
    };
    work.record(Record {
        action: ACTION,
        outcome,
        target_kind: KIND,
        target_id: &cluster.to_string(),
        details,
    })
    .await?;
    work.commit().await
}

/// Counts a use that is about to take place, and gives where.
pub async fn count(
    fleet: &Fleet,
    cluster: Uuid,
    identity: &'static str,
    purpose: &'static str,
) -> Result<Key, Error> {
    let now = fleet.now();
    let key = Key {
        cluster,
        identity,
        purpose,
        hour: time(hour(now)),
    };
    store::count(&fleet.pool, &key, time(now)).await?;
    Ok(key)
}

/// Of a use that gave nothing; what cannot be written is told in the log.
pub async fn failed(fleet: &Fleet, key: &Key) {
    let written = async {
        let mut connection = fleet.pool.acquire().await?;
        store::failed(&mut connection, key).await
    };
    if let Err(error) = written.await {
        tracing::warn!(%error, "a failed access to a cluster is counted as one that succeeded");
    }
}

fn hour(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second().div_euclid(3600) * 3600).unwrap_or(at)
}

/// Makes entries of what was counted in hours that are over: by whichever replica comes first, each row once, since it goes
/// in the transaction that adds its entry.
pub async fn close_hours(fleet: &Fleet) -> Result<(), Error> {
    loop {
        let mut work = Work::of(fleet, SYSTEM, None).await?;
        let (until, latest) = (work.now - HOUR - AFTER, work.now + HOUR);
        let rows = store::take_over(work.db(), time(until), time(latest), AT_ONCE).await?;
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            let details = hour_details(row);
            record_hour(&mut work, row, details).await?;
        }
        work.commit().await?;
    }
}

/// The entry of one row. One whose cluster is removed has no details: they would be erased at once.
pub async fn record_hour(work: &mut Work<'_>, row: &AccessRow, details: Value) -> Result<(), Error> {
    work.record(Record {
        action: ACTION,
        outcome: if row.failures >= row.count {
            "Failed"
        } else {
            "Succeeded"
        },
        target_kind: KIND,
        target_id: &row.cluster_id.to_string(),
        details,
    })
    .await
}

fn hour_details(row: &AccessRow) -> Value {
    let (first, last): (Timestamp, Timestamp) = (row.first_at.into(), row.last_at.into());
    json!({
        "purpose": row.purpose, "identity": row.identity, "count": row.count, "failures": row.failures,
        "first": first, "last": last,
    })
}
