//! `POST /v1/changes`: for services that have no Kubernetes client. Who asks is told by the token of their pod, and what
//! they may ask for by their own rights: this endpoint lends nobody any.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use gantry_crds::penin::{ChangePatch, InfrastructureChange, InfrastructureChangeSpec};
use gantry_kit::{client::Caller, error::Error};
use k8s_openapi::{
    api::{
        authentication::v1::{TokenReview, UserInfo},
        authorization::v1::SubjectAccessReview,
    },
    jiff::Timestamp,
};
use kube::{Api, ResourceExt, api::PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    book::Books,
    identity::{Claim, PROOF, REQUESTED_BY, service_account},
    limits::Limits,
};

const MOST_BYTES: usize = 64 << 10;
/// What the endpoint needs.
#[derive(Clone)]
pub struct Endpoint {
    pub caller: Caller,
    pub books: Arc<Books>,
    /// The audience that tokens must be made for.
    pub audience: String,
    pub limits: Arc<Limits>,
}

impl Endpoint {
    pub fn new(caller: Caller, books: Arc<Books>, audience: String) -> Self {
        Self {
            caller,
            books,
            audience,
            limits: Arc::default(),
        }
    }

    /// Serves until the process ends.
    pub async fn serve(self, address: SocketAddr) {
        let listener = match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%address, %error, "cannot serve requests for changes");
                return;
            }
        };
        tracing::info!(%address, audience = self.audience, "requests for changes are taken");
        if let Err(error) = axum::serve(listener, self.router()).await {
            tracing::error!(%error, "requests for changes are no longer taken");
        }
    }

    pub fn router(self) -> Router {
        Router::new()
            .route("/v1/changes", post(ask))
            .route("/v1/changes/{namespace}/{name}", get(show))
            .layer(DefaultBodyLimit::max(MOST_BYTES))
            .with_state(self)
    }

    async fn who(&self, headers: &HeaderMap) -> Result<UserInfo, Refusal> {
        if let Err(wait) = self.limits.all(Instant::now()) {
            return Err(Refusal::busy(wait));
        }
        let token = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .map(str::trim)
            .filter(|token| !token.is_empty())
            .ok_or_else(|| Refusal::unknown("send the token of your pod: Authorization: Bearer …"))?;
        let review: TokenReview = decoded(json!({"spec": {"token": token, "audiences": [self.audience]}}))?;
        let api = Api::<TokenReview>::all(self.caller.client());
        let params = PostParams::default();
        let call = api.create(&params, &review);
        let answer = self.caller.read("review a token".to_owned(), call).await?;
        let status = answer.status.unwrap_or_default();
        // A server that does not know audiences answers without one; its word about ours is worth nothing.
        let meant_for_us = status
            .audiences
            .iter()
            .flatten()
            .any(|audience| *audience == self.audience);
        if !status.authenticated.unwrap_or(false) || !meant_for_us {
            return Err(Refusal::unknown(&format!(
                "the token is not valid for audience {:?}: mount a projected serviceAccountToken with it",
                self.audience
            )));
        }
        let user = status.user.unwrap_or_default();
        if let Err(wait) = self
            .limits
            .one(user.username.as_deref().unwrap_or_default(), Instant::now())
        {
            return Err(Refusal::busy(wait));
        }
        Ok(user)
    }

    async fn may(&self, user: &UserInfo, verb: &str, namespace: &str, name: &str) -> Result<(), Refusal> {
        let review: SubjectAccessReview = decoded(json!({"spec": {
            "user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "resourceAttributes": {
                "namespace": namespace, "verb": verb, "group": "penin.ai",
                "resource": "infrastructurechanges", "name": name,
            },
        }}))?;
        let api = Api::<SubjectAccessReview>::all(self.caller.client());
        let params = PostParams::default();
        let call = api.create(&params, &review);
        let answer = self.caller.read("review access".to_owned(), call).await?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        let user = user.username.as_deref().unwrap_or_default();
        Err(Refusal {
            status: StatusCode::FORBIDDEN,
            message: format!("{user} may not {verb} infrastructurechanges in namespace {namespace}"),
            wait: None,
        })
    }
}

/// What is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    /// That of the asking pod when absent.
    namespace: Option<String>,
    cluster: String,
    reason: String,
    patch: Value,
    /// Asked twice with the same id, it is one request.
    id: Option<String>,
}

