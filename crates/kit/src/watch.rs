//! Feeding a store from a watch.

use std::{
    collections::{HashSet, VecDeque},
    fmt::Debug,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{StreamExt, stream::FuturesUnordered};
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

/// Objects in doubt that are asked for at the same time.
const ASKED_AT_ONCE: usize = 8;

/// The same for an object in doubt, of which there may be many.
fn retries_of_doubt() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(60))
        .with_jitter()
        .without_max_times()
        .build()
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
        let mut doubtful = VecDeque::new();
        let mut asking = FuturesUnordered::new();
        loop {
            while asking.len() < ASKED_AT_ONCE
                && let Some(object) = doubtful.pop_front()
            {
                asking.push(self.doubt(object, &changed));
            }
            // Beside the events, which wait for no answer.
            let event = tokio::select! {
                event = events.next() => event,
                Some(()) = asking.next() => continue,
            };
            let Some(event) = event else { return };
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
                    doubtful.extend(lacking.doubtful);
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
    /// before it. Of the latter no event will tell, so it is asked for until that is known, or it is not here any more.
    async fn doubt(&self, object: Arc<T>, changed: &(impl Fn(&Arc<T>) + Send)) {
        let (key, uid) = (object.identity().key(), object.identity().uid.to_owned());
        let mut delays = retries_of_doubt();
        loop {
            let known = self.store.get(&key);
            let Some(known) = known.filter(|known| known.identity().uid == uid) else {
                return;
            };
            match self.is_there(known.identity()).await {
                Ok(true) => return,
                Ok(false) => {
                    if let Some(gone) = self.store.remove(known.identity()) {
                        changed(&gone);
                    }
                    return;
                }
                Err(fault) => {
                    tracing::warn!(kind = %self.resource.kind, object = %key, error = fault.report(), "cannot see whether it is there; retrying");
                    tokio::time::sleep(delays.next().unwrap_or(client::DEADLINE)).await;
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
        let action = format!("look for {} {}", self.resource.kind, object.key());
        let found = caller.read(action, api.list_metadata(&params)).await?;
        let mut uids = found.items.iter().map(|item| item.metadata.uid.as_deref());
        Ok(uids.any(|uid| uid == Some(object.uid)))
    }

    fn take(&self, object: K, changed: &impl Fn(&Arc<T>)) {
        let mut kept = (self.keep)(object);
        let before = self.store.get(&kept.identity().key());
        if let Some(before) = before.filter(|before| before.identity().uid == kept.identity().uid) {
            kept.remember(&before);
        }
        let kept = Arc::new(kept);
        if self.store.put(kept.clone()) {
            changed(&kept);
        }
    }
}

/// The reason where somebody has to give us rights first.
pub const FORBIDDEN: &str = "Forbidden";

pub fn reason(fault: &watcher::Error) -> &'static str {
    let answer = match fault {
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => error::code(source),
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::NoResourceVersion => None,
    };
    match answer {
        Some(403) => FORBIDDEN,
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
    use kube::Client;
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

    fn named(name: &str, uid: &str, version: &str) -> Value {
        let metadata = json!({"name": name, "namespace": "ns", "uid": uid, "resourceVersion": version});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    }

    fn written(uid: &str) -> Value {
        named("a", uid, "60")
    }

    async fn run_for(
        watch: Watch<ConfigMap, ConfigMap>,
        wait: Duration,
        changed: impl Fn(&Arc<ConfigMap>) + Send,
    ) {
        let ended = tokio::time::timeout(wait, watch.run(changed)).await;
        assert!(ended.is_err(), "it runs for ever");
    }

    fn watch(
        client: Client,
        store: &Arc<Store<ConfigMap>>,
        readiness: &Readiness,
    ) -> Watch<ConfigMap, ConfigMap> {
        Watch {
            api: Api::all(client),
            namespace: None,
            config: watcher::Config::default(),
            keep: |map| map,
            store: store.clone(),
            resource: ApiResource::erase::<ConfigMap>(&()),
            gate: readiness.gate("a"),
            metrics: Metrics::default(),
        }
    }

    /// A write of ours is answered while the list is on its way, and the list does not hold what was written.
    #[rstest]
    #[case::made_after_the_list(&["1"], 0, true)]
    #[case::deleted_before_the_list(&[], 0, false)]
    #[case::deleted_and_made_by_another(&["2"], 0, false)]
    #[case::not_told_at_once(&[], 3, false)]
    #[case::told_late(&[], 20, false)]
    #[case::never_told(&[], usize::MAX, true)]
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
                return Answer::Watch(vec![
                    json!({"type": "ADDED", "object": named("another", "3", "101")}),
                ]);
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
        let told = AtomicUsize::new(0);
        let hour = Duration::from_secs(3600);
        run_for(watch(client, &store, &readiness), hour, |map| {
            told.fetch_add(usize::from(map.identity().name == "a"), Ordering::Relaxed);
        })
        .await;
        assert!(readiness.waiting().is_empty());
        assert_eq!(store.get(&ObjectKey::new("ns", "a")).is_some(), expected);
        assert_eq!(told.into_inner(), usize::from(!expected), "its owner is woken");
        let another = store.get(&ObjectKey::new("ns", "another"));
        assert!(another.is_some(), "events are not held up");
    }

    /// The question is never answered, and another object of that name comes.
    #[tokio::test(start_paused = true)]
    async fn events_do_not_wait_for_what_is_in_doubt_and_settle_it() {
        let store: Arc<Store<ConfigMap>> = Arc::default();
        let (asked, counter) = (Arc::new(AtomicUsize::new(0)), Arc::default());
        let (shared, counted) = (store.clone(), Arc::clone(&counter));
        let client = stub::client(move |_, path| {
            if path.contains("watch=true") {
                let added = [named("a", "2", "101"), named("b", "3", "102")];
                return Answer::Watch(added.map(|map| json!({"type": "ADDED", "object": map})).to_vec());
            }
            if path.contains("fieldSelector") {
                AtomicUsize::fetch_add(&counted, 1, Ordering::Relaxed);
                return Answer::Silence;
            }
            if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                for name in ["a", "c"] {
                    let map = serde_json::from_value::<ConfigMap>(named(name, name, "60"));
                    shared.put(map.unwrap());
                }
            }
            let list = json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "100"}, "items": [],
            });
            Answer::Says(200, list)
        });
        let readiness = Readiness::default();
        let told = std::sync::Mutex::new(Vec::new());
        let soon = Duration::from_secs(1);
        run_for(watch(client.clone(), &store, &readiness), soon, |map| {
            told.lock().unwrap().push(map.identity().name.to_owned());
        })
        .await;
        assert_eq!(told.into_inner().unwrap(), ["a", "b"]);
        assert_eq!(
            AtomicUsize::load(&counter, Ordering::Relaxed),
            2,
            "asked side by side"
        );
    }
}
