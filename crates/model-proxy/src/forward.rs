//! What happens to one request: its model is found, it takes its place, it is passed on.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::{CONTENT_TYPE, RETRY_AFTER},
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

use crate::{
    body::Counted,
    exchange::{Exchange, Work},
    headers,
    metrics::Metrics,
    peek::Peeked,
    route::Route,
    server::Error,
};

/// Each connection buffers so much at most, in each direction.
pub const BUFFER: usize = 64 * 1024;

pub type Answer = Response<Either<Counted<Incoming>, Full<Bytes>>>;

pub struct Forward {
    upstream: Authority,
    host: HeaderValue,
    client: Client<HttpConnector, Peeked<Incoming>>,
    metrics: Arc<Metrics>,
}

impl Forward {
    pub fn new(upstream: &str, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let bad = |why: &str| Error::Upstream(upstream.to_owned(), why.to_owned());
        let uri: Uri = upstream.parse().map_err(|error| bad(&format!("{error}")))?;
        if uri.scheme() != Some(&Scheme::HTTP) || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(bad("it has to be http://HOST:PORT"));
        }
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?.clone();
        let host = HeaderValue::from_str(authority.as_str()).map_err(|error| bad(&error.to_string()))?;
        let mut connector = HttpConnector::new();
        // A token is a small packet; it must not wait for the next one.
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(64)
            .http1_max_buf_size(BUFFER)
            .http1_preserve_header_case(true)
            .set_host(false)
            .build(connector);
        Ok(Self {
            upstream: authority,
            host,
            client,
            metrics,
        })
    }

    pub async fn handle(&self, request: Request<Incoming>, from: IpAddr) -> Answer {
        if request.method() == Method::CONNECT {
            let exchange = Exchange::new(self.metrics.clone(), None);
            return own(
                exchange,
                StatusCode::METHOD_NOT_ALLOWED,
                "/",
                "this is no proxy for other hosts",
            );
        }
        let arrived = Instant::now();
        let route = Route::of(request.method(), request.uri().path());
        if !route.is_work() {
            let exchange = Exchange::new(self.metrics.clone(), None);
            return self.pass(request.map(Peeked::untouched), exchange, from).await;
        }
        let (parts, body) = request.into_parts();
        let (body, name) = match Peeked::read(body).await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "a request ended before its body did");
                let exchange = Exchange::new(self.metrics.clone(), None);
                return own(
                    exchange,
                    StatusCode::BAD_REQUEST,
                    parts.uri.path(),
                    "failed to read the request's body",
                );
            }
        };
        let Some(model) = self.metrics.model(name.as_deref()).cloned() else {
            // There is always the lane of the rest.
            let exchange = Exchange::new(self.metrics.clone(), None);
            return own(exchange, StatusCode::INTERNAL_SERVER_ERROR, "/", "no lane");
        };
        model.received();
        let ticket = match model.lane.enter().await {
            Ok(ticket) => ticket,
            Err(full) => {
                model.rejected(route);
                // In Ollama's own words for the same trouble.
                let words = "server busy, please try again.  maximum pending requests exceeded";
                let mut answer = refusal(StatusCode::SERVICE_UNAVAILABLE, parts.uri.path(), words);
                answer
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from(full.retry_after.as_secs()));
                return answer;
            }
        };
        model.waited(arrived.elapsed());
        let exchange = Exchange::new(
            self.metrics.clone(),
            Some(Work::new(model, route, arrived, ticket)),
        );
        self.pass(Request::from_parts(parts, body), exchange, from).await
    }

    /// Sends the request on. When the client goes away this future is dropped, and with it the connection to Ollama.
    async fn pass(
        &self,
        mut request: Request<Peeked<Incoming>>,
        mut exchange: Exchange,
        from: IpAddr,
    ) -> Answer {
        let path = request
            .uri()
            .path_and_query()
            .cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut target = http::uri::Parts::default();
        target.scheme = Some(Scheme::HTTP);
        target.authority = Some(self.upstream.clone());
        target.path_and_query = Some(path.clone());
        match Uri::from_parts(target) {
            Ok(target) => *request.uri_mut() = target,
            Err(error) => return own(exchange, StatusCode::BAD_REQUEST, path.path(), &error.to_string()),
        }
        *request.version_mut() = Version::HTTP_11;
        headers::request(request.headers_mut(), self.host.clone(), from);
        match self.client.request(request).await {
            Ok(mut answer) => {
                headers::response(answer.headers_mut());
                exchange.head(answer.status(), answer.headers());
                answer.map(|body| Either::Left(Counted::new(body, exchange)))
            }
            Err(error) => {
                let words = format!(
                    "failed to reach the model server at {}: {}",
                    self.upstream,
                    chain(&error)
                );
                tracing::warn!(path = path.path(), "{words}");
                own(exchange, StatusCode::BAD_GATEWAY, path.path(), &words)
            }
        }
    }
}

/// An answer of this process, counted.
fn own(exchange: Exchange, status: StatusCode, path: &str, words: &str) -> Answer {
    exchange.answered(status);
    refusal(status, path, words)
}

fn refusal(status: StatusCode, path: &str, words: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(Route::error(path, words))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/json; charset=utf-8"),
    );
    answer
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(": ");
        words.push_str(&error.to_string());
        source = error.source();
    }
    words
}
