//! What is written about the schemas of definitions, one for each version of the operator.

use serde_json::Value;
use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::{Time, crds::SchemaRow};

/// Adds a schema at its position; those from there on move up.
pub async fn insert(
    connection: &mut PgConnection,
    crd: Uuid,
    row: &SchemaRow,
    definition: &Value,
) -> Result<(), sqlx::Error> {
    // In two steps, because positions are unique at every moment.
    sqlx::query("update crd_schemas set position = -position - 1 where crd_id = $1 and position >= $2")
        .bind(crd)
        .bind(row.position)
        .execute(&mut *connection)
        .await?;
    sqlx::query("update crd_schemas set position = -position where crd_id = $1 and position < 0")
        .bind(crd)
        .execute(&mut *connection)
        .await?;
    sqlx::query(
        "insert into crd_schemas (crd_id, operator_version, position, definition, api_group, kind, scope, api_versions,
             digest, changes, approval, created_at, back, from_chart)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb, $11, $12, $13::jsonb, $14)",
    )
    .bind(crd)
    .bind(&row.operator_version)
    .bind(row.position)
    .bind(definition)
    .bind(&row.api_group)
    .bind(&row.kind)
    .bind(&row.scope)
    .bind(&row.api_versions)
    .bind(&row.digest)
    .bind(&row.changes)
    .bind(&row.approval)
    .bind(row.created_at)
    .bind(&row.back)
    .bind(row.from_chart)
    .execute(connection)
    .await
    .map(drop)
}

/// Puts what is in a chart in the place of what somebody said would be in it.
pub async fn replace(
    connection: &mut PgConnection,
    crd: Uuid,
    row: &SchemaRow,
    definition: &Value,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update crd_schemas set definition = $3, api_group = $4, kind = $5, scope = $6, api_versions = $7, digest = $8,
             from_chart = $9
         where crd_id = $1 and operator_version = $2",
    )
    .bind(crd)
    .bind(&row.operator_version)
    .bind(definition)
    .bind(&row.api_group)
    .bind(&row.kind)
    .bind(&row.scope)
    .bind(&row.api_versions)
    .bind(&row.digest)
    .bind(row.from_chart)
    .execute(&mut *connection)
    .await?;
    sqlx::query("update crds set revision = revision + 1, updated_at = $2 where id = $1")
        .bind(crd)
        .bind(row.created_at)
        .execute(&mut *connection)
        .await?;
    set_changes(
        connection,
        crd,
        &row.operator_version,
        &row.changes,
        row.back.as_deref(),
        &row.approval,
    )
    .await
}

/// The chart has the same.
pub async fn set_from_chart(
    connection: &mut PgConnection,
    crd: Uuid,
    operator_version: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query("update crd_schemas set from_chart = true where crd_id = $1 and operator_version = $2")
        .bind(crd)
        .bind(operator_version)
        .execute(connection)
        .await
        .map(drop)
}

/// A schema whose digest is of another form, or whose way back was not looked at, with the definition before it.
#[derive(Clone, Debug, FromRow)]
pub struct StaleRow {
    pub crd_id: Uuid,
    pub operator_version: String,
    pub digest: String,
    pub definition: Value,
    pub before: Option<Value>,
}

/// Some of them, after this one.
pub async fn stale(
    pool: &PgPool,
    form: &str,
    after: (Uuid, &str),
    most: i64,
) -> Result<Vec<StaleRow>, sqlx::Error> {
    sqlx::query_as(
        "select s.crd_id, s.operator_version, s.digest, s.definition,
             (select b.definition from crd_schemas b where b.crd_id = s.crd_id and b.position < s.position
              order by b.position desc limit 1) as before
         from crd_schemas s
         where (s.back is null or not starts_with(s.digest, $1)) and (s.crd_id, s.operator_version) > ($2, $3)
         order by s.crd_id, s.operator_version limit $4",
    )
    .bind(form)
    .bind(after.0)
    .bind(after.1)
    .bind(most)
    .fetch_all(pool)
    .await
}

/// Writes what was found out anew, unless somebody else did.
pub async fn renew(pool: &PgPool, row: &StaleRow, digest: &str, back: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update crd_schemas set digest = $3, back = coalesce(back, $4::jsonb)
         where crd_id = $1 and operator_version = $2 and digest = $5",
    )
    .bind(row.crd_id)
    .bind(&row.operator_version)
    .bind(digest)
    .bind(back)
    .bind(&row.digest)
    .execute(pool)
    .await
    .map(drop)
}

/// The schema that follows one that was put in before it is compared anew. Who decided on it is kept with the decision.
pub async fn set_changes(
    connection: &mut PgConnection,
    crd: Uuid,
    operator_version: &str,
    changes: &str,
    back: Option<&str>,
    approval: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update crd_schemas set changes = $3::jsonb, back = $5::jsonb, approval = $4,
             approved_by = case when $4 in ('Approved', 'Rejected') then approved_by end,
             approved_at = case when $4 in ('Approved', 'Rejected') then approved_at end,
             approval_notes = case when $4 in ('Approved', 'Rejected') then approval_notes end
         where crd_id = $1 and operator_version = $2",
    )
    .bind(crd)
    .bind(operator_version)
    .bind(changes)
    .bind(approval)
    .bind(back)
    .execute(connection)
    .await
    .map(drop)
}

pub async fn decide(
    connection: &mut PgConnection,
    crd: Uuid,
    operator_version: &str,
    approval: &str,
    person: Uuid,
    notes: &str,
    now: Time,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update crd_schemas set approval = $6, approved_by = $3, approved_at = $4, approval_notes = $5
         where crd_id = $1 and operator_version = $2",
    )
    .bind(crd)
    .bind(operator_version)
    .bind(person)
    .bind(now)
    .bind(notes)
    .bind(approval)
    .execute(connection)
    .await
    .map(drop)
}

/// Forgets schemas from before this, except those that something needs: the newest of a definition, what a cluster runs,
/// what an operator has as its current version, what waits for an approval, and what was rejected: with it the rejection
/// would go. What a cluster runs is not known while a digest is of another form.
pub async fn forget(connection: &mut PgConnection, before: Time, form: &str) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(
        "delete from crd_schemas s using crds c
         where c.id = s.crd_id and s.created_at < $1 and s.approval not in ('Pending', 'Rejected')
           and starts_with(s.digest, $2)
           and s.position < (select max(n.position) from crd_schemas n where n.crd_id = s.crd_id)
           and not exists (select from cluster_crds x
                           where x.name = c.name and (x.digest = s.digest or not starts_with(x.digest, $2)))
           and not exists (select from operators o
                           where o.name = c.operator_name and o.current_version = s.operator_version)",
    )
    .bind(before)
    .bind(form)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
