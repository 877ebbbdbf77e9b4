//! Pieces that several kinds share.

use crate::schema;
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, ResourceRequirements, SecurityContext, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A fragment of a pod spec or pod template, merged strategically over what Gantry generates: lists of named things
/// (containers, volumes, environment) merge by name, everything else replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Fragment(#[schemars(schema_with = "schema::preserved")] pub Map<String, Value>);

impl Fragment {
    /// True when there is nothing to merge.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Changes to the main container, merged over what Gantry generates. Shorter than `podSpec` for the common cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerOverride {
    /// Image to run instead of the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub image: Option<String>,

    /// When the kubelet pulls the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,

    /// Entrypoint; replaces the generated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(length(max = schema::MAX_VALUE)))]
    pub command: Option<Vec<String>>,

    /// Arguments; replace the generated ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256), inner(length(max = schema::MAX_VALUE)))]
    pub args: Option<Vec<String>>,

    /// Environment variables, merged by name; yours win over generated ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub env: Option<Vec<EnvVar>>,

    /// ConfigMaps and Secrets whose keys all become environment variables.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env_from")]
    pub env_from: Option<Vec<EnvFromSource>>,

    /// Requests and limits; each quantity given replaces the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,

    /// Security context of the container, merged over the strict default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved")]
    pub security_context: Option<SecurityContext>,

    /// Working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub working_dir: Option<String>,

    /// Extra volume mounts, merged by mount path. The volumes themselves go into `podSpec.volumes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::volume_mounts")]
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// An empty word as none: the originals write it for what is not said.
pub(crate) fn empty_as_absent<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let given = Option::<Value>::deserialize(deserializer)?;
    let given = given.filter(|given| given.as_str() != Some(""));
    given
        .map(serde_json::from_value)
        .transpose()
        .map_err(serde::de::Error::custom)
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// The word that Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// OpenTelemetry settings, passed to the pods as `OTEL_*` variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Telemetry {
    /// Whether traces, metrics and log correlation are switched on. Absent together with the whole block means: as
    /// the operator is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// OTLP endpoint, for example `http://otel-collector.observability:4317`. The operator's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub endpoint: Option<String>,
}

impl Telemetry {
    /// Whether this block switches telemetry on.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(false)
    }
}

/// How the object is reached through the Gateway API, where that is installed and enabled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayRoute {
    /// Whether an HTTPRoute is made. Absent means: as the operator is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Request timeout as a Gateway API duration such as `30s` or `1m30s`; `0s` leaves it to the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = schema::DURATION_PATTERN))]
    pub timeout: Option<String>,

    /// How often the gateway tries again after a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: Option<i32>,
}

/// A HorizontalPodAutoscaler made by Gantry. While it is enabled, `replicas` is left to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[MIN_MAX, FROM_ZERO])))]
pub struct Autoscaling {
    /// Switches the autoscaler off without removing its settings. On when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Fewest replicas. 0 needs a custom metric and a server whose autoscaler can scale to zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS))]
    pub min_replicas: Option<i32>,

    /// Most replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = schema::MAX_REPLICAS))]
    pub max_replicas: Option<i32>,

    /// Wished-for mean CPU use, in percent of the request. 70 when no metric at all is named.
    #[serde(rename = "targetCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu: Option<i32>,

    /// Wished-for mean memory use, in percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_memory: Option<i32>,

    /// Custom metrics, from `custom.metrics.k8s.io` or `external.metrics.k8s.io`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub metrics: Option<Vec<AutoscalingMetric>>,

    /// Scaling speed and stabilisation, as `behavior` of a `autoscaling/v2` HorizontalPodAutoscaler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Fragment>,
}

/// CEL twin of the check in [`Autoscaling::problems`].
pub const MIN_MAX: schema::Rule = schema::Rule {
    rule: "!has(self.minReplicas) || self.minReplicas <= (has(self.maxReplicas) ? self.maxReplicas : 10)",
    message: "minReplicas must not be greater than maxReplicas (10 when absent): lower the one or raise the other",
};

/// CEL twin of the check in [`Autoscaling::problems`].
pub const FROM_ZERO: schema::Rule = schema::Rule {
    rule: "!has(self.minReplicas) || self.minReplicas > 0 || (has(self.metrics) && size(self.metrics) > 0)",
    message: "minReplicas 0 needs a custom metric: CPU and memory of no pod wake nobody; add metrics or set minReplicas to 1",
};

impl Autoscaling {
    /// Most replicas when the spec does not say.
    pub const DEFAULT_MAX: i32 = 10;
    /// CPU percentage when the spec names no metric.
    pub const DEFAULT_CPU: i32 = 70;

