//! PeninOmegaCluster: the four services of PENIN-Ω, their cache and their ledger.

use super::{
    AutoScaling, EffectiveAutoScaling, Observability, PeninConfig, PeninOmegaClusterStatus, PeninSecrets,
    PeninStorage, PerService, Replicas, Resources, SelfArchitecting, Service, ServiceOverride,
};
use crate::common::{Fragment, Problem, PullPolicy, text};
use crate::schema;
use crate::validate::spec_problems;
use k8s_openapi::api::core::v1::LocalObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a PENIN-Ω cluster is made of. Everything has a default.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "penin.ai",
    version = "v1alpha1",
    kind = "PeninOmegaCluster",
    plural = "peninaomegaclusters",
    singular = "peninaomegacluster",
    shortname = "poc",
    shortname = "penin",
    category = "gantry",
    namespaced,
    status = "PeninOmegaClusterStatus",
    derive = "PartialEq",
    doc = "A PENIN-Ω cluster: orchestrator, gate, self-reflection and league, with their cache and ledger.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninOmegaClusterSpec {
    /// Version of PENIN-Ω, the tag of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128), extend("default" = "0.9.0"))]
    pub version: Option<String>,

    /// The image, where it is not the original's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<PeninImage>,

    /// Pods per service. Left to the autoscalers while `autoScaling` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,

    /// CPU and memory per service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Settings of the services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<PeninConfig>,

    /// What is seen of the services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observability: Option<Observability>,

    /// The ledger's volume and the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<PeninStorage>,

    /// A HorizontalPodAutoscaler per service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_scaling: Option<AutoScaling>,

    /// Secrets of the services, by reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<PeninSecrets>,

    /// What single services do otherwise than by default: image, command, port, probe, environment, pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<PerService<ServiceOverride>>,

    /// How services with two pods and more are kept up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability: Option<Availability>,

    /// NetworkPolicies that let the services talk to each other, to the cache and to what is listed here only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<PeninNetworkPolicy>,

    /// Which changes the cluster may ask for by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_architecting: Option<SelfArchitecting>,
}

/// The image of the services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninImage {
    /// Repository without a tag; `version` is the tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub repository: Option<String>,

    /// When the kubelet pulls it, IfNotPresent when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,

    /// Secrets for pulling it from a private registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::local_references")]
    pub pull_secrets: Option<Vec<LocalObjectReference>>,
}

/// How services with two pods and more are kept up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Availability {
    /// Whether a PodDisruptionBudget keeps one pod up while nodes are drained. True when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<bool>,

    /// Whether the pods of a service keep away from each other's nodes: `Preferred` (the default), `Required` or `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anti_affinity: Option<AntiAffinity>,
}

/// Whether pods of a service keep away from each other's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum AntiAffinity {
    /// If possible.
    #[default]
    Preferred,
    /// Always; a pod without a node of its own waits.
    Required,
    /// Not at all.
    None,
}

impl Availability {
    /// Whether there is a PodDisruptionBudget, true when absent.
    pub fn pod_disruption_budget(&self) -> bool {
        self.pod_disruption_budget.unwrap_or(true)
    }

    /// Whether pods keep apart, Preferred when absent.
    pub fn anti_affinity(&self) -> AntiAffinity {
        self.anti_affinity.unwrap_or_default()
    }
}

/// NetworkPolicies of the services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninNetworkPolicy {
    /// Whether the policies are made. On when the block is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Further egress rules, as in a NetworkPolicy, for example to providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved_list")]
    pub egress: Option<Vec<Fragment>>,

    /// Further ingress rules, as in a NetworkPolicy, for example from Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved_list")]
    pub ingress: Option<Vec<Fragment>>,
}

impl PeninNetworkPolicy {
    /// Whether the policies are wanted.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

impl PeninOmegaClusterSpec {
    /// Version when the spec does not say.
    pub const DEFAULT_VERSION: &str = "0.9.0";
    /// Repository of the image when the spec does not say.
    pub const DEFAULT_REPOSITORY: &str = "ghcr.io/danielgonzagat/peninaocubo";

    /// Version of PENIN-Ω, 0.9.0 when absent.
    pub fn version(&self) -> &str {
        text(self.version.as_ref()).unwrap_or(Self::DEFAULT_VERSION)
    }

    /// Image of the services.
    pub fn image(&self) -> String {
        let repository = self.image.as_ref().and_then(|i| text(i.repository.as_ref()));
        format!(
            "{}:{}",
            repository.unwrap_or(Self::DEFAULT_REPOSITORY),
            self.version()
        )
    }

    /// Pods of a service when no autoscaler decides, its default when absent.
    pub fn replicas(&self, service: Service) -> i32 {
        self.replicas
            .as_ref()
            .map_or_else(|| service.default_replicas(), |r| r.get(service))
    }

    /// CPU and memory of a service, its defaults where absent.
    pub fn resources(&self, service: Service) -> (Quantity, Quantity) {
        self.resources.clone().unwrap_or_default().get(service)
    }

    /// The autoscaler of a service, when one is wanted.
    pub fn auto_scaling(&self, service: Service) -> Option<EffectiveAutoScaling> {
        self.auto_scaling.as_ref().and_then(|a| a.of(service))
    }

    /// What a service does otherwise than by default.
    pub fn service(&self, service: Service) -> ServiceOverride {
        self.services
            .as_ref()
            .and_then(|s| s.get(service))
            .cloned()
            .unwrap_or_default()
    }

    /// Port of a service.
    pub fn port(&self, service: Service) -> i32 {
        self.service(service).port.unwrap_or_else(|| service.port())
    }

    /// Settings of the services, with defaults for an absent block.
    pub fn config(&self) -> PeninConfig {
        self.config.clone().unwrap_or_default()
    }

    /// What is seen of the services, with defaults for an absent block.
    pub fn observability(&self) -> Observability {
        self.observability.clone().unwrap_or_default()
    }

    /// The ledger's volume and the cache, with defaults for an absent block.
    pub fn storage(&self) -> PeninStorage {
        self.storage.clone().unwrap_or_default()
    }

    /// Everything that is wrong with the spec: what the schema and the CEL rules of the CRD would say, for servers
    /// that ignore them.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = spec_problems(crate::Kind::PeninOmegaCluster, self);
        problems.extend(self.storage.iter().flat_map(|s| s.problems("spec.storage")));
        problems.extend(
            self.auto_scaling
                .iter()
                .flat_map(|a| a.problems("spec.autoScaling")),
        );
        problems.extend(
            self.self_architecting
                .iter()
                .flat_map(|s| s.problems("spec.selfArchitecting")),
        );
        problems
    }
}
