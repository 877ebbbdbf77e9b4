//! A log that has grown for years: what is erased from it is found without looking at all of it, and nobody waits meanwhile.

use std::time::Duration;

use gantry_fleet::{infrastructure::database, orchestrator::retention};
use jiff::SignedDuration;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::support::{Running, definition, kube::StandIn, pool, until};

const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Entries from before; one in a thousand is of the cluster that is removed.
const ENTRIES: i64 = 200_000;
const ITS_ENTRIES: i64 = ENTRIES / 1000;
const ANSWERS: i64 = 20_000;

/// Entries and answers as years leave them behind; only lines of the chain they have none.
async fn years_go_by(url: &str, cluster: &str) {
    let pool = pool(url).await;
    let entries = "insert into audit (seq, at, action, outcome, actor, target_kind, target_id, line)
         select h.seq + n, now() - interval '400 days' + n * interval '1 second', 'cluster.accessed', 'Succeeded', p.id,
             'cluster', case when n % 1000 = 0 then $1 else md5((n % 50)::text) end, '{}'
         from generate_series(1, $2) n, audit_head h, people p where p.subject = 'system:fleet'";
    sqlx::query(entries)
        .bind(cluster)
        .bind(ENTRIES)
        .execute(&pool)
        .await
        .unwrap();
    let details = "insert into audit_details (seq, salt, details)
         select seq, '', '{\"count\":60,\"identity\":\"reader\",\"purpose\":\"health\"}' from audit where line = '{}'";
    sqlx::query(details).execute(&pool).await.unwrap();
    sqlx::query("update audit_head set seq = seq + $1")
        .bind(ENTRIES)
        .execute(&pool)
        .await
        .unwrap();
    let answers = "insert into idempotency (person, key, operation, request, status, body, created_at, told)
         select p.id, 'k' || n, 'registerCrd', '', 201, convert_to('{}', 'UTF8'), now(), array['n' || n, gen_random_uuid()::text]
         from generate_series(1, $1) n, people p where p.subject = 'system:fleet'";
    sqlx::query(answers).bind(ANSWERS).execute(&pool).await.unwrap();
    sqlx::query("analyze").execute(&pool).await.unwrap();
    pool.close().await;
}

/// Rows that were read by scans of whole tables.
async fn scanned(pool: &PgPool, table: &str) -> i64 {
    sqlx::query_scalar("select seq_tup_read from pg_stat_user_tables where relname = $1")
        .bind(table)
        .fetch_one(pool)
        .await
        .unwrap()
}

async fn details_of(pool: &PgPool, target: &str) -> i64 {
    sqlx::query_scalar(
        "select count(*) from audit_details d join audit a on a.seq = d.seq where a.target_id = $1",
    )
    .bind(target)
    .fetch_one(pool)
    .await
    .unwrap()
}

/// Registers it under a name that is taken: what came of that is under an id that is no cluster.
async fn tries_in_vain(running: &Running, cluster: &StandIn, token: &str) {
    let body = cluster.registration("c", token);
    let got = running.admin.post("/clusters", &body).await;
    got.refused(409, "CLUSTER_ALREADY_EXISTS");
}

