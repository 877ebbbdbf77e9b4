//! The ledger's volume and the cache: `storage`.

use crate::common::{Problem, text};
use crate::schema::{self, Rule};
use crate::storage::{AccessMode, ClaimStorage, DeletionPolicy};
use k8s_openapi::api::core::v1::{ResourceRequirements, SecretKeySelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is kept, and where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninStorage {
    /// The volume of the write-once ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worm_ledger: Option<WormLedger>,

    /// The cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
}

/// The volume of the write-once ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WormLedger {
    /// Whether the ledger is on a volume that outlives its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub enabled: Option<bool>,

    /// StorageClass of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("default" = "standard"))]
    pub storage_class: Option<String>,

    /// Size of the volume. It can grow where the class allows it, never shrink.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ledger_size")]
    pub size: Option<Quantity>,

    /// How the volume may be mounted, ReadWriteOnce when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,

    /// A claim that exists already, used as it is and never deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::NAME_PATTERN))]
    pub existing_claim: Option<String>,

    /// What becomes of the volume when the cluster is deleted, Retain when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<DeletionPolicy>,
}

fn ledger_size(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = schema::quantity(generator);
    schema.insert("default".into(), WormLedger::DEFAULT_SIZE.into());
    schema
}

impl WormLedger {
    /// Size of the volume when the spec does not say.
    pub const DEFAULT_SIZE: &str = "10Gi";

    /// Whether the ledger is on a volume, true when absent.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// StorageClass of the volume, `standard` when absent.
    pub fn storage_class(&self) -> &str {
        text(self.storage_class.as_ref()).unwrap_or("standard")
    }

    /// Size of the volume, 10Gi when absent.
    pub fn size(&self) -> Quantity {
        self.size
            .clone()
            .unwrap_or_else(|| Quantity(Self::DEFAULT_SIZE.to_owned()))
    }

    /// How the volume may be mounted, ReadWriteOnce when absent.
    pub fn access_mode(&self) -> AccessMode {
        self.access_mode.unwrap_or_default()
    }

    /// What becomes of the volume, Retain when absent.
    pub fn deletion_policy(&self) -> DeletionPolicy {
        self.deletion_policy.unwrap_or(DeletionPolicy::Retain)
    }
}

/// The cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[REDIS_ONLY])))]
pub struct Cache {
    /// Whether there is a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub enabled: Option<bool>,

    /// `redis` runs a Redis of the cluster's own, `memory` keeps the cache in each pod.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "redis"))]
    pub type_: Option<CacheType>,

    /// Image of Redis; the operator's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub image: Option<String>,

    /// Requests and limits of Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,

    /// A key of a Secret with the password of Redis; one is generated when absent. A changed password rolls the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub password_secret_ref: Option<SecretKeySelector>,

    /// A volume for Redis; it keeps nothing over restarts when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<ClaimStorage>,
}

/// Where the cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum CacheType {
    /// In a Redis of the cluster's own.
    #[default]
    Redis,
    /// In each pod.
    Memory,
}

const REDIS_ONLY: Rule = Rule {
    rule: "!has(self.type) || self.type != 'memory' || \
           !(has(self.image) || has(self.resources) || has(self.passwordSecretRef) || has(self.storage))",
    message: "image, resources, passwordSecretRef and storage are for Redis: set type to redis, or remove them",
};

impl Cache {
    /// Whether there is a cache, true when absent.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Where it is, in Redis when absent.
    pub fn cache_type(&self) -> CacheType {
        self.type_.unwrap_or_default()
    }

    fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let for_redis = self.image.is_some()
            || self.resources.is_some()
            || self.password_secret_ref.is_some()
            || self.storage.is_some();
        if self.cache_type() == CacheType::Memory && for_redis {
            problems.push(Problem::new(field, REDIS_ONLY.message));
        }
        problems.extend(
            self.storage
                .iter()
                .flat_map(|s| s.problems(&format!("{field}.storage"))),
        );
        problems
    }
}

impl PeninStorage {
    /// The ledger's volume, with defaults for an absent block.
    pub fn worm_ledger(&self) -> WormLedger {
        self.worm_ledger.clone().unwrap_or_default()
    }

    /// The cache, with defaults for an absent block.
    pub fn cache(&self) -> Cache {
        self.cache.clone().unwrap_or_default()
    }

    /// Whether a Redis is to be run.
    pub fn wants_redis(&self) -> bool {
        let cache = self.cache();
        cache.enabled() && cache.cache_type() == CacheType::Redis
    }

    pub(super) fn problems(&self, field: &str) -> Vec<Problem> {
        self.cache
            .iter()
            .flat_map(|cache| cache.problems(&format!("{field}.cache")))
            .collect()
    }
}
