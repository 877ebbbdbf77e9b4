//! Which deployers are bound, for which deployment, until when at the latest.

use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::Time;

#[derive(Clone, Copy, Debug, FromRow)]
pub struct DeployerRow {
    pub cluster_id: Uuid,
    pub deployment_id: Uuid,
}

/// Notes that a deployment has the deployer of a cluster, or has it for longer. Gives the one who has it.
pub async fn take(
    connection: &mut PgConnection,
    cluster: Uuid,
    deployment: Uuid,
    now: Time,
    until: Time,
) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar(
        "insert into deployers as d (cluster_id, deployment_id, bound_at, until) values ($1, $2, $3, $4)
         on conflict (cluster_id) do update set
             until = case when d.deployment_id = $2 then greatest(d.until, excluded.until) else d.until end
         returning deployment_id",
    )
    .bind(cluster)
    .bind(deployment)
    .bind(now)
    .bind(until)
    .fetch_one(connection)
    .await
}

/// Which deployment has the deployer of a cluster.
pub async fn holder(pool: &PgPool, cluster: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar("select deployment_id from deployers where cluster_id = $1")
        .bind(cluster)
        .fetch_optional(pool)
        .await
}

/// Whether it was noted.
pub async fn release(
    connection: &mut PgConnection,
    cluster: Uuid,
    deployment: Uuid,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query("delete from deployers where cluster_id = $1 and deployment_id = $2")
        .bind(cluster)
        .bind(deployment)
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// Those whose time is over: whoever bound them has died.
pub async fn overdue(pool: &PgPool, now: Time) -> Result<Vec<DeployerRow>, sqlx::Error> {
    sqlx::query_as("select cluster_id, deployment_id from deployers where until < $1 order by until")
        .bind(now)
        .fetch_all(pool)
        .await
}
