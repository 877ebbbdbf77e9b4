//! What a kind has to supply, and what it is given.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    NamespaceResourceScope, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{Resource, ResourceExt};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    apis::Apis,
    apply::{Applied, Children},
    client::Caller,
    conditions::{Progress, Verdict},
    dependents::Links,
    error::Result,
    pods::{self, PodSummary},
    queue::Queue,
    references::{Reference, References, Source},
    refused::Refused,
    store::{NamespaceFacts, ObjectKey, Store},
    wish::{Owner, Wish},
};

/// One kind's controller. Everything but `reconcile` is naming.
pub trait Controller: Send + Sync + 'static {
    type Kind: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync;
    type Status: Clone + Debug + Default + PartialEq + Serialize + Send + Sync;

    /// Lower-case kind; field managers are `gantry-<NAME>` and `gantry-<NAME>-status`.
    const NAME: &'static str;
    /// Finalizers of the original operator that may still be on objects and hold nothing of ours.
    const OBSOLETE_FINALIZERS: &'static [&'static str] = &[];

    /// Held on every object of this kind while [`Controller::finalize`] has work to do; for what owner references do
    /// not clean up.
    const FINALIZER: Option<&'static str> = None;

    /// Names of other controllers whose roots this one looks at: they are known before the first visit, so that what
    /// is merely not listed yet does not look lost.
    const LOOKS_AT: &'static [&'static str] = &[];

    /// Fields of the status that others write (approvals, say). They are read like the rest, but never written or
    /// cleared.
    const OTHERS_WRITE: &'static [&'static str] = &[];

    fn status(object: &Self::Kind) -> Option<&Self::Status>;

    /// The parts of a status that the driver keeps.
    fn common(status: &mut Self::Status) -> Common<'_>;

    /// Derives phase and its like from the conditions; the last step before a status is written.
    fn summarize(status: &mut Self::Status);

    /// One look at one object. Level-triggered: it must not matter why it was called.
    fn reconcile(
        &self,
        object: &Self::Kind,
        context: &Context,
    ) -> impl Future<Output = Result<Outcome<Self::Status>>> + Send;

    /// The object is being deleted and holds our finalizer. `None` lets it go; else the next try is after that time.
    /// It must give up in the end: nothing may keep an object for ever.
    fn finalize(
        &self,
        _object: &Self::Kind,
        _context: &Context,
    ) -> impl Future<Output = Result<Option<Duration>>> + Send {
        std::future::ready(Ok(None))
    }

    /// The object is gone: drop what is remembered of it.
    fn forget(&self, _key: &ObjectKey) {}
}

pub struct Common<'a> {
    pub conditions: &'a mut Vec<Condition>,
    pub observed_generation: &'a mut Option<i64>,
}

/// What a visit found out. Waiting and being invalid are outcomes, not errors.
#[derive(Clone, Debug)]
pub struct Outcome<S> {
    /// All but conditions, observed generation and what `summarize` derives.
    pub status: S,
    pub ready: Verdict,
    pub progress: Progress,
    /// Further conditions of this kind; the same types on every visit.
    pub also: Vec<(&'static str, Verdict)>,
    /// A visit that nothing would wake.
    pub again: Option<Duration>,
    /// Reason and note of warnings about this generation of the spec; each becomes one event.
    pub warnings: Vec<(&'static str, String)>,
}

impl<S> Outcome<S> {
    pub fn new(status: S, ready: Verdict, progress: Progress) -> Self {
        Self {
            status,
            ready,
            progress,
            also: Vec::new(),
            again: None,
            warnings: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, condition: &'static str, verdict: Verdict) -> Self {
        self.also.push((condition, verdict));
        self
    }
}

/// What a reconcile may use.
pub struct Context {
    pub caller: Caller,
    pub children: Arc<Children>,
    pub pods: Arc<Store<PodSummary>>,
    pub references: Arc<References>,
    pub links: Arc<Links>,
    /// Labels and annotations of namespaces; empty when the operator looks after a few namespaces only.
    pub namespaces: Arc<Store<NamespaceFacts>>,
    pub apis: Arc<Apis>,
    pub queue: Arc<Queue>,
    pub field_manager: String,
    /// What was refused in the visit that each object is having, for the driver to tell.
    pub refused: Mutex<HashMap<ObjectKey, Refused>>,
}

impl Context {
    /// Every write to children. What is refused and nothing else builds on is no error here: the driver tells of it in the
    /// status, and tries again.
    pub async fn apply<K: Resource<DynamicType = ()>>(&self, root: &K, wish: Wish) -> Result<Applied> {
        let owner = Owner::of(root);
        let mut applied = self.children.apply(&owner, &self.field_manager, wish).await?;
        let refused = std::mem::take(&mut applied.refused);
        if !refused.is_empty() {
            let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(owner.key, refused);
        }
        Ok(applied)
    }

    /// What was refused since this was asked last.
    pub(crate) fn take_refused(&self, key: &ObjectKey) -> Refused {
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(key).unwrap_or_default()
    }

    /// Makes a Secret of this root unless it is there; what it holds is not looked at. The next look finds it.
    pub async fn create_secret_once<K: Resource<DynamicType = ()>>(
        &self,
        root: &K,
        secret: Secret,
    ) -> Result<()> {
        let owner = Owner::of(root);
        let reference = Reference {
            source: Source::Secret,
            key: ObjectKey::new(owner.key.namespace.clone(), secret.name_any()),
        };
        self.children
            .create_once(&owner, &self.field_manager, secret)
            .await?;
        self.references.doubt(&reference);
        Ok(())
    }

    /// The pods of one root, newest first.
    pub fn pods_of(&self, controller: &str, root: &ObjectKey) -> Vec<Arc<PodSummary>> {
        let mut pods = self.pods.owned_by(&pods::index(controller, root));
        pods.sort_by_key(|pod| std::cmp::Reverse(pod.created()));
        pods
    }
}
