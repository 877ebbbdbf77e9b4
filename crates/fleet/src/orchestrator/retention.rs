//! What grows by itself goes when its time is over, table by table. That something of the record went is recorded itself;
//! the chain of the audit log is never touched.

use std::sync::PoisonError;

use gantry_fleet_domain::{
    crd_digest,
    steady::{Look, is_steady},
};
use jiff::SignedDuration;
use serde_json::json;

use super::{Fleet, Record, SYSTEM, Work, clusters};
use crate::{
    Error,
    infrastructure::{
        database,
        store::{audit, crd_schemas, idempotency, people, rates, time, waivers},
    },
};

/// A bucket that nobody took from for so long has been full for most of it.
const BUCKETS: SignedDuration = SignedDuration::from_hours(1);

/// Where somebody tried to register a cluster, when nothing came of it: long enough to be looked into.
const ATTEMPTS: SignedDuration = SignedDuration::from_hours(24 * 30);

/// Applies the policies if the clock can be believed: what is erased too early does not come back.
pub async fn look(fleet: &Fleet) -> Result<(), Error> {
    let look = Look {
        database: database::now(&fleet.pool).await?,
        ours: fleet.now(),
        counted: fleet.started.elapsed(),
    };
    let before = fleet
        .last_look
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .replace(look);
    if is_steady(before, look) {
        return apply(fleet).await;
    }
    if before.is_some() {
        tracing::warn!(
            ours = %look.ours,
            database = %look.database,
            "clocks do not agree, or one was put forward or back: nothing is erased for its age until they are steady"
        );
    }
    Ok(())
}

pub async fn apply(fleet: &Fleet) -> Result<(), Error> {
    let (now, kept) = (fleet.now(), fleet.retention);
    // Of no meaning to anybody after their time.
    idempotency::forget(&fleet.pool, time(now - kept.answers)).await?;
    rates::forget(&fleet.pool, time(now - BUCKETS)).await?;
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    let attempts = audit::forget_attempts(work.db(), clusters::KIND, time(now - ATTEMPTS)).await?;
    let (mut details, mut expired, mut schemas, mut names) = (attempts, 0, 0, 0);
    if let Some(kept) = kept.audit_details {
        details += audit::forget_details(work.db(), time(now - kept)).await?;
    }
    if let Some(kept) = kept.waivers {
        expired = waivers::forget(work.db(), time(now - kept)).await?;
    }
    if let Some(kept) = kept.schemas {
        schemas = crd_schemas::forget(work.db(), time(now - kept), crd_digest::FORM).await?;
    }
    if let Some(kept) = kept.people {
        names = people::forget(work.db(), time(now - kept), SYSTEM, time(now)).await?;
    }
    if details + expired + schemas + names == 0 {
        // Nothing of the record; attempts that came to something are none any more.
        return work.commit().await;
    }
    tracing::info!(
        details,
        waivers = expired,
        schemas,
        people = names,
        "what was kept long enough is gone"
    );
    work.record(Record {
        action: "retention.applied",
        outcome: "Succeeded",
        target_kind: "server",
        target_id: "retention",
        details: json!({"auditDetails": details, "waivers": expired, "schemas": schemas, "people": names}),
    })
    .await?;
    work.commit().await
}
