//! An in-memory picture of one kind, filled by a watch and read by reconciles.
//!
//! It differs from `kube`'s reflector store in four ways that we need: several watches (one a namespace) may fill one
//! store, objects are indexed by their owner, a reconcile can put the server's answer to its own write in at once, and
//! an older version never replaces a newer one.

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::{HashMap, HashSet, VecDeque},
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

/// Which object, and which version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub version: u64,
}

impl<'a> Identity<'a> {
    pub fn of(meta: &'a ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            name: meta.name.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref().unwrap_or_default(),
            version: version(meta),
        }
    }

    pub fn key(self) -> ObjectKey {
        ObjectKey::new(self.namespace, self.name)
    }
}

/// What a store has to know of an object.
pub trait Cached: Send + Sync + 'static {
    fn identity(&self) -> Identity<'_>;

    /// What the object is indexed by, if anybody asks by that: the uid of its controller owner, say.
    fn owner(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Takes over from the version before what this one does not tell any more, though it is still so.
    fn remember(&mut self, _before: &Self) {}
}

impl<K: Resource + Send + Sync + 'static> Cached for DeserializeGuard<K> {
    fn identity(&self) -> Identity<'_> {
        Identity::of(Resource::meta(self))
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
    fn identity(&self) -> Identity<'_> {
        Identity::of(&self.0)
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
    /// Nearly always of one object each: a list is smaller than a set.
    by_owner: HashMap<Box<str>, Vec<ObjectKey>>,
    /// The version at which each left, by uid. An object may come back at a later one: to a watch with a selector, one
    /// that no longer matches looks deleted.
    deleted: HashMap<String, u64>,
    deleted_order: VecDeque<String>,
}

struct Known<T> {
    object: Arc<T>,
    /// Which of the puts it was.
    put: u64,
    /// An answer to a write of ours with more in it than we wrote: news when the watch tells of it, though it is here.
    is_untold: bool,
}

/// What a fresh list did not hold.
pub struct Lacking<T> {
    /// Forgotten.
    pub gone: Vec<Arc<T>>,
    /// Put since the list was asked for, so that it may be newer than the list. Still here.
    pub doubtful: Vec<Arc<T>>,
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

    /// Takes an object in unless a newer version of it, or its deletion, is known already. True when that is news.
    pub fn put(&self, object: impl Into<Arc<T>>) -> bool {
        self.take(object.into(), false)
    }

    /// Takes in the answer to a write of ours, which may hold what others did just before: the watch tells of that in
    /// versions that are older than the answer, and of the answer itself. That one is news then, so that nobody misses it.
    pub fn put_answer(&self, object: impl Into<Arc<T>>) {
        self.take(object.into(), true);
    }

    fn take(&self, object: Arc<T>, is_untold: bool) -> bool {
        let new = object.identity();
        let key = new.key();
        let mut inner = self.write();
        if inner
            .deleted
            .get(new.uid)
            .is_some_and(|left| new.version <= *left)
        {
            return false;
        }
        if let Some(known) = inner.objects.get_mut(&key) {
            // Versions count for the whole server: also a namesake of before is older.
            match known.object.identity().version.cmp(&new.version) {
                Ordering::Greater => return false,
                Ordering::Equal => return !is_untold && std::mem::take(&mut known.is_untold),
                Ordering::Less => {}
            }
        }
        inner.unlink_owner(&key);
        if let Some(owner) = object.owner() {
            inner.link_owner(&owner, &key);
        }
        inner.puts += 1;
        let put = inner.puts;
        let known = Known {
            object,
            put,
            is_untold,
        };
        inner.objects.insert(key, known);
        true
    }

