//! ScalingPolicy: what is scaled, within which bounds, by which learner and on which metrics.

use super::ScalingPolicyStatus;
use crate::common::Problem;
use crate::schema::{self, Rule};
use crate::validate::spec_problems;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is scaled, within which bounds, by which learner and on which metrics.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "nimbusguard.io",
    version = "v1",
    kind = "ScalingPolicy",
    plural = "scalingpolicies",
    singular = "scalingpolicy",
    shortname = "sp",
    shortname = "nsp",
    category = "gantry",
    category = "nimbusguard",
    namespaced,
    status = "ScalingPolicyStatus",
    derive = "PartialEq",
    doc = "Scales a workload by what a learner has found out, never outside the bounds given here.",
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target.name"),
    printcolumn(
        name = "Min-Replicas",
        type_ = "integer",
        json_path = ".spec.scaling.minReplicas"
    ),
    printcolumn(
        name = "Max-Replicas",
        type_ = "integer",
        json_path = ".spec.scaling.maxReplicas"
    ),
    printcolumn(
        name = "Current-Replicas",
        type_ = "integer",
        json_path = ".status.currentReplicas"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Decision",
        type_ = "string",
        json_path = ".status.lastDecision.action",
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
#[schemars(extend("required" = ["target", "scaling"]))]
pub struct ScalingPolicySpec {
    /// The workload that is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<ScalingTarget>,

    /// Bounds and speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingBounds>,

    /// How the policy learns and predicts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ai_config: Option<AiConfig>,

    /// What is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<PolicyMetrics>,

    /// Decide and report, but scale nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// The workload that is scaled; anything with a scale subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["apiVersion", "kind", "name"]))]
pub struct ScalingTarget {
    /// API version, such as `apps/v1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 316))]
    pub api_version: Option<String>,

    /// Kind, such as `Deployment`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: Option<String>,

    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::NAME_PATTERN))]
    pub name: Option<String>,

    /// Namespace; that of the policy when absent. Another one only where it allows this by annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
}

/// Bounds and speed of scaling. They hold whatever the learner wishes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[MIN_MAX])))]
pub struct ScalingBounds {
    /// Fewest replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100), extend("default" = 1))]
    pub min_replicas: Option<i32>,

    /// Most replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100), extend("default" = 10))]
    pub max_replicas: Option<i32>,

    /// Seconds between two changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 30, max = 86_400), extend("default" = 300))]
    pub cooldown_period: Option<i32>,

    /// One change may at most multiply the replicas by this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.1, max = 10.0), extend("default" = 2.0))]
    pub scale_up_factor: Option<f64>,

    /// One change may at most shrink the replicas to this share.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.1, max = 0.9), extend("default" = 0.5))]
    pub scale_down_factor: Option<f64>,

    /// One change may at most add or remove this many replicas, 3 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub max_step: Option<i32>,

    /// Seconds between two looks at the metrics, 15 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 3600))]
    pub evaluation_interval: Option<i32>,

    /// Seconds after which a change that made things worse is taken back, 300 when absent; 0 never takes one back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub rollback_timeout: Option<i32>,
}

/// How a policy learns and predicts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AiConfig {
    /// The learner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q_learning: Option<QLearning>,

    /// The forecast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lstm: Option<Lstm>,

    /// How sure the learner must be before it is heard, 0.7 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub confidence_threshold: Option<f64>,

    /// How often a situation must have been seen before the learner is heard on it, 2 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub min_observations: Option<i32>,
}

/// Settings of the Q-learner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[EPSILON_FALLS])))]
pub struct QLearning {
    /// How much one experience counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 1.0), extend("default" = 0.1))]
    pub learning_rate: Option<f64>,

    /// How much later rewards count.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 0.95))]
    pub discount_factor: Option<f64>,

    /// Share of trials at the start. Trials are simulated; they never scale a workload at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 1.0))]
    pub epsilon_start: Option<f64>,

    /// Share of trials in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 0.01))]
    pub epsilon_end: Option<f64>,

    /// What the share of trials is multiplied by after each decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 0.995))]
    pub epsilon_decay: Option<f64>,
}

/// Settings of the forecast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Lstm {
    /// Whether load is predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,

    /// How far ahead, in evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60), extend("default" = 5))]
    pub prediction_window: Option<i32>,

    /// From how many earlier evaluations.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 120), extend("default" = 60))]
    pub sequence_length: Option<i32>,
}

/// What is measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyMetrics {
    /// CPU use of the pods, in percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuMetric>,

    /// Memory use of the pods, in percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryMetric>,

    /// Prometheus queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub custom: Option<Vec<CustomMetric>>,

    /// Address of the Prometheus that answers them; the operator's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = schema::URL_PATTERN))]
    pub prometheus_url: Option<String>,
}

/// CPU use, in percent of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuMetric {
    /// The use to aim at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100), extend("default" = 70))]
    pub target_utilization: Option<i32>,

    /// The use above which replicas are added at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100), extend("default" = 80))]
    pub threshold: Option<i32>,
}

/// Memory use, in percent of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryMetric {
    /// The use to aim at.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100), extend("default" = 80))]
    pub target_utilization: Option<i32>,

    /// The use above which replicas are added at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100), extend("default" = 85))]
    pub threshold: Option<i32>,
}

/// A Prometheus query and the value that it should stay below.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name", "query", "threshold"]))]
pub struct CustomMetric {
    /// A name for it, for messages and metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,

    /// The query; it must give one number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 8192))]
    pub query: Option<String>,

    /// The value above which replicas are added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
}

