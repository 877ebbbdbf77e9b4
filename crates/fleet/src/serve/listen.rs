//! Connections: bounded in number and in how long they may take to say something.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router, extract::ConnectInfo};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto::Builder,
        graceful::{GracefulShutdown, Watcher},
    },
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use super::tls::Reloading;

const MOST_CONNECTIONS: usize = 1024;
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(10);
const FINISH: Duration = Duration::from_secs(20);

pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Reloading>>,
    router: Router,
    stop: CancellationToken,
) {
    let turns = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(100)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10));
    loop {
        let turn = tokio::select! {
            () = stop.cancelled() => break,
            turn = turns.clone().acquire_owned() => turn,
        };
        let (stream, peer) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, mostly: it passes.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let (builder, router, tls) = (builder.clone(), router.clone(), tls.clone());
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            let _turn = turn;
            let _ = stream.set_nodelay(true);
            match tls {
                Some(tls) => {
                    if let Some(stream) = handshake(&tls, stream).await {
                        talk(&builder, stream, router, peer, watcher).await;
                    }
                }
                None => talk(&builder, stream, router, peer, watcher).await,
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FINISH, graceful.shutdown()).await;
}

async fn handshake(tls: &Reloading, stream: TcpStream) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    match tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

/// Answers on one connection until either side is done. What goes wrong on it is the caller's business.
async fn talk<IO>(
    builder: &Builder<TokioExecutor>,
    stream: IO,
    router: Router,
    peer: SocketAddr,
    watcher: Watcher,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router.layer(Extension(ConnectInfo(peer))));
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let _ = watcher.watch(connection).await;
}
