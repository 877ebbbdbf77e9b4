//! What holds for every request: repeated ones are done once, too many are refused, a database that is away is an
//! answer and not a hang.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use super::support::{Asker, Running, charts::Repository, definition, key_line, kube::StandIn, pool, token};
use gantry_fleet::infrastructure::keys::{Keys, LocalKeys};
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

fn crd(version: &str) -> Value {
    json!({"schemaDefinition": definition("things.example.com", json!({})), "operatorVersion": version})
}

#[tokio::test]
async fn a_request_that_is_repeated_with_its_key_is_done_once() {
    let running = Running::start().await;
    let admin = &running.admin;
    let key = [("idempotency-key", "k-1")];
    let first = admin
        .ask("post", "/crds", Some(&crd("1.0.0")), &key)
        .await
        .expect(201);
    assert_eq!(first.header("idempotency-replayed"), "");
    let again = admin
        .ask("post", "/crds", Some(&crd("1.0.0")), &key)
        .await
        .expect(201);
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(first.body, again.body);
    assert_eq!(first.header("etag"), again.header("etag"));
    assert_ne!(first.header("etag"), "");
    let audit = admin.get("/audit?action=crd.registered").await.expect(200);
    assert_eq!(audit.body["total"], 1, "it was done once");
    // A definition with all of its history can be large: what it is by now is answered, with the tag of that.
    let kept: Option<Vec<u8>> = sqlx::query_scalar("select body from idempotency")
        .fetch_one(&pool(&running.database_url).await)
        .await
        .unwrap();
    assert_eq!(kept, None);
    admin.post("/crds", &crd("1.1.0")).await.expect(201);
    let later = admin
        .ask("post", "/crds", Some(&crd("1.0.0")), &key)
        .await
        .expect(201);
    assert_eq!(later.header("idempotency-replayed"), "true");
    let shown = admin.get("/crds/things.example.com").await.expect(200);
    assert_eq!(
        (&later.body, later.header("etag")),
        (&shown.body, shown.header("etag"))
    );
    assert_ne!(later.header("etag"), first.header("etag"));
    admin
        .ask("post", "/crds", Some(&crd("2.0.0")), &key)
        .await
        .refused(409, "IDEMPOTENCY_KEY_REUSED");
    admin
        .ask("post", "/crds", Some(&crd("2.0.0")), &[("idempotency-key", "")])
        .await
        .refused(400, "VALIDATION_ERROR");
    // Another user's key is another key.
    let other = running.asker(Some(token("other", Role::Operator)));
    let got = other
        .ask("post", "/crds", Some(&crd("2.0.0")), &key)
        .await
        .expect(201);
    assert_eq!(got.header("idempotency-replayed"), "");
    running.server.stop().await;
}

#[tokio::test]
async fn what_is_kept_of_a_request_is_no_help_to_guess_a_password_and_is_known_to_all_replicas() {
    let (old, new) = (key_line(), key_line());
    let keys = Keys::local(LocalKeys::parse(&old).unwrap());
    let running = Running::with(|settings| settings.keys = keys.clone()).await;
    let body = json!({"username": "jo", "password": "correct horse battery", "roles": ["Viewer"]});
    let key = [("idempotency-key", "k")];
    running
        .admin
        .ask("post", "/users", Some(&body), &key)
        .await
        .expect(201);
    let pool = pool(&running.database_url).await;
    let kept: Vec<u8> = sqlx::query_scalar("select request from idempotency")
        .fetch_one(&pool)
        .await
        .unwrap();
    let mut plain = Sha256::new();
    for part in ["POST", "/api/v1/users", &body.to_string()] {
        plain.update((part.len() as u64).to_be_bytes());
        plain.update(part);
    }
    assert_eq!(kept.len(), 32);
    assert_ne!(
        kept,
        plain.finalize().to_vec(),
        "anybody can make this from a guess"
    );
    // Another replica, and one that starts after the key that seals was rotated and the old one is gone.
    let replica = async |line: &str| {
        let mut settings = super::support::settings(&running.database_url, running.folder.path());
        settings.keys = Keys::local(LocalKeys::parse(line).unwrap());
        gantry_fleet::Server::start(settings).await.unwrap()
    };
    let asked = async |server: &gantry_fleet::Server| {
        let asker = super::support::Asker::new(server, Some(token("admin", Role::Admin)));
        asker.ask("post", "/users", Some(&body), &key).await
    };
    let other = replica(&old).await;
    assert_eq!(
        asked(&other).await.expect(201).header("idempotency-replayed"),
        "true"
    );
    other.stop().await;
    keys.replace(LocalKeys::parse(&format!("{new}\n{old}")).unwrap());
    let name = keys.current().await.unwrap().id;
    super::support::until("it is under the new key", async || {
        let by: String = sqlx::query_scalar("select key_id from server_secrets")
            .fetch_one(&pool)
            .await
            .unwrap();
        (by == name).then_some(())
    })
    .await;
    let later = replica(&new).await;
    assert_eq!(
        asked(&later).await.expect(201).header("idempotency-replayed"),
        "true"
    );
    later.stop().await;
    // Where the key is lost, requests with a key go on, once no replica can be waited for that has it.
    let offset = Arc::new(AtomicI64::new(0));
    let clock = offset.clone();
    let mut settings = super::support::settings(&running.database_url, running.folder.path());
    settings.clock =
        Arc::new(move || Timestamp::now() + SignedDuration::from_mins(clock.load(Ordering::SeqCst)));
    let lost = gantry_fleet::Server::start(settings).await.unwrap();
    asked(&lost).await.refused(503, "KEY_UNAVAILABLE");
    assert_eq!(
        asked(&running.server)
            .await
            .expect(201)
            .header("idempotency-replayed"),
        "true",
        "a replica without the key takes it from nobody"
    );
    offset.store(11, Ordering::SeqCst);
    asked(&lost).await.refused(409, "IDEMPOTENCY_KEY_REUSED");
    let asker = super::support::Asker::new(&lost, Some(token("admin", Role::Admin)));
    let fresh = [("idempotency-key", "another")];
    for replayed in ["", "true"] {
        let got = asker
            .ask("post", "/crds", Some(&crd("1.0.0")), &fresh)
            .await
            .expect(201);
        assert_eq!(got.header("idempotency-replayed"), replayed);
    }
    lost.stop().await;
    running.server.stop().await;
}

