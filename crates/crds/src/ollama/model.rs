//! Model: a model that Ollama serves.

use super::{
    Claim, ClaimError, ModelAutoscaling, ModelIngress, ModelMonitoring, ModelPull, ModelServer, ModelService,
    ModelStore, ModelVolume, StoreScope,
};
use crate::common::{
    Fragment, GatewayRoute, Problem, PullPolicy, Telemetry, empty_as_absent, lenient_conditions,
};
use crate::schema;
use crate::storage::AccessMode;
use crate::validate::spec_problems;
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Port that Ollama listens on.
pub const PORT: i32 = 11434;

/// Which model is served, where its weights are kept, and how it is reached.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ollama.ayaka.io",
    version = "v1",
    kind = "Model",
    plural = "models",
    singular = "model",
    category = "gantry",
    category = "ollama",
    namespaced,
    status = "ModelStatus",
    derive = "PartialEq",
    doc = "A model that Ollama serves: downloaded into a store, loaded by its own pods, reached through a Service.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Stage", type_ = "string", json_path = ".status.stage"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size", priority = 1),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".status.endpoint",
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
#[schemars(extend("required" = ["image"]))]
pub struct ModelSpec {
    /// The model, as `ollama pull` takes it: `phi3`, `llama3.1:8b`, `hf.co/org/model:Q4_K_M`, or with a registry's
    /// host before it. Not a container image; that is `server.image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// How many pods serve. Left to the autoscaler while `autoscaling` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 1))]
    pub replicas: Option<i32>,

    /// When the model is downloaded again: `Always` asks its registry at every start of a pod, `IfNotPresent` (the
    /// default) only for a model that is not in the store, `Never` not at all.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "empty_as_absent")]
    #[schemars(schema_with = "schema::pull_policy_or_empty")]
    pub image_pull_policy: Option<PullPolicy>,

    /// Secrets for private registries of container images. A private registry of models knows Ollama by a key: see
    /// `store.registryKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::local_references")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,

    /// Requests and limits of the server container, GPUs among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,

    /// StorageClass of the weights' volume; the cluster's default one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,

    /// A claim that exists already and holds the weights: its name, or an object with `claimName` and `readOnly`. Both
    /// forms are in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::anything")]
    pub persistent_volume_claim: Option<Value>,

    /// How the volume of the weights may be mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume: Option<ModelVolume>,

    /// The store of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<ModelStore>,

    /// How the weights are downloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull: Option<ModelPull>,

    /// The Ollama server and the proxy in front of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ModelServer>,

    /// RuntimeClass of the pods, for GPU runtimes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub runtime_class_name: Option<String>,

    /// ConfigMaps and Secrets whose keys all become environment variables of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env_from")]
    pub extra_env_from: Option<Vec<EnvFromSource>>,

    /// Environment variables of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub extra_env: Option<Vec<EnvVar>>,

    /// A PodTemplate fragment, merged strategically over the generated one, image and arguments included; the containers
    /// are called `server` and `ollama-image-pull`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<Fragment>,

    /// ServiceAccount of the pods; one of the Model's own, which may read what its spec names, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::OPTIONAL_NAME_PATTERN))]
    pub service_account_name: Option<String>,

    /// The Service in front of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ModelService>,

    /// An Ingress in front of the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<ModelIngress>,

    /// How the model is reached through the Gateway API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_route: Option<GatewayRoute>,

    /// A HorizontalPodAutoscaler for the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<ModelAutoscaling>,

    /// What is made for Prometheus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<ModelMonitoring>,

    /// OpenTelemetry settings. As the operator is configured when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
}

/// The one word that says how a Model is doing; derived from the conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum ModelPhase {
    /// Accepted; its store is not up yet.
    #[default]
    Pending,
    /// The weights are being downloaded.
    Pulling,
    /// The weights are there; the pods are starting.
    Loading,
    /// The model answers.
    Ready,
    /// The model answers, but with fewer pods than asked for, or something that it needs was lost.
    Degraded,
    /// It cannot work until somebody acts; the message says why.
    Failed,
    /// It is being deleted.
    Terminating,
}

