//! `/clusters`. No body that is sent back has a field for credentials.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Page;

/// Credentials on their way in. Neither printed nor sent back.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Kubeconfig(pub Value);

impl fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kubeconfig(hidden)")
    }
}

/// What is sent to register a cluster.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegisterCluster {
    /// A DNS label; unique.
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// Development (Dev), Staging, Production (Prod) or a name of your own.
    pub environment: String,
    /// A kubeconfig file in base64, or as a JSON object. It must not name programs or files.
    pub kubeconfig: Kubeconfig,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// What may be changed later; what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeCluster {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// A disabled cluster is neither looked at nor deployed to.
    #[serde(default, alias = "enabled", skip_serializing_if = "Option::is_none")]
    pub is_enabled: Option<bool>,
    /// New credentials for the same cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<Kubeconfig>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    pub cluster_id: Uuid,
    pub name: String,
    pub description: String,
    pub environment: String,
    pub api_server_url: String,
    pub kubernetes_version: String,
    pub node_count: u32,
    /// `Unknown`, `Healthy`, `Degraded` or `Unhealthy`.
    pub health_status: String,
    /// One word, such as `NodesReady` or `Unreachable`.
    pub health_reason: String,
    pub health_message: String,
    /// Since when it is like this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_health_check_at: Option<Timestamp>,
    /// When its definitions were last read; absent where they never could be. `healthMessage` says why they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definitions_seen_at: Option<Timestamp>,
    pub labels: BTreeMap<String, String>,
    pub is_enabled: bool,
    pub deployed_operators: Vec<DeployedOperator>,
    pub registered_at: Timestamp,
    pub updated_at: Timestamp,
}

/// An operator that was found or put on a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeployedOperator {
    pub operator_name: String,
    pub version: String,
    pub namespace: String,
    pub deployed_at: Timestamp,
    pub health_status: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Clusters {
    pub clusters: Vec<Cluster>,
    #[serde(flatten)]
    pub page: Page,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterHealth {
    pub cluster_name: String,
    pub health_status: String,
    pub reason: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    pub api_server_reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_server_latency_ms: Option<u64>,
    pub kubernetes_version: String,
    pub node_health: NodeHealth,
    /// When its definitions were last read; absent where they never could be. `message` says why they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definitions_seen_at: Option<Timestamp>,
    pub deployed_operators: Vec<DeployedOperator>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checked: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeHealth {
    pub ready: u32,
    pub not_ready: u32,
}
