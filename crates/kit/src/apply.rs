//! Every write to children: server-side apply of a whole wish, then pruning of what is no longer wished for.
//!
//! A child that already matches costs nothing. A child that another controller owns is never touched.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use gantry_crds::conditions::reasons::CONFLICT;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{ApiResource, DynamicObject},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    child::Child,
    client::Caller,
    error::{Error, Result, code, server_status},
    heals::{Entry, Heals},
    pods::COMPONENT_LABEL,
    project::covers,
    refused::Refused,
    store::{Cached, ObjectKey, Store},
    takeover,
    wish::{Owner, Wish, Wished, digest},
};

/// The caches of all child kinds, shared by all controllers, and the one way to write children.
pub struct Children {
    kinds: HashMap<String, ChildKind>,
    caller: Caller,
    /// Children that the server changes against our wish (an admission webhook, say): what was wished and what came
    /// out. Without this memory the two would chase each other for ever.
    overruled: Mutex<HashMap<Entry, (String, String)>>,
    heals: Heals,
}

pub struct ChildKind {
    pub resource: ApiResource,
    pub store: Arc<Store<Child>>,
}

/// What the server returned for each wished-for object. Status is computed from this and nothing else.
#[derive(Default)]
pub struct Applied {
    objects: Vec<(String, Arc<Child>)>,
    pub(crate) refused: Refused,
}

impl Applied {
    pub fn get<K: DeserializeOwned>(&self, kind: &str, name: &str) -> Result<Option<K>> {
        let found = self
            .objects
            .iter()
            .find(|(known, child)| known == kind && child.key().name == name);
        found.map(|(_, child)| child.parse()).transpose()
    }
}

/// A child as it is after its turn, and what keeps it from being as it was wished for.
struct Settled {
    child: Arc<Child>,
    contested: Option<Error>,
}

impl Children {
    pub fn new(caller: Caller, kinds: impl IntoIterator<Item = ApiResource>) -> Self {
        let kinds = kinds
            .into_iter()
            .map(|resource| {
                (
                    id(&resource),
                    ChildKind {
                        resource,
                        store: Arc::default(),
                    },
                )
            })
            .collect();
        Self {
            kinds,
            caller,
            overruled: Mutex::default(),
            heals: Heals::default(),
        }
    }

    pub fn kinds(&self) -> impl Iterator<Item = &ChildKind> {
        self.kinds.values()
    }

    /// A child as the cache has it; `None` may also mean that it is not ours or not seen yet.
    pub fn cached(&self, resource: &ApiResource, key: &ObjectKey) -> Option<Arc<Child>> {
        self.kinds.get(&id(resource))?.store.get(key)
    }

