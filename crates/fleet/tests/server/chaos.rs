//! The database killed under load, its disk full, clocks that jump. What was answered with success is there, once; the
//! chain is whole; all of it goes on by itself.

use std::{
    collections::BTreeSet,
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use super::support::{Asker, Running, charts::Repository, definition, kube::StandIn, settings, token};
use gantry_fleet::{
    Server,
    infrastructure::{
        keys::{Keys, LocalKeys},
        private_postgres::PrivatePostgres,
    },
    orchestrator::audit::verify,
};
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answered_write_is_lost_and_none_is_done_twice() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = super::support::open_folder();
    let path = folder.path().join("postgres");
    let mut postgres = PrivatePostgres::start(&path).await.unwrap();
    let url = postgres.url();
    let server = Server::start(settings(&url, folder.path())).await.unwrap();
    let asker = Asker::new(&server, Some(token("admin", Role::Admin)));
    let answered: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let enough = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (asker, answered, enough) = (asker.clone(), answered.clone(), enough.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    if enough.load(Ordering::SeqCst) {
                        return;
                    }
                    let name = format!("w{writer}n{number}s.example.com");
                    let body =
                        json!({"schemaDefinition": definition(&name, json!({})), "operatorVersion": "1.0.0"});
                    // As a good client does: the same request with the same key until it is answered.
                    loop {
                        let got = asker
                            .ask("post", "/crds", Some(&body), &[("idempotency-key", &name)])
                            .await;
                        match got.status {
                            201 => break,
                            503 | 409 => tokio::time::sleep(Duration::from_millis(50)).await,
                            other => panic!("{other}: {}", got.text),
                        }
                    }
                    answered.lock().unwrap().insert(name);
                }
            })
        })
        .collect();
    for _ in 0..2 {
        let before = answered.lock().unwrap().len();
        super::support::until("writes go on", async || {
            (answered.lock().unwrap().len() > before + 20).then_some(())
        })
        .await;
        let process = postgres.process().unwrap().to_string();
        let killed = std::process::Command::new("kill")
            .args(["-9", &process])
            .status()
            .unwrap();
        assert!(killed.success());
        tokio::time::sleep(Duration::from_millis(700)).await;
        asker.get("/operators").await.refused(503, "DATABASE_UNAVAILABLE");
        // Its children take a moment to notice, and keep another one from starting until then.
        drop(postgres);
        postgres = PrivatePostgres::start(&path).await.unwrap();
    }
    let before = answered.lock().unwrap().len();
    super::support::until("writes go on", async || {
        (answered.lock().unwrap().len() > before + 20).then_some(())
    })
    .await;
    enough.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    let pool = super::support::pool(&url).await;
    let kept: Vec<String> = sqlx::query_scalar("select name from crds order by name")
        .fetch_all(&pool)
        .await
        .unwrap();
    let kept: BTreeSet<String> = kept.into_iter().collect();
    assert_eq!(kept, *answered.lock().unwrap());
    let recorded: i64 = sqlx::query_scalar("select count(*) from audit where action = 'crd.registered'")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(recorded as usize, kept.len(), "each was done once");
    verify(&pool, &[], None).await.unwrap();
    pool.close().await;
    server.stop().await;
    postgres.stop().await;
}

