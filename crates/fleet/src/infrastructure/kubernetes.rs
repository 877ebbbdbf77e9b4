//! Clusters as they are reached: a client from sanitised credentials, and a look at what is there. Every call has a
//! deadline, because a cluster that hangs must delay nobody else.

mod answers;
mod definitions;
pub mod deployer;
mod identity;
mod lasting;
pub mod objects;
pub mod reader;
pub mod slots;

use std::time::{Duration, Instant};

use gantry_fleet_domain::cluster::Sight;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{
    Api, Client, Config,
    api::ListParams,
    client::{Body, ClientBuilder, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
    core::Request,
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tower::{
    service_fn,
    util::{MapRequestLayer, option_layer},
};
use uuid::Uuid;

use self::slots::{NONE_FREE, Slots};
use super::{
    http::NOBODYS,
    lean::{self, Take},
    store::clusters::SeenCrd,
    trace,
    yaml::TOO_MUCH,
};

/// For everything that the health of a cluster is told by.
const LOOK: Duration = Duration::from_secs(10);
/// For its definitions, of which there may be thousands: what they take says nothing of its health.
pub const DEFINITIONS: Duration = Duration::from_secs(25);
/// While somebody waits; the next look goes on with them.
pub const FIRST_DEFINITIONS: Duration = Duration::from_secs(10);
const PAGE: u32 = 250;
/// Kubernetes is made for 5,000.
const MOST_NODES: u32 = 100_000;
/// For waiting for a slot, connecting, and TLS.
const CONNECT: Duration = Duration::from_secs(9);
/// Until rights that were just given count, everywhere where the server keeps them.
const SETTLE: Duration = Duration::from_secs(2);
/// Longer than the usual time between two looks.
const IDLE: Duration = Duration::from_secs(90);
/// Reasons that are none of the cluster's.
pub const BUSY: &str = "ConnectionsBusy";
pub const NO_DATABASE: &str = "DatabaseUnavailable";
pub const NO_KEY: &str = "KeyUnavailable";

/// Why a cluster cannot be used; one word, and a sentence without any value of the credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unreachable {
    pub reason: &'static str,
    pub message: String,
}

impl Unreachable {
    /// Whether it says nothing of the cluster.
    pub fn is_ours(&self) -> bool {
        [BUSY, NO_DATABASE, NO_KEY].contains(&self.reason)
    }

    pub fn timeout(after: Duration) -> Self {
        Self {
            reason: "Timeout",
            message: format!("the API server did not answer within {} s", after.as_secs()),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Look {
    pub version: String,
    pub ready: u32,
    pub not_ready: u32,
    pub latency: Duration,
    /// Or why they are not known: we may not read them, or they did not come in time.
    pub crds: Result<Vec<SeenCrd>, Unreachable>,
}

impl Look {
    pub fn sight(look: &Result<Self, Unreachable>) -> Sight {
        match look {
            Ok(look) => Sight::Seen {
                ready: look.ready,
                not_ready: look.not_ready,
                no_definitions: look.crds.as_ref().err().map(|why| why.message.clone()),
            },
            Err(why) => Sight::Unreachable {
                reason: why.reason,
                message: why.message.clone(),
            },
        }
    }
}

/// A client for a sanitised kubeconfig, whose connections are some of the slots'.
pub async fn connect(document: &Value, slots: &Slots) -> Result<Client, Unreachable> {
    let bad = || Unreachable {
        reason: "BadCredentials",
        message: "the stored credentials cannot be used: a certificate or key in them is not one".to_owned(),
    };
    let kubeconfig: Kubeconfig = serde_json::from_value(document.clone()).map_err(|_| bad())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|_| bad())?;
    // A kubeconfig that names a proxy was refused; one of the environment is meant for others.
    config.proxy_url = None;
    let https = config
        .rustls_https_connector_with_connector(slots.connector())
        .map_err(|_| bad())?;
    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_read_timeout(Some(LOOK));
    connector.set_write_timeout(Some(LOOK));
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new())
        // Without a timer idle connections would stay until the next request.
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector);
    let http = service_fn(move |request| {
        let http = http.clone();
        async move { answers::ask(&http, request).await }
    });
    let namespace = config.default_namespace.clone();
    let trace = MapRequestLayer::new(trace::put_on::<Body>);
    let builder = ClientBuilder::new(http, namespace)
        .with_layer(&config.extra_headers_layer().map_err(|_| bad())?)
        .with_layer(&option_layer(config.auth_layer().map_err(|_| bad())?))
        .with_layer(&config.base_uri_layer())
        .with_layer(&trace);
    Ok(builder.build())
}

/// The same cluster with a token instead of what was uploaded.
pub fn with_token(document: &Value, token: &str) -> Value {
    let mut document = document.clone();
    if let Some(user) = document.pointer_mut("/users/0/user") {
        *user = serde_json::json!({"token": token});
    }
    document
}

/// Asks for version, nodes and definitions; for these only as long as `patience`, and only for those that are not known.
pub async fn look(client: &Client, known: &[SeenCrd], patience: Duration) -> Result<Look, Unreachable> {
    let Answered {
        version,
        ready,
        not_ready,
        latency,
    } = match tokio::time::timeout(LOOK, ask(client)).await {
        Ok(answer) => answer?,
        Err(_) => return Err(Unreachable::timeout(LOOK)),
    };
    let crds = definitions::look(client, known, patience).await;
    if let Err(why) = &crds {
        tracing::debug!(reason = why.reason, "definitions could not be read");
    }
    Ok(Look {
        version,
        ready,
        not_ready,
        latency,
        crds,
    })
}

/// What the health is told by.
struct Answered {
    version: String,
    ready: u32,
    not_ready: u32,
    latency: Duration,
}

async fn ask(client: &Client) -> Result<Answered, Unreachable> {
    let begin = Instant::now();
    let version = client
        .apiserver_version()
        .await
        .map_err(|error| explain(&error))?;
    let latency = begin.elapsed();
    // One after the other: one connection for each cluster is enough, and a hundred of them are not too many.
    let (ready, not_ready) = nodes(client).await?;
    Ok(Answered {
        version: plain(&version.git_version),
        ready,
        not_ready,
        latency,
    })
}

/// What tells a cluster from every other one, if we may read it: the uid of the namespace that each has from its first day
/// to its last.
pub async fn identity(client: &Client) -> Option<String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = tokio::time::timeout(LOOK, api.get_metadata("kube-system")).await;
    let uid = found.ok()?.ok()?.metadata.uid?;
    uid.parse::<Uuid>().ok().map(|uid| uid.to_string())
}

