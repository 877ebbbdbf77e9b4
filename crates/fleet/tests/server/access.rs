//! Every operation of the OpenAPI document × every role × no token × tokens that must not count.

use std::collections::BTreeMap;

use super::support::{Running, SECRET, token, token_in};
use gantry_fleet::infrastructure::tokens::{AUDIENCE, Grant, ISSUER, Issuer};
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Written down a second time, on purpose: who may do what must not change by accident. An operation that is not here
/// fails the test.
fn expected() -> BTreeMap<&'static str, Vec<Role>> {
    use Role as R;
    let everybody = R::ALL.to_vec();
    let operators = vec![R::Admin, R::Operator];
    let admins = vec![R::Admin];
    let mut all = BTreeMap::new();
    let mut add = |roles: &Vec<Role>, ids: &[&'static str]| {
        for id in ids {
            all.insert(*id, roles.clone());
        }
    };
    add(
        &everybody,
        &[
            "openApi",
            "docs",
            "changePassword",
            "listOperators",
            "getOperator",
            "listOperatorVersions",
            "listClusters",
            "getCluster",
            "getClusterHealth",
            "listCrds",
            "getCrd",
            "diffCrd",
            "validateCrd",
            "listWaivers",
        ],
    );
    add(
        &operators,
        &[
            "registerOperator",
            "changeOperator",
            "deleteOperator",
            "refreshOperator",
            "registerCrd",
            "changeCrd",
            "deprecateCrd",
            "proveCrd",
        ],
    );
    add(
        &admins,
        &[
            "registerCluster",
            "changeCluster",
            "deleteCluster",
            "approveCrd",
            "addWaiver",
            "deleteWaiver",
            "listAudit",
            "listUsers",
            "createUser",
            "deleteUser",
        ],
    );
    all
}

const OPEN: [&str; 2] = ["health", "login"];

struct Operation {
    id: String,
    method: String,
    path: String,
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            all.push(Operation {
                id: described["operationId"].as_str().unwrap().to_owned(),
                method: method.clone(),
                path: path
                    .replace("{name}", "no-such-thing")
                    .replace("{fingerprint}", "0123456789abcdef"),
            });
        }
    }
    all
}

fn signed_with(secret: &[u8], issuer: &str, audience: &str, lifetime: SignedDuration) -> String {
    let grant = Grant {
        subject: "mallory",
        roles: &[Role::Admin].into(),
        environments: None,
        user: None,
        lifetime,
    };
    Issuer::new(secret, issuer, audience)
        .issue(&grant, Timestamp::now())
        .unwrap()
        .0
}

/// A token that says `alg: none`, and one whose claims were changed after signing.
fn forged() -> Vec<(&'static str, String)> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE};
    let claims = json!({
        "sub": "mallory", "iss": ISSUER, "aud": AUDIENCE, "roles": ["Admin"],
        "iat": 0, "exp": Timestamp::now().as_second() + 3600,
    });
    let none = format!(
        "{}.{}.",
        BASE.encode(r#"{"alg":"none","typ":"JWT"}"#),
        BASE.encode(claims.to_string())
    );
    let viewer = token("mallory", Role::Viewer);
    let parts: Vec<&str> = viewer.split('.').collect();
    let altered = format!("{}.{}.{}", parts[0], BASE.encode(claims.to_string()), parts[2]);
    vec![("alg none", none), ("altered claims", altered)]
}

#[tokio::test]
async fn every_operation_asks_for_the_right_role() {
    let running = Running::start().await;
    let document = running.admin.get("/api/v1/openapi.json").await.expect(200).body;
    let expected = expected();
    let operations = operations(&document);
    assert_eq!(
        operations.len(),
        expected.len() + OPEN.len(),
        "an operation is missing from the document"
    );
    let mut bad_tokens = vec![
        (
            "expired",
            token_in("mallory", &[Role::Admin], None, SignedDuration::from_mins(-5)),
        ),
        (
            "wrong key",
            signed_with(
                b"another secret that is long enough!!",
                ISSUER,
                AUDIENCE,
                SignedDuration::from_hours(1),
            ),
        ),
        (
            "wrong issuer",
            signed_with(SECRET, "somebody", AUDIENCE, SignedDuration::from_hours(1)),
        ),
        (
            "wrong audience",
            signed_with(SECRET, ISSUER, "somebody", SignedDuration::from_hours(1)),
        ),
        ("no token at all", "x".to_owned()),
    ];
    bad_tokens.extend(forged());
    for operation in &operations {
        let Operation { id, method, path } = operation;
        let has_body = matches!(method.as_str(), "post" | "put");
        let body = json!({});
        let body = has_body.then_some(&body);
        let stranger = running.asker(None).ask(method, path, body, &[]).await;
        if OPEN.contains(&id.as_str()) {
            assert!(!matches!(stranger.status, 403..=405), "{id}: {stranger:?}");
            assert!(id != "health" || stranger.status == 200, "{stranger:?}");
            continue;
        }
        let roles = expected
            .get(id.as_str())
            .unwrap_or_else(|| panic!("{id} is not known here: say in this test who may use it"));
        stranger.refused(401, "UNAUTHORIZED");
        for (what, token) in &bad_tokens {
            let got = running
                .asker(Some(token.clone()))
                .ask(method, path, body, &[])
                .await;
            assert_eq!(got.status, 401, "{id} with {what}: {}", got.text);
            assert_eq!(got.header("www-authenticate"), "Bearer");
        }
        let nobody = token_in("nobody", &[], None, SignedDuration::from_hours(1));
        running
            .asker(Some(nobody))
            .ask(method, path, body, &[])
            .await
            .refused(403, "FORBIDDEN");
        for role in Role::ALL {
            let got = running.role(role).ask(method, path, body, &[]).await;
            let admitted = !matches!(got.status, 401 | 403);
            assert_eq!(
                admitted,
                roles.contains(&role),
                "{id} as {role}: {} {}",
                got.status,
                got.text
            );
            assert!(got.status < 500, "{id} as {role}: {}", got.text);
        }
    }
    let denied = running
        .admin
        .get("/audit?outcome=Denied&limit=100")
        .await
        .expect(200);
    assert!(
        denied.body["total"].as_u64().unwrap() > 50,
        "denials are recorded"
    );
    running.server.stop().await;
}

#[tokio::test]
async fn what_there_is_not_is_told_only_to_those_with_a_token() {
    let running = Running::start().await;
    let stranger = running.asker(None);
    stranger.get("/api/v1/nothing").await.refused(401, "UNAUTHORIZED");
    stranger
        .ask("patch", "/operators", None, &[])
        .await
        .refused(401, "UNAUTHORIZED");
    running
        .admin
        .get("/api/v1/nothing")
        .await
        .refused(404, "PATH_NOT_FOUND");
    running
        .admin
        .ask("patch", "/operators", None, &[])
        .await
        .refused(404, "PATH_NOT_FOUND");
    running.server.stop().await;
}

#[tokio::test]
async fn answers_keep_browsers_in_line() {
    let running = Running::start().await;
    let got = running.asker(None).get("/health").await.expect(200);
    assert_eq!(got.body["status"], "Healthy");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(got.header(name), value);
    }
    let page = running.admin.get("/docs").await.expect(200);
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(page.text.contains("/api/v1/clusters/{name}/health"));
    running.server.stop().await;
}
