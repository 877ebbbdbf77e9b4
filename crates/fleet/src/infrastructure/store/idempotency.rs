//! Answers that were given, so that a request sent twice is done once.

use serde_json::Value;
use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::Time;

#[derive(Clone, FromRow)]
pub struct Answered {
    pub operation: String,
    pub request: Vec<u8>,
    pub status: Option<i16>,
    pub body: Option<Vec<u8>>,
    /// Whose state is the answer, where that is kept instead of the body.
    pub about: Option<String>,
    /// Of what was answered with.
    pub revision: Option<i64>,
}

pub async fn find(
    connection: &mut PgConnection,
    person: Uuid,
    key: &str,
) -> Result<Option<Answered>, sqlx::Error> {
    sqlx::query_as(
        "select operation, request, status, body, about, revision from idempotency where person = $1 and key = $2",
    )
    .bind(person)
    .bind(key)
    .fetch_optional(connection)
    .await
}

/// Takes the key for this transaction. Waits for another that has it, and gives nothing if that one kept it.
pub async fn take(
    connection: &mut PgConnection,
    person: Uuid,
    key: &str,
    operation: &str,
    request: &[u8],
    now: Time,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "insert into idempotency (person, key, operation, request, created_at) values ($1, $2, $3, $4, $5)
         on conflict do nothing",
    )
    .bind(person)
    .bind(key)
    .bind(operation)
    .bind(request)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What is kept of an answer: its body, or what it is about.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'k> {
    pub status: u16,
    pub body: Option<&'k [u8]>,
    pub about: Option<&'k str>,
    pub revision: Option<i64>,
}

pub async fn answer(
    connection: &mut PgConnection,
    person: Uuid,
    key: &str,
    kept: Kept<'_>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update idempotency set status = $3, body = $4, about = $5, revision = $6 where person = $1 and key = $2",
    )
    .bind(person)
    .bind(key)
    .bind(i16::try_from(kept.status).unwrap_or(500))
    .bind(kept.body)
    .bind(kept.about)
    .bind(kept.revision)
    .execute(connection)
    .await
    .map(drop)
}

/// Forgets the answers that tell of something that is erased: by its id, or by its name in one of these fields. Answers to
/// others have it too, such as who approved a definition or where it runs.
pub async fn forget_about(
    connection: &mut PgConnection,
    id: Uuid,
    fields: &[&str],
    name: &str,
) -> Result<(), sqlx::Error> {
    // As answers are written: without spaces.
    let mut told = vec![id.to_string()];
    told.extend(
        fields
            .iter()
            .map(|field| format!("\"{field}\":{}", Value::from(name))),
    );
    sqlx::query(
        "delete from idempotency i where exists (
             select from unnest($1::text[]) told where position(convert_to(told, 'UTF8') in i.body) > 0)",
    )
    .bind(told)
    .execute(connection)
    .await
    .map(drop)
}

/// Forgets the answers to somebody who cannot ask again.
pub async fn forget_of(connection: &mut PgConnection, person: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("delete from idempotency where person = $1")
        .bind(person)
        .execute(connection)
        .await
        .map(drop)
}

pub async fn forget(pool: &PgPool, before: Time) -> Result<u64, sqlx::Error> {
    let done = sqlx::query("delete from idempotency where created_at < $1")
        .bind(before)
        .execute(pool)
        .await?;
    Ok(done.rows_affected())
}
