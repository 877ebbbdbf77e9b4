//! Feeding a store from a watch.

use std::{collections::HashSet, fmt::Debug, pin::pin, sync::Arc, time::Duration};

use backon::ExponentialBuilder;
use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        utils::{Backoff, ResetTimerBackoff},
        watcher,
    },
};
use serde::de::DeserializeOwned;

use crate::{
    admin::Gate,
    error,
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
    pub kind: String,
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
                    for gone in self.store.retain(self.namespace.as_deref(), &seen, begun) {
                        changed(&gone);
                    }
                    // A list of ten thousand is not needed again until the next one.
                    seen = HashSet::new();
                    self.gate.open();
                }
                Ok(watcher::Event::Apply(object)) => self.take(object, &changed),
                Ok(watcher::Event::Delete(object)) => {
                    if let Some(gone) = self.store.remove(Identity::of(object.meta())) {
                        changed(&gone);
                    }
                }
                Err(fault) => {
                    let reason = reason(&fault);
                    self.metrics.watch_failed(&self.kind, reason);
                    self.gate.wait_for(format!("{} ({reason})", self.kind));
                    tracing::warn!(kind = %self.kind, reason, error = %fault, "watch failed; retrying");
                }
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