    /// Makes an object of `owner` unless one of that name is there, which is left as it is: for what is made up once
    /// and must never be made up again.
    pub async fn create_once<K>(&self, owner: &Owner, manager: &str, mut object: K) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let meta = object.meta_mut();
        meta.namespace = Some(owner.key.namespace.clone());
        meta.owner_references = Some(vec![owner.reference.clone()]);
        let api = Api::<K>::namespaced(self.client(), &owner.key.namespace);
        let action = format!("create {} {}", K::kind(&()), object.name_any());
        let params = PostParams {
            field_manager: Some(manager.to_owned()),
            ..PostParams::default()
        };
        match self.caller.write(action, api.create(&params, &object)).await {
            Err(Error::Api { source, .. }) if already_exists(&source) => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    fn client(&self) -> Client {
        self.caller.client()
    }

    /// The shared children of a namespace.
    pub fn shared(&self, resource: &ApiResource, namespace: &str) -> Vec<Arc<Child>> {
        let kind = self.kinds.get(&id(resource));
        let found = kind.map(|kind| kind.store.in_namespace(namespace));
        let mut found = found.unwrap_or_default();
        found.retain(|child| !child.has_controller());
        found
    }

    /// Removes a shared child that nobody uses any more.
    pub async fn remove(&self, resource: &ApiResource, child: &Child) -> Result<()> {
        match self.kinds.get(&id(resource)) {
            Some(kind) if !child.is_being_deleted() => self.delete(kind, child).await,
            _ => Ok(()),
        }
    }

    /// Makes the cluster hold exactly this wish for `owner`. What is refused and nothing else builds on, and what others
    /// keep changing, holds up neither the rest nor the pruning, and is told of in the answer.
    pub async fn apply(&self, owner: &Owner, manager: &str, wish: Wish) -> Result<Applied> {
        let wished = wish.seal(owner);
        let mut applied = Applied::default();
        let mut lacking = Vec::new();
        for wished in &wished {
            let kind = &wished.resource.kind;
            match self.apply_one(owner, manager, wished).await {
                Ok(Settled { child, contested }) => {
                    applied.objects.push((kind.clone(), child));
                    if let Some(error) = contested {
                        applied.refused.add(Some(kind), error);
                    }
                }
                Err(error) if wished.is_beside() && error.is_lasting() => {
                    lacking.push(wished);
                    applied.refused.add(Some(kind), error);
                }
                Err(error) => return Err(error),
            }
        }
        self.prune(owner, &wished, &lacking, &mut applied.refused).await?;
        Ok(applied)
    }

    async fn apply_one(&self, owner: &Owner, manager: &str, wished: &Wished) -> Result<Settled> {
        let key = ObjectKey::new(owner.key.namespace.clone(), wished.name.clone());
        let kind = self.kinds.get(&id(&wished.resource));
        let cached = kind.and_then(|kind| kind.store.get(&key));
        let is_cached = cached.is_some();
        match self.apply_to(owner, manager, wished, cached).await {
            // What we know may be old, and a namesake may have taken its place: the server tells.
            Err(error) if is_cached && is_of_another(&error) => {
                self.apply_to(owner, manager, wished, None).await
            }
            answer => answer,
        }
    }

    async fn apply_to(
        &self,
        owner: &Owner,
        manager: &str,
        wished: &Wished,
        cached: Option<Arc<Child>>,
    ) -> Result<Settled> {
        let key = ObjectKey::new(owner.key.namespace.clone(), wished.name.clone());
        let entry = (id(&wished.resource), key.clone());
        let kind = self.kinds.get(&id(&wished.resource));
        let api = Api::<DynamicObject>::namespaced_with(self.client(), &key.namespace, &wished.resource);
        let what = format!("{} {}", wished.resource.kind, key.name);
        let mut inherited = false;
        let mut original = false;
        let live = match cached {
            Some(child) => Some(child),
            // Not among ours: it may not exist, belong to somebody else, or come from the original operator.
            None => self
                .caller
                .read(format!("get {what}"), api.get_opt(&key.name))
                .await?
                .map(|object| {
                    inherited = takeover::is_inherited(&object);
                    original = inherited && takeover::is_original(&object);
                    Arc::new(Child::new(object))
                }),
        };
        let mut body = wished.body.clone();
        let mut sent = None;
        if let Some(live) = &live {
            check_owner(owner, wished, live, original)?;
            let mut json = live.json()?;
            body = wished.beside(&json);
            let keeps = wished.is_workload()
                && wished.keeps_pods
                && ((inherited && takeover::serves(&json)) || takeover::keeps_template(&wished.body, &json));
            if keeps {
                body = takeover::keeping_template(&body);
            }
            if covers(&json, &body) || self.is_overruled(wished, &key, &json) {
                let contested = self.contest(&entry, wished, true);
                return Ok(Settled {
                    child: live.clone(),
                    contested,
                });
            }
            if !self
                .heals
                .may_write(&entry, &digest(&wished.body), Instant::now())
            {
                self.find_rival(&api, &entry, &body, manager).await;
                let contested = self.contest(&entry, wished, false);
                return Ok(Settled {
                    child: live.clone(),
                    contested,
                });
            }
            // A template that is kept stays the original's; all else of what it set becomes ours with the first write.
            if !keeps
                && (inherited || takeover::kept_template(&json))
                && let Some(handed) = self.hand_over(&api, &key.name, manager).await?
            {
                json = json!(handed);
                body = wished.beside(&json);
            }
            sent = Some(wished.sent(&body, &json));
        }
        let params = PatchParams::apply(manager).force();
        let patch = Patch::Apply(sent.as_ref().unwrap_or(&body));
        let written = self
            .caller
            .write(format!("apply {what}"), api.patch(&key.name, &params, &patch))
            .await?;
        let child = Arc::new(Child::new(written));
        let json = child.json()?;
        self.remember_if_overruled(wished, &body, &key, &json);
        if let Some(kind) = kind {
            // The next visit sees our own write, also when it comes before the watch does. What was there before, or is
            // everybody's, may have been changed by others in between.
            if live.is_some() || wished.is_shared() {
                kind.store.put_answer(child.clone());
            } else {
                kind.store.put(child.clone());
            }
        }
        if live.is_some() {
            self.heals
                .wrote(entry.clone(), &digest(&wished.body), Instant::now());
        }
        let contested = self.contest(&entry, wished, false);
        Ok(Settled { child, contested })
    }

    /// What is told of a child that somebody changes again and again. `holds`: it is as it was wished for.
    fn contest(&self, entry: &Entry, wished: &Wished, holds: bool) -> Option<Error> {
        let contested = self.heals.is_contested(entry, holds, Instant::now());
        contested.then(|| Error::Contested {
            kind: wished.resource.kind.clone(),
            name: wished.name.clone(),
            by: self
                .heals
                .rival(entry)
                .unwrap_or_else(|| "another writer".to_owned()),
        })
    }

    /// Asks once who it is that changes a child: what is cached does not tell.
    async fn find_rival(&self, api: &Api<DynamicObject>, entry: &Entry, body: &Value, manager: &str) {
        if self.heals.rival(entry).is_some() {
            return;
        }
        let name = &entry.1.name;
        // Without an answer it is asked again at the next visit.
        if let Ok(Some(live)) = self.caller.read(format!("get {name}"), api.get_opt(name)).await {
            let rival = takeover::rival(&live, body, manager);
            let rival = rival.map_or_else(|| "another writer".to_owned(), |name| format!("\"{name}\""));
            tracing::warn!(kind = %entry.0, object = %entry.1, %rival, "a child is changed back again and again");
            self.heals.remember_rival(entry, rival);
        }
    }

    /// Makes the fields that an original operator set ours, so that they go when we no longer wish for them. Returns the
    /// object when that changed it.
    async fn hand_over(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        manager: &str,
    ) -> Result<Option<DynamicObject>> {
        let live = self.caller.read(format!("get {name}"), api.get_opt(name)).await?;
        let Some(patch) = live.and_then(|live| takeover::hand_over(&live, manager)) else {
            return Ok(None);
        };
        let patch = Patch::Merge(patch);
        let params = PatchParams::default();
        let call = api.patch(name, &params, &patch);
        self.caller
            .write(format!("take over {name}"), call)
            .await
            .map(Some)
    }

    /// `lacking` is what was refused: what it was to take the place of stays.
    async fn prune(
        &self,
        owner: &Owner,
        wished: &[Wished],
        lacking: &[&Wished],
        refused: &mut Refused,
    ) -> Result<()> {
        let keep: HashSet<(String, &str)> = wished
            .iter()
            .map(|wished| (id(&wished.resource), wished.name.as_str()))
            .collect();
        for (id, kind) in &self.kinds {
            for child in kind.store.owned_by(&owner.reference.uid) {
                let key = child.key();
                let stays = keep.contains(&(id.clone(), key.name.as_str()))
                    || child.is_being_deleted()
                    || may_be_before(&child, id, wished, lacking);
                if stays {
                    continue;
                }
                match self.delete(kind, &child).await {
                    // That it changed meanwhile says nothing about the others either.
                    Err(error) if error.is_lasting() || error.reason() == CONFLICT => {
                        refused.add(None, error);
                    }
                    answer => answer?,
                }
            }
        }
        Ok(())
    }

    /// Deletes exactly this version of exactly this object: never a namesake that took its place.
    async fn delete(&self, kind: &ChildKind, child: &Child) -> Result<()> {
        let key = child.key();
        let api = Api::<DynamicObject>::namespaced_with(self.client(), &key.namespace, &kind.resource);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(child.identity().uid.to_owned()),
                resource_version: Some(child.identity().version.to_string()),
            }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let action = format!("delete {} {}", kind.resource.kind, key.name);
        match self.caller.write(action, api.delete(&key.name, &params)).await {
            Ok(_) => Ok(()),
            Err(Error::Api { source, .. }) if code(&source) == Some(404) => {
                kind.store.remove(child.identity());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn is_overruled(&self, wished: &Wished, key: &ObjectKey, live: &Value) -> bool {
        let overruled = self.overruled.lock().unwrap_or_else(PoisonError::into_inner);
        overruled
            .get(&(id(&wished.resource), key.clone()))
            .is_some_and(|(wish, outcome)| *wish == digest(&wished.body) && *outcome == substance(live))
    }

    fn remember_if_overruled(&self, wished: &Wished, body: &Value, key: &ObjectKey, result: &Value) {
        let mut overruled = self.overruled.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = (id(&wished.resource), key.clone());
        if covers(result, body) {
            overruled.remove(&entry);
        } else {
            tracing::warn!(kind = %wished.resource.kind, object = %key, "the server changed what was applied; leaving it so");
            // Nobody tells this memory of children that are gone.
            overruled.retain(|(id, key), _| {
                let kind = self.kinds.get(id);
                kind.is_some_and(|kind| kind.store.get(key).is_some())
            });
            overruled.insert(entry, (digest(&wished.body), substance(result)));
        }
    }
}

fn check_owner(owner: &Owner, wished: &Wished, live: &Child, original: bool) -> Result<()> {
    let theirs = live.controller();
    match &theirs {
        None if wished.is_shared() && (original || is_ours(live)) => Ok(()),
        Some(theirs) if !wished.is_shared() && theirs.uid == owner.reference.uid => Ok(()),
        Some(theirs) if theirs.kind == owner.reference.kind && theirs.name == owner.reference.name => {
            Err(Error::Predecessor {
                kind: wished.resource.kind.clone(),
                name: wished.name.clone(),
            })
        }
        None if original && left_by_original(owner, wished, live) => Ok(()),
        None if may_adopt(owner, live) => Ok(()),
        _ => Err(Error::NotOurs {
            kind: wished.resource.kind.clone(),
            name: wished.name.clone(),
            owner: theirs.as_ref().map_or_else(
                || "nobody we know".to_owned(),
                |theirs| format!("{} {}", theirs.kind, theirs.name),
            ),
            root: owner.key.name.clone(),
        }),
    }
}

/// Some originals name their owner without calling it controller, or name the workload beside it.
fn left_by_original(owner: &Owner, wished: &Wished, live: &Child) -> bool {
    let owners = live.owners();
    let known = |known: &OwnerReference| known.uid == owner.reference.uid || known.name == wished.name;
    !owners.is_empty() && owners.iter().all(known)
}

fn is_ours(live: &Child) -> bool {
    live.json()
        .is_ok_and(|json| json["metadata"]["labels"]["app.kubernetes.io/managed-by"] == crate::MANAGED_BY)
}

/// Whether a child that is no longer wished for may be what one of the `lacking` was to take the place of: that of the same
/// part, or any where there is one of its kind.
fn may_be_before(child: &Child, kind: &str, wished: &[Wished], lacking: &[&Wished]) -> bool {
    let component = |body: &Value| {
        let label = &body["metadata"]["labels"][COMPONENT_LABEL];
        label.as_str().map(ToOwned::to_owned)
    };
    let mut lacking = lacking.iter().filter(|lacking| id(&lacking.resource) == kind);
    lacking.any(|lacking| {
        let of_kind = wished.iter().filter(|wished| id(&wished.resource) == kind);
        of_kind.count() == 1
            || component(&lacking.body)
                .is_some_and(|part| component(&child.json().unwrap_or_default()) == Some(part))
    })
}

/// The object is not the one that the write was meant for, or not that version of it. Old servers call a uid that
/// differs invalid.
fn is_of_another(error: &Error) -> bool {
    let Error::Api { source, .. } = error else {
        return false;
    };
    let status = server_status(source);
    let causes = status
        .and_then(|status| status.details.as_ref())
        .map(|details| &details.causes);
    code(source) == Some(409)
        || (code(source) == Some(422)
            && causes.is_some_and(|causes| causes.iter().any(|cause| cause.field == "metadata.uid")))
}

fn already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "AlreadyExists")
}

fn may_adopt(owner: &Owner, live: &Child) -> bool {
    live.json().is_ok_and(|json| {
        json["metadata"]["annotations"][crate::ADOPT]
            .as_str()
            .is_some_and(|root| root == owner.key.name || root == owner.key.to_string())
    })
}

/// What a person would call the content of an object: all but bookkeeping and status.
fn substance(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
        let metadata = &map["metadata"];
        let kept = json!({"labels": metadata["labels"], "annotations": metadata["annotations"]});
        map.insert("metadata".to_owned(), kept);
    }
    digest(&object)
}

/// Kinds are told apart by group and plural; the version may differ from server to server.
pub fn id(resource: &ApiResource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}
