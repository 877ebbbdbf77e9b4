//! The database killed under load, twice. What was answered with success is there, once; the chain is whole.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::support::{Asker, definition, settings, token};
use gantry_fleet::{Server, infrastructure::private_postgres::PrivatePostgres, orchestrator::audit::verify};
use gantry_fleet_domain::access::Role;
use serde_json::json;

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
        // Until it is reaped it counts as running; and its children take a moment to notice.
        drop(postgres);
        postgres = super::support::until("it starts again", async || {
            PrivatePostgres::start(&path).await.ok()
        })
        .await;
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
