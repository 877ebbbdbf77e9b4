//! The store of weights: a volume, and an Ollama server that downloads into it. Pure.
//!
//! Models share a store, so none of them owns it. What it looks like follows from all of them: for each field, the
//! oldest Model that says something decides. So they all have the same wish for it, and a Model that says something
//! else is told.

use std::{collections::BTreeSet, sync::Arc};

use gantry_crds::{
    conditions::reasons,
    ollama::{Model, ModelStore, PORT, StoreScope},
    storage::{AccessMode, DeletionPolicy},
};
use gantry_kit::{
    ObjectKey, Wish,
    pods::{INSTANCE_LABEL, NAME_LABEL},
    project::quantity,
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, SecretKeySelector, Service},
};
use kube::{ResourceExt, core::ApiResource};
use serde_json::{Value, json};

use crate::{
    Settings,
    workload::{claim, deployment::REFERENCES, merge::strategic, names, pod as pods, verdicts::Blocked},
};

/// The store that all Models of a namespace share, as ollama-operator called it.
pub const SHARED: &str = "ollama-models-store";
/// Label of a store's pods, where those of a Model have the name of the controller.
pub const COMPONENT: &str = "model-store";
/// On a store: what becomes of it when no Model uses it any more.
pub const POLICY: &str = "gantry.dev/deletion-policy";
/// Where the volume is mounted: what is `~/.ollama` for the store's server, with the layout that ollama-operator's
/// volumes have.
pub const MOUNT: &str = "/ollama/.ollama";
pub const MODELS: &str = "/ollama/.ollama/models";
pub const VOLUME: &str = "image-storage";
pub const SERVER: &str = "server";
const REGISTRY_KEY: &str = "registry-key";

/// Which store a Model uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreId {
    pub name: String,
    /// Name of the volume's claim.
    pub claim: String,
    /// The claim exists already and is not ours.
    pub is_given: bool,
}

impl StoreId {
    pub fn of(model: &Model) -> Self {
        if let Ok(Some(claim)) = model.spec.claim() {
            return Self {
                name: names::child("ollama-models-claim", &claim.name),
                claim: claim.name,
                is_given: true,
            };
        }
        let name = match model.spec.store_scope() {
            StoreScope::Shared => SHARED.to_owned(),
            StoreScope::PerModel => names::child(SHARED, &model.name_any()),
        };
        Self {
            claim: names::dns_label(&format!("{name}-pvc")),
            name,
            is_given: false,
        }
    }
}

/// What is live of a store, as JSON; nothing of it need be there.
#[derive(Clone, Debug, Default)]
pub struct Live {
    pub claim: Option<Value>,
    pub workload: Option<Value>,
    pub service: Option<Value>,
}

impl Live {
    /// A server of it answers its probe.
    pub fn is_ready(&self) -> bool {
        let ready = |set: &Value| set["status"]["readyReplicas"].as_i64().unwrap_or(0) > 0;
        self.workload.as_ref().is_some_and(ready)
    }
}

/// A store with every choice made.
#[derive(Clone, Debug)]
pub struct Store {
    pub id: StoreId,
    /// Cannot be written: what is not in it cannot get into it.
    pub read_only: bool,
    pub access_mode: AccessMode,
    /// What this Model says and does not get, and why.
    pub conflicts: Vec<String>,
    /// Models whose word counts more than ours where we say something: when they change, we must look again.
    pub elders: BTreeSet<ObjectKey>,
    pub selector: Value,
    /// The claim is to grow, from what it is now.
    pub grows: bool,
    claim: Value,
    workload: Value,
}

