//! Where samples come from: lists at the API server and the kubelets behind it, asked when somebody asks us.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, ObjectList},
};
use serde_json::Value;
use tokio::{sync::Mutex, time::Instant};

use super::{
    render,
    usage::{self, NodeSamples, Summary},
};
use crate::nodes::SIMULATED;

/// How long a kubelet's numbers are good for; it measures every ten seconds itself.
const FRESH: Duration = Duration::from_secs(5);
const KUBELET_DEADLINE: Duration = Duration::from_secs(5);

type Cached = Arc<Mutex<Option<(Instant, Arc<NodeSamples>)>>>;

pub struct Source {
    client: Client,
    /// One lock per node, so that a node is asked once for all who ask at the same time.
    kubelets: Mutex<HashMap<String, Cached>>,
}

/// What a client wants: everything, or what selectors choose.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub labels: Option<String>,
    pub fields: Option<String>,
}

impl Selection {
    /// Any version: the API server's cache answers without asking etcd.
    fn params(&self) -> ListParams {
        let params = ListParams {
            label_selector: self.labels.clone(),
            ..ListParams::default()
        };
        ListParams {
            field_selector: self.fields.clone(),
            ..params
        }
        .match_any()
    }
}

impl Source {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            kubelets: Mutex::default(),
        }
    }

    pub async fn pods(&self, namespace: Option<&str>, selection: &Selection) -> kube::Result<Vec<Value>> {
        let api: Api<Pod> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let pods = api.list(&selection.params()).await?;
        self.measure(pods.items).await
    }

    pub async fn pod(&self, namespace: &str, name: &str) -> kube::Result<Option<Value>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let Some(pod) = api.get_opt(name).await? else {
            return Ok(None);
        };
        Ok(self.measure(vec![pod]).await?.pop())
    }

    async fn measure(&self, pods: Vec<Pod>) -> kube::Result<Vec<Value>> {
        let now = Timestamp::now();
        let simulated = self.simulated_nodes().await?;
        let real: HashSet<&str> = pods
            .iter()
            .filter_map(node_of)
            .filter(|n| !simulated.contains(*n))
            .collect();
        let samples = self.kubelets(real.into_iter()).await;
        let sample = |pod: &Pod| {
            let node = node_of(pod)?;
            if simulated.contains(node) {
                return usage::simulated(pod, now);
            }
            samples
                .get(node)?
                .pods
                .get(&(pod.namespace()?, pod.name_any()))
                .cloned()
        };
        Ok(pods
            .iter()
            .filter_map(|pod| Some(render::pod_metrics(&pod.metadata, &sample(pod)?)))
            .collect())
    }

    pub async fn nodes(&self, selection: &Selection) -> kube::Result<Vec<Value>> {
        let nodes: ObjectList<Node> = Api::all(self.client.clone()).list(&selection.params()).await?;
        self.measure_nodes(nodes.items).await
    }

    pub async fn node(&self, name: &str) -> kube::Result<Option<Value>> {
        let api: Api<Node> = Api::all(self.client.clone());
        let Some(node) = api.get_opt(name).await? else {
            return Ok(None);
        };
        Ok(self.measure_nodes(vec![node]).await?.pop())
    }

    async fn measure_nodes(&self, nodes: Vec<Node>) -> kube::Result<Vec<Value>> {
        let (simulated, real): (Vec<Node>, Vec<Node>) = nodes.into_iter().partition(is_simulated);
        let mut found: Vec<(Node, usage::Sample)> = Vec::new();
        if !simulated.is_empty() {
            let names: Vec<String> = simulated.iter().map(kube::ResourceExt::name_any).collect();
            // A few nodes at most are asked for by name; otherwise one list for all.
            let fields = match names.as_slice() {
                [only] => Some(format!("spec.nodeName={only}")),
                _ => None,
            };
            let selection = Selection {
                fields,
                ..Selection::default()
            };
            let pods: ObjectList<Pod> = Api::all(self.client.clone()).list(&selection.params()).await?;
            let mut samples =
                usage::simulated_nodes(names.iter().map(String::as_str), &pods.items, Timestamp::now());
            found.extend(simulated.into_iter().filter_map(|node| {
                let sample = samples.remove(&node.name_any())?;
                Some((node, sample))
            }));
        }
        let names: Vec<String> = real.iter().map(kube::ResourceExt::name_any).collect();
        let samples = self.kubelets(names.iter().map(String::as_str)).await;
        found.extend(real.into_iter().filter_map(|node| {
            let sample = samples.get(node.name_any().as_str())?.node.clone()?;
            Some((node, sample))
        }));
        Ok(found
            .iter()
            .map(|(node, sample)| render::node_metrics(&node.metadata, sample))
            .collect())
    }

    async fn simulated_nodes(&self) -> kube::Result<HashSet<String>> {
        let selection = Selection {
            labels: Some(format!("{SIMULATED}=true")),
            fields: None,
        };
        let nodes = Api::<Node>::all(self.client.clone())
            .list_metadata(&selection.params())
            .await?;
        Ok(nodes.items.into_iter().map(|node| node.name_any()).collect())
    }

    /// The samples of these nodes; those that do not answer are left out.
    async fn kubelets(&self, names: impl Iterator<Item = &str>) -> HashMap<String, Arc<NodeSamples>> {
        let names: Vec<String> = names.map(ToOwned::to_owned).collect();
        stream::iter(names)
            .map(|name| async move {
                match self.kubelet(&name).await {
                    Ok(samples) => Some((name, samples)),
                    Err(error) => {
                        tracing::warn!(node = name, "failed to ask the kubelet: {error:#}");
                        None
                    }
                }
            })
            .buffer_unordered(8)
            .filter_map(|found| async { found })
            .collect()
            .await
    }

    async fn kubelet(&self, node: &str) -> anyhow::Result<Arc<NodeSamples>> {
        let cached = self
            .kubelets
            .lock()
            .await
            .entry(node.to_owned())
            .or_default()
            .clone();
        let mut cached = cached.lock().await;
        if let Some((time, samples)) = cached.as_ref()
            && time.elapsed() < FRESH
        {
            return Ok(samples.clone());
        }
        let path = format!("/api/v1/nodes/{node}/proxy/stats/summary?only_cpu_and_memory=true");
        let request = http::Request::get(path).body(Vec::new())?;
        let summary: Summary = tokio::time::timeout(KUBELET_DEADLINE, self.client.request(request)).await??;
        let samples = Arc::new(NodeSamples::from(summary));
        *cached = Some((Instant::now(), samples.clone()));
        Ok(samples)
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn is_simulated(node: &Node) -> bool {
    node.labels().get(SIMULATED).is_some_and(|value| value == "true")
}
