//! A child object as the cache keeps it: the little metadata that decisions need, and the rest as compact JSON.
//!
//! Ten thousand typed Deployments take hundreds of megabytes, most of it empty options; as JSON without managed fields
//! they take tens, and parsing one when it is reconciled costs microseconds.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::DynamicObject;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    store::{Cached, Identity, ObjectKey, controller_owner, version},
};

pub struct Child {
    key: ObjectKey,
    uid: Box<str>,
    version: u64,
    /// The uid of its controller, by which it is found.
    owner: Option<Box<str>>,
    is_being_deleted: bool,
    /// All of it, the above included.
    body: Box<[u8]>,
}

/// The part of a body that tells whose it is.
#[derive(Default, Deserialize)]
struct Owned {
    metadata: Owners,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Owners {
    owner_references: Vec<OwnerReference>,
}

impl Child {
    /// Takes what a read, a watch or a write returned.
    pub fn new(mut object: DynamicObject) -> Self {
        object.metadata.managed_fields = None;
        // Serialising maps and strings to memory cannot fail.
        let body = serde_json::to_vec(&object).unwrap_or_default();
        let meta = &object.metadata;
        Self {
            key: ObjectKey::of(meta),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: version(meta),
            owner: controller_owner(meta).map(|owner| owner.uid.as_str().into()),
            is_being_deleted: meta.deletion_timestamp.is_some(),
            // Copied, so that it takes no more than it needs.
            body: Box::from(&*body),
        }
    }

    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    pub fn is_being_deleted(&self) -> bool {
        self.is_being_deleted
    }

    pub fn has_controller(&self) -> bool {
        self.owner.is_some()
    }

    /// The one owner that controls it.
    pub fn controller(&self) -> Option<OwnerReference> {
        self.owner.as_ref()?;
        let mut owners = self.owners().into_iter();
        owners.find(|owner| owner.controller == Some(true))
    }

    pub fn owners(&self) -> Vec<OwnerReference> {
        let owned: Owned = self.parse().unwrap_or_default();
        owned.metadata.owner_references
    }

    pub fn json(&self) -> Result<Value> {
        self.parse()
    }

    pub fn parse<K: DeserializeOwned>(&self) -> Result<K> {
        serde_json::from_slice(&self.body).map_err(|source| Error::Decode {
            what: format!("cached object {}", self.key),
            source,
        })
    }
}

impl Cached for Child {
    fn identity(&self) -> Identity<'_> {
        Identity {
            namespace: &self.key.namespace,
            name: &self.key.name,
            uid: &self.uid,
            version: self.version,
        }
    }

    fn owner(&self) -> Option<Cow<'_, str>> {
        self.owner.as_deref().map(Cow::Borrowed)
    }
}
