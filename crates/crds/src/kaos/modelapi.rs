//! ModelAPI: an endpoint that speaks the OpenAI API, either a proxy to models elsewhere or a model hosted here.

use super::Phase;
use crate::common::{
    Autoscaling, ContainerOverride, DeploymentStatus, Fragment, GatewayRoute, Problem, Telemetry, given,
    lenient_conditions, text,
};
use crate::schema::{self, Rule};
use crate::storage::ClaimStorage;
use crate::validate::{autoscaling_problems, spec_problems};
use k8s_openapi::api::core::v1::{
    ConfigMapKeySelector, EnvVar, LocalObjectReference, ResourceRequirements, SecretKeySelector,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which models are served, and how.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kaos.tools",
    version = "v1alpha1",
    kind = "ModelAPI",
    plural = "modelapis",
    singular = "modelapi",
    shortname = "api",
    shortname = "apis",
    category = "gantry",
    category = "kaos",
    namespaced,
    status = "ModelAPIStatus",
    derive = "PartialEq",
    doc = "An endpoint that agents ask for answers: a LiteLLM proxy to models elsewhere, or a model hosted here with Ollama.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".status.endpoint",
        priority = 1
    ),
    printcolumn(
        name = "Models",
        type_ = "string",
        json_path = ".status.supportedModels",
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
#[schemars(extend(
    "required" = ["mode"],
    "x-kubernetes-validations" = schema::rules(&[PROXY_NEEDS_CONFIG, HOSTED_NEEDS_MODEL, ONE_HOSTED_BLOCK])
))]
pub struct ModelAPISpec {
    /// `Proxy` runs LiteLLM in front of models elsewhere, `Hosted` runs Ollama with one model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModelAPIMode>,

    /// Settings of mode Proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_config: Option<ProxyConfig>,

    /// Settings of mode Hosted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosted_config: Option<HostedConfig>,

    /// Older name of `hostedConfig`, which is preferred; give one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_config: Option<HostedConfig>,

    /// How many pods serve. Left to the autoscaler while `autoscaling` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 1))]
    pub replicas: Option<i32>,

    /// A HorizontalPodAutoscaler for the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// Requests and limits of the server container. `container.resources` wins where both name a quantity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,

    /// ServiceAccount of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::OPTIONAL_NAME_PATTERN))]
    pub service_account_name: Option<String>,

    /// Secrets for pulling the images from a private registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::local_references")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,

    /// OpenTelemetry settings. As the operator is configured when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,

    /// How the endpoint is reached through the Gateway API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_route: Option<GatewayRoute>,

    /// Changes to the server container (`model-api`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerOverride>>,

    /// A PodSpec fragment, merged strategically over the generated pod; the container is called `model-api`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_spec: Option<Fragment>,
}

/// Whether models are elsewhere or here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum ModelAPIMode {
    /// LiteLLM in front of models elsewhere.
    Proxy,
    /// Ollama with one model.
    Hosted,
}

/// How LiteLLM reaches the models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyConfig {
    /// Models that agents may ask for: exact names, `*` for all, or `prefix/*`. All when absent (older shape).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(min = 1, max = 512)))]
    pub models: Option<Vec<String>>,

    /// LiteLLM's prefix of the provider, such as `openai` or `ollama`, put before each model's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub provider: Option<String>,

    /// Address of the provider, for anything that is not its public one. Passed on as `PROXY_API_BASE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub api_base: Option<String>,

    /// Key for the provider. Passed on as `PROXY_API_KEY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKey>,

    /// A LiteLLM configuration of your own, used as it is in place of the generated one. `models` then only tells
    /// agents what they may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_yaml: Option<ConfigYaml>,

    /// Environment variables of the proxy. `container.env` is preferred and wins where both name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub env: Option<Vec<EnvVar>>,
}

/// A key, as text or by reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[ONE_KEY])))]
pub struct ApiKey {
    /// The key itself, readable by everybody who may read this object; a reference is better.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub value: Option<String>,

