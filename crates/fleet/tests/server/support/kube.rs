//! Something that answers like an API server, for what real ones do not do on request: hang, refuse, fail. Real ones are
//! asked in `tests/e2e`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

pub const HANG: u16 = 0;
/// Sends without end.
pub const FLOOD: u16 = 1;

#[derive(Clone)]
pub struct StandIn {
    pub url: String,
    /// What it answers; 200 is well, 0 never.
    pub mood: Arc<AtomicU16>,
    /// How often it was asked for something.
    pub asked: Arc<AtomicUsize>,
    /// 31 for 1.31.
    pub minor: Arc<AtomicU16>,
    /// It gives no tokens to accounts, and does everything else.
    pub no_tokens: Arc<AtomicBool>,
    /// It keeps those waiting who ask for one.
    pub holds_tokens: Arc<AtomicBool>,
    /// The definitions that it has.
    pub definitions: Arc<Mutex<Vec<Value>>>,
    /// How often one of them was fetched with everything that is in it.
    pub fetched: Arc<AtomicUsize>,
    /// It answers everything but for these.
    pub hides_definitions: Arc<AtomicBool>,
    /// It says that they may not be read.
    pub forbids_definitions: Arc<AtomicBool>,
    /// It begins to answer with these, and goes on to without end.
    pub drips_nodes: Arc<AtomicBool>,
    /// When its definitions were listed: once in every look.
    pub looks: Arc<Mutex<Vec<Instant>>>,
    /// Of its `kube-system`.
    pub identity: Arc<Mutex<String>>,
    /// The trace context of those who asked: `traceparent` and `tracestate`.
    pub traces: Arc<Mutex<Vec<(String, String)>>>,
    /// What it answers at one path, whatever is asked for there.
    pub wide: Arc<Mutex<String>>,
    wide_at: Arc<Mutex<&'static str>>,
    /// What was written, such as `PATCH namespaces/gantry-fleet`.
    pub written: Arc<Mutex<Vec<String>>>,
}

impl StandIn {
    pub async fn start() -> Self {
        Self::with(Arc::default()).await
    }

    /// It has these definitions, and others may have the same.
    pub async fn with(definitions: Arc<Mutex<Vec<Value>>>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stand_in = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            mood: Arc::new(AtomicU16::new(200)),
            asked: Arc::default(),
            minor: Arc::new(AtomicU16::new(31)),
            no_tokens: Arc::default(),
            holds_tokens: Arc::default(),
            definitions,
            fetched: Arc::default(),
            hides_definitions: Arc::default(),
            forbids_definitions: Arc::default(),
            drips_nodes: Arc::default(),
            looks: Arc::default(),
            identity: Arc::new(Mutex::new(uuid::Uuid::new_v4().to_string())),
            traces: Arc::default(),
            wide: Arc::default(),
            wide_at: Arc::default(),
            written: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(stand_in.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        stand_in
    }

    pub fn mood(&self, mood: u16) {
        self.mood.store(mood, Ordering::SeqCst);
    }

    pub fn widens(&self, path: &'static str) {
        *self.wide_at.lock().unwrap() = path;
    }

    fn remember_trace(&self, headers: &HeaderMap) {
        let header = |name: &str| Some(headers.get(name)?.to_str().unwrap().to_owned());
        if let Some(parent) = header("traceparent") {
            let state = header("tracestate").unwrap_or_default();
            self.traces.lock().unwrap().push((parent, state));
        }
    }

    /// It has this definition from now on, with objects in these versions.
    pub fn define(&self, definition: &Value, stored_versions: &[&str]) {
        let mut definition = definition.clone();
        definition["status"] = json!({"storedVersions": stored_versions});
        definition["metadata"]["uid"] = definition["metadata"]["name"].clone();
        definition["metadata"]["resourceVersion"] = json!(uuid::Uuid::new_v4().to_string());
        let mut all = self.definitions.lock().unwrap();
        all.retain(|known| known["metadata"]["name"] != definition["metadata"]["name"]);
        all.push(definition);
    }

    /// One of them, or all; as a server does it, only their metadata where that is asked for.
    fn definition(&self, name: Option<&str>, is_metadata: bool) -> Response {
        let all = self.definitions.lock().unwrap();
        let some = all
            .iter()
            .filter(|definition| name.is_none_or(|name| definition["metadata"]["name"] == name));
        let some: Vec<Value> = some
            .map(|definition| {
                if is_metadata {
                    json!({"metadata": definition["metadata"]})
                } else {
                    definition.clone()
                }
            })
            .collect();
        if !is_metadata {
            self.fetched.fetch_add(some.len(), Ordering::SeqCst);
        }
        match name {
            None => Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": some}))
                .into_response(),
            Some(_) => match some.into_iter().next() {
                Some(one) => Json(one).into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            },
        }
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Whether something was written that begins so.
    pub fn has_written(&self, what: &str) -> bool {
        let written = self.written.lock().unwrap();
        written.iter().any(|line| line.starts_with(what))
    }

    pub fn kubeconfig(&self, token: &str) -> Value {
        kubeconfig(&self.url, token)
    }

    pub fn registration(&self, name: &str, token: &str) -> Value {
        json!({"name": name, "environment": "Dev", "kubeconfig": self.kubeconfig(token)})
    }
}

pub fn kubeconfig(server: &str, token: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
    })
}

