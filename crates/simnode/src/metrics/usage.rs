//! How much a container uses: invented from annotations on simulated nodes, read from the kubelet on real ones. No IO.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Deserialize;

use crate::{
    pods::behaviour::PREFIX,
    quantity::{parse_cpu, parse_memory},
};

/// 10m and 32Mi: what a container without annotations is said to use.
const DEFAULT: Usage = Usage {
    cpu_nano: 10_000_000,
    memory_bytes: 32 << 20,
};
/// What a simulated node uses by itself.
const NODE_BASE: Usage = Usage {
    cpu_nano: 50_000_000,
    memory_bytes: 256 << 20,
};
const WINDOW: Duration = Duration::from_secs(10);
/// Short: the autoscaler leaves out what was measured before the pod was ready for this long.
const SIMULATED_WINDOW: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nano: u64,
    pub memory_bytes: u64,
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu_nano: self.cpu_nano.saturating_add(other.cpu_nano),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub timestamp: Timestamp,
    pub window: Duration,
    /// By container; one without a name for a node.
    pub usage: Vec<(String, Usage)>,
}

/// The usage of a pod on a simulated node; `None` while it does not run.
pub fn simulated(pod: &Pod, now: Timestamp) -> Option<Sample> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() != Some("Running") {
        return None;
    }
    let value = |name: &str| {
        pod.annotations()
            .get(&format!("{PREFIX}{name}"))
            .map(String::as_str)
    };
    let each = Usage {
        cpu_nano: value("cpu").and_then(parse_cpu).unwrap_or(DEFAULT.cpu_nano),
        memory_bytes: value("memory")
            .and_then(parse_memory)
            .unwrap_or(DEFAULT.memory_bytes),
    };
    let statuses = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten();
    let running = statuses.filter(|c| c.state.as_ref().is_some_and(|state| state.running.is_some()));
    let usage: Vec<_> = running.map(|c| (c.name.clone(), each)).collect();
    (!usage.is_empty()).then_some(Sample {
        timestamp: now,
        window: SIMULATED_WINDOW,
        usage,
    })
}

/// What the simulated nodes use: the sum of their pods, and a little of their own.
pub fn simulated_nodes<'a>(
    nodes: impl Iterator<Item = &'a str>,
    pods: &[Pod],
    now: Timestamp,
) -> BTreeMap<String, Sample> {
    let mut sums: BTreeMap<&str, Usage> = nodes.map(|node| (node, NODE_BASE)).collect();
    for pod in pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if let Some(sum) = node.and_then(|node| sums.get_mut(node))
            && let Some(sample) = simulated(pod, now)
        {
            *sum = sample.usage.into_iter().fold(*sum, |sum, (_, usage)| sum + usage);
        }
    }
    let sample = |usage| Sample {
        timestamp: now,
        window: SIMULATED_WINDOW,
        usage: vec![(String::new(), usage)],
    };
    sums.into_iter()
        .map(|(node, usage)| (node.to_owned(), sample(usage)))
        .collect()
}

/// The kubelet's `/stats/summary`, as far as it is needed.
#[derive(Debug, Deserialize)]
pub struct Summary {
    node: NodeStats,
    #[serde(default)]
    pods: Vec<PodStats>,
}

#[derive(Debug, Deserialize)]
struct NodeStats {
    #[serde(default)]
    cpu: Option<CpuStats>,
    #[serde(default)]
    memory: Option<MemoryStats>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodRef,
    #[serde(default)]
    containers: Vec<ContainerStats>,
}

#[derive(Debug, Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Debug, Deserialize)]
struct ContainerStats {
    name: String,
    #[serde(default)]
    cpu: Option<CpuStats>,
    #[serde(default)]
    memory: Option<MemoryStats>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuStats {
    time: Timestamp,
    /// Absent until the kubelet has measured twice.
    #[serde(default)]
    usage_nano_cores: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryStats {
    #[serde(default)]
    working_set_bytes: Option<u64>,
}

/// A real node's samples, by pod.
#[derive(Debug, Default)]
pub struct NodeSamples {
    pub node: Option<Sample>,
    pub pods: HashMap<(String, String), Sample>,
}

impl From<Summary> for NodeSamples {
    fn from(summary: Summary) -> Self {
        let node = measured(summary.node.cpu.as_ref(), summary.node.memory.as_ref());
        let pods = summary.pods.into_iter().filter_map(|pod| {
            let mut sample: Option<Sample> = None;
            for container in &pod.containers {
                // A pod counts only when all its containers were measured, as with metrics-server.
                let (time, usage) = measured(container.cpu.as_ref(), container.memory.as_ref())?;
                let entry = sample.get_or_insert_with(|| Sample {
                    timestamp: time,
                    window: WINDOW,
                    usage: Vec::new(),
                });
                entry.timestamp = entry.timestamp.min(time);
                entry.usage.push((container.name.clone(), usage));
            }
            Some(((pod.pod_ref.namespace, pod.pod_ref.name), sample?))
        });
        Self {
            pods: pods.collect(),
            node: node.map(|(timestamp, usage)| Sample {
                timestamp,
                window: WINDOW,
                usage: vec![(String::new(), usage)],
            }),
        }
    }
}

fn measured(cpu: Option<&CpuStats>, memory: Option<&MemoryStats>) -> Option<(Timestamp, Usage)> {
    let cpu = cpu?;
    let usage = Usage {
        cpu_nano: cpu.usage_nano_cores?,
        memory_bytes: memory?.working_set_bytes?,
    };
    Some((cpu.time, usage))
}