/// A file system of its own, as small as that.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// None where only root may: then the test cannot be done, and anything else that keeps it from being done is a failure.
    fn mount(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=112m,mode=755", "tmpfs"])
            .arg(path)
            .output()
            .unwrap();
        if mounted.status.success() {
            return Some(Self(path.to_owned()));
        }
        let is_root = std::fs::metadata(path).unwrap().uid() == 0;
        let said = String::from_utf8_lossy(&mounted.stderr);
        assert!(!is_root, "no file system can be mounted here: {said}");
        None
    }

    fn fill(&self) {
        let mut ballast = std::fs::File::create(self.0.join("ballast")).unwrap();
        while ballast.write_all(&[7; 4096]).is_ok() {}
    }

    fn clear(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_no_success_and_when_there_is_room_again_it_goes_on() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = super::support::open_folder();
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk")) else {
        println!("NOT TESTED: a full disk, because only root may mount a file system");
        return;
    };
    let mut postgres = PrivatePostgres::start(&disk.0.join("postgres")).await.unwrap();
    let url = postgres.url();
    let server = Server::start(settings(&url, folder.path())).await.unwrap();
    let asker = Asker::new(&server, Some(token("admin", Role::Admin)));
    let kept = tokio::spawn(async move { postgres.keep().await });
    let mut answered = BTreeSet::new();
    let write = async |number: usize| -> (String, u16) {
        let name = format!("d{number}s.example.com");
        // Words that do not pack well, so that there is something to write.
        let word = |n: usize| format!("{:016x}", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let words: String = (0..800).map(|n| word(number * 1000 + n + 1)).collect();
        let properties = json!({"a": {"type": "string", "description": words}});
        let body = json!({"schemaDefinition": definition(&name, properties), "operatorVersion": "1.0.0"});
        let got = asker
            .ask("post", "/crds", Some(&body), &[("idempotency-key", &name)])
            .await;
        (name, got.status)
    };
    for number in 0..5 {
        let (name, status) = write(number).await;
        assert_eq!(status, 201);
        answered.insert(name);
    }
    disk.fill();
    let mut refused = 0;
    for number in 5..60 {
        let (name, status) = write(number).await;
        match status {
            201 => {
                answered.insert(name);
            }
            503 => refused += 1,
            other => panic!("{other}"),
        }
        if refused == 5 {
            break;
        }
    }
    assert_eq!(refused, 5, "a full disk refuses writes");
    disk.clear();
    super::support::until("writes go on", async || {
        let (name, status) = write(1000).await;
        (status == 201).then(|| answered.insert(name))
    })
    .await;
    let pool = super::support::pool(&url).await;
    let stored: Vec<String> = sqlx::query_scalar("select name from crds")
        .fetch_all(&pool)
        .await
        .unwrap();
    let stored: BTreeSet<String> = stored.into_iter().collect();
    assert!(answered.is_subset(&stored), "{:?}", answered.difference(&stored));
    let recorded: i64 = sqlx::query_scalar("select count(*) from audit where action = 'crd.registered'")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(recorded as usize, stored.len(), "each was done once");
    verify(&pool, &[], None).await.unwrap();
    pool.close().await;
    server.stop().await;
    kept.abort();
    let _ = kept.await;
}

#[tokio::test]
async fn a_clock_that_jumps_neither_stops_the_looks_nor_locks_anybody_out() {
    let offset = Arc::new(AtomicI64::new(0));
    let clock = offset.clone();
    let running = Running::with(|settings| {
        settings.health_interval = SignedDuration::from_secs(1);
        settings.rates.write = 600;
        settings.clock =
            Arc::new(move || Timestamp::now() + SignedDuration::from_secs(clock.load(Ordering::SeqCst)));
    })
    .await;
    let cluster = StandIn::start().await;
    let (admin, stranger) = (&running.admin, running.asker(None));
    let person = json!({"username": "jo", "password": "correct horse battery staple"});
    let mut user = person.clone();
    user["roles"] = json!(["Viewer"]);
    admin.post("/users", &user).await.expect(201);
    // Tokens count for an hour, by the clock that they were made by.
    let log_in = async || {
        let got = stranger.post("/authentication/login", &person).await.expect(200);
        running.asker(got.body["token"].as_str().map(str::to_owned))
    };
    let first = log_in().await;
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    for (turn, hours) in [6, 0, -6, 0].into_iter().enumerate() {
        offset.store(hours * 3600, Ordering::SeqCst);
        log_in().await.get("/clusters").await.expect(200);
        let got = first.get("/clusters").await;
        if hours > 0 {
            let got = got.refused(401, "UNAUTHORIZED");
            assert!(got.text.contains("has expired"), "{}", got.text);
        } else {
            got.expect(200);
        }
        let asked = cluster.asked();
        super::support::until("it is looked at again", async || {
            (cluster.asked() > asked + 6).then_some(())
        })
        .await;
        // Looks are dated by the database, whatever the server takes the time for.
        let got = admin.get("/clusters/c").await.expect(200).body;
        assert!(is_recent(&got["lastHealthCheckAt"]), "{got}");
        assert_eq!(got["healthStatus"], "Healthy");
        let name = format!("t{turn}s.example.com");
        let body = json!({"schemaDefinition": definition(&name, json!({})), "operatorVersion": "1.0.0"});
        admin.post("/crds", &body).await.expect(201);
    }
    let pool = super::support::pool(&running.database_url).await;
    verify(&pool, &[], None).await.unwrap();
    running.server.stop().await;
}

