//! Definitions and their history.

use jiff::SignedDuration;
use serde_json::Value;
use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::{Time, Window};

/// A definition with its newest schema.
#[derive(Clone, Debug, FromRow)]
pub struct CrdRow {
    pub id: Uuid,
    pub name: String,
    pub operator_name: Option<String>,
    pub status: String,
    pub migration_guide: Option<String>,
    pub deprecated_at: Option<Time>,
    pub deprecation_reason: Option<String>,
    pub revision: i64,
    pub created_at: Time,
    pub updated_at: Time,
    pub operator_version: String,
    pub api_group: String,
    pub kind: String,
    pub scope: String,
    pub api_versions: Vec<String>,
    pub position: i32,
    pub approval: String,
    /// The name of who decided on it, if it was not erased.
    pub approved_by: Option<String>,
    pub approved_at: Option<Time>,
}

/// Without the definition itself, which may have a megabyte, in each of hundreds of versions.
#[derive(Clone, Debug, FromRow)]
pub struct SchemaRow {
    pub operator_version: String,
    pub position: i32,
    pub api_group: String,
    pub kind: String,
    pub scope: String,
    pub api_versions: Vec<String>,
    pub digest: String,
    /// A list as JSON. Of hundreds of versions it takes a while to read: away from those who answer requests.
    pub changes: String,
    /// What breaks on the way back to the one before it, as JSON; nothing where that was not looked at yet.
    pub back: Option<String>,
    pub approval: String,
    /// The name of who approved it, if it was not erased.
    #[sqlx(default)]
    pub approved_by: Option<String>,
    pub approved_at: Option<Time>,
    pub approval_notes: Option<String>,
    /// Found in a chart, and not only told by somebody.
    pub from_chart: bool,
    pub created_at: Time,
}

#[derive(Clone, Debug, FromRow)]
pub struct OnClusterRow {
    pub cluster_name: String,
    pub environment: String,
    pub kubernetes_version: String,
    pub stored_versions: Vec<String>,
    /// The newest schema of ours that it could be.
    pub operator_version: Option<String>,
    pub position: Option<i32>,
    pub digest: String,
    pub seen_at: Time,
    /// Whether that is how it is now, as far as anybody can know.
    pub is_seen: bool,
}

/// A cluster of which nobody knows whether it has a definition.
#[derive(Clone, Debug, FromRow)]
pub struct UnseenRow {
    pub cluster_name: String,
    pub environment: String,
}

/// A definition as one of the set that its operator has.
#[derive(Clone, Debug, FromRow)]
pub struct OwnedRow {
    pub id: Uuid,
    pub name: String,
    pub status: String,
    pub is_deprecated: bool,
    /// Versions of the operator that it has a schema of.
    pub operator_versions: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub operator_name: Option<String>,
    pub group: Option<String>,
    pub status: Option<String>,
    pub approval: Option<String>,
}

macro_rules! newest_of {
    () => {
        " join lateral (select * from crd_schemas where crd_id = c.id order by position desc limit 1) s on true "
    };
}

macro_rules! newest {
    () => {
        concat!(" from crds c", newest_of!())
    };
}

macro_rules! columns {
    () => {
        "c.id, c.name, c.operator_name, c.status, c.migration_guide, c.deprecated_at, c.deprecation_reason, c.revision,
         c.created_at, c.updated_at, s.operator_version, s.api_group, s.kind, s.scope, s.api_versions,
         s.position, approval_now(c.id, s.approval, s.changes) as approval, s.approved_at,
         (select subject from people where id = s.approved_by) as approved_by"
    };
}

macro_rules! filter {
    () => {
        "where ($1::text is null or c.operator_name = $1) and ($3::text is null or c.status = $3)
         and ($2::text is null or substr(c.name, strpos(c.name, '.') + 1) = $2)"
    };
}

/// Begins with the schemas, of which few wait. Only what waits may be waived today, and only that is worth a call, which is a
/// query of its own.
macro_rules! approved {
    () => {
        concat!(
            " from crd_schemas s join crds c on c.id = s.crd_id ",
            filter!(),
            " and (s.approval = $4 or s.approval = 'Pending' and $4 = 'Waived')
              and not exists (select from crd_schemas n where n.crd_id = s.crd_id and n.position > s.position)
              and case s.approval when 'Pending' then approval_now(c.id, s.approval, s.changes) = $4 else true end"
        )
    };
}

