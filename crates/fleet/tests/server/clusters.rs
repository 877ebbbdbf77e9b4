//! Clusters: credentials, health, sharing of work. What real API servers do is tested against real ones in `tests/e2e`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::support::{
    Asker, Running, anchor_bomb, definition,
    kube::{HANG, StandIn, kubeconfig},
    pool, settings, token, until,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gantry_fleet::{
    Server,
    infrastructure::keys::{Keys, LocalKeys},
};
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const PLANTED: &str = "planted-s3cret-t0ken-that-must-not-show";

#[tokio::test]
async fn a_cluster_is_registered_shown_changed_and_removed() {
    let (running, cluster) = (Running::start().await, StandIn::start().await);
    let admin = &running.admin;
    let mut body = cluster.registration("dev-1", PLANTED);
    // The file as people have it.
    let file = serde_saphyr::to_string(&body["kubeconfig"]).unwrap();
    body["kubeconfig"] = json!(STANDARD.encode(file));
    body["labels"] = json!({"region": "eu"});
    let got = admin.post("/clusters", &body).await.expect(201);
    assert_eq!(got.body["environment"], "Development");
    assert_eq!(got.body["kubernetesVersion"], "v1.31.2");
    assert_eq!(
        (&got.body["nodeCount"], &got.body["healthStatus"]),
        (&json!(1), &json!("Healthy"))
    );
    admin
        .post("/clusters", &body)
        .await
        .refused(409, "CLUSTER_ALREADY_EXISTS");
    let health = admin.get("/clusters/dev-1/health").await.expect(200);
    assert_eq!(health.body["apiServerReachable"], true);
    assert_eq!(health.body["nodeHealth"], json!({"ready": 1, "notReady": 0}));
    let tag = admin
        .get("/clusters/dev-1")
        .await
        .expect(200)
        .header("etag")
        .to_owned();
    let change = json!({"isEnabled": false, "environment": "Prod"});
    let changed = admin
        .ask("put", "/clusters/dev-1", Some(&change), &[("if-match", &tag)])
        .await
        .expect(200);
    assert_eq!(
        (&changed.body["isEnabled"], &changed.body["environment"]),
        (&json!(false), &json!("Production"))
    );
    admin
        .ask("put", "/clusters/dev-1", Some(&change), &[("if-match", &tag)])
        .await
        .refused(412, "PRECONDITION_FAILED");
    for (query, total) in [
        ("", 1),
        ("?environment=production", 1),
        ("?environment=Dev", 0),
        ("?healthStatus=healthy", 1),
        ("?healthStatus=Unhealthy", 0),
        ("?label=region=eu", 1),
        ("?label=region=us", 0),
    ] {
        assert_eq!(
            admin.get(&format!("/clusters{query}")).await.expect(200).body["total"],
            total,
            "{query}"
        );
    }
    admin.delete("/clusters/dev-1").await.expect(204);
    admin
        .get("/clusters/dev-1")
        .await
        .refused(404, "CLUSTER_NOT_FOUND");
    running.server.stop().await;
}

