//! Uses of clusters that are counted by the hour until they are entries of the audit log.

use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::Time;

/// Where a use is counted.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub cluster: Uuid,
    pub identity: &'static str,
    pub purpose: &'static str,
    pub hour: Time,
}

#[derive(Clone, Debug, FromRow)]
pub struct AccessRow {
    pub cluster_id: Uuid,
    pub identity: String,
    pub purpose: String,
    pub count: i64,
    pub failures: i64,
    pub first_at: Time,
    pub last_at: Time,
}

/// Counts one that is about to take place.
pub async fn count(pool: &PgPool, key: &Key, now: Time) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into cluster_accesses as a (cluster_id, identity, purpose, hour, count, first_at, last_at)
         values ($1, $2, $3, $4, 1, $5, $5)
         on conflict (cluster_id, identity, purpose, hour) do update set count = a.count + 1,
             first_at = least(a.first_at, $5), last_at = greatest(a.last_at, $5)",
    )
    .bind(key.cluster)
    .bind(key.identity)
    .bind(key.purpose)
    .bind(key.hour)
    .bind(now)
    .execute(pool)
    .await
    .map(drop)
}

/// Says of one that was counted that it led to nothing.
pub async fn failed(connection: &mut PgConnection, key: &Key) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update cluster_accesses set failures = failures + 1
         where cluster_id = $1 and identity = $2 and purpose = $3 and hour = $4",
    )
    .bind(key.cluster)
    .bind(key.identity)
    .bind(key.purpose)
    .bind(key.hour)
    .execute(connection)
    .await
    .map(drop)
}

/// Takes rows of hours before `until` out of the table, and those after `latest`, which were written before a clock was
/// put back. Two that do this at once do not get the same row: the second waits, and finds it gone.
pub async fn take_over(
    connection: &mut PgConnection,
    until: Time,
    latest: Time,
    most: i64,
) -> Result<Vec<AccessRow>, sqlx::Error> {
    sqlx::query_as(
        "delete from cluster_accesses where (cluster_id, identity, purpose, hour) in (
             select cluster_id, identity, purpose, hour from cluster_accesses where hour < $1 or hour > $2
             order by hour, cluster_id, identity, purpose limit $3 for update)
         returning cluster_id, identity, purpose, count, failures, first_at, last_at",
    )
    .bind(until)
    .bind(latest)
    .bind(most)
    .fetch_all(connection)
    .await
}

/// Takes all rows of a cluster out of the table, whose row the transaction holds: no more can come. In the order in which
/// hours are closed, so that neither waits for the other.
pub async fn take_of(connection: &mut PgConnection, cluster: Uuid) -> Result<Vec<AccessRow>, sqlx::Error> {
    sqlx::query_as(
        "delete from cluster_accesses where (cluster_id, identity, purpose, hour) in (
             select cluster_id, identity, purpose, hour from cluster_accesses where cluster_id = $1
             order by hour, cluster_id, identity, purpose for update)
         returning cluster_id, identity, purpose, count, failures, first_at, last_at",
    )
    .bind(cluster)
    .fetch_all(connection)
    .await
}
