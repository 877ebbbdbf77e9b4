//! The audit log: what is in it, that it cannot be changed unseen, and that people can be forgotten.

use super::support::{Running, definition, kube::StandIn, pool};
use gantry_fleet::orchestrator::audit::{Broken, verify};
use gantry_fleet_domain::access::Role;
use gantry_ledger::{Entry, Head, Signer};
use serde_json::json;

async fn fill(running: &Running, count: usize) {
    for number in 0..count {
        let body = json!({
            "schemaDefinition": definition(&format!("things{number}.example.com"), json!({})), "operatorVersion": "1.0.0",
        });
        running.admin.post("/crds", &body).await.expect(201);
    }
}

#[tokio::test]
async fn everything_that_changes_something_is_in_it_and_can_be_found() {
    let running = Running::start().await;
    fill(&running, 3).await;
    let admin = &running.admin;
    admin
        .post("/crds/things0.example.com/deprecate", &json!({"reason": "old"}))
        .await
        .expect(200);
    running
        .role(Role::Viewer)
        .post("/crds", &json!({}))
        .await
        .refused(403, "FORBIDDEN");
    let total =
        async |query: &str| admin.get(&format!("/audit?{query}")).await.expect(200).body["total"].clone();
    assert_eq!(total("").await, 5);
    assert_eq!(total("action=crd.registered").await, 3);
    assert_eq!(total("action=crd.").await, 4);
    assert_eq!(total("outcome=denied").await, 1);
    assert_eq!(total("actor=admin").await, 4);
    assert_eq!(total("targetKind=crd&action=crd.deprecated").await, 1);
    assert_eq!(total("since=2100-01-01T00:00:00Z").await, 0);
    admin
        .get("/audit?since=yesterday")
        .await
        .refused(400, "VALIDATION_ERROR");
    let newest = admin.get("/audit?limit=1").await.body;
    assert_eq!(
        (&newest["entries"][0]["action"], &newest["entries"][0]["sequence"]),
        (&json!("access.denied"), &json!(5))
    );
    let oldest = admin.get("/audit?limit=1&order=asc").await.body;
    assert_eq!(oldest["entries"][0]["sequence"], 1);
    assert_eq!(oldest["entries"][0]["actor"], "admin");
    assert_eq!(oldest["entries"][0]["details"]["name"], "things0.example.com");
    running.server.stop().await;
}

