//! What owner references do not clean up: weights that nobody uses any more, and stores.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
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
    Resource, ResourceExt,
    core::{ApiResource, DeserializeGuard},
};
use serde_json::Value;

use super::{
    Models,
    name::ModelName,
    observe::{cached, ollama},
    store::{COMPONENT, POLICY, StoreId},
};

/// Nothing keeps a Model for longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sizes that claims were refused, so that they are not asked for at every visit. After a while they are: the class may
/// allow it by now.
#[derive(Default)]
pub struct Refused(Mutex<HashMap<ObjectKey, (String, Instant)>>);

impl Refused {
    const ASK_AGAIN: Duration = Duration::from_secs(600);

    pub fn get(&self, claim: &ObjectKey, now: Instant) -> Option<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, since)| now.duration_since(*since) < Self::ASK_AGAIN);
        known.get(claim).map(|(size, _)| size.clone())
    }

    pub fn insert(&self, claim: ObjectKey, size: String, now: Instant) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(claim, (size, now));
    }
}

pub async fn finalize(controller: &Models, model: &Model, context: &Context) -> Result<Option<Duration>> {
    let id = StoreId::of(model);
    let namespace = model.namespace().unwrap_or_default();
    if model.status.as_ref().and_then(|status| status.phase) != Some(ModelPhase::Terminating) {
        // The first look at the end of this Model, whose word about the store counts no more.
        wake_others(controller, model, context);
    }
    let removed = remove_unused_stores(controller, model, context).await;
    unless_too_late(removed, waited(model))?;
    let known = controller.all.in_namespace(&namespace);
    let Some(models) = readable(&known) else {
        // One that cannot be read may use anything.
        return Ok(None);
    };
    let at = ObjectKey::new(namespace.clone(), id.name.clone());
    let workload =
        cached::<StatefulSet>(context, &at)?.filter(|set| set["metadata"]["deletionTimestamp"].is_null());
    let service = cached::<Service>(context, &at)?;
    let (Some(workload), Some(service)) = (workload, service) else {
        return Ok(None);
    };
    if mounts_read_only(&workload) {
        return Ok(None);
    }
    let Some(name) = unused_weights(model, &models).filter(|_| waited(model) <= PATIENCE) else {
        return Ok(None);
    };
    let key = ObjectKey::of(model.meta());
    let Some(ollama) = ollama(controller, &namespace, &id, &service) else {
        return Ok(None);
    };
    let asked = name.clone();
    let subject = erasure(model, &name);
    let erased = controller
        .erasures
        .look(&key, &subject, &context.queue, move || async move {
            ollama.delete(&asked).await.map_err(|fault| format!("{fault:?}"))
        });
    if let Some(Ok(())) = erased {
        controller.pulls.expire(&at, &name.short());
        return Ok(None);
    }
    Ok(Some(Duration::from_secs(5)))
}

/// What is asked for: an answer that an earlier Model of the same name got says nothing about the weights of this one.
fn erasure(model: &Model, name: &ModelName) -> String {
    format!("{} {}", model.uid().unwrap_or_default(), name.short())
}

/// What a store looks like follows from all its Models, so that the others have to look when one has something else to
/// say, or nothing any more. Which store it spoke of before is not known.
pub fn wake_others(controller: &Models, model: &Model, context: &Context) {
    let namespace = model.namespace().unwrap_or_default();
    let own = ObjectKey::of(model.meta());
    for other in controller.all.in_namespace(&namespace) {
        let key = ObjectKey::of(other.meta());
        if key != own {
            context.queue.add(key);
        }
    }
}

/// The weights that nobody needs once this Model is gone, unless they are to stay. Models share weights by the volume:
/// one may name the claim of another one's store.
fn unused_weights(model: &Model, all: &[&Model]) -> Option<ModelName> {
    let name = ModelName::parse(model.spec.image.as_deref()?)?;
    let claim = StoreId::of(model).claim;
    let is_used = all
        .iter()
        .filter(|other| stays(other) && other.meta().name != model.meta().name)
        .filter(|other| StoreId::of(other).claim == claim)
        .any(|other| other.spec.image.as_deref().is_some_and(|image| name.is(image)));
    let store = model.spec.store.as_ref();
    let kept = store.is_some_and(|store| store.weights_policy() == DeletionPolicy::Retain);
    (!is_used && !kept).then_some(name)
}

/// Nothing can be erased from such a store.
fn mounts_read_only(workload: &Value) -> bool {
    let volumes = workload["spec"]["template"]["spec"]["volumes"].as_array();
    let mut volumes = volumes.into_iter().flatten();
    volumes.any(|volume| volume["persistentVolumeClaim"]["readOnly"] == true)
}

fn stays(model: &Model) -> bool {
    model.meta().deletion_timestamp.is_none()
}

/// All of them, or nothing when one does not have the shape of its kind.
fn readable(known: &[Arc<DeserializeGuard<Model>>]) -> Option<Vec<&Model>> {
    known.iter().map(|known| known.0.as_ref().ok()).collect()
}

