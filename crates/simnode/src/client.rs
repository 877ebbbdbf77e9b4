//! The API client, with deadlines that suit a tool which must outlive restarts of its API server.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// How to reach the cluster.
#[derive(Debug, Clone, clap::Args)]
pub struct ClientArgs {
    /// Kubeconfig of the cluster.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
}

impl ClientArgs {
    pub async fn connect(&self) -> anyhow::Result<Client> {
        let file = Kubeconfig::read_from(&self.kubeconfig)
            .with_context(|| format!("failed to read {}", self.kubeconfig.display()))?;
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .with_context(|| format!("failed to use {}", self.kubeconfig.display()))?;
        config.connect_timeout = Some(Duration::from_secs(5));
        // Longer than any watch lasts (the server ends it after 290 s): only a dead connection is silent for so long.
        config.read_timeout = Some(Duration::from_secs(310));
        // Callers retry with what they know then; the built-in policy would repeat a stale request for minutes.
        config.default_retry = false;
        // Local link: compressing lists costs more than it saves.
        config.disable_compression = true;
        Client::try_from(config).context("failed to make a client")
    }

    /// Connects and waits, however long it takes, until the API server answers; returns its version (`v1.20.2`).
    pub async fn connect_and_wait(&self) -> anyhow::Result<(Client, String)> {
        let client = self.connect().await?;
        let mut tries = 0_u32;
        loop {
            match client.apiserver_version().await {
                Ok(version) => return Ok((client, version.git_version)),
                Err(error) if tries.is_multiple_of(20) => {
                    tracing::warn!(%error, "waiting for the API server");
                }
                Err(error) => tracing::debug!(%error, "waiting for the API server"),
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}
