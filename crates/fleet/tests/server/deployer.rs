//! The right to deploy is lent to one deployment at a time, and comes back whatever happens to the borrower.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use super::support::{Running, kube::StandIn, pool, until};
use gantry_fleet::{
    infrastructure::store::deployers as store,
    orchestrator::{deployer, reach},
};
use jiff::{SignedDuration, Timestamp};
use sqlx::PgPool;
use uuid::Uuid;

async fn with_cluster() -> (Running, StandIn, Uuid) {
    with_clock(Arc::default()).await
}

/// Its clock is so many seconds ahead.
async fn with_clock(ahead: Arc<AtomicI64>) -> (Running, StandIn, Uuid) {
    let running = Running::with(|settings| {
        settings.clock =
            Arc::new(move || Timestamp::now() + SignedDuration::from_secs(ahead.load(Ordering::SeqCst)));
    })
    .await;
    let cluster = StandIn::start().await;
    let made = running
        .admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let id = made.body["clusterId"].as_str().unwrap().parse().unwrap();
    (running, cluster, id)
}

#[tokio::test]
async fn it_is_lent_to_one_at_a_time_and_audited() {
    let (running, cluster, id) = with_cluster().await;
    let fleet = &running.server.fleet;
    let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
    let hour = SignedDuration::from_hours(1);
    let lent = deployer::lend(fleet, id, one, hour).await.unwrap();
    assert_eq!(lent.kubeconfig["users"][0]["user"]["token"], "short-lived");
    assert!(lent.renew_at > fleet.now());
    assert!(cluster.has_written("PATCH clusterrolebindings/gantry-fleet-deployer-"));
    let refused = deployer::lend(fleet, id, two, hour).await.err().unwrap();
    assert!(refused.to_string().contains(&one.to_string()), "{refused}");
    // Somebody who does not have it takes nothing back.
    deployer::take_back(fleet, id, two).await.unwrap();
    assert!(!cluster.has_written("DELETE clusterrolebindings"));
    // The same one again: another token, and no second loan.
    deployer::lend(fleet, id, one, hour).await.unwrap();
    deployer::take_back(fleet, id, one).await.unwrap();
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
    assert!(cluster.has_written("DELETE serviceaccounts/gantry-fleet-deployer-"));
    deployer::lend(fleet, id, two, hour).await.unwrap();
    let audit = running.admin.get("/audit?action=cluster.deployer-unbound").await;
    assert_eq!(audit.expect(200).body["total"], 1);
    let audit = running.admin.get("/audit?action=cluster.deployer-bound").await;
    assert_eq!(audit.expect(200).body["total"], 3);
    running.server.stop().await;
}

#[tokio::test]
async fn whoever_takes_an_old_one_back_takes_nothing_from_the_next() {
    let (running, cluster, id) = with_cluster().await;
    let fleet = &running.server.fleet;
    let short = |deployment: Uuid| deployment.simple().to_string()[..12].to_owned();
    let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
    let hour = SignedDuration::from_hours(1);
    for deployment in [one, two] {
        deployer::lend(fleet, id, deployment, hour).await.unwrap();
        assert!(cluster.has_written(&format!(
            "PATCH clusterrolebindings/gantry-fleet-deployer-{}",
            short(deployment)
        )));
        if deployment == one {
            deployer::take_back(fleet, id, one).await.unwrap();
        }
    }
    assert!(!cluster.has_written(&format!(
        "DELETE clusterrolebindings/gantry-fleet-deployer-{}",
        short(two)
    )));
    // With the registration it goes, whoever has it.
    running.admin.delete("/clusters/c").await.expect(204);
    assert!(cluster.has_written(&format!(
        "DELETE clusterrolebindings/gantry-fleet-deployer-{}",
        short(two)
    )));
    running.server.stop().await;
}