#[tokio::test]
async fn the_chain_holds_under_load_and_every_tampering_is_found() {
    let signer = Signer::generate().unwrap();
    let pem = signer.to_pem().unwrap();
    let running = Running::with(|settings| settings.audit_key = Some(pem)).await;
    let bodies: Vec<_> = (0..20)
        .map(|number| {
            json!({"schemaDefinition": definition(&format!("things{number}.example.com"), json!({})), "operatorVersion": "1.0.0"})
        })
        .collect();
    let pool = pool(&running.database_url).await;
    let writes = futures::future::join_all(bodies.iter().map(|body| running.admin.post("/crds", body)));
    let looks = async {
        // What is written meanwhile is no tampering.
        for _ in 0..10 {
            verify(&pool, &[], None).await.unwrap();
        }
    };
    let (answers, ()) = tokio::join!(writes, looks);
    for got in answers {
        got.expect(201);
    }
    let key = signer.public_key();
    let proven = verify(&pool, &[], Some(&key)).await.unwrap();
    assert_eq!(
        (proven.head.seq, proven.with_details, proven.signed),
        (20, 20, true)
    );
    let other = Signer::generate().unwrap().public_key();
    assert!(matches!(
        verify(&pool, &[], Some(&other)).await,
        Err(Broken::Signature(_))
    ));
    let kept = proven.head;

    let refused = sqlx::query("update audit set action = 'x' where seq = 3")
        .execute(&pool)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("append-only"), "{refused}");
    assert!(
        sqlx::query("delete from audit where seq = 3")
            .execute(&pool)
            .await
            .is_err()
    );
    assert!(
        sqlx::query("truncate audit cascade")
            .execute(&pool)
            .await
            .is_err()
    );

    // Somebody with the database's own rights gets around that, and is found.
    let tamper = async |sql: &str| {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        let mut connection = pool.acquire().await.unwrap();
        sqlx::query("set session_replication_role = replica")
            .execute(&mut *connection)
            .await
            .unwrap();
        sqlx::query("begin").execute(&mut *connection).await.unwrap();
        sqlx::query(sql).execute(&mut *connection).await.unwrap();
        sqlx::query("commit").execute(&mut *connection).await.unwrap();
        connection.close().await.unwrap();
    };
    let backup = async |name: &'static str| {
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "create table {name} as select * from audit"
        )))
        .execute(&pool)
        .await
        .unwrap();
    };
    backup("kept").await;
    sqlx::query("create table kept_head as select * from audit_head")
        .execute(&pool)
        .await
        .unwrap();
    // One that anybody can make who knows the one before: hashes need no key.
    let body = json!({"action": "crd.approved", "outcome": "Succeeded", "actor": uuid::Uuid::nil(),
        "target": {"kind": "crd", "id": "x"}, "trace": null, "details": null});
    let at_the_end = format!(
        "insert into audit values (21, '2026-01-01T00:00:00Z', 'crd.approved', 'Succeeded',
             '00000000-0000-0000-0000-000000000000', 'crd', 'x', null, '{}')",
        Entry::next(&kept, "2026-01-01T00:00:00Z", body).to_line()
    );
    let again = |seq: i64| {
        format!(
            "insert into audit select {seq}, at, action, outcome, actor, target_kind, target_id, trace_id, line
             from kept where seq = 7"
        )
    };
    for seq in [0, -1] {
        let refused = sqlx::query(sqlx::AssertSqlSafe(again(seq)))
            .execute(&pool)
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("audit_seq_check"), "{refused}");
    }
    tamper("alter table audit drop constraint audit_seq_check").await;
    let (before_all, at_nought) = (again(-1), again(0));
    let restore = "with gone as (delete from audit) select 1";
    for (what, sql) in [
        (
            "changed",
            "update audit set line = replace(line, 'Succeeded', 'Failed000') where seq = 7",
        ),
        ("removed in the middle", "delete from audit where seq = 7"),
        ("removed at the end", "delete from audit where seq = 20"),
        (
            "moved",
            "update audit set seq = case seq when 7 then 1008 when 8 then 7 end where seq in (7, 8)",
        ),
        (
            "another action beside",
            "update audit set action = 'x' where seq = 7",
        ),
        (
            "another outcome beside",
            "update audit set outcome = 'x' where seq = 7",
        ),
        (
            "another actor beside",
            "update audit set actor = gen_random_uuid() where seq = 7",
        ),
        (
            "another kind beside",
            "update audit set target_kind = 'x' where seq = 7",
        ),
        (
            "another target beside",
            "update audit set target_id = 'x' where seq = 7",
        ),
        (
            "another trace beside",
            "update audit set trace_id = 'x' where seq = 7",
        ),
        (
            "another time beside",
            "update audit set at = at - interval '1 ms' where seq = 7",
        ),
        ("added at the end", &at_the_end),
        ("added before the first", &at_nought),
        ("added long before the first", &before_all),
        ("no head", "delete from audit_head"),
    ] {
        tamper(sql).await;
        for key in [None, Some(&key)] {
            let broken = verify(&pool, &[kept], key).await;
            assert!(broken.is_err(), "{what} is not found");
        }
        tamper(restore).await;
        tamper("insert into audit select * from kept").await;
        tamper("insert into audit_head select * from kept_head on conflict do nothing").await;
        assert!(
            verify(&pool, &[kept], Some(&key)).await.is_ok(),
            "restored after {what}"
        );
    }
    // A shorter log with a head that fits it, beside the signature of the longer one.
    tamper("delete from audit where seq = 20").await;
    tamper("update audit_head set seq = 19, hash = (select line::json->>'hash' from audit where seq = 19)")
        .await;
    assert!(verify(&pool, &[], None).await.is_ok(), "whole in itself");
    assert!(matches!(
        verify(&pool, &[], Some(&key)).await,
        Err(Broken::Signature(_))
    ));
    tamper("insert into audit select * from kept where seq = 20").await;
    tamper("update audit_head set seq = 20, hash = (select line::json->>'hash' from audit where seq = 20)")
        .await;
    tamper("update audit_details set details = '{\"name\":\"other\"}' where seq = 4").await;
    assert!(matches!(verify(&pool, &[], None).await, Err(Broken::Details(4))));
    tamper("delete from audit_details where seq = 4").await;
    assert!(
        verify(&pool, &[kept], Some(&key)).await.is_ok(),
        "erased details are no damage"
    );
    // A log that was made anew from the start is whole in itself; a head that somebody kept shows it.
    tamper("delete from audit").await;
    tamper("delete from audit_details").await;
    tamper("delete from audit_head").await;
    fill_one(&running).await;
    assert!(verify(&pool, &[], None).await.is_ok());
    assert!(matches!(
        verify(&pool, &[kept], None).await,
        Err(Broken::Chain(_))
    ));
    assert!(
        verify(&pool, &[Head::genesis("gantry-fleet-audit")], None)
            .await
            .is_ok()
    );
    running.server.stop().await;
}