    /// Where the key is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ApiKeyReference>,
}

/// Where a key is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiKeyReference {
    /// A key of a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub secret_key_ref: Option<SecretKeySelector>,

    /// A key of a ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::config_map_key")]
    pub config_map_key_ref: Option<ConfigMapKeySelector>,
}

/// A LiteLLM configuration, as text or by reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[ONE_YAML])))]
pub struct ConfigYaml {
    /// The YAML itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 500_000))]
    pub from_string: Option<String>,

    /// A key of a Secret that holds the YAML.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub from_secret_key_ref: Option<SecretKeySelector>,
}

/// How Ollama serves a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostedConfig {
    /// The model, as `ollama pull` takes it: `smollm2:135m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub model: Option<String>,

    /// Environment variables of the server. `container.env` is preferred and wins where both name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub env: Option<Vec<EnvVar>>,

    /// A volume that keeps the weights over restarts. Without it every new pod downloads them again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<ClaimStorage>,

    /// How long the download may take before the pod is restarted, in seconds. An hour when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 86_400))]
    pub pull_timeout_seconds: Option<i32>,
}

/// How the endpoint is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelAPIStatus {
    /// One word: Pending, Waiting, Ready or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Whether models can be asked now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,

    /// Address inside the cluster, for `MODEL_API_URL` of the agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,

    /// What a person should know; the message of the Ready condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Models that agents may ask for; `*` and `prefix/*` stand for many.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub supported_models: Option<Vec<String>>,

    /// Pods in all, for `kubectl scale` and autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Label selector of the pods, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// What the Deployment reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentStatus>,

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

const PROXY_NEEDS_CONFIG: Rule = Rule {
    rule: "self.mode != 'Proxy' || has(self.proxyConfig)",
    message: "mode Proxy needs proxyConfig: say there which models are served and where they are",
};

const HOSTED_NEEDS_MODEL: Rule = Rule {
    rule: "self.mode != 'Hosted' || \
           (has(self.hostedConfig) && has(self.hostedConfig.model) && self.hostedConfig.model != '') || \
           (has(self.serverConfig) && has(self.serverConfig.model) && self.serverConfig.model != '')",
    message: "mode Hosted needs a model: set hostedConfig.model",
};

const ONE_HOSTED_BLOCK: Rule = Rule {
    rule: "!has(self.hostedConfig) || !has(self.serverConfig)",
    message: "hostedConfig and serverConfig are two names of one block: keep hostedConfig, remove serverConfig",
};

const ONE_KEY: Rule = Rule {
    rule: "(has(self.value) && self.value != '' ? 1 : 0) + (!has(self.valueFrom) ? 0 : \
           (has(self.valueFrom.secretKeyRef) ? 1 : 0) + (has(self.valueFrom.configMapKeyRef) ? 1 : 0)) <= 1",
    message: "give the key in one way: value, valueFrom.secretKeyRef or valueFrom.configMapKeyRef",
};

const ONE_YAML: Rule = Rule {
    rule: "!has(self.fromString) || self.fromString == '' || !has(self.fromSecretKeyRef)",
    message: "give the configuration in one way: fromString or fromSecretKeyRef",
};

impl ProxyConfig {
    /// The key, unless the block says nothing: the original takes that for absent.
    pub fn api_key(&self) -> Option<&ApiKey> {
        self.api_key.as_ref().filter(|key| key.ways() > 0)
    }
}

impl ApiKey {
    /// In how many ways it is given.
    fn ways(&self) -> usize {
        let references = self.value_from.as_ref().map_or(0, |from| {
            usize::from(from.secret_key_ref.is_some()) + usize::from(from.config_map_key_ref.is_some())
        });
        usize::from(given(self.value.as_ref())) + references
    }

    fn problems(&self, field: &str) -> Vec<Problem> {
        if self.ways() <= 1 {
            Vec::new()
        } else {
            vec![Problem::new(field, ONE_KEY.message)]
        }
    }
}

