//! Operators and the versions in their chart repositories. When a repository is visited is told by the clock of the database,
//! since those of replicas may differ.

use jiff::SignedDuration;
use serde_json::Value;
use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::{Terms, Time, Window};
use crate::infrastructure::keys::{Current, Sealed};

#[derive(Clone, Debug, FromRow)]
pub struct OperatorRow {
    pub id: Uuid,
    pub name: String,
    pub description: String,
    pub namespace: String,
    pub chart_repository: String,
    pub chart_name: String,
    pub current_version: Option<String>,
    pub latest_version: Option<String>,
    pub has_update: bool,
    pub labels: Value,
    pub default_values: Value,
    pub revision: i64,
    pub created_at: Time,
    pub updated_at: Time,
    pub has_credentials: bool,
    /// The definitions of its current version.
    pub crd_names: Vec<String>,
}

#[derive(Clone, Debug, FromRow)]
pub struct VersionRow {
    pub version: String,
    pub app_version: Option<String>,
    pub released_at: Option<Time>,
    pub deprecated: bool,
    pub digest: Option<String>,
    pub location: String,
    pub changelog_url: Option<String>,
    pub discovery: String,
    pub discovery_message: Option<String>,
    #[sqlx(default)]
    pub crd_names: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub namespace: Option<String>,
    pub labels: Value,
    pub has_update: Option<bool>,
}

macro_rules! columns {
    () => {
        "o.id, o.name, o.description, o.namespace, o.chart_repository, o.chart_name, o.current_version,
         o.latest_version, o.has_update, o.labels, o.default_values, o.revision, o.created_at, o.updated_at,
         o.credentials is not null as has_credentials,
         coalesce((select crd_names from operator_crds
                   where operator_name = o.name and operator_version = o.current_version), '{}') as crd_names"
    };
}

macro_rules! filter {
    () => {
        "($1::text is null or o.namespace = $1) and o.labels @> $2 and ($3::bool is null or o.has_update = $3)"
    };
}

pub async fn list(
    pool: &PgPool,
    filter: &Filter,
    window: Window,
) -> Result<(Vec<OperatorRow>, u64), sqlx::Error> {
    let rows = sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from operators o where ",
        filter!(),
        " order by o.name limit $4 offset $5"
    ))
    .bind(&filter.namespace)
    .bind(&filter.labels)
    .bind(filter.has_update)
    .bind(window.limit())
    .bind(window.offset())
    .fetch_all(pool)
    .await?;
    let total: i64 = sqlx::query_scalar(concat!("select count(*) from operators o where ", filter!()))
        .bind(&filter.namespace)
        .bind(&filter.labels)
        .bind(filter.has_update)
        .fetch_one(pool)
        .await?;
    Ok((rows, total as u64))
}

pub async fn get(connection: &mut PgConnection, name: &str) -> Result<Option<OperatorRow>, sqlx::Error> {
    sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from operators o where o.name = $1"
    ))
    .bind(name)
    .fetch_optional(connection)
    .await
}

/// The row, held until the transaction ends.
pub async fn lock(connection: &mut PgConnection, name: &str) -> Result<Option<OperatorRow>, sqlx::Error> {
    sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from operators o where o.name = $1 for update of o"
    ))
    .bind(name)
    .fetch_optional(connection)
    .await
}

pub async fn count(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    // Whoever adds one waits for others that do: the limit holds also when two come at once.
    sqlx::query("select pg_advisory_xact_lock(hashtext('operators.count'))")
        .execute(&mut *connection)
        .await?;
    sqlx::query_scalar("select count(*) from operators")
        .fetch_one(connection)
        .await
}

/// Its repository is visited at once.
pub async fn insert(connection: &mut PgConnection, row: &OperatorRow) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into operators (id, name, description, namespace, chart_repository, chart_name, current_version,
             latest_version, has_update, labels, default_values, created_at, updated_at, refresh_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, now())",
    )
    .bind(row.id)
    .bind(&row.name)
    .bind(&row.description)
    .bind(&row.namespace)
    .bind(&row.chart_repository)
    .bind(&row.chart_name)
    .bind(&row.current_version)
    .bind(&row.latest_version)
    .bind(row.has_update)
    .bind(&row.labels)
    .bind(&row.default_values)
    .bind(row.created_at)
    .execute(connection)
    .await
    .map(drop)
}

