//! A server as a process of its own.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use gantry_fleet_domain::access::Role;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};
use uuid::Uuid;

use super::support::{Asker, SECRET, token};

pub struct Process {
    child: Child,
    base: String,
    /// What it claims work as.
    pub replica: Uuid,
    said: Arc<Mutex<Vec<String>>>,
    reads: JoinHandle<()>,
}

impl Process {
    /// Replicas have the same database and the same key.
    pub async fn start(database_url: &str, key: &str, folder: &Path, more: &[&str]) -> Self {
        let mut child = Self::command(database_url, key, folder, more).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let served = tokio::time::timeout(Duration::from_secs(60), async {
            while let Ok(Some(line)) = lines.next_line().await {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                said.lock().unwrap().push(line);
                if event["message"] == "the fleet API is served" {
                    return Some(event);
                }
            }
            None
        });
        let served = served.await.ok().flatten();
        let served = served.unwrap_or_else(|| panic!("it does not start: {:?}", said.lock().unwrap()));
        let text = |name: &str| served[name].as_str().unwrap().to_owned();
        let all = said.clone();
        let reads = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                all.lock().unwrap().push(line);
            }
        });
        Self {
            child,
            base: format!("http://{}", text("address")),
            replica: text("replica").parse().unwrap(),
            said,
            reads,
        }
    }

    /// How it is started.
    pub fn command(database_url: &str, key: &str, folder: &Path, more: &[&str]) -> Command {
        let secret = folder.join("token.key");
        std::fs::write(&secret, SECRET).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        command
            .args([
                "fleet",
                "serve",
                "--address",
                "127.0.0.1:0",
                "--log-format",
                "json",
            ])
            .args(["--allow-insecure-clusters", "--health-seconds", "1"])
            .args(["--rate-read", "100000", "--rate-write", "100000"])
            .args(["--rate-register-cluster", "100000", "--database-connections", "8"])
            .arg("--jwt-secret-file")
            .arg(&secret)
            .args(more)
            .env("DATABASE_URL", database_url)
            .env("GANTRY_FLEET_KEY", key)
            .env("GANTRY_ADMIN_ADDRESS", "127.0.0.1:0")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub fn admin(&self) -> Asker {
        Asker::at(&self.base, Some(token("admin", Role::Admin)))
    }

    pub fn asker(&self, token: Option<String>) -> Asker {
        Asker::at(&self.base, token)
    }

    /// Of the process.
    pub fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// At once, with no chance to tidy up.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// As an orderly stop ends it; gives what it has said.
    pub async fn stop(mut self) -> Vec<String> {
        let id = self.child.id().unwrap().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status().await;
        assert!(asked.unwrap().success());
        let ended = tokio::time::timeout(Duration::from_secs(60), self.child.wait()).await;
        assert!(ended.unwrap().unwrap().success(), "it stops by itself");
        self.reads.await.unwrap();
        let said = self.said.lock().unwrap();
        said.clone()
    }
}
