//! `/crds`.

use jiff::{Timestamp, civil::Date};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Page;

/// What is sent to register a definition, or another version of one that is known.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegisterCrd {
    /// The CustomResourceDefinition: an object, or its YAML or JSON as text.
    #[serde(alias = "definition", alias = "crd")]
    pub schema_definition: Value,
    /// The operator that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_name: Option<String>,
    /// The version of the operator that brings it.
    #[serde(alias = "version")]
    pub operator_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_guide: Option<String>,
}

/// What may be changed later.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeCrd {
    /// Text for people who have to move to a newer version.
    pub migration_guide: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ValidateCrd {
    /// A whole CustomResourceDefinition or an openAPIV3Schema: an object, or YAML or JSON as text.
    #[serde(alias = "schemaDefinition", alias = "newSchema")]
    pub new_schema_definition: Value,
    #[serde(default, alias = "operatorVersion", skip_serializing_if = "Option::is_none")]
    pub new_operator_version: Option<String>,
    /// Compare with this version instead of the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_operator_version: Option<String>,
    /// Of the API servers in question, such as 1.33: newer ones let stored objects pass that a schema forbids. The oldest of
    /// the clusters that have the definition when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApproveCrd {
    /// Why it is taken on, or why not; kept. A rejection must say why.
    #[serde(default, alias = "reason")]
    pub notes: String,
    /// Of which version of the operator; the one that waits when absent. One that was decided on can be decided on again by
    /// naming it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    #[serde(default)]
    pub decision: Decision,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Decision {
    #[default]
    #[serde(alias = "approve")]
    Approve,
    #[serde(alias = "reject")]
    Reject,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeprecateCrd {
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_guide: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Crd {
    pub crd_id: Uuid,
    pub name: String,
    pub group: String,
    pub kind: String,
    pub scope: String,
    /// API versions of the newest schema.
    pub versions: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_name: Option<String>,
    /// Of the newest schema.
    pub operator_version: String,
    /// `Active`, `Deprecated`, or `Removed`: the newest version of its operator does not bring it any more.
    pub status: String,
    /// Of the newest schema: `1.0` for the oldest one, and one more for each version of the operator after it.
    pub schema_version: String,
    /// Of the newest schema: `NotRequired`, `Pending`, `Waived`, `Approved` or `Rejected`.
    pub approval_status: String,
    /// Who approved or rejected the newest schema; nobody when they were forgotten since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_guide: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deprecated_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deprecation_reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Crds {
    pub crds: Vec<Crd>,
    #[serde(flatten)]
    pub page: Page,
}

/// One definition with all that is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdWithHistory {
    #[serde(flatten)]
    pub crd: Crd,
    /// The newest definition itself.
    pub schema_definition: Value,
    /// Newest first.
    pub schema_history: Vec<CrdSchema>,
    /// How many versions there are in all, of which `limit` and `offset` choose some.
    pub schema_history_total: u64,
    /// Which clusters run which of them.
    pub clusters: Vec<CrdOnCluster>,
}

/// What one version of the operator brought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdSchema {
    pub operator_version: String,
    /// As in the definition.
    pub schema_version: String,
    pub versions: Vec<String>,
    /// SHA-256 of what is compared.
    pub digest: String,
    pub approval_status: String,
    /// Who approved or rejected it; nobody when they were forgotten since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_notes: Option<String>,
    /// From the version before it.
    pub changes: Vec<SchemaChange>,
    /// Where it may be used.
    pub usage: Vec<SchemaUse>,
    pub created_at: Timestamp,
}

/// Whether a schema may be used in an environment. It depends on what the environment's clusters run now: all changes from
/// there on count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchemaUse {
    pub environment: String,
    pub may_be_used: bool,
    /// No: `ApprovalRequired`, `DowngradeBreaks`, `Rejected` or `StoredVersionRemoved`. Yes: `Compatible`, `Approved`, `Waived`,
    /// `UnknownSchema`, `NotProduction`, `Deprecated` or `Removed`.
    pub reason: String,
    /// What stands against it and what to do, or what to know.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchemaChange {
    /// `Added`, `Modified` or `Removed`.
    pub change_type: String,
    pub field_path: String,
    pub previous_type: String,
    pub new_type: String,
    pub is_breaking: bool,
    pub description: String,
    /// `Critical`, `High`, `Medium`, `Low` or `Info`.
    pub severity: String,
    pub action: String,
    /// The same for the same change, wherever it is found.
    pub fingerprint: String,
    /// The version of the operator that brought it, or would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    /// When that version came to be known; absent while it is a proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// Somebody has taken responsibility for it, and it breaks nothing any more for that long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_waived: bool,
}

