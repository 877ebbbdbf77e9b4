//! The routes of the metrics API, behind the front proxy's certificate.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{ConnectInfo, Path, Query, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    render,
    source::{Selection, Source},
    tls::Peer,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListQuery {
    label_selector: Option<String>,
    field_selector: Option<String>,
}

impl From<ListQuery> for Selection {
    fn from(query: ListQuery) -> Self {
        Self {
            labels: query.label_selector.filter(|s| !s.is_empty()),
            fields: query.field_selector.filter(|s| !s.is_empty()),
        }
    }
}

/// Something to answer instead of data.
struct Failure(u16, &'static str, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, Json(render::failure(self.0, self.1, &self.2))).into_response()
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 400 => Self(400, "BadRequest", status.message),
            error => Self(
                503,
                "ServiceUnavailable",
                format!("failed to read from the API server: {error}"),
            ),
        }
    }
}

type Answer = Result<Json<Value>, Failure>;

pub fn router(source: Arc<Source>) -> Router {
    let api = Router::new()
        .route("/apis", get(async || Json(render::group_list())))
        .route("/apis/metrics.k8s.io", get(async || Json(render::group())))
        .route(
            "/apis/metrics.k8s.io/v1beta1",
            get(async || Json(render::resources())),
        )
        .route("/apis/metrics.k8s.io/v1beta1/nodes", get(nodes))
        .route("/apis/metrics.k8s.io/v1beta1/nodes/{name}", get(node))
        .route("/apis/metrics.k8s.io/v1beta1/pods", get(all_pods))
        .route(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods",
            get(pods),
        )
        .route(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/{name}",
            get(pod),
        )
        .fallback(async || {
            Failure(
                404,
                "NotFound",
                "the server could not find the requested resource".to_owned(),
            )
        })
        .layer(middleware::from_fn(require_proxy))
        .with_state(source);
    let health = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/livez", get(async || "ok"))
        .route("/readyz", get(async || "ok"));
    health.merge(api)
}

/// Only the API server may ask: it has checked who the user is and what they may see.
async fn require_proxy(ConnectInfo(peer): ConnectInfo<Peer>, request: Request, next: Next) -> Response {
    if peer.trusted {
        return next.run(request).await;
    }
    Failure(
        401,
        "Unauthorized",
        "only the API server's front proxy may ask".to_owned(),
    )
    .into_response()
}

async fn nodes(State(source): State<Arc<Source>>, Query(query): Query<ListQuery>) -> Answer {
    Ok(Json(render::list(
        "NodeMetrics",
        source.nodes(&query.into()).await?,
    )))
}

async fn node(State(source): State<Arc<Source>>, Path(name): Path<String>) -> Answer {
    let found = source.node(&name).await?;
    found.map(Json).ok_or_else(|| {
        Failure(
            404,
            "NotFound",
            format!("nodemetrics.metrics.k8s.io {name:?} not found"),
        )
    })
}

async fn all_pods(State(source): State<Arc<Source>>, Query(query): Query<ListQuery>) -> Answer {
    Ok(Json(render::list(
        "PodMetrics",
        source.pods(None, &query.into()).await?,
    )))
}

async fn pods(
    State(source): State<Arc<Source>>,
    Path(namespace): Path<String>,
    Query(query): Query<ListQuery>,
) -> Answer {
    Ok(Json(render::list(
        "PodMetrics",
        source.pods(Some(&namespace), &query.into()).await?,
    )))
}

async fn pod(State(source): State<Arc<Source>>, Path((namespace, name)): Path<(String, String)>) -> Answer {
    let found = source.pod(&namespace, &name).await?;
    found.map(Json).ok_or_else(|| {
        Failure(
            404,
            "NotFound",
            format!(
                "podmetrics.metrics.k8s.io {:?} not found",
                format!("{namespace}/{name}")
            ),
        )
    })
}