fn refusal(code: u16) -> Response {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Mood"});
    (StatusCode::from_u16(code).unwrap(), Json(status)).into_response()
}

async fn answer(State(stand_in): State<StandIn>, request: Request) -> Response {
    if request.method() == Method::GET {
        stand_in.asked.fetch_add(1, Ordering::SeqCst);
    }
    stand_in.remember_trace(request.headers());
    match stand_in.mood.load(Ordering::SeqCst) {
        HANG => std::future::pending().await,
        FLOOD => {
            let some = Bytes::from(vec![b' '; 1 << 16]);
            let spaces = move || Ok::<_, std::io::Error>(some.clone());
            return Body::from_stream(futures::stream::repeat_with(spaces)).into_response();
        }
        200 => {}
        code => return refusal(code),
    }
    let path = request.uri().path();
    if path == *stand_in.wide_at.lock().unwrap() {
        let wide = stand_in.wide.lock().unwrap().clone();
        return ([("content-type", "application/json")], wide).into_response();
    }
    while path.ends_with("/token") && stand_in.holds_tokens.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if path.ends_with("/token") && stand_in.no_tokens.load(Ordering::SeqCst) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    // Accounts and rights that are set up in it are taken, and forgotten.
    let body = match request.method().as_str() {
        "PATCH" => Some(json!({"metadata": {"name": path.rsplit('/').next()}})),
        "POST" if path.ends_with("/token") => Some(json!({
            "metadata": {}, "spec": {"audiences": []},
            "status": {"token": "short-lived", "expirationTimestamp": "2100-01-01T00:00:00Z"},
        })),
        "DELETE" => Some(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
        _ => None,
    };
    if let Some(body) = body {
        let last: Vec<&str> = path.rsplit('/').take(2).collect();
        let written = format!("{} {}/{}", request.method(), last[1], last[0]);
        stand_in.written.lock().unwrap().push(written);
        return Json(body).into_response();
    }
    let list =
        |kind: &str, items: Value| json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items});
    let minor = stand_in.minor.load(Ordering::SeqCst).to_string();
    if let Some(rest) = path.strip_prefix("/apis/apiextensions.k8s.io/v1/customresourcedefinitions") {
        if rest.is_empty() {
            stand_in.looks.lock().unwrap().push(Instant::now());
        }
        if stand_in.hides_definitions.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if stand_in.forbids_definitions.load(Ordering::SeqCst) {
            return refusal(403);
        }
        let accepts = request
            .headers()
            .get("accept")
            .map(|value| value.to_str().unwrap());
        let is_metadata = accepts.is_some_and(|accepts| accepts.contains("as=PartialObjectMetadata"));
        return stand_in.definition(rest.strip_prefix('/'), is_metadata);
    }
    if path == "/api/v1/nodes" && stand_in.drips_nodes.load(Ordering::SeqCst) {
        // Often enough that whoever only waits for the next byte never gives up.
        let drops = futures::stream::unfold((), async |()| {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b" ")), ()))
        });
        return Body::from_stream(drops).into_response();
    }
    let body = match path {
        "/version" => json!({
            "major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.2"), "gitCommit": "", "gitTreeState": "", "buildDate": "",
            "goVersion": "", "compiler": "", "platform": "",
        }),
        "/api/v1/nodes" => list(
            "NodeList",
            json!([
                {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            ]),
        ),
        "/api/v1/namespaces/kube-system" => {
            let uid = stand_in.identity.lock().unwrap().clone();
            json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "kube-system", "uid": uid}})
        }
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    Json(body).into_response()
}
