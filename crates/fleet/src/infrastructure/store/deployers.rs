//! Which deployers are bound, for which deployment, until when at the latest.

use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::Time;

#[derive(Clone, Copy, Debug, FromRow)]
pub struct DeployerRow {
    pub cluster_id: Uuid,
    pub deployment_id: Uuid,
}

/// What came of the wish to have a deployer.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Taken {
    /// Who has it.
    pub deployment_id: Uuid,
    /// Whether nobody had it before.
    pub is_new: bool,
    /// Whether it is about to be taken back, because nobody renewed it in time.
    pub is_going: bool,
}

/// Notes that a deployment has the deployer of a cluster, until then and no longer. Gives the one who has it.
pub async fn take(
    connection: &mut PgConnection,
    cluster: Uuid,
    deployment: Uuid,
    now: Time,
    until: Time,
) -> Result<Taken, sqlx::Error> {
    // A row that was just inserted has no xmax: nobody has locked or changed it.
    sqlx::query_as(
        "insert into deployers as d (cluster_id, deployment_id, bound_at, until) values ($1, $2, $3, $4)
         on conflict (cluster_id) do update set
             until = case when d.deployment_id = $2 and d.until > 'epoch' then excluded.until else d.until end
         returning deployment_id, xmax = 0 as is_new, until <= 'epoch' as is_going",
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

/// Those whose time is over: whoever bound them has died. One that would end after `latest` was written before a clock was
/// put back, and its time is over as well.
pub async fn overdue(pool: &PgPool, now: Time, latest: Time) -> Result<Vec<DeployerRow>, sqlx::Error> {
    sqlx::query_as(
        "select cluster_id, deployment_id from deployers where until < $1 or until > $2 order by until",
    )
    .bind(now)
    .bind(latest)
    .fetch_all(pool)
    .await
}

/// Marks an overdue one: from now on it cannot be renewed, only taken back. Whether it is overdue still.
pub async fn give_up(pool: &PgPool, row: &DeployerRow, now: Time, latest: Time) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "update deployers set until = 'epoch'
         where cluster_id = $1 and deployment_id = $2 and (until < $3 or until > $4)",
    )
    .bind(row.cluster_id)
    .bind(row.deployment_id)
    .bind(now)
    .bind(latest)
    .execute(pool)
    .await?;
    Ok(done.rows_affected() == 1)
}
