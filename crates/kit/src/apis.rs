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

use crate::{
    admin::Gate,
    client::{self, Caller},
    error::Error,
    leader::Fence,
    metrics::Metrics,
    watch,
};

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
                    let reason = watch::reason(&fault);
                    metrics.watch_failed("CustomResourceDefinition", reason);
                    if reason == watch::FORBIDDEN {
                        // Without this knowledge all but the optional parts still work.
                        tracing::warn!(error = %fault, "may not see CRDs; optional APIs count as absent");
                        gate.open();
                    } else {
                        // What passes is waited for: to take all of them for absent would be told, and soon be wrong.
                        gate.wait_for(format!("CustomResourceDefinition ({reason})"));
                        tracing::warn!(reason, error = %fault, "cannot see CRDs; retrying");
                    }
                }
            }
        }
    }

    fn lock(&self) -> std::sync::RwLockWriteGuard<'_, HashSet<String>> {
        self.present.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest of `versions` of a built-in resource that the server has; the last one when it has none of them. Asks until
/// the server answers: a version that was only guessed would be watched in vain for ever. `gate` is told why that takes
/// time, and is for the caller to open.
pub async fn newest(
    client: &Client,
    group: &str,
    versions: &[&str],
    kind: &str,
    plural: &str,
    gate: &Gate,
) -> ApiResource {
    let mut delays = watch::retries();
    loop {
        match offered(client, group, versions, plural).await {
            Ok(version) => {
                return ApiResource {
                    group: group.to_owned(),
                    version: version.to_owned(),
                    api_version: format!("{group}/{version}"),
                    kind: kind.to_owned(),
                    plural: plural.to_owned(),
                };
            }
            Err(fault) => {
                gate.wait_for(format!("{plural} ({}): {}", fault.reason(), fault.report()));
                tracing::warn!(%group, error = fault.report(), "the API server does not say what it offers; retrying");
                tokio::time::sleep(delays.next().unwrap_or(client::DEADLINE)).await;
            }
        }
    }
}

async fn offered<'a>(
    client: &Client,
    group: &str,
    versions: &[&'a str],
    plural: &str,
) -> Result<&'a str, Error> {
    // No lease is needed to read.
    let caller = Caller::new(client.clone(), Fence::open(), client::DEADLINE);
    for version in versions {
        let group_version = format!("{group}/{version}");
        let ask = client.list_api_group_resources(&group_version);
        match caller
            .read(format!("list the resources of {group_version}"), ask)
            .await
        {
            Ok(list) if list.resources.iter().any(|resource| resource.name == plural) => return Ok(version),
            Ok(_) => {}
            Err(fault) if fault.is_not_found() => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(versions.last().copied().unwrap_or("v1"))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::{
        admin::Readiness,
        stub::{self, Answer},
    };

    /// Asks a server that has `offers` and fails in this way the first three times. Returns what it was found to offer, and
    /// what was said to be waited for last.
    async fn found(offers: &'static [&'static str], failing: fn() -> Answer) -> (String, String) {
        let asked = Arc::new(AtomicUsize::new(0));
        let client = stub::client(move |_, path| {
            if asked.fetch_add(1, Ordering::Relaxed) < 3 {
                return failing();
            }
            let Some(version) = offers.iter().find(|version| path.ends_with(*version)) else {
                return Answer::refusal(404);
            };
            let resource = json!({"name": "things", "singularName": "", "kind": "Thing", "namespaced": true, "verbs": []});
            let list = json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("group/{version}"),
                "resources": [resource],
            });
            Answer::Says(200, list)
        });
        let readiness = Readiness::default();
        let gate = readiness.gate("versions");
        let newest = newest(&client, "group", &["v2", "v1"], "Thing", "things", &gate).await;
        (newest.api_version, readiness.waiting().join("; "))
    }

    #[rstest]
    #[case::unreachable(|| Answer::Refused, "ApiUnavailable")]
    #[case::starting(|| Answer::refusal(503), "(503)")]
    #[case::not_allowed(|| Answer::refusal(403), "(403)")]
    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_asked_again(
        #[case] failing: fn() -> Answer,
        #[case] told: &str,
    ) {
        let (version, why) = found(&["v1", "v2"], failing).await;
        assert_eq!(version, "group/v2");
        assert!(
            why.starts_with("versions: things (") && why.contains(told),
            "{why}"
        );
        assert_eq!(found(&["v1"], failing).await.0, "group/v1");
        assert_eq!(found(&[], failing).await.0, "group/v1", "the last one");
    }
}
