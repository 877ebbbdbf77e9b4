//! Connections: bounded in number, for each address too, and in how long they may take to say something. Which of the two
//! HTTPs is spoken on one is found out here, and not by hyper-util's `auto` builder: that one waits for the first bytes
//! without end.

use std::{
    collections::HashMap,
    io::Cursor,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Extension, Router, extract::ConnectInfo};
use gantry_fleet_domain::origin::{Network, counted_by};
use hyper::{
    server::conn::{http1, http2},
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::tls::Reloading;

const MOST_CONNECTIONS: usize = 1024;
const FINISH: Duration = Duration::from_secs(20);
/// What whoever speaks HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How many connections there may be at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub connections: usize,
    /// Those of one address, unless it is a proxy of ours.
    pub share: usize,
    /// How long each may be silent: in the handshake, before its first bytes, and in the middle of the head of a request.
    pub silence: Duration,
    /// How long each may be without a request that is worked on. It is asked to end then, and after the same time again it
    /// is ended: that is how long an answer may go unread.
    pub idle: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: MOST_CONNECTIONS,
            share: MOST_CONNECTIONS / 4,
            silence: Duration::from_secs(10),
            idle: Duration::from_secs(60),
        }
    }
}

/// How to speak with those who connect.
#[derive(Clone)]
struct Speech {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    silence: Duration,
    idle: Duration,
}

impl Speech {
    fn new(Bounds { silence, idle, .. }: Bounds) -> Self {
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
            idle,
        }
    }
}

/// How many connections each address has.
#[derive(Clone, Default)]
struct Shares(Arc<Mutex<HashMap<String, usize>>>);

/// One of them, until it ends.
struct Share {
    of: Shares,
    who: String,
}

impl Shares {
    fn all(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, address: IpAddr, most: usize) -> Option<Share> {
        let who = counted_by(address);
        let mut all = self.all();
        let taken = all.get(&who).copied().unwrap_or(0);
        if taken >= most {
            return None;
        }
        all.insert(who.clone(), taken + 1);
        Some(Share {
            of: self.clone(),
            who,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = self.of.all();
        match all.get_mut(&self.who) {
            Some(taken) if *taken > 1 => *taken -= 1,
            _ => drop(all.remove(&self.who)),
        }
    }
}

/// What goes on on one connection.
#[derive(Clone)]
struct Activity(Arc<Mutex<Going>>);

struct Going {
    /// Requests that are worked on.
    requests: usize,
    /// When one of them began or ended last.
    last: Instant,
}

/// A request, until there is an answer to it or nobody wants one any more.
struct Turn(Activity);

impl Activity {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Going {
            requests: 0,
            last: Instant::now(),
        })))
    }

    fn going(&self) -> MutexGuard<'_, Going> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Turn {
        let mut going = self.going();
        going.requests += 1;
        going.last = Instant::now();
        Turn(self.clone())
    }

    fn touch(&self) {
        self.going().last = Instant::now();
    }

    /// Until nothing has been worked on for so long.
    async fn quiet(&self, long: Duration) {
        loop {
            let until = {
                let going = self.going();
                if going.requests > 0 {
                    Instant::now() + long
                } else {
                    going.last + long
                }
            };
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut going = self.0.going();
        going.requests -= 1;
        going.last = Instant::now();
    }
}

pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Reloading>>,
    router: Router,
    bounds: Bounds,
    proxies: Arc<[Network]>,
    stop: CancellationToken,
) {
    let turns = Arc::new(Semaphore::new(bounds.connections));
    let (shares, open) = (Shares::default(), TaskTracker::new());
    let speech = Speech::new(bounds);
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
        let address = peer.ip().to_canonical();
        // Everybody is behind a proxy of ours.
        let most = if proxies.iter().any(|network| network.has(address)) {
            bounds.connections
        } else {
            bounds.share
        };
        let Some(share) = shares.take(address, most) else {
            tracing::debug!(%address, "an address has as many connections as it may");
            continue;
        };
        let (speech, router, tls, stop) = (speech.clone(), router.clone(), tls.clone(), stop.clone());
        open.spawn(async move {
            let _held = (turn, share);
            let _ = stream.set_nodelay(true);
            match tls {
                Some(tls) => {
                    if let Some(stream) = handshake(&tls, stream, speech.silence).await {
                        talk(&speech, stream, router, peer, &stop).await;
                    }
                }
                None => talk(&speech, stream, router, peer, &stop).await,
            }
        });
    }
    drop(listener);
    open.close();
    let _ = tokio::time::timeout(FINISH, open.wait()).await;
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
async fn talk<IO>(speech: &Speech, mut stream: IO, router: Router, peer: SocketAddr, stop: &CancellationToken)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok(Some(begin)) = tokio::time::timeout(speech.silence, first_bytes(&mut stream)).await else {
        return;
    };
    let is_http2 = begin == PREFACE;
    let (activity, answers) = (
        Activity::new(),
        TowerToHyperService::new(router.layer(Extension(ConnectInfo(peer)))),
    );
    let counted = activity.clone();
    let service = service_fn(move |request| {
        let (turn, answer) = (counted.begin(), answers.call(request));
        async move {
            let answer = answer.await;
            drop(turn);
            answer
        }
    });
    let (read, write) = tokio::io::split(stream);
    let stream = TokioIo::new(tokio::io::join(Cursor::new(begin).chain(read), write));
    if is_http2 {
        let connection = speech.http2.serve_connection(stream, service);
        attend(connection, &activity, speech.idle, stop).await;
    } else {
        let connection = speech.http1.serve_connection(stream, service);
        attend(connection, &activity, speech.idle, stop).await;
    }
}