impl ConfigYaml {
    fn problems(&self, field: &str) -> Vec<Problem> {
        if given(self.from_string.as_ref()) && self.from_secret_key_ref.is_some() {
            vec![Problem::new(field, ONE_YAML.message)]
        } else {
            Vec::new()
        }
    }
}

impl HostedConfig {
    /// The model, unless it is absent or empty.
    pub fn model(&self) -> Option<&str> {
        text(self.model.as_ref())
    }

    /// Seconds that the download may take, an hour when absent.
    pub fn pull_timeout_seconds(&self) -> i32 {
        self.pull_timeout_seconds.unwrap_or(3600)
    }
}

impl ModelAPISpec {
    /// Pods to run when no autoscaler does it, 1 when absent.
    pub fn replicas(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// The autoscaler's settings, when one is wanted.
    pub fn autoscaling(&self) -> Option<&Autoscaling> {
        self.autoscaling.as_ref().filter(|a| a.enabled())
    }

    /// Settings of mode Hosted, under either of their names.
    pub fn hosted(&self) -> Option<&HostedConfig> {
        self.hosted_config.as_ref().or(self.server_config.as_ref())
    }

    /// Models that agents may ask for: as listed, all for a proxy that lists none, or the hosted one.
    pub fn supported_models(&self) -> Vec<String> {
        match self.mode {
            Some(ModelAPIMode::Proxy) => {
                let listed = self.proxy_config.as_ref().and_then(|c| c.models.clone());
                listed
                    .filter(|models| !models.is_empty())
                    .unwrap_or_else(|| vec!["*".to_owned()])
            }
            Some(ModelAPIMode::Hosted) => self
                .hosted()
                .and_then(HostedConfig::model)
                .map(str::to_owned)
                .into_iter()
                .collect(),
            None => Vec::new(),
        }
    }

    /// Everything that is wrong with the spec: what the schema and the CEL rules of the CRD would say, for servers
    /// that ignore them.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = spec_problems(crate::Kind::ModelAPI, self);
        if self.mode == Some(ModelAPIMode::Proxy) && self.proxy_config.is_none() {
            problems.push(Problem::new("spec", PROXY_NEEDS_CONFIG.message));
        }
        let has_model = [&self.hosted_config, &self.server_config]
            .into_iter()
            .flatten()
            .any(|config| config.model().is_some());
        if self.mode == Some(ModelAPIMode::Hosted) && !has_model {
            problems.push(Problem::new("spec", HOSTED_NEEDS_MODEL.message));
        }
        if self.hosted_config.is_some() && self.server_config.is_some() {
            problems.push(Problem::new("spec", ONE_HOSTED_BLOCK.message));
        }
        if let Some(proxy) = &self.proxy_config {
            problems.extend(
                proxy
                    .api_key
                    .iter()
                    .flat_map(|key| key.problems("spec.proxyConfig.apiKey")),
            );
            problems.extend(
                proxy
                    .config_yaml
                    .iter()
                    .flat_map(|yaml| yaml.problems("spec.proxyConfig.configYaml")),
            );
        }
        let blocks = [
            ("hostedConfig", &self.hosted_config),
            ("serverConfig", &self.server_config),
        ];
        for (name, storage) in blocks
            .into_iter()
            .filter_map(|(name, config)| Some((name, config.as_ref()?.storage.as_ref()?)))
        {
            problems.extend(storage.problems(&format!("spec.{name}.storage")));
        }
        problems.extend(autoscaling_problems(
            "spec.autoscaling",
            self.autoscaling.as_ref(),
        ));
        problems
    }
}

/// Whether a model is among those that an endpoint serves: exact, `*`, or `prefix/*`.
pub fn serves(supported: &[String], model: &str) -> bool {
    supported.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some("") => true,
        Some(prefix) if prefix.ends_with('/') => model.starts_with(prefix),
        _ => pattern == model,
    })
}