/// Waits until rights that were just given are known to the server, for two seconds at most, however it answers.
pub async fn settle(client: &Client) {
    let api: Api<Node> = Api::all(client.clone());
    let params = ListParams::default().limit(1);
    let settled = async {
        while let Err(kube::Error::Api(status)) = api.list(&params).await
            && status.code == 403
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    // Who gets no further will be told so by the look.
    let _ = tokio::time::timeout(SETTLE, settled).await;
}

async fn nodes(client: &Client) -> Result<(u32, u32), Unreachable> {
    let mut seen = SeenNodes::default();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let request = Request::new("/api/v1/nodes").list(&params);
        let request = request.map_err(|error| explain(&kube::Error::BuildRequest(error)))?;
        let next = answers::page(client, request, &mut seen).await;
        match next.map_err(|error| explain(&error))? {
            Some(token) => params = params.continue_token(&token),
            None => return Ok((seen.ready, seen.not_ready)),
        }
    }
}

/// Nodes are counted as they come: none is kept.
#[derive(Default)]
struct SeenNodes {
    ready: u32,
    not_ready: u32,
}

#[derive(Deserialize)]
struct SeenNode {
    #[serde(default)]
    status: Option<NodeStatus>,
}

#[derive(Deserialize)]
struct NodeStatus {
    #[serde(default, rename = "conditions", deserialize_with = "has_ready")]
    is_ready: bool,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    status: Option<String>,
}

fn has_ready<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let mut is_ready = false;
    lean::each(deserializer, |condition: Condition| {
        is_ready |= condition.kind.as_deref() == Some("Ready") && condition.status.as_deref() == Some("True");
    })?;
    Ok(is_ready)
}

impl<'de> Take<'de> for SeenNodes {
    fn take<D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        let node = SeenNode::deserialize(deserializer)?;
        if node.status.is_some_and(|status| status.is_ready) {
            self.ready += 1;
        } else {
            self.not_ready += 1;
        }
        if self.ready + self.not_ready > MOST_NODES {
            return Err(answers::too_much());
        }
        Ok(())
    }
}

