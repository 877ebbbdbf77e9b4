//! Feeding a store from a watch.

use std::{collections::HashSet, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use backon::ExponentialBuilder;
use futures::StreamExt;
use kube::{
    Api, Resource,
    api::ListParams,
    core::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        utils::{Backoff, ResetTimerBackoff},
        watcher,
    },
};
use serde::de::DeserializeOwned;

use crate::{
    admin::Gate,
    client::{self, Caller},
    error,
    leader::Fence,
    metrics::Metrics,
    store::{Cached, Identity, Moment, ObjectKey, Store},
};

/// How long a watch that failed waits before it looks again. kube's own waits up to a minute after a handful of
/// failures and forgets them only after two: a server that restarts a few times would leave us blind long after it is
/// back. A request of each watch every few seconds is nothing to a server.
pub fn retries() -> impl Backoff {
    let delays = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(4))
        .with_jitter()
        .without_max_times();
    ResetTimerBackoff::new(watcher::ExponentialBackoff::from(delays), Duration::from_secs(30))
}

/// One watch of one kind in one namespace, or in all.
pub struct Watch<K, T> {
    pub api: Api<K>,
    pub namespace: Option<String>,
    pub config: watcher::Config,
    /// Trims an object to what is kept.
    pub keep: fn(K) -> T,
    pub store: Arc<Store<T>>,
    pub resource: ApiResource,
    pub gate: Gate,
    pub metrics: Metrics,
}

impl<K, T> Watch<K, T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Cached,
{
    /// Runs for ever; `changed` is told of every object that came, changed or went.
    pub async fn run(self, changed: impl Fn(&Arc<T>) + Send) {
        let mut events = pin!(watcher(self.api.clone(), self.config.clone()).backoff(retries()));
        let mut seen = HashSet::new();
        let mut begun = Moment::default();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => {
                    seen.clear();
                    // The list is asked for after this.
                    begun = self.store.now();
                }
                Ok(watcher::Event::InitApply(object)) => {
                    seen.insert(ObjectKey::of(object.meta()));
                    self.take(object, &changed);
                }
                Ok(watcher::Event::InitDone) => {
                    let lacking = self.store.retain(self.namespace.as_deref(), &seen, begun);
                    lacking.gone.iter().for_each(&changed);
                    // A list of ten thousand is not needed again until the next one.
                    seen = HashSet::new();
                    self.gate.open();
                    self.doubt(&lacking.doubtful, &changed).await;
                }
                Ok(watcher::Event::Apply(object)) => self.take(object, &changed),
                Ok(watcher::Event::Delete(object)) => {
                    if let Some(gone) = self.store.remove(Identity::of(object.meta())) {
                        changed(&gone);
                    }
                }
                Err(fault) => {
                    let reason = reason(&fault);
                    self.metrics.watch_failed(&self.resource.kind, reason);
                    self.gate.wait_for(format!("{} ({reason})", self.resource.kind));
                    tracing::warn!(kind = %self.resource.kind, reason, error = %fault, "watch failed; retrying");
                }
            }
        }
    }

    /// What the list lacks, and what a write of ours put in while it was under way, was made after the list or deleted
    /// before it. Of the latter no event will tell, so it is asked for.
    async fn doubt(&self, doubtful: &[Arc<T>], changed: &(impl Fn(&Arc<T>) + Send)) {
        for object in doubtful {
            match self.is_there(object.identity()).await {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(gone) = self.store.remove(object.identity()) {
                        changed(&gone);
                    }
                }
                Err(fault) => {
                    let object = object.identity().key();
                    tracing::warn!(kind = %self.resource.kind, %object, error = fault.report(), "cannot see whether it is there");
                }
            }
        }
    }

    async fn is_there(&self, object: Identity<'_>) -> error::Result<bool> {
        let client = self.api.clone().into_client();
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), object.namespace, &self.resource);
        let mut params = ListParams::default().fields(&format!("metadata.name={}", object.name));
        params.label_selector.clone_from(&self.config.label_selector);
        // No lease is needed to read.
        let caller = Caller::new(client, Fence::open(), client::DEADLINE);
        let mut delays = retries().take(4);
        loop {
            let action = format!("look for {} {}", self.resource.kind, object.key());
            match (
                caller.read(action, api.list_metadata(&params)).await,
                delays.next(),
            ) {
                (Ok(found), _) => {
                    let mut uids = found.items.iter().map(|item| item.metadata.uid.as_deref());
                    return Ok(uids.any(|uid| uid == Some(object.uid)));
                }
                (Err(_), Some(delay)) => tokio::time::sleep(delay).await,
                (Err(fault), None) => return Err(fault),
            }
        }
    }

    fn take(&self, object: K, changed: &impl Fn(&Arc<T>)) {
        let kept = Arc::new((self.keep)(object));
        if self.store.put(kept.clone()) {
            changed(&kept);
        }
    }
}

