//! Clusters, their sealed credentials, and what was seen on them. When somebody looks, when the next look is due, and how old
//! the last one is: all of that is told by the clock of the database, since those of replicas may differ.

use jiff::SignedDuration;
use serde_json::Value;
use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::{Terms, Time, Window};
use crate::infrastructure::keys::{Current, Sealed};

/// Without the credentials: what is shown cannot hold them.
#[derive(Clone, Debug, FromRow)]
pub struct ClusterRow {
    pub id: Uuid,
    pub name: String,
    pub description: String,
    pub environment: String,
    pub api_server_url: String,
    pub kubernetes_version: String,
    pub nodes_ready: i32,
    pub nodes_not_ready: i32,
    pub latency_ms: Option<i32>,
    pub health: String,
    pub health_reason: String,
    pub health_message: String,
    pub health_since: Option<Time>,
    pub checked_at: Option<Time>,
    /// Nothing where its definitions never could be read.
    pub definitions_seen_at: Option<Time>,
    pub labels: Value,
    pub enabled: bool,
    pub revision: i64,
    pub registered_at: Time,
    pub updated_at: Time,
    /// When this was read, by the clock that looks are dated by.
    pub read_at: Time,
}

#[derive(FromRow)]
struct SealedRow {
    kubeconfig: Vec<u8>,
    wrapped_key: Vec<u8>,
    key_id: String,
}

impl From<SealedRow> for Sealed {
    fn from(row: SealedRow) -> Self {
        Self {
            ciphertext: row.kubeconfig,
            wrapped_key: row.wrapped_key,
            key_id: row.key_id,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub environment: Option<String>,
    pub health: Option<String>,
    pub labels: Value,
}

macro_rules! columns {
    () => {
        "id, name, description, environment, api_server_url, kubernetes_version, nodes_ready, nodes_not_ready,
         latency_ms, health, health_reason, health_message, health_since, checked_at, definitions_seen_at, labels,
         enabled, revision, registered_at, updated_at, now() as read_at"
    };
}

macro_rules! filter {
    () => {
        "($1::text is null or environment = $1) and labels @> $2
         and ($3::text is null or $3 = case
             when checked_at between now() - make_interval(secs => $4) and now() + make_interval(secs => $4)
             then health else 'Unknown' end)"
    };
}

/// A look that is older than `fresh`, or as far ahead, counts as none.
pub async fn list(
    pool: &PgPool,
    filter: &Filter,
    fresh: SignedDuration,
    window: Window,
) -> Result<(Vec<ClusterRow>, u64), sqlx::Error> {
    let rows = sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from clusters where ",
        filter!(),
        " order by name limit $5 offset $6"
    ))
    .bind(&filter.environment)
    .bind(&filter.labels)
    .bind(&filter.health)
    .bind(fresh.as_secs_f64())
    .bind(window.limit())
    .bind(window.offset())
    .fetch_all(pool)
    .await?;
    let total: i64 = sqlx::query_scalar(concat!("select count(*) from clusters where ", filter!()))
        .bind(&filter.environment)
        .bind(&filter.labels)
        .bind(&filter.health)
        .bind(fresh.as_secs_f64())
        .fetch_one(pool)
        .await?;
    Ok((rows, total as u64))
}

pub async fn get(connection: &mut PgConnection, name: &str) -> Result<Option<ClusterRow>, sqlx::Error> {
    sqlx::query_as(concat!("select ", columns!(), " from clusters where name = $1"))
        .bind(name)
        .fetch_optional(connection)
        .await
}

pub async fn lock(connection: &mut PgConnection, name: &str) -> Result<Option<ClusterRow>, sqlx::Error> {
    sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from clusters where name = $1 for update"
    ))
    .bind(name)
    .fetch_optional(connection)
    .await
}

pub async fn count(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query("select pg_advisory_xact_lock(hashtext('clusters.count'))")
        .execute(&mut *connection)
        .await?;
    sqlx::query_scalar("select count(*) from clusters")
        .fetch_one(connection)
        .await
}

/// One that was just looked at, and is looked at again `after` that. Gives the time that this was.
pub async fn insert(
    connection: &mut PgConnection,
    row: &ClusterRow,
    sealed: &Sealed,
    after: SignedDuration,
) -> Result<Time, sqlx::Error> {
    sqlx::query_scalar(
        "insert into clusters (id, name, description, environment, api_server_url, kubeconfig, wrapped_key, key_id,
             kubernetes_version, nodes_ready, nodes_not_ready, latency_ms, health, health_reason, health_message,
             health_since, checked_at, labels, enabled, registered_at, updated_at, check_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, now(), now(), $16, $17, $18, $18, now() + make_interval(secs => $19))
         returning checked_at",
    )
    .bind(row.id)
    .bind(&row.name)
    .bind(&row.description)
    .bind(&row.environment)
    .bind(&row.api_server_url)
    .bind(&sealed.ciphertext)
    .bind(&sealed.wrapped_key)
    .bind(&sealed.key_id)
    .bind(&row.kubernetes_version)
    .bind(row.nodes_ready)
    .bind(row.nodes_not_ready)
    .bind(row.latency_ms)
    .bind(&row.health)
    .bind(&row.health_reason)
    .bind(&row.health_message)
    .bind(&row.labels)
    .bind(row.enabled)
    .bind(row.registered_at)
    .bind(after.as_secs_f64())
    .fetch_one(connection)
    .await
}

