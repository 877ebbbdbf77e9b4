//! The second port: `/metrics`, `/healthz`, and `/idle`, which answers when nobody is being served.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Quiet for so long means that no more requests come.
const QUIET: Duration = Duration::from_secs(2);

pub async fn handle(
    request: Request<Incoming>,
    metrics: Arc<Metrics>,
    left: watch::Receiver<()>,
    over: CancellationToken,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, OPEN_METRICS, metrics.render()),
        (&Method::GET, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        (&Method::GET, "/idle") => {
            tokio::select! {
                () = idle(&metrics, left) => {}
                // The last stream has ended and nobody gets in any more.
                () = over.cancelled() => {}
            }
            (StatusCode::OK, "text/plain", "idle\n".to_owned())
        }
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "there are /metrics, /healthz and /idle\n".to_owned(),
        ),
    };
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(answer)
}

/// For a `preStop` hook of Ollama's container: a pod that is being deleted gets no new requests, and Ollama, which cuts
/// its streams when it is told to stop, is told only when there are none. It changes nothing, so anybody may ask.
async fn idle(metrics: &Metrics, mut left: watch::Receiver<()>) {
    loop {
        left.mark_unchanged();
        if metrics.idle() {
            let moved = tokio::time::timeout(QUIET, left.changed()).await;
            if moved.is_err() && metrics.idle() {
                return;
            }
        } else if left.changed().await.is_err() {
            return;
        }
    }
}
