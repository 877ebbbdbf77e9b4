//! The two ports, and an end that lets streams finish.

use std::{convert::Infallible, future::Future, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Options, admin,
    forward::{BUFFER, Forward},
    metrics::Metrics,
};

/// A connection that asks nothing for so long is closed. Ollama itself never closes one, so be patient.
const IDLE: Duration = Duration::from_secs(300);

/// Who still asks for metrics or idleness at the end gets an answer within this.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to use the upstream {0:?}: {1}")]
    Upstream(String, String),
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
}

/// Bound and ready to run.
pub struct Server {
    clients: TcpListener,
    admin: TcpListener,
    forward: Arc<Forward>,
    metrics: Arc<Metrics>,
    left: watch::Receiver<()>,
    linger: Duration,
    grace: Duration,
}

impl Server {
    pub async fn bind(options: &Options) -> Result<Self, Error> {
        let (sender, left) = watch::channel(());
        let metrics = Arc::new(Metrics::new(
            &options.models,
            options.parallel,
            options.queue,
            &sender,
        ));
        Ok(Self {
            clients: listen(options.listen).await?,
            admin: listen(options.metrics).await?,
            forward: Arc::new(Forward::new(&options.upstream, metrics.clone())?),
            metrics,
            left,
            linger: options.linger,
            grace: options.grace,
        })
    }

    /// Where clients come in, and where metrics are.
    pub fn addresses(&self) -> std::io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.clients.local_addr()?, self.admin.local_addr()?))
    }

    /// Serves until `shutdown` resolves; then a moment longer, and until the last stream has ended or the grace is over.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let finish = CancellationToken::new();
        let streams = TaskTracker::new();
        let over = CancellationToken::new();
        let askers = TaskTracker::new();
        let admin = serve_admin(self.admin, self.metrics, self.left, askers.clone(), over.clone());
        let admin = tokio::spawn(admin);
        let accept = async {
            loop {
                let (stream, peer) = accepted(&self.clients).await;
                let (forward, finish) = (self.forward.clone(), finish.clone());
                streams.spawn(serve_client(stream, peer, forward, finish));
            }
        };
        tokio::select! {
            () = accept => {}
            () = async {
                shutdown.await;
                tokio::time::sleep(self.linger).await;
            } => {}
        }
        drop(self.clients);
        finish.cancel();
        streams.close();
        if !streams.is_empty() {
            tracing::info!(connections = streams.len(), "waiting for streams to end");
        }
        if tokio::time::timeout(self.grace, streams.wait()).await.is_err() {
            tracing::warn!(connections = streams.len(), "streams are cut: the grace is over");
        }
        admin.abort();
        over.cancel();
        askers.close();
        let _ = tokio::time::timeout(LAST_WORDS, askers.wait()).await;
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })
}

async fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "failed to set TCP_NODELAY");
                }
                return (stream, peer);
            }
            // Mostly too many open files: others have to end first.
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER)
        .preserve_header_case(true);
    builder
}

async fn serve_client(stream: TcpStream, peer: SocketAddr, forward: Arc<Forward>, finish: CancellationToken) {
    let service = service_fn(move |request| {
        let forward = forward.clone();
        async move { Ok::<_, Infallible>(forward.handle(request, peer.ip()).await) }
    });
    if let Err(error) = serve(stream, service, &finish).await {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// Until `finish` says so, and then to the end of what is under way.
async fn serve<S, B>(stream: TcpStream, service: S, finish: &CancellationToken) -> hyper::Result<()>
where
    S: hyper::service::HttpService<hyper::body::Incoming, ResBody = B, Error = Infallible>,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut connection = pin!(http1().serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = finish.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

async fn serve_admin(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    left: watch::Receiver<()>,
    askers: TaskTracker,
    over: CancellationToken,
) {
    loop {
        let (stream, _) = accepted(&listener).await;
        let (metrics, left, over) = (metrics.clone(), left.clone(), over.clone());
        askers.spawn(async move {
            let end = over.clone();
            let service =
                service_fn(move |request| admin::handle(request, metrics.clone(), left.clone(), end.clone()));
            serve(stream, service, &over).await
        });
    }
}
