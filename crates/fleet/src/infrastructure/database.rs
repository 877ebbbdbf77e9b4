//! The pool, and bringing the schema up to date.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use sqlx::{
    Connection as _, Executor as _, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

/// In the order in which they are applied. One that was released is never changed.
const MIGRATIONS: &[(i32, &str, &str)] = &[
    (1, "registry", include_str!("../../migrations/0001_registry.sql")),
    (2, "accesses", include_str!("../../migrations/0002_accesses.sql")),
    (3, "lists", include_str!("../../migrations/0003_lists.sql")),
    (
        4,
        "discovery",
        include_str!("../../migrations/0004_discovery.sql"),
    ),
    (5, "answers", include_str!("../../migrations/0005_answers.sql")),
    (6, "secrets", include_str!("../../migrations/0006_secrets.sql")),
    (
        7,
        "judgements",
        include_str!("../../migrations/0007_judgements.sql"),
    ),
    (8, "looks", include_str!("../../migrations/0008_looks.sql")),
    (
        9,
        "passwords",
        include_str!("../../migrations/0009_passwords.sql"),
    ),
    (10, "attempts", include_str!("../../migrations/0010_attempts.sql")),
    (
        11,
        "definitions",
        include_str!("../../migrations/0011_definitions.sql"),
    ),
    (12, "audit", include_str!("../../migrations/0012_audit.sql")),
    (
        13,
        "approvals",
        include_str!("../../migrations/0013_approvals.sql"),
    ),
    (14, "repeats", include_str!("../../migrations/0014_repeats.sql")),
    (15, "told", include_str!("../../migrations/0015_told.sql")),
    (16, "entries", include_str!("../../migrations/0016_entries.sql")),
    (17, "erasure", include_str!("../../migrations/0017_erasure.sql")),
    (18, "sweeps", include_str!("../../migrations/0018_sweeps.sql")),
];

/// "gantry" as a number: replicas that start together wait for each other here.
const LOCK: i64 = 0x6761_6e74_7279;

#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error(
        "DATABASE_URL is not the address of a PostgreSQL database; one looks like postgresql://USER@HOST/DATABASE"
    )]
    Address(#[source] Option<sqlx::Error>),
    #[error("failed to connect to the database")]
    Connect(#[source] sqlx::Error),
    #[error("PostgreSQL {found} is too old; 15 or newer is needed")]
    TooOld { found: String },
    #[error(
        "the database has schema {found}, and this program knows schemas up to {known}: it was used by a newer Gantry; run that one, or restore a backup from before"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "schema {version} of the database was not made by this program: its text differs; run the release that made it"
    )]
    Differs { version: i32 },
    #[error("failed to bring the database to schema {version}")]
    Migrate {
        version: i32,
        #[source]
        source: sqlx::Error,
    },
    #[error("failed to look at the database's schema")]
    Look(#[source] sqlx::Error),
}

pub fn options(url: &str) -> Result<PgConnectOptions, DatabaseError> {
    // The parser takes any scheme.
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(DatabaseError::Address(None));
    }
    let options = PgConnectOptions::from_str(url).map_err(|error| DatabaseError::Address(Some(error)))?;
    Ok(options
        .application_name("gantry-fleet")
        // A query that hangs must not hold a connection for ever; nor may a transaction that nobody ends.
        .options([
            ("statement_timeout", "15s"),
            ("idle_in_transaction_session_timeout", "30s"),
            ("lock_timeout", "10s"),
        ]))
}

/// How long a database may take to be there: what starts us may start it too.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What time it is there.
pub async fn now(pool: &PgPool) -> Result<Timestamp, sqlx::Error> {
    let now: jiff_sqlx::Timestamp = sqlx::query_scalar("select now()").fetch_one(pool).await?;
    Ok(now.to_jiff())
}

/// Connects, once the database answers, and migrates.
pub async fn open(
    options: PgConnectOptions,
    connections: u32,
    patience: Duration,
) -> Result<PgPool, DatabaseError> {
    let begin = Instant::now();
    let mut connection = loop {
        match PgConnection::connect_with(&options).await {
            Ok(connection) => break connection,
            Err(error) if is_absent(&error) && begin.elapsed() < patience => {
                tracing::warn!(%error, "the database does not answer; trying again");
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            Err(error) => return Err(DatabaseError::Connect(error)),
        }
    };
    migrate(&mut connection).await?;
    let _ = connection.close().await;
    Ok(connect(options, connections))
}

/// Whether it may answer in a moment, unlike a wrong password.
fn is_absent(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        // It starts up, ends, or has too many connections.
        sqlx::Error::Database(refusal) => {
            matches!(refusal.code().as_deref(), Some("57P03" | "57P01" | "53300"))
        }
        _ => false,
    }
}

/// A pool that connects when it is asked; the schema is left as it is.
pub fn connect(options: PgConnectOptions, connections: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(10))
        .idle_timeout(Duration::from_secs(300))
        .max_lifetime(Duration::from_secs(1800))
        .connect_lazy_with(options)
}

pub async fn migrate(connection: &mut PgConnection) -> Result<(), DatabaseError> {
    let number: i32 = sqlx::query_scalar("select current_setting('server_version_num')::int")
        .fetch_one(&mut *connection)
        .await
        .map_err(DatabaseError::Look)?;
    if number < 150_000 {
        return Err(DatabaseError::TooOld {
            found: format!("{}", number / 10_000),
        });
    }
    // Others may be at it, and take longer than a usual lock should; a large fleet takes longer than a usual statement.
    let look = DatabaseError::Look;
    connection
        .execute("set lock_timeout = '120s'; set statement_timeout = 0")
        .await
        .map_err(look)?;
    sqlx::query("select pg_advisory_lock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await
        .map_err(DatabaseError::Look)?;
    let done = apply(connection).await;
    // A lost connection gives the lock back as well.
    let _ = sqlx::query("select pg_advisory_unlock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await;
    done
}

async fn apply(connection: &mut PgConnection) -> Result<(), DatabaseError> {
    connection
        .execute(
            "create table if not exists gantry_schema (
                version integer primary key, name text not null, digest bytea not null,
                applied_at timestamptz not null default now())",
        )
        .await
        .map_err(DatabaseError::Look)?;
    let applied: Vec<(i32, Vec<u8>)> =
        sqlx::query_as("select version, digest from gantry_schema order by version")
            .fetch_all(&mut *connection)
            .await
            .map_err(DatabaseError::Look)?;
    let known = MIGRATIONS.last().map_or(0, |migration| migration.0);
    let found = applied.last().map_or(0, |row| row.0);
    if found > known {
        return Err(DatabaseError::Newer { found, known });
    }
    for (version, name, text) in MIGRATIONS {
        let digest = Sha256::digest(text.as_bytes()).to_vec();
        if let Some((_, stored)) = applied.iter().find(|row| row.0 == *version) {
            if *stored != digest {
                return Err(DatabaseError::Differs { version: *version });
            }
            continue;
        }
        let wrong = |source| DatabaseError::Migrate {
            version: *version,
            source,
        };
        let mut transaction = connection.begin().await.map_err(wrong)?;
        transaction.execute(*text).await.map_err(wrong)?;
        sqlx::query("insert into gantry_schema (version, name, digest) values ($1, $2, $3)")
            .bind(version)
            .bind(name)
            .bind(&digest)
            .execute(&mut *transaction)
            .await
            .map_err(wrong)?;
        transaction.commit().await.map_err(wrong)?;
        tracing::info!(version, name, "database schema applied");
    }
    Ok(())
}