#[tokio::test]
async fn hostile_kubeconfigs_are_refused_without_being_repeated() {
    let running = Running::with(|settings| settings.allow.insecure = false).await;
    let good = kubeconfig("https://127.0.0.1:1", PLANTED);
    let with = |path: &str, value: Value| {
        let mut document = good.clone();
        *document.pointer_mut(path).unwrap() = value;
        document
    };
    let bomb = anchor_bomb();
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let mut nested = json!(1);
    for _ in 0..100 {
        nested = json!({"a": nested});
    }
    let text = |text: &str| json!(STANDARD.encode(text));
    let cases = [
        (
            "exec",
            with(
                "/users/0/user",
                json!({"exec": {"command": "sh", "args": [PLANTED]}}),
            ),
        ),
        (
            "auth-provider",
            with("/users/0/user", json!({"auth-provider": {"name": PLANTED}})),
        ),
        ("file", with("/users/0/user", json!({"tokenFile": PLANTED}))),
        (
            "authority file",
            with(
                "/clusters/0/cluster",
                json!({"server": "https://x", "certificate-authority": PLANTED}),
            ),
        ),
        (
            "proxy",
            with(
                "/clusters/0/cluster",
                json!({"server": "https://x", "proxy-url": format!("http://{PLANTED}")}),
            ),
        ),
        (
            "insecure",
            with(
                "/clusters/0/cluster",
                json!({"server": "https://x", "insecure-skip-tls-verify": true}),
            ),
        ),
        (
            "http",
            with(
                "/clusters/0/cluster",
                json!({"server": format!("http://{PLANTED}")}),
            ),
        ),
        (
            "metadata",
            with(
                "/clusters/0/cluster",
                json!({"server": "https://169.254.169.254"}),
            ),
        ),
        ("anchors", text(&bomb)),
        ("depth", text(&deep)),
        ("depth of JSON", nested),
        ("size", text(&format!("{PLANTED}: {}", "x".repeat(300 << 10)))),
        ("no base64", json!(PLANTED)),
        ("no text", json!(STANDARD.encode([0xff, 0xfe]))),
        ("number", json!(7)),
        ("nothing", text("")),
        ("broken", text(&format!("a: [{PLANTED}"))),
    ];
    for (what, kubeconfig) in cases {
        let body = json!({"name": "x", "environment": "Dev", "kubeconfig": kubeconfig});
        let got = running.admin.post("/clusters", &body).await;
        assert_eq!(
            (got.status, got.code()),
            (400, "INVALID_KUBECONFIG"),
            "{what}: {}",
            got.text
        );
        assert!(!got.text.contains(PLANTED), "{what}: {}", got.text);
    }
    assert_eq!(running.admin.get("/clusters").await.body["total"], 0);
    running.server.stop().await;
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_not_registered() {
    let (running, cluster) = (Running::start().await, StandIn::start().await);
    let body = cluster.registration("x", PLANTED);
    for (mood, words) in [(401, "do not take"), (403, "may not"), (500, "answers 500")] {
        cluster.mood(mood);
        let got = running
            .admin
            .post("/clusters", &body)
            .await
            .refused(503, "CLUSTER_UNREACHABLE");
        let words = if mood == 401 { "does not take" } else { words };
        assert!(got.text.contains(words), "{}", got.text);
        assert!(!got.text.contains(PLANTED));
    }
    let nobody =
        json!({"name": "x", "environment": "Dev", "kubeconfig": kubeconfig("http://127.0.0.1:1", PLANTED)});
    let got = running
        .admin
        .post("/clusters", &nobody)
        .await
        .refused(503, "CLUSTER_UNREACHABLE");
    assert!(got.text.contains("nothing listens"), "{}", got.text);
    assert_eq!(running.admin.get("/clusters").await.body["total"], 0);
    running.server.stop().await;
}

/// Everything that the server says or keeps is searched for the planted secret.
#[tokio::test]
async fn credentials_show_nowhere() {
    let (running, cluster) = (
        Running::with(|s| s.health_interval = SignedDuration::from_secs(1)).await,
        StandIn::start().await,
    );
    let admin = &running.admin;
    let key = [("idempotency-key", "once")];
    let body = cluster.registration("c", PLANTED);
    let mut said = vec![
        admin
            .ask("post", "/clusters", Some(&body), &key)
            .await
            .expect(201)
            .text,
    ];
    said.push(
        admin
            .ask("post", "/clusters", Some(&body), &key)
            .await
            .expect(201)
            .text,
    );
    said.push(admin.post("/clusters", &body).await.text);
    let renewed = format!("{PLANTED}-renewed");
    let change = json!({"kubeconfig": cluster.kubeconfig(&renewed)});
    said.push(admin.put("/clusters/c", &change).await.expect(200).text);
    cluster.mood(401);
    until("it is unhealthy", async || {
        (admin.get("/clusters/c").await.body["healthStatus"] == "Unhealthy").then_some(())
    })
    .await;
    for path in [
        "/clusters",
        "/clusters/c",
        "/clusters/c/health",
        "/audit?limit=100",
        "/openapi.json",
    ] {
        said.push(admin.get(path).await.expect(200).text);
    }
    for text in &said {
        assert!(!text.contains(PLANTED), "{text}");
    }
    // All tables, as text: neither in the open nor in the usual disguises.
    let pool = pool(&running.database_url).await;
    let tables: Vec<String> =
        sqlx::query_scalar("select tablename::text from pg_tables where schemaname = 'public'")
            .fetch_all(&pool)
            .await
            .unwrap();
    assert!(tables.len() > 8);
    let hex: String = gantry_fleet_domain::hex(PLANTED.as_bytes());
    for table in tables {
        let rows: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select t::text from {table} t")))
                .fetch_all(&pool)
                .await
                .unwrap();
        for row in rows {
            for form in [PLANTED, &STANDARD.encode(PLANTED)[..40], &hex] {
                assert!(!row.contains(form), "{table}: {row}");
            }
        }
    }
    running.server.stop().await;
}

#[tokio::test]
async fn health_follows_the_cluster_and_says_why_and_since_when() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_millis(300)).await;
    let (well, hung) = (StandIn::start().await, StandIn::start().await);
    let admin = &running.admin;
    admin
        .post("/clusters", &well.registration("well", "t"))
        .await
        .expect(201);
    admin
        .post("/clusters", &hung.registration("hung", "t"))
        .await
        .expect(201);
    hung.mood(HANG);
    let begin = Instant::now();
    well.mood(401);
    let reason = |name: &'static str, wanted: &'static str| async move {
        until(wanted, async || {
            let body = admin.get(&format!("/clusters/{name}")).await.body;
            (body["healthReason"] == wanted).then_some(body)
        })
        .await
    };
    let body = reason("well", "Unauthorized").await;
    assert!(
        begin.elapsed() < Duration::from_secs(8),
        "one that hangs delays nobody"
    );
    assert_eq!(body["healthStatus"], "Unhealthy");
    let since = body["healthSince"].clone();
    let body = reason("hung", "Timeout").await;
    assert_eq!(body["healthStatus"], "Unhealthy");
    assert_eq!(
        admin.get("/clusters/well").await.body["healthSince"],
        since,
        "it does not tick"
    );
    well.mood(200);
    hung.mood(200);
    assert_eq!(reason("well", "NodesReady").await["healthStatus"], "Healthy");
    assert_eq!(reason("hung", "NodesReady").await["healthStatus"], "Healthy");
    let audit = admin
        .get("/audit?action=cluster.health-changed&limit=100")
        .await
        .body;
    assert!(audit["total"].as_u64().unwrap() >= 4, "{audit}");
    // A disabled cluster is left alone.
    admin
        .put("/clusters/well", &json!({"isEnabled": false}))
        .await
        .expect(200);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let asked = well.asked();
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(well.asked(), asked);
    running.server.stop().await;
}

