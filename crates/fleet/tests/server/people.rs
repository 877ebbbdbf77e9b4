//! Local users and tokens of others.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use super::support::{Asker, Running, definition, pool, settings, until};
use gantry_fleet::{
    infrastructure::tokens::{AUDIENCE, ISSUER, KeySource},
    orchestrator::people::denied,
};
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

const PASSWORD: &str = "correct horse battery staple";

#[tokio::test]
async fn a_local_user_logs_in_with_their_roles_and_environments() {
    let running = Running::start().await;
    let admin = &running.admin;
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["environment-owner", "Viewer"], "environments": ["Prod"]});
    let made = admin.post("/users", &user).await.expect(201);
    assert_eq!(made.body["roles"], json!(["EnvironmentOwner", "Viewer"]));
    assert!(
        !made.text.contains("argon2") && !made.text.contains("horse"),
        "{}",
        made.text
    );
    admin
        .post("/users", &user)
        .await
        .refused(409, "USER_ALREADY_EXISTS");
    let stranger = running.asker(None);
    let got = stranger
        .post(
            "/authentication/login",
            &json!({"username": "jo", "password": PASSWORD}),
        )
        .await
        .expect(200);
    assert_eq!(got.body["user"]["environments"], json!(["Production"]));
    assert!(
        got.body["expiresAt"]
            .as_str()
            .unwrap()
            .parse::<Timestamp>()
            .unwrap()
            > Timestamp::now()
    );
    let jo = running.asker(got.body["token"].as_str().map(str::to_owned));
    jo.get("/operators").await.expect(200);
    jo.get("/users").await.refused(403, "FORBIDDEN");
    let listed = admin.get("/users").await.expect(200);
    assert_eq!(listed.body["users"][0]["username"], "jo");
    assert!(!listed.text.contains("argon2"));
    for bad in [
        json!({"username": "x", "password": "short", "roles": ["Admin"]}),
        json!({"username": "a b", "password": PASSWORD, "roles": ["Admin"]}),
        json!({"username": "system:fleet", "password": PASSWORD, "roles": ["Admin"]}),
        json!({"username": "x", "password": PASSWORD, "roles": []}),
        json!({"username": "x", "password": PASSWORD, "roles": ["root"]}),
    ] {
        let got = admin.post("/users", &bad).await.refused(400, "VALIDATION_ERROR");
        assert!(!got.text.contains(PASSWORD));
    }
    admin.delete("/users/jo").await.expect(204);
    stranger
        .post(
            "/authentication/login",
            &json!({"username": "jo", "password": PASSWORD}),
        )
        .await
        .refused(401, "UNAUTHORIZED");
    running.server.stop().await;
}

