//! Requests by HTTP, from pods without a Kubernetes client.

use std::time::Duration;

use anyhow::Context as _;
use gantry_e2e::{Cluster, Running, eventually_for, fixtures::wait_ready, operator};
use gantry_kit::{Options, testing::Faults};
use gantry_operator::Settings;
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use super::{World, changes};

/// An operator that takes requests by HTTP, and two accounts of which one may ask.
struct Door {
    world: World,
    url: String,
    _operator: Running,
}

impl Door {
    /// `rights` is what `sr` may do to which resources.
    async fn open(home: &Cluster, policy: Value, rights: Value) -> anyhow::Result<Self> {
        let world = World::new(home, "improves", json!({}), policy).await?;
        let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let settings = Settings {
            changes_address: Some(free),
            ..operator::settings()
        };
        let running =
            Running::start_with(&world.cluster, &Faults::default(), Options::default(), settings).await?;
        let rbac = "rbac.authorization.k8s.io/v1";
        for object in [
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sr"}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}}),
            json!({"apiVersion": rbac, "kind": "Role", "metadata": {"name": "asker"}, "rules": rights}),
            json!({
                "apiVersion": rbac, "kind": "RoleBinding", "metadata": {"name": "asker"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "asker"},
                "subjects": [{"kind": "ServiceAccount", "name": "sr"}],
            }),
        ] {
            world.cluster.create(&object).await?;
        }
        Ok(Self {
            world,
            url: format!("http://{free}/v1/changes"),
            _operator: running,
        })
    }

    async fn token(&self, account: &str, audience: &str) -> anyhow::Result<String> {
        let Cluster {
            client, namespace, ..
        } = &self.world.cluster;
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
        let request: TokenRequest = serde_json::from_value(json!({
            "metadata": {}, "spec": {"audiences": [audience], "expirationSeconds": 3600},
        }))?;
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        answer.status.and_then(|status| status.token).context("no token")
    }

    /// Asks as soon as the door is open.
    async fn first(&self, token: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
        eventually_for(Duration::from_secs(30), async || {
            http(&self.url, Some(token), Some(body)).await
        })
        .await
    }
}

fn asking() -> Value {
    json!({"apiGroups": ["penin.ai"], "resources": ["infrastructurechanges"], "verbs": ["create", "get"]})
}

fn approving() -> Value {
    json!({"apiGroups": ["penin.ai"], "resources": ["infrastructurechanges/status"], "verbs": ["update"]})
}

fn one_more() -> Value {
    json!({"cluster": "demo", "reason": "slow", "patch": {"replicas": {"sigmaGuard": 3}}, "id": "one"})
}

/// A pod without a Kubernetes client asks by HTTP: with its own token, for its own rights.
#[tokio::test(flavor = "multi_thread")]
async fn services_ask_by_http_with_their_own_rights() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let door = Door::open(&home, json!({}), json!([asking()])).await?;
    let (url, world, body) = (&door.url, &door.world, one_more());
    let good = door.token("sr", "gantry-changes").await?;
    let (status, answer) = door.first(&good, &body).await?;
    assert_eq!(status, 201, "{answer}");
    let name = answer["name"].as_str().context("name")?.to_owned();
    let (status, again) = http(url, Some(&good), Some(&body)).await?;
    assert_eq!(
        (status, &again["uid"]),
        (200, &answer["uid"]),
        "the same id is the same request"
    );
    let wrong = json!({"cluster": "demo", "reason": "r", "patch": {"replicas": {"sigmaGuard": -1}}});
    for (token, body, expected) in [
        (None, &body, 401),
        (Some("rubbish".to_owned()), &body, 401),
        // Made for the API server, not for us.
        (
            Some(door.token("sr", "https://kubernetes.default.svc").await?),
            &body,
            401,
        ),
        (Some(door.token("stranger", "gantry-changes").await?), &body, 403),
        (Some(good.clone()), &json!({"cluster": "demo"}), 400),
        (Some(good.clone()), &wrong, 400),
    ] {
        let (status, answer) = http(url, token.as_deref(), Some(body)).await?;
        assert_eq!(status, expected, "{body}: {answer}");
    }
    let change = world.until(&name, "Kept").await?;
    let namespace = &world.cluster.namespace;
    assert_eq!(
        change.data["status"]["requestedBy"],
        format!("system:serviceaccount:{namespace}:sr")
    );
    let (status, told) = http(&format!("{url}/{namespace}/{name}"), Some(&good), None).await?;
    assert_eq!((status, &told["phase"]), (200, &json!("Kept")));
    let mut answers = Vec::new();
    for _ in 0..12 {
        answers.push(http(url, Some(&good), Some(&body)).await?.0);
    }
    assert!(answers.contains(&429), "{answers:?}");
    door.world.cluster.done().await?;
    home.done().await
}

/// Whoever could approve their own request is not approved; and where the policy says so, nobody asks unknown.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_approves_what_they_asked_for() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let policy = json!({"requireApproval": true, "requireProvenRequester": true});
    let rights = json!([asking(), approving()]);
    let door = Door::open(&home, policy, rights).await?;
    let world = &door.world;
    world.one_more_guard("unknown").await?;
    let change = world.until("unknown", "Rejected").await?;
    assert_eq!(change.data["status"]["rule"], "requireProvenRequester");
    let token = door.token("sr", "gantry-changes").await?;
    let (status, answer) = door.first(&token, &one_more()).await?;
    assert_eq!(status, 201, "{answer}");
    let name = answer["name"].as_str().context("name")?;
    world.until(name, "AwaitingApproval").await?;
    let (good, said) = world.command(&format!("approve {name} --by sr")).await?;
    assert!(good, "{said}");
    wait_ready(&world.cluster, &changes(), name, "False", Some("SelfApproval")).await?;
    assert_eq!(world.edits().await?, 0);
    door.world.cluster.done().await?;
    home.done().await
}

/// One request; with a body it is a POST.
async fn http(url: &str, token: Option<&str>, body: Option<&Value>) -> anyhow::Result<(u16, Value)> {
    use http_body_util::{BodyExt, Full};
    use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    let client: Client<_, Full<axum::body::Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut request = http::Request::builder()
        .uri(url)
        .method(if body.is_some() { "POST" } else { "GET" })
        .header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let text = body.map(Value::to_string).unwrap_or_default();
    let response = client.request(request.body(Full::from(text))?).await?;
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
}