#[tokio::test]
async fn two_replicas_share_the_work_and_one_goes_on_alone() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let url = super::support::database().await;
    let key = super::support::key_line();
    let replica = async || {
        let mut settings = settings(&url, folder.path());
        settings.keys = Keys::local(LocalKeys::parse(&key).unwrap());
        settings.health_interval = SignedDuration::from_secs(1);
        Server::start(settings).await.unwrap()
    };
    let (one, two) = (replica().await, replica().await);
    let admin = Asker::new(&one, Some(token("admin", Role::Admin)));
    let mut stand_ins = Vec::new();
    for number in 0..6 {
        let cluster = StandIn::start().await;
        admin
            .post("/clusters", &cluster.registration(&format!("c-{number}"), "t"))
            .await
            .expect(201);
        stand_ins.push(cluster);
    }
    // The first one is the registration's.
    let looks = |cluster: &StandIn| cluster.looks.lock().unwrap()[1..].to_vec();
    until("all were looked at again and again", async || {
        let often = |cluster: &StandIn| looks(cluster).len() >= 5;
        stand_ins.iter().all(often).then_some(())
    })
    .await;
    for cluster in &stand_ins {
        // A second after the last one, or a tenth earlier, whoever looks: sooner, somebody looked besides.
        let gaps: Vec<Duration> = looks(cluster).windows(2).map(|two| two[1] - two[0]).collect();
        assert!(
            gaps.iter().all(|gap| *gap >= Duration::from_millis(880)),
            "{gaps:?}"
        );
    }
    // Which of them comes first at a cluster is chance, and one may be for a while.
    let pool = pool(&url).await;
    until("both replicas have looked at clusters", async || {
        let holders: i64 = sqlx::query_scalar(
            "select count(distinct d.details::json->>'replica') from audit a join audit_details d on d.seq = a.seq
             where a.action = 'cluster.accessed'",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        (holders == 2).then_some(())
    })
    .await;
    // The other replica serves the same fleet.
    let other = Asker::new(&two, Some(token("admin", Role::Admin)));
    assert_eq!(other.get("/clusters").await.expect(200).body["total"], 6);
    one.stop().await;
    let checked = async || other.get("/clusters/c-0").await.body["lastHealthCheckAt"].clone();
    let last = checked().await;
    until("the other one goes on", async || {
        (checked().await != last).then_some(())
    })
    .await;
    two.stop().await;
}

