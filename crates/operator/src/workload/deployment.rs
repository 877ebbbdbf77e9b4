//! The Deployment and the Service around a pod.

use gantry_kit::pods::{COMPONENT_LABEL, INSTANCE_LABEL, NAME_LABEL};
use serde_json::{Value, json};

use super::names;

/// On pods: a digest of the Secrets and ConfigMaps that they read.
pub const REFERENCES: &str = "gantry.dev/references";

/// A workload's names: what its children are called and carry.
pub struct Identity<'a> {
    /// Name of the children.
    pub child: &'a str,
    /// `Controller::NAME`; pods find their root by it.
    pub controller: &'a str,
    /// Name of the root.
    pub root: &'a str,
    pub component: &'a str,
    pub part_of: &'a str,
    /// The original's selector: it cannot change on a live Deployment.
    pub selector: &'a Value,
}

impl Identity<'_> {
    pub fn labels(&self) -> Value {
        let mut labels = self.selector.clone();
        labels[NAME_LABEL] = json!(self.controller);
        labels[INSTANCE_LABEL] = json!(names::label_value(self.root));
        labels[COMPONENT_LABEL] = json!(self.component);
        labels["app.kubernetes.io/part-of"] = json!(self.part_of);
        labels["app.kubernetes.io/managed-by"] = json!(gantry_kit::MANAGED_BY);
        labels
    }

    /// `ports` as name, port and target port.
    pub fn service(&self, ports: &[(&str, i32, i32)]) -> Value {
        let port = |(name, port, target): &(&str, i32, i32)| json!({"name": name, "port": port, "targetPort": target, "protocol": "TCP"});
        json!({
            "metadata": {"name": self.child, "labels": self.labels()},
            "spec": {
                "type": "ClusterIP",
                "selector": self.selector,
                "ports": ports.iter().map(port).collect::<Vec<_>>(),
            },
        })
    }

    /// `replicas` is left out when an autoscaler decides; `fingerprint` rolls the pods when it changes.
    pub fn deployment(&self, pod: &Value, replicas: Option<i32>, fingerprint: Option<&str>) -> Value {
        let mut annotations = json!({});
        if let Some(fingerprint) = fingerprint {
            annotations[REFERENCES] = json!(fingerprint);
        }
        let mut spec = json!({
            "selector": {"matchLabels": self.selector},
            "revisionHistoryLimit": 3,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": self.labels(), "annotations": annotations},
                "spec": pod,
            },
        });
        if let Some(replicas) = replicas {
            spec["replicas"] = json!(replicas);
        }
        json!({"metadata": {"name": self.child, "labels": self.labels()}, "spec": spec})
    }
}