/// How the model is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelStatus {
    /// One word: Pending, Pulling, Loading, Ready, Degraded, Failed or Terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<ModelPhase>,

    /// What a person should know; the message of the Ready condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// What is going on within the phase, for example `pulling 43%`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,

    /// Address inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,

    /// Size of the weights, as Ollama reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,

    /// Digest of the model, as Ollama reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,

    /// Models that this one served before, and whose weights are still to be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Vec<String>>,

    /// Pods in all, for `kubectl scale` and autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Pods that have been ready long enough to count as available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,

    /// Pods that are missing or not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i32>,

    /// Label selector of the pods, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

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

// No CEL twins: a field without a type, as persistentVolumeClaim has to be, does not exist for CEL.
const CLAIM_OR_SIZE: &str =
    "persistentVolumeClaim is used as it is: remove store.size, or remove persistentVolumeClaim";
const CLAIM_OR_PER_MODEL: &str = "store.scope PerModel makes a volume of its own: remove persistentVolumeClaim, or set the scope to Shared";

const PROXY_NEEDED: &str = "autoscaling by request rate or queue depth, and monitoring, need the numbers of the proxy: \
                            remove enabled, or remove those";

impl ModelSpec {
    /// Pods to run when no autoscaler does it, 1 when absent.
    pub fn replicas(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// The autoscaler's settings, when one is wanted.
    pub fn autoscaling(&self) -> Option<&ModelAutoscaling> {
        self.autoscaling.as_ref().filter(|a| a.enabled())
    }

    /// When the model is downloaded again, IfNotPresent when absent.
    pub fn image_pull_policy(&self) -> PullPolicy {
        self.image_pull_policy.unwrap_or(PullPolicy::IfNotPresent)
    }

    /// How the volume of the weights may be mounted, ReadWriteOnce when absent.
    pub fn access_mode(&self) -> AccessMode {
        self.persistent_volume
            .as_ref()
            .and_then(|v| v.access_mode)
            .unwrap_or_default()
    }

    /// Whose volume the weights are on, the namespace's when absent.
    pub fn store_scope(&self) -> StoreScope {
        self.store.as_ref().map(ModelStore::scope).unwrap_or_default()
    }

    /// The claim that exists already, in whichever form it is named.
    pub fn claim(&self) -> Result<Option<Claim>, ClaimError> {
        Claim::parse(self.persistent_volume_claim.as_ref())
    }

    /// Whether the counting proxy runs: as said, or where somebody needs its numbers.
    pub fn proxy_enabled(&self) -> bool {
        self.proxy_said().unwrap_or_else(|| self.needs_proxy())
    }

    fn proxy_said(&self) -> Option<bool> {
        self.server.as_ref()?.proxy.as_ref()?.enabled
    }

    fn needs_proxy(&self) -> bool {
        self.autoscaling().is_some_and(ModelAutoscaling::needs_proxy)
            || self.monitoring.as_ref().is_some_and(ModelMonitoring::is_wanted)
    }

    /// Everything that is wrong with the spec: what the schema and the CEL rules of the CRD would say, for servers
    /// that ignore them, and what no schema can say about `persistentVolumeClaim`.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = spec_problems(crate::Kind::Model, self);
        if let Err(error) = self.claim() {
            problems.push(Problem::new("spec.persistentVolumeClaim", error.to_string()));
        }
        if self.persistent_volume_claim.is_some() {
            if self.store.as_ref().is_some_and(|s| s.size.is_some()) {
                problems.push(Problem::new("spec", CLAIM_OR_SIZE));
            }
            if self.store_scope() == StoreScope::PerModel {
                problems.push(Problem::new("spec", CLAIM_OR_PER_MODEL));
            }
        }
        if self.proxy_said() == Some(false) && self.needs_proxy() {
            problems.push(Problem::new("spec.server.proxy", PROXY_NEEDED));
        }
        problems.extend(self.service.iter().flat_map(|s| s.problems("spec.service")));
        problems.extend(self.ingress.iter().flat_map(|i| i.problems("spec.ingress")));
        problems.extend(
            self.autoscaling
                .iter()
                .flat_map(|a| a.problems("spec.autoscaling")),
        );
        problems
    }
}