#[tokio::test]
async fn keys_are_rotated_while_the_server_runs() {
    let (old, new) = (super::support::key_line(), super::support::key_line());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, &old).unwrap();
    let running = Running::with(|settings| {
        settings.keys = Keys::local(LocalKeys::parse(&old).unwrap());
        settings.key_file = Some(file.clone());
        settings.health_interval = SignedDuration::from_secs(1);
    })
    .await;
    let cluster = StandIn::start().await;
    running
        .admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let pool = pool(&running.database_url).await;
    let key = async || -> String {
        sqlx::query_scalar("select key_id from clusters")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let before = key().await;
    std::fs::write(&file, format!("{new}\n{old}\n")).unwrap();
    until("it is rewrapped", async || (key().await != before).then_some(())).await;
    std::fs::write(&file, &new).unwrap();
    let checked = async || running.admin.get("/clusters/c").await.body["lastHealthCheckAt"].clone();
    let last = checked().await;
    until("it is still looked at", async || {
        (checked().await != last).then_some(())
    })
    .await;
    assert_eq!(
        running.admin.get("/clusters/c").await.body["healthStatus"],
        "Healthy"
    );
    running.server.stop().await;
}

/// As when the server waited for its database for a minute after it had read them.
#[tokio::test]
async fn keys_that_changed_before_their_file_was_watched_are_taken_over() {
    let (old, new) = (super::support::key_line(), super::support::key_line());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, format!("{new}\n{old}\n")).unwrap();
    let held = Keys::local(LocalKeys::parse(&old).unwrap());
    let running = Running::with(|settings| {
        settings.keys = held.clone();
        settings.key_file = Some(file.clone());
    })
    .await;
    let wanted = LocalKeys::parse(&new).unwrap().name().to_owned();
    until("the new key wraps", async || {
        (held.current().await.unwrap().id == wanted).then_some(())
    })
    .await;
    running.server.stop().await;
}

