//! The database itself: schemas that are made, refused, raced for; a private server that is kept.

use std::time::Duration;

use super::support::{pool, settings};
use gantry_fleet::{
    Server,
    infrastructure::{
        database::{self, DatabaseError},
        private_postgres::PrivatePostgres,
    },
};
use sqlx::{Connection, PgConnection};

const NO_WAIT: Duration = Duration::ZERO;

#[tokio::test]
async fn replicas_that_start_together_make_the_schema_once() {
    let url = super::support::database().await;
    let starts = (0..4).map(|_| database::open(database::options(&url).unwrap(), 2, NO_WAIT));
    for pool in futures::future::join_all(starts).await {
        pool.unwrap().close().await;
    }
    let applied: i64 = sqlx::query_scalar("select count(*) from gantry_schema")
        .fetch_one(&pool(&url).await)
        .await
        .unwrap();
    assert_eq!(applied, 18);
}

/// Lists read which definitions a version brings from a table that triggers keep.
#[tokio::test]
async fn what_lists_read_follows_every_write() {
    const READ: &str =
        "select operator_name || ' ' || operator_version, crd_names from operator_crds order by 1";
    const TRUE: &str = "select c.operator_name || ' ' || s.operator_version,
         array_agg(c.name order by c.name collate \"C\") from crds c join crd_schemas s on s.crd_id = c.id
         where c.operator_name is not null group by 1 order by 1";
    let url = super::support::database().await;
    database::open(database::options(&url).unwrap(), 2, NO_WAIT)
        .await
        .unwrap();
    let pool = pool(&url).await;
    for (write, versions) in [
        (
            "insert into crds (id, name, operator_name, created_at, updated_at)
             select gen_random_uuid(), name, operator, now(), now()
             from (values ('b.x', 'one'), ('a.x', 'one'), ('C.x', 'one'), ('d.x', null), ('e.x', 'two')) _(name, operator)",
            0,
        ),
        (
            "insert into crd_schemas (crd_id, operator_version, position, definition, api_group, kind, scope,
                 api_versions, digest, changes, approval, created_at)
             select id, v || '.0.0', v, '{}', 'x', 'K', 'Namespaced', '{v1}', '', '[]', 'NotRequired', now()
             from crds, generate_series(1, 2) v",
            4,
        ),
        ("update crds set operator_name = 'one' where name = 'd.x'", 4),
        ("update crds set operator_name = 'three' where name = 'a.x'", 6),
        ("update crds set operator_name = null where name = 'e.x'", 4),
        ("delete from crd_schemas where operator_version = '1.0.0'", 2),
        ("delete from crds where name = 'a.x'", 1),
        ("delete from crds", 0),
    ] {
        sqlx::query(write).execute(&pool).await.unwrap();
        let [read, truth]: [Vec<(String, Vec<String>)>; 2] = [
            sqlx::query_as(READ).fetch_all(&pool).await.unwrap(),
            sqlx::query_as(TRUE).fetch_all(&pool).await.unwrap(),
        ];
        assert_eq!(read, truth, "{write}");
        assert_eq!(read.len(), versions, "{write}");
    }
}