/// Stores of this namespace that no Model uses, and that are not to stay. A store is known by any part of it: its making
/// may have been interrupted, and so may its removal.
pub async fn remove_unused_stores(controller: &Models, model: &Model, context: &Context) -> Result<()> {
    let namespace = model.namespace().unwrap_or_default();
    let known = controller.all.in_namespace(&namespace);
    let Some(models) = readable(&known) else {
        return Ok(());
    };
    let others = models.iter().filter(|other| other.meta().name != model.meta().name);
    let used: Vec<StoreId> = others
        .copied()
        .chain([model])
        .filter(|model| stays(model))
        .map(StoreId::of)
        .collect();
    // The server is last: while it is there, so is the volume that it holds.
    let parts = [
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<PersistentVolumeClaim>(&()),
        ApiResource::erase::<StatefulSet>(&()),
    ];
    for resource in parts {
        for child in context.children.shared(&resource, &namespace) {
            let metadata = &child.json()?["metadata"];
            if goes(metadata, resource.kind == "PersistentVolumeClaim", &used) {
                context.children.remove(&resource, &child).await?;
            }
        }
    }
    Ok(())
}

/// Whether a part of a store is to be removed. Its volume may be used without it, by a Model that names the claim.
fn goes(metadata: &Value, is_claim: bool, used: &[StoreId]) -> bool {
    let labels = &metadata["labels"];
    let is_used = used.iter().any(|id| {
        labels[INSTANCE_LABEL] == id.name.as_str() || (is_claim && metadata["name"] == id.claim.as_str())
    });
    labels[NAME_LABEL] == COMPONENT && metadata["annotations"][POLICY] == "Delete" && !is_used
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn model(name: &str, spec: &str) -> Model {
        let spec: Value = serde_saphyr::from_str(spec).expect("YAML");
        let metadata = json!({"name": name, "namespace": "ns"});
        serde_json::from_value(json!({
            "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": metadata, "spec": spec,
        }))
        .expect("a Model")
    }

    #[rstest]
    #[case::last("{image: phi3}", "{image: llama3}", true)]
    #[case::used("{image: phi3}", "{image: 'phi3:latest'}", false)]
    #[case::another_store("{image: phi3}", "{image: phi3, store: {scope: PerModel}}", true)]
    #[case::by_the_claim(
        "{image: phi3}",
        "{image: phi3, persistentVolumeClaim: ollama-models-store-pvc}",
        false
    )]
    #[case::of_the_claim(
        "{image: phi3, persistentVolumeClaim: ollama-models-store-pvc}",
        "{image: phi3}",
        false
    )]
    #[case::kept("{image: phi3, store: {weightsPolicy: Retain}}", "{image: llama3}", false)]
    fn weights_go_with_the_last_model_that_uses_them(
        #[case] spec: &str,
        #[case] other: &str,
        #[case] expected: bool,
    ) {
        let (model, other) = (model("a", spec), model("b", other));
        let unused = unused_weights(&model, &[&model, &other]);
        assert_eq!(unused.is_some(), expected);
        let mut leaving = other;
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        let kept = spec.contains("Retain");
        let unused = unused_weights(&model, &[&model, &leaving]);
        assert_eq!(unused.is_some(), !kept, "one that goes as well needs nothing");
    }

    #[rstest]
    #[case::unused("{image: phi3, store: {scope: PerModel}}", true, true)]
    #[case::used("{image: phi3}", false, false)]
    #[case::its_volume_is_used("{image: phi3, persistentVolumeClaim: ollama-models-store-pvc}", true, false)]
    fn of_a_store_only_what_nobody_uses_goes(
        #[case] left: &str,
        #[case] server_goes: bool,
        #[case] volume_goes: bool,
    ) {
        let used = [StoreId::of(&model("b", left))];
        let shared = StoreId::of(&model("a", "{image: phi3}"));
        let part = |name: &str| {
            json!({
                "name": name, "annotations": {POLICY: "Delete"},
                "labels": {NAME_LABEL: COMPONENT, INSTANCE_LABEL: shared.name},
            })
        };
        assert_eq!(goes(&part(&shared.name), false, &used), server_goes);
        assert_eq!(goes(&part(&shared.claim), true, &used), volume_goes);
        let mut kept = part(&shared.claim);
        kept["annotations"][POLICY] = json!("Retain");
        assert!(!goes(&kept, true, &[]), "it is to stay");
    }

    #[test]
    fn a_namesake_has_its_weights_erased_anew() {
        let name = ModelName::parse("phi3").expect("a name");
        let [old, new] = ["1", "2"].map(|uid| {
            let mut model = model("a", "{image: phi3}");
            model.metadata.uid = Some(uid.to_owned());
            erasure(&model, &name)
        });
        assert_ne!(old, new);
    }

    #[test]
    fn a_size_that_was_refused_is_asked_for_again_later() {
        let (refused, start) = (Refused::default(), Instant::now());
        let claim = ObjectKey::new("ns", "claim");
        refused.insert(claim.clone(), "9Gi".to_owned(), start);
        assert_eq!(refused.get(&claim, start).as_deref(), Some("9Gi"));
        assert_eq!(refused.get(&claim, start + Refused::ASK_AGAIN), None);
    }

    #[test]
    fn a_store_that_cannot_be_removed_holds_a_model_up_but_not_for_ever() {
        let refused = || Err(gantry_kit::Error::NotLeader);
        assert!(unless_too_late(refused(), PATIENCE).is_err());
        assert!(unless_too_late(refused(), PATIENCE + Duration::from_secs(1)).is_ok());
    }
}