/// In two steps: every replica knows the new key before any of them seals with it.
#[tokio::test]
async fn keys_are_rotated_under_two_replicas() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (old, new) = (super::support::key_line(), super::support::key_line());
    let folder = tempfile::tempdir().unwrap();
    let url = super::support::database().await;
    let keys = |lines: &[&String]| {
        let lines: Vec<&str> = lines.iter().map(|line| line.as_str()).collect();
        LocalKeys::parse(&lines.join("\n")).unwrap()
    };
    let replica = async || {
        let mut settings = settings(&url, folder.path());
        let held = Keys::local(keys(&[&old]));
        settings.keys = held.clone();
        settings.health_interval = SignedDuration::from_secs(1);
        (Server::start(settings).await.unwrap(), held)
    };
    let ((one, of_one), (two, of_two)) = (replica().await, replica().await);
    let admins = [&one, &two].map(|server| Asker::new(server, Some(token("admin", Role::Admin))));
    let cluster = StandIn::start().await;
    admins[0]
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let pool = pool(&url).await;
    let sealed_by = async || -> String {
        sqlx::query_scalar("select key_id from clusters")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let troubles = async || -> i64 {
        sqlx::query_scalar("select count(*) from audit where action = 'cluster.health-changed'")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    for held in [&of_one, &of_two] {
        held.replace(keys(&[&old, &new]));
    }
    of_one.replace(keys(&[&new, &old]));
    let name = of_one.current().await.unwrap().id;
    // Both bring what there is under the key that they have on top; the one that is behind takes it back for a while.
    until("the new key seals", async || {
        (sealed_by().await == name).then_some(())
    })
    .await;
    of_two.replace(keys(&[&new, &old]));
    // A look at it that began before may still write.
    let mut times = 0;
    until("and stays", async || {
        times = if sealed_by().await == name { times + 1 } else { 0 };
        (times > 5).then_some(())
    })
    .await;
    for held in [&of_one, &of_two] {
        held.replace(keys(&[&new]));
    }
    // Each of them opens it, and a request with a key is recognised by both.
    let body = json!({"username": "jo", "password": "correct horse battery", "roles": ["Viewer"]});
    for (admin, replayed) in admins.iter().zip(["", "true"]) {
        let key = [("idempotency-key", "k")];
        let got = admin.ask("post", "/users", Some(&body), &key).await.expect(201);
        assert_eq!(got.header("idempotency-replayed"), replayed);
    }
    for server in [&one, &two] {
        server.fleet.connections.forget(cluster_id(&admins[0]).await);
    }
    let checked = async || admins[1].get("/clusters/c").await.body["lastHealthCheckAt"].clone();
    let last = checked().await;
    until("it is looked at", async || {
        (checked().await != last).then_some(())
    })
    .await;
    assert_eq!(troubles().await, 0, "nothing of it was seen as the cluster's");
    one.stop().await;
    two.stop().await;
}

async fn cluster_id(admin: &Asker) -> uuid::Uuid {
    let shown = admin.get("/clusters/c").await.expect(200);
    shown.body["clusterId"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_key_that_a_replica_has_not_yet_says_nothing_of_the_cluster() {
    let (old, new) = (super::support::key_line(), super::support::key_line());
    let held = Keys::local(LocalKeys::parse(&old).unwrap());
    let running = Running::with(|settings| {
        settings.keys = held.clone();
        settings.health_interval = SignedDuration::from_secs(1);
    })
    .await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    held.replace(LocalKeys::parse(&new).unwrap());
    running.server.fleet.connections.forget(cluster_id(admin).await);
    let pool = pool(&running.database_url).await;
    // A claim that nothing came of is there until its end, and one that something came of for moments.
    let mut times = 0;
    until("somebody tried to look", async || {
        let claimed: bool = sqlx::query_scalar("select check_holder is not null from clusters")
            .fetch_one(&pool)
            .await
            .unwrap();
        times = if claimed { times + 1 } else { 0 };
        (times > 15).then_some(())
    })
    .await;
    let shown = admin.get("/clusters/c").await.expect(200).body;
    assert_eq!(shown["healthStatus"], "Healthy", "as it was seen last");
    let audit = admin
        .get("/audit?action=cluster.health-changed")
        .await
        .expect(200);
    assert_eq!(audit.body["total"], 0);
    running.server.stop().await;
}

/// A door before a stand-in that counts who is inside.
struct Door {
    url: String,
    most: Arc<AtomicUsize>,
}

impl Door {
    async fn before(stand_in: &StandIn) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let behind = stand_in.url.trim_start_matches("http://").to_owned();
        let seen = most.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (inside, behind) = (inside.clone(), behind.clone());
                seen.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut other = tokio::net::TcpStream::connect(behind).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut other).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { url, most }
    }
}

#[tokio::test]
async fn many_clusters_are_looked_at_over_few_connections() {
    const CLUSTERS: usize = 20;
    let running = Running::with(|settings| {
        settings.cluster_connections = 4;
        settings.health_interval = SignedDuration::from_secs(1);
    })
    .await;
    let cluster = StandIn::start().await;
    let door = Door::before(&cluster).await;
    for number in 0..CLUSTERS {
        let body = json!({"name": format!("c-{number}"), "environment": "Dev",
            "kubeconfig": kubeconfig(&door.url, "t")});
        running.admin.post("/clusters", &body).await.expect(201);
    }
    let start = jiff::Timestamp::now();
    until("all were looked at again and again", async || {
        let all = running.admin.get("/clusters?limit=100").await.expect(200).body;
        let clusters = all["clusters"].as_array().unwrap();
        assert!(
            clusters
                .iter()
                .all(|cluster| cluster["healthStatus"] == "Healthy"),
            "{all}"
        );
        let fresh = |cluster: &Value| -> Option<bool> {
            let at: jiff::Timestamp = cluster["lastHealthCheckAt"].as_str()?.parse().ok()?;
            Some(at > start + SignedDuration::from_secs(2))
        };
        clusters
            .iter()
            .all(|cluster| fresh(cluster) == Some(true))
            .then_some(())
    })
    .await;
    let most = door.most.load(Ordering::SeqCst);
    // One that was closed may be seen as closed a moment after the next one came.
    assert!((1..=4 + 2).contains(&most), "{most} connections at once");
    let taken = running.server.fleet.connections.slots.taken();
    assert!(taken <= 4, "{taken}");
    running.server.stop().await;
}

#[tokio::test]
async fn a_look_that_began_before_a_change_does_not_count_after_it() {
    use gantry_fleet::infrastructure::store::{
        Terms,
        clusters::{self as store, Claim, Seen},
        time,
    };
    let (running, cluster) = (Running::start().await, StandIn::start().await);
    running
        .admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    // Nobody looks at it but us.
    running.server.stop().await;
    let pool = pool(&running.database_url).await;
    let mut connection = pool.acquire().await.unwrap();
    let replica = uuid::Uuid::new_v4();
    let terms = Terms {
        lease: SignedDuration::from_mins(1),
        farthest: SignedDuration::from_hours(1),
    };
    let look = async || {
        let mut claimed = store::claim(&pool, replica, terms, 1).await.unwrap();
        claimed.pop().unwrap()
    };
    sqlx::query("update clusters set check_at = now()")
        .execute(&pool)
        .await
        .unwrap();
    let seen = |health: &'static str| Seen {
        kubernetes_version: None,
        nodes: None,
        latency_ms: None,
        health,
        reason: "Timeout",
        message: String::new(),
    };
    let (before, row) = look().await;
    // A new kubeconfig comes, and the same replica looks again while the first look hangs.
    store::update(&mut connection, &row, None, time(Timestamp::now()))
        .await
        .unwrap();
    let write = async |connection: &mut sqlx::PgConnection, claim: Claim, health: &'static str| {
        store::seen(
            connection,
            row.id,
            claim,
            &seen(health),
            SignedDuration::from_mins(1),
        )
        .await
        .unwrap()
    };
    assert!(
        !write(&mut connection, before, "Unhealthy").await,
        "it lost its claim"
    );
    let (now, _) = look().await;
    assert!(
        !write(&mut connection, before, "Unhealthy").await,
        "the new one has it"
    );
    assert!(write(&mut connection, now, "Healthy").await);
    let health: String = sqlx::query_scalar("select health from clusters")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(health, "Healthy");
}

