//! Vault's transit engine, by something that answers as it does: the key stays with it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::support::{Running, kube::StandIn, pool};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gantry_fleet::infrastructure::{
    keys::Keys,
    vault::{Vault, VaultToken},
};
use serde_json::{Value, json};

#[derive(Clone, Default)]
struct Transit {
    sealed: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<(String, String)>>>,
}

/// Keeps what it is given and hands out a number for it, bound to the context.
async fn transit(
    State(transit): State<Transit>,
    Path((verb, key)): Path<(String, String)>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Result<Json<Value>, StatusCode> {
    if transit.sealed.load(Ordering::SeqCst) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    if headers.get("x-vault-token").and_then(|token| token.to_str().ok()) != Some("vault-token")
        || key != "fleet"
    {
        return Err(StatusCode::FORBIDDEN);
    }
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let mut kept = transit.kept.lock().unwrap();
    match verb.as_str() {
        "encrypt" => {
            kept.push((text("plaintext"), text("associated_data")));
            Ok(Json(
                json!({"data": {"ciphertext": format!("vault:v1:{}", kept.len() - 1)}}),
            ))
        }
        "decrypt" => {
            let number: usize = text("ciphertext")
                .trim_start_matches("vault:v1:")
                .parse()
                .map_err(|_| StatusCode::BAD_REQUEST)?;
            let (plain, context) = kept.get(number).ok_or(StatusCode::BAD_REQUEST)?;
            if *context != text("associated_data") {
                return Err(StatusCode::BAD_REQUEST);
            }
            Ok(Json(json!({"data": {"plaintext": plain}})))
        }
        _ => Err(StatusCode::NOT_FOUND),
    }
}

#[tokio::test]
async fn vault_seals_what_clusters_are_reached_with() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let engine = Transit::default();
    let router = Router::new()
        .route("/v1/transit/{verb}/{key}", post(transit))
        .with_state(engine.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "vault-token\n").unwrap();
    let vault = Vault::new(&address, "transit", "fleet", VaultToken::File(file.clone())).unwrap();
    let running = Running::with(|settings| {
        settings.keys = Keys::vault(vault);
        settings.health_interval = jiff::SignedDuration::from_secs(1);
    })
    .await;
    let cluster = StandIn::start().await;
    running
        .admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let (key, wrapped): (String, Vec<u8>) = sqlx::query_as("select key_id, wrapped_key from clusters")
        .fetch_one(&pool(&running.database_url).await)
        .await
        .unwrap();
    assert_eq!(
        (key.as_str(), wrapped.starts_with(b"vault:v1:")),
        ("vault:transit/fleet", true)
    );
    let context = STANDARD.decode(&engine.kept.lock().unwrap()[0].1).unwrap();
    assert!(
        String::from_utf8_lossy(&context).contains("kubeconfig"),
        "bound to its row"
    );
    let checked = async || running.admin.get("/clusters/c").await.body["lastHealthCheckAt"].clone();
    let last = checked().await;
    super::support::until("it is looked at", async || {
        (checked().await != last).then_some(())
    })
    .await;
    assert_eq!(
        running.admin.get("/clusters/c").await.body["healthStatus"],
        "Healthy"
    );
    // A sealed Vault, and a token that is revoked.
    engine.sealed.store(true, Ordering::SeqCst);
    running
        .admin
        .post("/clusters", &cluster.registration("d", "t"))
        .await
        .refused(503, "KEY_UNAVAILABLE");
    engine.sealed.store(false, Ordering::SeqCst);
    std::fs::write(&file, "old").unwrap();
    running
        .admin
        .post("/clusters", &cluster.registration("d", "t"))
        .await
        .refused(503, "KEY_UNAVAILABLE");
    std::fs::write(&file, "vault-token").unwrap();
    running
        .admin
        .post("/clusters", &cluster.registration("d", "t"))
        .await
        .expect(201);
    running.server.stop().await;
}
