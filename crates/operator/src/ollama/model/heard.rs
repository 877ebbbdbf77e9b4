//! What Models say about stores, remembered, so that the others of a store are woken only by news. Pure but for the memory.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use gantry_crds::ollama::{Model, ModelServer};
use gantry_kit::{ObjectKey, wish::digest};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::store::StoreId;

/// What every Model said about its store when it was last visited.
#[derive(Default)]
pub struct Heard(Mutex<HashMap<ObjectKey, Last>>);

struct Last {
    uid: Option<String>,
    generation: i64,
    word: String,
}

impl Heard {
    /// Whether this Model says something else than before. Nothing when it was not heard yet.
    pub fn is_news(&self, model: &Model) -> Option<bool> {
        let now = Last {
            uid: model.uid(),
            generation: model.metadata.generation.unwrap_or_default(),
            word: digest(&word(model)),
        };
        let (uid, generation, word) = (now.uid.clone(), now.generation, now.word.clone());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.insert(ObjectKey::of(&model.metadata), now)?;
        // A generation that was not heard may have been one that cannot be read, without which the others decided.
        let has_missed = generation > before.generation + 1;
        Some(before.word != word || before.uid != uid || has_missed)
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// All that [`super::store::decide`] takes from Models other than its own.
fn word(model: &Model) -> Value {
    let id = StoreId::of(model);
    let spec = &model.spec;
    json!({
        "id": [id.name, id.claim],
        "storageClassName": spec.storage_class_name,
        "persistentVolume": spec.persistent_volume,
        "persistentVolumeClaim": spec.persistent_volume_claim,
        "store": spec.store,
        "image": spec.server.as_ref().and_then(ModelServer::image),
        "imagePullSecrets": spec.image_pull_secrets,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn model(uid: &str, generation: i64, spec: &str) -> Model {
        let spec: Value = serde_saphyr::from_str(spec).expect("YAML");
        serde_json::from_value(json!({
            "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "spec": spec,
            "metadata": {"name": "a", "namespace": "ns", "uid": uid, "generation": generation},
        }))
        .expect("a Model")
    }

    #[rstest]
    #[case::nothing("u", 1, "{image: phi3}", false)]
    #[case::of_its_own(
        "u",
        2,
        "{image: llama3, replicas: 2, server: {startupTimeoutSeconds: 9}}",
        false
    )]
    #[case::another_store("u", 2, "{image: phi3, store: {scope: PerModel}}", true)]
    #[case::a_claim("u", 2, "{image: phi3, persistentVolumeClaim: c}", true)]
    #[case::mode("u", 2, "{image: phi3, persistentVolume: {accessMode: ReadWriteMany}}", true)]
    #[case::class("u", 2, "{image: phi3, storageClassName: fast}", true)]
    #[case::size("u", 2, "{image: phi3, store: {size: 1Gi}}", true)]
    #[case::image("u", 2, "{image: phi3, server: {image: 'ollama:1'}}", true)]
    #[case::secrets("u", 2, "{image: phi3, imagePullSecrets: [{name: s}]}", true)]
    // The one before was perhaps the oldest of its store, and this one is the youngest.
    #[case::namesake("v", 1, "{image: phi3}", true)]
    #[case::not_all_was_heard("u", 3, "{image: phi3}", true)]
    fn others_hear_what_concerns_them(
        #[case] uid: &str,
        #[case] generation: i64,
        #[case] spec: &str,
        #[case] expected: bool,
    ) {
        let heard = Heard::default();
        assert_eq!(heard.is_news(&model("u", 1, "{image: phi3}")), None);
        let now = model(uid, generation, spec);
        assert_eq!(heard.is_news(&now), Some(expected));
        assert_eq!(heard.is_news(&now), Some(false), "it is known then");
        heard.forget(&ObjectKey::new("ns", "a"));
        assert_eq!(heard.is_news(&now), None);
    }
}
