//! `gantry fleet token`.

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::bail;
use clap::Args;
use gantry_fleet::infrastructure::tokens::{self, Grant, Issuer};
use gantry_fleet_domain::{
    access::{Role, is_own_name},
    cluster::Environment,
};
use jiff::{SignedDuration, Timestamp};

use super::state::Database;

#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    database: Database,
    /// The secret that the server was given [default: that of the state folder].
    #[arg(long, env = "GANTRY_FLEET_JWT_SECRET_FILE", value_name = "FILE")]
    jwt_secret_file: Option<PathBuf>,
    /// Who the token is for; it is what the audit log shows.
    #[arg(long, default_value = "admin")]
    subject: String,
    /// Admin, Operator, Viewer or EnvironmentOwner; repeat for more.
    #[arg(long = "role", value_name = "ROLE", default_value = "Admin")]
    roles: Vec<Role>,
    /// Where they may act; repeat for more. Everywhere when absent, except for an EnvironmentOwner.
    #[arg(long = "environment", value_name = "NAME")]
    environments: Vec<Environment>,
    /// How long it is valid.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i64).range(1..=8760))]
    hours: i64,
    #[arg(long, env = "GANTRY_FLEET_JWT_ISSUER", default_value = tokens::ISSUER)]
    issuer: String,
    #[arg(long, env = "GANTRY_FLEET_JWT_AUDIENCE", default_value = tokens::AUDIENCE)]
    audience: String,
}

pub fn run(arguments: Arguments) -> anyhow::Result<()> {
    if is_own_name(&arguments.subject) {
        bail!(
            "{:?} is a name of the server itself: take one that does not begin with system:",
            arguments.subject
        );
    }
    let file = match arguments.jwt_secret_file {
        Some(file) => file,
        None => arguments.database.folder()?.join("token.key"),
    };
    if !file.exists() {
        bail!(
            "{} is not there: start the server once (gantry fleet serve), or name its secret with --jwt-secret-file",
            file.display()
        );
    }
    let secret = tokens::read_secret(&file)?;
    let issuer = Issuer::new(&secret, &arguments.issuer, &arguments.audience);
    let roles: BTreeSet<Role> = arguments.roles.into_iter().collect();
    let environments: Option<BTreeSet<Environment>> =
        (!arguments.environments.is_empty()).then(|| arguments.environments.into_iter().collect());
    let grant = Grant {
        subject: &arguments.subject,
        roles: &roles,
        environments: environments.as_ref(),
        user: None,
        lifetime: SignedDuration::from_hours(arguments.hours),
    };
    let (token, _) = issuer.issue(&grant, Timestamp::now())?;
    println!("{token}");
    Ok(())
}
