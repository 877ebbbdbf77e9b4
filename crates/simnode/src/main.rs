//! `gantry-simnode`: what a local cluster needs beside the control plane.
//!
//! Three small servers in one binary, each fed by the API server alone: simulated nodes that play the kubelet, a
//! cluster DNS, and a `metrics.k8s.io` API. A development tool: it is never part of an installation of Gantry.

mod client;
mod dns;
mod metrics;
mod nodes;
mod pods;
mod quantity;
mod text;

use std::{io::IsTerminal as _, process::ExitCode};

use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The client logs each failed request as an error of its own; callers say what failed, once.
const DEFAULT_LOG: &str = "info,kube_client::client::builder=off";

/// Simulated nodes, cluster DNS and metrics for local development clusters.
///
/// Logs go to stderr; RUST_LOG chooses what is logged (default: info).
#[derive(Debug, Parser)]
#[command(name = "gantry-simnode", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Nodes(nodes::Args),
    Dns(dns::Args),
    Metrics(metrics::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG)))
        .init();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    // rustls cannot choose between providers by itself when a dependency brings a second one.
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        anyhow::bail!("a TLS provider was already installed");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stop = stop_on_signal()?;
        match cli.command {
            Command::Nodes(args) => Box::pin(nodes::run(args, stop)).await,
            Command::Dns(args) => Box::pin(dns::run(args, stop)).await,
            Command::Metrics(args) => Box::pin(metrics::run(args, stop)).await,
        }
    })
}

/// A token that is cancelled by SIGTERM or SIGINT.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn({
        let stop = stop.clone();
        async move {
            tokio::select! { _ = term.recv() => (), _ = int.recv() => () }
            tracing::info!("stopping");
            stop.cancel();
        }
    });
    Ok(stop)
}
