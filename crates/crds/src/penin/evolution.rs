//! Which changes of itself a cluster may ask for: `selfArchitecting`.

use crate::common::{Problem, given};
use crate::schema::{self, Rule};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The policy for changes that the services ask for by themselves. Whatever it does not allow is rejected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[NEEDS_FIELDS, NEEDS_VERDICT])))]
pub struct SelfArchitecting {
    /// Whether any change may be asked for. Off when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Fields that may be changed, as paths below `spec`: `replicas.sigmaGuard`, or `replicas.*` for all of a block. Of
    /// `replicas`, `resources`, `autoScaling` and `config` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 253), regex(pattern = schema::CHANGE_PATTERN)))]
    pub allowed_fields: Option<Vec<String>>,

    /// How far a field may go.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub bounds: Option<Vec<ChangeBound>>,

    /// How far one change may go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_step: Option<ChangeStep>,

    /// How much the changes may use up together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<ChangeBudget>,

    /// Seconds between the end of one change and the next, 600 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub cooldown_seconds: Option<i32>,

    /// Whether a person must approve each change. True when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_approval: Option<bool>,

    /// Whether only requests count whose requester the operator has proof of, which are those that came over its HTTP
    /// endpoint. False when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_proven_requester: Option<bool>,

    /// Whether a change may take a field that another manager (GitOps, a person) owns. False when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take_ownership: Option<bool>,

    /// Seconds that the effect of a change is watched, 300 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 604_800))]
    pub observation_seconds: Option<i32>,

    /// How it is decided whether a change did good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// How far a field may go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["field"]))]
pub struct ChangeBound {
    /// The field, as in `allowedFields`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::CHANGE_PATTERN))]
    pub field: Option<String>,

    /// Least value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub min: Option<Quantity>,

    /// Greatest value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub max: Option<Quantity>,
}

/// How far one change may go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeStep {
    /// Pods that one change may add to or take from a service, 1 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = schema::MAX_REPLICAS))]
    pub replicas: Option<i32>,

    /// Percent by which one change may raise or lower any other number, 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub percent: Option<i32>,
}

/// How much the changes may use up together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeBudget {
    /// Changes per day (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub changes_per_day: Option<i32>,

    /// Pods of all four services together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4000))]
    pub max_pods: Option<i32>,

    /// CPU requests of all pods together.
    #[serde(rename = "maxCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub max_cpu: Option<Quantity>,

    /// Memory requests of all pods together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub max_memory: Option<Quantity>,
}

/// How it is decided whether a change did good.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[ONE_MEASURE])))]
pub struct Verdict {
    /// A metric of the services: `alpha`, `deltaLinf`, `caosPlus`, `srScore`, or the name of a Prometheus metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub metric: Option<String>,

    /// A Prometheus query instead of a metric; it must give one number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub query: Option<String>,

    /// Address of the Prometheus that answers the query; the operator's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = schema::URL_PATTERN))]
    pub prometheus_url: Option<String>,

    /// Whether more (`Increase`, the default) or less (`Decrease`) is better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,

    /// Least improvement that counts as one, in the metric's unit. 0 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub threshold: Option<f64>,

    /// Difference that is noise, in the metric's unit. 0 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub noise_band: Option<f64>,

    /// Readings needed before and after, 5 when absent; with fewer the change is inconclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_samples: Option<i32>,

    /// What becomes of a change that is inconclusive, RollBack when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_inconclusive: Option<OnInconclusive>,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum Direction {
    #[default]
    Increase,
    Decrease,
}

/// What becomes of a change that is inconclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum OnInconclusive {
    Keep,
    #[default]
    RollBack,
}

const NEEDS_FIELDS: Rule = Rule {
    rule: "!has(self.enabled) || !self.enabled || (has(self.allowedFields) && size(self.allowedFields) > 0)",
    message: "selfArchitecting is on but allows nothing: list the fields in allowedFields, or set enabled to false",
};

const NEEDS_VERDICT: Rule = Rule {
    rule: "!has(self.enabled) || !self.enabled || has(self.verdict)",
    message: "selfArchitecting needs a way to tell good changes from bad: set verdict.metric or verdict.query",
};

const ONE_MEASURE: Rule = Rule {
    rule: "(has(self.metric) && self.metric != '') != (has(self.query) && self.query != '')",
    message: "measure in exactly one way: metric or query",
};

impl Verdict {
    /// Which way is better, Increase when absent.
    pub fn direction(&self) -> Direction {
        self.direction.unwrap_or_default()
    }

    /// Readings needed, 5 when absent.
    pub fn min_samples(&self) -> i32 {
        self.min_samples.unwrap_or(5)
    }

    /// What becomes of an inconclusive change, RollBack when absent.
    pub fn on_inconclusive(&self) -> OnInconclusive {
        self.on_inconclusive.unwrap_or_default()
    }
}

impl SelfArchitecting {
    /// Whether any change may be asked for, false when absent.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    /// Whether a person must approve, true when absent.
    pub fn require_approval(&self) -> bool {
        self.require_approval.unwrap_or(true)
    }

    /// Whether the requester must be proven, false when absent.
    pub fn require_proven_requester(&self) -> bool {
        self.require_proven_requester.unwrap_or(false)
    }

    /// Whether a field of another manager may be taken, false when absent.
    pub fn take_ownership(&self) -> bool {
        self.take_ownership.unwrap_or(false)
    }

    /// Seconds between two changes, 600 when absent.
    pub fn cooldown_seconds(&self) -> i32 {
        self.cooldown_seconds.unwrap_or(600)
    }

    /// Seconds that an effect is watched, 300 when absent.
    pub fn observation_seconds(&self) -> i32 {
        self.observation_seconds.unwrap_or(300)
    }

    /// Pods per change, 1 when absent.
    pub fn max_step_replicas(&self) -> i32 {
        self.max_step.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }

    /// Percent per change, 50 when absent.
    pub fn max_step_percent(&self) -> i32 {
        self.max_step.as_ref().and_then(|s| s.percent).unwrap_or(50)
    }

    /// Whether a path below `spec` may be changed.
    pub fn allows(&self, path: &str) -> bool {
        self.allowed_fields
            .iter()
            .flatten()
            .any(|pattern| match pattern.strip_suffix(".*") {
                Some(block) => {
                    path == block || path.strip_prefix(block).is_some_and(|rest| rest.starts_with('.'))
                }
                None => path == pattern,
            })
    }

    pub(super) fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.enabled() && self.allowed_fields.as_ref().is_none_or(Vec::is_empty) {
            problems.push(Problem::new(field, NEEDS_FIELDS.message));
        }
        if self.enabled() && self.verdict.is_none() {
            problems.push(Problem::new(field, NEEDS_VERDICT.message));
        }
        if self
            .verdict
            .as_ref()
            .is_some_and(|v| given(v.metric.as_ref()) == given(v.query.as_ref()))
        {
            problems.push(Problem::new(format!("{field}.verdict"), ONE_MEASURE.message));
        }
        problems
    }
}
