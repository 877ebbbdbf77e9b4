//! `gantry penin ledger keep`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use gantry_kit::{ObjectKey, telemetry};
use gantry_operator::penin::keeper;

use super::connect;
use crate::process::{LogFormat, stop_signal};

#[derive(Args)]
pub struct Arguments {
    /// Name of the PeninOmegaCluster.
    cluster: String,
    /// Its namespace [default: that of the kubeconfig or pod].
    #[arg(long, short)]
    namespace: Option<String>,
    /// The folder of the copy; it is made when it is not there. One process at a time can write to it.
    #[arg(long, value_name = "FOLDER")]
    dir: PathBuf,
    /// Where `/healthz` and `/readyz` are served.
    #[arg(
        long,
        env = "GANTRY_ADMIN_ADDRESS",
        default_value = "127.0.0.1:8080",
        value_name = "IP:PORT"
    )]
    admin_address: SocketAddr,
    /// trace, debug, info, warn or error; `RUST_LOG` wins.
    #[arg(long, env = "GANTRY_LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// Log lines for people or for machines.
    #[arg(long, env = "GANTRY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    log_format: LogFormat,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let _telemetry = telemetry::init(
        "gantry-ledger-keeper",
        &arguments.log_level,
        arguments.log_format.into(),
        None,
    );
    let (client, namespace) = connect(arguments.namespace).await?;
    let options = keeper::Options {
        cluster: ObjectKey::new(namespace, arguments.cluster),
        folder: arguments.dir,
        admin: arguments.admin_address,
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        cluster = %options.cluster,
        folder = %options.folder.display(),
        "keeping a copy of the ledger"
    );
    let ended = tokio::select! {
        ended = keeper::keep(client, options) => ended,
        () = stop_signal() => Ok(()),
    };
    match ended {
        Ok(()) => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
        Err(stop) => {
            // The last line that a pod says is what its status tells.
            eprintln!("{stop}");
            Ok(ExitCode::from(stop.code()))
        }
    }
}