fn reason(fault: &watcher::Error) -> &'static str {
    let answer = match fault {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => error::code(source),
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::NoResourceVersion => None,
    };
    match answer {
        Some(403) => "Forbidden",
        Some(404) => "CrdMissing",
        Some(410) => "Expired",
        Some(_) => "ApiError",
        None => "Unreachable",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        admin::Readiness,
        stub::{self, Answer},
    };

    impl Cached for ConfigMap {
        fn identity(&self) -> Identity<'_> {
            Identity::of(self.meta())
        }
    }

    fn written(uid: &str) -> Value {
        json!({"metadata": {"name": "a", "namespace": "ns", "uid": uid, "resourceVersion": "60"}})
    }

    /// A write of ours is answered while the list is on its way, and the list does not hold what was written.
    #[rstest]
    #[case::made_after_the_list(&["1"], 0, true)]
    #[case::deleted_before_the_list(&[], 0, false)]
    #[case::deleted_and_made_by_another(&["2"], 0, false)]
    #[case::not_told_at_once(&[], 3, false)]
    #[case::never_told(&[], 99, true)]
    #[tokio::test(start_paused = true)]
    async fn what_was_written_during_a_list_stays_only_while_it_is_there(
        #[case] there: &'static [&'static str],
        #[case] failures: usize,
        #[case] expected: bool,
    ) {
        let store: Arc<Store<ConfigMap>> = Arc::default();
        let (asked, shared) = (Arc::new(AtomicUsize::new(0)), store.clone());
        let client = stub::client(move |_, path| {
            if path.contains("watch=true") {
                return Answer::Watch(Vec::new());
            }
            let mut items = Vec::new();
            if path.contains("fieldSelector=metadata.name%3Da") {
                if asked.fetch_add(1, Ordering::Relaxed) < failures {
                    return Answer::refusal(500);
                }
                items.extend(there.iter().map(|uid| written(uid)));
            } else {
                shared.put(serde_json::from_value::<ConfigMap>(written("1")).unwrap());
            }
            let list = json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "100"}, "items": items,
            });
            Answer::Says(200, list)
        });
        let readiness = Readiness::default();
        let watch = Watch {
            api: Api::<ConfigMap>::all(client),
            namespace: None,
            config: watcher::Config::default(),
            keep: |map| map,
            store: store.clone(),
            resource: ApiResource::erase::<ConfigMap>(&()),
            gate: readiness.gate("a"),
            metrics: Metrics::default(),
        };
        let told = AtomicUsize::new(0);
        let run = watch.run(|_| {
            told.fetch_add(1, Ordering::Relaxed);
        });
        let ended = tokio::time::timeout(Duration::from_secs(60), run).await;
        assert!(ended.is_err() && readiness.waiting().is_empty());
        assert_eq!(store.get(&ObjectKey::new("ns", "a")).is_some(), expected);
        assert_eq!(told.into_inner(), usize::from(!expected), "its owner is woken");
    }
}