/// In words that help, and never with what was sent.
pub fn explain(error: &kube::Error) -> Unreachable {
    let (reason, message) = match error {
        kube::Error::Api(status) => match status.code {
            401 => (
                "Unauthorized",
                "the API server does not take the credentials: they have expired or were revoked".to_owned(),
            ),
            403 => (
                "Forbidden",
                "the credentials may not do what is needed; they need to read nodes and definitions"
                    .to_owned(),
            ),
            code => (
                "ApiError",
                format!("the API server answers {code} {}", plain(&status.reason)),
            ),
        },
        other => {
            let mut words = String::new();
            let mut source: Option<&dyn std::error::Error> = Some(other);
            while let Some(error) = source {
                words.push_str(&error.to_string());
                words.push_str("; ");
                source = error.source();
            }
            classify(&words)
        }
    };
    Unreachable { reason, message }
}

/// A word of a server that may be hostile, as it can be kept and shown.
fn plain(word: &str) -> String {
    let shown = word.chars().filter(|letter| !letter.is_control());
    shown.take(100).collect()
}

fn classify(words: &str) -> (&'static str, String) {
    let lower = words.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if has(&[NONE_FREE]) {
        return (
            BUSY,
            "this server has as many connections to clusters as it may (--cluster-connections)".to_owned(),
        );
    }
    if has(&["length limit exceeded", TOO_MUCH]) {
        return (
            "AnswerTooLarge",
            "the API server sends more at once than any does of what it was asked for".to_owned(),
        );
    }
    // Also in the middle of a handshake, which says nothing of certificates.
    if has(&["eof", "reset by peer", "broken pipe", "connection closed"]) {
        return (
            "Unreachable",
            "the API server ended the connection before it answered".to_owned(),
        );
    }
    if has(&[
        "certificate",
        "unknownissuer",
        "notvalidforname",
        "tls",
        "handshake",
    ]) {
        let message = if has(&["expired"]) {
            "a certificate has expired: the API server's own, or the client's in the credentials"
        } else {
            "the API server's certificate is not signed by the authority in the credentials, or is for another name"
        };
        return ("CertificateInvalid", message.to_owned());
    }
    if has(&["timed out", "timeout", "deadline"]) {
        return ("Timeout", "the API server does not answer in time".to_owned());
    }
    if has(&[NOBODYS]) {
        return (
            "AddressRefused",
            "the API server's name leads to an address where no cluster is, such as a cloud's metadata service"
                .to_owned(),
        );
    }
    if has(&["dns", "resolve", "lookup"]) {
        return (
            "NameUnknown",
            "the API server's name cannot be resolved".to_owned(),
        );
    }
    if has(&["refused"]) {
        return (
            "ConnectionRefused",
            "nothing listens at the API server's address".to_owned(),
        );
    }
    ("Unreachable", "the API server cannot be reached".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_server_can_be_kept() {
        assert_eq!(plain("v1.31.2+k3s1"), "v1.31.2+k3s1");
        assert_eq!(plain("v1\0.2\n"), "v1.2");
        assert_eq!(plain(&"v".repeat(4 << 20)).len(), 100);
    }

    #[tokio::test]
    async fn what_cannot_be_reached_says_why() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let slots = Slots::new(2);
        let client = connect(&document(&format!("https://127.0.0.1:{port}")), &slots)
            .await
            .unwrap();
        assert_eq!(
            look(&client, &[], LOOK).await.unwrap_err().reason,
            "ConnectionRefused"
        );
        let client = connect(&document("https://no-such-host.invalid"), &slots)
            .await
            .unwrap();
        assert_eq!(look(&client, &[], LOOK).await.unwrap_err().reason, "NameUnknown");
        let client = connect(&document("https://0xa9fea9fe"), &slots).await.unwrap();
        assert_eq!(
            look(&client, &[], LOOK).await.unwrap_err().reason,
            "AddressRefused"
        );
    }

    fn document(server: &str) -> Value {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        })
    }

    #[tokio::test]
    async fn credentials_that_are_none_are_named_without_showing_them() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut document = document("https://127.0.0.1:1");
        document["users"][0]["user"] = serde_json::json!({
            "client-certificate-data": "cGxhbnRlZA==", "client-key-data": "cGxhbnRlZA=="});
        let error = connect(&document, &Slots::new(2)).await.err().unwrap();
        assert_eq!(error.reason, "BadCredentials");
        assert!(!error.message.contains("planted"));
    }
}
