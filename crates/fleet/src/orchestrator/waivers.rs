//! Waivers: somebody takes responsibility for one finding, by name, for a time. The schema need not be approved as a
//! whole then.

use gantry_fleet_api as api;
use gantry_fleet_domain::{crd_diff::Waiver, fields::Complaints};
use jiff::{Timestamp, ToSpan as _, civil::Date, tz::TimeZone};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Ask, Fleet, Record, Reply,
    crds::{KIND, locked, missing},
};
use crate::{
    Error,
    infrastructure::store::{
        Window, crds as crd_store, time,
        waivers::{self as store, WaiverRow},
    },
};

/// Waivers hold until the end of a day, by the clock of Greenwich.
pub fn today(fleet: &Fleet) -> Date {
    day(fleet.now())
}

pub fn day(now: Timestamp) -> Date {
    now.to_zoned(TimeZone::UTC).date()
}

/// Those of one definition, as a comparison takes them.
pub async fn of(connection: &mut PgConnection, crd: Uuid) -> Result<Vec<Waiver>, Error> {
    let rows = store::of(connection, crd).await?;
    let waiver = |row: WaiverRow| {
        Some(Waiver {
            expires: row.expires.parse().ok()?,
            approver: row
                .approver
                .unwrap_or_else(|| "somebody who was forgotten since".to_owned()),
            fingerprint: row.fingerprint,
            reason: row.reason,
        })
    };
    Ok(rows.into_iter().filter_map(waiver).collect())
}

pub async fn list(fleet: &Fleet, name: &str, window: Window) -> Result<api::Waivers, Error> {
    let mut connection = fleet.pool.acquire().await?;
    let crd = crd_store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let (rows, total) = store::list(&mut connection, crd.id, window).await?;
    let today = today(fleet);
    Ok(api::Waivers {
        page: api::Page::new(total, window.limit, window.offset, rows.len()),
        waivers: rows.into_iter().filter_map(|row| wire(row, today)).collect(),
    })
}

pub async fn add(fleet: &Fleet, ask: &Ask, name: &str, body: api::AddWaiver) -> Result<Reply, Error> {
    let today = today(fleet);
    let mut complaints = Complaints::default();
    if body.fingerprint.len() != 16 || !body.fingerprint.chars().all(|c| c.is_ascii_hexdigit()) {
        complaints.add(
            "fingerprint",
            "must be the 16 hexadecimal digits that a comparison gives to a finding",
        );
    }
    if body.reason.trim().is_empty() {
        complaints.add("reason", "must say why it does no harm");
    }
    complaints.at_most("reason", &body.reason, 2000);
    if body.expires < today || body.expires > today.saturating_add(1.year()) {
        complaints.add("expires", "must be today or later, and within a year");
    }
    complaints.or(())?;
    let (mut work, crd) = match locked(fleet, ask, name).await? {
        Ok(locked) => locked,
        Err(reply) => return Ok(reply),
    };
    let now = time(work.now);
    let row = WaiverRow {
        fingerprint: body.fingerprint.to_ascii_lowercase(),
        approver: Some(ask.caller.subject.clone()),
        reason: body.reason,
        expires: body.expires.to_string(),
        created_at: now,
    };
    let person = work.person;
    store::put(work.db(), crd.id, person, &row).await?;
    crd_store::update(work.db(), &crd, now).await?;
    work.record(Record {
        action: "crd.finding-waived",
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &crd.id.to_string(),
        details: json!({
            "name": name, "fingerprint": row.fingerprint, "reason": row.reason, "expires": row.expires,
        }),
    })
    .await?;
    let body = wire(row, today).ok_or_else(|| Error::invalid("expires", "is not a date"))?;
    work.finish(Reply::json(201, &body, None)?).await
}

pub async fn remove(fleet: &Fleet, ask: &Ask, name: &str, fingerprint: &str) -> Result<Reply, Error> {
    let (mut work, crd) = match locked(fleet, ask, name).await? {
        Ok(locked) => locked,
        Err(reply) => return Ok(reply),
    };
    if !store::delete(work.db(), crd.id, fingerprint).await? {
        return Err(Error::NotFound {
            kind: "waiver",
            name: fingerprint.to_owned(),
        });
    }
    let now = time(work.now);
    crd_store::update(work.db(), &crd, now).await?;
    work.record(Record {
        action: "crd.waiver-removed",
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &crd.id.to_string(),
        details: json!({"name": name, "fingerprint": fingerprint}),
    })
    .await?;
    work.finish(Reply::gone()).await
}

fn wire(row: WaiverRow, today: Date) -> Option<api::Waiver> {
    let expires: Date = row.expires.parse().ok()?;
    Some(api::Waiver {
        fingerprint: row.fingerprint,
        approver: row.approver,
        reason: row.reason,
        expires,
        is_expired: expires < today,
        created_at: row.created_at.into(),
    })
}
