//! The audit log: lines of a chain, and beside them what can be erased.

use gantry_ledger::Head;
use serde_json::Value;
use sqlx::{FromRow, PgConnection, PgPool, Postgres, Transaction};
use uuid::Uuid;

use super::{Time, Window};

/// The name of the chain; part of its first hash.
pub const LEDGER: &str = "gantry-fleet-audit";

#[derive(Clone, Debug, FromRow)]
pub struct AuditRow {
    pub seq: i64,
    pub at: Time,
    pub action: String,
    pub outcome: String,
    pub actor: Uuid,
    pub subject: Option<String>,
    pub target_kind: String,
    pub target_id: String,
    pub trace_id: Option<String>,
    pub line: String,
    pub details: Option<String>,
}

/// What is written beside the line.
#[derive(Debug)]
pub struct NewAudit<'a> {
    pub at: Time,
    pub action: &'a str,
    pub outcome: &'a str,
    pub actor: Uuid,
    pub target_kind: &'a str,
    pub target_id: &'a str,
    pub trace_id: Option<&'a str>,
    /// Salt and text.
    pub details: Option<(&'a [u8], &'a str)>,
}

/// The head, held until the transaction ends: entries are written one after the other.
pub async fn lock_head(connection: &mut PgConnection) -> Result<Head, sqlx::Error> {
    let genesis = Head::genesis(LEDGER);
    sqlx::query("insert into audit_head (seq, hash) values (0, $1) on conflict do nothing")
        .bind(genesis.hash.to_string())
        .execute(&mut *connection)
        .await?;
    let (seq, hash): (i64, String) =
        sqlx::query_as("select seq, hash from audit_head where singleton for update")
            .fetch_one(connection)
            .await?;
    let hash = hash
        .parse()
        .map_err(|_| sqlx::Error::Decode("audit_head.hash is not a hash".into()))?;
    Ok(Head {
        seq: seq as u64,
        hash,
    })
}

pub async fn append(
    connection: &mut PgConnection,
    head: &Head,
    signed: Option<&Value>,
    line: &str,
    new: &NewAudit<'_>,
) -> Result<(), sqlx::Error> {
    let seq = head.seq as i64;
    sqlx::query(
        "insert into audit (seq, at, action, outcome, actor, target_kind, target_id, trace_id, line)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(seq)
    .bind(new.at)
    .bind(new.action)
    .bind(new.outcome)
    .bind(new.actor)
    .bind(new.target_kind)
    .bind(new.target_id)
    .bind(new.trace_id)
    .bind(line)
    .execute(&mut *connection)
    .await?;
    if let Some((salt, text)) = new.details {
        sqlx::query("insert into audit_details (seq, salt, details) values ($1, $2, $3)")
            .bind(seq)
            .bind(salt)
            .bind(text)
            .execute(&mut *connection)
            .await?;
    }
    sqlx::query("update audit_head set seq = $1, hash = $2, signed = $3 where singleton")
        .bind(seq)
        .bind(head.hash.to_string())
        .bind(signed)
        .execute(connection)
        .await
        .map(drop)
}

#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Exactly, or as a beginning when it ends with a dot.
    pub action: Option<String>,
    pub outcome: Option<String>,
    pub actor: Option<String>,
    pub target_kind: Option<String>,
    pub target_id: Option<String>,
    pub since: Option<Time>,
    pub until: Option<Time>,
    pub ascending: bool,
}

macro_rules! filter {
    () => {
        " from audit a left join people p on p.id = a.actor left join audit_details d on d.seq = a.seq
         where ($1::text is null or a.action = $1 or ($1 like '%.' and starts_with(a.action, $1)))
           and ($2::text is null or a.outcome = $2) and ($3::text is null or p.subject = $3)
           and ($4::text is null or a.target_kind = $4) and ($5::text is null or a.target_id = $5)
           and ($6::timestamptz is null or a.at >= $6) and ($7::timestamptz is null or a.at < $7) "
    };
}

