//! Volumes that a kind asks for.

use crate::common::{Problem, given, text};
use crate::schema::{self, Rule};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a volume may be mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum AccessMode {
    /// By the pods of one node, for reading and writing.
    #[default]
    ReadWriteOnce,
    /// By the pods of many nodes, for reading.
    ReadOnlyMany,
    /// By the pods of many nodes, for reading and writing.
    ReadWriteMany,
    /// By one single pod, for reading and writing.
    ReadWriteOncePod,
}

impl AccessMode {
    /// The word that Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }

    /// Whether pods on several nodes may mount it at once.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::ReadOnlyMany | Self::ReadWriteMany)
    }
}

/// What becomes of a volume when the object that asked for it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum DeletionPolicy {
    /// It stays, with its data.
    Retain,
    /// It goes, with its data.
    Delete,
}

/// A PersistentVolumeClaim: one that Gantry makes, or one that exists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[EXISTING_OR_NEW])))]
pub struct ClaimStorage {
    /// Switches the volume off without removing its settings. On when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Size of the claim, 20Gi when absent. It can grow where the class allows it, never shrink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,

    /// StorageClass of the claim; the cluster's default one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,

    /// How the volume may be mounted, ReadWriteOnce when absent. More than one replica on several nodes needs
    /// ReadWriteMany.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,

    /// A claim that exists already, used as it is and never deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::NAME_PATTERN))]
    pub existing_claim: Option<String>,

    /// What becomes of the claim when this object is deleted, Delete when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
}

const EXISTING_OR_NEW: Rule = Rule {
    rule: "!has(self.existingClaim) || (!has(self.size) && !has(self.storageClassName))",
    message: "existingClaim is used as it is: remove size and storageClassName, or remove existingClaim",
};

impl ClaimStorage {
    /// Size of a new claim when the spec does not say.
    pub const DEFAULT_SIZE: &str = "20Gi";

    /// Whether a volume is wanted.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Size of a new claim.
    pub fn size(&self) -> Quantity {
        self.size
            .clone()
            .unwrap_or_else(|| Quantity(Self::DEFAULT_SIZE.to_owned()))
    }

    /// How the volume may be mounted.
    pub fn access_mode(&self) -> AccessMode {
        self.access_mode.unwrap_or_default()
    }

    /// The claim that exists already, if one is named.
    pub fn existing_claim(&self) -> Option<&str> {
        text(self.existing_claim.as_ref())
    }

    /// What becomes of the claim in the end.
    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.deletion_policy.unwrap_or(DeletionPolicy::Delete)
    }

    /// What is wrong across fields.
    pub fn problems(&self, field: &str) -> Vec<Problem> {
        let new = self.size.is_some() || self.storage_class_name.is_some();
        if given(self.existing_claim.as_ref()) && new {
            vec![Problem::new(field, EXISTING_OR_NEW.message)]
        } else {
            Vec::new()
        }
    }
}
