//! The pods behind our children, kept as the few facts that explain trouble.

use std::borrow::Cow;

use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStatus, Pod},
    jiff::Timestamp,
};

use crate::{
    names::label_value,
    store::{Cached, Identity, ObjectKey, Store, version},
};

/// On a pod: the controller that is responsible for it.
pub const NAME_LABEL: &str = "app.kubernetes.io/name";
/// On a pod: which part of its root it is, where a root has several workloads.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// On a pod: the root object that it belongs to, shortened where its name is too long for a label
/// ([`label_value`]).
pub const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";

/// On a pod of a Deployment: which of its ReplicaSets made it.
const HASH_LABEL: &str = "pod-template-hash";

pub struct PodSummary {
    key: ObjectKey,
    uid: Box<str>,
    version: u64,
    created: Option<Timestamp>,
    is_being_deleted: bool,
    controller: String,
    instance: String,
    pub component: String,
    /// Tells the pods of one ReplicaSet from those of another; empty for pods of anything else.
    pub template_hash: String,
    pub ready: bool,
    /// What the scheduler said, when it found no place.
    pub unschedulable: Option<String>,
    pub containers: Vec<ContainerSummary>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSummary {
    pub name: String,
    pub init: bool,
    pub running: bool,
    pub restarts: i32,
    /// Reason and message of a container that waits.
    pub waiting: Option<(String, String)>,
    /// How it ended last: reason, exit code, message.
    pub ended: Option<(String, i32, String)>,
}

/// What pods of one root are indexed by, whether its name is given as it is or as a label has it.
pub fn index(controller: &str, root: &ObjectKey) -> String {
    format!("{controller} {}/{}", root.namespace, label_value(&root.name))
}

/// The object that a key with a label's name means: itself, or the one whose name was shortened to it.
pub(crate) fn labelled<T: Cached>(store: &Store<T>, key: ObjectKey) -> ObjectKey {
    let digest = key.name.rsplit_once('-').map_or("", |(_, digest)| digest);
    if digest.len() != 8 || store.get(&key).is_some() {
        return key;
    }
    let mut keys = store.keys().into_iter();
    let long = keys.find(|known| known.namespace == key.namespace && label_value(&known.name) == key.name);
    long.unwrap_or(key)
}

impl PodSummary {
    pub fn new(pod: Pod) -> Self {
        let label = |name: &str| {
            pod.metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(name))
                .cloned()
                .unwrap_or_default()
        };
        let status = pod.status.clone().unwrap_or_default();
        let condition = |type_: &str| status.conditions.iter().flatten().find(|c| c.type_ == type_);
        let unschedulable = condition("PodScheduled")
            .filter(|condition| condition.status == "False")
            .map(|condition| condition.message.clone().unwrap_or_default());
        let containers = |statuses: &Option<Vec<ContainerStatus>>, init: bool| -> Vec<ContainerSummary> {
            statuses
                .iter()
                .flatten()
                .map(|status| summarize(status, init))
                .collect()
        };
        let mut all = containers(&status.init_container_statuses, true);
        all.extend(containers(&status.container_statuses, false));
        Self {
            controller: label(NAME_LABEL),
            instance: label(INSTANCE_LABEL),
            component: label(COMPONENT_LABEL),
            template_hash: label(HASH_LABEL),
            ready: condition("Ready").is_some_and(|condition| condition.status == "True"),
            unschedulable,
            containers: all,
            key: ObjectKey::of(&pod.metadata),
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            version: version(&pod.metadata),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_being_deleted: pod.metadata.deletion_timestamp.is_some(),
        }
    }

    pub fn name(&self) -> &str {
        &self.key.name
    }

    pub fn created(&self) -> Option<Timestamp> {
        self.created
    }

    pub fn is_being_deleted(&self) -> bool {
        self.is_being_deleted
    }

    /// Controller and root, by the name that the label has.
    pub(crate) fn root(&self) -> Option<(&str, ObjectKey)> {
        (!self.instance.is_empty()).then(|| {
            (
                self.controller.as_str(),
                ObjectKey::new(self.key.namespace.clone(), self.instance.clone()),
            )
        })
    }
}

impl Cached for PodSummary {
    fn identity(&self) -> Identity<'_> {
        Identity {
            namespace: &self.key.namespace,
            name: &self.key.name,
            uid: &self.uid,
            version: self.version,
        }
    }

    fn owner(&self) -> Option<Cow<'_, str>> {
        let (controller, root) = self.root()?;
        Some(Cow::Owned(index(controller, &root)))
    }

    fn remember(&mut self, before: &Self) {
        for container in &mut self.containers {
            let mut earlier = before.containers.iter();
            if let Some((BACK_OFF, cause)) = waiting(container)
                && cause.starts_with(ONLY_BACKING_OFF)
                && let Some(earlier) = earlier.find(|earlier| earlier.name == container.name)
                && let Some((PULL_FAILED | BACK_OFF, known)) = waiting(earlier)
            {
                container.waiting = Some((BACK_OFF.into(), known.into()));
            }
        }
    }
}