/// Asks a connection to end in order when the server ends, or when nothing is worked on for long: whoever does no more than
/// answer pings would keep it for ever.
async fn attend(
    connection: impl GracefulConnection,
    activity: &Activity,
    idle: Duration,
    stop: &CancellationToken,
) {
    let mut connection = pin!(connection);
    tokio::select! {
        _ = &mut connection => return,
        () = stop.cancelled() => {}
        () = activity.quiet(idle) => {}
    }
    connection.as_mut().graceful_shutdown();
    activity.touch();
    // Nobody is waited for who does not read what is left for them.
    tokio::select! {
        _ = &mut connection => {}
        () = activity.quiet(idle) => {}
    }
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
    use rstest::rstest;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const IDLE: Duration = Duration::from_millis(400);

    async fn start(connections: usize) -> (SocketAddr, CancellationToken) {
        start_with(connections, connections, &[]).await
    }

    async fn start_with(
        connections: usize,
        share: usize,
        proxies: &[&str],
    ) -> (SocketAddr, CancellationToken) {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let slow = async || {
            tokio::time::sleep(IDLE * 5).await;
            "late"
        };
        let router = Router::new()
            .route("/", get(async || "here"))
            .route("/slow", get(slow));
        let bounds = Bounds {
            connections,
            share,
            silence: Duration::from_millis(200),
            idle: IDLE,
        };
        let proxies = proxies.iter().map(|text| text.parse().unwrap()).collect();
        tokio::spawn(serve(listener, None, router, bounds, proxies, stop.clone()));
        (([127, 0, 0, 1], port).into(), stop)
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    /// What is answered to a request from another address of this machine; nothing when it is not let in.
    async fn asked_from(last: u8, server: SocketAddr) -> String {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        let mut text = String::new();
        if let Ok(mut stream) = socket.connect(server).await
            && stream.write_all(REQUEST).await.is_ok()
        {
            let _ = stream.read_to_string(&mut text).await;
        }
        text
    }

    /// Connections of 127.0.0.1 that a request is answered on and that stay open.
    async fn held(server: SocketAddr, count: usize) -> Vec<TcpStream> {
        let mut all = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(server).await.unwrap();
            stream
                .write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
                .await
                .unwrap();
            all.push(stream);
        }
        all
    }

    #[tokio::test]
    async fn no_address_takes_the_place_of_others() {
        let (server, stop) = start_with(8, 2, &[]).await;
        let held_by_one = held(server, 2).await;
        assert_eq!(asked_from(1, server).await, "", "it has its share");
        for _ in 0..4 {
            assert!(asked_from(2, server).await.ends_with("here"));
        }
        drop(held_by_one);
        let again = async {
            while !asked_from(1, server).await.ends_with("here") {
                tokio::task::yield_now().await;
            }
        };
        let again = tokio::time::timeout(Duration::from_secs(20), again).await;
        again.expect("what it gave back it may have again");
        stop.cancel();
        // Many are behind a proxy.
        let (server, stop) = start_with(8, 2, &["127.0.0.0/8"]).await;
        let _held = held(server, 4).await;
        assert!(asked_from(1, server).await.ends_with("here"));
        stop.cancel();
    }

    /// Frames of HTTP/2: type, flags, stream and what is in it.
    fn frame(kind: u8, flags: u8, stream: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
        frame.extend(content);
        frame
    }

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACKNOWLEDGED: u8 = 1;

    /// Speaks HTTP/2 until the server ends the connection: pings, answers pings if it is to, asks for nothing; or for one
    /// thing that it does not read.
    async fn ping_for_ever(server: SocketAddr, is_polite: bool, asks: bool) {
        let (mut read, mut write) = TcpStream::connect(server).await.unwrap().into_split();
        write.write_all(PREFACE).await.unwrap();
        // No room for anything on streams.
        let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        write.write_all(&settings).await.unwrap();
        if asks {
            // GET http://x/
            let head = frame(1, 4 | 1, 1, &[0x82, 0x86, 0x84, 0x41, 1, b'x']);
            write.write_all(&head).await.unwrap();
        }
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
        let writes = async {
            loop {
                let sent = match tokio::time::timeout(IDLE / 10, receive.recv()).await {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return,
                    Err(_) => frame(PING, 0, 0, b"are you?"),
                };
                if write.write_all(&sent).await.is_err() {
                    return;
                }
            }
        };
        let reads = async {
            let mut head = [0; 9];
            while read.read_exact(&mut head).await.is_ok() {
                let mut content = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                if read.read_exact(&mut content).await.is_err() {
                    return;
                }
                match (head[3], head[4]) {
                    (SETTINGS, 0) => send.send(frame(SETTINGS, ACKNOWLEDGED, 0, &[])).unwrap(),
                    (PING, 0) if is_polite => {
                        send.send(frame(PING, ACKNOWLEDGED, 0, &content)).unwrap();
                    }
                    _ => {}
                }
            }
        };
        tokio::select! {
            () = writes => {}
            () = reads => {}
        }
    }

    #[rstest]
    #[case::that_only_pings(true, false)]
    #[case::that_does_not_answer_pings(false, false)]
    #[case::that_does_not_read(true, true)]
    #[tokio::test]
    async fn a_connection_on_which_nothing_is_done_is_closed(#[case] is_polite: bool, #[case] asks: bool) {
        let (server, stop) = start(8).await;
        let ended = ping_for_ever(server, is_polite, asks);
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        ended.expect("it is closed");
        stop.cancel();
    }

    #[tokio::test]
    async fn a_request_that_takes_long_is_not_cut_off() {
        let (address, stop) = start(8).await;
        for is_second in [false, true] {
            let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                .http2_only(is_second)
                .build_http::<axum::body::Body>();
            let answer = client.get(format!("http://{address}/slow").parse().unwrap());
            let body = answer.await.unwrap().into_body().collect().await.unwrap();
            assert_eq!(body.to_bytes(), "late");
        }
        stop.cancel();
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
            stream.write_all(REQUEST).await.unwrap();
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
