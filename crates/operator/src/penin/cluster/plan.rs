//! Pure: names and addresses within one cluster.

use gantry_crds::penin::{PeninOmegaCluster, PeninOmegaClusterSpec, Service};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{Settings, workload::names};

pub const REDIS: &str = "redis";
pub const REDIS_PORT: i32 = 6379;

/// One cluster's spec with its names.
pub struct Plan<'a> {
    pub name: String,
    pub namespace: String,
    pub spec: &'a PeninOmegaClusterSpec,
    pub settings: &'a Settings,
}

impl<'a> Plan<'a> {
    pub fn new(cluster: &'a PeninOmegaCluster, settings: &'a Settings) -> Self {
        Self {
            name: cluster.name_any(),
            namespace: cluster.namespace().unwrap_or_default(),
            spec: &cluster.spec,
            settings,
        }
    }

    /// Name of the children of a component, as in the original.
    pub fn child(&self, component: &str) -> String {
        names::dns_label(&format!("{}-{component}", self.name))
    }

    /// Labels of all pods of the cluster, as in the original.
    pub fn everything(&self) -> Value {
        json!({"app": "penin-omega", "cluster": names::label_value(&self.name)})
    }

    /// The original's selector: it cannot change on a live Deployment.
    pub fn selector(&self, component: &str) -> Value {
        let mut labels = self.everything();
        labels["service"] = json!(component);
        labels
    }

    /// Where the other services find this one.
    pub fn url(&self, service: Service) -> String {
        format!(
            "http://{}:{}",
            self.child(service.name()),
            self.spec.port(service)
        )
    }

    /// Name of the ledger's claim, where it is ours to make.
    pub fn ledger_claim(&self) -> String {
        self.child("ledger")
    }

    /// The Secret with the password of Redis that is made up, where none is given.
    pub fn password_secret(&self) -> String {
        self.child("redis-auth")
    }

    /// Most pods that a service may have by its own spec.
    pub fn most_pods(&self, service: Service) -> i32 {
        match self.spec.auto_scaling(service) {
            Some(scaling) => scaling.max_replicas,
            None => self.spec.replicas(service),
        }
    }

    /// Fewest pods that a service has by its own spec.
    pub fn fewest_pods(&self, service: Service) -> i32 {
        match self.spec.auto_scaling(service) {
            Some(scaling) => scaling.min_replicas,
            None => self.spec.replicas(service),
        }
    }
}
