//! What owner references do not clean up: weights that nobody uses any more, and stores.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use gantry_crds::{
    ollama::{Model, ModelPhase},
    storage::DeletionPolicy,
};
use gantry_kit::{
    Context, ObjectKey, Result,
    pods::{INSTANCE_LABEL, NAME_LABEL},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Service},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::ApiResource,
};
use serde_json::json;

use super::{
    Models,
    name::ModelName,
    observe::{cached, ollama, users},
    store::{COMPONENT, POLICY, StoreId},
};

/// Nothing keeps a Model for longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sizes that claims were refused, so that they are not asked for again and again.
#[derive(Default)]
pub struct Refused(Mutex<HashMap<ObjectKey, String>>);

impl Refused {
    pub fn get(&self, claim: &ObjectKey) -> Option<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(claim).cloned()
    }

    pub fn insert(&self, claim: ObjectKey, size: String) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(claim, size);
    }
}

pub async fn finalize(controller: &Models, model: &Model, context: &Context) -> Result<Option<Duration>> {
    let id = StoreId::of(model);
    let namespace = model.namespace().unwrap_or_default();
    let removed = remove_unused_stores(controller, model, context).await;
    unless_too_late(removed, waited(model))?;
    let known = controller.all.in_namespace(&namespace);
    if known.iter().any(|known| known.0.is_err()) {
        // One that cannot be read may use anything.
        return Ok(None);
    }
    let others = users(controller, model, &id);
    let at = ObjectKey::new(namespace.clone(), id.name.clone());
    let workload =
        cached::<StatefulSet>(context, &at)?.filter(|set| set["metadata"]["deletionTimestamp"].is_null());
    let Some(name) = model.spec.image.as_deref().and_then(ModelName::parse) else {
        return Ok(None);
    };
    let is_used = others
        .iter()
        .any(|other| other.spec.image.as_deref().is_some_and(|image| name.is(image)));
    let kept = model
        .spec
        .store
        .as_ref()
        .is_some_and(|store| store.weights_policy() == DeletionPolicy::Retain);
    let read_only = model
        .spec
        .claim()
        .ok()
        .flatten()
        .is_some_and(|claim| claim.read_only);
    let service = cached::<Service>(context, &at)?;
    let (Some(_), Some(service)) = (workload, service) else {
        return Ok(None);
    };
    if is_used || kept || read_only || waited(model) > PATIENCE {
        return Ok(None);
    }
    let key = ObjectKey::of(model.meta());
    let Some(ollama) = ollama(controller, &namespace, &id, &service) else {
        return Ok(None);
    };
    let asked = name.clone();
    let erased = controller
        .erasures
        .look(&key, &asked.short(), &context.queue, move || async move {
            ollama.delete(&asked).await.map_err(|fault| format!("{fault:?}"))
        });
    if let Some(Ok(())) = erased {
        controller.pulls.expire(&at, &name.short());
        return Ok(None);
    }
    tell_terminating(context, model).await?;
    Ok(Some(Duration::from_secs(5)))
}

/// Stores of this namespace that no Model uses, and that are not to stay. A store is known by any part of it: its making
/// may have been interrupted, and so may its removal.
pub async fn remove_unused_stores(controller: &Models, model: &Model, context: &Context) -> Result<()> {
    let namespace = model.namespace().unwrap_or_default();
    let known = controller.all.in_namespace(&namespace);
    let Ok(models) = known
        .iter()
        .map(|known| known.0.as_ref())
        .collect::<Result<Vec<_>, _>>()
    else {
        return Ok(());
    };
    let stays =
        |other: &&&Model| other.meta().deletion_timestamp.is_none() && other.meta().name != model.meta().name;
    let mut used: BTreeSet<String> = models
        .iter()
        .filter(stays)
        .map(|other| StoreId::of(other).name)
        .collect();
    if model.meta().deletion_timestamp.is_none() {
        used.insert(StoreId::of(model).name);
    }
    // The server is last: while it is there, so is the volume that it holds.
    let parts = [
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<PersistentVolumeClaim>(&()),
        ApiResource::erase::<StatefulSet>(&()),
    ];
    for resource in parts {
        for child in context.children.shared(&resource, &namespace) {
            let metadata = &child.json()?["metadata"];
            let store = metadata["labels"][INSTANCE_LABEL].as_str().unwrap_or_default();
            let is_store = metadata["labels"][NAME_LABEL] == COMPONENT;
            if is_store && metadata["annotations"][POLICY] == "Delete" && !used.contains(store) {
                context.children.remove(&resource, &child).await?;
            }
        }
    }
    Ok(())
}

/// A store that cannot be removed is tried again for a while, and then stays: a later Model's visit removes it.
fn unless_too_late(removed: Result<()>, waited: Duration) -> Result<()> {
    match removed {
        Err(error) if waited > PATIENCE => {
            tracing::warn!(error = error.report(), "a store that no Model uses stays");
            Ok(())
        }
        removed => removed,
    }
}

fn waited(model: &Model) -> Duration {
    let since = model.meta().deletion_timestamp.as_ref().map(|time| time.0);
    let since = since.unwrap_or_else(Timestamp::now);
    Duration::try_from(Timestamp::now().duration_since(since)).unwrap_or_default()
}

async fn tell_terminating(context: &Context, model: &Model) -> Result<()> {
    if model.status.as_ref().and_then(|status| status.phase) == Some(ModelPhase::Terminating) {
        return Ok(());
    }
    let name = model.name_any();
    let api = Api::<Model>::namespaced(context.caller.client(), &model.namespace().unwrap_or_default());
    let patch = Patch::Merge(json!({"status": {
        "phase": ModelPhase::Terminating, "stage": "removing the weights",
        "message": "the weights are removed from the store, since no other Model uses them",
    }}));
    let params = PatchParams {
        field_manager: Some(format!("{}-status", context.field_manager)),
        ..PatchParams::default()
    };
    let call = api.patch_status(&name, &params, &patch);
    match context
        .caller
        .write(format!("write the status of Model {name}"), call)
        .await
    {
        Err(error) if error.is_not_found() => Ok(()),
        answer => answer.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_cannot_be_removed_holds_a_model_up_but_not_for_ever() {
        let refused = || Err(gantry_kit::Error::NotLeader);
        assert!(unless_too_late(refused(), PATIENCE).is_err());
        assert!(unless_too_late(refused(), PATIENCE + Duration::from_secs(1)).is_ok());
    }
}
