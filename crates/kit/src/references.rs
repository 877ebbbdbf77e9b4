//! Secrets and ConfigMaps that users' objects refer to.
//!
//! They are not ours, there may be tens of thousands of them, and only a few matter. So every one is watched by
//! metadata only, nothing is kept of those nobody refers to, and those that matter are fetched once and again after
//! they changed. Of a Secret only the digests of its values are kept.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Resource,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};

use crate::{
    admin::Gate,
    client::Caller,
    dependents::{Dependent, Dependents},
    error::Result,
    manager::Wakers,
    metrics::Metrics,
    store::{ObjectKey, version},
    watch,
    wish::digest_bytes,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    Secret,
    ConfigMap,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    pub source: Source,
    pub key: ObjectKey,
}

/// What is known of a referenced object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Digest of each value.
    pub digests: BTreeMap<String, String>,
    /// The values themselves, of a ConfigMap only.
    pub data: BTreeMap<String, String>,
}

#[derive(Default)]
struct Entry {
    /// Outer: fetched. Inner: exists.
    #[allow(clippy::option_option)]
    state: Option<Option<Arc<Resolved>>>,
    /// Version that `state` was made from, or that the watch told of, whichever is newer.
    version: u64,
}

impl Entry {
    /// Takes in what was fetched. The watch may have told of something newer while we were asking; then it is not kept.
    fn keep(&mut self, version: Option<u64>, resolved: Option<Arc<Resolved>>) {
        match version {
            Some(version) if version >= self.version => {
                self.version = version;
                self.state = Some(resolved);
            }
            None if self.version == 0 => self.state = Some(None),
            _ => {}
        }
    }

    /// Takes in what the watch tells; true when that is news. What is older than what is known is not: the deletion of a
    /// predecessor may be told after its successor was fetched.
    fn learn(&mut self, version: u64, exists: bool) -> bool {
        let is_known = self.state.as_ref().is_some_and(|state| state.is_some() == exists);
        if version < self.version || (version == self.version && is_known) {
            return false;
        }
        self.version = version;
        self.state = if exists { None } else { Some(None) };
        true
    }
}

#[derive(Default)]
struct Index {
    /// Exactly those that somebody depends on.
    entries: HashMap<Reference, Entry>,
    dependents: Dependents<Reference>,
}

pub struct References {
    caller: Caller,
    wakers: Arc<Wakers>,
    index: Mutex<Index>,
}

impl References {
    pub fn new(caller: Caller, wakers: Arc<Wakers>) -> Self {
        Self {
            caller,
            wakers,
            index: Mutex::default(),
        }
    }

    /// One object that `key` of `controller` has to know before it can say what else it refers to.
    pub async fn find(
        &self,
        controller: &'static str,
        key: &ObjectKey,
        reference: &Reference,
    ) -> Result<Option<Arc<Resolved>>> {
        let dependent = (controller, key.clone());
        {
            let mut index = self.lock();
            index.dependents.add(&dependent, reference);
            index.entries.entry(reference.clone()).or_default();
        }
        self.known_or_fetched(reference).await
    }

    /// Everything `key` of `controller` refers to: the complete list, which replaces the one of the last visit.
    /// From now on a change of any of them wakes it.
    pub async fn resolve(
        &self,
        controller: &'static str,
        key: &ObjectKey,
        wanted: BTreeSet<Reference>,
    ) -> Result<BTreeMap<Reference, Option<Arc<Resolved>>>> {
        self.lock().depend(&(controller, key.clone()), &wanted);
        let mut found = BTreeMap::new();
        for reference in wanted {
            let resolved = self.known_or_fetched(&reference).await?;
            found.insert(reference, resolved);
        }
        Ok(found)
    }

    async fn known_or_fetched(&self, reference: &Reference) -> Result<Option<Arc<Resolved>>> {
        let known = self
            .lock()
            .entries
            .get(reference)
            .and_then(|entry| entry.state.clone());
        match known {
            Some(resolved) => Ok(resolved),
            None => self.fetch(reference).await,
        }
    }

    /// The object is gone: nothing needs to wake it any more.
    pub fn forget(&self, controller: &'static str, key: &ObjectKey) {
        self.lock().depend(&(controller, key.clone()), &BTreeSet::new());
    }

    /// Asks again for this object at the next look: it was made a moment ago, which the watch may not have told yet.
    pub fn doubt(&self, reference: &Reference) {
        if let Some(entry) = self.lock().entries.get_mut(reference) {
            entry.state = None;
        }
    }

    async fn fetch(&self, reference: &Reference) -> Result<Option<Arc<Resolved>>> {
        let ObjectKey { namespace, name } = &reference.key;
        let action = format!("get {} {}", reference.source, reference.key);
        let (version, resolved) = match reference.source {
            Source::Secret => {
                let api = Api::<Secret>::namespaced(self.caller.client(), namespace);
                let found = self.caller.read(action, api.get_opt(name)).await?;
                (
                    found.as_ref().map(|object| version(object.meta())),
                    found.map(of_secret),
                )
            }
            Source::ConfigMap => {
                let api = Api::<ConfigMap>::namespaced(self.caller.client(), namespace);
                let found = self.caller.read(action, api.get_opt(name)).await?;
                (
                    found.as_ref().map(|object| version(object.meta())),
                    found.map(of_config_map),
                )
            }
        };
        let resolved = resolved.map(Arc::new);
        let mut index = self.lock();
        if let Some(entry) = index.entries.get_mut(reference) {
            entry.keep(version, resolved.clone());
        }
        Ok(resolved)
    }