/// Writes what may change, and counts the revision up.
pub async fn update(connection: &mut PgConnection, row: &OperatorRow, now: Time) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update operators set description = $2, current_version = $3, latest_version = $4, has_update = $5,
             labels = $6, default_values = $7, revision = revision + 1, updated_at = $8
         where id = $1",
    )
    .bind(row.id)
    .bind(&row.description)
    .bind(&row.current_version)
    .bind(&row.latest_version)
    .bind(row.has_update)
    .bind(&row.labels)
    .bind(&row.default_values)
    .bind(now)
    .execute(connection)
    .await
    .map(drop)
}

/// What its repository is asked with.
pub async fn sealed(pool: &PgPool, id: Uuid) -> Result<Option<Sealed>, sqlx::Error> {
    let row: Option<SealedRow> = sqlx::query_as(
        "select id, credentials, wrapped_key, key_id from operators where id = $1 and credentials is not null",
    )
    .bind(id)
    .fetch_optional(pool)
    .await?;
    Ok(row.map(|row| of_row(row).1))
}

pub async fn seal(
    connection: &mut PgConnection,
    id: Uuid,
    sealed: Option<&Sealed>,
) -> Result<(), sqlx::Error> {
    sqlx::query("update operators set credentials = $2, wrapped_key = $3, key_id = $4 where id = $1")
        .bind(id)
        .bind(sealed.map(|sealed| &sealed.ciphertext))
        .bind(sealed.map(|sealed| &sealed.wrapped_key))
        .bind(sealed.map(|sealed| &sealed.key_id))
        .execute(connection)
        .await
        .map(drop)
}

type SealedRow = (Uuid, Vec<u8>, Vec<u8>, String);

fn of_row((id, ciphertext, wrapped_key, key_id): SealedRow) -> (Uuid, Sealed) {
    let sealed = Sealed {
        ciphertext,
        wrapped_key,
        key_id,
    };
    (id, sealed)
}

/// Some whose key is not the one that wraps now.
pub async fn wrapped_by_others(
    pool: &PgPool,
    key: &Current,
    most: i64,
) -> Result<Vec<(Uuid, Sealed)>, sqlx::Error> {
    let rows: Vec<SealedRow> = sqlx::query_as(
        "select id, credentials, wrapped_key, key_id from operators
         where credentials is not null
             and (key_id <> $1 or substring(wrapped_key from 1 for octet_length($3)) <> $3)
         order by id limit $2",
    )
    .bind(&key.id)
    .bind(most)
    .bind(&key.prefix)
    .fetch_all(pool)
    .await?;
    Ok(rows.into_iter().map(of_row).collect())
}

/// Writes a rewrapped key, unless the secret was changed since it was read.
pub async fn rewrap(pool: &PgPool, id: Uuid, before: &Sealed, after: &Sealed) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "update operators set wrapped_key = $3, key_id = $4 where id = $1 and wrapped_key = $2 and credentials = $5",
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

pub async fn delete(connection: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("delete from operators where id = $1")
        .bind(id)
        .execute(connection)
        .await
        .map(drop)
}

pub async fn versions(
    connection: &mut PgConnection,
    operator: &OperatorRow,
    window: Window,
) -> Result<(Vec<VersionRow>, u64), sqlx::Error> {
    let rows = sqlx::query_as(
        "select v.version, v.app_version, v.released_at, v.deprecated, v.digest, v.location, v.changelog_url,
             v.discovery, v.discovery_message,
             coalesce((select crd_names from operator_crds
                       where operator_name = $2 and operator_version = v.version), '{}') as crd_names
         from operator_versions v where v.operator_id = $1 order by v.position limit $3 offset $4",
    )
    .bind(operator.id)
    .bind(&operator.name)
    .bind(window.limit())
    .bind(window.offset())
    .fetch_all(&mut *connection)
    .await?;
    let total: i64 = sqlx::query_scalar("select count(*) from operator_versions where operator_id = $1")
        .bind(operator.id)
        .fetch_one(connection)
        .await?;
    Ok((rows, total as u64))
}