#[tokio::test]
async fn a_schema_of_a_newer_program_and_one_that_was_changed_are_refused() {
    let url = super::support::database().await;
    database::open(database::options(&url).unwrap(), 2, NO_WAIT)
        .await
        .unwrap();
    let pool = pool(&url).await;
    sqlx::query("insert into gantry_schema (version, name, digest) values (999, 'later', '')")
        .execute(&pool)
        .await
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let refused = Server::start(settings(&url, folder.path())).await.err().unwrap();
    assert!(refused.to_string().contains("newer Gantry"), "{refused}");
    sqlx::query("delete from gantry_schema where version = 999")
        .execute(&pool)
        .await
        .unwrap();
    sqlx::query("update gantry_schema set digest = 'x'")
        .execute(&pool)
        .await
        .unwrap();
    let refused = database::open(database::options(&url).unwrap(), 2, NO_WAIT)
        .await
        .err()
        .unwrap();
    assert!(
        matches!(refused, DatabaseError::Differs { version: 1 }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_folder_that_the_servers_user_cannot_enter_is_named() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return; // it runs as ourselves, who can
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    let refused = PrivatePostgres::start(&folder.path().join("postgres"))
        .await
        .err()
        .unwrap();
    assert!(refused.to_string().contains("--state-dir"), "{refused}");
}

#[tokio::test]
async fn addresses_that_are_none_are_refused() {
    assert!(matches!(
        database::options("mysql://x"),
        Err(DatabaseError::Address(_))
    ));
    let nobody = database::options("postgresql://nobody@127.0.0.1:1/x").unwrap();
    assert!(matches!(
        database::open(nobody, 2, NO_WAIT).await,
        Err(DatabaseError::Connect(_))
    ));
}

#[tokio::test]
async fn a_database_that_comes_later_is_waited_for() {
    let folder = super::support::open_folder();
    let path = folder.path().join("postgres");
    let server = PrivatePostgres::start(&path).await.unwrap();
    let options = database::options(&server.url()).unwrap();
    server.stop().await;
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        PrivatePostgres::start(&path).await.unwrap()
    };
    let (pool, server) = tokio::join!(database::open(options, 2, Duration::from_secs(30)), late);
    pool.unwrap().close().await;
    server.stop().await;
}

/// Its own server, so that it can be killed.
#[tokio::test]
async fn a_private_server_keeps_what_was_committed_however_it_ends() {
    let folder = super::support::open_folder();
    let path = folder.path().join("postgres");
    let server = PrivatePostgres::start(&path).await.unwrap();
    let url = server.url();
    assert!(!url.contains("127.0.0.1"), "a socket, no port: {url}");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("create table kept (n int)")
        .execute(&mut connection)
        .await
        .unwrap();
    sqlx::query("insert into kept values (1)")
        .execute(&mut connection)
        .await
        .unwrap();
    let ports: String = sqlx::query_scalar("show listen_addresses")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(ports, "");
    // A second start finds the first one and uses it.
    let second = PrivatePostgres::start(&path).await.unwrap();
    assert_eq!(second.process(), None);
    let process = server.process().unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-9", &process.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    drop(server);
    let again = PrivatePostgres::start(&path).await.unwrap();
    let mut connection = PgConnection::connect(&again.url()).await.unwrap();
    let rows: i64 = sqlx::query_scalar("select count(*) from kept")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(rows, 1);
    drop(connection);
    // Killed once more: whoever keeps it starts it again.
    let mut again = again;
    let process = again.process().unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-9", &process.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let url = again.url();
    let back = async {
        super::support::until("it is back", async || {
            let mut connection = PgConnection::connect(&url).await.ok()?;
            sqlx::query("select n from kept")
                .fetch_one(&mut connection)
                .await
                .ok()
        })
        .await;
    };
    tokio::select! {
        () = again.keep() => {}
        () = back => {}
    }
    let process = again.process().unwrap();
    again.stop().await;
    assert!(
        !std::path::Path::new(&format!("/proc/{process}")).exists(),
        "it is gone"
    );
}

/// Sends a signal to a process.
fn signal(name: &str, process: u32) {
    let sent = std::process::Command::new("kill")
        .args([name, &process.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

#[tokio::test]
async fn a_server_that_was_only_slow_is_not_started_beside_for_ever() {
    let folder = super::support::open_folder();
    let path = folder.path().join("postgres");
    let server = PrivatePostgres::start(&path).await.unwrap();
    let process = server.process().unwrap();
    let mut second = PrivatePostgres::start(&path).await.unwrap();
    let refusals = || {
        let log = std::fs::read_to_string(path.join("log")).unwrap();
        log.matches("already exists").count()
    };
    signal("-STOP", process);
    let meanwhile = async {
        super::support::until("another one was tried", async || (refusals() > 0).then_some(())).await;
        signal("-CONT", process);
        super::support::until("it answers", async || {
            PgConnection::connect(&server.url()).await.ok().map(drop)
        })
        .await;
        // The try that was under way may still come; after it there is none.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = refusals();
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(refusals(), before, "nothing is started beside it");
    };
    tokio::select! {
        () = second.keep() => {}
        () = meanwhile => {}
    }
    assert_eq!(second.process(), None, "the one that runs is used");
    second.stop().await;
    assert!(
        PgConnection::connect(&server.url()).await.is_ok(),
        "it is not ours to end"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_folder_has_one_keeper() {
    let folder = super::support::open_folder();
    let path = folder.path().join("postgres");
    let keeper = PrivatePostgres::start_alone(&path).await.unwrap();
    let refused = PrivatePostgres::start_alone(&path).await.err().unwrap();
    assert!(refused.to_string().contains("another server"), "{refused}");
    // Somebody who only looks may.
    PrivatePostgres::start(&path).await.unwrap().stop().await;
    keeper.stop().await;
    let next = PrivatePostgres::start_alone(&path).await.unwrap();
    next.stop().await;
    // What is no data is not taken for some, and not removed.
    std::fs::remove_file(path.join("data/global/pg_control")).unwrap();
    let refused = PrivatePostgres::start(&path).await.err().unwrap();
    assert!(refused.to_string().contains("not finished"), "{refused}");
}

/// Or all replicas leave a load balancer together, and nobody is there to say why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_ready_when_it_answers_and_stays_so_while_its_database_is_away() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = super::support::open_folder();
    let postgres = PrivatePostgres::start(&folder.path().join("postgres"))
        .await
        .unwrap();
    let mut settings = settings(&postgres.url(), folder.path());
    settings.admin_address = Some(([127, 0, 0, 1], 0).into());
    let server = Server::start(settings).await.unwrap();
    let ready = format!("http://{}/readyz", server.admin_address.unwrap());
    let health = format!("http://{}/health", server.address);
    let status = async |url: &str| reqwest::get(url).await.unwrap().status().as_u16();
    assert_eq!((status(&ready).await, status(&health).await), (200, 200));
    postgres.stop().await;
    // What it said counts for a second.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(status(&health).await, 503);
    let admin = super::support::token("admin", gantry_fleet_domain::access::Role::Admin);
    let admin = super::support::Asker::new(&server, Some(admin));
    admin.get("/operators").await.refused(503, "DATABASE_UNAVAILABLE");
    assert_eq!(status(&ready).await, 200);
    server.stop().await;
}
