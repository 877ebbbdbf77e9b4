//! `gantry-simnode metrics`: `metrics.k8s.io` for simulated and real nodes, so that autoscalers and `kubectl top` work.

mod api;
mod register;
mod render;
mod source;
#[cfg(test)]
mod tests;
mod tls;
mod usage;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::{
    source::Source,
    tls::{Identity, Peer, TlsListener},
};

/// Serve metrics.k8s.io as an aggregated API.
///
/// Usage of pods on simulated nodes is what their annotations say (simnode.gantry.dev/cpu and /memory, 10m and 32Mi by
/// default); that of other pods is read from their kubelet, through the API server's node proxy. Registers a Service,
/// its Endpoints and the APIService, and takes the APIService away when it is stopped. The API server has to reach
/// --service-address itself (--enable-aggregator-routing=true where no kube-proxy runs beside it).
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    client: crate::client::ClientArgs,
    /// Address to serve on, with TLS.
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:4443")]
    listen: SocketAddr,
    /// Where the API server reaches us; not a loopback address.
    #[arg(long, value_name = "IP")]
    service_address: IpAddr,
    /// Accepted and not needed: kubelets are asked through the API server.
    #[arg(long, value_name = "FILE")]
    kubelet_ca: Option<PathBuf>,
    /// Accepted and not needed.
    #[arg(long, value_name = "FILE")]
    kubelet_cert: Option<PathBuf>,
    /// Accepted and not needed.
    #[arg(long, value_name = "FILE")]
    kubelet_key: Option<PathBuf>,
}

pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    anyhow::ensure!(
        !args.service_address.is_loopback(),
        "--service-address cannot be a loopback address"
    );
    let client = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        connected = args.client.connect_and_wait() => connected?.0,
    };
    let front_proxy = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        found = register::front_proxy(&client) => found?,
    };
    let identity = Identity::generate(&register::host_names(), args.service_address)?;
    let ca_pem = identity.ca_pem.clone();
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("failed to listen on {}", args.listen))?;
    let port = listener.local_addr()?.port();
    let config = identity.server_config(&front_proxy.client_ca)?;
    let listener = TlsListener::new(listener, config, front_proxy.allowed_names)?;
    let app =
        api::router(Arc::new(Source::new(client.clone()))).into_make_service_with_connect_info::<Peer>();
    let server = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
    let registered = register_until_done(client.clone(), args.service_address, port, ca_pem);
    let registered = tokio::spawn(stop.clone().run_until_cancelled_owned(registered));
    tracing::info!(listen = %args.listen, "serving metrics.k8s.io");
    tokio::select! {
        ended = async { server.await } => ended?,
        // Connections that the API server keeps open would hold the shutdown up.
        () = async { stop.cancelled().await; tokio::time::sleep(Duration::from_secs(1)).await } => (),
    }
    registered.abort();
    match tokio::time::timeout(Duration::from_secs(3), register::deregister(&client)).await {
        Ok(Ok(())) => tracing::info!("APIService removed"),
        Ok(Err(error)) => tracing::warn!("failed to remove the APIService: {error:#}"),
        Err(_) => tracing::warn!("failed to remove the APIService in time"),
    }
    Ok(())
}

async fn register_until_done(client: kube::Client, address: IpAddr, port: u16, ca_pem: String) {
    while let Err(error) = register::register(&client, address, port, &ca_pem).await {
        tracing::warn!("failed to register: {error:#}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tracing::info!(%address, port, "metrics.k8s.io registered");
}
