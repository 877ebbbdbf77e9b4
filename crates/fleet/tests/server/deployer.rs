//! The right to deploy is lent to one deployment at a time, and comes back whatever happens to the borrower.

use super::support::{Running, kube::StandIn, pool, until};
use gantry_fleet::orchestrator::deployer;
use jiff::SignedDuration;
use uuid::Uuid;

async fn with_cluster() -> (Running, StandIn, Uuid) {
    let (running, cluster) = (Running::start().await, StandIn::start().await);
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
        deployer::sweep(fleet).await.unwrap();
        (noted().await == 0).then_some(())
    })
    .await;
    assert!(cluster.has_written("DELETE clusterrolebindings/gantry-fleet-deployer-"));
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
