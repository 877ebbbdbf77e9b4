//! Status of a PeninOmegaCluster.

use super::PerService;
use crate::common::lenient_conditions;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The one word that says how a cluster is doing; derived from the conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum ClusterPhase {
    /// Seen; nothing is made yet.
    #[default]
    Pending,
    /// Its services are being made.
    Creating,
    /// All services are ready.
    Running,
    /// Some services are not ready yet.
    Updating,
    /// No service works, or the spec is impossible.
    Failed,
    /// It is being deleted.
    Terminating,
}

/// How the cluster is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninOmegaClusterStatus {
    /// One word: Pending, Creating, Running, Updating, Failed or Terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClusterPhase>,

    /// What a person should know; the message of the Ready condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// The version that all pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,

    /// How each service is doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<PerService<ServiceStatus>>,

    /// How the cache is doing, where it is a Redis of the cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<ServiceStatus>,

    /// The services' metrics, as last read and changed enough to matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<ClusterMetrics>,

    /// When the status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,

    /// Conditions, one per type.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient_conditions"
    )]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,

    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How one service is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Whether all of its pods are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,

    /// Pods in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
}

/// The services' metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterMetrics {
    /// Step size α.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,

    /// Change of L∞.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta_linf: Option<f64>,

    /// CAOS+.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caos_plus: Option<f64>,

    /// Score of SR-Ω∞.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sr_score: Option<f64>,
}