    /// Whether an autoscaler is wanted.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Fewest replicas, 1 when absent.
    pub fn min_replicas(&self) -> i32 {
        self.min_replicas.unwrap_or(1)
    }

    /// Most replicas, [`Self::DEFAULT_MAX`] when absent.
    pub fn max_replicas(&self) -> i32 {
        self.max_replicas.unwrap_or(Self::DEFAULT_MAX)
    }

    /// Wished-for CPU percentage: as given, or the default when no metric is named.
    pub fn target_cpu(&self) -> Option<i32> {
        let none_named = self.target_memory.is_none() && self.metrics.as_ref().is_none_or(Vec::is_empty);
        self.target_cpu.or(none_named.then_some(Self::DEFAULT_CPU))
    }

    /// What is wrong across fields; `field` is the path of this block.
    pub fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.min_replicas.is_some_and(|min| min > self.max_replicas()) {
            problems.push(Problem::new(field, MIN_MAX.message));
        }
        if self.min_replicas == Some(0) && self.metrics.as_ref().is_none_or(Vec::is_empty) {
            problems.push(Problem::new(field, FROM_ZERO.message));
        }
        problems
    }
}

/// A metric that an autoscaler follows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"], "x-kubernetes-validations" = schema::rules(&[ONE_TARGET])))]
pub struct AutoscalingMetric {
    /// Name of the metric.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Where it is read: `Pods` (one value per pod, the default) or `External`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<MetricType>,

    /// Labels that the series must carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::string_map")]
    pub match_labels: Option<BTreeMap<String, String>>,

    /// Wished-for value per pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub average_value: Option<Quantity>,

    /// Wished-for value in total, for `External` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub value: Option<Quantity>,
}

/// CEL twin of the check in [`AutoscalingMetric::problems`].
pub const ONE_TARGET: schema::Rule = schema::Rule {
    rule: "has(self.averageValue) != has(self.value) && (!has(self.value) || (has(self.type) && self.type == 'External'))",
    message: "give the metric exactly one target: averageValue, or value (only with type External)",
};

impl AutoscalingMetric {
    /// Where the metric is read, `Pods` when absent.
    pub fn metric_type(&self) -> MetricType {
        self.type_.unwrap_or(MetricType::Pods)
    }

    /// What is wrong across fields.
    pub fn problems(&self, field: &str) -> Vec<Problem> {
        let one = self.average_value.is_some() != self.value.is_some();
        let fits = self.value.is_none() || self.metric_type() == MetricType::External;
        if one && fits {
            Vec::new()
        } else {
            vec![Problem::new(field, ONE_TARGET.message)]
        }
    }
}

/// Where a metric of an autoscaler comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum MetricType {
    Pods,
    External,
}

/// What the Deployment behind an object reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// Pods that the Deployment runs in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Pods that are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,

    /// Pods that have been ready long enough to count as available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,

    /// Pods that run the newest template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,

    /// The Deployment's own conditions.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient_conditions"
    )]
    #[schemars(schema_with = "schema::copied_conditions")]
    pub conditions: Option<Vec<Condition>>,
}

/// One thing that is wrong with a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, such as `spec.config.mcp`.
    pub field: String,
    /// What is wrong and how to cure it.
    pub message: String,
}

impl Problem {
    /// A problem at a field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Reads conditions that an original operator wrote, which may lack the transition time that the standard type
/// insists on; the epoch stands in for it.
pub fn lenient_conditions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Condition>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Lenient {
        #[serde(rename = "type", default)]
        type_: String,
        #[serde(default)]
        status: String,
        reason: Option<String>,
        message: Option<String>,
        last_transition_time: Option<Time>,
        observed_generation: Option<i64>,
    }
    let conditions = Option::<Vec<Lenient>>::deserialize(deserializer)?;
    Ok(conditions.map(|list| {
        list.into_iter()
            .map(|c| Condition {
                type_: c.type_,
                status: c.status,
                reason: c.reason.unwrap_or_default(),
                message: c.message.unwrap_or_default(),
                last_transition_time: c.last_transition_time.unwrap_or(Time(Timestamp::UNIX_EPOCH)),
                observed_generation: c.observed_generation,
            })
            .collect()
    }))
}

/// True for `Some` of a text that is not empty: the originals' clients send empty strings for "not set".
pub fn given(text: Option<&String>) -> bool {
    text.is_some_and(|t| !t.is_empty())
}

/// The text, unless it is absent or empty.
pub fn text(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|t| !t.is_empty())
}