/// What people say of it; what was seen is `seen`'s. It is looked at anew at once: a look that is under way has lost its
/// claim, since it may have begun with other credentials.
pub async fn update(
    connection: &mut PgConnection,
    row: &ClusterRow,
    sealed: Option<&Sealed>,
    now: Time,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update clusters set description = $2, environment = $3, labels = $4, enabled = $5, api_server_url = $6,
             kubeconfig = coalesce($7, kubeconfig), wrapped_key = coalesce($8, wrapped_key),
             key_id = coalesce($9, key_id), revision = revision + 1, updated_at = $10, check_at = now(),
             check_holder = null
         where id = $1",
    )
    .bind(row.id)
    .bind(&row.description)
    .bind(&row.environment)
    .bind(&row.labels)
    .bind(row.enabled)
    .bind(&row.api_server_url)
    .bind(sealed.map(|sealed| &sealed.ciphertext))
    .bind(sealed.map(|sealed| &sealed.wrapped_key))
    .bind(sealed.map(|sealed| &sealed.key_id))
    .bind(now)
    .execute(connection)
    .await
    .map(drop)
}

/// What tells it from every other cluster, where that is known.
pub async fn identity(connection: &mut PgConnection, id: Uuid) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar("select identity from clusters where id = $1")
        .bind(id)
        .fetch_one(connection)
        .await
}

pub async fn set_identity(
    connection: &mut PgConnection,
    id: Uuid,
    identity: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query("update clusters set identity = $2 where id = $1")
        .bind(id)
        .bind(identity)
        .execute(connection)
        .await
        .map(drop)
}

pub async fn delete(connection: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("delete from clusters where id = $1")
        .bind(id)
        .execute(connection)
        .await
        .map(drop)
}

pub async fn sealed(pool: &PgPool, id: Uuid) -> Result<Option<Sealed>, sqlx::Error> {
    let row: Option<SealedRow> =
        sqlx::query_as("select kubeconfig, wrapped_key, key_id from clusters where id = $1")
            .bind(id)
            .fetch_optional(pool)
            .await?;
    Ok(row.map(Into::into))
}

/// Clusters that are to be looked at, given to this holder until the lease ends; other replicas look past them. One that
/// would have to wait longer than the farthest was written before a clock was put back, and is due as well.
pub async fn claim(
    pool: &PgPool,
    holder: Uuid,
    terms: Terms,
    most: i64,
) -> Result<Vec<(Claim, ClusterRow)>, sqlx::Error> {
    #[derive(FromRow)]
    struct Claimed {
        #[sqlx(flatten)]
        row: ClusterRow,
        check_at: Time,
    }
    let claimed: Vec<Claimed> = sqlx::query_as(concat!(
        "update clusters set check_holder = $1, check_at = now() + make_interval(secs => $2) where id in (
             select id from clusters
             where enabled and (check_at <= now() or check_at > now() + make_interval(secs => $3))
             order by check_at limit $4 for update skip locked)
         returning check_at, ",
        columns!()
    ))
    .bind(holder)
    .bind(terms.lease.as_secs_f64())
    .bind(terms.farthest.as_secs_f64())
    .bind(most)
    .fetch_all(pool)
    .await?;
    let claim = |until| Claim { holder, until };
    Ok(claimed
        .into_iter()
        .map(|one| (claim(one.check_at), one.row))
        .collect())
}

/// Who looks at a cluster, and until when: no other look has the same two, not even the next one of the same replica.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub holder: Uuid,
    pub until: Time,
}

/// What a look found.
#[derive(Clone, Debug)]
pub struct Seen {
    pub kubernetes_version: Option<String>,
    pub nodes: Option<(i32, i32)>,
    pub latency_ms: Option<i32>,
    pub health: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// Writes it, unless the claim was lost since; whether it was written. The next look is due `after` this one.
pub async fn seen(
    connection: &mut PgConnection,
    id: Uuid,
    claim: Claim,
    seen: &Seen,
    after: SignedDuration,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "update clusters set
             health_since = case when health = $4 and health_reason = $5 then health_since else now() end,
             kubernetes_version = coalesce($3, kubernetes_version),
             nodes_ready = coalesce($7, nodes_ready), nodes_not_ready = coalesce($8, nodes_not_ready),
             latency_ms = $9, health = $4, health_reason = $5, health_message = $6, checked_at = now(),
             check_at = now() + make_interval(secs => $10), check_holder = null
         where id = $1 and check_holder = $2 and check_at = $11",
    )
    .bind(id)
    .bind(claim.holder)
    .bind(&seen.kubernetes_version)
    .bind(seen.health)
    .bind(seen.reason)
    .bind(&seen.message)
    .bind(seen.nodes.map(|nodes| nodes.0))
    .bind(seen.nodes.map(|nodes| nodes.1))
    .bind(seen.latency_ms)
    .bind(after.as_secs_f64())
    .bind(claim.until)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// One definition as a cluster has it.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct SeenCrd {
    pub name: String,
    /// Empty where it was not looked at yet.
    pub digest: String,
    pub stored_versions: Vec<String>,
    /// Of the object in the cluster: what has the same need not be looked at again.
    pub revision: String,
}

