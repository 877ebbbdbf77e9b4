//! Registers the nodes and keeps them alive: leases every ten seconds, the node status rarely.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;

use super::objects::{self, NodeShape, SIMULATED};

const RENEW: Duration = Duration::from_secs(10);
/// As the kubelet: with leases, the status itself is only a slow heartbeat.
const REPORT: Duration = Duration::from_mins(5);
const DEADLINE: Duration = Duration::from_secs(5);

pub struct Keeper {
    nodes: Arc<HashMap<String, Ipv4Addr>>,
    shape: NodeShape,
    node_api: Api<Node>,
    lease_api: Api<Lease>,
    /// Deleted by somebody: a kubelet would not bring its Node back either.
    gone: Mutex<HashSet<String>>,
}

impl Keeper {
    pub fn new(client: Client, nodes: Arc<HashMap<String, Ipv4Addr>>, shape: NodeShape) -> Self {
        Self {
            nodes,
            shape,
            node_api: Api::all(client.clone()),
            lease_api: Api::namespaced(client, "kube-node-lease"),
            gone: Mutex::default(),
        }
    }

    /// Creates all nodes, or takes over those that exist; tries until it is done.
    pub async fn register(&self) {
        stream::iter(self.nodes.iter())
            .for_each_concurrent(8, |(name, ip)| async move {
                while let Err(error) = deadline(self.register_one(name, *ip)).await {
                    tracing::warn!(node = name, "failed to register: {error:#}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            })
            .await;
        tracing::info!(
            nodes = self.nodes.len(),
            version = self.shape.version,
            "nodes registered"
        );
    }

    async fn register_one(&self, name: &str, ip: Ipv4Addr) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let node: Node = serde_json::from_value(self.shape.node(name, ip, now))?;
        let node = match self.node_api.create(&PostParams::default(), &node).await {
            Ok(node) => node,
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let labels = json!({"metadata": {"labels": self.shape.labels(name)}});
                self.node_api
                    .patch(name, &PatchParams::default(), &Patch::Merge(labels))
                    .await?;
                let status = json!({"status": self.shape.status(name, ip, now)});
                self.node_api
                    .patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
                    .await?
            }
            Err(error) => return Err(error.into()),
        };
        self.renew(name, node.metadata.uid.as_deref().unwrap_or_default())
            .await
    }

    async fn renew(&self, name: &str, node_uid: &str) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let patch = Patch::Merge(objects::renewal(name, now));
        match self.lease_api.patch(name, &PatchParams::default(), &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let lease: Lease = serde_json::from_value(objects::lease(name, node_uid, now))?;
                self.lease_api.create(&PostParams::default(), &lease).await?;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Renews and reports for ever.
    pub async fn keep(&self) {
        tokio::join!(self.keep_leases(), self.keep_status(), self.watch());
    }

    /// One round of all leases every ten seconds, spread over the round.
    async fn keep_leases(&self) {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).max(1);
        let mut tick = tokio::time::interval(RENEW / count);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let names = self.nodes.keys().cycle();
        let turns = stream::unfold((tick, names), |(mut tick, mut names)| async {
            tick.tick().await;
            Some((names.next()?, (tick, names)))
        });
        turns.for_each_concurrent(8, |name| self.keep_lease(name)).await;
    }

    async fn keep_lease(&self, name: &str) {
        if self.is_gone(name) {
            return;
        }
        let renewed = deadline(async {
            let patch = Patch::Merge(objects::renewal(name, Timestamp::now()));
            match self.lease_api.patch(name, &PatchParams::default(), &patch).await {
                // Its owner is needed to make a new one.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    let node = self.node_api.get_metadata(name).await?;
                    self.renew(name, &node.uid().unwrap_or_default()).await
                }
                other => Ok(other.map(|_| ())?),
            }
        });
        if let Err(error) = renewed.await {
            tracing::warn!(node = name, "failed to renew the lease: {error:#}");
        }
    }

    async fn keep_status(&self) {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).max(1);
        for name in self.nodes.keys().cycle() {
            tokio::time::sleep(REPORT / count).await;
            if !self.is_gone(name) {
                self.report(name, None).await;
            }
        }
    }

    async fn report(&self, name: &str, since: Option<Timestamp>) {
        let status = json!({"status": {"conditions": objects::conditions(Timestamp::now(), since)}});
        let patch = Patch::Strategic(status);
        let written = deadline(async {
            self.node_api
                .patch_status(name, &PatchParams::default(), &patch)
                .await?;
            Ok(())
        });
        if let Err(error) = written.await {
            tracing::warn!(node = name, "failed to report the node's status: {error:#}");
        }
    }

    /// Sees nodes go, and those that the control plane gave up on (after an outage) back to Ready.
    async fn watch(&self) {
        let config = watcher::Config::default().labels(&format!("{SIMULATED}=true"));
        let mut events = watcher(self.node_api.clone(), config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            let node = match event {
                Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => node,
                Ok(watcher::Event::Delete(node)) => {
                    if self.nodes.contains_key(&node.name_any()) {
                        tracing::warn!(node = node.name_any(), "was deleted");
                        self.gone
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .insert(node.name_any());
                    }
                    continue;
                }
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(%error, "watch of nodes");
                    continue;
                }
            };
            let name = node.name_any();
            if !self.nodes.contains_key(&name) {
                continue;
            }
            self.gone
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&name);
            let conditions = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            if conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status != "True")
            {
                self.report(&name, Some(Timestamp::now())).await;
            }
        }
    }

    fn is_gone(&self, name: &str) -> bool {
        self.gone
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(name)
    }
}

async fn deadline<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::time::timeout(DEADLINE, work).await?
}
