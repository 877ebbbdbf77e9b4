//! Every use of a cluster is in the audit log: what opens credentials at once, looks with a token that is at hand by the
//! hour, each of them once, whoever writes them and whatever happens on the way.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use gantry_fleet::{
    infrastructure::store::{accesses as store, time},
    orchestrator::{accesses, audit::verify, deployer, reach},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sqlx::PgPool;

use super::support::{Running, kube::StandIn, pool, until};

/// A server whose clock can be put forward, and which looks at clusters when it is told to.
async fn started() -> (Running, Arc<AtomicI64>) {
    let offset = Arc::new(AtomicI64::new(0));
    let clock = offset.clone();
    let running = Running::with(|settings| {
        settings.health_interval = SignedDuration::from_secs(1);
        settings.clock =
            Arc::new(move || Timestamp::now() + SignedDuration::from_secs(clock.load(Ordering::SeqCst)));
    })
    .await;
    (running, offset)
}

/// How often a cluster was looked at, and how often in vain, as it is counted now.
async fn counted(pool: &PgPool) -> (i64, i64) {
    sqlx::query_as(
        "select coalesce(sum(count), 0)::bigint, coalesce(sum(failures), 0)::bigint from cluster_accesses",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}

/// The same, as the log has it, and by how many entries.
async fn logged(running: &Running) -> (i64, i64, usize) {
    let got = running
        .admin
        .get("/audit?action=cluster.accessed&limit=100")
        .await
        .expect(200);
    let hours: Vec<&Value> = got.body["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["details"])
        .filter(|details| details["count"].is_i64())
        .collect();
    let sum = |field: &str| hours.iter().map(|details| details[field].as_i64().unwrap()).sum();
    (sum("count"), sum("failures"), hours.len())
}

#[tokio::test]
async fn looks_are_counted_before_they_take_place_and_logged_when_their_hour_is_over() {
    let (running, offset) = started().await;
    let (cluster, pool) = (StandIn::start().await, pool(&running.database_url).await);
    running
        .admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    until("three looks are counted", async || {
        (counted(&pool).await.0 >= 3).then_some(())
    })
    .await;
    // One that never gets an answer is counted while it waits.
    cluster.mood(super::support::kube::HANG);
    let (before, asked) = (counted(&pool).await.0, cluster.asked());
    until("a look hangs", async || (cluster.asked() > asked).then_some(())).await;
    assert!(counted(&pool).await.0 > before);
    until("it is counted as a failure", async || {
        (counted(&pool).await.1 >= 1).then_some(())
    })
    .await;
    assert_eq!(logged(&running).await.2, 0, "the hour is not over");
    // No more looks, and then two hours later.
    let disabled = serde_json::json!({"isEnabled": false});
    running.admin.put("/clusters/c", &disabled).await.expect(200);
    let mut total = counted(&pool).await;
    until("no look is left", async || {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let now = counted(&pool).await;
        let quiet = now == total;
        total = now;
        quiet.then_some(())
    })
    .await;
    accesses::close_hours(&running.server.fleet).await.unwrap();
    assert_eq!(counted(&pool).await, total, "the hour is still not over");
    offset.store(2 * 3600, Ordering::SeqCst);
    // Somebody who begins with it and dies loses nothing.
    let mut dies = pool.begin().await.unwrap();
    let now = running.server.fleet.now();
    let taken = store::take_over(
        &mut dies,
        time(now - SignedDuration::from_hours(1)),
        time(now + SignedDuration::from_hours(1)),
        100,
    )
    .await
    .unwrap();
    assert!(!taken.is_empty());
    dies.rollback().await.unwrap();
    // Several at once: each row is logged once.
    let fleet = &running.server.fleet;
    let all = futures::future::join_all((0..4).map(|_| accesses::close_hours(fleet))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    let (count, failures, entries) = logged(&running).await;
    assert_eq!((count, failures), total);
    assert_eq!(entries, taken.len());
    assert_eq!(counted(&pool).await, (0, 0));
    verify(&pool, &[], None).await.unwrap();
    running.server.stop().await;
}

#[tokio::test]
async fn what_was_counted_of_a_cluster_is_logged_when_it_is_removed() {
    let (running, _) = started().await;
    let (cluster, pool) = (StandIn::start().await, pool(&running.database_url).await);
    let body = cluster.registration("c", "t");
    let made = running.admin.post("/clusters", &body).await.expect(201);
    let id = made.body["clusterId"].as_str().unwrap();
    until("looks are counted", async || {
        (counted(&pool).await.0 >= 2).then_some(())
    })
    .await;
    let entries = async || {
        let path = format!("/audit?action=cluster.accessed&targetId={id}");
        let got = running.admin.get(&path).await.expect(200).body;
        let details = got["entries"].as_array().unwrap().iter();
        (
            got["total"].as_i64().unwrap(),
            details.filter(|entry| !entry["details"].is_null()).count(),
        )
    };
    let (before, with_details) = entries().await;
    assert!(
        before >= 2 && with_details >= 2,
        "the registration, and the reader"
    );
    running.admin.delete("/clusters/c").await.expect(204);
    let (after, with_details) = entries().await;
    assert!(
        after > before + 1,
        "the removal and the hour: {before} and {after}"
    );
    assert_eq!(with_details, 0, "they are erased with the cluster");
    assert_eq!(counted(&pool).await, (0, 0));
    verify(&pool, &[], None).await.unwrap();
    running.server.stop().await;
}

#[tokio::test]
async fn nobody_reaches_a_cluster_unseen() {
    let (running, _) = started().await;
    let (cluster, pool) = (StandIn::start().await, pool(&running.database_url).await);
    // A registration that fails is there with who tried it, and where.
    cluster.mood(500);
    let body = cluster.registration("c", "t");
    running
        .admin
        .post("/clusters", &body)
        .await
        .refused(503, "CLUSTER_UNREACHABLE");
    let got = running
        .admin
        .get("/audit?action=cluster.accessed")
        .await
        .expect(200);
    let [failed, begun] = [0, 1].map(|place| got.body["entries"][place].clone());
    for (entry, outcome) in [(&failed, "Failed"), (&begun, "Begun")] {
        assert_eq!(
            (&entry["actor"], &entry["outcome"]),
            (&"admin".into(), &outcome.into())
        );
        assert_eq!(entry["details"]["purpose"], "registration");
        assert_eq!(entry["details"]["server"], cluster.url.as_str());
        assert_eq!(entry["details"]["access"], begun["details"]["access"]);
        assert_eq!(entry["targetId"], begun["targetId"]);
    }
    assert_eq!(failed["details"]["reason"], "ApiError");
    assert_eq!(failed["traceId"], begun["traceId"]);
    cluster.mood(200);
    let made = running.admin.post("/clusters", &body).await.expect(201);
    let id = made.body["clusterId"].as_str().unwrap().parse().unwrap();
    until("it is looked at", async || {
        (counted(&pool).await.0 > 0).then_some(())
    })
    .await;
    // What cannot be counted does not take place.
    sqlx::query("alter table cluster_accesses rename to away")
        .execute(&pool)
        .await
        .unwrap();
    let fleet = &running.server.fleet;
    let refused = reach::reader(fleet, id, "health", None).await.err().unwrap();
    assert_eq!(refused.reason, "DatabaseUnavailable");
    // That is our trouble: the cluster stays what it was.
    let due = "update clusters set check_at = now() - interval '1 second'";
    sqlx::query(due).execute(&pool).await.unwrap();
    until("a look was tried", async || {
        sqlx::query_scalar("select check_at > now() from clusters")
            .fetch_one(&pool)
            .await
            .unwrap_or(false)
            .then_some(())
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let cluster = running.admin.get("/clusters/c").await.expect(200);
    assert_eq!(cluster.body["healthStatus"], "Healthy", "{}", cluster.text);
    running.server.stop().await;
}

/// Outcomes of the accesses with what was uploaded for that purpose, the newest first.
async fn outcomes(running: &Running, purpose: &str) -> Vec<String> {
    let got = running
        .admin
        .get("/audit?action=cluster.accessed&limit=100")
        .await;
    let entries = got.expect(200).body["entries"].as_array().unwrap().clone();
    let those = entries
        .iter()
        .filter(|entry| entry["details"]["identity"] == "uploaded" && entry["details"]["purpose"] == purpose);
    those
        .map(|entry| entry["outcome"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn what_failed_is_not_said_to_have_succeeded() {
    let running = Running::start().await;
    let cluster = StandIn::start().await;
    let body = cluster.registration("c", "t");
    let made = running.admin.post("/clusters", &body).await.expect(201);
    assert_eq!(outcomes(&running, "registration").await, ["Begun"]);
    let id = made.body["clusterId"].as_str().unwrap().parse().unwrap();
    let disabled = serde_json::json!({"isEnabled": false});
    running.admin.put("/clusters/c", &disabled).await.expect(200);
    let fleet = &running.server.fleet;
    let failed = async || {
        let got = running.admin.get("/audit?outcome=Failed&action=cluster.").await;
        got.expect(200).body["total"].as_u64().unwrap()
    };
    // The reader: a renewal that works, and one that does not.
    fleet.connections.forget(id);
    reach::reader(fleet, id, "proof", None).await.map(drop).unwrap();
    assert_eq!(outcomes(&running, "proof").await, ["Begun"]);
    assert_eq!(failed().await, 0);
    fleet.connections.forget(id);
    cluster.no_tokens.store(true, Ordering::SeqCst);
    assert!(reach::reader(fleet, id, "proof", None).await.is_err());
    assert_eq!(outcomes(&running, "proof").await, ["Failed", "Begun", "Begun"]);
    assert_eq!(failed().await, 1);
    // New credentials.
    cluster.mood(401);
    let change = serde_json::json!({"kubeconfig": cluster.kubeconfig("other")});
    let refused = running.admin.put("/clusters/c", &change).await;
    refused.refused(503, "CLUSTER_UNREACHABLE");
    assert_eq!(outcomes(&running, "new credentials").await, ["Failed", "Begun"]);
    cluster.mood(200);
    // The deployer: whether it was bound is told by its own entries as well.
    let deployment = uuid::Uuid::new_v4();
    let hour = SignedDuration::from_hours(1);
    assert!(deployer::lend(fleet, id, deployment, hour).await.is_err());
    assert_eq!(outcomes(&running, "deployment").await, ["Failed", "Begun"]);
    cluster.no_tokens.store(false, Ordering::SeqCst);
    deployer::lend(fleet, id, deployment, hour)
        .await
        .map(drop)
        .unwrap();
    let bound = running
        .admin
        .get("/audit?action=cluster.deployer-bound&order=asc")
        .await
        .expect(200);
    let bound: Vec<&str> = bound.body["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(bound, ["Begun", "Failed", "Begun"]);
    let begun = running.admin.get("/audit?outcome=Begun&limit=1").await;
    assert!(begun.expect(200).body["total"].as_u64().unwrap() >= 7);
    verify(&pool(&running.database_url).await, &[], None)
        .await
        .unwrap();
    running.server.stop().await;
}

#[tokio::test]
async fn a_cluster_that_is_away_does_not_fill_the_log() {
    let (running, _) = started().await;
    let (cluster, pool) = (StandIn::start().await, pool(&running.database_url).await);
    let body = cluster.registration("c", "t");
    running.admin.post("/clusters", &body).await.expect(201);
    let looks = async |identity: &str| -> (i64, i64) {
        sqlx::query_as(
            "select coalesce(sum(count), 0)::bigint, coalesce(sum(failures), 0)::bigint from cluster_accesses
             where identity = $1 and purpose = 'health'",
        )
        .bind(identity)
        .fetch_one(&pool)
        .await
        .unwrap()
    };
    let is = async |health: &str| {
        until(health, async || {
            let got = running.admin.get("/clusters/c").await.expect(200).body;
            (got["healthStatus"] == health).then_some(())
        })
        .await;
    };
    let works = async || {
        cluster.mood(200);
        is("Healthy").await;
    };
    let tokens = || {
        let written = cluster.written.lock().unwrap();
        written.iter().filter(|line| line.ends_with("/token")).count()
    };
    until("the reader looks", async || {
        (looks("reader").await.0 >= 2).then_some(())
    })
    .await;
    assert_eq!(outcomes(&running, "health").await, ["Begun"]);
    // It is there and does not work: the token is as good as before.
    let before = (looks("reader").await.1, tokens());
    cluster.mood(503);
    until("looks fail", async || {
        (looks("reader").await.1 >= before.0 + 3).then_some(())
    })
    .await;
    works().await;
    assert_eq!(tokens(), before.1);
    assert_eq!(outcomes(&running, "health").await, ["Begun"]);
    // It takes neither the token nor what was uploaded: that is told, and what follows is counted.
    cluster.mood(401);
    until("more tries fail", async || {
        (looks("uploaded").await.1 >= 3).then_some(())
    })
    .await;
    assert_eq!(outcomes(&running, "health").await, ["Failed", "Begun", "Begun"]);
    let (count, failures) = looks("uploaded").await;
    assert!(count >= failures, "{count}, {failures}");
    works().await;
    assert!(tokens() > before.1);
    // The next time is told again.
    cluster.mood(401);
    is("Unhealthy").await;
    until("it is told", async || {
        (outcomes(&running, "health").await == ["Failed", "Begun", "Failed", "Begun", "Begun"]).then_some(())
    })
    .await;
    running.server.stop().await;
}

#[tokio::test]
async fn a_token_is_not_used_for_longer_because_a_clock_was_put_back() {
    let (running, offset) = started().await;
    let cluster = StandIn::start().await;
    let body = cluster.registration("c", "t");
    let made = running.admin.post("/clusters", &body).await.expect(201);
    let id = made.body["clusterId"].as_str().unwrap().parse().unwrap();
    let disabled = serde_json::json!({"isEnabled": false});
    running.admin.put("/clusters/c", &disabled).await.expect(200);
    let fleet = &running.server.fleet;
    let tokens = || {
        let written = cluster.written.lock().unwrap();
        written.iter().filter(|line| line.ends_with("/token")).count()
    };
    fleet.connections.forget(id);
    let before = tokens();
    for _ in 0..3 {
        reach::reader(fleet, id, "health", None).await.map(drop).unwrap();
    }
    assert_eq!(tokens(), before + 1, "one for all");
    // By the old clock it would last for another day.
    offset.store(-24 * 3600, Ordering::SeqCst);
    for _ in 0..3 {
        reach::reader(fleet, id, "health", None).await.map(drop).unwrap();
    }
    assert_eq!(tokens(), before + 2, "and a new one after the clock was put back");
    running.server.stop().await;
}
