//! The Node and Lease objects of a simulated node, as a kubelet writes them.

use std::{collections::BTreeMap, net::Ipv4Addr};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::text::Taint;

/// Names the nodes that this program plays; the metrics server reads it too.
pub const SIMULATED: &str = "gantry.dev/simulated";
pub const LEASE_SECONDS: u32 = 40;

/// What all nodes of one process have in common.
#[derive(Debug, Clone)]
pub struct NodeShape {
    pub cpu: String,
    pub memory: String,
    pub pods: u32,
    /// `v1.20.2`: a node is as old as its server.
    pub version: String,
    pub labels: Vec<(String, String)>,
    pub taints: Vec<Taint>,
}

impl NodeShape {
    pub fn labels(&self, name: &str) -> BTreeMap<String, String> {
        let fixed = [
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", arch()),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", arch()),
            ("node.kubernetes.io/instance-type", "simulated"),
            (SIMULATED, "true"),
        ];
        let fixed = fixed
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        fixed.chain(self.labels.iter().cloned()).collect()
    }

    /// The whole object, for its creation.
    pub fn node(&self, name: &str, ip: Ipv4Addr, now: Timestamp) -> Value {
        let taints: Vec<Value> = self
            .taints
            .iter()
            .map(|t| json!({"key": t.key, "value": t.value, "effect": t.effect}))
            .collect();
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": self.labels(name)},
            "spec": {"taints": taints},
            "status": self.status(name, ip, now),
        })
    }

    pub fn status(&self, name: &str, ip: Ipv4Addr, now: Timestamp) -> Value {
        let resources = json!({
            "cpu": self.cpu, "memory": self.memory, "pods": self.pods.to_string(), "ephemeral-storage": "256Gi",
        });
        json!({
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": ip.to_string()},
                {"type": "Hostname", "address": name},
            ],
            "conditions": conditions(now, Some(now)),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": name,
                "systemUUID": name,
                "bootID": name,
                "kernelVersion": "simulated",
                "osImage": "Gantry simulated node",
                "containerRuntimeVersion": "simulated://1.0.0",
                "kubeletVersion": self.version,
                "kubeProxyVersion": self.version,
                "operatingSystem": "linux",
                "architecture": arch(),
            },
        })
    }
}

/// The kubelet's four conditions. `since` is when they became what they are; `None` leaves that time as it is.
pub fn conditions(now: Timestamp, since: Option<Timestamp>) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        let mut condition = json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": seconds(now),
        });
        if let Some(since) = since {
            condition["lastTransitionTime"] = json!(seconds(since));
        }
        condition
    };
    json!([
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        condition(
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure"
        ),
        condition(
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available"
        ),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

/// The lease as it is created. Owned by its Node, so that it goes with it.
pub fn lease(name: &str, node_uid: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
        },
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micros(now)},
    })
}

/// The patch that renews it.
pub fn renewal(name: &str, now: Timestamp) -> Value {
    json!({"spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micros(now)}})
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};

    use super::*;

    #[test]
    fn nodes_and_leases_are_complete() {
        let shape = NodeShape {
            cpu: "32".into(),
            memory: "64Gi".into(),
            pods: 1000,
            version: "v1.20.2".into(),
            labels: vec![("zone".into(), "a".into())],
            taints: vec![Taint {
                key: "sim".into(),
                value: String::new(),
                effect: "NoSchedule".into(),
            }],
        };
        let now: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        let node: Node =
            serde_json::from_value(shape.node("sim-0", Ipv4Addr::new(10, 0, 0, 1), now)).unwrap();
        let labels = node.metadata.labels.unwrap();
        assert_eq!(
            (labels[SIMULATED].as_str(), labels["zone"].as_str()),
            ("true", "a")
        );
        assert_eq!(labels["kubernetes.io/hostname"], "sim-0");
        let status = node.status.unwrap();
        assert_eq!(status.allocatable.unwrap()["pods"].0, "1000");
        let ready: Vec<_> = status
            .conditions
            .unwrap()
            .into_iter()
            .filter(|c| c.status == "True")
            .collect();
        assert_eq!((ready.len(), ready[0].type_.as_str()), (1, "Ready"));
        assert_eq!(node.spec.unwrap().taints.unwrap()[0].effect, "NoSchedule");
        let lease: Lease = serde_json::from_value(lease("sim-0", "u", now)).unwrap();
        assert_eq!(lease.spec.unwrap().renew_time.unwrap().0, now);
        assert_eq!(lease.metadata.owner_references.unwrap()[0].kind, "Node");
    }
}
