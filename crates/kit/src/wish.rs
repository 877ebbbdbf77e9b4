//! The complete set of objects that one root wants to exist.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, core::ApiResource};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::store::ObjectKey;

/// Who the children belong to.
#[derive(Clone, Debug)]
pub struct Owner {
    pub key: ObjectKey,
    pub reference: OwnerReference,
}

impl Owner {
    pub fn of<K: Resource<DynamicType = ()>>(root: &K) -> Self {
        let meta = root.meta();
        Self {
            key: ObjectKey::of(meta),
            reference: OwnerReference {
                api_version: K::api_version(&()).into_owned(),
                kind: K::kind(&()).into_owned(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            },
        }
    }
}

/// Whose a child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    /// Goes with its root.
    ToRoot,
    /// Outlives its root, and is taken up again by a root of the same name.
    ToName,
    /// Several roots have the same wish for it, and none owns it.
    ToMany,
}

/// One wished-for object, in the form that is sent.
#[derive(Clone, Debug)]
pub struct Wished {
    pub resource: ApiResource,
    pub name: String,
    pub body: Value,
    pub belongs: Belongs,
    /// Where an original made this workload, its pods stay for now.
    pub keeps_pods: bool,
}

/// Objects are applied in the order they were added: what others mount or refer to comes first.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    objects: Vec<Wished>,
}

impl Wish {
    pub fn add<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K) {
        // Serialising our own builders' output to memory cannot fail.
        let body = serde_json::to_value(object).unwrap_or_default();
        self.add_json(ApiResource::erase::<K>(&()), body);
    }

    /// For kinds without a Rust type, such as Gateway API routes.
    pub fn add_json(&mut self, resource: ApiResource, mut body: Value) {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        body["apiVersion"] = json!(resource.api_version);
        body["kind"] = json!(resource.kind);
        drop_empty(&mut body);
        self.objects.push(Wished {
            resource,
            name,
            body,
            belongs: Belongs::ToRoot,
            keeps_pods: true,
        });
    }

    /// For what holds data that must not go with the root: a child without an owner. It finds its root by its labels.
    pub fn add_retained(&mut self, resource: ApiResource, body: Value) {
        self.add_as(Belongs::ToName, resource, body);
    }

    /// For an object that several roots have in common: it gets no owner and is never pruned. All of them must wish for
    /// the same, and the last one has to remove it, see [`crate::apply::Children::remove`].
    pub fn add_shared(&mut self, resource: ApiResource, body: Value) {
        self.add_as(Belongs::ToMany, resource, body);
    }

    /// For a workload that others could not work with as an original made it: its pods are ours from the start.
    pub fn add_renewed(&mut self, resource: ApiResource, body: Value) {
        self.add_json(resource, body);
        if let Some(added) = self.objects.last_mut() {
            added.keeps_pods = false;
        }
    }

    fn add_as(&mut self, belongs: Belongs, resource: ApiResource, body: Value) {
        self.add_json(resource, body);
        if let Some(added) = self.objects.last_mut() {
            added.belongs = belongs;
        }
    }

    pub fn objects(&self) -> &[Wished] {
        &self.objects
    }

    pub fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        let found = self
            .objects
            .iter()
            .find(|wished| wished.resource.kind == kind && wished.name == name);
        found.map(|wished| &wished.body)
    }

    /// Adds what every child carries: namespace, owner, our label, and the digest of the wish itself, by which a
    /// later visit knows that a field was dropped from the wish.
    pub(crate) fn seal(mut self, owner: &Owner) -> Vec<Wished> {
        for wished in &mut self.objects {
            let is_workload = wished.is_workload();
            let metadata = &mut wished.body["metadata"];
            metadata["namespace"] = json!(owner.key.namespace);
            match wished.belongs {
                Belongs::ToRoot => metadata["ownerReferences"] = json!([owner.reference]),
                Belongs::ToName => metadata["annotations"][crate::ADOPT] = json!(owner.key.name),
                Belongs::ToMany => {}
            }
            metadata["labels"]["app.kubernetes.io/managed-by"] = json!(crate::MANAGED_BY);
            if is_workload {
                let asked = &wished.body["spec"]["replicas"];
                let asked = asked
                    .as_i64()
                    .map_or_else(|| "auto".to_owned(), |asked| asked.to_string());
                wished.body["metadata"]["annotations"][crate::REPLICAS] = json!(asked);
                own_schemes(&mut wished.body["spec"]["template"]["spec"]);
            }
            let digest = digest(&wished.body);
            wished.body["metadata"]["annotations"][crate::WISH] = json!(digest);
        }
        self.objects
    }
}

