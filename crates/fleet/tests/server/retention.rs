//! What is older than its policy goes, what is needed stays, and the audit log still verifies.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use gantry_fleet::orchestrator::{audit::verify, retention};
use gantry_fleet_domain::access::Role;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::support::{Running, definition, kube::StandIn, pool};

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn schema(version: &str, properties: Value) -> Value {
    json!({"schemaDefinition": definition("things.example.com", properties), "operatorVersion": version})
}

#[tokio::test]
async fn each_table_forgets_by_its_own_policy_and_the_chain_holds() {
    let offset = Arc::new(AtomicI64::new(0));
    let clock = offset.clone();
    let running = Running::with(|settings| {
        settings.clock = Arc::new(move || {
            Timestamp::now() + SignedDuration::from_hours(24 * clock.load(Ordering::SeqCst))
        });
        settings.retention.answers = DAY;
        settings.retention.waivers = Some(DAY * 10);
        settings.retention.people = Some(DAY * 20);
        settings.retention.schemas = Some(DAY * 30);
        settings.retention.audit_details = Some(DAY * 40);
    })
    .await;
    let (admin, fleet) = (&running.admin, &running.server.fleet);
    let pool = pool(&running.database_url).await;
    let count = async |table: &str| -> i64 {
        let sql = format!("select count(*) from {table}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let visitor = running.role(Role::Admin);
    let key = [("idempotency-key", "once")];
    let text = json!({"a": {"type": "string"}});
    let first = schema("1.0.0", json!({}));
    visitor.ask("post", "/crds", Some(&first), &key).await.expect(201);
    // A field less in 3.0.0: it waits for an approval, and its finding is waived for a day.
    for (version, properties) in [("2.0.0", text), ("3.0.0", json!({}))] {
        visitor
            .post("/crds", &schema(version, properties))
            .await
            .expect(201);
    }
    let got = admin.get("/crds/things.example.com").await.expect(200);
    let changes = got.body["schemaHistory"][0]["changes"].as_array().unwrap();
    let breaking = changes
        .iter()
        .find(|change| change["isBreaking"] == true)
        .unwrap();
    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let waiver = json!({"fingerprint": breaking["fingerprint"], "reason": "nobody has it", "expires": today});
    admin
        .post("/crds/things.example.com/waivers", &waiver)
        .await
        .expect(201);
    let names = async || -> i64 {
        sqlx::query_scalar("select count(*) from people where subject like 'someone-%'")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let state = async || {
        (
            count("idempotency").await,
            count("crd_waivers").await,
            names().await,
            count("crd_schemas").await,
        )
    };
    // Somebody tried to register a cluster, and nothing came of it.
    let attempts = async || -> i64 {
        sqlx::query_scalar("select count(*) from audit_details where details like '%\"server\"%'")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let gone = StandIn::start().await;
    gone.mood(500);
    admin
        .post("/clusters", &gone.registration("c", "t"))
        .await
        .refused(503, "CLUSTER_UNREACHABLE");
    let before = verify(&pool, &[], None).await.unwrap();
    assert_eq!(state().await, (1, 1, 1, 3));
    let after = async |days: i64| {
        offset.store(days, Ordering::SeqCst);
        retention::apply(fleet).await.unwrap();
        state().await
    };
    assert_eq!(after(0).await, (1, 1, 1, 3), "nothing is old");
    assert_eq!(
        verify(&pool, &[], None).await.unwrap().head,
        before.head,
        "and nothing is said"
    );
    assert_eq!(after(2).await, (0, 1, 1, 3));
    assert_eq!(after(13).await, (0, 0, 1, 3));
    assert_eq!(after(22).await, (0, 0, 0, 3));
    assert_eq!(attempts().await, 2, "it and its failure can still be looked into");
    // The newest stays, and so would one that waits.
    assert_eq!(after(32).await, (0, 0, 0, 1));
    assert_eq!(
        admin.get("/crds/things.example.com").await.expect(200).body["operatorVersion"],
        "3.0.0"
    );
    assert_eq!(attempts().await, 0, "where they tried is forgotten");
    let whole = verify(&pool, &[before.head], None).await.unwrap();
    assert_eq!(whole.with_details, whole.head.seq - 2, "no other details are old");
    after(42).await;
    let left = verify(&pool, &[before.head, whole.head], None).await.unwrap();
    assert!(left.with_details < whole.head.seq, "{left:?}");
    let said = admin.get("/audit?action=retention.applied").await.expect(200);
    assert!(said.body["total"].as_i64().unwrap() >= 4, "{}", said.text);
    running.server.stop().await;
}

#[tokio::test]
async fn a_clock_that_was_put_forward_erases_nothing() {
    let offset = Arc::new(AtomicI64::new(0));
    let clock = offset.clone();
    let running = Running::with(|settings| {
        settings.clock = Arc::new(move || Timestamp::now() + DAY * clock.load(Ordering::SeqCst) as i32);
        settings.retention.audit_details = Some(DAY);
    })
    .await;
    let fleet = &running.server.fleet;
    let key = [("idempotency-key", "once")];
    let body = schema("1.0.0", json!({}));
    running
        .admin
        .ask("post", "/crds", Some(&body), &key)
        .await
        .expect(201);
    let pool = pool(&running.database_url).await;
    let kept = async || -> (i64, i64) {
        sqlx::query_as("select (select count(*) from idempotency), (select count(*) from audit_details)")
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    let before = kept().await;
    assert!(before.0 == 1 && before.1 >= 1, "{before:?}");
    // Ours is a year ahead, for however long; the database's is right.
    for days in [0, 365, 365, 365] {
        offset.store(days, Ordering::SeqCst);
        retention::look(fleet).await.unwrap();
        assert_eq!(kept().await, before, "{days} days");
    }
    // It is put right, and two looks agree: what is old goes.
    offset.store(0, Ordering::SeqCst);
    sqlx::query("update idempotency set created_at = now() - interval '2 days'")
        .execute(&pool)
        .await
        .unwrap();
    retention::look(fleet).await.unwrap();
    assert_eq!(kept().await, before, "one look is not enough");
    retention::look(fleet).await.unwrap();
    assert_eq!(kept().await, (0, before.1));
    running.server.stop().await;
}

#[tokio::test]
async fn what_was_rejected_stays_rejected() {
    let offset = Arc::new(AtomicI64::new(0));
    let clock = offset.clone();
    let running = Running::with(|settings| {
        settings.clock = Arc::new(move || Timestamp::now() + DAY * clock.load(Ordering::SeqCst) as i32);
        settings.retention.schemas = Some(DAY * 30);
    })
    .await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let (one, none) = (json!({"a": {"type": "string"}}), json!({}));
    cluster.define(&definition("things.example.com", one.clone()), &["v1"]);
    let mut prod = cluster.registration("prod", "t");
    prod["environment"] = json!("Production");
    admin.post("/clusters", &prod).await.expect(201);
    for (version, properties) in [("1.0.0", &one), ("2.0.0", &none), ("3.0.0", &none)] {
        let body = schema(version, properties.clone());
        admin.post("/crds", &body).await.expect(201);
    }
    let rejected = json!({"operatorVersion": "2.0.0", "decision": "Reject", "notes": "a is in use"});
    admin
        .post("/crds/things.example.com/approve", &rejected)
        .await
        .expect(200);
    let reason = async || {
        let shown = admin.get("/crds/things.example.com").await.expect(200).body;
        let usage = shown["schemaHistory"][0]["usage"].as_array().unwrap().clone();
        let production = usage.iter().find(|usage| usage["environment"] == "Production");
        production.unwrap()["reason"].clone()
    };
    assert_eq!(reason().await, "Rejected");
    offset.store(60, Ordering::SeqCst);
    retention::apply(&running.server.fleet).await.unwrap();
    assert_eq!(reason().await, "Rejected");
    running.server.stop().await;
}