/// The two reasons that a kubelet gives in turn while an image cannot be pulled.
const PULL_FAILED: &str = "ErrImagePull";
const BACK_OFF: &str = "ImagePullBackOff";
/// What it says with the second one. Newer ones put the first reason and its message behind that; of others the cause would be
/// told for seconds, gone for minutes, and each turn a change of the status.
const ONLY_BACKING_OFF: &str = "Back-off pulling image";

fn waiting(container: &ContainerSummary) -> Option<(&str, &str)> {
    let (reason, message) = container.waiting.as_ref()?;
    Some((reason, message))
}

/// Why an image cannot be pulled, without that this is tried again.
fn cause(message: String) -> String {
    let told = message
        .starts_with(ONLY_BACKING_OFF)
        .then(|| message.split_once(": ErrImagePull: "));
    match told.flatten() {
        Some((_, cause)) => cause.to_owned(),
        None => message,
    }
}

fn summarize(status: &ContainerStatus, init: bool) -> ContainerSummary {
    let state = status.state.clone().unwrap_or_default();
    let ended = |state: &ContainerState| {
        state.terminated.as_ref().map(|ended| {
            (
                ended.reason.clone().unwrap_or_default(),
                ended.exit_code,
                ended.message.clone().unwrap_or_default(),
            )
        })
    };
    ContainerSummary {
        name: status.name.clone(),
        init,
        running: state.running.is_some(),
        restarts: status.restart_count,
        waiting: state.waiting.as_ref().map(|waiting| {
            (
                waiting.reason.clone().unwrap_or_default(),
                cause(waiting.message.clone().unwrap_or_default()),
            )
        }),
        ended: ended(&state).or_else(|| status.last_state.as_ref().and_then(ended)),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_found_by_names_too_long_for_a_label() {
        let store = Store::default();
        let root = ObjectKey::new("ns", "n".repeat(100));
        let pod: Pod = serde_json::from_value(json!({"metadata": {
            "name": "p", "namespace": "ns", "uid": "1",
            "labels": {NAME_LABEL: "agent", INSTANCE_LABEL: label_value(&root.name)},
        }}))
        .unwrap();
        store.put(PodSummary::new(pod));
        assert_eq!(store.owned_by(&index("agent", &root)).len(), 1);
        let other = ObjectKey::new("ns", "n".repeat(99));
        assert!(store.owned_by(&index("agent", &other)).is_empty());
    }

    /// What a kubelet tells of a pod whose image cannot be pulled, in turn.
    #[test]
    fn why_an_image_is_not_pulled_stays_told() {
        let waits = |uid: &str, reason: &str, message: &str| -> PodSummary {
            let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": uid}, "status": {"containerStatuses": [{
                "name": "c", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason, "message": message}},
            }]}});
            PodSummary::new(serde_json::from_value(pod).unwrap())
        };
        let told = |pod: &PodSummary| pod.containers[0].waiting.clone().unwrap().1;
        let failed = waits("1", "ErrImagePull", "not found");
        let mut after = waits("1", "ImagePullBackOff", "Back-off pulling image \"x\"");
        assert_eq!(told(&after), "Back-off pulling image \"x\"");
        after.remember(&failed);
        assert_eq!(told(&after), "not found");
        let mut later = waits("1", "ImagePullBackOff", "Back-off pulling image \"x\"");
        later.remember(&after);
        assert_eq!(told(&later), "not found");
        let mut new = waits("1", "ErrImagePull", "unauthorized");
        new.remember(&later);
        assert_eq!(told(&new), "unauthorized");
        let newer = waits(
            "1",
            "ImagePullBackOff",
            "Back-off pulling image \"x\": ErrImagePull: rpc error: not found",
        );
        assert_eq!(told(&newer), "rpc error: not found");
    }

    #[test]
    fn a_label_means_the_object_whose_name_it_shortens() {
        struct Root(ObjectMeta);
        impl Cached for Root {
            fn identity(&self) -> Identity<'_> {
                Identity::of(&self.0)
            }
        }
        let store = Store::default();
        let long = "n".repeat(100);
        let alike = format!("{}-0123abcd", "m".repeat(20));
        for name in [&long, &alike] {
            store.put(Root(ObjectMeta {
                name: Some(name.clone()),
                namespace: Some("ns".into()),
                ..ObjectMeta::default()
            }));
        }
        let found = |namespace: &str, name: &str| labelled(&store, ObjectKey::new(namespace, name)).name;
        assert_eq!(found("ns", &label_value(&long)), long);
        assert_eq!(found("ns", &alike), alike);
        assert_eq!(found("other", &label_value(&long)), label_value(&long));
        assert_eq!(found("ns", "short"), "short");
    }
}
