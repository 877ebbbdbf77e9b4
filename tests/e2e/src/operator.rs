//! An operator under test: the real one, in this process, behind a client that can go wrong.

use std::time::Duration;

use gantry_kit::{Options, admin::Readiness, leader::LeaseOptions, metrics::Metrics, testing::Faults};
use gantry_operator::{Settings, settings::Reach};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::Cluster;

/// Kill it, stop it, or drop it: a dropped one is killed.
pub struct Running {
    pub faults: Faults,
    pub metrics: Metrics,
    task: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
}

impl Running {
    pub async fn start(cluster: &Cluster, faults: &Faults) -> anyhow::Result<Self> {
        Self::start_with(cluster, faults, Options::default(), settings()).await
    }

    pub async fn start_with(
        cluster: &Cluster,
        faults: &Faults,
        options: Options,
        settings: Settings,
    ) -> anyhow::Result<Self> {
        let options = Options {
            namespaces: vec![cluster.namespace.clone()],
            ..options
        };
        Self::start_as(cluster, faults, options, settings).await
    }

    /// Looks after the namespaces in `options`.
    pub async fn start_as(
        cluster: &Cluster,
        faults: &Faults,
        options: Options,
        settings: Settings,
    ) -> anyhow::Result<Self> {
        Self::run(cluster, faults, options, settings).await
    }

    /// Looks after the whole cluster; such a test runs alone (see `.config/nextest.toml`).
    pub async fn start_everywhere(cluster: &Cluster, faults: &Faults) -> anyhow::Result<Self> {
        Self::run(cluster, faults, Options::default(), settings()).await
    }

    async fn run(
        cluster: &Cluster,
        faults: &Faults,
        options: Options,
        settings: Settings,
    ) -> anyhow::Result<Self> {
        let metrics = Metrics::default();
        let client = faults.client(cluster.operator.clone(), &metrics)?;
        let options = Options {
            own_namespace: cluster.namespace.clone(),
            ..options
        };
        let settings = Settings {
            namespace: cluster.namespace.clone(),
            ..settings
        };
        let manager =
            gantry_operator::manager(client, options, metrics.clone(), Readiness::default(), settings).await;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            if let Err(error) = manager.run(shutdown).await {
                tracing::error!(error = error.report(), "operator ended");
            }
        });
        Ok(Self {
            faults: faults.clone(),
            metrics,
            task,
            stop: Some(stop),
        })
    }

    /// As `kill -9` would: nothing is finished, nothing is given back.
    pub async fn kill(self) {
        self.task.abort();
        // Wait until the task is really gone, so that it cannot act beside its successor.
        let mut this = self;
        let _ = (&mut this.task).await;
    }

    /// As SIGTERM would.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Settings with images that need not exist: simulated nodes run anything.
pub fn settings() -> Settings {
    Settings {
        reach: Reach::Direct,
        ..Settings::default()
    }
}

pub fn with_lease(namespace: &str, identity: &str, duration: Duration) -> Options {
    Options {
        lease: Some(LeaseOptions {
            namespace: namespace.to_owned(),
            name: "gantry-operator".to_owned(),
            identity: identity.to_owned(),
            duration,
        }),
        ..Options::default()
    }
}