/// No schema is looked at where its approval is not asked for.
macro_rules! unlooked {
    () => {
        concat!(" from crds c ", filter!(), " and $4::text is null")
    };
}

/// The page is found before anything of it is read: else that would be done for all that is skipped as well.
macro_rules! page {
    ($found:expr) => {
        concat!(
            "select ",
            columns!(),
            " from (select c.id",
            $found,
            " order by c.name limit $5 offset $6) page join crds c on c.id = page.id",
            newest_of!(),
            "order by c.name"
        )
    };
}

pub async fn list(pool: &PgPool, filter: &Filter, window: Window) -> Result<(Vec<CrdRow>, u64), sqlx::Error> {
    let (page, count) = if filter.approval.is_some() {
        (page!(approved!()), concat!("select count(*)", approved!()))
    } else {
        (page!(unlooked!()), concat!("select count(*)", unlooked!()))
    };
    // A plan that is kept fits all words of an approval, and none of them: it takes ten times as long.
    let is_kept = filter.approval.is_none();
    let rows = sqlx::query_as(page)
        .persistent(is_kept)
        .bind(&filter.operator_name)
        .bind(&filter.group)
        .bind(&filter.status)
        .bind(&filter.approval)
        .bind(window.limit())
        .bind(window.offset())
        .fetch_all(pool)
        .await?;
    let total: i64 = sqlx::query_scalar(count)
        .persistent(is_kept)
        .bind(&filter.operator_name)
        .bind(&filter.group)
        .bind(&filter.status)
        .bind(&filter.approval)
        .fetch_one(pool)
        .await?;
    Ok((rows, total as u64))
}

pub async fn get(connection: &mut PgConnection, name: &str) -> Result<Option<CrdRow>, sqlx::Error> {
    sqlx::query_as(concat!("select ", columns!(), newest!(), "where c.name = $1"))
        .bind(name)
        .fetch_optional(connection)
        .await
}

/// Waits for others who write a definition of this name, whether there is one yet or not, or one of its operator. The
/// operator is held first by everybody: what its versions bring is kept in rows that its definitions share.
pub async fn take_turn(
    connection: &mut PgConnection,
    name: &str,
    operator: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "select from operators
         where name = coalesce($2, (select operator_name from crds where name = $1)) for update",
    )
    .bind(name)
    .bind(operator)
    .execute(&mut *connection)
    .await?;
    sqlx::query("select pg_advisory_xact_lock(hashtext('crds.name'), hashtext($1))")
        .bind(name)
        .execute(connection)
        .await
        .map(drop)
}

pub async fn lock(connection: &mut PgConnection, name: &str) -> Result<Option<CrdRow>, sqlx::Error> {
    sqlx::query_as(concat!(
        "select ",
        columns!(),
        newest!(),
        "where c.name = $1 for update of c"
    ))
    .bind(name)
    .fetch_optional(connection)
    .await
}

/// All schemas of a definition, newest first.
pub async fn history(connection: &mut PgConnection, id: Uuid) -> Result<Vec<SchemaRow>, sqlx::Error> {
    sqlx::query_as(
        "select s.operator_version, s.position, s.api_group, s.kind, s.scope, s.api_versions, s.digest,
             s.changes::text as changes, s.back::text as back, approval_now(s.crd_id, s.approval, s.changes) as approval, p.subject as approved_by,
             s.approved_at, s.approval_notes, s.from_chart, s.created_at
         from crd_schemas s left join people p on p.id = s.approved_by
         where s.crd_id = $1 order by s.position desc",
    )
    .bind(id)
    .fetch_all(connection)
    .await
}

/// The definition as one version of the operator has it.
pub async fn definition(
    connection: &mut PgConnection,
    id: Uuid,
    operator_version: &str,
) -> Result<Value, sqlx::Error> {
    sqlx::query_scalar("select definition from crd_schemas where crd_id = $1 and operator_version = $2")
        .bind(id)
        .bind(operator_version)
        .fetch_one(connection)
        .await
}

/// Whether definitions were seen that lately, or so far ahead. Nobody looks at a cluster that is disabled, and nothing is
/// brought to it either: what was seen of it last counts.
macro_rules! is_seen {
    ($seconds:literal) => {
        concat!(
            "(not k.enabled or coalesce(k.definitions_seen_at between now() - make_interval(secs => ",
            $seconds,
            ") and now() + make_interval(secs => ",
            $seconds,
            "), false))"
        )
    };
}

