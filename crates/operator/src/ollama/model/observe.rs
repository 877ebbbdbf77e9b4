//! Every read: the other Models, the store and what it knows of the weights before, the workload after the apply.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use gantry_crds::{
    common::PullPolicy,
    ollama::{Model, PORT},
};
use gantry_kit::{
    Applied, Context, Controller, ObjectKey, Result,
    dependents::{SHARED, Target},
    pods::PodSummary,
};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Service},
};
use kube::{
    Api, Resource, ResourceExt,
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;

use super::{
    Models,
    api::{Info, Ollama},
    monitoring,
    name::ModelName,
    pull::{Order, State},
    store::{self, COMPONENT, Live, StoreId},
    validate::{self, Valid},
};
use crate::workload::{reach, refs, route};

/// What is known before anything is decided.
pub struct Observed {
    /// All Models of the same store, oldest first, this one among them.
    pub users: Vec<Arc<Model>>,
    pub store: Live,
    /// A size that the volume was refused before.
    pub refused_size: Option<String>,
    /// What the store says about the weights; nothing while it is not known yet.
    pub pull: Option<State>,
    /// What Ollama told about the model of the spec, now or earlier.
    pub info: Option<Info>,
    /// The model that was last recorded: another one than that of the spec when the spec was changed just now.
    pub served_before: Option<String>,
    pub deployment: Option<Value>,
    pub known: refs::Known,
    pub has_gateway_api: bool,
    /// Which kinds of the Prometheus operator are installed.
    pub monitoring: [bool; 3],
}

impl Observed {
    pub fn users(&self) -> Vec<&Model> {
        self.users.iter().map(AsRef::as_ref).collect()
    }

    /// What was built before, as far as it has the shape of a Deployment.
    pub fn running(&self) -> Option<Deployment> {
        serde_json::from_value(self.deployment.clone()?).ok()
    }
}

pub async fn observe(controller: &Models, model: &Model, context: &Context) -> Result<Observed> {
    let key = ObjectKey::of(model.meta());
    let id = StoreId::of(model);
    let at = |name: &str| ObjectKey::new(key.namespace.clone(), name);
    let shared = |name: &str| Target {
        kind: SHARED,
        key: at(name),
    };
    let before = context_targets(&id, shared);
    context.links.set(Models::NAME, &key, &before);
    let users = users(controller, model, &id);
    let store = Live {
        claim: live::<PersistentVolumeClaim>(context, &at(&id.claim)).await?,
        workload: live::<StatefulSet>(context, &at(&id.name)).await?,
        service: cached::<Service>(context, &at(&id.name))?,
    };
    let refused_size = controller.refused.get(&at(&id.claim), Instant::now());
    let workload = validate::workload_name(model);
    let may_pull = !store::read_only(&id, &users, &store);
    let pull = look(controller, model, &id, &store, may_pull, context);
    let recorded = cached::<ConfigMap>(context, &at(&workload))?.and_then(|map| recorded_info(&map));
    let served_before = recorded.as_ref().map(|info| info.name.clone());
    let info = known_info(model, pull.as_ref(), recorded);
    let mut observed = Observed {
        users,
        store,
        refused_size,
        pull,
        info,
        served_before,
        deployment: live::<Deployment>(context, &at(&workload)).await?,
        known: refs::Known::new(),
        has_gateway_api: context.apis.has(route::CRD),
        monitoring: monitoring::known(|crd| context.apis.has(crd)),
    };
    if let Ok(draft) = validate::draft(model, &controller.settings, &observed) {
        // Those whose word about the store counts more than ours.
        let mut targets = before;
        targets.extend(draft.store.elders.iter().map(|elder| Target {
            kind: Models::NAME,
            key: elder.clone(),
        }));
        context.links.set(Models::NAME, &key, &targets);
        let mut uses = refs::uses(&key.namespace, &draft.template["spec"]);
        uses.extend(refs::uses(&key.namespace, draft.store.pod()));
        let wanted = uses.into_iter().map(|used| used.reference).collect();
        observed.known = context.references.resolve(Models::NAME, &key, wanted).await?;
    }
    Ok(observed)
}

fn context_targets(id: &StoreId, shared: impl Fn(&str) -> Target) -> BTreeSet<Target> {
    BTreeSet::from([shared(&id.name), shared(&id.claim)])
}

/// All Models that use this store and stay, oldest first.
pub fn users(controller: &Models, model: &Model, id: &StoreId) -> Vec<Arc<Model>> {
    let namespace = model.namespace().unwrap_or_default();
    let mut users: Vec<Arc<Model>> = controller
        .all
        .in_namespace(&namespace)
        .iter()
        .filter_map(|known| known.0.as_ref().ok())
        .filter(|other| other.meta().name != model.meta().name && other.meta().deletion_timestamp.is_none())
        .filter(|other| StoreId::of(other) == *id)
        .map(|other| Arc::new(other.clone()))
        .collect();
    if model.meta().deletion_timestamp.is_none() {
        users.push(Arc::new(model.clone()));
    }
    users.sort_by_key(|user| {
        let created = user.meta().creation_timestamp.as_ref().map(|time| time.0);
        (created, user.name_any())
    });
    users
}

/// From the cache, or from the server when it is not among ours: an original operator may have made it.
async fn live<K: Resource<DynamicType = ()>>(context: &Context, key: &ObjectKey) -> Result<Option<Value>> {
    if let Some(known) = cached::<K>(context, key)? {
        return Ok(Some(known));
    }
    let resource = ApiResource::erase::<K>(&());
    let client = context.caller.client();
    let api = Api::<DynamicObject>::namespaced_with(client, &key.namespace, &resource);
    let action = format!("get {} {}", resource.kind, key.name);
    let found = context.caller.read(action, api.get_opt(&key.name)).await?;
    Ok(found.map(|object| serde_json::json!(object)))
}

pub fn cached<K: Resource<DynamicType = ()>>(context: &Context, key: &ObjectKey) -> Result<Option<Value>> {
    let resource = ApiResource::erase::<K>(&());
    let child = context.children.cached(&resource, key);
    child.map(|child| child.json()).transpose()
}

/// The server of a store, as it is reached from here.
pub fn ollama(controller: &Models, namespace: &str, id: &StoreId, service: &Value) -> Option<Ollama> {
    let address = service["spec"]["clusterIP"].as_str()?;
    Some(Ollama {
        client: controller.client.clone(),
        base: reach::base(controller.settings.reach, namespace, &id.name, address, PORT),
    })
}

fn look(
    controller: &Models,
    model: &Model,
    id: &StoreId,
    store: &Live,
    may_pull: bool,
    context: &Context,
) -> Option<State> {
    let key = ObjectKey::of(model.meta());
    let name = ModelName::parse(model.spec.image.as_deref()?)?.short();
    let at = ObjectKey::new(key.namespace.clone(), id.name.clone());
    if !store.is_ready() {
        // Whatever was known is asked again as soon as it is back.
        controller.pulls.expire(&at, &name);
        return None;
    }
    let ollama = ollama(controller, &key.namespace, id, store.service.as_ref()?)?;
    let pull = model.spec.pull.clone().unwrap_or_default();
    let stall = u64::try_from(pull.stall_timeout_seconds()).unwrap_or(300);
    let order = Order {
        store: at,
        model: name,
        insecure: pull.insecure.unwrap_or(false),
        may_pull: may_pull && model.spec.image_pull_policy() != PullPolicy::Never,
        stall: Duration::from_secs(stall),
        uid: store.workload.as_ref()?["metadata"]["uid"].as_str()?.to_owned(),
    };
    controller.pulls.look(&key, &order, &context.queue, &ollama)
}

/// What the store says now, or what it said earlier about the same model.
fn known_info(model: &Model, pull: Option<&State>, recorded: Option<Info>) -> Option<Info> {
    if let Some(State::Present(info)) = pull {
        return Some(info.as_ref().clone());
    }
    let name = ModelName::parse(model.spec.image.as_deref()?)?;
    recorded.filter(|info| name.is(&info.name) && info.size.is_some())
}

fn recorded_info(config_map: &Value) -> Option<Info> {
    serde_json::from_str(config_map["data"][validate::METADATA].as_str()?).ok()
}

/// What the cluster shows once the wish is applied.
pub struct Seen {
    /// Not made yet while the store is not ready, or still gets the weights.
    pub deployment: Option<Deployment>,
    pub pods: Vec<Arc<PodSummary>>,
    pub store: Live,
    pub store_pods: Vec<Arc<PodSummary>>,
}

/// `before` is the store as it was found, which may not have been in the wish.
pub fn look_again(
    model: &Model,
    valid: &Valid,
    before: Live,
    applied: &Applied,
    context: &Context,
) -> Result<Seen> {
    let key = ObjectKey::of(model.meta());
    let store = &valid.store.id.name;
    let at = ObjectKey::new(key.namespace.clone(), store.clone());
    Ok(Seen {
        deployment: applied.get("Deployment", &valid.workload)?,
        pods: context.pods_of(Models::NAME, &key),
        store: Live {
            claim: None,
            workload: applied.get("StatefulSet", store)?.or(before.workload),
            service: applied.get("Service", store)?.or(before.service),
        },
        store_pods: context.pods_of(COMPONENT, &at),
    })
}