#[tokio::test]
async fn a_request_that_failed_may_be_repeated_with_its_key() {
    let running = Running::start().await;
    let key = [("idempotency-key", "k")];
    let bad = json!({"schemaDefinition": {}, "operatorVersion": "1.0.0"});
    running
        .admin
        .ask("post", "/crds", Some(&bad), &key)
        .await
        .refused(400, "VALIDATION_ERROR");
    running
        .admin
        .ask("post", "/crds", Some(&crd("1.0.0")), &key)
        .await
        .expect(201);
    running.server.stop().await;
}

#[tokio::test]
async fn the_same_request_sent_ten_times_at_once_is_done_once() {
    let running = Running::start().await;
    let body = crd("1.0.0");
    let key = [("idempotency-key", "k")];
    let asks = (0..10).map(|_| running.admin.ask("post", "/crds", Some(&body), &key));
    let got = futures::future::join_all(asks).await;
    assert!(got.iter().all(|got| got.status == 201), "{got:?}");
    assert_eq!(
        got.iter()
            .filter(|got| got.header("idempotency-replayed").is_empty())
            .count(),
        1
    );
    let audit = running
        .admin
        .get("/audit?action=crd.registered")
        .await
        .expect(200);
    assert_eq!(audit.body["total"], 1);
    running.server.stop().await;
}

#[tokio::test]
async fn too_many_requests_are_refused_with_the_usual_headers() {
    let running = Running::with(|settings| settings.rates.read = 3).await;
    let viewer = running.role(Role::Viewer);
    for left in ["2", "1", "0"] {
        let got = viewer.get("/operators").await.expect(200);
        assert_eq!(got.header("x-ratelimit-limit"), "3");
        assert_eq!(got.header("x-ratelimit-remaining"), left);
        assert!(got.header("x-ratelimit-reset").parse::<i64>().is_ok());
    }
    let refused = viewer.get("/operators").await.refused(429, "RATE_LIMIT_EXCEEDED");
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=20).contains(&wait), "{wait}");
    viewer.get("/clusters").await.expect(200);
    running.role(Role::Operator).get("/operators").await.expect(200);
    for _ in 0..10 {
        running.asker(None).get("/health").await.expect(200);
    }
    running.server.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let running = Running::start().await;
    let body = json!({"name": "x".repeat(2 << 20)});
    running
        .admin
        .post("/operators", &body)
        .await
        .refused(413, "PAYLOAD_TOO_LARGE");
    running.server.stop().await;
}

#[tokio::test]
async fn a_trace_goes_through() {
    let running = Running::start().await;
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{id}-00f067aa0ba902b7-01");
    let got = running
        .admin
        .ask("post", "/crds", Some(&crd("1.0.0")), &[("traceparent", &parent)])
        .await
        .expect(201);
    assert_eq!(got.header("x-trace-id"), id);
    let audit = running
        .admin
        .get("/audit?action=crd.registered")
        .await
        .expect(200);
    assert_eq!(audit.body["entries"][0]["traceId"], id);
    running.server.stop().await;
}

