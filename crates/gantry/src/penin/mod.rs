//! `gantry penin`: the ledger of changes, and the word of those who approve them.

mod keep;
mod ledger;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use gantry_crds::penin::{Decision, InfrastructureChange};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
};
use serde_json::json;

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The record of every change of a cluster.
    Ledger(ledger::Arguments),
    /// Approve an InfrastructureChange, or deny it. Needs the right to patch infrastructurechanges/status.
    Approve {
        /// Name of the change.
        name: String,
        /// Namespace of the change [default: that of the kubeconfig or pod].
        #[arg(long, short)]
        namespace: Option<String>,
        /// Say no instead.
        #[arg(long)]
        deny: bool,
        /// Who says so; for the record.
        #[arg(long, env = "USER")]
        by: Option<String>,
        /// Why; for the record.
        #[arg(long)]
        note: Option<String>,
    },
}

pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Ledger(arguments) => ledger::run(arguments).await,
        Command::Approve {
            name,
            namespace,
            deny,
            by,
            note,
        } => {
            let (client, namespace) = connect(namespace).await?;
            let api = Api::<InfrastructureChange>::namespaced(client, &namespace);
            let decision = if deny {
                Decision::Denied
            } else {
                Decision::Approved
            };
            let patch = Patch::Merge(json!({
                "status": {"approval": {"decision": decision, "by": by, "note": note}},
            }));
            api.patch_status(&name, &PatchParams::default(), &patch)
                .await
                .with_context(|| format!("failed to write what you say about {name}"))?;
            println!("{name}: {}", if deny { "denied" } else { "approved" });
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A client, and the namespace that is meant.
async fn connect(namespace: Option<String>) -> anyhow::Result<(Client, String)> {
    let config = Config::infer()
        .await
        .context("no cluster: set KUBECONFIG, or run inside a pod")?;
    let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
    Ok((Client::try_from(config)?, namespace))
}