/// The versions that a repository has, newest first. What is known of those that stay, stays, unless it is another chart
/// by now; the others go. A registry does not tell digests with its versions: those are `republished`'s.
pub async fn set_versions(
    connection: &mut PgConnection,
    operator: Uuid,
    versions: &[VersionRow],
    is_registry: bool,
) -> Result<(), sqlx::Error> {
    let names: Vec<&str> = versions.iter().map(|version| version.version.as_str()).collect();
    sqlx::query("delete from operator_versions where operator_id = $1 and version <> all($2)")
        .bind(operator)
        .bind(&names)
        .execute(&mut *connection)
        .await?;
    for (position, version) in versions.iter().enumerate() {
        sqlx::query(
            "insert into operator_versions (operator_id, version, position, app_version, released_at, deprecated,
                 digest, location, changelog_url, discovery, discovery_message)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
             on conflict (operator_id, version) do update set position = excluded.position,
                 app_version = excluded.app_version, released_at = excluded.released_at,
                 deprecated = excluded.deprecated, location = excluded.location,
                 changelog_url = excluded.changelog_url,
                 digest = case when $12 then operator_versions.digest else excluded.digest end,
                 discovery = case when not $12 and operator_versions.digest is distinct from excluded.digest
                     then 'Pending' else operator_versions.discovery end,
                 attempts = case when not $12 and operator_versions.digest is distinct from excluded.digest
                     then 0 else operator_versions.attempts end",
        )
        .bind(operator)
        .bind(&version.version)
        .bind(position as i32)
        .bind(&version.app_version)
        .bind(version.released_at)
        .bind(version.deprecated)
        .bind(&version.digest)
        .bind(&version.location)
        .bind(&version.changelog_url)
        .bind(&version.discovery)
        .bind(&version.discovery_message)
        .bind(is_registry)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// One more, as the oldest; its place among the others is found with the next list of the repository.
pub async fn add_version(
    connection: &mut PgConnection,
    operator: Uuid,
    version: &VersionRow,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into operator_versions (operator_id, version, position, app_version, released_at, deprecated, digest,
             location, changelog_url)
         values ($1, $2, (select coalesce(max(position) + 1, 0) from operator_versions where operator_id = $1),
             $3, $4, $5, $6, $7, $8)
         on conflict (operator_id, version) do nothing",
    )
    .bind(operator)
    .bind(&version.version)
    .bind(&version.app_version)
    .bind(version.released_at)
    .bind(version.deprecated)
    .bind(&version.digest)
    .bind(&version.location)
    .bind(&version.changelog_url)
    .execute(connection)
    .await
    .map(drop)
}

/// Charts of a registry that are other ones by now are to be read again, and `note` says so until then; whether there are
/// any. What could not be asked for is what it was.
pub async fn republished(
    pool: &PgPool,
    operator: Uuid,
    versions: &[&str],
    digests: &[Option<String>],
    note: &str,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "update operator_versions v set discovery = 'Pending', digest = found.digest, discovery_message = $4, attempts = 0
         from unnest($2::text[], $3::text[]) as found (version, digest)
         where v.operator_id = $1 and v.version = found.version and found.digest is not null
           and v.digest is distinct from found.digest",
    )
    .bind(operator)
    .bind(versions)
    .bind(digests)
    .bind(note)
    .execute(pool)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Charts that are to be read again: those that could not be read, or all. What was said of them stays until then.
pub async fn read_again(connection: &mut PgConnection, operator: Uuid, all: bool) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update operator_versions set discovery = 'Pending' where operator_id = $1 and (discovery = 'Failed' or $2)",
    )
    .bind(operator)
    .bind(all)
    .execute(connection)
    .await
    .map(drop)
}

/// Whether the chart of a version may be read: not where that was begun so often, and never finished. It counts as begun now.
pub async fn begin_reading(
    pool: &PgPool,
    operator: Uuid,
    version: &str,
    most: i32,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "update operator_versions set attempts = attempts + 1 where operator_id = $1 and version = $2 and attempts < $3",
    )
    .bind(operator)
    .bind(version)
    .bind(most)
    .execute(pool)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// It was read, whatever came of it.
pub async fn end_reading(pool: &PgPool, operator: Uuid, version: &str) -> Result<(), sqlx::Error> {
    sqlx::query("update operator_versions set attempts = 0 where operator_id = $1 and version = $2")
        .bind(operator)
        .bind(version)
        .execute(pool)
        .await
        .map(drop)
}

/// Somebody wants charts to be read that were given up.
pub async fn forget_attempts(connection: &mut PgConnection, operator: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("update operator_versions set attempts = 0 where operator_id = $1 and attempts > 0")
        .bind(operator)
        .execute(connection)
        .await
        .map(drop)
}

