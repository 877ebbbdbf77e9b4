//! The client that controllers use: counted, with a deadline on every call, and silent once the lease is lost.

use std::{
    future::Future,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::{Client, Config, client::ClientBuilder};
use tower::{BoxError, Layer, Service};

use crate::{
    error::{Error, Result},
    leader::Fence,
    metrics::Metrics,
};

/// Longest wait for one answer of the API server.
const DEADLINE: Duration = Duration::from_secs(15);
/// Watches carry a bookmark about every minute; silence for longer means that the connection is dead.
const SILENCE: Duration = Duration::from_secs(150);

/// A client for controllers: retries are ours to decide, requests are counted.
pub fn build(mut config: Config, metrics: &Metrics) -> Result<Client> {
    config.default_retry = false;
    config.read_timeout = Some(SILENCE);
    config.connect_timeout = Some(Duration::from_secs(5));
    let builder =
        ClientBuilder::try_from(config).map_err(|source| Error::api("build the API client", source))?;
    Ok(builder
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
}

impl Caller {
    pub fn new(client: Client, fence: Fence) -> Self {
        Self { client, fence }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub async fn read<T>(
        &self,
        action: String,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T> {
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(answer) => answer.map_err(|source| Error::api(action, source)),
            Err(_) => Err(Error::Timeout {
                action,
                after: DEADLINE,
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
    type Response = Response<B>;
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
            answer
        })
    }
}