/// Takes responsibility for one finding, until the end of a day.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddWaiver {
    /// Of the finding, as a comparison gives it.
    pub fingerprint: String,
    /// Why it does no harm here; kept.
    pub reason: String,
    /// Its last day; a year from now at most.
    pub expires: Date,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Waiver {
    pub fingerprint: String,
    /// Who took it on; nobody when they were forgotten since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approver: Option<String>,
    pub reason: String,
    pub expires: Date,
    pub is_expired: bool,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waivers {
    pub waivers: Vec<Waiver>,
    #[serde(flatten)]
    pub page: Page,
}

/// Asks what a schema would do to the objects that clusters have.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProveCrd {
    /// Names of clusters, twenty at most.
    pub clusters: Vec<String>,
    /// A whole CustomResourceDefinition or an openAPIV3Schema; a stored schema is taken when absent.
    #[serde(default, alias = "newSchema", skip_serializing_if = "Option::is_none")]
    pub new_schema_definition: Option<Value>,
    /// The stored schema of this version of the operator; the newest when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdProof {
    pub crd_name: String,
    /// Every object of every cluster was looked at, and none is refused or loses anything.
    pub hurts_nobody: bool,
    pub clusters: Vec<ClusterProof>,
    pub proved_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterProof {
    pub cluster_name: String,
    pub kubernetes_version: String,
    /// Whether the cluster has the definition at all.
    pub is_installed: bool,
    pub checked: u64,
    /// Refused at every write.
    pub rejected: u64,
    /// Refused only when the value itself is changed: this server lets stored values pass.
    pub rejected_when_changed: u64,
    /// Those that lose fields.
    pub pruned: u64,
    /// Some of them by name.
    pub objects: Vec<HurtObject>,
    /// What was not looked at, and why.
    pub notes: Vec<String>,
    /// Why the cluster could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HurtObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    /// `rejected`, `rejected-when-changed` or `pruned`.
    pub harm: String,
    pub reasons: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdOnCluster {
    pub cluster_name: String,
    pub environment: String,
    pub kubernetes_version: String,
    /// The API versions that its objects may be stored in.
    pub stored_versions: Vec<String>,
    /// Which version of the operator has this very schema, if it is one that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    pub digest: String,
    pub seen_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdValidation {
    pub crd_name: String,
    pub is_compatible: bool,
    pub breaking_changes: Vec<SchemaChange>,
    pub non_breaking_changes: Vec<SchemaChange>,
    /// Whether an administrator has to approve before it goes to production.
    pub requires_approval: bool,
    /// Where it might be used once it is registered.
    pub usage: Vec<SchemaUse>,
    /// The clusters that have the definition: their servers and what is stored in them was taken into account.
    pub clusters: Vec<CrdOnCluster>,
    pub validated_at: Timestamp,
    /// Whether the way back is open, and from where on it is not.
    pub rollback: RollbackVerdict,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollbackVerdict {
    /// `safe`, `breaking` or `undecidable`.
    pub verdict: String,
    pub points_of_no_return: Vec<String>,
}

/// The difference between two versions, in full: what `gantry crds diff --output json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrdDiff {
    pub crd_name: String,
    pub from: String,
    pub to: String,
    /// The clusters that have the definition: their servers and what is stored in them was taken into account.
    pub clusters: Vec<CrdOnCluster>,
    pub report: Value,
}
