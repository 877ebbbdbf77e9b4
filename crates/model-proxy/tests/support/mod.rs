//! A stand-in for Ollama that does what the test says, the proxy before it, and clients.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{convert::Infallible, future::Future, net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use gantry_model_proxy::{Options, Server};
use http::{Request, Response, request::Parts};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http1::SendRequest,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

pub type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Generous: only a fault reaches it.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(Duration::from_secs(20), future).await else {
        panic!("waited too long for {what}")
    };
    value
}

/// One request as it came to Ollama, waiting for the test's answer.
pub struct Call {
    pub parts: Parts,
    pub body: Incoming,
    answer: oneshot::Sender<Answer>,
}

impl Call {
    pub fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }

    /// Answers with a stream that the test feeds.
    pub fn stream(self, kind: &str) -> mpsc::Sender<Frame<Bytes>> {
        let (sender, mut receiver) = mpsc::channel::<Frame<Bytes>>(1);
        let frames = stream::poll_fn(move |context| receiver.poll_recv(context)).map(Ok::<_, Infallible>);
        self.answer(
            Response::builder()
                .header("content-type", kind)
                .header("trailer", "x-sum")
                .body(BoxBody::new(StreamBody::new(frames)))
                .unwrap(),
        );
        sender
    }
}

pub fn data(text: &str) -> Frame<Bytes> {
    Frame::data(Bytes::copy_from_slice(text.as_bytes()))
}

pub fn answer(status: u16, kind: &str, body: impl Into<Bytes>) -> Answer {
    Response::builder()
        .status(status)
        .header("content-type", kind)
        .body(BoxBody::new(Full::new(body.into())))
        .unwrap()
}

pub struct Stage {
    pub calls: mpsc::Receiver<Call>,
    pub proxy: SocketAddr,
    pub admin: SocketAddr,
    pub stop: Option<oneshot::Sender<()>>,
    pub running: JoinHandle<()>,
}

/// Ollama and the proxy, on ports of their own.
pub async fn stage(parallel: usize, queue: Option<usize>) -> Stage {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let (sender, calls) = mpsc::channel(64);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let sender = sender.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let sender = sender.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let (answer, answered) = oneshot::channel();
                    let _ = sender.send(Call { parts, body, answer }).await;
                    answered.await.map_err(|_| "the test dropped the call")
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    before(&format!("http://{upstream}"), calls, parallel, queue).await
}

pub async fn before(
    upstream: &str,
    calls: mpsc::Receiver<Call>,
    parallel: usize,
    queue: Option<usize>,
) -> Stage {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = Options {
        listen: any,
        metrics: any,
        upstream: upstream.to_owned(),
        models: vec!["phi".to_owned()],
        parallel,
        queue,
        linger: Duration::ZERO,
        grace: Duration::from_secs(20),
    };
    let server = Server::bind(&options).await.unwrap();
    let (proxy, admin) = server.addresses().unwrap();
    let (stop, stopped) = oneshot::channel();
    let running = tokio::spawn(server.run(async move {
        let _ = stopped.await;
    }));
    Stage {
        calls,
        proxy,
        admin,
        stop: Some(stop),
        running,
    }
}

pub type Connection = SendRequest<BoxBody<Bytes, Infallible>>;

pub async fn connect(address: SocketAddr) -> Connection {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

pub fn post(path: &str, body: impl Into<Bytes>) -> Request<BoxBody<Bytes, Infallible>> {
    Request::post(path)
        .header("host", "ollama-model-phi.team:11434")
        .body(BoxBody::new(Full::new(body.into())))
        .unwrap()
}

impl Stage {
    pub async fn call(&mut self) -> Call {
        soon("a request to arrive at Ollama", self.calls.recv())
            .await
            .unwrap()
    }

    /// On a connection of its own, in the background.
    pub fn ask(&self, path: &str, body: &'static str) -> JoinHandle<Response<Incoming>> {
        let (proxy, request) = (self.proxy, post(path, body));
        tokio::spawn(async move {
            let mut connection = connect(proxy).await;
            let answer = connection.send_request(request).await.unwrap();
            // Kept open while the answer is read.
            tokio::spawn(async move {
                let _ = connection.ready().await;
            });
            answer
        })
    }

    pub async fn get(&self, address: SocketAddr, path: &str) -> (u16, String) {
        let mut connection = connect(address).await;
        let request = Request::get(path)
            .header("host", "x")
            .body(BoxBody::default())
            .unwrap();
        let answer = soon(path, connection.send_request(request)).await.unwrap();
        let status = answer.status().as_u16();
        (status, text(answer.into_body()).await)
    }

    pub async fn metrics(&self) -> String {
        let (status, text) = self.get(self.admin, "/metrics").await;
        assert_eq!(status, 200);
        text
    }

    pub async fn metric(&self, series: &str) -> Option<f64> {
        let text = self.metrics().await;
        let line = text.lines().find(|line| {
            line.strip_prefix(series)
                .is_some_and(|rest| rest.starts_with(' '))
        })?;
        line.rsplit(' ').next()?.parse().ok()
    }

    pub async fn until(&self, series: &str, wanted: f64) {
        soon(&format!("{series} = {wanted}"), async {
            while self.metric(series).await != Some(wanted) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

pub async fn text(body: Incoming) -> String {
    let bytes = soon("the rest of a body", body.collect())
        .await
        .unwrap()
        .to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The next piece of an answer.
pub async fn piece(body: &mut Incoming) -> String {
    let frame = soon("the next piece", body.frame()).await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}