/// `users` are all Models of the store, oldest first.
pub fn decide(
    model: &Model,
    users: &[&Model],
    settings: &Settings,
    live: &Live,
    refused_size: Option<&str>,
) -> Result<Store, Blocked> {
    let id = StoreId::of(model);
    let mut words = Words {
        model,
        users,
        conflicts: Vec::new(),
        elders: BTreeSet::new(),
    };
    let given_mode = words.first("persistentVolume.accessMode", said_mode);
    let class = words.first("storageClassName", |model| model.spec.storage_class_name.clone());
    let size = words.first("store.size", |model| {
        Some(model.spec.store.as_ref()?.size.clone()?.0)
    });
    let policy = words.first("store.deletionPolicy", |model| {
        model.spec.store.as_ref()?.deletion_policy
    });
    let image = words.first("store.image", |model| model.spec.store.as_ref()?.image.clone());
    let resources = words.first("store.resources", |model| {
        model.spec.store.as_ref()?.resources.clone()
    });
    let security = words.first("store.securityContext", |model| {
        model.spec.store.as_ref()?.security_context.clone()
    });
    let node_selector = words.first("store.nodeSelector", |model| {
        model.spec.store.as_ref()?.node_selector.clone()
    });
    let tolerations = words.first("store.tolerations", |model| {
        model.spec.store.as_ref()?.tolerations.clone()
    });
    let env = words.first("store.env", |model| model.spec.store.as_ref()?.env.clone());
    let registry_key = words.first("store.registryKey", |model| {
        model.spec.store.as_ref()?.registry_key.clone()
    });
    let claim_is_read_only = words.first("persistentVolumeClaim.readOnly", says_read_only);
    let access_mode = access_mode(&id, given_mode, live);
    // A claim of somebody else's is used as it is, and only its mode matters.
    let own_claim = live.claim.as_ref().filter(|_| !id.is_given);
    if given_mode.is_some_and(|given| given != access_mode) {
        words.cannot_change("persistentVolume.accessMode", access_mode.as_str());
    }
    let read_only = is_read_only(claim_is_read_only, access_mode);
    check_mode(access_mode, &id)?;

    let live_class = own_claim.and_then(|claim| claim["spec"]["storageClassName"].as_str());
    if let (Some(live), Some(class)) = (live_class, &class)
        && live != class
    {
        words.cannot_change("storageClassName", live);
    }
    let live_size = own_claim.and_then(|claim| claim["spec"]["resources"]["requests"]["storage"].as_str());
    let wished_size = size
        .clone()
        .unwrap_or_else(|| ModelStore::DEFAULT_SIZE.to_owned());
    let (size, grows) = match live_size {
        // A volume that is larger than the default was made so by somebody; only an explicit wish is worth a word.
        Some(live) if bytes(live) >= bytes(&wished_size) => {
            if size.is_some() && bytes(live) > bytes(&wished_size) {
                words.conflicts.push(format!(
                    "store.size: the volume has {live} and cannot shrink to {wished_size}"
                ));
            }
            (live.to_owned(), false)
        }
        Some(live) if refused_size == Some(wished_size.as_str()) => {
            words.conflicts.push(format!(
                "store.size: the volume has {live} and its class does not let it grow to {wished_size}"
            ));
            (live.to_owned(), false)
        }
        Some(_) => (wished_size, true),
        None => (wished_size, false),
    };

    let selector = live
        .workload
        .as_ref()
        .map(|set| set["spec"]["selector"]["matchLabels"].clone())
        .filter(Value::is_object)
        .unwrap_or_else(|| default_selector(&id.name));
    let labels = labels(&id.name, &selector);
    let policy = match policy.unwrap_or(DeletionPolicy::Retain) {
        DeletionPolicy::Retain => "Retain",
        DeletionPolicy::Delete => "Delete",
    };
    let mut claim = json!({
        "metadata": {"name": id.claim, "labels": labels, "annotations": {POLICY: policy}},
        "spec": {
            "accessModes": [access_mode.as_str()],
            "storageClassName": live_class.map(ToOwned::to_owned).or(class),
            "resources": {"requests": {"storage": size}},
        },
    });
    if let Some(modes) = own_claim.map(|claim| &claim["spec"]["accessModes"]) {
        claim["spec"]["accessModes"] = modes.clone();
    }

    let own_image = || users.iter().find_map(|user| user.spec.server.as_ref()?.image());
    let image = image
        .filter(|image| !image.is_empty())
        .or_else(|| own_image().map(ToOwned::to_owned))
        .unwrap_or_else(|| settings.ollama_image.clone());
    let mut server = server(&image, read_only, PORT);
    server["env"] = json!([
        {"name": "OLLAMA_HOST", "value": format!("0.0.0.0:{PORT}")},
        {"name": "OLLAMA_MODELS", "value": MODELS},
        {"name": "HOME", "value": if read_only || registry_key.is_some() { "/tmp" } else { "/ollama" }},
        // A download that broke off with its pod goes on where it stopped, and nobody's weights are thrown away.
        {"name": "OLLAMA_NOPRUNE", "value": "true"},
    ]);
    server["resources"] = json!({"requests": {"cpu": "50m", "memory": "256Mi"}});
    server["readinessProbe"] =
        json!({"httpGet": {"path": "/api/version", "port": PORT}, "periodSeconds": 5, "timeoutSeconds": 5});
    let mut patch = json!({"name": SERVER, "env": env, "resources": resources});
    drop_nulls(&mut patch);
    strategic(&mut server, &patch);
    let mut pod = pod(vec![server], vec![], &id.claim, read_only);
    if let Some(key) = &registry_key {
        strategic(&mut pod, &with_registry_key(key));
    }
    if let Some(security) = &security {
        strategic(&mut pod, &json!({"securityContext": security}));
    }
    pod["nodeSelector"] = json!(node_selector);
    pod["tolerations"] = json!(tolerations);
    let pull_secrets = users.iter().flat_map(|user| pull_secrets(user, settings));
    let pull_secrets: BTreeSet<String> = pull_secrets.collect();
    let pull_secrets: Vec<String> = pull_secrets.into_iter().collect();
    pods::run_as(&mut pod, None, &pull_secrets);
    let kept = |field: &str, default: &str| {
        let live = live.workload.as_ref().map(|set| set["spec"][field].clone());
        live.unwrap_or_else(|| json!(default))
    };
    let workload = json!({
        "metadata": {"name": id.name, "labels": labels, "annotations": {POLICY: policy}},
        "spec": {
            "replicas": 1,
            // These cannot change on a live StatefulSet. Parallel, so that a pod that never gets ready can be replaced.
            "serviceName": kept("serviceName", &id.name),
            "podManagementPolicy": kept("podManagementPolicy", "Parallel"),
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    });
    Ok(Store {
        id,
        read_only,
        access_mode,
        conflicts: words.conflicts,
        elders: words.elders,
        selector,
        grows,
        claim,
        workload,
    })
}

/// Ollama looks for its key in its home, which is then not on the volume: a mount would leave a folder there that only
/// root may write to.
fn with_registry_key(key: &SecretKeySelector) -> Value {
    let mut secret = json!({
        "secretName": key.name, "items": [{"key": key.key, "path": "id_ed25519"}], "defaultMode": 0o440,
        "optional": key.optional,
    });
    drop_nulls(&mut secret);
    json!({
        "volumes": [{"name": REGISTRY_KEY, "secret": secret}],
        "containers": [{
            "name": SERVER,
            "volumeMounts": [{"name": REGISTRY_KEY, "mountPath": "/tmp/.ollama", "readOnly": true}],
        }],
    })
}

impl Store {
    /// What its server's pod is made of.
    pub fn pod(&self) -> &Value {
        &self.workload["spec"]["template"]["spec"]
    }

    /// Rolls the server when a Secret or ConfigMap that it reads changes.
    pub fn reads(&mut self, fingerprint: &str) {
        self.workload["spec"]["template"]["metadata"]["annotations"][REFERENCES] = json!(fingerprint);
    }

    /// In the order in which they need each other.
    pub fn add_to(&self, wish: &mut Wish) {
        if !self.id.is_given {
            wish.add_shared(
                ApiResource::erase::<PersistentVolumeClaim>(&()),
                self.claim.clone(),
            );
        }
        wish.add_shared(ApiResource::erase::<StatefulSet>(&()), self.workload.clone());
        let service = json!({
            "metadata": {
                "name": self.id.name,
                "labels": self.workload["metadata"]["labels"],
                "annotations": self.workload["metadata"]["annotations"],
            },
            "spec": {
                "type": "ClusterIP",
                "selector": self.selector,
                "ports": [{"name": "ollama", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
            },
        });
        wish.add_shared(ApiResource::erase::<Service>(&()), service);
    }

    /// The size that the claim is to get.
    pub fn size(&self) -> &str {
        self.claim["spec"]["resources"]["requests"]["storage"]
            .as_str()
            .unwrap_or_default()
    }
}

/// For each field, the word of the oldest Model that says one.
struct Words<'a> {
    model: &'a Model,
    users: &'a [&'a Model],
    conflicts: Vec<String>,
    elders: BTreeSet<ObjectKey>,
}

impl Words<'_> {
    fn first<T: PartialEq + serde::Serialize>(
        &mut self,
        field: &str,
        said: impl Fn(&Model) -> Option<T>,
    ) -> Option<T> {
        let ours = said(self.model);
        let (who, word) = self.users.iter().find_map(|user| Some((*user, said(user)?)))?;
        if let Some(ours) = ours
            && who.metadata.uid != self.model.metadata.uid
        {
            self.elders.insert(ObjectKey::of(&who.metadata));
            if ours != word {
                self.conflicts.push(format!(
                    "{field} is {} here, but {} in Model {}, which came first and shares this store",
                    json!(ours),
                    json!(word),
                    who.name_any(),
                ));
            }
        }
        Some(word)
    }

    fn cannot_change(&mut self, field: &str, live: &str) {
        self.conflicts.push(format!(
            "{field}: the volume was made with {live}, and that cannot be changed"
        ));
    }
}