#[tokio::test]
async fn a_database_that_is_away_is_an_answer_and_comes_back_by_itself() {
    let running = Running::start().await;
    running.admin.get("/operators").await.expect(200);
    let name = running.database_url.rsplit('/').next().unwrap().to_owned();
    let other = pool(&running.database_url.replace(&name, "postgres")).await;
    let run = async |sql: String| {
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .execute(&other)
            .await
            .unwrap()
    };
    // Nobody may connect any more, and those who are connected are thrown out.
    run(format!("alter database {name} with allow_connections false")).await;
    run(format!(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
    ))
    .await;
    let refused = running.admin.get("/operators").await;
    refused.refused(503, "DATABASE_UNAVAILABLE");
    running.asker(None).get("/health").await.expect(503);
    run(format!("alter database {name} with allow_connections true")).await;
    super::support::until("it works again", async || {
        (running.admin.get("/operators").await.status == 200).then_some(())
    })
    .await;
    super::support::until("and says so, within a second", async || {
        (running.asker(None).get("/health").await.status == 200).then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn a_query_that_takes_too_long_is_no_outage() {
    let pool = pool(&super::support::database().await).await;
    let mut connection = pool.acquire().await.unwrap();
    sqlx::query("set statement_timeout = 20")
        .execute(&mut *connection)
        .await
        .unwrap();
    let slow = sqlx::query("select pg_sleep(60)").execute(&mut *connection).await;
    let error = gantry_fleet::Error::from(slow.unwrap_err());
    assert_eq!((error.code().as_str(), error.status()), ("QUERY_TIMEOUT", 503));
    assert!(error.to_string().contains("narrow"), "{error}");
}

#[tokio::test]
async fn replicas_count_together() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (folder, url) = (tempfile::tempdir().unwrap(), super::support::database().await);
    // A clock that stands still: what is left does not depend on how long the requests take.
    let now = jiff::Timestamp::now();
    let replica = async || {
        let mut settings = super::support::settings(&url, folder.path());
        settings.rates.write = 4;
        settings.clock = std::sync::Arc::new(move || now);
        gantry_fleet::Server::start(settings).await.unwrap()
    };
    let (one, two) = (replica().await, replica().await);
    let admin = token("admin", Role::Admin);
    let askers = [&one, &two].map(|server| super::support::Asker::new(server, Some(admin.clone())));
    for number in 0..4 {
        let got = askers[number % 2]
            .post("/crds", &crd(&format!("1.0.{number}")))
            .await;
        assert_eq!(
            got.expect(201).header("x-ratelimit-remaining"),
            (3 - number).to_string()
        );
    }
    for asker in &askers {
        let got = asker
            .post("/crds", &crd("2.0.0"))
            .await
            .refused(429, "RATE_LIMIT_EXCEEDED");
        assert_eq!(got.header("retry-after"), "15");
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_full_pool_is_an_answer_and_recovers_by_itself() {
    let running = Running::with(|settings| settings.database_connections = 3).await;
    let (admin, pool) = (&running.admin, &running.server.fleet.pool);
    admin.post("/crds", &crd("1.0.0")).await.expect(201);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(pool.acquire().await.unwrap());
    }
    let begin = std::time::Instant::now();
    let (key, second) = ([("idempotency-key", "k")], crd("2.0.0"));
    let nobody = running.asker(None);
    let (read, write, health) = tokio::join!(
        admin.get("/crds"),
        admin.ask("post", "/crds", Some(&second), &key),
        nobody.get("/health"),
    );
    for refused in [read, write] {
        let refused = refused.refused(503, "DATABASE_UNAVAILABLE");
        assert_eq!(refused.header("retry-after"), "2");
    }
    health.expect(503);
    let took = begin.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    drop(held);
    // Nothing of the refused write is there, and repeating it with its key does it once.
    let history = async || {
        let got = admin.get("/crds/things.example.com").await.expect(200).body;
        got["schemaHistory"].as_array().unwrap().len()
    };
    assert_eq!(history().await, 1);
    for _ in 0..2 {
        admin.ask("post", "/crds", Some(&second), &key).await.expect(201);
    }
    assert_eq!(history().await, 2);
    nobody.get("/health").await.expect(200);
    gantry_fleet::orchestrator::audit::verify(pool, &[], None)
        .await
        .unwrap();
    running.server.stop().await;
}

#[tokio::test]
async fn what_a_database_cannot_keep_is_the_callers_mistake() {
    let running = Running::start().await;
    let (admin, repository) = (&running.admin, Repository::start().await);
    admin.post("/crds", &crd("1.0.0")).await.expect(201);
    repository.chart("widget", "1.0.0", &[]);
    let operator = json!({
        "name": "widget", "namespace": "ops", "chartRepository": repository.url, "chartName": "widget",
        "defaultValues": {"a": "zero \0 byte"},
    });
    let zero = json!({"a": {"type": "string", "description": "zero \0 byte"}});
    let schema =
        json!({"schemaDefinition": definition("things.example.com", zero), "operatorVersion": "2.0.0"});
    let crd = "/crds/things.example.com";
    for (path, body) in [
        (
            "/authentication/login",
            json!({"username": "a\0b", "password": "x"}),
        ),
        ("/operators", operator),
        ("/crds", schema),
        (&format!("{crd}/prove"), json!({"clusters": ["a\0b"]})),
    ] {
        admin.post(path, &body).await.refused(400, "VALIDATION_ERROR");
    }
    for part in ["%00", "%FF"] {
        admin
            .delete(&format!("{crd}/waivers/{part}"))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    admin
        .get("/audit?since=-009999-01-01T00:00:00Z")
        .await
        .refused(400, "VALIDATION_ERROR");
    running.server.stop().await;
}

#[tokio::test]
async fn answers_that_tell_of_something_erased_are_erased_with_it() {
    let running = Running::start().await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    cluster.define(&definition("things.example.com", json!({})), &["v1"]);
    let password = "a long password indeed";
    let user = json!({"username": "jo", "password": password, "roles": ["Admin"]});
    let other =
        json!({"schemaDefinition": definition("others.example.com", json!({})), "operatorVersion": "1.0.0"});
    let bodies = [
        ("/clusters", cluster.registration("planted", "t"), "cluster"),
        ("/users", user, "user"),
        ("/crds", crd("1.0.0"), "where it runs"),
        ("/crds", other, "other"),
    ];
    let keyed = async |asker: &Asker, path: &str, body: &Value, key: &str| {
        let key = [("idempotency-key", key)];
        let got = asker.ask("post", path, Some(body), &key).await;
        assert!(got.status < 300, "{}", got.text);
        got
    };
    for (path, body, key) in &bodies {
        keyed(admin, path, body, key).await;
    }
    // A field is taken away, which jo approves; the answer to the next one who does something names jo.
    let thing = |version: &str, properties: Value| json!({"schemaDefinition": definition("others.example.com", properties), "operatorVersion": version});
    let one = json!({"a": {"type": "string"}});
    keyed(admin, "/crds", &thing("2.0.0", one), "two").await;
    keyed(admin, "/crds", &thing("3.0.0", json!({})), "three").await;
    let login = json!({"username": "jo", "password": password});
    let token = running
        .asker(None)
        .post("/authentication/login", &login)
        .await
        .body["token"]
        .clone();
    let jo = running.asker(token.as_str().map(str::to_owned));
    let approve = "/crds/others.example.com/approve";
    keyed(&jo, approve, &json!({"notes": "fine"}), "jo's").await;
    let reason = json!({"reason": "old"});
    let got = keyed(
        admin,
        "/crds/others.example.com/deprecate",
        &reason,
        "who approved it",
    )
    .await;
    assert!(got.text.contains("\"approvedBy\":\"jo\""), "{}", got.text);
    // Who looks at the objects of a cluster is kept, and not what it was called.
    let prove = json!({"clusters": ["planted"]});
    admin
        .post("/crds/things.example.com/prove", &prove)
        .await
        .expect(200);
    // Registered twice: what came of the second time is under an id that never was a cluster.
    admin
        .post("/clusters", &cluster.registration("planted", "t"))
        .await
        .refused(409, "CLUSTER_ALREADY_EXISTS");
    admin.delete("/clusters/planted").await.expect(204);
    admin.delete("/users/jo").await.expect(204);
    let pool = pool(&running.database_url).await;
    let kept: Vec<String> = sqlx::query_scalar("select key from idempotency order by key")
        .fetch_all(&pool)
        .await
        .unwrap();
    // Of definitions only the name is kept: who asks again is told what there is now.
    assert_eq!(
        kept,
        ["other", "three", "two", "where it runs", "who approved it"]
    );
    let again = keyed(admin, "/crds", &crd("1.0.0"), "where it runs").await;
    let path = "/crds/others.example.com/deprecate";
    let after = keyed(admin, path, &reason, "who approved it").await;
    for got in [again, after] {
        assert_eq!(got.header("idempotency-replayed"), "true");
        for erased in ["planted", "\"jo\""] {
            assert!(!got.text.contains(erased), "{erased}: {}", got.text);
        }
    }
    let details: Vec<String> = sqlx::query_scalar("select details from audit_details")
        .fetch_all(&pool)
        .await
        .unwrap();
    for erased in ["planted", cluster.url.as_str(), "\"jo\""] {
        let left: Vec<&String> = details.iter().filter(|text| text.contains(erased)).collect();
        assert!(left.is_empty(), "{erased}: {left:?}");
    }
    gantry_fleet::orchestrator::audit::verify(&pool, &[], None)
        .await
        .unwrap();
    running.server.stop().await;
}
