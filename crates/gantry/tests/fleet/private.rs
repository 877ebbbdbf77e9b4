//! A server with a PostgreSQL of its own: killed and started again at once, started twice, killed while the database is made.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;

use super::{
    process::Process,
    support::{Asker, definition, key_line, open_folder, until},
};

async fn start(folder: &Path, key: &str, more: &[&str]) -> Process {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let state = folder.join("state");
    let all: Vec<&str> = ["--state-dir", state.to_str().unwrap()]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    Process::start("", key, folder, &all).await
}

async fn write(admin: &Asker, number: usize) {
    let name = format!("n{number}s.example.com");
    let body = json!({"schemaDefinition": definition(&name, json!({})), "operatorVersion": "1.0.0"});
    admin.post("/crds", &body).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_started_again_at_once_it_goes_on() {
    let (folder, key) = (open_folder(), key_line());
    // More than once: what is in the way is another moment of the old database's end each time.
    for turn in 0..4 {
        let server = start(folder.path(), &key, &[]).await;
        let admin = server.admin();
        let got = admin.get("/crds").await.expect(200);
        assert_eq!(got.body["total"], turn, "{}", got.text);
        write(&admin, turn).await;
        server.kill().await;
    }
    let server = start(folder.path(), &key, &[]).await;
    server.stop().await;
    let left = folder.path().join("state/postgres/data/postmaster.pid");
    assert!(!left.exists(), "the database ends with its server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_one_is_refused_and_takes_nothing_from_the_first() {
    let (folder, key) = (open_folder(), key_line());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let admin_address = free.unwrap().to_string();
    // As somebody does by accident: the same again, on the same ports.
    let same = ["--admin-address", &admin_address];
    let server = start(folder.path(), &key, &same).await;
    let admin = server.admin();
    write(&admin, 0).await;
    let state = folder.path().join("state");
    let again = ["--state-dir", state.to_str().unwrap(), same[0], same[1]];
    let second = Process::command("", &key, folder.path(), &again).output();
    let second = tokio::time::timeout(Duration::from_secs(60), second).await;
    let second = second.unwrap().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    for word in ["another server", "--state-dir", "DATABASE_URL"] {
        assert!(said.contains(word), "{said}");
    }
    write(&admin, 1).await;
    let said = server.stop().await.join("\n");
    assert!(!said.contains("had ended"), "its database was ended: {said}");
}

/// PostgreSQL's programs with an `initdb` that comes as far as a version, and no further.
fn slow_programs(folder: &Path) -> PathBuf {
    let programs = folder.join("programs");
    std::fs::create_dir_all(&programs).unwrap();
    let script = "#!/bin/sh\nmkdir -p \"$2\"\necho 15 > \"$2/PG_VERSION\"\nexec sleep 30\n";
    for name in ["initdb", "postgres", "pg_ctl"] {
        let path = programs.join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    programs
}

fn has_a_version(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.path().join("PG_VERSION").exists())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_the_database_is_made_it_makes_it_again() {
    let (folder, key) = (open_folder(), key_line());
    let state = folder.path().join("state");
    let mut first = Process::command("", &key, folder.path(), &["--state-dir", state.to_str().unwrap()])
        .env("GANTRY_POSTGRES_BIN", slow_programs(folder.path()))
        .spawn()
        .unwrap();
    until("the database is being made", async || {
        has_a_version(&state.join("postgres")).then_some(())
    })
    .await;
    first.kill().await.unwrap();
    let server = start(folder.path(), &key, &[]).await;
    write(&server.admin(), 0).await;
    server.stop().await;
}