/// Says the scheme of every HTTP probe and hook, which the server would fill in. What it fills in is nobody's and stays
/// behind when we drop the rest, and an `httpGet` of nothing but a scheme is refused.
fn own_schemes(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Object(get)) = fields.get_mut("httpGet") {
                get.entry("scheme").or_insert_with(|| json!("HTTP"));
            }
            fields.values_mut().for_each(own_schemes);
        }
        Value::Array(items) => items.iter_mut().for_each(own_schemes),
        _ => {}
    }
}

impl Wished {
    pub(crate) fn is_shared(&self) -> bool {
        self.belongs == Belongs::ToMany
    }

    /// Has replicas and a pod template.
    pub(crate) fn is_workload(&self) -> bool {
        matches!(self.resource.kind.as_str(), "Deployment" | "StatefulSet")
    }

    /// Nothing in a wish builds on it: pods run and are reached without it. So when it is refused, the rest goes on.
    pub(crate) fn is_beside(&self) -> bool {
        matches!(
            self.resource.kind.as_str(),
            "HorizontalPodAutoscaler"
                | "PodDisruptionBudget"
                | "HTTPRoute"
                | "Ingress"
                | "ServiceMonitor"
                | "PodMonitor"
                | "PrometheusRule"
        )
    }

    /// The wish as it is sent to an object that exists: replicas are written when the root's wish for them changes, and
    /// otherwise stay as they are. So an autoscaler, or a person with `kubectl scale`, is never fought.
    pub(crate) fn beside(&self, live: &Value) -> Value {
        let mut body = self.body.clone();
        if self.leaves_replicas(live) {
            body["spec"]["replicas"] = live["spec"]["replicas"].clone();
        }
        body
    }

    /// A body as it is sent to an object that was read: to that one, and never to a namesake that took its place, which
    /// may be somebody's. Where it repeats a number of replicas from there, it is for exactly that version: what we read
    /// may be old, and the autoscaler's newer number must not be undone.
    pub(crate) fn sent(&self, body: &Value, live: &Value) -> Value {
        let mut body = body.clone();
        body["metadata"]["uid"] = live["metadata"]["uid"].clone();
        if self.leaves_replicas(live) {
            body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        }
        body
    }

    fn leaves_replicas(&self, live: &Value) -> bool {
        let asked = &self.body["metadata"]["annotations"][crate::REPLICAS];
        let asked_before = &live["metadata"]["annotations"][crate::REPLICAS];
        !asked.is_null() && (asked == "auto" || asked == asked_before) && !live["spec"]["replicas"].is_null()
    }
}

/// Removes nulls and empty maps that typed builders leave behind: the server would prune them, and an apply that lists
/// them would claim fields it does not set. `emptyDir: {}` and its like mean something and stay.
fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                drop_empty(value);
                let meaningful_when_empty = matches!(
                    key.as_str(),
                    "emptyDir" | "labelSelector" | "podSelector" | "namespaceSelector" | "matchLabels"
                );
                !(value.is_null()
                    || (!meaningful_when_empty && value.as_object().is_some_and(serde_json::Map::is_empty)))
            });
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

/// Sixteen hex digits of SHA-256 over the canonical (key-sorted) JSON.
pub fn digest(value: &Value) -> String {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    digest_bytes(&bytes)
}