macro_rules! select {
    ($order:literal) => {
        concat!(
            "select a.seq, a.at, a.action, a.outcome, a.actor, p.subject, a.target_kind, a.target_id, a.trace_id, a.line,
                 d.details",
            filter!(),
            $order,
            " limit $8 offset $9"
        )
    };
}

pub async fn list(
    pool: &PgPool,
    filter: &Filter,
    window: Window,
) -> Result<(Vec<AuditRow>, u64), sqlx::Error> {
    // Written out twice: an order that depends on a parameter would sort the whole log.
    let query = if filter.ascending {
        sqlx::query_as(select!("order by a.seq"))
    } else {
        sqlx::query_as(select!("order by a.seq desc"))
    };
    let rows = query
        .bind(&filter.action)
        .bind(&filter.outcome)
        .bind(&filter.actor)
        .bind(&filter.target_kind)
        .bind(&filter.target_id)
        .bind(filter.since)
        .bind(filter.until)
        .bind(window.limit())
        .bind(window.offset())
        .fetch_all(pool)
        .await?;
    let total: i64 = sqlx::query_scalar(concat!("select count(*)", filter!()))
        .bind(&filter.action)
        .bind(&filter.outcome)
        .bind(&filter.actor)
        .bind(&filter.target_kind)
        .bind(&filter.target_id)
        .bind(filter.since)
        .bind(filter.until)
        .fetch_one(pool)
        .await?;
    Ok((rows, total as u64))
}

/// Entries whose details go in one statement: so few that it ends long before a statement is ended, however many there are.
const AT_ONCE: i64 = 10_000;

/// Erases the details of everything that was done to one thing.
pub async fn erase_target(connection: &mut PgConnection, kind: &str, id: &str) -> Result<u64, sqlx::Error> {
    let (mut after, mut erased) = (0, 0);
    loop {
        // The stretch first: an index has its entries in order, and between two of them few others have details.
        let (first, last): (Option<i64>, Option<i64>) = sqlx::query_as(
            "select min(seq), max(seq) from (
                 select seq from audit where target_kind = $1 and target_id = $2 and seq > $3 order by seq limit $4) _",
        )
        .bind(kind)
        .bind(id)
        .bind(after)
        .bind(AT_ONCE)
        .fetch_one(&mut *connection)
        .await?;
        let (Some(first), Some(last)) = (first, last) else {
            return Ok(erased);
        };
        let done = sqlx::query(
            "delete from audit_details d using audit a
             where a.seq = d.seq and a.target_kind = $1 and a.target_id = $2
               and a.seq between $3 and $4 and d.seq between $3 and $4",
        )
        .bind(kind)
        .bind(id)
        .bind(first)
        .bind(last)
        .execute(&mut *connection)
        .await?;
        erased += done.rows_affected();
        after = last;
    }
}

/// Erases the details of attempts to register this server that came to nothing: they are under ids that nothing is removed
/// by. The cluster that is removed is gone already, with its own.
pub async fn erase_attempts(
    connection: &mut PgConnection,
    kind: &str,
    removed: &str,
    server: &str,
) -> Result<u64, sqlx::Error> {
    let mut targets: Vec<String> = sqlx::query_scalar(
        "delete from attempts where target_id in (
             select target_id from attempts where server = $1 or target_id = $2 order by target_id for update)
         returning target_id",
    )
    .bind(server)
    .bind(removed)
    .fetch_all(&mut *connection)
    .await?;
    targets.retain(|target| target != removed);
    erase_nothings(connection, kind, targets).await
}

/// Erases the details of attempts from before this that came to nothing. What somebody else erases is theirs.
pub async fn forget_attempts(
    connection: &mut PgConnection,
    kind: &str,
    before: Time,
) -> Result<u64, sqlx::Error> {
    let mut erased = 0;
    loop {
        let targets: Vec<String> = sqlx::query_scalar(
            "delete from attempts where target_id in (
                 select target_id from attempts where at < $1 order by target_id limit $2 for update skip locked)
             returning target_id",
        )
        .bind(before)
        .bind(AT_ONCE)
        .fetch_all(&mut *connection)
        .await?;
        if targets.is_empty() {
            return Ok(erased);
        }
        erased += erase_nothings(&mut *connection, kind, targets).await?;
    }
}