/// Logs somebody in whom the administrator has made, and gives their token.
async fn logged_in(running: &Running, name: &str, role: &str) -> String {
    let user = json!({"username": name, "password": PASSWORD, "roles": [role]});
    running.admin.post("/users", &user).await.expect(201);
    let body = json!({"username": name, "password": PASSWORD});
    let got = running.asker(None).post("/authentication/login", &body).await;
    got.expect(200).body["token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_token_ends_with_its_user_on_every_replica_and_the_name_stays_erased() {
    let mut keys = None;
    let running = Running::with(|settings| keys = Some(settings.keys.clone())).await;
    let mut second = settings(&running.database_url, running.folder.path());
    second.keys = keys.unwrap();
    let other = gantry_fleet::Server::start(second).await.unwrap();
    let token = logged_in(&running, "jo", "Operator").await;
    let jo = [&running.server, &other].map(|server| Asker::new(server, Some(token.clone())));
    for jo in &jo {
        jo.get("/operators").await.expect(200);
    }
    let crd =
        json!({"schemaDefinition": definition("things.example.com", json!({})), "operatorVersion": "1.0.0"});
    let key = [("idempotency-key", "jo's")];
    jo[0].ask("post", "/crds", Some(&crd), &key).await.expect(201);
    let again = jo[1].ask("post", "/crds", Some(&crd), &key).await.expect(201);
    assert_eq!(again.header("idempotency-replayed"), "true");
    let fleet = &running.server.fleet;
    let caller = fleet.verifier.verify(&token, fleet.now()).unwrap();
    running.admin.delete("/users/jo").await.expect(204);
    for jo in &jo {
        jo.get("/operators").await.refused(401, "UNAUTHORIZED");
        jo.get("/nothing").await.refused(401, "UNAUTHORIZED");
        jo.ask("post", "/crds", Some(&crd), &key)
            .await
            .refused(401, "UNAUTHORIZED");
        jo.get("/users").await.refused(401, "UNAUTHORIZED");
    }
    // A request that was let in before they were removed writes nothing after it.
    let late = denied(&running.server.fleet, &caller, "trace", "listUsers").await;
    assert!(
        matches!(late, Err(gantry_fleet::Error::Unauthorized(_))),
        "{late:?}"
    );
    let named = async || -> i64 {
        sqlx::query_scalar("select count(*) from people where subject = 'jo'")
            .fetch_one(&pool(&running.database_url).await)
            .await
            .unwrap()
    };
    assert_eq!(named().await, 0, "the name came back");
    // Somebody else of that name is somebody else.
    let new = logged_in(&running, "jo", "Viewer").await;
    running.asker(Some(new)).get("/operators").await.expect(200);
    jo[0].get("/operators").await.refused(401, "UNAUTHORIZED");
    other.stop().await;
    running.server.stop().await;
}

#[tokio::test]
async fn guessing_locks_the_account_and_tells_nothing() {
    let running = Running::start().await;
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    running.admin.post("/users", &user).await.expect(201);
    let stranger = running.asker(None);
    let login = async |name: &str, password: &str| {
        stranger
            .post(
                "/authentication/login",
                &json!({"username": name, "password": password}),
            )
            .await
    };
    let unknown = login("nobody", "wrong").await.refused(401, "UNAUTHORIZED");
    for _ in 0..5 {
        let wrong = login("jo", "wrong").await.refused(401, "UNAUTHORIZED");
        assert_eq!(wrong.body["error"]["message"], unknown.body["error"]["message"]);
    }
    for guess in [PASSWORD, "wrong"] {
        let locked = login("jo", guess).await.refused(401, "UNAUTHORIZED");
        assert_eq!(
            locked.body["error"]["message"], unknown.body["error"]["message"],
            "not even that a guess is right"
        );
    }
    assert!(running.admin.get("/users").await.body["users"][0]["lockedUntil"].is_string());
    // Time passes.
    let pool = pool(&running.database_url).await;
    sqlx::query("update users set locked_until = now() - interval '1 second'")
        .execute(&pool)
        .await
        .unwrap();
    login("jo", PASSWORD).await.expect(200);
    let failed = running
        .admin
        .get("/audit?action=user.login&outcome=Failed")
        .await
        .body;
    assert_eq!(failed["total"], 8);
    let of_nobody = running
        .admin
        .get("/audit?action=user.login&targetId=unknown")
        .await
        .expect(200);
    assert_eq!(of_nobody.body["total"], 1);
    assert!(
        !of_nobody.text.contains("nobody"),
        "a name may be a password in the wrong field"
    );
    running.server.stop().await;
}

/// How many entries the log has more after a wrong login.
async fn entries(running: &Running, name: &str) -> i64 {
    let pool = pool(&running.database_url).await;
    let head = async || -> i64 {
        sqlx::query_scalar("select seq from audit_head")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let before = head().await;
    let body = json!({"username": name, "password": "wrong"});
    let stranger = running.asker(None);
    stranger
        .post("/authentication/login", &body)
        .await
        .refused(401, "UNAUTHORIZED");
    head().await - before
}

#[tokio::test]
async fn an_unknown_name_is_as_much_work_as_a_known_one() {
    let running = Running::start().await;
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    running.admin.post("/users", &user).await.expect(201);
    let (known, unknown) = (entries(&running, "jo").await, entries(&running, "no").await);
    assert_eq!((known, unknown), (1, 1), "entries of the log");
    running.server.stop().await;
}

#[tokio::test]
async fn more_who_cannot_get_in_than_are_checked_hear_and_leave_the_same() {
    let running = Running::start().await;
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    running.admin.post("/users", &user).await.expect(201);
    let stranger = running.asker(None);
    let login = async |name: &str, password: &str| {
        let body = json!({"username": name, "password": password});
        stranger.post("/authentication/login", &body).await
    };
    let wrong = login("jo", "wrong").await.refused(401, "UNAUTHORIZED");
    for number in 0..40 {
        let unknown = login(&format!("no-{number}"), "wrong").await;
        let unknown = unknown.refused(401, "UNAUTHORIZED");
        assert_eq!(unknown.body["error"]["message"], wrong.body["error"]["message"]);
    }
    assert_eq!(
        entries(&running, "no").await,
        1,
        "it is written down all the same"
    );
    login("jo", PASSWORD).await.expect(200);
    running.server.stop().await;
}

#[tokio::test]
async fn a_lock_that_a_wrong_clock_noted_ends_in_a_quarter_of_an_hour() {
    let offset = Arc::new(AtomicI64::new(365 * 24 * 60));
    let clock = offset.clone();
    let running = Running::with(|settings| {
        settings.clock =
            Arc::new(move || Timestamp::now() + SignedDuration::from_mins(clock.load(Ordering::SeqCst)));
    })
    .await;
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    running.admin.post("/users", &user).await.expect(201);
    let login = async |password: &str| {
        let body = json!({"username": "jo", "password": password});
        running
            .asker(None)
            .post("/authentication/login", &body)
            .await
            .status
    };
    for _ in 0..5 {
        assert_eq!(login("wrong").await, 401);
    }
    // The clock was a year ahead, and is put right.
    offset.store(0, Ordering::SeqCst);
    assert_eq!(login(PASSWORD).await, 401, "it is locked all the same");
    offset.store(16, Ordering::SeqCst);
    assert_eq!(login(PASSWORD).await, 200);
    running.server.stop().await;
}

#[tokio::test]
async fn many_guesses_at_once_are_no_more_guesses() {
    let running = Running::start().await;
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    running.admin.post("/users", &user).await.expect(201);
    let stranger = running.asker(None);
    let guesses = (0..16).map(|_| async {
        let body = json!({"username": "jo", "password": "wrong"});
        stranger
            .post("/authentication/login", &body)
            .await
            .refused(401, "UNAUTHORIZED");
    });
    futures::future::join_all(guesses).await;
    let failures: i32 = sqlx::query_scalar("select failures from users")
        .fetch_one(&pool(&running.database_url).await)
        .await
        .unwrap();
    assert_eq!(failures, 5, "the others found it locked");
    running.server.stop().await;
}

#[tokio::test]
async fn logins_go_on_with_another_secret() {
    let mut file = std::path::PathBuf::new();
    let running = Running::with(|settings| file = settings.login_secret.clone().unwrap()).await;
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    running.admin.post("/users", &user).await.expect(201);
    std::fs::write(&file, "another-secret-of-more-than-32-bytes").unwrap();
    let body = json!({"username": "jo", "password": PASSWORD});
    let got = running
        .asker(None)
        .post("/authentication/login", &body)
        .await
        .expect(200);
    let token = got.body["token"].as_str().unwrap().to_owned();
    running.asker(Some(token)).get("/clusters").await.expect(200);
    running.admin.get("/clusters").await.refused(401, "UNAUTHORIZED");
    running.server.stop().await;
}

fn claims(roles: &Value) -> Value {
    json!({
        "sub": "somebody", "iss": ISSUER, "aud": [AUDIENCE, "another"], "roles": roles,
        "iat": Timestamp::now().as_second(), "exp": Timestamp::now().as_second() + 600,
    })
}

fn key_pair(folder: &std::path::Path, name: &str, kind: &[&str]) -> (Vec<u8>, std::path::PathBuf) {
    let private = folder.join(format!("{name}.pem"));
    let public = folder.join(format!("{name}.pub"));
    let run = |arguments: &[&str]| {
        let done = std::process::Command::new("openssl")
            .args(arguments)
            .output()
            .expect("openssl is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let mut generate = vec!["genpkey", "-out", private.to_str().unwrap()];
    generate.extend(kind);
    run(&generate);
    run(&[
        "pkey",
        "-in",
        private.to_str().unwrap(),
        "-pubout",
        "-out",
        public.to_str().unwrap(),
    ]);
    (std::fs::read(private).unwrap(), public)
}

#[tokio::test]
async fn nobody_passes_for_the_server_itself() {
    let running = Running::start().await;
    let hours = SignedDuration::from_hours(1);
    for subject in ["system:fleet", "system:anybody", "System:x", " system:fleet"] {
        let token = super::support::token_in(subject, &[Role::Admin], None, hours);
        let got = running.asker(Some(token)).get("/operators").await;
        let got = got.refused(401, "UNAUTHORIZED");
        assert!(got.text.contains("begins with system:"), "{}", got.text);
    }
    for subject in ["systems", "ecosystem:x", "système:x"] {
        let token = super::support::token_in(subject, &[Role::Admin], None, hours);
        running.asker(Some(token)).get("/operators").await.expect(200);
    }
    running.server.stop().await;
}

#[tokio::test]
async fn tokens_of_others_count_by_their_public_keys_and_not_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let (rsa, rsa_public) = key_pair(
        folder.path(),
        "rsa",
        &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
    );
    let (ec, ec_public) = key_pair(
        folder.path(),
        "ec",
        &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
    );
    let running = Running::with(|settings| {
        settings.tokens = vec![
            KeySource::PublicKey(rsa_public.clone()),
            KeySource::PublicKey(ec_public.clone()),
        ];
        settings.login_secret = None;
    })
    .await;
    let ask = async |token: String| running.asker(Some(token)).get("/operators").await.status;
    let rs = EncodingKey::from_rsa_pem(&rsa).unwrap();
    let es = EncodingKey::from_ec_pem(&ec).unwrap();
    assert_eq!(
        ask(encode(&Header::new(Algorithm::RS256), &claims(&json!(["Viewer"])), &rs).unwrap()).await,
        200
    );
    assert_eq!(
        ask(encode(&Header::new(Algorithm::ES256), &claims(&json!("Viewer")), &es).unwrap()).await,
        200
    );
    // When it was issued is for the issuer to tell or not.
    let mut undated = claims(&json!("Viewer"));
    undated.as_object_mut().unwrap().remove("iat");
    assert_eq!(
        ask(encode(&Header::new(Algorithm::ES256), &undated, &es).unwrap()).await,
        200
    );
    // One that does not count yet.
    let with_begin = |seconds: i64| {
        let mut claims = claims(&json!("Viewer"));
        claims["nbf"] = json!(Timestamp::now().as_second() + seconds);
        encode(&Header::new(Algorithm::ES256), &claims, &es).unwrap()
    };
    assert_eq!(ask(with_begin(-60)).await, 200);
    assert_eq!(ask(with_begin(300)).await, 401);
    assert_eq!(
        ask(encode(&Header::new(Algorithm::RS512), &claims(&json!(["Admin"])), &rs).unwrap()).await,
        401
    );
    // The classic: the public key taken for a shared secret.
    let confused = EncodingKey::from_secret(&std::fs::read(&rsa_public).unwrap());
    assert_eq!(
        ask(encode(
            &Header::new(Algorithm::HS256),
            &claims(&json!(["Admin"])),
            &confused
        )
        .unwrap())
        .await,
        401
    );
    let login = json!({"username": "x", "password": PASSWORD});
    running
        .asker(None)
        .post("/authentication/login", &login)
        .await
        .refused(400, "LOGIN_DISABLED");
    running.server.stop().await;
}

/// A key, and the document that it is published in.
fn published(folder: &std::path::Path, name: &str) -> (EncodingKey, Value) {
    let (private, _) = key_pair(
        folder,
        name,
        &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
    );
    let key = EncodingKey::from_ec_pem(&private).unwrap();
    let mut jwk = jsonwebtoken::jwk::Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
    jwk.common.key_id = Some(name.to_owned());
    (key, json!(jwk))
}

#[tokio::test]
async fn an_identity_provider_that_is_away_stops_nobody_else_and_counts_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (key, jwk) = published(folder.path(), "key");
    let is_back = Arc::new(AtomicBool::new(false));
    let back = is_back.clone();
    let router = axum::Router::new().fallback(async move || {
        if back.load(Ordering::SeqCst) {
            Ok(axum::Json(json!({"keys": [jwk]})))
        } else {
            Err(axum::http::StatusCode::SERVICE_UNAVAILABLE)
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let mut file = std::path::PathBuf::new();
    let running = Running::with(|settings| {
        file = settings.login_secret.clone().unwrap();
        let url = format!("http://{address}/jwks").parse().unwrap();
        settings.tokens.push(KeySource::Jwks(url));
    })
    .await;
    running.admin.get("/operators").await.expect(200);
    // A secret that leaked is replaced: it ends, though the provider is still away, and nobody asks with the new one.
    std::fs::write(&file, "another-secret-of-more-than-32-bytes").unwrap();
    until("the old secret does not count", async || {
        (running.admin.get("/operators").await.status == 401).then_some(())
    })
    .await;
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("key".to_owned());
    let token = encode(&header, &claims(&json!(["Viewer"])), &key).unwrap();
    let visitor = running.asker(Some(token));
    visitor.get("/operators").await.refused(401, "UNAUTHORIZED");
    is_back.store(true, Ordering::SeqCst);
    until("its tokens count", async || {
        (visitor.get("/operators").await.status == 200).then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn keys_of_a_key_set_are_taken_over_when_they_are_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let sets: Arc<Mutex<Value>> = Arc::default();
    let pair = |name: &str| published(folder.path(), name);
    let ((old, old_jwk), (new, new_jwk)) = (pair("old"), pair("new"));
    *sets.lock().unwrap() = json!({"keys": [old_jwk]});
    let served = sets.clone();
    let router = axum::Router::new().fallback(async move || axum::Json(served.lock().unwrap().clone()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let running = Running::with(|settings| {
        settings.tokens = vec![KeySource::Jwks(url.parse().unwrap())];
        settings.login_secret = None;
    })
    .await;
    let sign = |key: &EncodingKey, id: &str| {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(id.to_owned());
        encode(&header, &claims(&json!(["Viewer"])), key).unwrap()
    };
    let ask = async |token: String| running.asker(Some(token)).get("/operators").await.status;
    assert_eq!(ask(sign(&old, "old")).await, 200);
    *sets.lock().unwrap() = json!({"keys": [new_jwk]});
    assert_eq!(
        ask(sign(&new, "new")).await,
        200,
        "an unknown key makes the set be fetched again"
    );
    assert_eq!(
        ask(sign(&old, "old")).await,
        401,
        "what is no longer in the set counts no more"
    );
    assert_eq!(
        ask(sign(&old, "new")).await,
        401,
        "one key's name on another's signature"
    );
    running.server.stop().await;
}

#[tokio::test]
async fn a_local_user_changes_their_password_and_other_tokens_end() {
    const NEW: &str = "another horse, another battery";
    let running = Running::start().await;
    let (admin, stranger) = (&running.admin, running.asker(None));
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    admin.post("/users", &user).await.expect(201);
    let login = async |password: &str| {
        let body = json!({"username": "jo", "password": password});
        stranger.post("/authentication/login", &body).await
    };
    let as_jo = async |password: &str| {
        let got = login(password).await.expect(200);
        running.asker(Some(got.body["token"].as_str().unwrap().to_owned()))
    };
    let (one, other) = (as_jo(PASSWORD).await, as_jo(PASSWORD).await);
    let change = async |jo: &Asker, current: &str, new: &str| {
        let body = json!({"currentPassword": current, "newPassword": new});
        jo.post("/authentication/password", &body).await
    };
    for bad in ["short", PASSWORD] {
        let got = change(&one, PASSWORD, bad).await.refused(400, "VALIDATION_ERROR");
        assert_eq!(got.body["error"]["details"][0]["field"], "newPassword");
    }
    change(&one, "a wrong one, long enough", NEW)
        .await
        .refused(400, "WRONG_PASSWORD");
    change(admin, PASSWORD, NEW).await.refused(400, "NO_LOCAL_USER");
    one.get("/operators").await.expect(200);
    let got = change(&one, PASSWORD, NEW).await.expect(200);
    let renewed = running.asker(Some(got.body["token"].as_str().unwrap().to_owned()));
    renewed.get("/operators").await.expect(200);
    for ended in [&one, &other] {
        ended.get("/operators").await.refused(401, "UNAUTHORIZED");
        change(ended, NEW, PASSWORD).await.refused(401, "UNAUTHORIZED");
    }
    login(PASSWORD).await.refused(401, "UNAUTHORIZED");
    as_jo(NEW).await.get("/operators").await.expect(200);
    let audit = admin
        .get("/audit?action=user.password-changed&order=asc")
        .await
        .expect(200);
    let outcomes: Vec<&str> = audit.body["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["Failed", "Succeeded"]);
    assert!(!audit.text.contains("horse") && !got.text.contains("horse"));
    running.server.stop().await;
}

#[tokio::test]
async fn a_token_is_no_help_to_guess_a_password() {
    let running = Running::start().await;
    let (admin, stranger) = (&running.admin, running.asker(None));
    let user = json!({"username": "jo", "password": PASSWORD, "roles": ["Viewer"]});
    admin.post("/users", &user).await.expect(201);
    let body = json!({"username": "jo", "password": PASSWORD});
    let got = stranger.post("/authentication/login", &body).await.expect(200);
    let jo = running.asker(Some(got.body["token"].as_str().unwrap().to_owned()));
    let guess = async |current: &str| {
        let body = json!({"currentPassword": current, "newPassword": "another horse, another battery"});
        jo.post("/authentication/password", &body)
            .await
            .refused(400, "WRONG_PASSWORD")
    };
    for _ in 0..5 {
        guess("a wrong one, long enough").await;
    }
    guess(PASSWORD).await;
    stranger
        .post("/authentication/login", &body)
        .await
        .refused(401, "UNAUTHORIZED");
    running.server.stop().await;
}
