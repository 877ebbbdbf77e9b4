//! Secrets of the server itself, sealed.

use sqlx::{FromRow, PgPool};
use uuid::Uuid;

use crate::infrastructure::keys::Sealed;

#[derive(Clone, FromRow)]
struct Row {
    id: Uuid,
    secret: Vec<u8>,
    wrapped_key: Vec<u8>,
    key_id: String,
}

pub async fn get(pool: &PgPool, name: &str) -> Result<Option<(Uuid, Sealed)>, sqlx::Error> {
    let row: Option<Row> =
        sqlx::query_as("select id, secret, wrapped_key, key_id from server_secrets where name = $1")
            .bind(name)
            .fetch_optional(pool)
            .await?;
    let sealed = |row: Row| {
        let sealed = Sealed {
            ciphertext: row.secret,
            wrapped_key: row.wrapped_key,
            key_id: row.key_id,
        };
        (row.id, sealed)
    };
    Ok(row.map(sealed))
}

/// Keeps one, unless there is another already.
pub async fn insert(pool: &PgPool, name: &str, id: Uuid, sealed: &Sealed) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into server_secrets (name, id, secret, wrapped_key, key_id) values ($1, $2, $3, $4, $5)
         on conflict do nothing",
    )
    .bind(name)
    .bind(id)
    .bind(&sealed.ciphertext)
    .bind(&sealed.wrapped_key)
    .bind(&sealed.key_id)
    .execute(pool)
    .await
    .map(drop)
}

/// Removes one that is of no use any more, unless it was replaced since it was read.
pub async fn remove(pool: &PgPool, name: &str, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("delete from server_secrets where name = $1 and id = $2")
        .bind(name)
        .bind(id)
        .execute(pool)
        .await
        .map(drop)
}

/// Writes a rewrapped key, unless the secret was changed since it was read.
pub async fn rewrap(pool: &PgPool, id: Uuid, before: &Sealed, after: &Sealed) -> Result<(), sqlx::Error> {
    sqlx::query("update server_secrets set wrapped_key = $3, key_id = $4 where id = $1 and wrapped_key = $2")
        .bind(id)
        .bind(&before.wrapped_key)
        .bind(&after.wrapped_key)
        .bind(&after.key_id)
        .execute(pool)
        .await
        .map(drop)
}