/// Of these targets, those that are no clusters.
async fn erase_nothings(
    connection: &mut PgConnection,
    kind: &str,
    targets: Vec<String>,
) -> Result<u64, sqlx::Error> {
    let nothings: Vec<String> = sqlx::query_scalar(
        "select target from unnest($1::text[]) target
         where not exists (select from clusters c where c.id::text = target)",
    )
    .bind(targets)
    .fetch_all(&mut *connection)
    .await?;
    let mut erased = 0;
    for target in nothings {
        erased += erase_target(&mut *connection, kind, &target).await?;
    }
    Ok(erased)
}

/// A stretch of lines in order, for verification: number, line, what stands beside it, details with their salt.
#[derive(Clone, Debug, FromRow)]
pub struct Link {
    pub seq: i64,
    pub at: Time,
    pub action: String,
    pub outcome: String,
    pub actor: Uuid,
    pub target_kind: String,
    pub target_id: String,
    pub trace_id: Option<String>,
    pub line: String,
    pub salt: Option<Vec<u8>>,
    pub details: Option<String>,
}

/// What is read from it is all of one moment, however long it takes.
pub async fn snapshot(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    pool.begin_with("begin isolation level repeatable read read only")
        .await
}

pub async fn links(connection: &mut PgConnection, after: i64, most: i64) -> Result<Vec<Link>, sqlx::Error> {
    sqlx::query_as(
        "select a.seq, a.at, a.action, a.outcome, a.actor, a.target_kind, a.target_id, a.trace_id, a.line, d.salt, d.details
         from audit a left join audit_details d on d.seq = a.seq
         where a.seq > $1 order by a.seq limit $2",
    )
    .bind(after)
    .bind(most)
    .fetch_all(connection)
    .await
}

/// A number that no entry has.
pub async fn before_the_first(connection: &mut PgConnection) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar("select seq from audit where seq < 1 order by seq desc limit 1")
        .fetch_optional(connection)
        .await
}

/// The head as it is noted, and its signature.
pub async fn head(
    connection: &mut PgConnection,
) -> Result<Option<(i64, String, Option<Value>)>, sqlx::Error> {
    sqlx::query_as("select seq, hash, signed from audit_head")
        .fetch_optional(connection)
        .await
}

/// Erases the details of entries from before this, stretch by stretch. What somebody else erases is theirs: whoever waited
/// for it here could be who they wait for.
pub async fn forget_details(connection: &mut PgConnection, before: Time) -> Result<u64, sqlx::Error> {
    // The newest one that is old enough. Entries are in the order of their times but for clocks that differ, so the few
    // after it have their turn later.
    let until: Option<i64> =
        sqlx::query_scalar("select seq from audit where at < $1 order by at desc, seq desc limit 1")
            .bind(before)
            .fetch_optional(&mut *connection)
            .await?;
    let Some(until) = until else { return Ok(0) };
    let (mut after, mut erased) = (0, 0);
    loop {
        let last: Option<i64> = sqlx::query_scalar(
            "select max(seq) from (
                 select seq from audit_details where seq > $1 and seq <= $2 order by seq limit $3) _",
        )
        .bind(after)
        .bind(until)
        .bind(AT_ONCE)
        .fetch_one(&mut *connection)
        .await?;
        let Some(last) = last else { return Ok(erased) };
        let done = sqlx::query(
            "delete from audit_details where seq in (
                 select d.seq from audit_details d join audit a on a.seq = d.seq
                 where d.seq > $1 and d.seq <= $2 and a.seq > $1 and a.seq <= $2 and a.at < $3
                 for update of d skip locked)",
        )
        .bind(after)
        .bind(last)
        .bind(before)
        .execute(&mut *connection)
        .await?;
        erased += done.rows_affected();
        after = last;
    }
}