async fn ask(State(endpoint): State<Endpoint>, headers: HeaderMap, body: axum::body::Bytes) -> Response {
    match create(&endpoint, &headers, &body).await {
        Ok((status, change)) => (status, Json(told(&change))).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn create(
    endpoint: &Endpoint,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(StatusCode, InfrastructureChange), Refusal> {
    let user = endpoint.who(headers).await?;
    let asked: Asked = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad(format!("not a request for a change: {error}")))?;
    let username = user.username.clone().unwrap_or_default();
    let namespace = asked
        .namespace
        .or_else(|| service_account(&username).map(|(namespace, _)| namespace.to_owned()))
        .ok_or_else(|| Refusal::bad("say which namespace".to_owned()))?;
    let patch: ChangePatch =
        serde_json::from_value(asked.patch).map_err(|error| Refusal::bad(format!("patch: {error}")))?;
    let spec = InfrastructureChangeSpec {
        cluster: Some(asked.cluster.clone()),
        reason: Some(asked.reason),
        patch: Some(patch),
    };
    if let Some(problem) = spec.problems().first() {
        return Err(Refusal::bad(problem.to_string()));
    }
    let name = name_of(&asked.cluster, asked.id.as_deref(), &username);
    endpoint.may(&user, "create", &namespace, &name).await?;
    let signer = endpoint.books.signer(&endpoint.caller).await?;
    let mut change = InfrastructureChange::new(&name, spec.clone());
    change.metadata.namespace = Some(namespace.clone());
    let claim = Claim::new(username, &namespace, &name, &spec);
    let proof = claim.signed(&signer);
    change
        .annotations_mut()
        .insert(REQUESTED_BY.to_owned(), claim.user);
    change.annotations_mut().insert(PROOF.to_owned(), proof);
    let api = Api::<InfrastructureChange>::namespaced(endpoint.caller.client(), &namespace);
    let params = PostParams {
        field_manager: Some("gantry-changes-endpoint".to_owned()),
        ..PostParams::default()
    };
    let call = api.create(&params, &change);
    match endpoint
        .caller
        .read(format!("create InfrastructureChange {name}"), call)
        .await
    {
        Ok(created) => Ok((StatusCode::CREATED, created)),
        Err(error) if error.reason() == "Conflict" => {
            let action = format!("get InfrastructureChange {name}");
            let found = endpoint.caller.read(action, api.get(&name)).await?;
            if found.spec == spec {
                Ok((StatusCode::OK, found))
            } else {
                Err(Refusal {
                    status: StatusCode::CONFLICT,
                    message: format!("{name} exists and asks for something else: use another id"),
                    wait: None,
                })
            }
        }
        Err(error) => Err(error.into()),
    }
}

async fn show(
    State(endpoint): State<Endpoint>,
    headers: HeaderMap,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let answer = async {
        let user = endpoint.who(&headers).await?;
        endpoint.may(&user, "get", &namespace, &name).await?;
        let api = Api::<InfrastructureChange>::namespaced(endpoint.caller.client(), &namespace);
        let action = format!("get InfrastructureChange {name}");
        Ok::<_, Refusal>(endpoint.caller.read(action, api.get(&name)).await?)
    };
    match answer.await {
        Ok(change) => Json(told(&change)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

fn told(change: &InfrastructureChange) -> Value {
    let status = change.status.clone().unwrap_or_default();
    json!({
        "namespace": change.namespace(), "name": change.name_any(), "uid": change.uid(),
        "phase": status.phase.unwrap_or_default(), "message": status.message, "rule": status.rule,
        "gain": status.gain, "inEffect": status.in_effect,
    })
}

/// The name of a request. With an id always the same; without one, a new one each time.
fn name_of(cluster: &str, id: Option<&str>, user: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let seed = match id {
        Some(id) => format!("{user}\n{id}"),
        None => format!(
            "{user}\n{}\n{}\n{}",
            Timestamp::now().as_nanosecond(),
            COUNT.fetch_add(1, Ordering::Relaxed),
            std::process::id()
        ),
    };
    let tail = gantry_kit::wish::digest_bytes(seed.as_bytes());
    let head: String = cluster.chars().take(200).collect();
    format!("{}-{}", head.trim_end_matches(['-', '.']), &tail[..12])
}

/// A no, as it is told.
struct Refusal {
    status: StatusCode,
    message: String,
    wait: Option<Duration>,
}

impl Refusal {
    fn bad(message: String) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message,
            wait: None,
        }
    }

    fn unknown(message: &str) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            message: message.to_owned(),
            wait: None,
        }
    }

    fn busy(wait: Duration) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            message: "too many requests".to_owned(),
            wait: Some(wait),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match error.reason() {
            "Rejected" if error.is_not_found() => StatusCode::NOT_FOUND,
            "Rejected" => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        tracing::warn!(error = error.report(), "a request for a change failed");
        Self {
            status,
            message: error.report(),
            wait: None,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({"error": self.message}))).into_response();
        if let Some(wait) = self.wait {
            let seconds = wait.as_secs() + 1;
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

fn decoded<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|error| Refusal::bad(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_for_the_same_id_and_user_only() {
        assert_eq!(name_of("demo", Some("1"), "a"), name_of("demo", Some("1"), "a"));
        assert_ne!(name_of("demo", Some("1"), "a"), name_of("demo", Some("1"), "b"));
        assert_ne!(name_of("demo", None, "a"), name_of("demo", None, "a"));
        assert!(name_of("demo", None, "a").starts_with("demo-"));
    }
}
