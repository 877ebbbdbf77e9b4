//! `gantry operator`.

use std::{net::SocketAddr, pin::pin, time::Duration};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use gantry_kit::{
    Options,
    admin::{self, Readiness, SERVING},
    client,
    leader::LeaseOptions,
    metrics::Metrics,
    telemetry,
};
use gantry_operator::{Settings, metrics_api, settings::Reach};
use kube::Config;

use crate::process::{LogFormat, stop_signal};

#[derive(Args)]
pub struct Arguments {
    /// Look after this namespace only; repeat for more. All namespaces when absent.
    #[arg(
        long = "watch-namespace",
        env = "GANTRY_WATCH_NAMESPACES",
        value_delimiter = ',',
        value_name = "NAMESPACE"
    )]
    watch_namespaces: Vec<String>,
    /// The operator's own namespace, for its lease and the runtime registry [default: that of the kubeconfig or pod].
    #[arg(long, env = "GANTRY_NAMESPACE")]
    namespace: Option<String>,
    /// Compete for a lease, so that of several replicas one acts.
    #[arg(long, env = "GANTRY_LEADER_ELECT")]
    leader_elect: bool,
    /// How long a lease holds without renewal, in seconds.
    #[arg(long, env = "GANTRY_LEASE_SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=300))]
    lease_seconds: u64,
    /// Name of this replica in the lease [default: host name and process].
    #[arg(long, env = "GANTRY_POD_NAME")]
    identity: Option<String>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    #[arg(long, env = "GANTRY_ADMIN_ADDRESS", default_value = "127.0.0.1:8081")]
    admin_address: SocketAddr,
    /// Objects of one kind that are worked on at the same time.
    #[arg(long, env = "GANTRY_CONCURRENCY", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// How running workloads are asked something: by their address, or through the API server.
    #[arg(long, env = "GANTRY_REACH", value_enum, default_value_t = ReachArgument::Auto)]
    reach: ReachArgument,
    /// Serve metrics of models to autoscalers here, over TLS: external.metrics.k8s.io and custom.metrics.k8s.io.
    #[arg(long, env = "GANTRY_METRICS_API_ADDRESS", value_name = "IP:PORT")]
    metrics_api_address: Option<SocketAddr>,
    /// The Service, in the operator's own namespace, by which the API server reaches that address.
    #[arg(
        long,
        env = "GANTRY_METRICS_API_SERVICE",
        default_value = "gantry-metrics",
        value_name = "NAME"
    )]
    metrics_api_service: String,
    /// trace, debug, info, warn or error; `RUST_LOG` wins.
    #[arg(long, env = "GANTRY_LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// Log lines for people or for machines.
    #[arg(long, env = "GANTRY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    log_format: LogFormat,
    /// OTLP collector (gRPC) for traces of the operator itself.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReachArgument {
    /// direct in a pod, proxy elsewhere
    Auto,
    Direct,
    Proxy,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let endpoint = arguments
        .otlp_endpoint
        .as_deref()
        .filter(|endpoint| !endpoint.is_empty());
    // The MCP library reports as errors what our probes treat as answers.
    let level = format!("{},rmcp=off", arguments.log_level);
    let _telemetry = telemetry::init("gantry-operator", &level, arguments.log_format.into(), endpoint);
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let reach = match arguments.reach {
        ReachArgument::Direct => Reach::Direct,
        ReachArgument::Auto if in_pod => Reach::Direct,
        ReachArgument::Auto | ReachArgument::Proxy => Reach::Proxy,
    };
    let config = Config::infer()
        .await
        .context("no cluster: set KUBECONFIG, or run inside a pod")?;
    let namespace = arguments
        .namespace
        .clone()
        .unwrap_or_else(|| config.default_namespace.clone());
    let settings = Settings::from_env(namespace.clone(), reach, |name| std::env::var(name).ok())
        .map_err(anyhow::Error::msg)?;
    let metrics = Metrics::default();
    let client = client::build(config, &metrics)?;
    let readiness = Readiness::default();
    open_admin_port(arguments.admin_address, readiness.clone(), metrics.clone()).await?;
    let options = Options {
        namespaces: arguments
            .watch_namespaces
            .iter()
            .filter(|name| !name.is_empty())
            .cloned()
            .collect(),
        own_namespace: namespace.clone(),
        concurrency: usize::from(arguments.concurrency),
        lease: arguments.leader_elect.then(|| LeaseOptions {
            namespace,
            name: "gantry-operator".to_owned(),
            identity: arguments.identity.clone().unwrap_or_else(identity),
            duration: Duration::from_secs(arguments.lease_seconds),
        }),
        ..Options::default()
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), namespaces = ?options.namespaces, "starting");
    let metrics_api = arguments.metrics_api_address.map(|listen| metrics_api::Options {
        listen,
        service: arguments.metrics_api_service.clone(),
        namespace: options.own_namespace.clone(),
        reach,
    });
    let gate = metrics_api
        .as_ref()
        .map(|_| readiness.gate(format!("{SERVING}metrics of models")));
    let mut stop = pin!(stop_signal());
    let manager = tokio::select! {
        manager = gantry_operator::manager(client.clone(), options, metrics, readiness, settings) => manager,
        () = &mut stop => return Ok(()),
    };
    let serving = async {
        match metrics_api.zip(gate) {
            Some((options, gate)) => {
                let address = options.listen;
                let served = metrics_api::run(client, options, gate).await;
                served.with_context(|| format!("cannot serve metrics of models on {address}"))
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = manager.run(stop) => ended?,
        ended = serving => ended?,
    }
    tracing::info!("stopped");
    Ok(())
}

/// From the first moment: one that waits for the API server is alive, and says what it waits for. Without the port nobody
/// could tell, so that is no operator that leads.
async fn open_admin_port(address: SocketAddr, readiness: Readiness, metrics: Metrics) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot open the admin port {address}"))?;
    tokio::spawn(async move {
        if let Err(error) = admin::serve_on(listener, readiness, metrics).await {
            tracing::error!(%address, %error, "cannot serve the admin port");
        }
    });
    Ok(())
}

/// Unique also when two replicas share a host.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}