/// Passes bytes on in both directions. What is open can be made to go silent, as a connection does whose other end lost its
/// power; what comes later is passed on.
async fn wire(to: &str) -> (String, Arc<tokio::sync::Notify>) {
    let to = to.trim_start_matches("http://").to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let silence = Arc::new(tokio::sync::Notify::new());
    let cut = silence.clone();
    tokio::spawn(async move {
        while let Ok((mut outer, _)) = listener.accept().await {
            let (to, cut) = (to.clone(), cut.clone());
            tokio::spawn(async move {
                let mut inner = tokio::net::TcpStream::connect(to).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut outer, &mut inner) => {}
                    () = cut.notified() => std::future::pending().await,
                }
            });
        }
    });
    (url, silence)
}

#[tokio::test]
async fn a_connection_that_goes_silent_is_given_up_and_another_one_is_made() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_secs(1)).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let (url, silence) = wire(&cluster.url).await;
    let body = json!({"name": "c", "environment": "Dev", "kubeconfig": kubeconfig(&url, "t")});
    admin.post("/clusters", &body).await.expect(201);
    let asked = cluster.asked();
    until("it is looked at over a connection that is kept", async || {
        (cluster.asked() > asked + 8).then_some(())
    })
    .await;
    silence.notify_waiters();
    let is = async |health: &str, reason: &str| {
        until(health, async || {
            let got = admin.get("/clusters/c").await.expect(200).body;
            (got["healthStatus"] == health && got["healthReason"] == reason).then_some(())
        })
        .await;
    };
    is("Unhealthy", "Timeout").await;
    is("Healthy", "NodesReady").await;
    running.server.stop().await;
}