pub fn digest_bytes(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter()
        .take(8)
        .fold(String::with_capacity(16), |mut text, byte| {
            use std::fmt::Write;
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};

    use super::*;

    fn owner() -> Owner {
        Owner {
            key: ObjectKey::new("ns", "root"),
            reference: OwnerReference {
                name: "root".into(),
                uid: "u".into(),
                ..OwnerReference::default()
            },
        }
    }

    fn config_map(value: Option<&str>) -> ConfigMap {
        serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "data": value.map(|value| json!({"key": value})),
        }))
        .unwrap()
    }

    #[test]
    fn the_digest_tells_wishes_apart_also_when_a_field_is_dropped() {
        let sealed = |value| {
            let mut wish = Wish::default();
            wish.add(&config_map(value));
            let sealed = wish.seal(&owner());
            sealed[0].body["metadata"]["annotations"][crate::WISH]
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(sealed(Some("x")), sealed(Some("x")));
        assert_ne!(sealed(Some("x")), sealed(Some("y")));
        assert_ne!(sealed(Some("x")), sealed(None));
    }

    #[test]
    fn what_is_retained_has_no_owner_and_lets_itself_be_taken_up_again() {
        let mut wish = Wish::default();
        let resource = ApiResource::erase::<ConfigMap>(&());
        wish.add_retained(resource, json!({"metadata": {"name": "a"}}));
        let metadata = &wish.seal(&owner())[0].body["metadata"];
        assert!(metadata["ownerReferences"].is_null());
        assert_eq!(metadata["annotations"][crate::ADOPT], "root");
    }

    #[test]
    fn what_is_shared_belongs_to_nobody() {
        let mut wish = Wish::default();
        let resource = ApiResource::erase::<ConfigMap>(&());
        wish.add_shared(resource, json!({"metadata": {"name": "a"}}));
        let metadata = &wish.seal(&owner())[0].body["metadata"];
        assert!(metadata["ownerReferences"].is_null());
        assert!(metadata["annotations"][crate::ADOPT].is_null());
        assert_eq!(
            metadata["labels"]["app.kubernetes.io/managed-by"],
            crate::MANAGED_BY
        );
    }

    #[test]
    fn probes_own_their_scheme() {
        let mut wish = Wish::default();
        let probe = |get: Value| json!({"name": "a", "livenessProbe": {"httpGet": get}});
        let containers = json!([
            probe(json!({"port": 1})),
            probe(json!({"port": 1, "scheme": "HTTPS"}))
        ]);
        let spec = json!({"template": {"spec": {"containers": containers}}});
        wish.add_json(
            ApiResource::erase::<Deployment>(&()),
            json!({"metadata": {"name": "a"}, "spec": spec}),
        );
        let containers = &wish.seal(&owner())[0].body["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers[0]["livenessProbe"]["httpGet"]["scheme"], "HTTP");
        assert_eq!(containers[1]["livenessProbe"]["httpGet"]["scheme"], "HTTPS");
    }

    #[test]
    fn replicas_are_written_only_when_the_wish_for_them_changes() {
        let wished = |replicas: Value| {
            let mut wish = Wish::default();
            let resource = ApiResource::erase::<Deployment>(&());
            wish.add_json(
                resource,
                json!({"metadata": {"name": "a"}, "spec": {"replicas": replicas}}),
            );
            wish.seal(&owner()).remove(0)
        };
        let live = |asked: &str| json!({"metadata": {"annotations": {crate::REPLICAS: asked}}, "spec": {"replicas": 7}});
        let sent = |replicas: Value, asked_before: &str| {
            wished(replicas).beside(&live(asked_before))["spec"]["replicas"].clone()
        };
        assert_eq!(sent(json!(2), "2"), 7, "somebody else scaled");
        assert_eq!(sent(json!(3), "2"), 3, "the user asks for another number");
        assert_eq!(sent(Value::Null, "2"), 7, "handed to an autoscaler without a dip");
        assert_eq!(wished(json!(2)).body["spec"]["replicas"], 2, "creation");
    }

    #[test]
    fn replicas_that_were_read_are_sent_to_the_version_they_were_read_from() {
        let wished = |kind: ApiResource, replicas: Value| {
            let mut wish = Wish::default();
            wish.add_json(
                kind,
                json!({"metadata": {"name": "a"}, "spec": {"replicas": replicas}}),
            );
            wish.seal(&owner()).remove(0)
        };
        let live = json!({
            "metadata": {"uid": "u", "resourceVersion": "41", "annotations": {crate::REPLICAS: "2"}},
            "spec": {"replicas": 2},
        });
        let sent = |wished: Wished| {
            let sent = wished.sent(&wished.beside(&live), &live);
            assert_eq!(sent["metadata"]["uid"], "u", "never to a namesake");
            sent["metadata"]["resourceVersion"].clone()
        };
        let deployment = ApiResource::erase::<Deployment>(&());
        assert_eq!(
            sent(wished(deployment.clone(), json!(2))),
            "41",
            "the same number"
        );
        assert_eq!(sent(wished(deployment.clone(), Value::Null)), "41");
        assert_eq!(
            sent(wished(deployment, json!(3))),
            Value::Null,
            "the user's number"
        );
        let other = ApiResource::erase::<ConfigMap>(&());
        assert_eq!(sent(wished(other, Value::Null)), Value::Null);
    }

    #[test]
    fn a_selector_of_everything_stays() {
        let spread = json!({"topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": {}}]});
        let mut value = spread.clone();
        drop_empty(&mut value);
        assert_eq!(value, spread);
    }

    #[test]
    fn empty_leaves_are_not_claimed_but_empty_dir_stays() {
        let mut value =
            json!({"a": null, "b": {}, "c": {"d": {}}, "volumes": [{"name": "v", "emptyDir": {}}], "e": []});
        drop_empty(&mut value);
        assert_eq!(
            value,
            json!({"volumes": [{"name": "v", "emptyDir": {}}], "e": []})
        );
    }
}