/// Those that have it. What was seen longer ago than `fresh` may be otherwise by now.
pub async fn on_clusters(
    connection: &mut PgConnection,
    id: Uuid,
    name: &str,
    fresh: SignedDuration,
) -> Result<Vec<OnClusterRow>, sqlx::Error> {
    sqlx::query_as(concat!(
        "select k.name as cluster_name, k.environment, k.kubernetes_version, x.stored_versions, x.digest, x.seen_at,
             s.operator_version, s.position, ",
        is_seen!("$3"),
        " as is_seen
         from cluster_crds x join clusters k on k.id = x.cluster_id
         left join lateral (select operator_version, position from crd_schemas
                            where crd_id = $1 and digest = x.digest order by position desc limit 1) s on true
         where x.name = $2 order by k.name"
    ))
    .bind(id)
    .bind(name)
    .bind(fresh.as_secs_f64())
    .fetch_all(connection)
    .await
}

/// Those that were not seen to have it, and not lately enough to say that they have not.
pub async fn unseen(
    connection: &mut PgConnection,
    name: &str,
    fresh: SignedDuration,
) -> Result<Vec<UnseenRow>, sqlx::Error> {
    sqlx::query_as(concat!(
        "select k.name as cluster_name, k.environment from clusters k
         where not ",
        is_seen!("$2"),
        " and not exists (select from cluster_crds x where x.cluster_id = k.id and x.name = $1) order by k.name"
    ))
    .bind(name)
    .bind(fresh.as_secs_f64())
    .fetch_all(connection)
    .await
}

pub async fn of_operator(connection: &mut PgConnection, operator: &str) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select count(*) from crds where operator_name = $1")
        .bind(operator)
        .fetch_one(connection)
        .await
}

pub async fn insert(
    connection: &mut PgConnection,
    name: &str,
    operator: Option<&str>,
    guide: Option<&str>,
    now: Time,
) -> Result<Uuid, sqlx::Error> {
    sqlx::query_scalar(
        "insert into crds (id, name, operator_name, migration_guide, created_at, updated_at)
         values ($1, $2, $3, $4, $5, $5) returning id",
    )
    .bind(Uuid::new_v4())
    .bind(name)
    .bind(operator)
    .bind(guide)
    .bind(now)
    .fetch_one(connection)
    .await
}

/// What people write about it. Counts the revision up.
pub async fn update(connection: &mut PgConnection, row: &CrdRow, now: Time) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update crds set operator_name = $2, status = $3, migration_guide = $4, deprecated_at = $5,
             deprecation_reason = $6, revision = revision + 1, updated_at = $7
         where id = $1",
    )
    .bind(row.id)
    .bind(&row.operator_name)
    .bind(&row.status)
    .bind(&row.migration_guide)
    .bind(row.deprecated_at)
    .bind(&row.deprecation_reason)
    .bind(now)
    .execute(connection)
    .await
    .map(drop)
}

pub async fn owned(connection: &mut PgConnection, operator: &str) -> Result<Vec<OwnedRow>, sqlx::Error> {
    sqlx::query_as(
        "select c.id, c.name, c.status, c.deprecated_at is not null as is_deprecated,
             array(select s.operator_version from crd_schemas s where s.crd_id = c.id) as operator_versions
         from crds c where c.operator_name = $1 order by c.name",
    )
    .bind(operator)
    .fetch_all(connection)
    .await
}

/// The definitions of an operator that goes are nobody's, and its versions say nothing of them any more.
pub async fn disown(connection: &mut PgConnection, operator: &str, now: Time) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update crds set operator_name = null, revision = revision + 1, updated_at = $2,
             status = case when status <> 'Removed' then status
                 when deprecated_at is null then 'Active' else 'Deprecated' end
         where operator_name = $1",
    )
    .bind(operator)
    .bind(now)
    .execute(connection)
    .await
    .map(drop)
}

pub async fn set_status(
    connection: &mut PgConnection,
    id: Uuid,
    status: &str,
    now: Time,
) -> Result<(), sqlx::Error> {
    sqlx::query("update crds set status = $2, revision = revision + 1, updated_at = $3 where id = $1")
        .bind(id)
        .bind(status)
        .bind(now)
        .execute(connection)
        .await
        .map(drop)
}