#[tokio::test]
async fn a_server_that_answers_without_end_holds_no_look_up() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_hours(1)).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    // Before the first look of the server, which sets the reader up.
    cluster.drips_nodes.store(true, Ordering::SeqCst);
    let pool = pool(&running.database_url).await;
    until("it is due", async || {
        let due = sqlx::query("update clusters set check_at = now() where check_holder is null")
            .execute(&pool)
            .await
            .unwrap();
        (due.rows_affected() == 1).then_some(())
    })
    .await;
    until("it is told, long before the lease ends", async || {
        let got = admin.get("/clusters/c").await.expect(200).body;
        (got["healthReason"] == "Timeout").then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn definitions_that_do_not_come_say_nothing_of_the_health() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_secs(1)).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    cluster.hides_definitions.store(true, Ordering::SeqCst);
    let got = admin
        .post("/clusters", &cluster.registration("large", "t"))
        .await
        .expect(201);
    assert_eq!(got.body["healthStatus"], "Healthy");
    assert_eq!(got.body.get("definitionsSeenAt"), None);
    let message = got.body["healthMessage"].as_str().unwrap();
    assert!(
        message.starts_with("1 node is ready; its definitions could not be read"),
        "{message}"
    );
    cluster.hides_definitions.store(false, Ordering::SeqCst);
    let health = async || admin.get("/clusters/large/health").await.expect(200).body;
    until("they were seen", async || {
        let shown = health().await;
        (shown["definitionsSeenAt"].is_string() && shown["message"] == "1 node is ready").then_some(())
    })
    .await;
    cluster.forbids_definitions.store(true, Ordering::SeqCst);
    until("why they cannot be read is told", async || {
        let shown = health().await;
        assert_eq!(shown["healthStatus"], "Healthy", "{shown}");
        assert!(shown["definitionsSeenAt"].is_string(), "{shown}");
        let message = shown["message"].as_str().unwrap();
        message
            .contains("need to read nodes and definitions")
            .then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn definitions_are_fetched_once_and_again_when_they_change() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_secs(1)).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let name = "things.example.com";
    let fetched = || cluster.fetched.load(Ordering::SeqCst);
    cluster.define(&definition(name, json!({})), &["v1"]);
    cluster.define(&definition("others.example.com", json!({})), &["v1"]);
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let body = json!({"schemaDefinition": definition(name, json!({})), "operatorVersion": "1.0.0"});
    let shown = admin.post("/crds", &body).await.expect(201).body;
    assert_eq!(shown["clusters"][0]["operatorVersion"], "1.0.0");
    assert_eq!(fetched(), 2);
    let asked = cluster.asked();
    until("it is looked at three times", async || {
        (cluster.asked() > asked + 9).then_some(())
    })
    .await;
    assert_eq!(fetched(), 2, "nothing changed");
    cluster.define(&definition(name, json!({"a": {"type": "string"}})), &["v1"]);
    until("the change is seen", async || {
        let shown = admin.get("/crds/things.example.com").await.expect(200).body;
        shown["clusters"][0]["operatorVersion"].is_null().then_some(())
    })
    .await;
    assert_eq!(fetched(), 3, "the one that changed");
    running.server.stop().await;
}

#[tokio::test]
async fn credentials_of_another_cluster_are_refused() {
    let running = Running::start().await;
    let admin = &running.admin;
    let (one, other) = (StandIn::start().await, StandIn::start().await);
    admin
        .post("/clusters", &one.registration("c", "t"))
        .await
        .expect(201);
    let renew = async |cluster: &StandIn| {
        let body = json!({"kubeconfig": cluster.kubeconfig("new")});
        admin.put("/clusters/c", &body).await
    };
    let refused = renew(&other).await.refused(409, "ANOTHER_CLUSTER");
    assert!(refused.text.contains("register that one"), "{}", refused.text);
    assert_eq!(
        admin.get("/clusters/c").await.expect(200).body["apiServerUrl"],
        one.url
    );
    renew(&one).await.expect(200);
    // The same cluster at another address.
    other
        .identity
        .lock()
        .unwrap()
        .clone_from(&one.identity.lock().unwrap());
    renew(&other).await.expect(200);
    running.server.stop().await;
}

#[tokio::test]
async fn a_look_that_is_yet_to_come_is_none_in_lists_too() {
    let running = Running::with(|settings| settings.health_interval = SignedDuration::from_hours(1)).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let pool = pool(&running.database_url).await;
    for (when, status, reason) in [
        ("now()", "Healthy", "NodesReady"),
        ("now() + interval '1 hour'", "Unknown", "NotChecked"),
        ("now() - interval '1 hour'", "Unknown", "NotChecked"),
    ] {
        let sql = format!("update clusters set checked_at = {when}");
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .execute(&pool)
            .await
            .unwrap();
        let path = format!("/clusters?healthStatus={status}");
        let listed = admin.get(&path).await.expect(200).body;
        assert_eq!(listed["total"], 1, "{when}: {listed}");
        assert_eq!(listed["clusters"][0]["healthReason"], reason);
        let health = admin.get("/clusters/c/health").await.expect(200).body;
        assert_eq!(
            (&health["healthStatus"], &health["reason"]),
            (&json!(status), &json!(reason))
        );
    }
    running.server.stop().await;
}

#[tokio::test]
async fn there_are_no_more_clusters_than_allowed() {
    let running = Running::with(|settings| settings.limits.clusters = 1).await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let register = async |name: &str| admin.post("/clusters", &cluster.registration(name, "t")).await;
    register("one").await.expect(201);
    let refused = register("two").await.refused(409, "CLUSTER_LIMIT_REACHED");
    assert!(refused.text.contains("1 clusters"), "{}", refused.text);
    admin.delete("/clusters/one").await.expect(204);
    register("two").await.expect(201);
    running.server.stop().await;
}
