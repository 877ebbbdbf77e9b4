//! `gantry operator` as a process, without a cluster.

use std::{process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

/// The operator with an API server that does not exist, and its port here.
fn operator(folder: &tempfile::TempDir, admin: &str) -> std::io::Result<Command> {
    let kubeconfig = folder.path().join("config");
    // Nobody listens there.
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    std::fs::write(&kubeconfig, config.to_string())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command
        .args(["operator", "--admin-address", admin, "--log-format", "json"])
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

#[tokio::test]
async fn without_its_admin_port_it_does_not_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let ended = operator(&folder, &address).unwrap().output();
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
    let ended = ended.expect("it goes on").unwrap();
    assert!(!ended.status.success());
    let said = String::from_utf8_lossy(&ended.stderr);
    let expected = format!("cannot open the admin port {address}");
    assert!(said.contains(&expected), "{said}");
}

#[tokio::test]
async fn without_an_api_server_it_lives_waits_and_stops() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let mut child = operator(&folder, "127.0.0.1:0").unwrap().spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut until = async |message: &str| {
        let found = tokio::time::timeout(Duration::from_secs(30), async {
            while let Ok(Some(line)) = lines.next_line().await {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                if event["message"]
                    .as_str()
                    .is_some_and(|said| said.contains(message))
                {
                    return event;
                }
            }
            panic!("it ended without saying {message:?}");
        });
        found
            .await
            .unwrap_or_else(|_| panic!("it never says {message:?}"))
    };
    let address = until("admin port open").await["address"]
        .as_str()
        .unwrap()
        .to_owned();
    for _ in 0..2 {
        until("does not say what it offers; retrying").await;
    }
    let ask = async |path: &str| {
        let answer = reqwest::get(format!("http://{address}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(ask("/healthz").await.0, 200);
    let (code, why) = ask("/readyz").await;
    assert_eq!(code, 503);
    let told = "versions of built-in kinds: horizontalpodautoscalers (ApiUnavailable)";
    assert!(why.contains(told), "{why}");
    let id = i32::try_from(child.id().unwrap()).unwrap();
    let id = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
    assert!(ended.expect("it does not stop").unwrap().success());
}
