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
            accesses::{self, AccessRow},
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

/// A use of credentials that is written down before it takes place. What becomes of it is not known then: one that comes to
/// nothing is written down again, with the same `access` in its details. No other entry follows, so that each costs the log
/// one.
pub struct Attempt<'a> {
    cluster: Uuid,
    details: Value,
    /// Who asked for it, if it was a person.
    ask: Option<&'a Ask>,
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
        details["identity"] = json!("uploaded");
        let attempt = Self {
            cluster,
            details,
            ask,
        };
        attempt.record(fleet, "Begun", attempt.details.clone()).await?;
        Ok(attempt)
    }

    /// What it led to. A failure that cannot be written down is told in the log.
    pub async fn ended<T>(self, fleet: &Fleet, led_to: Result<T, Unreachable>) -> Result<T, Unreachable> {
        if let Err(why) = &led_to {
            let mut details = self.details.clone();
            details["reason"] = json!(why.reason);
            if let Err(error) = self.record(fleet, "Failed", details).await {
                tracing::warn!(
                    cluster = %self.cluster, reason = why.reason, error = &error as &dyn std::error::Error,
                    "an access to a cluster failed, and the audit log does not say so"
                );
            }
        }
        led_to
    }

    async fn record(&self, fleet: &Fleet, outcome: &str, details: Value) -> Result<(), Error> {
        let mut work = match self.ask {
            Some(ask) => Work::by(fleet, &ask.caller, &ask.trace_id).await?,
            None => Work::of(fleet, SYSTEM, None).await?,
        };
        work.record(Record {
            action: ACTION,
            outcome,
            target_kind: KIND,
            target_id: &self.cluster.to_string(),
            details,
        })
        .await?;
        work.commit().await
    }
}

/// Makes entries of what was counted in hours that are over: by whichever replica comes first, each row once, since it goes
/// in the transaction that adds its entry.
pub async fn close_hours(fleet: &Fleet) -> Result<(), Error> {
    loop {
        let mut work = Work::of(fleet, SYSTEM, None).await?;
        let (until, latest) = (work.now - HOUR - AFTER, work.now + HOUR);
        let rows = accesses::take_over(work.db(), time(until), time(latest), AT_ONCE).await?;
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
