//! Vault's transit engine, by something that answers as it does: the key stays with it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
};

use super::support::{Running, charts::Repository, key_line, kube::StandIn, pool, until};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gantry_fleet::infrastructure::{
    keys::{Keys, LocalKeys},
    vault::{Vault, VaultError, VaultToken},
};
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use rstest::rstest;
use serde_json::{Value, json};

#[derive(Clone, Default)]
struct Transit {
    sealed: Arc<AtomicBool>,
    /// Text, context, and the name of the key.
    kept: Arc<Mutex<Vec<(String, String, String)>>>,
    /// How often the key was rotated.
    rotations: Arc<AtomicUsize>,
    /// Ciphertexts of versions below it are not opened any more.
    min_decryption_version: Arc<AtomicUsize>,
}

impl Transit {
    /// A Vault with it, and the file that has the token for it.
    async fn start(&self, folder: &std::path::Path) -> (Vault, std::path::PathBuf) {
        self.start_with("fleet", folder).await
    }

    async fn start_with(&self, key: &str, folder: &std::path::Path) -> (Vault, std::path::PathBuf) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let router = Router::new()
            .route("/v1/transit/{verb}/{key}", post(transit))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let file = folder.join("token");
        std::fs::write(&file, "vault-token\n").unwrap();
        let vault = Vault::new(&address, "transit", key, VaultToken::File(file.clone())).unwrap();
        (vault, file)
    }
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
    // As Vault does it.
    let token = headers.get("x-vault-token").and_then(|token| token.to_str().ok());
    if token.unwrap_or_default().is_empty() {
        return Err(StatusCode::BAD_REQUEST);
    }
    if token != Some("vault-token") || !["fleet", "next"].contains(&key.as_str()) {
        return Err(StatusCode::FORBIDDEN);
    }
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let mut kept = transit.kept.lock().unwrap();
    match verb.as_str() {
        "encrypt" => {
            kept.push((text("plaintext"), text("associated_data"), key));
            let version = 1 + transit.rotations.load(Ordering::SeqCst);
            Ok(Json(
                json!({"data": {"ciphertext": format!("vault:v{version}:{}", kept.len() - 1)}}),
            ))
        }
        "decrypt" => {
            let ciphertext = text("ciphertext");
            let (version, number): (usize, usize) = ciphertext
                .strip_prefix("vault:v")
                .and_then(|rest| rest.split_once(':'))
                .and_then(|(version, number)| Some((version.parse().ok()?, number.parse().ok()?)))
                .ok_or(StatusCode::BAD_REQUEST)?;
            if version < transit.min_decryption_version.load(Ordering::SeqCst) {
                return Err(StatusCode::BAD_REQUEST);
            }
            let (plain, context, with) = kept.get(number).ok_or(StatusCode::BAD_REQUEST)?;
            if *context != text("associated_data") || *with != key {
                return Err(StatusCode::BAD_REQUEST);
            }
            Ok(Json(json!({"data": {"plaintext": plain}})))
        }
        _ => Err(StatusCode::NOT_FOUND),
    }
}

#[rstest]
#[case("https://vault.example.com:8200", true)]
#[case("http://localhost:8200", true)]
#[case("http://vault.example.com:8200", false)]
#[case("http://10.0.0.1:8200", false)]
fn vault_is_asked_where_nobody_reads_along(#[case] address: &str, #[case] is_taken: bool) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let made = Vault::new(address, "transit", "fleet", VaultToken::Text("t".to_owned()));
    assert_eq!(made.is_ok(), is_taken);
    if let Err(error) = made {
        assert!(error.to_string().contains("https"), "{error}");
    }
}

#[tokio::test]
async fn what_vault_answers_is_bounded() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let answer = async || {
        let ciphertext = format!("vault:v1:{}", "x".repeat(2 << 20));
        Json(json!({"data": {"ciphertext": ciphertext}}))
    };
    let router = Router::new().route("/v1/transit/encrypt/fleet", post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let vault = Vault::new(&address, "transit", "fleet", VaultToken::Text("t".to_owned())).unwrap();
    let refused = vault.encrypt("context", b"text").await.unwrap_err();
    assert!(matches!(refused, VaultError::Body(_)), "{refused}");
}