    /// Forgets an object; a newer version of it, or a newer one of the same name, stays.
    pub fn remove(&self, gone: Identity<'_>) -> Option<Arc<T>> {
        let key = gone.key();
        let mut inner = self.write();
        if !gone.uid.is_empty() {
            inner.remember_deletion(gone.uid, gone.version);
        }
        let known = inner.objects.get(&key)?.object.identity();
        if known.uid != gone.uid || known.version > gone.version {
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
    /// not hold. Versions do not tell: what was changed last and then deleted has a higher one than anything in the list.
    pub fn retain(&self, namespace: Option<&str>, seen: &HashSet<ObjectKey>, since: Moment) -> Lacking<T> {
        let mut inner = self.write();
        let is_lacking = |key: &ObjectKey| {
            namespace.is_none_or(|namespace| key.namespace == namespace) && !seen.contains(key)
        };
        let lacking = inner.objects.iter().filter(|(key, _)| is_lacking(key));
        let (gone, doubtful): (Vec<_>, Vec<_>) = lacking.partition(|(_, known)| known.put <= since.0);
        let doubtful = doubtful
            .into_iter()
            .map(|(_, known)| known.object.clone())
            .collect();
        let gone: Vec<ObjectKey> = gone.into_iter().map(|(key, _)| key.clone()).collect();
        let gone = gone
            .iter()
            .filter_map(|key| {
                inner.unlink_owner(key);
                inner.objects.remove(key).map(|known| known.object)
            })
            .collect();
        Lacking { gone, doubtful }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner<T>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner<T>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Cached> Inner<T> {
    fn link_owner(&mut self, owner: &str, key: &ObjectKey) {
        if let Some(keys) = self.by_owner.get_mut(owner) {
            keys.push(key.clone());
        } else {
            self.by_owner.insert(owner.into(), vec![key.clone()]);
        }
    }

    fn unlink_owner(&mut self, key: &ObjectKey) {
        let Some(known) = self.objects.get(key) else {
            return;
        };
        let Some(owner) = known.object.owner() else {
            return;
        };
        if let Some(keys) = self.by_owner.get_mut(&*owner) {
            keys.retain(|known| known != key);
            if keys.is_empty() {
                self.by_owner.remove(&*owner);
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

/// What decisions do not need, and what may be half of an object.
pub fn trim<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    if let Some(annotations) = &mut object.meta_mut().annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    object
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
    use proptest::prelude::*;

    use super::*;

    struct Thing(ObjectMeta);

    impl Cached for Thing {
        fn identity(&self) -> Identity<'_> {
            Identity::of(&self.0)
        }

        fn owner(&self) -> Option<Cow<'_, str>> {
            controller_owner(&self.0).map(|owner| Cow::Borrowed(&*owner.uid))
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

    /// Others change it at 11, we write at 12: the watch tells of 11 when 12 is here already.
    #[test]
    fn what_others_did_before_a_write_of_ours_is_news() {
        let store = Store::default();
        store.put(thing("a", "1", 10, None));
        store.put_answer(thing("a", "1", 12, None));
        assert!(!store.put(thing("a", "1", 11, None)), "an older version");
        assert!(store.put(thing("a", "1", 12, None)), "the first that tells of it");
        assert!(!store.put(thing("a", "1", 12, None)), "told");
        store.put_answer(thing("a", "1", 12, None));
        assert!(
            !store.put(thing("a", "1", 12, None)),
            "a write that changed nothing"
        );
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let store = Store::default();
        store.put(thing("a", "1", 10, None));
        store.remove(thing("a", "1", 12, None).identity());
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
        store.remove(thing("a", "1", 11, None).identity());
        assert!(!store.put(thing("a", "1", 11, Some("o1"))), "told late");
        assert!(store.put(thing("a", "1", 12, Some("o1"))), "labelled again");
        assert_eq!(store.owned_by("o1").len(), 1);
        assert!(
            store.remove(thing("a", "1", 11, None).identity()).is_none(),
            "news of before it came back"
        );
        assert_eq!(store.len(), 1);
        store.remove(thing("a", "1", 13, None).identity());
        assert!(!store.put(thing("a", "1", 12, None)));
        assert!(store.is_empty());
    }

    #[test]
    fn deleting_the_old_object_leaves_its_successor() {
        let store = Store::default();
        store.put(thing("a", "2", 20, None));
        assert!(store.remove(thing("a", "1", 10, None).identity()).is_none());
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
        store.remove(thing("b", "2", 4, None).identity());
        assert!(store.owned_by("o1").is_empty());
    }

    /// One name through time: made, changed, labelled and not, deleted, made again; by uid, version and whether it is there.
    fn history() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
        let lives = prop::collection::vec((1_usize..4, any::<bool>()), 1..4);
        (lives, any::<bool>()).prop_map(|(lives, stays)| {
            let mut events = Vec::new();
            let last = lives.len();
            for (uid, (changes, unlabelled)) in (1..).zip(lives) {
                let mut tell = |there| {
                    let version = events.len() as u64 + 1;
                    events.push((uid, version, there));
                };
                (0..changes).for_each(|_| tell(true));
                if unlabelled {
                    tell(false);
                    tell(true);
                }
                if !(stays && uid == last as u64) {
                    tell(false);
                }
            }
            events
        })
    }

    proptest! {
        /// A watch, its lists and the answers to our own writes tell of the same in no particular order, and repeat it.
        #[test]
        fn events_in_any_order_and_repeated_end_the_same(
            (events, told) in history().prop_flat_map(|events| {
                let twice: Vec<_> = events.iter().chain(&events).copied().collect();
                (Just(events), Just(twice).prop_shuffle())
            }),
        ) {
            let store = Store::default();
            for (uid, version, there) in told {
                let thing = thing("a", &uid.to_string(), version, Some(&format!("o{}", version % 2)));
                if there {
                    store.put(thing);
                } else {
                    store.remove(thing.identity());
                }
                let indexed = store.owned_by("o0").len() + store.owned_by("o1").len();
                prop_assert_eq!(indexed, store.len());
            }
            let known = store.get(&ObjectKey::new("ns", "a")).map(|known| known.identity().version);
            let expected = events.last().and_then(|(_, version, there)| there.then_some(*version));
            prop_assert_eq!(known, expected);
        }
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
        let elsewhere = store.retain(Some("other"), &HashSet::new(), begun);
        assert!(elsewhere.gone.is_empty() && elsewhere.doubtful.is_empty());
        let lacking = store.retain(None, &seen, begun);
        let names = |things: &[Arc<Thing>]| {
            let mut names: Vec<_> = things.iter().filter_map(|thing| thing.0.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&lacking.gone), ["ghost", "old"]);
        assert_eq!(names(&lacking.doubtful), ["written-since"]);
        assert!(store.owned_by("o1").is_empty());
        assert_eq!(store.len(), 2);
    }
}
