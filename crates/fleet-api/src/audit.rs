//! `/audit`.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Page;

/// One thing that happened. The chain is computed over `line`; names and details are kept beside
/// it, so that they can be erased without breaking the chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    pub sequence: u64,
    pub timestamp: Timestamp,
    /// Such as `operator.registered`.
    pub action: String,
    /// `Succeeded`, `Failed`, `Denied`; or `Begun` of what is written down before it takes place: if nothing came of it, a
    /// `Failed` entry follows.
    pub outcome: String,
    pub actor_id: Uuid,
    /// Absent when it was erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// What it was done to, such as `cluster`.
    pub target_kind: String,
    pub target_id: String,
    /// Absent when it was erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The link of the chain, byte for byte: what `gantry audit verify` checks.
    pub line: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntries {
    pub entries: Vec<AuditEntry>,
    #[serde(flatten)]
    pub page: Page,
}
