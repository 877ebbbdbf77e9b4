//! The operator as users run it: the program, with the rights of its ServiceAccount and no others.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, bail, ensure};
use kube::config::{Kubeconfig, NamedAuthInfo};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::Cluster;

/// Killed when it is dropped.
pub struct Process {
    child: Child,
    /// Of its admin port.
    address: String,
    _kubeconfig: TempDir,
}

impl Process {
    /// `gantry operator` with these arguments, on the cluster with simulated nodes.
    pub async fn start(cluster: &Cluster, name: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("config");
        std::fs::write(&path, serde_json::to_vec(&kubeconfig(cluster)?)?)?;
        let binary = std::env::var("GANTRY_BIN").context("GANTRY_BIN must name the gantry binary")?;
        let mut child = Command::new(binary)
            .args([
                "operator",
                "--admin-address",
                "127.0.0.1:0",
                "--log-format",
                "json",
            ])
            .args(arguments)
            .env("KUBECONFIG", path)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let said = child.stderr.take().context("no stderr")?;
        let (found, address) = tokio::sync::oneshot::channel();
        let name = name.to_owned();
        // Read to its end, or it would be stopped by a full pipe.
        tokio::spawn(async move {
            let (mut found, mut lines) = (Some(found), BufReader::new(said).lines());
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{name}: {line}");
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                let address = event["address"]
                    .as_str()
                    .filter(|_| event["message"] == "admin port open");
                if let Some((found, address)) = address.and_then(|address| Some((found.take()?, address))) {
                    let _ = found.send(address.to_owned());
                }
            }
        });
        let address = tokio::time::timeout(Duration::from_secs(30), address).await;
        let address = address.context("it opens no admin port")?.context("it ended")?;
        Ok(Self {
            child,
            address,
            _kubeconfig: folder,
        })
    }

    /// As `kill -9` does; returns when it is gone.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await?;
        Ok(())
    }

    pub fn watcher(&self) -> Watcher {
        Watcher {
            address: self.address.clone(),
        }
    }
}

/// Asks a process on its admin port, also when it may be gone.
#[derive(Clone)]
pub struct Watcher {
    address: String,
}

impl Watcher {
    /// What `gantry_leader` says.
    pub async fn leads(&self) -> anyhow::Result<bool> {
        let told = self.get("/metrics").await?;
        match told.lines().find_map(|line| line.strip_prefix("gantry_leader ")) {
            Some("1") => Ok(true),
            Some("0") => Ok(false),
            other => bail!("gantry_leader is {other:?}"),
        }
    }

    pub async fn is_ready(&self) -> anyhow::Result<()> {
        self.get("/readyz").await.map(|_| ())
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        let answer = reqwest::get(format!("http://{}{path}", self.address)).await?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "{path}: {status}: {text}");
        Ok(text)
    }
}

/// That of the cluster, with the token of the operator's ServiceAccount in place of what an administrator has.
fn kubeconfig(cluster: &Cluster) -> anyhow::Result<Kubeconfig> {
    let mut kubeconfig = Kubeconfig::read_from(std::env::var("GANTRY_TEST_SIM")?)?;
    let users = std::mem::take(&mut kubeconfig.auth_infos).into_iter();
    kubeconfig.auth_infos = users
        .map(|user| NamedAuthInfo {
            auth_info: Some(cluster.operator.auth_info.clone()),
            ..user
        })
        .collect();
    Ok(kubeconfig)
}
