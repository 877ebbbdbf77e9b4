//! The client that controllers use: counted, with a deadline on every call, and silent once the lease is lost.

use std::{
    future::Future,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{
    HeaderName, Request, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::{Either, Full};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, DynBody},
};
use serde_json::json;
use tower::{BoxError, Layer, Service, layer::util::Identity, util::BoxService};

use crate::{
    error::{Error, Result},
    leader::Fence,
    metrics::Metrics,
    silence::Silence,
};

/// Longest wait for one answer of the API server, unless asked otherwise.
pub const DEADLINE: Duration = Duration::from_secs(15);
/// Watches carry a bookmark about every minute; silence for longer means that the connection is dead.
pub const SILENCE: Duration = Duration::from_secs(150);

/// What kube makes of a configuration: all that is below us.
type Network = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

/// A client for controllers: retries are ours to decide, requests are counted.
pub fn build(config: Config, metrics: &Metrics) -> Result<Client> {
    build_with(config, metrics, SILENCE)
}

/// The same, with another idea of how long a connection may be silent.
pub fn build_with(config: Config, metrics: &Metrics, silence: Duration) -> Result<Client> {
    build_above(&Identity::new(), config, metrics, silence)
}

/// The same above a layer that stands for the network: what goes wrong there meets what it would meet anywhere.
pub(crate) fn build_above<L, S, B>(
    layer: &L,
    mut config: Config,
    metrics: &Metrics,
    silence: Duration,
) -> Result<Client>
where
    L: Layer<Network, Service = S>,
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    let builder =
        ClientBuilder::try_from(config).map_err(|source| Error::api("build the API client", source))?;
    Ok(builder
        .with_layer(layer)
        .with_layer(&Silence::of(silence))
        .with_layer(&Counted {
            metrics: metrics.clone(),
        })
        .build())
}

/// Bounds and names each call; refuses writes without the lease.
#[derive(Clone)]
pub struct Caller {
    client: Client,
    fence: Fence,
    deadline: Duration,
}

impl Caller {
    pub fn new(client: Client, fence: Fence, deadline: Duration) -> Self {
        Self {
            client,
            fence,
            deadline,
        }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub async fn read<T>(
        &self,
        action: String,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.deadline, call).await {
            Ok(answer) => answer.map_err(|source| Error::api(action, source)),
            Err(_) => Err(Error::Timeout {
                action,
                after: self.deadline,
            }),
        }
    }

    /// A write is given up when the lease runs out before the answer is there.
    pub async fn write<T>(
        &self,
        action: String,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T> {
        if !self.fence.holds() {
            return Err(Error::NotLeader);
        }
        tokio::select! {
            answer = self.read(action, call) => answer,
            () = self.fence.lost() => Err(Error::NotLeader),
        }
    }
}

#[derive(Clone)]
struct Counted {
    metrics: Metrics,
}

impl<S> Layer<S> for Counted {
    type Service = CountedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountedService {
            inner,
            metrics: self.metrics.clone(),
        }
    }
}

#[derive(Clone)]
struct CountedService<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, A, B> Service<Request<A>> for CountedService<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let metrics = self.metrics.clone();
        let method = request.method().clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            metrics.api_request(
                method.as_str(),
                answer.as_ref().ok().map(|answer| answer.status().as_u16()),
            );
            answer.map(spell_out)
        })
    }
}

/// A server that sheds load says how long to wait in a header, and nothing but prose in the body; kube hands on only the
/// body. So it is said again where errors have it.
fn spell_out<B>(answer: Response<B>) -> Response<Either<B, Full<Bytes>>> {
    let header = |name: HeaderName| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let is_json = header(CONTENT_TYPE).is_some_and(|kind| kind.contains("json"));
    let seconds = header(RETRY_AFTER).and_then(|seconds| seconds.parse::<u32>().ok());
    let Some(seconds) = seconds.filter(|_| answer.status() == StatusCode::TOO_MANY_REQUESTS && !is_json)
    else {
        return answer.map(Either::Left);
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429, "reason": "TooManyRequests",
        "message": "the server has received too many requests and has asked us to try again later",
        "details": {"retryAfterSeconds": seconds},
    });
    answer.map(|_| Either::Right(Full::new(Bytes::from(status.to_string()))))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use futures::StreamExt;
    use http_body_util::BodyExt;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Api, core::Status, runtime::watcher};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Answers lists, and watches with their head and nothing more. Counts the watches.
    async fn hang(mut connection: tokio::net::TcpStream, watches: Arc<AtomicUsize>) -> std::io::Result<()> {
        let mut request = Vec::new();
        loop {
            let mut part = [0; 4096];
            let read = connection.read(&mut part).await?;
            if read == 0 {
                return Ok(());
            }
            request.extend_from_slice(&part[..read]);
            if !request.ends_with(b"\r\n\r\n") {
                continue;
            }
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
            if String::from_utf8_lossy(&request).contains("watch=true") {
                watches.fetch_add(1, Ordering::SeqCst);
                connection
                    .write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes())
                    .await?;
            } else {
                let metadata = json!({"resourceVersion": "1"});
                let list =
                    json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata, "items": []});
                let list = list.to_string();
                let answer = format!("{head}content-length: {}\r\n\r\n{list}", list.len());
                connection.write_all(answer.as_bytes()).await?;
            }
            request.clear();
        }
    }

    /// The connection stays open and nothing comes any more, as when a firewall has forgotten it.
    #[tokio::test]
    async fn a_watch_that_falls_silent_is_begun_anew() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let watches = Arc::new(AtomicUsize::new(0));
        let counter = watches.clone();
        let server = async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                connections.spawn(hang(connection, counter.clone()));
            }
        };
        let config = Config::new(address.parse().unwrap());
        let client = build_with(config, &Metrics::default(), Duration::from_millis(200)).unwrap();
        let api = Api::<ConfigMap>::default_namespaced(client);
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        let until = async {
            let mut failed = false;
            while watches.load(Ordering::SeqCst) < 2 {
                failed |= events.next().await.unwrap().is_err();
            }
            failed
        };
        let told = tokio::select! {
            told = tokio::time::timeout(Duration::from_secs(60), until) => told,
            () = server => unreachable!(),
        };
        assert!(told.expect("it is silent for ever"), "its silence is told");
    }

    async fn told(code: u16, headers: &[(&str, &str)], body: &'static str) -> Option<u32> {
        let mut answer = Response::builder().status(code);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        let answer = spell_out(answer.body(Full::new(Bytes::from(body))).unwrap());
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let status: Status = serde_json::from_slice(&bytes).ok()?;
        assert_eq!(status.code, 429);
        status.details.map(|details| details.retry_after_seconds)
    }

    #[tokio::test]
    async fn a_wait_that_is_asked_for_in_a_header_is_known() {
        let text = "Too many requests, please try again later.";
        assert_eq!(told(429, &[("retry-after", "7")], text).await, Some(7));
        assert_eq!(told(429, &[], text).await, None);
        assert_eq!(told(200, &[("retry-after", "7")], text).await, None);
        // What the server says at length stays as it is.
        let headers = [("retry-after", "7"), ("content-type", "application/json")];
        let said = r#"{"code": 429, "details": {"retryAfterSeconds": 9}}"#;
        assert_eq!(told(429, &headers, said).await, Some(9));
    }
}
