//! A registry that names another server for its tokens, and who gets to see its credentials then.

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    http::{HeaderMap, StatusCode, Uri},
    response::IntoResponse as _,
};
use serde_json::json;

use super::support::Running;

/// What a server was asked with.
type Seen = Arc<Mutex<Vec<String>>>;

/// A server that gives a token to everybody who asks, and remembers with what they did.
async fn token_server() -> (u16, Seen) {
    let seen = Seen::default();
    let remembered = seen.clone();
    let router = Router::new().fallback(async move |headers: HeaderMap| {
        let given = headers.get("authorization").map(|value| value.to_str().unwrap());
        remembered
            .lock()
            .unwrap()
            .push(given.unwrap_or("nothing").to_owned());
        Json(json!({"token": "a-token"}))
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (port, seen)
}

/// A registry that wants a token of that server, and has no chart.
async fn registry(realm: String) -> String {
    let router = Router::new().fallback(async move |uri: Uri, headers: HeaderMap| {
        if headers.get("authorization").is_none() {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"charts\"");
            return (StatusCode::UNAUTHORIZED, [("www-authenticate", challenge)]).into_response();
        }
        assert!(uri.path().starts_with("/v2/"));
        StatusCode::NOT_FOUND.into_response()
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("oci://{}/charts", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

#[tokio::test]
async fn credentials_go_to_the_registrys_own_token_server_only() {
    let running = Running::start().await;
    // By name and by address it is the same machine; nobody can know that, and only one of them is the registry's own.
    for (host, expected) in [("127.0.0.1", "Basic "), ("localhost", "nothing")] {
        let (port, seen) = token_server().await;
        let url = registry(format!("http://{host}:{port}/token")).await;
        let body = json!({
            "name": "widget", "namespace": "ops", "chartRepository": url, "chartName": "widget",
            "chartRepositoryCredentials": {"username": "robot", "password": "planted"},
        });
        let got = running.admin.post("/operators", &body).await;
        assert_eq!(got.status, 400, "{}", got.text);
        let seen = seen.lock().unwrap().clone();
        assert!(!seen.is_empty(), "{host} was asked: {}", got.text);
        assert!(
            seen.iter().all(|given| given.starts_with(expected)),
            "{host}: {seen:?}"
        );
    }
    running.server.stop().await;
}