const MIN_MAX: Rule = Rule {
    rule: "(has(self.minReplicas) ? self.minReplicas : 1) <= (has(self.maxReplicas) ? self.maxReplicas : 10)",
    message: "minReplicas must not be greater than maxReplicas (10 when absent): lower the one or raise the other",
};

const EPSILON_FALLS: Rule = Rule {
    // The server fills 0.01 in, which must not refuse a smaller start.
    rule: "!has(self.epsilonEnd) || self.epsilonEnd <= 0.01 || \
           self.epsilonEnd <= (has(self.epsilonStart) ? self.epsilonStart : 1.0)",
    message: "epsilonEnd must not be greater than epsilonStart: trials get rarer with time",
};

impl ScalingBounds {
    /// Fewest replicas, 1 when absent.
    pub fn min_replicas(&self) -> i32 {
        self.min_replicas.unwrap_or(1)
    }

    /// Most replicas, 10 when absent.
    pub fn max_replicas(&self) -> i32 {
        self.max_replicas.unwrap_or(10)
    }

    /// Seconds between two changes, 300 when absent.
    pub fn cooldown_period(&self) -> i32 {
        self.cooldown_period.unwrap_or(300)
    }

    /// Most growth of one change, 2 when absent.
    pub fn scale_up_factor(&self) -> f64 {
        self.scale_up_factor.unwrap_or(2.0)
    }

    /// Most shrinking of one change, 0.5 when absent.
    pub fn scale_down_factor(&self) -> f64 {
        self.scale_down_factor.unwrap_or(0.5)
    }

    /// Most replicas per change, 3 when absent.
    pub fn max_step(&self) -> i32 {
        self.max_step.unwrap_or(3)
    }

    /// Seconds between two looks, 15 when absent.
    pub fn evaluation_interval(&self) -> i32 {
        self.evaluation_interval.unwrap_or(15)
    }

    /// Seconds after which a bad change is taken back, 300 when absent.
    pub fn rollback_timeout(&self) -> i32 {
        self.rollback_timeout.unwrap_or(300)
    }
}

impl QLearning {
    /// How much one experience counts, 0.1 when absent.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate.unwrap_or(0.1)
    }

    /// How much later rewards count, 0.95 when absent.
    pub fn discount_factor(&self) -> f64 {
        self.discount_factor.unwrap_or(0.95)
    }

    /// Share of trials at the start, 1 when absent.
    pub fn epsilon_start(&self) -> f64 {
        self.epsilon_start.unwrap_or(1.0)
    }

    /// Share of trials in the end, 0.01 when absent.
    pub fn epsilon_end(&self) -> f64 {
        self.epsilon_end.unwrap_or(0.01).min(self.epsilon_start())
    }

    /// What the share is multiplied by, 0.995 when absent.
    pub fn epsilon_decay(&self) -> f64 {
        self.epsilon_decay.unwrap_or(0.995)
    }
}

impl Lstm {
    /// Whether load is predicted, false when absent.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    /// How far ahead, 5 when absent.
    pub fn prediction_window(&self) -> i32 {
        self.prediction_window.unwrap_or(5)
    }

    /// From how many evaluations, 60 when absent.
    pub fn sequence_length(&self) -> i32 {
        self.sequence_length.unwrap_or(60)
    }
}

impl AiConfig {
    /// How sure the learner must be, 0.7 when absent.
    pub fn confidence_threshold(&self) -> f64 {
        self.confidence_threshold.unwrap_or(0.7)
    }

    /// How often a situation must have been seen, 2 when absent.
    pub fn min_observations(&self) -> i32 {
        self.min_observations.unwrap_or(2)
    }
}

impl CpuMetric {
    /// The use to aim at, 70 when absent.
    pub fn target_utilization(&self) -> i32 {
        self.target_utilization.unwrap_or(70)
    }

    /// The use that is too much, 80 when absent.
    pub fn threshold(&self) -> i32 {
        self.threshold.unwrap_or(80)
    }
}

impl MemoryMetric {
    /// The use to aim at, 80 when absent.
    pub fn target_utilization(&self) -> i32 {
        self.target_utilization.unwrap_or(80)
    }

    /// The use that is too much, 85 when absent.
    pub fn threshold(&self) -> i32 {
        self.threshold.unwrap_or(85)
    }
}

impl ScalingPolicySpec {
    /// Bounds and speed, with defaults for an absent block.
    pub fn bounds(&self) -> ScalingBounds {
        self.scaling.clone().unwrap_or_default()
    }

    /// Settings of the learner, with defaults for an absent block.
    pub fn q_learning(&self) -> QLearning {
        self.ai_config
            .as_ref()
            .and_then(|ai| ai.q_learning.clone())
            .unwrap_or_default()
    }

    /// Settings of the forecast, with defaults for an absent block.
    pub fn lstm(&self) -> Lstm {
        self.ai_config
            .as_ref()
            .and_then(|ai| ai.lstm.clone())
            .unwrap_or_default()
    }

    /// Whether nothing is to be scaled, false when absent.
    pub fn dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    /// Everything that is wrong with the spec: what the schema and the CEL rules of the CRD would say, for servers
    /// that ignore them.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = spec_problems(crate::Kind::ScalingPolicy, self);
        let bounds = self.bounds();
        if bounds.min_replicas() > bounds.max_replicas() {
            problems.push(Problem::new("spec.scaling", MIN_MAX.message));
        }
        let learner = self.q_learning();
        let end = learner.epsilon_end.unwrap_or_default();
        if end > 0.01 && end > learner.epsilon_start() {
            problems.push(Problem::new("spec.aiConfig.qLearning", EPSILON_FALLS.message));
        }
        problems
    }
}
