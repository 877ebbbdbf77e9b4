//! Buckets of requests that all replicas share.

use sha2::{Digest as _, Sha256};
use sqlx::PgPool;

use super::Time;

/// Takes one request out of a bucket, if there is one: whether there was, and what is left.
pub async fn take(
    pool: &PgPool,
    who: &str,
    operation: &str,
    per_minute: u32,
    now: Time,
) -> Result<(bool, f64), sqlx::Error> {
    // The same arithmetic as `fleet-domain::rate`, in one statement. A clock that goes back gives nothing.
    sqlx::query_as(
        "insert into rates as r (who, operation, remaining, allowed, seen)
         values ($1, $2, greatest($3 - 1, 0), $3 >= 1, $4)
         on conflict (who, operation) do update set
             (remaining, allowed, seen) = (
                 select case when level >= 1 then level - 1 else level end, level >= 1,
                     case when r.seen > $4 + interval '1 minute' then $4 else greatest(r.seen, $4) end
                 from (select least($3, r.remaining
                     + greatest(0, extract(epoch from $4 - r.seen)) * $3 / 60) as level) refilled)
         returning allowed, remaining",
    )
    // Names of people are in one place only.
    .bind(Sha256::digest(who.as_bytes()).to_vec())
    .bind(operation)
    .bind(f64::from(per_minute))
    .bind(now)
    .fetch_one(pool)
    .await
}

/// Buckets that nobody took from for so long are full.
pub async fn forget(pool: &PgPool, before: Time) -> Result<(), sqlx::Error> {
    sqlx::query("delete from rates where seen < $1")
        .bind(before)
        .execute(pool)
        .await
        .map(drop)
}