#[tokio::test]
async fn vault_seals_what_clusters_are_reached_with() {
    let engine = Transit::default();
    let folder = tempfile::tempdir().unwrap();
    let (vault, file) = engine.start(folder.path()).await;
    let running = Running::with(|settings| {
        settings.keys = Keys::vault(vault);
        settings.health_interval = SignedDuration::from_secs(1);
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
    let is_bound = |(_, context, _): &(String, String, String)| {
        let context = STANDARD.decode(context).unwrap();
        String::from_utf8_lossy(&context).contains("kubeconfig")
    };
    assert!(engine.kept.lock().unwrap().iter().any(is_bound), "to its row");
    let checked = async || running.admin.get("/clusters/c").await.body["lastHealthCheckAt"].clone();
    let last = checked().await;
    until("it is looked at", async || {
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

#[tokio::test]
async fn what_an_older_version_of_the_key_wrapped_is_rewrapped_after_a_rotation() {
    let engine = Transit::default();
    let folder = tempfile::tempdir().unwrap();
    let (vault, _) = engine.start(folder.path()).await;
    let running = Running::with(|settings| {
        settings.keys = Keys::vault(vault);
        settings.health_interval = SignedDuration::from_secs(1);
    })
    .await;
    let (cluster, repository) = (StandIn::start().await, Repository::start().await);
    repository.chart("widget", "1.0.0", &[]);
    repository.lock("robot", "password");
    let operator = json!({
        "name": "widget", "namespace": "w", "chartRepository": repository.url, "chartName": "widget",
        "chartRepositoryCredentials": {"username": "robot", "password": "password"},
    });
    let admin = &running.admin;
    admin.post("/operators", &operator).await.expect(201);
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let pool = pool(&running.database_url).await;
    let wrapped = async || -> Vec<String> {
        let keys: Vec<Vec<u8>> = sqlx::query_scalar(
            "select wrapped_key from clusters union all select wrapped_key from operators order by 1",
        )
        .fetch_all(&pool)
        .await
        .unwrap();
        keys.into_iter()
            .map(|key| String::from_utf8(key).unwrap())
            .collect()
    };
    let all_of = async |version: &str| {
        let wrapped = wrapped().await;
        wrapped.len() == 2 && wrapped.iter().all(|key| key.starts_with(version))
    };
    assert!(all_of("vault:v1:").await);
    engine.rotations.store(1, Ordering::SeqCst);
    until("both are under the new version", async || {
        all_of("vault:v2:").await.then_some(())
    })
    .await;
    // The old one may go now, and everything still opens.
    engine.min_decryption_version.store(2, Ordering::SeqCst);
    running.server.stop().await;
    let mut settings = super::support::settings(&running.database_url, folder.path());
    let (vault, _) = engine.start(folder.path()).await;
    settings.keys = Keys::vault(vault);
    settings.health_interval = SignedDuration::from_secs(1);
    let again = gantry_fleet::Server::start(settings).await.unwrap();
    let admin = super::support::Asker::new(&again, Some(super::support::token("admin", Role::Admin)));
    admin
        .ask("post", "/operators/widget/refresh", None, &[])
        .await
        .expect(200);
    let asked = cluster.asked();
    until("the cluster is looked at by a new process", async || {
        (cluster.asked() > asked).then_some(())
    })
    .await;
    assert_eq!(admin.get("/clusters/c").await.body["healthStatus"], "Healthy");
    // At rest nothing is written: what is under the newest version stays as it is.
    let before = wrapped().await;
    let calls = engine.kept.lock().unwrap().len();
    until("the task ran again", async || {
        (engine.kept.lock().unwrap().len() > calls).then_some(())
    })
    .await;
    assert_eq!(wrapped().await, before);
    again.stop().await;
}

/// As clusters do: nothing is wrong with the server, and asking again later helps.
#[tokio::test]
async fn credentials_of_a_repository_that_cannot_be_opened_now_are_no_fault_of_the_server() {
    let (engine, folder) = (Transit::default(), tempfile::tempdir().unwrap());
    let (vault, file) = engine.start(folder.path()).await;
    let running = Running::with(|settings| settings.keys = Keys::vault(vault)).await;
    let repository = Repository::start().await;
    repository.chart("widget", "1.0.0", &[]);
    repository.lock("robot", "password");
    let operator = json!({
        "name": "widget", "namespace": "w", "chartRepository": repository.url, "chartName": "widget",
        "chartRepositoryCredentials": {"username": "robot", "password": "password"},
    });
    running.admin.post("/operators", &operator).await.expect(201);
    let change = json!({"currentVersion": "9.9.9"});
    let is_locked = async |admin: &super::support::Asker| {
        let refresh = admin.ask("post", "/operators/widget/refresh", None, &[]);
        refresh.await.refused(503, "KEY_UNAVAILABLE");
        let change = admin.put("/operators/widget", &change);
        change.await.refused(503, "KEY_UNAVAILABLE");
    };
    engine.sealed.store(true, Ordering::SeqCst);
    is_locked(&running.admin).await;
    engine.sealed.store(false, Ordering::SeqCst);
    // The agent is about to write a new token.
    std::fs::write(&file, "").unwrap();
    is_locked(&running.admin).await;
    std::fs::write(&file, "vault-token").unwrap();
    let refresh = running.admin.ask("post", "/operators/widget/refresh", None, &[]);
    refresh.await.expect(200);
    running.server.stop().await;
    // One that does not know the key: another replica has it.
    let mut settings = super::support::settings(&running.database_url, folder.path());
    settings.keys = Keys::local(LocalKeys::parse(&key_line()).unwrap());
    let other = gantry_fleet::Server::start(settings).await.unwrap();
    let admin = super::support::Asker::new(&other, Some(super::support::token("admin", Role::Admin)));
    is_locked(&admin).await;
    other.stop().await;
}

#[tokio::test]
async fn what_a_file_sealed_moves_to_vault_and_on_to_another_key_of_it() {
    let (engine, folder) = (Transit::default(), tempfile::tempdir().unwrap());
    let line = key_line();
    let file = || Keys::local(LocalKeys::parse(&line).unwrap());
    let running = Running::with(|settings| settings.keys = file()).await;
    let cluster = StandIn::start().await;
    running
        .admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    running.server.stop().await;
    let pool = pool(&running.database_url).await;
    let key = async || -> String {
        sqlx::query_scalar("select key_id from clusters")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let with = async |keys: Keys| {
        let mut settings = super::support::settings(&running.database_url, folder.path());
        settings.keys = keys;
        settings.health_interval = SignedDuration::from_secs(1);
        gantry_fleet::Server::start(settings).await.unwrap()
    };
    let fleet = Keys::vault(engine.start(folder.path()).await.0);
    let next = Keys::vault(engine.start_with("next", folder.path()).await.0);
    for (keys, expected) in [
        (fleet.clone().and_opens(file()), "vault:transit/fleet"),
        (next.clone().and_opens(fleet), "vault:transit/next"),
    ] {
        let server = with(keys).await;
        until("everything is under it", async || {
            (key().await == expected).then_some(())
        })
        .await;
        server.stop().await;
    }
    // Those from before may go.
    let server = with(next).await;
    let admin = super::support::Asker::new(&server, Some(super::support::token("admin", Role::Admin)));
    let asked = cluster.asked();
    // It is looked at anew, by a process that has not seen it before.
    let change = json!({"description": "moved"});
    admin.put("/clusters/c", &change).await.expect(200);
    until("the cluster is looked at", async || {
        (cluster.asked() > asked).then_some(())
    })
    .await;
    server.stop().await;
}

/// Vault refuses to open it, as it does what was altered, and what a key sealed that is gone.
#[tokio::test]
async fn what_vault_does_not_open_is_said_to_be_so_and_does_not_stay_in_the_way() {
    let (engine, folder) = (Transit::default(), tempfile::tempdir().unwrap());
    let (vault, _) = engine.start(folder.path()).await;
    let running = Running::with(|settings| settings.keys = Keys::vault(vault)).await;
    let cluster = StandIn::start().await;
    let (registration, key) = (cluster.registration("c", "t"), [("idempotency-key", "k")]);
    let registered = running.admin.ask("post", "/clusters", Some(&registration), &key);
    registered.await.expect(201);
    running.server.stop().await;
    let pool = pool(&running.database_url).await;
    for statement in [
        "update clusters set wrapped_key = 'vault:v1:999', check_at = now()",
        "update server_secrets set wrapped_key = 'vault:v1:999'",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    let minutes = Arc::new(AtomicI64::new(0));
    let clock = minutes.clone();
    let mut settings = super::support::settings(&running.database_url, folder.path());
    settings.keys = Keys::vault(engine.start(folder.path()).await.0);
    settings.clock =
        Arc::new(move || Timestamp::now() + SignedDuration::from_mins(clock.load(Ordering::SeqCst)));
    let server = gantry_fleet::Server::start(settings).await.unwrap();
    let admin = super::support::Asker::new(&server, Some(super::support::token("admin", Role::Admin)));
    until("the health says so", async || {
        let got = admin.get("/clusters/c").await.expect(200).body;
        (got["healthReason"] == "CredentialsUnavailable").then_some(())
    })
    .await;
    // Another replica may ask another Vault, which opens it; not for ever.
    let again = async || admin.ask("post", "/clusters", Some(&registration), &key).await;
    again().await.refused(503, "KEY_UNAVAILABLE");
    minutes.store(11, Ordering::SeqCst);
    again().await.refused(409, "IDEMPOTENCY_KEY_REUSED");
    let key = [("idempotency-key", "another")];
    let user = json!({"username": "jo", "password": "correct horse battery staple", "roles": ["Viewer"]});
    for replayed in ["", "true"] {
        let got = admin.ask("post", "/users", Some(&user), &key).await.expect(201);
        assert_eq!(got.header("idempotency-replayed"), replayed);
    }
    server.stop().await;
}
