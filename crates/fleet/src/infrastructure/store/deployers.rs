//! Which deployers are bound, for which deployment, until when at the latest: by the clock of the database, since a replica
//! whose own is ahead would take from the others what they use.

use jiff::SignedDuration;
use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

/// Between two tries to take one back.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);

/// One that nobody renewed.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Overdue {
    pub cluster_id: Uuid,
    pub deployment_id: Uuid,
    /// How often somebody tried to take it back, this time included.
    pub tries: i32,
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

/// Notes that a deployment has the deployer of a cluster, for so long from now. Gives the one who has it.
pub async fn take(
    connection: &mut PgConnection,
    cluster: Uuid,
    deployment: Uuid,
    longest: SignedDuration,
) -> Result<Taken, sqlx::Error> {
    // A row that was just inserted has no xmax: nobody has locked or changed it.
    sqlx::query_as(
        "insert into deployers as d (cluster_id, deployment_id, bound_at, until) values ($1, $2, now(), now() + make_interval(secs => $3))
         on conflict (cluster_id) do update set
             until = case when d.deployment_id = $2 and d.until > 'epoch' then excluded.until else d.until end
         returning deployment_id, xmax = 0 as is_new, until <= 'epoch' as is_going",
    )
    .bind(cluster)
    .bind(deployment)
    .bind(longest.as_secs_f64())
    .fetch_one(connection)
    .await
}

/// Which deployment has the deployer of a cluster.
pub async fn holder(connection: &mut PgConnection, cluster: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar("select deployment_id from deployers where cluster_id = $1")
        .bind(cluster)
        .fetch_optional(connection)
        .await
}

/// Whether a deployment has it and nobody takes it back.
pub async fn is_lent(pool: &PgPool, cluster: Uuid, deployment: Uuid) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "select exists (select from deployers where cluster_id = $1 and deployment_id = $2 and until > 'epoch')",
    )
    .bind(cluster)
    .bind(deployment)
    .fetch_one(pool)
    .await
}

/// Marks the one of a cluster: from now on it cannot be renewed, only taken back. Gives the deployment that has it.
pub async fn end(pool: &PgPool, cluster: Uuid) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar("update deployers set until = 'epoch' where cluster_id = $1 returning deployment_id")
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

/// Takes one whose time is over: whoever bound it has died. From now on it cannot be renewed, only taken back. One that would
/// end later than the farthest was written before a clock was put back, and its time is over as well. Nobody else gets it for a
/// minute, and for longer after each try that came to nothing, up to `LONGEST_PAUSE`; one that has to wait for more than that was
/// written before a clock was put back, too.
pub async fn claim_overdue(pool: &PgPool, farthest: SignedDuration) -> Result<Option<Overdue>, sqlx::Error> {
    sqlx::query_as(
        "update deployers set until = 'epoch', tries = least(tries, 1000000) + 1,
             try_at = now() + make_interval(secs => least(60 * power(2, least(tries, 10)), $2))
         where cluster_id = (
             select cluster_id from deployers
             where (until < now() or until > now() + make_interval(secs => $1))
                 and (try_at is null or try_at <= now() or try_at > now() + make_interval(secs => 2 * $2))
             order by coalesce(try_at, until) limit 1 for update skip locked)
         returning cluster_id, deployment_id, tries",
    )
    .bind(farthest.as_secs_f64())
    .bind(LONGEST_PAUSE.as_secs_f64())
    .fetch_optional(pool)
    .await
}
