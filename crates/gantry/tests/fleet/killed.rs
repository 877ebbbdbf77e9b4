//! Replicas that die without a word: at work on clusters, and in the middle of a registration.

use std::time::{Duration, Instant};

use gantry_fleet::orchestrator::audit::verify;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sqlx::{Executor, PgPool};
use uuid::Uuid;

use super::{
    process::Process,
    support::{
        Asker, Got,
        charts::Repository,
        database, key_line,
        kube::{HANG, StandIn},
        pool, until,
    },
};

/// What a look at a cluster is claimed for.
const LEASE: SignedDuration = SignedDuration::from_secs(60);

/// Asks until the answer is right, for as long as a lease can take.
async fn in_a_lease<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    while begin.elapsed() < LEASE.unsigned_abs() + Duration::from_secs(10) {
        if let Some(value) = attempt().await {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("still not so after a lease: {what}");
}

async fn checked_at(admin: &Asker, name: &str) -> Timestamp {
    let got = admin.get(&format!("/clusters/{name}")).await.expect(200).body;
    got["lastHealthCheckAt"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_replica_was_at_is_taken_over_within_its_lease() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let start = async || Process::start(&url, &key, folder.path(), &[]).await;
    let (one, two) = (start().await, start().await);
    let pool = pool(&url).await;
    let mut clusters = Vec::new();
    for number in 0..5 {
        let cluster = StandIn::start().await;
        let body = cluster.registration(&format!("c-{number}"), "t");
        one.admin().post("/clusters", &body).await.expect(201);
        clusters.push(cluster);
    }
    let repository = Repository::start().await;
    repository.chart("widget", "1.0.0", &[]);
    let operator = json!({
        "name": "widget", "namespace": "w", "chartRepository": repository.url, "chartName": "widget",
    });
    one.admin().post("/operators", &operator).await.expect(201);
    until("its chart is read", async || {
        let got = two.admin().get("/operators/widget/versions").await.body;
        (got["versions"][0]["crdDiscovery"] == "Discovered").then_some(())
    })
    .await;

    // One hangs, so that whoever looks at it holds it.
    clusters[0].mood(HANG);
    let held = async || -> Option<Uuid> {
        sqlx::query_scalar("select check_holder from clusters where name = 'c-0'")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let holder = until("somebody is at it", held).await;
    let (victim, survivor) = if holder == one.replica {
        (one, two)
    } else {
        (two, one)
    };
    assert_eq!(victim.replica, holder);
    victim.kill().await;
    let killed = Timestamp::now();
    clusters[0].mood(200);
    let free_at: jiff_sqlx::Timestamp =
        sqlx::query_scalar("select check_at from clusters where name = 'c-0' and check_holder = $1")
            .bind(holder)
            .fetch_one(&pool)
            .await
            .unwrap();
    let free_at: Timestamp = free_at.into();
    assert!(free_at <= killed + LEASE, "{free_at}");

    // An operator whose repository the dead one was visiting, shortly before its claim ends.
    repository.chart("widget", "1.1.0", &[]);
    sqlx::query("update operators set refresh_holder = $1, refresh_at = now() + interval '2 seconds'")
        .bind(holder)
        .execute(&pool)
        .await
        .unwrap();

    let admin = survivor.admin();
    // Those that it was not at go on, each once in its interval: three questions a look.
    in_a_lease("the others are looked at", async || {
        for number in 1..5 {
            if checked_at(&admin, &format!("c-{number}")).await <= killed {
                return None;
            }
        }
        Some(())
    })
    .await;
    let (before, begin): (Vec<usize>, _) = (clusters.iter().map(StandIn::asked).collect(), Instant::now());
    in_a_lease("the new version is found", async || {
        let got = admin.get("/operators/widget").await.expect(200).body;
        (got["latestVersion"] == "1.1.0").then_some(())
    })
    .await;
    in_a_lease("the one that it was at is taken over", async || {
        (checked_at(&admin, "c-0").await > killed).then_some(())
    })
    .await;
    let taken = checked_at(&admin, "c-0").await;
    assert!(
        taken >= free_at - SignedDuration::from_secs(1),
        "not before its lease has ended: {taken}, {free_at}"
    );
    assert!(
        taken <= killed + LEASE + SignedDuration::from_secs(10),
        "{taken}, killed at {killed}"
    );
    let seconds = begin.elapsed().as_secs_f64();
    for (cluster, before) in clusters.iter().zip(&before) {
        // And a few more where the survivor had to connect.
        let (asked, most) = (cluster.asked() - before, seconds * 4.5 + 6.0);
        assert!(
            asked as f64 <= most,
            "{asked} questions in {seconds:.0} s: doubled"
        );
    }
    until("nothing is held by the dead one", async || {
        let left: i64 = sqlx::query_scalar(
            "select (select count(*) from clusters where check_holder = $1)
                  + (select count(*) from operators where refresh_holder = $1)",
        )
        .bind(holder)
        .fetch_one(&pool)
        .await
        .unwrap();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(admin.get("/clusters/c-0").await.body["healthStatus"], "Healthy");
    verify(&pool, &[], None).await.unwrap();
    survivor.stop().await;
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// While the cluster is asked.
    Asking,
    /// In the transaction, before anything is written.
    Writing,
    /// In the commit: the database does it, and nobody hears of it.
    Committing,
}

const SLOW_COMMIT: &str = "
    create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(3); return null; end $$;
    create constraint trigger slow after insert on clusters deferrable initially deferred
        for each row execute function slow();
    create constraint trigger slow after insert on operators deferrable initially deferred
        for each row execute function slow();";
const USUAL_COMMIT: &str = "drop function slow cascade";

/// Repeats a request as a good client does.
async fn repeated(admin: &Asker, path: &str, body: &Value, key: &str) -> Got {
    until("it is answered", async || {
        let got = admin
            .ask("post", path, Some(body), &[("idempotency-key", key)])
            .await;
        (got.status != 409 && got.status != 503).then_some(got)
    })
    .await
}

/// Somebody waits for this with a statement that begins so.
async fn waits(pool: &PgPool, event: &str, statement: &str) {
    until(event, async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
             where datname = current_database() and wait_event = $1 and starts_with(lower(query), $2)",
        )
        .bind(event)
        .bind(statement)
        .fetch_one(pool)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_whose_server_is_killed_is_done_once_when_it_is_repeated() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let start = async || Process::start(&url, &key, folder.path(), &[]).await;
    let survivor = start().await;
    let (admin, pool) = (survivor.admin(), pool(&url).await);
    let repository = Repository::start().await;
    repository.chart("widget", "1.0.0", &[]);
    let operator = |name: &str| json!({"name": name, "namespace": "w", "chartRepository": repository.url, "chartName": "widget"});
    for (number, (table, moment)) in [
        ("clusters", Moment::Asking),
        ("clusters", Moment::Writing),
        ("clusters", Moment::Committing),
        ("operators", Moment::Writing),
        ("operators", Moment::Committing),
    ]
    .into_iter()
    .enumerate()
    {
        let (name, path) = (format!("n-{number}"), format!("/{table}"));
        let cluster = StandIn::start().await;
        let body = match table {
            "clusters" => cluster.registration(&name, "t"),
            _ => operator(&name),
        };
        let victim = start().await;
        let mut door = pool.begin().await.unwrap();
        match moment {
            Moment::Asking => cluster.mood(HANG),
            Moment::Writing => {
                let lock = format!("lock table {table} in exclusive mode");
                door.execute(sqlx::AssertSqlSafe(lock)).await.unwrap();
            }
            Moment::Committing => {
                pool.execute(SLOW_COMMIT).await.unwrap();
            }
        }
        let asked = {
            let (asker, path, body, name) = (victim.admin(), path.clone(), body.clone(), name.clone());
            tokio::spawn(async move {
                let key = [("idempotency-key", name.as_str())];
                asker.try_ask("post", &path, Some(&body), &key).await
            })
        };
        match moment {
            Moment::Asking => {
                until("the cluster is asked", async || {
                    (cluster.asked() > 0).then_some(())
                })
                .await;
            }
            Moment::Writing => waits(&pool, "relation", &format!("insert into {table}")).await,
            Moment::Committing => waits(&pool, "PgSleep", "commit").await,
        }
        victim.kill().await;
        assert!(asked.await.unwrap().is_err(), "{moment:?}: nobody has answered");
        door.rollback().await.unwrap();
        cluster.mood(200);
        let got = repeated(&admin, &path, &body, &name).await.expect(201);
        let is_known = moment == Moment::Committing;
        assert_eq!(
            got.header("idempotency-replayed") == "true",
            is_known,
            "{table} {moment:?}"
        );
        if is_known {
            pool.execute(USUAL_COMMIT).await.unwrap();
        }
        let again = repeated(&admin, &path, &body, &name).await.expect(201);
        assert_eq!(again.text, got.text, "{table} {moment:?}");
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select count(*) from {table} where name = $1"
        )))
        .bind(&name)
        .fetch_one(&pool)
        .await
        .unwrap();
        assert_eq!(rows, 1, "{table} {moment:?}");
    }
    let recorded: Vec<(String, i64)> = sqlx::query_as(
        "select action, count(*) from audit where action like '%.registered' group by 1 order by 1",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    assert_eq!(
        recorded,
        [
            ("cluster.registered".to_owned(), 3),
            ("operator.registered".to_owned(), 2)
        ]
    );
    verify(&pool, &[], None).await.unwrap();
    survivor.stop().await;
}
