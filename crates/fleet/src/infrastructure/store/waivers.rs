//! Findings of definitions that somebody has taken responsibility for.

use sqlx::{FromRow, PgConnection};
use uuid::Uuid;

use super::{Time, Window};

#[derive(Clone, Debug, FromRow)]
pub struct WaiverRow {
    pub fingerprint: String,
    /// The name of who waived it, if it was not erased.
    #[sqlx(default)]
    pub approver: Option<String>,
    pub reason: String,
    /// Its last day, as `2026-12-31`.
    pub expires: String,
    pub created_at: Time,
}

/// All of a definition, also those that have expired.
pub async fn of(connection: &mut PgConnection, crd: Uuid) -> Result<Vec<WaiverRow>, sqlx::Error> {
    sqlx::query_as(
        "select w.fingerprint, p.subject as approver, w.reason, w.expires::text as expires, w.created_at
         from crd_waivers w left join people p on p.id = w.person
         where w.crd_id = $1 order by w.created_at, w.fingerprint",
    )
    .bind(crd)
    .fetch_all(connection)
    .await
}

/// Some of them, in the order in which they were given, and how many there are.
pub async fn list(
    connection: &mut PgConnection,
    crd: Uuid,
    window: Window,
) -> Result<(Vec<WaiverRow>, u64), sqlx::Error> {
    let rows = sqlx::query_as(
        "select w.fingerprint, p.subject as approver, w.reason, w.expires::text as expires, w.created_at
         from crd_waivers w left join people p on p.id = w.person
         where w.crd_id = $1 order by w.created_at, w.fingerprint limit $2 offset $3",
    )
    .bind(crd)
    .bind(window.limit())
    .bind(window.offset())
    .fetch_all(&mut *connection)
    .await?;
    let total: i64 = sqlx::query_scalar("select count(*) from crd_waivers where crd_id = $1")
        .bind(crd)
        .fetch_one(connection)
        .await?;
    Ok((rows, total as u64))
}

pub async fn put(
    connection: &mut PgConnection,
    crd: Uuid,
    person: Uuid,
    row: &WaiverRow,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into crd_waivers (crd_id, fingerprint, person, reason, expires, created_at)
         values ($1, $2, $3, $4, $5::date, $6)
         on conflict (crd_id, fingerprint) do update set person = excluded.person, reason = excluded.reason,
             expires = excluded.expires, created_at = excluded.created_at",
    )
    .bind(crd)
    .bind(&row.fingerprint)
    .bind(person)
    .bind(&row.reason)
    .bind(&row.expires)
    .bind(row.created_at)
    .execute(connection)
    .await
    .map(drop)
}

/// Whether there was one.
pub async fn delete(
    connection: &mut PgConnection,
    crd: Uuid,
    fingerprint: &str,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query("delete from crd_waivers where crd_id = $1 and fingerprint = $2")
        .bind(crd)
        .bind(fingerprint)
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Forgets those whose last day was before this one.
pub async fn forget(connection: &mut PgConnection, before: Time) -> Result<u64, sqlx::Error> {
    let done = sqlx::query("delete from crd_waivers where expires < ($1 at time zone 'utc')::date")
        .bind(before)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}
