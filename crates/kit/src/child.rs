//! A child object as the cache keeps it: the little metadata that decisions need, and the rest as compact JSON.
//!
//! Ten thousand typed Deployments take hundreds of megabytes, most of it empty options; as JSON without managed fields
//! they take tens, and parsing one when it is reconciled costs microseconds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    error::{Error, Result},
    store::{Cached, ObjectKey},
};

pub struct Child {
    /// Name, namespace, uid, version, owners and deletion time only; labels and annotations are in the body.
    meta: ObjectMeta,
    body: Box<[u8]>,
}

impl Child {
    /// Takes what a read, a watch or a write returned.
    pub fn new(mut object: DynamicObject) -> Self {
        object.metadata.managed_fields = None;
        let meta = ObjectMeta {
            name: object.metadata.name.clone(),
            namespace: object.metadata.namespace.clone(),
            uid: object.metadata.uid.clone(),
            resource_version: object.metadata.resource_version.clone(),
            generation: object.metadata.generation,
            owner_references: object.metadata.owner_references.clone(),
            deletion_timestamp: object.metadata.deletion_timestamp.clone(),
            ..ObjectMeta::default()
        };
        // Serialising maps and strings to memory cannot fail.
        let body = serde_json::to_vec(&object).unwrap_or_default().into_boxed_slice();
        Self { meta, body }
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.meta)
    }

    pub fn is_being_deleted(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    pub fn json(&self) -> Result<Value> {
        self.parse()
    }

    pub fn parse<K: DeserializeOwned>(&self) -> Result<K> {
        serde_json::from_slice(&self.body).map_err(|source| Error::Decode {
            what: format!("cached object {}", self.key()),
            source,
        })
    }
}

impl Cached for Child {
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}