fn check_mode(mode: AccessMode, id: &StoreId) -> Result<(), Blocked> {
    let message = match mode {
        AccessMode::ReadWriteOncePod => {
            "ReadWriteOncePod lets a single pod mount the volume, but the store and the server are two: use \
             ReadWriteOnce"
        }
        AccessMode::ReadOnlyMany if !id.is_given => {
            "a new volume is empty, and ReadOnlyMany lets nothing get into it: name a volume that holds the weights in \
             persistentVolumeClaim, or use ReadWriteMany"
        }
        _ => return Ok(()),
    };
    Err(Blocked::stuck(reasons::ACCESS_MODE_IMPOSSIBLE, message))
}

/// What the claim allows. One that is given may be more than it says of itself, so that a word of the user's wins.
fn access_mode(id: &StoreId, said: Option<AccessMode>, live: &Live) -> AccessMode {
    let live = live.claim.as_ref().and_then(mode_of);
    let known = if id.is_given { said.or(live) } else { live.or(said) };
    known.unwrap_or_default()
}

fn said_mode(model: &Model) -> Option<AccessMode> {
    model.spec.persistent_volume.as_ref()?.access_mode
}

fn says_read_only(model: &Model) -> Option<bool> {
    Some(model.spec.claim().ok()??.read_only)
}

