//! An in-memory picture of one kind, filled by a watch and read by reconciles.
//!
//! It differs from `kube`'s reflector store in four ways that we need: several watches (one a namespace) may fill one
//! store, objects are indexed by their owner, a reconcile can put the server's answer to its own write in at once, and
//! an older version never replaces a newer one.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Resource,
    core::{DeserializeGuard, PartialObjectMeta},
};

/// Namespace and name: what a reconcile is asked to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of(meta: &ObjectMeta) -> Self {
        Self::new(
            meta.namespace.clone().unwrap_or_default(),
            meta.name.clone().unwrap_or_default(),
        )
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a store has to know of an object.
pub trait Cached: Send + Sync + 'static {
    fn meta(&self) -> &ObjectMeta;

    /// What the object is indexed by: the uid of its controller owner, unless a kind has something better.
    fn owner(&self) -> Option<String> {
        controller_owner(self.meta()).map(|owner| owner.uid.clone())
    }
}

impl<K: Resource + Send + Sync + 'static> Cached for DeserializeGuard<K> {
    fn meta(&self) -> &ObjectMeta {
        Resource::meta(self)
    }
}

/// A namespace by its labels and annotations; its key has the name only.
pub struct NamespaceFacts(ObjectMeta);

impl NamespaceFacts {
    /// What [`crate::dependents::Target`] calls a namespace.
    pub const KIND: &'static str = "Namespace";

    pub fn new(namespace: PartialObjectMeta<Namespace>) -> Self {
        let meta = namespace.metadata;
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.retain(|name, _| name.starts_with(crate::PREFIX));
        Self(ObjectMeta {
            name: meta.name,
            uid: meta.uid,
            resource_version: meta.resource_version,
            labels: meta.labels,
            annotations: Some(annotations),
            ..ObjectMeta::default()
        })
    }

    /// A label, or an annotation whose name is ours.
    pub fn get(&self, name: &str) -> Option<&str> {
        let maps = [&self.0.annotations, &self.0.labels];
        let mut maps = maps.into_iter().flatten();
        maps.find_map(|map| map.get(name)).map(String::as_str)
    }
}

impl Cached for NamespaceFacts {
    fn meta(&self) -> &ObjectMeta {
        &self.0
    }
}

/// How many deleted objects are remembered, so that a late answer to a write cannot bring one back.
const REMEMBERED_DELETIONS: usize = 4096;

pub struct Store<T> {
    inner: RwLock<Inner<T>>,
}

struct Inner<T> {
    objects: HashMap<ObjectKey, Known<T>>,
    /// How often anything was taken in.
    puts: u64,
    by_owner: HashMap<String, BTreeSet<ObjectKey>>,
    /// The version at which each left, by uid. An object may come back at a later one: to a watch with a selector, one
    /// that no longer matches looks deleted.
    deleted: HashMap<String, u64>,
    deleted_order: VecDeque<String>,
}

struct Known<T> {
    object: Arc<T>,
    /// Which of the puts it was.
    put: u64,
}

/// A moment in the life of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            inner: RwLock::new(Inner {
                objects: HashMap::new(),
                puts: 0,
                by_owner: HashMap::new(),
                deleted: HashMap::new(),
                deleted_order: VecDeque::new(),
            }),
        }
    }
}