#[tokio::test]
async fn what_nobody_renews_is_taken_back() {
    let (running, cluster, id) = with_cluster().await;
    let fleet = &running.server.fleet;
    deployer::lend(fleet, id, Uuid::new_v4(), SignedDuration::from_millis(1))
        .await
        .unwrap();
    cluster.mood(503);
    deployer::sweep(fleet).await.unwrap();
    let pool = pool(&running.database_url).await;
    let noted = async || -> i64 {
        sqlx::query_scalar("select count(*) from deployers")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    assert_eq!(
        noted().await,
        1,
        "the cluster did not answer, so it may still be bound"
    );
    cluster.mood(200);
    until("it is taken back", async || {
        due(&pool).await;
        deployer::sweep(fleet).await.unwrap();
        (noted().await == 0).then_some(())
    })
    .await;
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
    running.server.stop().await;
}

/// The next try does not have to be waited for.
async fn due(pool: &PgPool) {
    sqlx::query("update deployers set try_at = now()")
        .execute(pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn what_cannot_be_taken_back_is_tried_by_one_replica_and_ever_more_seldom() {
    let (running, cluster, id) = with_cluster().await;
    let fleet = &running.server.fleet;
    let pool = pool(&running.database_url).await;
    deployer::lend(fleet, id, Uuid::new_v4(), SignedDuration::from_millis(1))
        .await
        .unwrap();
    cluster.mood(503);
    let recorded = async || -> Vec<String> {
        sqlx::query_scalar(
            "select a.outcome from audit a join audit_details d on d.seq = a.seq
             where d.details::jsonb->>'purpose' = 'end of deployment' order by a.seq",
        )
        .fetch_all(&pool)
        .await
        .unwrap()
    };
    let state = async || -> (i32, f64) {
        sqlx::query_as("select tries, extract(epoch from try_at - now())::float8 from deployers")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    // As replicas do.
    let all = futures::future::join_all((0..4).map(|_| deployer::sweep(fleet))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    let (tries, pause) = state().await;
    assert_eq!(tries, 1, "one of them");
    assert!((1.0..61.0).contains(&pause), "{pause}");
    assert_eq!(recorded().await, ["Begun", "Failed"]);
    for _ in 0..5 {
        due(&pool).await;
        deployer::sweep(fleet).await.unwrap();
    }
    let (tries, pause) = state().await;
    assert_eq!(tries, 6);
    assert!((500.0..601.0).contains(&pause), "{pause}");
    assert_eq!(recorded().await, ["Begun", "Failed"], "the others are counted");
    let counted: (i64, i64) = sqlx::query_as(
        "select sum(count)::bigint, sum(failures)::bigint from cluster_accesses
         where identity = 'uploaded' and purpose = 'end of deployment'",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(counted, (5, 5));
    cluster.mood(200);
    due(&pool).await;
    deployer::sweep(fleet).await.unwrap();
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
    running.server.stop().await;
}

#[tokio::test]
async fn a_cluster_whose_deployer_cannot_be_taken_away_is_not_removed_unless_it_is_asked_for() {
    let (running, cluster, id) = with_cluster().await;
    let (fleet, admin) = (&running.server.fleet, &running.admin);
    let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
    let hour = SignedDuration::from_hours(1);
    deployer::lend(fleet, id, one, hour).await.unwrap();
    cluster.mood(503);
    let refused = admin.delete("/clusters/c").await.refused(409, "DEPLOYER_BOUND");
    for words in [one.to_string().as_str(), "answers 503", "?leaveDeployer=true"] {
        assert!(refused.text.contains(words), "{}", refused.text);
    }
    admin
        .delete("/clusters/c?leaveDeployer=false")
        .await
        .refused(409, "DEPLOYER_BOUND");
    admin.get("/clusters/c").await.expect(200);
    assert!(
        deployer::lend(fleet, id, one, hour).await.is_err(),
        "it is about to go, and is not renewed"
    );
    // When the cluster is back, so is the way.
    cluster.mood(200);
    admin.delete("/clusters/c").await.expect(204);
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
    let left = async || {
        let got = admin.get("/audit?action=cluster.deployer-left").await;
        got.expect(200).body
    };
    assert_eq!(left().await["total"], 0);
    // One that is gone for good.
    let body = cluster.registration("c", "t");
    let made = admin.post("/clusters", &body).await.expect(201);
    let id = made.body["clusterId"].as_str().unwrap().parse().unwrap();
    deployer::lend(fleet, id, two, hour).await.unwrap();
    cluster.mood(503);
    admin
        .delete("/clusters/c?leaveDeployer=perhaps")
        .await
        .refused(400, "VALIDATION_ERROR");
    admin.delete("/clusters/c?leaveDeployer=true").await.expect(204);
    let left = left().await;
    assert_eq!(left["total"], 1);
    assert_eq!(left["entries"][0]["actor"], "admin");
    assert_eq!(left["entries"][0]["targetId"], id.to_string());
    assert_eq!(left["entries"][0]["details"]["deployment"], two.to_string());
    running.server.stop().await;
}

#[tokio::test]
async fn a_cluster_that_is_away_is_removed_where_nothing_is_bound() {
    let (running, cluster, _) = with_cluster().await;
    cluster.mood(503);
    running.admin.delete("/clusters/c").await.expect(204);
    running.server.stop().await;
}

#[tokio::test]
async fn what_is_taken_back_while_it_is_bound_is_not_left() {
    let (running, cluster, id) = with_cluster().await;
    let fleet = &running.server.fleet;
    let lends = async {
        let lent = deployer::lend(fleet, id, Uuid::new_v4(), SignedDuration::from_hours(1)).await;
        lent.err().unwrap()
    };
    cluster.holds_tokens.store(true, Ordering::SeqCst);
    let removes = async {
        until("it is bound", async || {
            let bound = "PATCH clusterrolebindings/gantry-fleet-deployer-";
            cluster.has_written(bound).then_some(())
        })
        .await;
        running.admin.delete("/clusters/c").await.expect(204);
        cluster.written.lock().unwrap().clear();
        cluster.holds_tokens.store(false, Ordering::SeqCst);
    };
    let (refused, ()) = futures::future::join(lends, removes).await;
    assert!(refused.to_string().contains("taken back"), "{refused}");
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
    running.server.stop().await;
}

/// The same for the account that looks, which may be under way while its cluster is removed.
#[tokio::test]
async fn a_reader_that_is_made_while_its_cluster_is_removed_is_not_left() {
    let (running, cluster, id) = with_cluster().await;
    cluster.holds_tokens.store(true, Ordering::SeqCst);
    let looks = async {
        let looked = reach::reader(&running.server.fleet, id, "proof", None).await;
        looked.err().unwrap()
    };
    let removes = async {
        until("it is bound", async || {
            let bound = "PATCH clusterrolebindings/gantry-fleet-reader-";
            cluster.has_written(bound).then_some(())
        })
        .await;
        running.admin.delete("/clusters/c").await.expect(204);
        cluster.written.lock().unwrap().clear();
        cluster.holds_tokens.store(false, Ordering::SeqCst);
    };
    let (why, ()) = futures::future::join(looks, removes).await;
    assert!(why.message.contains("not registered"), "{}", why.message);
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-reader-"));
    assert!(cluster.has_written("DELETE serviceaccounts/gantry-fleet-reader-"));
    running.server.stop().await;
}

#[tokio::test]
async fn a_binding_that_fails_half_way_is_not_left() {
    let (running, cluster, id) = with_cluster().await;
    cluster.mood(500);
    let lent = deployer::lend(
        &running.server.fleet,
        id,
        Uuid::new_v4(),
        SignedDuration::from_millis(1),
    );
    assert!(lent.await.is_err());
    cluster.mood(200);
    deployer::sweep(&running.server.fleet).await.unwrap();
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
    running.server.stop().await;
}

#[tokio::test]
async fn a_renewal_that_fails_takes_nothing_from_a_deployment_that_runs() {
    let (running, cluster, id) = with_cluster().await;
    let (fleet, deployment) = (&running.server.fleet, Uuid::new_v4());
    let hour = SignedDuration::from_hours(1);
    deployer::lend(fleet, id, deployment, hour).await.unwrap();
    // Tokens are not given out for a moment; all else works, so that it could be unbound.
    cluster.no_tokens.store(true, Ordering::SeqCst);
    assert!(deployer::lend(fleet, id, deployment, hour).await.is_err());
    assert!(!cluster.has_written("DELETE clusterrolebindings"));
    cluster.no_tokens.store(false, Ordering::SeqCst);
    deployer::lend(fleet, id, deployment, hour).await.unwrap();
    // One that is not there yet leaves nothing.
    deployer::take_back(fleet, id, deployment).await.unwrap();
    cluster.written.lock().unwrap().clear();
    cluster.no_tokens.store(true, Ordering::SeqCst);
    assert!(deployer::lend(fleet, id, deployment, hour).await.is_err());
    assert!(cluster.has_written("DELETE clusterrolebindings"));
    running.server.stop().await;
}

#[tokio::test]
async fn what_is_renewed_is_not_overdue_any_more_and_what_is_given_up_is_not_renewed() {
    let (running, _cluster, id) = with_cluster().await;
    let (fleet, deployment) = (&running.server.fleet, Uuid::new_v4());
    let (hour, short) = (SignedDuration::from_hours(1), SignedDuration::from_secs(30));
    deployer::lend(fleet, id, deployment, hour).await.unwrap();
    let pool = pool(&running.database_url).await;
    // For whom an hour is too far ahead, it is overdue, and for the server's own sweeps it is not.
    let farthest = SignedDuration::from_mins(1);
    // A renewal says for how long, also when that is shorter than before.
    deployer::lend(fleet, id, deployment, short).await.unwrap();
    assert!(store::claim_overdue(&pool, farthest).await.unwrap().is_none());
    deployer::lend(fleet, id, deployment, hour).await.unwrap();
    let claimed = store::claim_overdue(&pool, farthest).await.unwrap().unwrap();
    assert_eq!((claimed.deployment_id, claimed.tries), (deployment, 1));
    assert!(
        store::claim_overdue(&pool, farthest).await.unwrap().is_none(),
        "it is somebody's"
    );
    let refused = deployer::lend(fleet, id, deployment, hour).await.err().unwrap();
    assert!(refused.to_string().contains("being taken back"), "{refused}");
    due(&pool).await;
    deployer::sweep(fleet).await.unwrap();
    deployer::lend(fleet, id, deployment, hour).await.unwrap();
    running.server.stop().await;
}

#[tokio::test]
async fn clocks_that_are_wrong_take_nothing_back_and_leave_no_deployer_bound_for_hours() {
    let ahead = Arc::new(AtomicI64::new(0));
    let (running, cluster, id) = with_clock(ahead.clone()).await;
    let fleet = &running.server.fleet;
    let long = SignedDuration::from_hours(100);
    deployer::lend(fleet, id, Uuid::new_v4(), long).await.unwrap();
    for hours in [6, -6] {
        ahead.store(hours * 3600, Ordering::SeqCst);
        deployer::sweep(fleet).await.unwrap();
    }
    assert!(
        !cluster.has_written("DELETE clusterrolebindings"),
        "it is in time, whatever a replica's clock says"
    );
    // As if the clock of the database had been put back since.
    let pool = pool(&running.database_url).await;
    sqlx::query("update deployers set until = until + interval '6 hours'")
        .execute(&pool)
        .await
        .unwrap();
    deployer::sweep(fleet).await.unwrap();
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
    running.server.stop().await;
}
