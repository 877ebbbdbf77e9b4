//! A live cluster, by the user's own kubeconfig. Reads only.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use gantry_fleet::infrastructure::kubernetes::objects;
use gantry_fleet_domain::crd_diff::{Crd, Proof, ServerVersion};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::source::{Definitions, Source};

const DEADLINE: Duration = Duration::from_secs(30);

pub struct Cluster {
    name: String,
    client: Client,
    pub version: Option<ServerVersion>,
}

impl Cluster {
    pub async fn connect(source: &Source) -> anyhow::Result<Self> {
        let Source::Cluster(context) = source else {
            bail!("{source} is not a cluster");
        };
        let mut config = match context {
            None => Config::infer()
                .await
                .context("no cluster: set KUBECONFIG, or run inside a pod")?,
            Some(context) => {
                let options = KubeConfigOptions {
                    context: Some(context.clone()),
                    ..KubeConfigOptions::default()
                };
                let kubeconfig = Kubeconfig::read().context("no kubeconfig")?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .with_context(|| format!("the kubeconfig has no usable context {context:?}"))?
            }
        };
        config.read_timeout = Some(DEADLINE);
        config.connect_timeout = Some(DEADLINE);
        let client = Client::try_from(config).with_context(|| format!("failed to connect to {source}"))?;
        let version = tokio::time::timeout(DEADLINE, client.apiserver_version())
            .await
            .map_err(|_| anyhow!("{source} does not answer"))?
            .with_context(|| format!("{source} does not answer"))?;
        Ok(Self {
            name: source.to_string(),
            client,
            version: version.git_version.parse().ok(),
        })
    }

    pub async fn definitions(&self) -> anyhow::Result<Definitions> {
        let mut found = Definitions::default();
        objects::definitions(&self.client, &mut |document| found.take(&document, &self.name))
            .await
            .with_context(|| format!("failed to list the definitions of {}", self.name))?;
        Ok(found)
    }

    /// Puts all stored objects of a kind to its new definition; only one page is held at a time.
    pub async fn prove(&self, installed: &Crd, new: &Crd) -> anyhow::Result<Result<Proof, String>> {
        objects::prove(&self.client, &self.name, self.version, installed, new)
            .await
            .with_context(|| format!("failed to list {} in {}", new.name, self.name))
    }
}