    /// Watches one source in one namespace, or in all, for ever.
    pub async fn watch<K>(
        self: Arc<Self>,
        source: Source,
        api: Api<PartialObjectMeta<K>>,
        namespace: Option<String>,
        gate: Gate,
        metrics: Metrics,
    ) where
        K: Resource<DynamicType = ()> + Clone + fmt::Debug + Send + 'static,
    {
        let config = watcher::Config::default();
        let mut events = pin!(watcher(api, config).backoff(watch::retries()));
        let mut seen = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Init) => seen.clear(),
                Ok(watcher::Event::InitApply(object)) => {
                    let reference = Reference {
                        source,
                        key: ObjectKey::of(object.meta()),
                    };
                    if self.changed(&reference, version(object.meta()), true) {
                        seen.insert(reference);
                    }
                }
                Ok(watcher::Event::InitDone) => {
                    self.gone_except(source, namespace.as_deref(), &seen);
                    gate.open();
                }
                Ok(watcher::Event::Apply(object)) => {
                    let key = ObjectKey::of(object.meta());
                    self.changed(&Reference { source, key }, version(object.meta()), true);
                }
                Ok(watcher::Event::Delete(object)) => {
                    let key = ObjectKey::of(object.meta());
                    self.changed(&Reference { source, key }, version(object.meta()), false);
                }
                Err(fault) => {
                    metrics.watch_failed(&source.to_string(), "WatchFailed");
                    gate.wait_for(format!("{source}s: {fault}"));
                    tracing::warn!(kind = %source, error = %fault, "watch failed; retrying");
                }
            }
        }
    }

    /// Takes note of an event; true when somebody refers to the object.
    fn changed(&self, reference: &Reference, version: u64, exists: bool) -> bool {
        let mut index = self.lock();
        let Some(entry) = index.entries.get_mut(reference) else {
            return false;
        };
        if entry.learn(version, exists) {
            index.wake(&self.wakers, reference);
        }
        true
    }

    fn gone_except(&self, source: Source, namespace: Option<&str>, seen: &HashSet<Reference>) {
        let mut index = self.lock();
        let mut gone = Vec::new();
        for (reference, entry) in &mut index.entries {
            let watched = reference.source == source
                && namespace.is_none_or(|namespace| reference.key.namespace == namespace);
            if watched && !seen.contains(reference) && entry.state.as_ref().is_some_and(Option::is_some) {
                entry.state = None;
                gone.push(reference.clone());
            }
        }
        for reference in gone {
            index.wake(&self.wakers, &reference);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn depend(&mut self, dependent: &Dependent, wanted: &BTreeSet<Reference>) {
        for orphan in self.dependents.set(dependent, wanted) {
            self.entries.remove(&orphan);
        }
        for reference in wanted {
            self.entries.entry(reference.clone()).or_default();
        }
    }

    fn wake(&self, wakers: &Wakers, reference: &Reference) {
        for (controller, key) in self.dependents.on(reference) {
            wakers.wake(controller, key.clone());
        }
    }
}

fn of_secret(secret: Secret) -> Resolved {
    let digests = secret.data.unwrap_or_default();
    Resolved {
        digests: digests
            .into_iter()
            .map(|(key, value)| (key, digest_bytes(&value.0)))
            .collect(),
        data: BTreeMap::new(),
    }
}

fn of_config_map(map: ConfigMap) -> Resolved {
    let data = map.data.unwrap_or_default();
    let binary = map.binary_data.unwrap_or_default();
    let mut digests: BTreeMap<String, String> = data
        .iter()
        .map(|(key, value)| (key.clone(), digest_bytes(value.as_bytes())))
        .collect();
    digests.extend(
        binary
            .into_iter()
            .map(|(key, value)| (key, digest_bytes(&value.0))),
    );
    Resolved { digests, data }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    enum Step {
        Fetched(Option<u64>),
        There(u64),
        Gone(u64),
    }
    use Step::{Fetched, Gone, There};

    /// What is known in the end: `None` when it must be asked for, else whether it exists.
    #[rstest]
    #[case::absent(&[Fetched(None)], Some(false))]
    #[case::found(&[Fetched(Some(5))], Some(true))]
    #[case::told_again(&[Fetched(Some(5)), There(5)], Some(true))]
    #[case::changed(&[Fetched(Some(5)), There(6)], None)]
    #[case::changed_and_fetched(&[Fetched(Some(5)), There(6), Fetched(Some(6))], Some(true))]
    #[case::told_late(&[Fetched(Some(6)), There(5)], Some(true))]
    #[case::fetched_late(&[There(6), Fetched(Some(5))], None)]
    #[case::made(&[Fetched(None), There(5)], None)]
    #[case::deleted(&[Fetched(Some(5)), Gone(6)], Some(false))]
    #[case::deleted_as_it_was(&[Fetched(Some(5)), Gone(5)], Some(false))]
    #[case::predecessor_deleted(&[Fetched(Some(7)), Gone(6), There(7)], Some(true))]
    #[case::predecessor_deleted_after_a_change(&[There(7), Gone(6), Fetched(Some(7))], Some(true))]
    #[case::deleted_and_made_again(&[Gone(6), There(7)], None)]
    #[case::told_of_before_its_end(&[Gone(6), There(5)], Some(false))]
    // It may be there by now: the watch tells when it is not.
    #[case::gone_when_asked(&[There(6), Fetched(None)], None)]
    fn what_is_newest_counts(#[case] steps: &[Step], #[case] expected: Option<bool>) {
        let mut entry = Entry::default();
        for step in steps {
            let before = entry.state.clone();
            match step {
                Fetched(version) => entry.keep(*version, version.map(|_| Arc::default())),
                There(version) | Gone(version) => {
                    let is_news = entry.learn(*version, matches!(step, There(_)));
                    assert!(is_news || entry.state == before, "changed without a word");
                }
            }
        }
        assert_eq!(entry.state.map(|state| state.is_some()), expected);
    }
}
