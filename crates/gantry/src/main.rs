//! The `gantry` command: arguments, configuration and wiring; nothing else.

mod audit;
mod crds;
mod fleet;
mod model;
mod model_proxy;
mod operator;
mod penin;
mod process;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs AI workloads on Kubernetes and keeps operators up to date on many clusters.
#[derive(Parser)]
#[command(name = "gantry", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controllers.
    Operator(operator::Arguments),
    /// Print, install or compare custom resource definitions.
    Crds(crds::Arguments),
    /// Run the server that keeps operators up to date on many clusters, and issue tokens for it.
    Fleet(fleet::Arguments),
    /// Check the fleet's audit log.
    Audit(audit::Arguments),
    /// Changes of PENIN-Ω clusters: their ledger, and approval.
    Penin(penin::Arguments),
    /// Deploy, expose and undeploy Models.
    Model(model::Arguments),
    /// Count the requests that go to an Ollama server.
    ModelProxy(model_proxy::Arguments),
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    // Two crypto providers in one process would panic at the first handshake; name ours before anything connects.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut runtime = match arguments.command {
        // It sits beside every model, and only moves bytes: one thread is enough and small.
        Command::ModelProxy(_) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build()?;
    let result = runtime.block_on(async {
        match arguments.command {
            Command::Operator(arguments) => operator::run(arguments).await.map(|()| ExitCode::SUCCESS),
            Command::Crds(arguments) => crds::run(arguments).await,
            Command::Fleet(arguments) => fleet::run(arguments).await.map(|()| ExitCode::SUCCESS),
            Command::Audit(arguments) => Ok(audit::run(arguments).await),
            Command::Penin(arguments) => penin::run(arguments).await,
            Command::Model(arguments) => model::run(arguments).await.map(|()| ExitCode::SUCCESS),
            Command::ModelProxy(arguments) => model_proxy::run(arguments).await.map(|()| ExitCode::SUCCESS),
        }
    });
    // A name lookup that hangs must not hold the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}
