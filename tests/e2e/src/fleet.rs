//! The fleet server as people run it: the program itself, with its private PostgreSQL.

use std::{
    process::{Command as StdCommand, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::measured;

/// A server that runs; killed when dropped.
pub struct Fleet {
    child: Child,
    pub base: String,
    admin: String,
    pub folder: tempfile::TempDir,
    token: String,
    http: reqwest::Client,
}

/// What came back.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub body: Value,
}

impl Got {
    pub fn expect(self, status: u16) -> anyhow::Result<Value> {
        if self.status == status {
            Ok(self.body)
        } else {
            bail!("expected {status}, got {}: {}", self.status, self.body)
        }
    }
}

fn program() -> String {
    std::env::var("GANTRY_BIN").unwrap_or_else(|_| "gantry".to_owned())
}

impl Fleet {
    pub async fn start(more: &[&str]) -> anyhow::Result<Self> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::Builder::new().prefix("gantry-fleet-e2e-").tempdir()?;
        // PostgreSQL runs as another user when we are root, who has to get in.
        let open = StdCommand::new("chmod").arg("755").arg(folder.path()).status()?;
        anyhow::ensure!(open.success(), "chmod failed");
        let admin = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .to_string();
        let pause: &[&str] = if more.contains(&"--health-seconds") {
            &[]
        } else {
            &["--health-seconds", "1"]
        };
        let mut child = Command::new(program())
            .args([
                "fleet",
                "serve",
                "--address",
                "127.0.0.1:0",
                "--admin-address",
                &admin,
            ])
            .args(pause)
            .args([
                "--log-format",
                "json",
                "--rate-read",
                "100000000",
                "--rate-write",
                "10000",
            ])
            .args(["--rate-register-cluster", "1000"])
            .args(more)
            .env("GANTRY_FLEET_STATE", folder.path().join("state"))
            .env_remove("DATABASE_URL")
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("GANTRY_BIN must name the program")?;
        let stderr = child.stderr.take().context("no stderr")?;
        let mut lines = BufReader::new(stderr).lines();
        let mut said = Vec::new();
        let address = tokio::time::timeout(Duration::from_secs(90), async {
            while let Ok(Some(line)) = lines.next_line().await {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                if event["message"] == "the fleet API is served" {
                    return event["address"].as_str().map(str::to_owned);
                }
                said.push(line);
            }
            None
        })
        .await
        .ok()
        .flatten();
        let Some(address) = address else {
            bail!("the fleet server does not start:\n{}", said.join("\n"));
        };
        // What it says later is read, so that it never waits for us; `RUST_LOG=debug` shows it.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                tracing::debug!("{line}");
            }
        });
        let mut fleet = Self {
            child,
            base: format!("http://{address}"),
            admin: format!("http://{admin}"),
            token: String::new(),
            http: reqwest::Client::new(),
            folder,
        };
        let token = fleet.command(&["fleet", "token", "--subject", "e2e"])?;
        token.trim().clone_into(&mut fleet.token);
        Ok(fleet)
    }

    /// Runs the program against the same state, and gives what it prints.
    pub fn command(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let done = StdCommand::new(program())
            .args(arguments)
            .env("GANTRY_FLEET_STATE", self.folder.path().join("state"))
            .output()?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        if !done.status.success() {
            bail!(
                "{arguments:?} failed: {said}{}",
                String::from_utf8_lossy(&done.stderr)
            );
        }
        Ok(said)
    }

    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Got> {
        let mut request = self
            .http
            .request(method.parse()?, format!("{}/api/v1{path}", self.base))
            .bearer_auth(&self.token);
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        Ok(Got {
            status,
            body: serde_json::from_str(&text).unwrap_or_default(),
        })
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask("GET", path, None).await?.expect(200)
    }

    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask("POST", path, Some(body)).await?.expect(201)
    }

    /// Memory of the server itself, without its PostgreSQL.
    pub fn resident_mib(&self) -> anyhow::Result<f64> {
        measured::resident_mib(self.child.id().context("it is gone")?)
    }

    /// Likewise.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        measured::cpu_seconds(self.child.id().context("it is gone")?)
    }

    /// A gauge without labels.
    pub async fn gauge(&self, name: &str) -> anyhow::Result<u64> {
        let text = self
            .http
            .get(format!("{}/metrics", self.admin))
            .send()
            .await?
            .text()
            .await?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .with_context(|| format!("no {name}"))?;
        Ok(value.parse()?)
    }

    /// Ends it as a user would.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let process = self.child.id().context("it is gone already")?.to_string();
        StdCommand::new("kill").args(["-TERM", &process]).status()?;
        let status = tokio::time::timeout(Duration::from_secs(40), self.child.wait()).await??;
        anyhow::ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}
