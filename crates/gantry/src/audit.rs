//! `gantry audit`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use gantry_fleet::{
    infrastructure::database,
    orchestrator::audit::{Broken, verify},
};
use gantry_ledger::{Head, PublicKey};

use crate::fleet::Database;

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that the fleet's audit log is whole: nothing changed, removed, added or moved.
    Verify(Verify),
}

#[derive(Args)]
struct Verify {
    #[command(flatten)]
    database: Database,
    /// A head that you kept, as this command prints it; repeat for more. Finds a log that was rewritten or cut as a whole.
    #[arg(long, value_name = "NUMBER:HASH")]
    since: Vec<Head>,
    /// The head must be signed by this key (PEM).
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,
}

/// Exit codes beside success: it is not whole, and it could not be found out. Who watches it by a script must not take an outage
/// for a forgery.
const BROKEN: u8 = 1;
const FAILED: u8 = 2;

/// Never fails: what goes wrong is told, and an exit code of its own.
pub async fn run(arguments: Arguments) -> ExitCode {
    let Command::Verify(arguments) = arguments.command;
    match verified(&arguments).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

async fn verified(arguments: &Verify) -> anyhow::Result<ExitCode> {
    let key = match &arguments.public_key {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("failed to read {}", file.display()))?;
            Some(PublicKey::from_pem(&text).with_context(|| file.display().to_string())?)
        }
        None => None,
    };
    let (url, postgres) = arguments.database.open().await?;
    // Only read, and never migrated: what is proven is what is there.
    let pool = database::connect(database::options(&url)?, 2);
    let result = verify(&pool, &arguments.since, key.as_ref()).await;
    pool.close().await;
    if let Some(postgres) = postgres {
        postgres.stop().await;
    }
    match result {
        Ok(proven) => {
            println!(
                "the audit log is whole: {} entries, {} with details",
                proven.head.seq, proven.with_details
            );
            if proven.signed {
                println!("its head is signed by that key");
            }
            println!("keep this head, and check with --since later: {}", proven.head);
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ Broken::Read(_)) => Err(error.into()),
        Err(broken) => {
            println!("the audit log is NOT whole: {broken}");
            Ok(ExitCode::from(BROKEN))
        }
    }
}
