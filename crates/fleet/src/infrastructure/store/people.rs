//! Names of people, once, and local users.

use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::{Time, Window};

/// The id of somebody, made when they are seen for the first time. Best outside of a transaction: a row that is made
/// here makes others wait who act under the same name.
pub async fn id_of(connection: &mut PgConnection, subject: &str) -> Result<Uuid, sqlx::Error> {
    if let Some(id) = known(&mut *connection, subject).await? {
        return Ok(id);
    }
    // Not "do update": that would lock the row of somebody whose audit entries others are about to write.
    sqlx::query("insert into people (id, subject) values ($1, $2) on conflict (subject) do nothing")
        .bind(Uuid::new_v4())
        .bind(subject)
        .execute(&mut *connection)
        .await?;
    sqlx::query_scalar("select id from people where subject = $1")
        .bind(subject)
        .fetch_one(connection)
        .await
}

/// The id of somebody who was seen before.
pub async fn known(connection: &mut PgConnection, subject: &str) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar("select id from people where subject = $1")
        .bind(subject)
        .fetch_optional(connection)
        .await
}

/// Whether there is this local user, with the password of that generation.
pub async fn is_user(pool: &PgPool, id: Uuid, generation: i32) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select exists (select from users where id = $1 and generation = $2)")
        .bind(id)
        .bind(generation)
        .fetch_one(pool)
        .await
}

/// Whether there is this local user, who then stays until the transaction ends: who removes them waits for it.
pub async fn hold_user(
    connection: &mut PgConnection,
    id: Uuid,
    generation: Option<i32>,
) -> Result<bool, sqlx::Error> {
    let found: Option<i32> = sqlx::query_scalar(
        "select 1 from users where id = $1 and generation = coalesce($2, generation) for key share",
    )
    .bind(id)
    .bind(generation)
    .fetch_optional(connection)
    .await?;
    Ok(found.is_some())
}

/// Forgets a name. What they did stays, under an id that says nothing.
pub async fn erase(connection: &mut PgConnection, id: Uuid, now: Time) -> Result<(), sqlx::Error> {
    sqlx::query("update people set subject = null, erased_at = $2 where id = $1")
        .bind(id)
        .bind(now)
        .execute(connection)
        .await
        .map(drop)
}

#[derive(Clone, FromRow)]
pub struct UserRow {
    pub id: Uuid,
    pub username: String,
    pub password_hash: String,
    pub roles: Vec<String>,
    pub environments: Option<Vec<String>>,
    pub failures: i32,
    pub locked_until: Option<Time>,
    /// Counts the changes of the password.
    pub generation: i32,
    pub created_at: Time,
}

macro_rules! columns {
    () => {
        "id, username, password_hash, roles, environments, failures, locked_until, generation, created_at"
    };
}

pub async fn users(pool: &PgPool, window: Window) -> Result<(Vec<UserRow>, u64), sqlx::Error> {
    let rows = sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from users order by username limit $1 offset $2"
    ))
    .bind(window.limit())
    .bind(window.offset())
    .fetch_all(pool)
    .await?;
    let total: i64 = sqlx::query_scalar("select count(*) from users")
        .fetch_one(pool)
        .await?;
    Ok((rows, total as u64))
}

pub async fn user(connection: &mut PgConnection, username: &str) -> Result<Option<UserRow>, sqlx::Error> {
    sqlx::query_as(concat!("select ", columns!(), " from users where username = $1"))
        .bind(username)
        .fetch_optional(connection)
        .await
}

pub async fn user_by_id(connection: &mut PgConnection, id: Uuid) -> Result<Option<UserRow>, sqlx::Error> {
    sqlx::query_as(concat!("select ", columns!(), " from users where id = $1"))
        .bind(id)
        .fetch_optional(connection)
        .await
}

/// Gives a user another password, and ends the tokens from before; the generation that tokens have from now on. Nothing is
/// done where somebody else was first.
pub async fn set_password(
    connection: &mut PgConnection,
    id: Uuid,
    generation: i32,
    hash: &str,
) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar(
        "update users set password_hash = $3, generation = generation + 1 where id = $1 and generation = $2
         returning generation",
    )
    .bind(id)
    .bind(generation)
    .bind(hash)
    .fetch_optional(connection)
    .await
}

pub async fn insert(connection: &mut PgConnection, row: &UserRow) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into users (id, username, password_hash, roles, environments, created_at)
         values ($1, $2, $3, $4, $5, $6)",
    )
    .bind(row.id)
    .bind(&row.username)
    .bind(&row.password_hash)
    .bind(&row.roles)
    .bind(&row.environments)
    .bind(row.created_at)
    .execute(connection)
    .await
    .map(drop)
}

pub async fn delete(connection: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("delete from users where id = $1")
        .bind(id)
        .execute(connection)
        .await
        .map(drop)
}

/// Until when nobody gets in; the row is held until the transaction ends, but not against what the user does with a token.
pub async fn locked_until(connection: &mut PgConnection, id: Uuid) -> Result<Option<Time>, sqlx::Error> {
    let found: Option<Option<Time>> =
        sqlx::query_scalar("select locked_until from users where id = $1 for no key update")
            .bind(id)
            .fetch_optional(connection)
            .await?;
    Ok(found.flatten())
}

/// Counts a failed login, and gives the number of them in a row; none for nobody.
pub async fn failed(connection: &mut PgConnection, id: Uuid) -> Result<i32, sqlx::Error> {
    let failures: Option<i32> = sqlx::query_scalar(
        "update users set failures = least(failures, 1000000) + 1 where id = $1 returning failures",
    )
    .bind(id)
    .fetch_optional(connection)
    .await?;
    Ok(failures.unwrap_or(0))
}

pub async fn set_lock(
    connection: &mut PgConnection,
    id: Uuid,
    until: Option<Time>,
) -> Result<(), sqlx::Error> {
    sqlx::query("update users set locked_until = $2 where id = $1")
        .bind(id)
        .bind(until)
        .execute(connection)
        .await
        .map(drop)
}

pub async fn succeeded(connection: &mut PgConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("update users set failures = 0, locked_until = null where id = $1 and failures > 0")
        .bind(id)
        .execute(connection)
        .await
        .map(drop)
}

/// Forgets the names of those who did nothing since then and cannot log in here. `always` is never forgotten. The last thing that
/// somebody did is at one end of an index; whether there is any would be asked of the whole log.
pub async fn forget(
    connection: &mut PgConnection,
    before: Time,
    always: &str,
    now: Time,
) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(
        "update people p set subject = null, erased_at = $3
         where p.subject is not null and p.subject <> $2
           and not exists (select from users u where u.id = p.id)
           and not exists (select from idempotency i where i.person = p.id and i.created_at >= $1)
           and (select max(a.at) from audit a where a.actor = p.id) < $1",
    )
    .bind(before)
    .bind(always)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