#[tokio::test]
async fn what_is_erased_from_a_large_log_is_found_without_a_look_at_all_of_it() {
    let running = Running::with(|settings| {
        settings.health_interval = SignedDuration::from_hours(1);
        settings.retention.people = Some(DAY * 300);
        settings.retention.schemas = Some(DAY * 300);
    })
    .await;
    let (admin, fleet) = (&running.admin, &running.server.fleet);
    let (cluster, other) = (StandIn::start().await, StandIn::start().await);
    let body = cluster.registration("c", "t");
    let key = [("idempotency-key", "once")];
    let made = admin
        .ask("post", "/clusters", Some(&body), &key)
        .await
        .expect(201);
    let id = made.body["clusterId"].as_str().unwrap().to_owned();
    tries_in_vain(&running, &cluster, "t").await;
    tries_in_vain(&running, &other, "t").await;
    years_go_by(&running.database_url, &id).await;
    let pool = pool(&running.database_url).await;
    let attempts = async || -> Vec<String> {
        sqlx::query_scalar("select server from attempts order by at")
            .fetch_all(&pool)
            .await
            .unwrap()
    };
    assert_eq!(attempts().await.len(), 3, "the one that was registered as well");
    sqlx::query("select pg_stat_reset()")
        .execute(&pool)
        .await
        .unwrap();
    admin.delete("/clusters/c").await.expect(204);
    assert_eq!(attempts().await, [other.url.as_str()]);
    retention::apply(fleet).await.unwrap();
    assert_eq!(attempts().await, [other.url.as_str()], "its time is not over");
    let old = "update attempts set at = at - interval '31 days'";
    sqlx::query(old).execute(&pool).await.unwrap();
    retention::apply(fleet).await.unwrap();
    assert_eq!(attempts().await, Vec::<String>::new());
    let total = async |query: &str| {
        let got = admin.get(&format!("/audit?limit=1{query}")).await.expect(200);
        got.body["total"].as_i64().unwrap()
    };
    assert!(total(&format!("&targetId={id}")).await > ITS_ENTRIES);
    assert!(total("").await > ENTRIES);
    let newest = admin.get("/audit?limit=2&targetKind=cluster").await.expect(200);
    assert_eq!(newest.body["entries"][0]["action"], "cluster.deleted");
    // What was read is known when the connections end.
    let url = running.database_url.clone();
    running.server.stop().await;
    pool.close().await;
    let pool = super::support::pool(&url).await;
    for table in ["audit_details", "idempotency"] {
        let scanned = scanned(&pool, table).await;
        assert!(scanned < 1000, "{table}: {scanned}");
    }
    assert_eq!(details_of(&pool, &id).await, 0);
    for server in [&cluster.url, &other.url] {
        let told: i64 =
            sqlx::query_scalar("select count(*) from audit_details where position($1 in details) > 0")
                .bind(server)
                .fetch_one(&pool)
                .await
                .unwrap();
        assert_eq!(told, 0, "{server}");
    }
    let left: i64 = sqlx::query_scalar("select count(*) from idempotency where key = 'once'")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn old_details_of_a_large_log_go_and_those_that_others_hold_wait_for_nobody() {
    let running = Running::with(|settings| {
        settings.health_interval = SignedDuration::from_hours(1);
        settings.retention.audit_details = Some(DAY * 300);
    })
    .await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let made = admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let id = made.body["clusterId"].as_str().unwrap().to_owned();
    years_go_by(&running.database_url, &id).await;
    let pool = pool(&running.database_url).await;
    let old = async || -> i64 {
        sqlx::query_scalar(
            "select count(*) from audit_details d join audit a on a.seq = d.seq where a.at < now() - interval '300 days'",
        )
        .fetch_one(&pool)
        .await
        .unwrap()
    };
    assert_eq!(old().await, ENTRIES);
    // Somebody is about to erase one of them.
    let mut other = pool.begin().await.unwrap();
    sqlx::query(
        "select from audit_details where seq = (select min(seq) from audit where line = '{}') for update",
    )
    .execute(&mut *other)
    .await
    .unwrap();
    retention::apply(&running.server.fleet).await.unwrap();
    assert_eq!(old().await, 1);
    other.rollback().await.unwrap();
    retention::apply(&running.server.fleet).await.unwrap();
    assert_eq!(old().await, 0);
    assert!(details_of(&pool, &id).await > 0, "what is new stays");
    let said = admin
        .get("/audit?action=retention.applied&order=asc")
        .await
        .expect(200);
    let counts: Vec<&Value> = said.body["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["details"]["auditDetails"])
        .collect();
    assert_eq!(counts, [&json!(ENTRIES - 1), &json!(1)]);
    running.server.stop().await;
}

#[tokio::test]
async fn nobody_waits_for_a_removal_that_takes_long() {
    let running = Running::start().await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let made = admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let id: Uuid = made.body["clusterId"].as_str().unwrap().parse().unwrap();
    let pool = pool(&running.database_url).await;
    // An hour that becomes an entry with the removal.
    let counted =
        "insert into cluster_accesses (cluster_id, identity, purpose, hour, count, first_at, last_at)
         values ($1, 'reader', 'health', date_trunc('hour', now()), 3, now(), now()) on conflict do nothing";
    sqlx::query(counted).bind(id).execute(&pool).await.unwrap();
    // What it erases is held up.
    let mut other = pool.begin().await.unwrap();
    let details =
        "select from audit_details where seq in (select seq from audit where target_id = $1) for update";
    sqlx::query(details)
        .bind(id.to_string())
        .execute(&mut *other)
        .await
        .unwrap();
    let asker = admin.clone();
    let removal = tokio::spawn(async move { asker.delete("/clusters/c").await });
    until("the removal waits", async || {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
    let body =
        json!({"schemaDefinition": definition("things.example.com", json!({})), "operatorVersion": "1.0.0"});
    let written = tokio::time::timeout(Duration::from_secs(5), admin.post("/crds", &body)).await;
    written.expect("others write meanwhile").expect(201);
    other.rollback().await.unwrap();
    removal.await.unwrap().expect(204);
    assert_eq!(details_of(&pool, &id.to_string()).await, 0);
    running.server.stop().await;
}

#[tokio::test]
async fn an_attempt_that_came_to_something_is_forgotten_and_nothing_is_erased() {
    let running = Running::start().await;
    let (admin, cluster) = (&running.admin, StandIn::start().await);
    let made = admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    let id = made.body["clusterId"].as_str().unwrap();
    let pool = pool(&running.database_url).await;
    let before = details_of(&pool, id).await;
    let old = sqlx::query("update attempts set at = at - interval '31 days'");
    assert_eq!(old.execute(&pool).await.unwrap().rows_affected(), 1);
    retention::apply(&running.server.fleet).await.unwrap();
    let left: i64 = sqlx::query_scalar("select count(*) from attempts")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(left, 0);
    assert!(details_of(&pool, id).await >= before && before > 0);
    let said = admin.get("/audit?action=retention.applied").await.expect(200);
    assert_eq!(said.body["total"], 0);
    running.server.stop().await;
}

#[tokio::test]
async fn attempts_from_before_the_upgrade_are_found() {
    let running = Running::start().await;
    let (admin, cluster, away) = (&running.admin, StandIn::start().await, StandIn::start().await);
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    away.mood(500);
    admin
        .post("/clusters", &away.registration("d", "t"))
        .await
        .refused(503, "CLUSTER_UNREACHABLE");
    let pool = pool(&running.database_url).await;
    // As the version before left it.
    for undo in [
        "drop trigger attempts_follow on audit_details",
        "drop function attempts_follow",
        "drop table attempts",
        "delete from gantry_schema where version = 17",
    ] {
        sqlx::query(undo).execute(&pool).await.unwrap();
    }
    let options = database::options(&running.database_url).unwrap();
    database::open(options, 2, Duration::ZERO).await.unwrap();
    let attempts: Vec<String> = sqlx::query_scalar("select server from attempts")
        .fetch_all(&pool)
        .await
        .unwrap();
    assert_eq!(attempts, [away.url.as_str()]);
    running.server.stop().await;
}
