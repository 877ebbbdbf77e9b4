//! What owner references do not clean up: weights that nobody uses any more, and stores.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use gantry_crds::{
    ollama::{Model, ModelPhase, ModelStatus},
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
    api::Ollama,
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
    let image = model.spec.image.as_deref().unwrap_or_default();
    let Some(name) = unused_weights(model, image, &models).filter(|_| waited(model) <= PATIENCE) else {
        return Ok(None);
    };
    let Some(ollama) = ollama(controller, &namespace, &id, &service) else {
        return Ok(None);
    };
    let is_erased = erase(controller, model, &at, &name, ollama, context);
    Ok((!is_erased).then_some(Duration::from_secs(5)))
}

/// Asks the store in the background to erase these weights. True once it has.
fn erase(
    controller: &Models,
    model: &Model,
    store: &ObjectKey,
    name: &ModelName,
    ollama: Ollama,
    context: &Context,
) -> bool {
    let key = ObjectKey::of(model.meta());
    let subject = erasure(model, name);
    let asked = name.clone();
    let erased = controller
        .erasures
        .look(&key, &subject, &context.queue, move || async move {
            ollama.delete(&asked).await.map_err(|fault| format!("{fault:?}"))
        });
    let is_erased = matches!(erased, Some(Ok(())));
    if is_erased {
        controller.pulls.expire(store, &name.short());
    }
    is_erased
}

/// Erases what this Model served before and nobody needs, one after the other. Returns what is left of it.
pub fn erase_replaced(
    controller: &Models,
    model: &Model,
    mut replaced: Vec<String>,
    service: Option<&Value>,
    context: &Context,
) -> Vec<String> {
    let namespace = model.namespace().unwrap_or_default();
    let known = controller.all.in_namespace(&namespace);
    let Some(models) = readable(&known) else {
        return replaced;
    };
    // Those that others use are theirs to erase, when they go.
    replaced.retain(|image| unused_weights(model, image, &models).is_some());
    let id = StoreId::of(model);
    let ollama = service.and_then(|service| ollama(controller, &namespace, &id, service));
    if let Some(ollama) = ollama
        && let Some(name) = replaced.first().and_then(|image| ModelName::parse(image))
    {
        let at = ObjectKey::new(namespace, id.name);
        if erase(controller, model, &at, &name, ollama, context) {
            replaced.remove(0);
        }
    }
    replaced
}

/// What this Model served before `image`, as far as its weights are still to go: as told before, and the last one that was
/// recorded.
pub fn replaced(before: Option<&ModelStatus>, recorded: Option<&str>, image: &ModelName) -> Vec<String> {
    let told = before.and_then(|status| status.replaced.clone());
    let mut all: Vec<String> = told.unwrap_or_default();
    all.extend(recorded.map(ToOwned::to_owned));
    all.retain(|name| !image.is(name));
    all.sort();
    all.dedup();
    all
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

/// The weights of `image` when nobody but this Model needs them, unless they are to stay. Models share weights by the
/// volume: one may name the claim of another one's store.
fn unused_weights(model: &Model, image: &str, all: &[&Model]) -> Option<ModelName> {
    let name = ModelName::parse(image)?;
    let claim = StoreId::of(model).claim;
    let is_used = all
        .iter()
        .filter(|other| stays(other) && other.meta().name != model.meta().name)
        .filter(|other| StoreId::of(other).claim == claim)
        .any(|other| needs(other, &name));
    let store = model.spec.store.as_ref();
    let kept = store.is_some_and(|store| store.weights_policy() == DeletionPolicy::Retain);
    (!is_used && !kept).then_some(name)
}

/// By its spec, or by pods that it has not replaced yet.
fn needs(model: &Model, name: &ModelName) -> bool {
    let status = model.status.as_ref();
    let rolling = status.filter(|status| status.phase != Some(ModelPhase::Ready));
    let before = rolling.and_then(|status| status.replaced.as_ref());
    let mut images = model.spec.image.iter().chain(before.into_iter().flatten());
    images.any(|image| name.is(image))
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
    let others = models
        .iter()
        .filter(|other| other.meta().name != model.meta().name);
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
        let unused = unused_weights(&model, "phi3", &[&model, &other]);
        assert_eq!(unused.is_some(), expected);
        let mut leaving = other;
        leaving.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        let kept = spec.contains("Retain");
        let unused = unused_weights(&model, "phi3", &[&model, &leaving]);
        assert_eq!(unused.is_some(), !kept, "one that goes as well needs nothing");
    }

    #[rstest]
    #[case::rolling(ModelPhase::Loading, false)]
    #[case::done(ModelPhase::Ready, true)]
    fn weights_of_pods_that_are_not_replaced_yet_stay(#[case] phase: ModelPhase, #[case] expected: bool) {
        let (model, mut other) = (model("a", "{image: phi3}"), model("b", "{image: llama3}"));
        other.status = Some(ModelStatus {
            phase: Some(phase),
            replaced: Some(vec!["phi3:latest".to_owned()]),
            ..ModelStatus::default()
        });
        let unused = unused_weights(&model, "phi3", &[&model, &other]);
        assert_eq!(unused.is_some(), expected);
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

    #[rstest]
    #[case::first(None, None, &[])]
    #[case::same(None, Some("phi3:latest"), &[])]
    #[case::edited(None, Some("llama3:latest"), &["llama3:latest"])]
    #[case::edited_twice(Some("gemma:2b"), Some("llama3:latest"), &["gemma:2b", "llama3:latest"])]
    #[case::still_to_go(Some("gemma:2b"), Some("phi3:latest"), &["gemma:2b"])]
    #[case::taken_back(Some("phi3:latest"), Some("llama3:latest"), &["llama3:latest"])]
    fn what_was_served_before_is_remembered(
        #[case] told: Option<&str>,
        #[case] recorded: Option<&str>,
        #[case] expected: &[&str],
    ) {
        let status = ModelStatus {
            replaced: told.map(|told| vec![told.to_owned()]),
            ..ModelStatus::default()
        };
        let image = ModelName::parse("phi3").expect("a name");
        assert_eq!(replaced(Some(&status), recorded, &image), expected);
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
