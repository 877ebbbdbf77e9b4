//! Connections: bounded in number and in how long they may take to say something. Which of the two HTTPs is spoken on one is
//! found out here, and not by hyper-util's `auto` builder: that one waits for the first bytes without end.

use std::{io::Cursor, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router, extract::ConnectInfo};
use hyper::server::conn::{http1, http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use super::tls::Reloading;

const MOST_CONNECTIONS: usize = 1024;
const FINISH: Duration = Duration::from_secs(20);
/// What whoever speaks HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How many connections there may be at once, and how long each may be silent: in the handshake, before its first bytes,
/// and in the middle of the head of a request.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub connections: usize,
    pub silence: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: MOST_CONNECTIONS,
            silence: Duration::from_secs(10),
        }
    }
}

/// How to speak with those who connect.
#[derive(Clone)]
struct Speech {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    silence: Duration,
}

impl Speech {
    fn new(silence: Duration) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(silence)
            .max_buf_size(64 << 10);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(100)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(10));
        Self {
            http1,
            http2,
            silence,
        }
    }
}

pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Reloading>>,
    router: Router,
    bounds: Bounds,
    stop: CancellationToken,
) {
    let turns = Arc::new(Semaphore::new(bounds.connections));
    let graceful = GracefulShutdown::new();
    let speech = Speech::new(bounds.silence);
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
        let (speech, router, tls) = (speech.clone(), router.clone(), tls.clone());
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            let _turn = turn;
            let _ = stream.set_nodelay(true);
            match tls {
                Some(tls) => {
                    if let Some(stream) = handshake(&tls, stream, speech.silence).await {
                        talk(&speech, stream, router, peer, watcher).await;
                    }
                }
                None => talk(&speech, stream, router, peer, watcher).await,
            }
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(FINISH, graceful.shutdown()).await;
}

async fn handshake(
    tls: &Reloading,
    stream: TcpStream,
    patience: Duration,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    match tokio::time::timeout(patience, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

/// Answers on one connection until either side is done. What goes wrong on it is the caller's business.
async fn talk<IO>(speech: &Speech, mut stream: IO, router: Router, peer: SocketAddr, watcher: Watcher)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Shutdown need not wait for those who have said nothing.
    let Ok(Some(begin)) = tokio::time::timeout(speech.silence, first_bytes(&mut stream)).await else {
        return;
    };
    let is_http2 = begin == PREFACE;
    let service = TowerToHyperService::new(router.layer(Extension(ConnectInfo(peer))));
    let (read, write) = tokio::io::split(stream);
    let stream = TokioIo::new(tokio::io::join(Cursor::new(begin).chain(read), write));
    let _ = if is_http2 {
        watcher
            .watch(speech.http2.serve_connection(stream, service))
            .await
    } else {
        watcher
            .watch(speech.http1.serve_connection(stream, service))
            .await
    };
}

/// As many bytes as it takes to know which HTTP it is; nothing where the connection ended before.
async fn first_bytes(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut begin = Vec::with_capacity(PREFACE.len());
    while begin.len() < PREFACE.len() && PREFACE.starts_with(&begin) {
        let mut rest = [0; PREFACE.len()];
        let most = PREFACE.len() - begin.len();
        match stream.read(&mut rest[..most]).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => begin.extend_from_slice(&rest[..count]),
        }
    }
    Some(begin)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::BodyExt as _;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn start(connections: usize) -> (SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let router = Router::new().route("/", get(async || "here"));
        let bounds = Bounds {
            connections,
            silence: Duration::from_millis(200),
        };
        tokio::spawn(serve(listener, None, router, bounds, stop.clone()));
        (address, stop)
    }

    #[tokio::test]
    async fn those_who_say_nothing_keep_nobody_out() {
        let (address, stop) = start(2).await;
        let mut silent = Vec::new();
        // Nothing at all, a part of what begins HTTP/2, and a part of what begins a request.
        for said in ["", "", "PRI * HTTP/2", "PRI * HTTP/2", "GET / HTTP/1.1\r\n", "G"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said.as_bytes()).await.unwrap();
            silent.push(stream);
        }
        let answer = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all(request).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
        let answer = answer.expect("the silent ones are let go");
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"),
            "{answer}"
        );
        stop.cancel();
    }

    #[tokio::test]
    async fn either_http_is_spoken() {
        let (address, stop) = start(8).await;
        for is_second in [false, true] {
            let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .http2_only(is_second)
                .build_http::<axum::body::Body>();
            for _ in 0..2 {
                let answer = client.get(format!("http://{address}/").parse().unwrap());
                let body = answer.await.unwrap().into_body().collect().await.unwrap();
                assert_eq!(body.to_bytes(), "here");
            }
        }
        stop.cancel();
    }
}