async fn fill_one(running: &Running) {
    let body =
        json!({"schemaDefinition": definition("others.example.com", json!({})), "operatorVersion": "1.0.0"});
    running.admin.post("/crds", &body).await.expect(201);
}

#[tokio::test]
async fn a_cluster_and_a_person_are_forgotten_and_the_chain_still_holds() {
    let (running, cluster) = (Running::start().await, StandIn::start().await);
    let admin = &running.admin;
    let mut body = cluster.registration("personal-cluster-of-jane", "t");
    body["description"] = json!("Jane Doe's cluster");
    admin.post("/clusters", &body).await.expect(201);
    let user = json!({"username": "jane.doe@example.com", "password": "correct horse battery", "roles": ["Operator"]});
    admin.post("/users", &user).await.expect(201);
    let login = json!({"username": "jane.doe@example.com", "password": "correct horse battery"});
    let jane = running
        .asker(None)
        .post("/authentication/login", &login)
        .await
        .expect(200);
    let jane = running.asker(Some(jane.body["token"].as_str().unwrap().to_owned()));
    let crd =
        json!({"schemaDefinition": definition("things.example.com", json!({})), "operatorVersion": "1.0.0"});
    jane.post("/crds", &crd).await.expect(201);
    let pool = pool(&running.database_url).await;
    let head = verify(&pool, &[], None).await.unwrap().head;
    let contains = async |text: &str| -> Vec<String> {
        let tables: Vec<String> =
            sqlx::query_scalar("select tablename::text from pg_tables where schemaname = 'public'")
                .fetch_all(&pool)
                .await
                .unwrap();
        let mut found = Vec::new();
        for table in tables {
            let sql = format!("select exists (select from {table} t where t::text ilike '%' || $1 || '%')");
            if sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .bind(text)
                .fetch_one(&pool)
                .await
                .unwrap()
            {
                found.push(table);
            }
        }
        found
    };
    assert!(!contains("jane").await.is_empty());
    admin
        .delete("/clusters/personal-cluster-of-jane")
        .await
        .expect(204);
    admin.delete("/users/jane.doe@example.com").await.expect(204);
    assert_eq!(contains("jane").await, Vec::<String>::new());
    let proven = verify(&pool, &[head], None).await.unwrap();
    assert!(proven.head.seq > head.seq && proven.with_details < proven.head.seq);
    let entries = admin.get("/audit?action=crd.registered").await.body;
    assert_eq!(
        entries["entries"][0].get("actor"),
        None,
        "what she did is there, her name is not"
    );
    running.server.stop().await;
}
