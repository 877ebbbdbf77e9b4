//! Status of an InfrastructureChange: how far it came, what it would change, and how it was judged.

use crate::common::{Fragment, lenient_conditions};
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How far a change came. The last five are ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum ChangePhase {
    /// Seen; nothing is decided yet.
    #[default]
    Requested,
    /// The policy allows it, and how things were before is measured.
    Validated,
    /// Somebody must approve it.
    AwaitingApproval,
    /// The cluster's spec is changed; its services follow.
    Applied,
    /// The services follow it, and their effect is measured.
    Observing,
    /// It did good, and stays.
    Kept,
    /// It did harm, and the spec is as it was before.
    RolledBack,
    /// The policy, an approver or the cluster's owner said no. Nothing was changed.
    Rejected,
    /// Whether it did good cannot be told. The policy says whether it stays.
    Inconclusive,
    /// Somebody edited the fields meanwhile; what they wrote stays.
    Superseded,
}

impl ChangePhase {
    /// Whether nothing more will happen.
    pub fn is_end(self) -> bool {
        self >= Self::Kept
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "Requested",
            Self::Validated => "Validated",
            Self::AwaitingApproval => "AwaitingApproval",
            Self::Applied => "Applied",
            Self::Observing => "Observing",
            Self::Kept => "Kept",
            Self::RolledBack => "RolledBack",
            Self::Rejected => "Rejected",
            Self::Inconclusive => "Inconclusive",
            Self::Superseded => "Superseded",
        }
    }
}

/// How far a change came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InfrastructureChangeStatus {
    /// One word: Requested, Validated, AwaitingApproval, Applied, Observing, Kept, RolledBack, Rejected, Inconclusive or
    /// Superseded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<ChangePhase>,

    /// What a person should know; the message of the Ready condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Who asked for it, where the operator can prove that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,

    /// The rule of the policy that said no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,

    /// What is changed, with the values from before. Written before anything is changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<ChangePlan>,

    /// Whether somebody approves. Written by approvers, never by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,

    /// What was measured before the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Readings>,

    /// What was measured after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Readings>,

    /// Better by how much, in the metric's unit; negative is worse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,

    /// Whether the fields still have the values that the change gave them, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_effect: Option<bool>,

    /// When the cluster's spec was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Time>,

    /// The generation of the cluster that the change made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_generation: Option<i64>,

    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,

    /// Head of the ledger after the last step of this change: keep it, and `gantry penin ledger verify --since` shows
    /// later that the record still holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger_head: Option<String>,

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

/// What is changed, with the values from before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangePlan {
    /// The very cluster that it is about.
    #[serde(rename = "clusterUID", skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,

    /// Digest of the request's spec: a later edit has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_digest: Option<String>,

    /// The fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<FieldChange>>,

    /// The blocks of the cluster's spec that it touches, exactly as they were; a block that was absent is missing here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Fragment>,

    /// The same blocks with the change, as the server said that it would store them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Fragment>,
}

/// One field that is changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldChange {
    /// The field, as a path below `spec`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,

    /// The value from before; missing when the field was absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::anything")]
    pub from: Option<Value>,

    /// The new value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::anything")]
    pub to: Option<Value>,
}

/// What an approver says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Approval {
    /// `Approved` or `Denied`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,

    /// Who says so, in their own words; a current server can be told to check it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub by: Option<String>,

    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub note: Option<String>,
}

/// What an approver decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum Decision {
    Approved,
    Denied,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Readings {
    /// How many readings there were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<i32>,

    /// Their median, which is what is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,

    /// The least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<f64>,

    /// The greatest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greatest: Option<f64>,
}
