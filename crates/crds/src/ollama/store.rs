//! Where a Model's weights are kept, and how they get there.

use crate::common::{Fragment, PullPolicy, text};
use crate::schema;
use crate::storage::{AccessMode, DeletionPolicy};
use k8s_openapi::api::core::v1::{EnvVar, PodSecurityContext, ResourceRequirements, SecretKeySelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whose volume the weights are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum StoreScope {
    /// One volume for all Models of the namespace.
    #[default]
    Shared,
    /// A volume of this Model's own, for clusters of several nodes without ReadWriteMany.
    PerModel,
}

/// The volume that holds the weights, and the server that downloads them into it. All Models of a namespace which
/// share a store must agree about it; the first one decides, the others get a condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelStore {
    /// `Shared` (the default) or `PerModel`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<StoreScope>,

    /// Size of the volume, 100Gi when absent. It can grow where the class allows it, never shrink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,

    /// What becomes of the volume and its server when no Model uses them any more, Retain when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,

    /// What becomes of the weights when the last Model that uses them is deleted, Delete when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_policy: Option<DeletionPolicy>,

    /// Image of the store's server; that of the Model's server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub image: Option<String>,

    /// Requests and limits of the store's server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,

    /// Security context of the store's pod, merged over the strict default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved")]
    pub security_context: Option<PodSecurityContext>,

    /// Labels of the nodes that the store may run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::string_map")]
    pub node_selector: Option<BTreeMap<String, String>>,

    /// Taints that the store tolerates, as in a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved_list")]
    pub tolerations: Option<Vec<Fragment>>,

    /// Environment variables of the store's server, for example a proxy for downloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub env: Option<Vec<EnvVar>>,

    /// A key of a Secret with the private key (OpenSSH, ed25519) by which private registries of models know the store.
    /// Ollama makes one of its own on the volume when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub registry_key: Option<SecretKeySelector>,
}

impl ModelStore {
    /// Size of the volume when the spec does not say.
    pub const DEFAULT_SIZE: &str = "100Gi";

    /// Whose volume it is, the namespace's when absent.
    pub fn scope(&self) -> StoreScope {
        self.scope.unwrap_or_default()
    }

    /// Size of the volume.
    pub fn size(&self) -> Quantity {
        self.size
            .clone()
            .unwrap_or_else(|| Quantity(Self::DEFAULT_SIZE.to_owned()))
    }

    /// What becomes of the volume in the end.
    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.deletion_policy.unwrap_or(DeletionPolicy::Retain)
    }

    /// What becomes of the weights in the end.
    pub fn weights_policy(&self) -> DeletionPolicy {
        self.weights_policy.unwrap_or(DeletionPolicy::Delete)
    }
}

/// How the volume of the weights may be mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelVolume {
    /// ReadWriteOnce (the default) ties all pods to one node; ReadWriteMany and ReadOnlyMany do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,
}

/// How weights are downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelPull {
    /// Whether a registry without a valid certificate is trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,

    /// Seconds without any progress after which a download is started again, 300 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86_400))]
    pub stall_timeout_seconds: Option<i32>,

    /// Image of the container that waits for the download, with `sh` and `ollama` in it; that of the Model's server
    /// when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub image: Option<String>,
}

impl ModelPull {
    /// Seconds without progress, 300 when absent.
    pub fn stall_timeout_seconds(&self) -> i32 {
        self.stall_timeout_seconds.unwrap_or(300)
    }
}

/// The Ollama server and the proxy in front of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelServer {
    /// Image of Ollama, for example a ROCm build; the operator's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub image: Option<String>,

    /// When the kubelet pulls that image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,

    /// How long the model may take to get ready before the pod is restarted, in seconds. Follows from the size of the
    /// model when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86_400))]
    pub startup_timeout_seconds: Option<i32>,

    /// Whether NET_BIND_SERVICE is added to the (otherwise empty) capabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_bind_service: Option<bool>,

    /// The counting proxy, which measures requests for metrics and autoscaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ModelProxy>,
}

impl ModelServer {
    /// Image of Ollama, if the spec names one.
    pub fn image(&self) -> Option<&str> {
        text(self.image.as_ref())
    }
}

/// The counting proxy in front of Ollama.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelProxy {
    /// Whether the proxy runs. When absent it does where the autoscaler or Prometheus needs its numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Image of the proxy; Gantry's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub image: Option<String>,

    /// Requests that are passed on at once; the others wait and count as queue. No limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_concurrency: Option<i32>,

    /// Requests and limits of the proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,
}

/// What is made for Prometheus, where its operator's kinds are installed. The numbers are those of the counting proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelMonitoring {
    /// Makes a ServiceMonitor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<bool>,

    /// Makes a PodMonitor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_monitor: Option<bool>,

    /// Makes a PrometheusRule with alerts for this Model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus_rule: Option<bool>,

    /// How often Prometheus asks, as a duration such as `30s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = schema::DURATION_PATTERN))]
    pub interval: Option<String>,

    /// Labels of those objects, by which a Prometheus finds them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::string_map")]
    pub labels: Option<BTreeMap<String, String>>,
}

impl ModelMonitoring {
    /// Whether anything is to be made.
    pub fn is_wanted(&self) -> bool {
        [self.service_monitor, self.pod_monitor, self.prometheus_rule].contains(&Some(true))
    }
}