/// The next visit is at once. One that is under way loses its claim, so that its end does not put this one off.
pub async fn visit_soon(connection: &mut PgConnection, operator: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("update operators set refresh_at = now(), refresh_holder = null where id = $1")
        .bind(operator)
        .execute(connection)
        .await
        .map(drop)
}

/// Writes what came of reading a chart; nothing when the version is gone by now, or is another chart. What was known of it
/// stays known when it cannot be read any more. The digest that was `read` counts where none was told: what a registry tells
/// is compared with what it tells the next time, and need not be what we make of the manifest.
pub async fn set_discovery(
    connection: &mut PgConnection,
    operator: Uuid,
    version: &VersionRow,
    discovery: &str,
    message: Option<&str>,
    brings: Option<&[String]>,
    read: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "update operator_versions set discovery = $3, discovery_message = $4, digest = coalesce(digest, $7),
             brings = case when $3 = 'Failed' then brings else $6 end
         where operator_id = $1 and version = $2 and digest is not distinct from $5",
    )
    .bind(operator)
    .bind(&version.version)
    .bind(discovery)
    .bind(message)
    .bind(&version.digest)
    .bind(brings)
    .bind(read)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The versions whose charts were read in full, with the definitions in them.
pub async fn brought(
    connection: &mut PgConnection,
    operator: Uuid,
) -> Result<Vec<(String, Vec<String>)>, sqlx::Error> {
    sqlx::query_as(
        "select version, brings from operator_versions
         where operator_id = $1 and not deprecated and brings is not null",
    )
    .bind(operator)
    .fetch_all(connection)
    .await
}

/// Operators whose repository is to be asked, with the time until which each is this holder's; others look past them until
/// then. One that would have to wait longer than the farthest was written before a clock was put back, and is due as well.
pub async fn claim(
    pool: &PgPool,
    holder: Uuid,
    terms: Terms,
    most: i64,
) -> Result<Vec<(Time, OperatorRow)>, sqlx::Error> {
    #[derive(FromRow)]
    struct Claimed {
        #[sqlx(flatten)]
        row: OperatorRow,
        refresh_at: Time,
    }
    let claimed: Vec<Claimed> = sqlx::query_as(concat!(
        "update operators o set refresh_holder = $1, refresh_at = now() + make_interval(secs => $2) where o.id in (
             select id from operators
             where refresh_at <= now() or refresh_at > now() + make_interval(secs => $3)
             order by refresh_at limit $4 for update skip locked)
         returning o.refresh_at, ",
        columns!()
    ))
    .bind(holder)
    .bind(terms.lease.as_secs_f64())
    .bind(terms.farthest.as_secs_f64())
    .bind(most)
    .fetch_all(pool)
    .await?;
    Ok(claimed.into_iter().map(|one| (one.refresh_at, one.row)).collect())
}

/// Gives an operator back that was claimed until `until`, to be asked again `after` now. Nothing happens when another visit
/// has it by now.
pub async fn release(
    pool: &PgPool,
    id: Uuid,
    holder: Uuid,
    until: Time,
    after: SignedDuration,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update operators set refresh_holder = null, refresh_at = now() + make_interval(secs => $3)
         where id = $1 and refresh_holder = $2 and refresh_at = $4",
    )
    .bind(id)
    .bind(holder)
    .bind(after.as_secs_f64())
    .bind(until)
    .execute(pool)
    .await
    .map(drop)
}

/// Says why a chart could not be had; it comes after the others.
pub async fn put_off(pool: &PgPool, operator: Uuid, version: &str, why: &str) -> Result<(), sqlx::Error> {
    sqlx::query("update operator_versions set discovery_message = $3 where operator_id = $1 and version = $2")
        .bind(operator)
        .bind(version)
        .bind(why)
        .execute(pool)
        .await
        .map(drop)
}

/// The next versions of an operator whose definitions are not known yet; first those that were not tried.
pub async fn undiscovered(pool: &PgPool, operator: Uuid, most: i64) -> Result<Vec<VersionRow>, sqlx::Error> {
    sqlx::query_as(
        "select version, app_version, released_at, deprecated, digest, location, changelog_url, discovery,
             discovery_message
         from operator_versions where operator_id = $1 and discovery = 'Pending'
         order by discovery_message is not null, position limit $2",
    )
    .bind(operator)
    .bind(most)
    .fetch_all(pool)
    .await
}
