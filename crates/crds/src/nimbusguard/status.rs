//! Status of a ScalingPolicy.

use crate::common::lenient_conditions;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The one word that says how a policy is doing; derived from the conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum PolicyPhase {
    /// Accepted; its target is being looked at.
    #[default]
    Initializing,
    /// It gathers experience and scales by the plain rule meanwhile.
    Learning,
    /// It scales by what it has learned.
    Active,
    /// Somebody paused it.
    Paused,
    /// It cannot work until somebody acts; the message says why.
    Error,
}

/// How the policy is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingPolicyStatus {
    /// One word: Initializing, Learning, Active, Paused or Error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<PolicyPhase>,

    /// What a person should know; the message of the Ready condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Replicas of the target now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,

    /// Replicas that the last decision asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_replicas: Option<i32>,

    /// When the target was last scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scaling_time: Option<Time>,

    /// The last decision that differed from the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<Decision>,

    /// How the policy has done so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<PolicyRecord>,

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

/// A decision of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Decision {
    /// What was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,

    /// How sure the policy was, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub confidence: Option<f64>,

    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,

    /// When.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
}

/// What a policy can decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(description = "")]
pub enum Action {
    /// More replicas.
    ScaleUp,
    /// Fewer replicas.
    ScaleDown,
    /// As many as there are.
    Maintain,
}

/// How a policy has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRecord {
    /// Decisions taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_decisions: Option<i64>,

    /// Changes that turned out well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successful_scalings: Option<i64>,

    /// Mean confidence of the decisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_confidence: Option<f64>,

    /// How much of what it can meet the policy has learned, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_progress: Option<f64>,
}