impl<T: Cached> Store<T> {
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.read().objects.get(key).map(|known| known.object.clone())
    }

    /// Every object that is indexed by this owner.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<T>> {
        let inner = self.read();
        let keys = inner.by_owner.get(uid);
        keys.into_iter()
            .flatten()
            .filter_map(|key| inner.objects.get(key))
            .map(|known| known.object.clone())
            .collect()
    }

    pub fn keys(&self) -> Vec<ObjectKey> {
        self.read().objects.keys().cloned().collect()
    }

    /// Every object of one namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let inner = self.read();
        let mut found = Vec::new();
        for (key, known) in &inner.objects {
            if key.namespace == namespace {
                found.push(known.object.clone());
            }
        }
        found
    }

    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes an object in unless a newer version of it, or its deletion, is known already.
    pub fn put(&self, object: impl Into<Arc<T>>) -> bool {
        let object = object.into();
        let key = ObjectKey::of(object.meta());
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        let mut inner = self.write();
        if inner
            .deleted
            .get(uid)
            .is_some_and(|left| version(object.meta()) <= *left)
        {
            return false;
        }
        if let Some(known) = inner.objects.get(&key) {
            let known = known.object.meta();
            if known.uid == object.meta().uid && version(known) >= version(object.meta()) {
                return false;
            }
        }
        inner.unlink_owner(&key);
        if let Some(owner) = object.owner() {
            inner.by_owner.entry(owner).or_default().insert(key.clone());
        }
        inner.puts += 1;
        let put = inner.puts;
        inner.objects.insert(key, Known { object, put });
        true
    }

    /// Forgets an object; a newer version of it, or a newer one of the same name, stays.
    pub fn remove(&self, meta: &ObjectMeta) -> Option<Arc<T>> {
        let key = ObjectKey::of(meta);
        let mut inner = self.write();
        if let Some(uid) = &meta.uid {
            inner.remember_deletion(uid, version(meta));
        }
        let known = inner.objects.get(&key)?.object.meta();
        if known.uid != meta.uid || version(known) > version(meta) {
            return None;
        }
        inner.unlink_owner(&key);
        inner.objects.remove(&key).map(|known| known.object)
    }

    /// Now; what is put from here on is newer.
    pub fn now(&self) -> Moment {
        Moment(self.read().puts)
    }

    /// After a fresh list of `namespace` (all of them when `None`) that was begun at `since`: forgets what the list did
    /// not hold. Only what was put since may be newer than the list. Versions do not tell: what was changed last and
    /// then deleted has a higher one than anything in the list.
    pub fn retain(&self, namespace: Option<&str>, seen: &HashSet<ObjectKey>, since: Moment) -> Vec<Arc<T>> {
        let mut inner = self.write();
        let gone: Vec<ObjectKey> = inner
            .objects
            .iter()
            .filter(|(key, known)| {
                namespace.is_none_or(|namespace| key.namespace == namespace)
                    && !seen.contains(*key)
                    && known.put <= since.0
            })
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter()
            .filter_map(|key| {
                inner.unlink_owner(key);
                inner.objects.remove(key).map(|known| known.object)
            })
            .collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner<T>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner<T>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Cached> Inner<T> {
    fn unlink_owner(&mut self, key: &ObjectKey) {
        let Some(owner) = self.objects.get(key).and_then(|known| known.object.owner()) else {
            return;
        };
        if let Some(keys) = self.by_owner.get_mut(&owner) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }

    fn remember_deletion(&mut self, uid: &str, version: u64) {
        if let Some(left) = self.deleted.get_mut(uid) {
            *left = version.max(*left);
            return;
        }
        self.deleted.insert(uid.to_owned(), version);
        self.deleted_order.push_back(uid.to_owned());
        if self.deleted_order.len() > REMEMBERED_DELETIONS
            && let Some(oldest) = self.deleted_order.pop_front()
        {
            self.deleted.remove(&oldest);
        }
    }
}

/// The resource version as a number; API servers hand out etcd revisions and later ones are greater.
pub fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// The one owner that controls this object.
pub fn controller_owner(
    meta: &ObjectMeta,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;

    struct Thing(ObjectMeta);

    impl Cached for Thing {
        fn meta(&self) -> &ObjectMeta {
            &self.0
        }
    }

    fn thing(name: &str, uid: &str, version: u64, owner: Option<&str>) -> Thing {
        Thing(ObjectMeta {
            name: Some(name.into()),
            namespace: Some("ns".into()),
            uid: Some(uid.into()),
            resource_version: Some(version.to_string()),
            owner_references: owner.map(|uid| {
                vec![OwnerReference {
                    uid: uid.into(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]
            }),
            ..ObjectMeta::default()
        })
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let store = Store::default();
        assert!(store.put(thing("a", "1", 10, None)));
        assert!(!store.put(thing("a", "1", 9, None)));
        assert!(
            !store.put(thing("a", "1", 10, None)),
            "the same version is no change"
        );
        assert!(store.put(thing("a", "1", 11, None)));
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let store = Store::default();
        store.put(thing("a", "1", 10, None));
        store.remove(&thing("a", "1", 12, None).0);
        assert!(!store.put(thing("a", "1", 11, None)));
        assert!(store.get(&ObjectKey::new("ns", "a")).is_none());
        assert!(
            store.put(thing("a", "2", 13, None)),
            "a new object of that name is welcome"
        );
    }

    /// What a watch with a selector tells when the label that it selects by is taken away and put back.
    #[test]
    fn what_leaves_the_selection_comes_back_when_it_matches_again() {
        let store = Store::default();
        store.put(thing("a", "1", 10, Some("o1")));
        store.remove(&thing("a", "1", 11, None).0);
        assert!(!store.put(thing("a", "1", 11, Some("o1"))), "told late");
        assert!(store.put(thing("a", "1", 12, Some("o1"))), "labelled again");
        assert_eq!(store.owned_by("o1").len(), 1);
        assert!(
            store.remove(&thing("a", "1", 11, None).0).is_none(),
            "news of before it came back"
        );
        assert_eq!(store.len(), 1);
        store.remove(&thing("a", "1", 13, None).0);
        assert!(!store.put(thing("a", "1", 12, None)));
        assert!(store.is_empty());
    }

    #[test]
    fn deleting_the_old_object_leaves_its_successor() {
        let store = Store::default();
        store.put(thing("a", "2", 20, None));
        assert!(store.remove(&thing("a", "1", 10, None).0).is_none());
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn owners_are_indexed_and_follow_changes() {
        let store = Store::default();
        store.put(thing("a", "1", 1, Some("o1")));
        store.put(thing("b", "2", 2, Some("o1")));
        assert_eq!(store.owned_by("o1").len(), 2);
        store.put(thing("a", "1", 3, Some("o2")));
        assert_eq!(store.owned_by("o1").len(), 1);
        assert_eq!(store.owned_by("o2").len(), 1);
        store.remove(&thing("b", "2", 4, None).0);
        assert!(store.owned_by("o1").is_empty());
    }

    #[test]
    fn a_fresh_list_forgets_what_it_lacks_but_not_what_was_put_meanwhile() {
        let store = Store::default();
        store.put(thing("old", "1", 5, None));
        store.put(thing("kept", "2", 6, None));
        // Changed last, and deleted while nobody watched.
        store.put(thing("ghost", "3", 50, Some("o1")));
        let begun = store.now();
        store.put(thing("written-since", "4", 60, None));
        let seen = HashSet::from([ObjectKey::new("ns", "kept")]);
        assert!(store.retain(Some("other"), &HashSet::new(), begun).is_empty());
        let mut gone: Vec<_> = store
            .retain(None, &seen, begun)
            .iter()
            .map(|gone| gone.0.name.clone())
            .collect();
        gone.sort();
        assert_eq!(gone, [Some("ghost".to_owned()), Some("old".to_owned())]);
        assert!(store.owned_by("o1").is_empty());
        assert_eq!(store.len(), 2);
    }
}