/// Those that the last look found.
pub async fn seen_crds(pool: &PgPool, cluster: Uuid) -> Result<Vec<SeenCrd>, sqlx::Error> {
    sqlx::query_as("select name, digest, stored_versions, revision from cluster_crds where cluster_id = $1")
        .bind(cluster)
        .fetch_all(pool)
        .await
}

/// All that a cluster has, and that it was seen now.
pub async fn set_crds(
    connection: &mut PgConnection,
    cluster: Uuid,
    crds: &[SeenCrd],
) -> Result<(), sqlx::Error> {
    let names: Vec<&str> = crds.iter().map(|crd| crd.name.as_str()).collect();
    sqlx::query("delete from cluster_crds where cluster_id = $1 and name <> all($2)")
        .bind(cluster)
        .bind(&names)
        .execute(&mut *connection)
        .await?;
    let column = |of: fn(&SeenCrd) -> String| -> Vec<String> { crds.iter().map(of).collect() };
    // In one statement, since there may be thousands; names of versions have no commas.
    sqlx::query(
        "insert into cluster_crds (cluster_id, name, digest, revision, stored_versions, seen_at)
         select $1, name, digest, revision, string_to_array(versions, ','), now()
         from unnest($2::text[], $3::text[], $4::text[], $5::text[]) _(name, digest, revision, versions)
         on conflict (cluster_id, name) do update set digest = excluded.digest, revision = excluded.revision,
             stored_versions = excluded.stored_versions, seen_at = excluded.seen_at",
    )
    .bind(cluster)
    .bind(&names)
    .bind(column(|crd| crd.digest.clone()))
    .bind(column(|crd| crd.revision.clone()))
    .bind(column(|crd| crd.stored_versions.join(",")))
    .execute(&mut *connection)
    .await?;
    sqlx::query("update clusters set definitions_seen_at = now() where id = $1")
        .bind(cluster)
        .execute(connection)
        .await
        .map(drop)
}

/// Of all clusters, each once.
pub async fn environments(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar("select distinct environment from clusters order by 1")
        .fetch_all(connection)
        .await
}

/// Definitions that the fleet knows and the cluster has: `PLURAL.GROUP`.
pub async fn known_crds(pool: &PgPool, cluster: Uuid, most: i64) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "select x.name from cluster_crds x join crds c on c.name = x.name where x.cluster_id = $1
         order by x.name limit $2",
    )
    .bind(cluster)
    .bind(most)
    .fetch_all(pool)
    .await
}

/// Some whose key is not the one that wraps now.
pub async fn wrapped_by_others(
    pool: &PgPool,
    key: &Current,
    most: i64,
) -> Result<Vec<(Uuid, Sealed)>, sqlx::Error> {
    let rows: Vec<(Uuid, Vec<u8>, Vec<u8>, String)> = sqlx::query_as(
        "select id, kubeconfig, wrapped_key, key_id from clusters
         where key_id <> $1 or substring(wrapped_key from 1 for octet_length($3)) <> $3 order by id limit $2",
    )
    .bind(&key.id)
    .bind(most)
    .bind(&key.prefix)
    .fetch_all(pool)
    .await?;
    let sealed = |(id, ciphertext, wrapped_key, key_id)| {
        (
            id,
            Sealed {
                ciphertext,
                wrapped_key,
                key_id,
            },
        )
    };
    Ok(rows.into_iter().map(sealed).collect())
}

/// Writes a rewrapped key, unless the secret was changed since it was read.
pub async fn rewrap(pool: &PgPool, id: Uuid, before: &Sealed, after: &Sealed) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "update clusters set wrapped_key = $3, key_id = $4 where id = $1 and wrapped_key = $2 and kubeconfig = $5",
    )
    .bind(id)
    .bind(&before.wrapped_key)
    .bind(&after.wrapped_key)
    .bind(&after.key_id)
    .bind(&before.ciphertext)
    .execute(pool)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// How many of them are how: for metrics.
pub async fn counts(pool: &PgPool) -> Result<(i64, i64), sqlx::Error> {
    sqlx::query_as("select (select count(*) from operators), (select count(*) from clusters)")
        .fetch_one(pool)
        .await
}
