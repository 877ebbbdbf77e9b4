//! What the proxy costs: time added to answers and to each piece of a stream, and memory. Direct access and access
//! through the proxy take turns in the same run, so that both see the same machine.
//!
//! Usage: proxy-bench GANTRY [REQUESTS]

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    convert::Infallible,
    net::SocketAddr,
    process::{Child, Command},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http1::SendRequest,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

const ASK: &str =
    r#"{"model":"phi","stream":false,"messages":[{"role":"user","content":"why is the sky blue?"}]}"#;
const ANSWER: &str = r#"{"model":"phi","created_at":"2026-01-01T00:00:00Z","message":{"role":"assistant","content":"Because of the way air scatters light."},"done":true,"done_reason":"stop","total_duration":1000000,"prompt_eval_count":12,"eval_count":9}"#;
const PIECES: u32 = 200;
const OPEN: usize = 200;

struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Proxy {
    /// What is its own, and what it maps in all, with the program itself.
    fn memory(&self) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let megabytes = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            let kilobytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            kilobytes / 1024.0
        };
        format!("{:.1} MB ({:.1} MB)", megabytes("RssAnon"), megabytes("VmRSS"))
    }
}

#[tokio::main]
async fn main() {
    let mut words = std::env::args().skip(1);
    let gantry = words.next().expect("usage: proxy-bench GANTRY [REQUESTS]");
    let requests: usize = words.next().map_or(5000, |word| word.parse().expect("a number"));
    let epoch = Instant::now();
    let ollama = stand_in(epoch).await;
    let (proxy, listen) = start(&gantry, ollama).await;
    let at_rest = proxy.memory();

    let (mut direct, mut through) = (connect(ollama).await, connect(listen).await);
    for _ in 0..500 {
        ask(&mut direct).await;
        ask(&mut through).await;
    }
    let (mut plain, mut proxied) = (Vec::new(), Vec::new());
    for _ in 0..requests {
        plain.push(ask(&mut direct).await);
        proxied.push(ask(&mut through).await);
    }
    report("answer to a small chat", &mut plain, &mut proxied);

    let (mut plain, mut proxied) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        plain.extend(follow(ollama, epoch).await);
        proxied.extend(follow(listen, epoch).await);
    }
    report("a piece of a stream", &mut plain, &mut proxied);

    let before = (busy(ollama).await, busy(listen).await);
    println!(
        "32 clients at once           direct {:>7.0}/s   proxied {:>7.0}/s",
        before.0, before.1
    );

    let after_load = proxy.memory();
    let mut open = Vec::new();
    for _ in 0..OPEN {
        let mut connection = connect(listen).await;
        let mut answer = connection
            .send_request(request("/api/generate"))
            .await
            .unwrap()
            .into_body();
        answer.frame().await.unwrap().unwrap();
        open.push((connection, answer));
    }
    let with_streams = proxy.memory();
    println!("memory of its own (with the program mapped): at rest {at_rest}, after the load {after_load},");
    println!("  with {OPEN} open streams {with_streams}");
}

/// Answers chats at once, and generates pieces with the time at which each was said.
async fn stand_in(epoch: Instant) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let service = service_fn(move |request: Request<Incoming>| async move {
                let streams = request.uri().path() == "/api/generate";
                request.into_body().collect().await?;
                let (kind, body) = if streams {
                    ("application/x-ndjson", pieces(epoch))
                } else {
                    ("application/json", BoxBody::new(Full::from(ANSWER)))
                };
                let answer = Response::builder()
                    .header("content-type", kind)
                    .body(body)
                    .unwrap();
                Ok::<_, hyper::Error>(answer)
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    address
}

fn pieces(epoch: Instant) -> BoxBody<Bytes, Infallible> {
    let pieces = stream::iter(0..PIECES).then(move |_| async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let line = format!(
            "{{\"model\":\"phi\",\"response\":\"word\",\"said\":{},\"done\":false}}\n",
            epoch.elapsed().as_nanos()
        );
        Ok(Frame::data(Bytes::from(line)))
    });
    BoxBody::new(StreamBody::new(Box::pin(pieces)))
}

async fn start(gantry: &str, ollama: SocketAddr) -> (Proxy, SocketAddr) {
    let free = || {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap()
    };
    let (listen, metrics) = (free(), free());
    let child = Command::new(gantry)
        .args(["model-proxy", "--model=phi", "--log-level=warn"])
        .arg(format!("--listen={listen}"))
        .arg(format!("--metrics={metrics}"))
        .arg(format!("--upstream=http://{ollama}"))
        .spawn()
        .expect("failed to start gantry");
    let proxy = Proxy(child);
    for _ in 0..200 {
        if TcpStream::connect(listen).await.is_ok() {
            return (proxy, listen);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the proxy does not listen");
}

type Connection = SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Connection {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

fn request(path: &str) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "x")
        .body(Full::from(ASK))
        .unwrap()
}

async fn ask(connection: &mut Connection) -> Duration {
    connection.ready().await.unwrap();
    let begin = Instant::now();
    let answer = connection.send_request(request("/api/chat")).await.unwrap();
    answer.into_body().collect().await.unwrap();
    begin.elapsed()
}

/// How long each piece was under way.
async fn follow(address: SocketAddr, epoch: Instant) -> Vec<Duration> {
    let mut connection = connect(address).await;
    let mut body = connection
        .send_request(request("/api/generate"))
        .await
        .unwrap()
        .into_body();
    let mut delays = Vec::new();
    while let Some(frame) = body.frame().await {
        let now = epoch.elapsed();
        let text = frame.unwrap().into_data().unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        if let Some(said) = text
            .split("\"said\":")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
        {
            delays.push(now.saturating_sub(Duration::from_nanos(said.parse().unwrap())));
        }
    }
    delays
}

/// Requests per second of many clients.
async fn busy(address: SocketAddr) -> f64 {
    let begin = Instant::now();
    let clients: Vec<_> = (0..32)
        .map(|_| {
            tokio::spawn(async move {
                let mut connection = connect(address).await;
                for _ in 0..200 {
                    ask(&mut connection).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    f64::from(32 * 200) / begin.elapsed().as_secs_f64()
}

fn report(what: &str, plain: &mut [Duration], proxied: &mut [Duration]) {
    plain.sort_unstable();
    proxied.sort_unstable();
    let at = |sorted: &[Duration], part: f64| {
        let place = ((sorted.len() as f64 - 1.0) * part) as usize;
        sorted[place].as_secs_f64() * 1e6
    };
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let (without, with) = (at(plain, part), at(proxied, part));
        println!(
            "{what:<24} {name} direct {without:>7.0} us  proxied {with:>7.0} us  added {:>7.0} us",
            with - without
        );
    }
}
