//! `/operators`.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::Page;

/// What is sent to register an operator.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegisterOperator {
    /// A DNS label; unique.
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// Where its chart is installed.
    pub namespace: String,
    /// `https://…` with an `index.yaml`, or `oci://…`.
    #[serde(alias = "helmRepository", alias = "chartRepositoryUrl")]
    pub chart_repository: String,
    #[serde(alias = "chart", alias = "helmChart")]
    pub chart_name: String,
    /// The version in use; a semantic version, with a leading `v` or without. The newest one when absent.
    #[serde(default, alias = "version", skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Values for every deployment of it.
    #[serde(default)]
    pub default_values: Map<String, Value>,
    /// For a repository that is not open to everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart_repository_credentials: Option<RepositoryCredentials>,
}

/// Credentials on their way in. Neither printed nor sent back.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RepositoryCredentials {
    pub username: String,
    /// Or a token, where the registry gives those.
    pub password: String,
}

impl fmt::Debug for RepositoryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RepositoryCredentials(hidden)")
    }
}

/// What may be changed later; what is absent stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChangeOperator {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, alias = "version", skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_values: Option<Map<String, Value>>,
    /// Others than before; those with an empty user name are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart_repository_credentials: Option<RepositoryCredentials>,
    /// Cannot be changed: accepted when it is what it is already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Cannot be changed: accepted when it is what it is already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Cannot be changed: accepted when it is what it is already.
    #[serde(default, alias = "helmRepository", skip_serializing_if = "Option::is_none")]
    pub chart_repository: Option<String>,
    /// Cannot be changed: accepted when it is what it is already.
    #[serde(default, alias = "chart", skip_serializing_if = "Option::is_none")]
    pub chart_name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operator {
    pub operator_id: Uuid,
    pub name: String,
    pub description: String,
    pub namespace: String,
    pub chart_repository: String,
    pub chart_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_version: Option<String>,
    /// Whether the latest version is newer than the current one.
    pub has_update: bool,
    /// The definitions of its current version.
    pub crd_names: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub default_values: Map<String, Value>,
    /// Whether its repository is asked with credentials.
    pub has_chart_repository_credentials: bool,
    pub deployed_cluster_count: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Operators {
    pub operators: Vec<Operator>,
    #[serde(flatten)]
    pub page: Page,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorVersion {
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_date: Option<Timestamp>,
    pub is_latest: bool,
    pub is_current: bool,
    pub is_deprecated: bool,
    /// Of the packed chart, as the repository states it; from a registry, of the manifest that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changelog_url: Option<String>,
    /// `Pending` until the chart was looked at, then `Discovered` or `Failed`.
    pub crd_discovery: String,
    /// Why the definitions of this version are not known, or not all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crd_discovery_message: Option<String>,
    /// The definitions in it.
    pub crd_names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorVersions {
    pub versions: Vec<OperatorVersion>,
    #[serde(flatten)]
    pub page: Page,
}
