//! Who has to be woken when something changes: a two-way index that roots fill on every visit.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{manager::Wakers, store::ObjectKey};

/// A root, by the name of its controller.
pub type Dependent = (&'static str, ObjectKey);

/// Which roots depend on which targets.
pub struct Dependents<T> {
    on: HashMap<T, HashSet<Dependent>>,
    /// Without repetition, in no order; nearly always one or two.
    of: HashMap<Dependent, Vec<T>>,
}

impl<T> Default for Dependents<T> {
    fn default() -> Self {
        Self {
            on: HashMap::new(),
            of: HashMap::new(),
        }
    }
}

impl<T: Clone + Hash + Ord> Dependents<T> {
    /// One more target.
    pub fn add(&mut self, dependent: &Dependent, target: &T) {
        let known = self.of.entry(dependent.clone()).or_default();
        if !known.contains(target) {
            known.push(target.clone());
        }
        self.on
            .entry(target.clone())
            .or_default()
            .insert(dependent.clone());
    }

    /// The complete list, which replaces the one before. Returns the targets that nobody depends on any more.
    pub fn set(&mut self, dependent: &Dependent, wanted: &BTreeSet<T>) -> Vec<T> {
        let before = self.of.remove(dependent).unwrap_or_default();
        let mut orphans = Vec::new();
        for target in before.into_iter().filter(|target| !wanted.contains(target)) {
            if let Some(known) = self.on.get_mut(&target) {
                known.remove(dependent);
                if known.is_empty() {
                    self.on.remove(&target);
                    orphans.push(target);
                }
            }
        }
        if !wanted.is_empty() {
            self.of
                .insert(dependent.clone(), wanted.iter().cloned().collect());
        }
        for target in wanted {
            let known = self.on.entry(target.clone()).or_default();
            known.insert(dependent.clone());
        }
        orphans
    }

    pub fn on(&self, target: &T) -> impl Iterator<Item = &Dependent> {
        self.on.get(target).into_iter().flatten()
    }
}

/// What [`Target`] calls a child without an owner, and the pods whose instance label has its name.
pub const SHARED: &str = "shared child";

/// An object that is watched anyway: a root, by the name of its controller, a namespace, or a shared child.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub kind: &'static str,
    pub key: ObjectKey,
}

/// Roots that look at other roots, at namespaces or at shared children. The objects need not exist yet: their arrival wakes as well.
pub struct Links {
    wakers: Arc<Wakers>,
    index: Mutex<Dependents<Target>>,
}

impl Links {
    pub fn new(wakers: Arc<Wakers>) -> Self {
        Self {
            wakers,
            index: Mutex::default(),
        }
    }

    /// Everything that `key` of `controller` looks at. To be called before looking, so that no change falls between.
    pub fn set(&self, controller: &'static str, key: &ObjectKey, wanted: &BTreeSet<Target>) {
        self.lock().set(&(controller, key.clone()), wanted);
    }

    pub fn forget(&self, controller: &'static str, key: &ObjectKey) {
        self.set(controller, key, &BTreeSet::new());
    }

    /// Wakes everybody who looks at this object.
    pub fn changed(&self, kind: &'static str, key: ObjectKey) {
        let target = Target { kind, key };
        for (controller, dependent) in self.lock().on(&target) {
            self.wakers.wake(controller, dependent.clone());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Dependents<Target>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependent(name: &str) -> Dependent {
        ("agent", ObjectKey::new("ns", name))
    }

    #[test]
    fn a_new_list_replaces_the_old_one_in_both_directions() {
        let mut index = Dependents::<u8>::default();
        index.set(&dependent("a"), &BTreeSet::from([1, 2]));
        index.set(&dependent("b"), &BTreeSet::from([2]));
        assert_eq!(index.on(&2).count(), 2);
        assert_eq!(index.set(&dependent("a"), &BTreeSet::from([2, 3])), [1]);
        assert_eq!(index.on(&1).count(), 0);
        assert_eq!(
            index.set(&dependent("b"), &BTreeSet::new()),
            [0; 0],
            "a still needs 2"
        );
        assert_eq!(index.set(&dependent("a"), &BTreeSet::new()), [2, 3]);
        assert!(
            index.on.is_empty() && index.of.is_empty(),
            "nothing is left behind"
        );
    }
}
