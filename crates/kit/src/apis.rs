//! What this API server offers: optional CRDs, told by a watch, and the newest version of built-in groups.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{PoisonError, RwLock},
};

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    core::{ApiResource, PartialObjectMeta},
    runtime::{WatchStreamExt, watcher},
};

use crate::{admin::Gate, metrics::Metrics, watch};

/// Names of the CRDs that exist.
#[derive(Default)]
pub struct Apis {
    present: RwLock<HashSet<String>>,
}

impl Apis {
    /// `name` is that of the CRD, "httproutes.gateway.networking.k8s.io" for one.
    pub fn has(&self, name: &str) -> bool {
        self.present
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(name)
    }

    /// Follows the CRDs for ever; `changed` is told of each that came or went.
    pub async fn watch(&self, client: Client, gate: Gate, metrics: Metrics, changed: impl Fn(&str)) {
        let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
        let mut events = pin!(watcher(api, watcher::Config::default()).backoff(watch::retries()));
        let mut seen = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    seen.insert(object.name_any());
                }
                Ok(watcher::Event::InitDone) => {
                    let before = std::mem::replace(&mut *self.lock(), seen.clone());
                    for name in before.symmetric_difference(&seen) {
                        changed(name);
                    }
                    gate.open();
                }
                Ok(watcher::Event::Apply(object)) => {
                    let name = object.name_any();
                    if self.lock().insert(name.clone()) {
                        changed(&name);
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    let name = object.name_any();
                    if self.lock().remove(&name) {
                        changed(&name);
                    }
                }
                Err(fault) => {
                    metrics.watch_failed("CustomResourceDefinition", "WatchFailed");
                    tracing::warn!(error = %fault, "cannot see CRDs; optional APIs count as absent");
                    // Without this knowledge all but the optional parts still work.
                    gate.open();
                }
            }
        }
    }

    fn lock(&self) -> std::sync::RwLockWriteGuard<'_, HashSet<String>> {
        self.present.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest of `versions` of a built-in resource that the server has; the last one when it does not say.
pub async fn newest(
    client: &Client,
    group: &str,
    versions: &[&str],
    kind: &str,
    plural: &str,
) -> ApiResource {
    let resource = |version: &str| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    for version in versions {
        if client
            .list_api_group_resources(&format!("{group}/{version}"))
            .await
            .is_ok_and(|list| list.resources.iter().any(|resource| resource.name == plural))
        {
            return resource(version);
        }
    }
    resource(versions.last().copied().unwrap_or("v1"))
}