fn is_read_only(said: Option<bool>, mode: AccessMode) -> bool {
    said.unwrap_or(false) || mode == AccessMode::ReadOnlyMany
}

/// Whether nothing can get into the store of these Models, oldest first.
pub fn read_only(id: &StoreId, users: &[Arc<Model>], live: &Live) -> bool {
    let mode = access_mode(id, users.iter().find_map(|user| said_mode(user)), live);
    is_read_only(users.iter().find_map(|user| says_read_only(user)), mode)
}

fn mode_of(claim: &Value) -> Option<AccessMode> {
    let modes: Vec<String> = serde_json::from_value(claim["spec"]["accessModes"].clone()).ok()?;
    claim::widest(&modes)
}

fn bytes(size: &str) -> i128 {
    quantity(&json!(size)).unwrap_or(0)
}

fn default_selector(store: &str) -> Value {
    // The first is ollama-operator's, which cannot change on a live StatefulSet.
    let app = if store == SHARED {
        "ollama-image-store"
    } else {
        store
    };
    json!({"app": app, "ollama.ayaka.io/type": "image-store"})
}

fn labels(store: &str, selector: &Value) -> Value {
    let mut labels = selector.clone();
    labels[NAME_LABEL] = json!(COMPONENT);
    labels[INSTANCE_LABEL] = json!(store);
    labels["app.kubernetes.io/component"] = json!(COMPONENT);
    labels["app.kubernetes.io/part-of"] = json!("ollama");
    labels["app.kubernetes.io/managed-by"] = json!(gantry_kit::MANAGED_BY);
    labels
}

/// Pull secrets of a Model and of the operator.
pub fn pull_secrets(model: &Model, settings: &Settings) -> Vec<String> {
    let own = model.spec.image_pull_secrets.iter().flatten();
    let mut all: Vec<String> = own.map(|secret| secret.name.clone()).collect();
    all.extend(settings.image_pull_secrets.iter().cloned());
    all
}

/// The container that stores and Models have in common.
pub fn server(image: &str, read_only: bool, port: i32) -> Value {
    json!({
        "name": SERVER,
        "image": image,
        "args": ["serve"],
        "ports": [{"name": if port == PORT { "ollama" } else { "behind" }, "containerPort": port, "protocol": "TCP"}],
        "volumeMounts": [with_read_only(json!({"name": VOLUME, "mountPath": MOUNT}), read_only)],
        // The server answers this as long as it lives, whatever it loads.
        "livenessProbe": {
            "httpGet": {"path": "/", "port": port}, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6,
        },
    })
}

/// A pod with the volume, under the user that the seed gives it.
pub fn pod(containers: Vec<Value>, init: Vec<Value>, claim: &str, read_only: bool) -> Value {
    let claim = with_read_only(json!({"claimName": claim}), read_only);
    let volume = json!({"name": VOLUME, "persistentVolumeClaim": claim});
    let mut pod = pods::secure(containers, init, vec![volume]);
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        pod["securityContext"][field] = json!(1001);
    }
    // Weights are many large files; they are not looked through again at every start.
    pod["securityContext"]["fsGroupChangePolicy"] = json!("OnRootMismatch");
    pod["terminationGracePeriodSeconds"] = json!(30);
    pod
}

/// Said only where it is so: the server does not keep a `false`, and the wish would never match.
fn with_read_only(mut mount: Value, read_only: bool) -> Value {
    if read_only {
        mount["readOnly"] = json!(true);
    }
    mount
}

pub fn drop_nulls(value: &mut Value) {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
}