fn is_recent(at: &Value) -> bool {
    let at: Timestamp = at.as_str().unwrap().parse().unwrap();
    at.duration_since(Timestamp::now()).abs() < SignedDuration::from_mins(1)
}

#[tokio::test]
async fn replicas_whose_clocks_differ_share_the_work_all_the_same() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    for hours in [1, -1] {
        let folder = tempfile::tempdir().unwrap();
        let url = super::support::database().await;
        let key = super::support::key_line();
        let replica = async |hours: i64| {
            let mut settings = settings(&url, folder.path());
            settings.keys = Keys::local(LocalKeys::parse(&key).unwrap());
            settings.health_interval = SignedDuration::from_secs(1);
            settings.refresh_interval = SignedDuration::from_secs(1);
            settings.clock = Arc::new(move || Timestamp::now() + SignedDuration::from_hours(hours));
            Server::start(settings).await.unwrap()
        };
        let (right, wrong) = (replica(0).await, replica(hours).await);
        let (cluster, repository) = (StandIn::start().await, Repository::start().await);
        repository.chart("widget", "1.0.0", &[]);
        // Both by the one whose clock is wrong: what it writes is what the other one has to live with.
        let theirs = Asker::new(&wrong, Some(token("admin", Role::Admin)));
        let body = json!({
            "name": "widget", "namespace": "ops", "chartRepository": repository.url, "chartName": "widget",
        });
        theirs.post("/operators", &body).await.expect(201);
        let got = theirs
            .post("/clusters", &cluster.registration("c", "t"))
            .await
            .expect(201);
        assert!(is_recent(&got.body["lastHealthCheckAt"]), "{}", got.text);
        // The first one is the registration's.
        let gaps = |times: &Mutex<Vec<Instant>>| -> Vec<Duration> {
            let times = times.lock().unwrap();
            times[1..].windows(2).map(|two| two[1] - two[0]).collect()
        };
        super::support::until("there were looks and visits again and again", async || {
            let often = |times| gaps(times).len() >= 5;
            (often(&cluster.looks) && often(&repository.visits)).then_some(())
        })
        .await;
        // A second after the last one, or a tenth earlier, whoever is at it: sooner, somebody was at it besides.
        for gaps in [gaps(&cluster.looks), gaps(&repository.visits)] {
            let shortest = gaps.iter().min().unwrap();
            assert!(*shortest >= Duration::from_millis(880), "{hours} h: {gaps:?}");
        }
        // What people are told is the same wherever they ask.
        for server in [&right, &wrong] {
            let asker = Asker::new(server, Some(token("admin", Role::Admin)));
            let got = asker.get("/clusters?healthStatus=Healthy").await.expect(200).body;
            assert_eq!(got["total"], 1, "{hours} h: {got}");
            let got = asker.get("/clusters/c").await.expect(200).body;
            assert_eq!(got["healthStatus"], "Healthy", "{hours} h: {got}");
            assert!(
                is_recent(&got["lastHealthCheckAt"]) && is_recent(&got["healthSince"]),
                "{got}"
            );
        }
        right.stop().await;
        wrong.stop().await;
    }
}
