//! Secrets and ConfigMaps that a pod reads: which they are, whether they are there, and a digest that rolls the pods
//! when one changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gantry_kit::{
    ObjectKey,
    references::{Reference, Resolved, Source},
    wish::digest,
};
use serde_json::{Value, json};

pub type Known = BTreeMap<Reference, Option<Arc<Resolved>>>;

/// One use of a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    pub reference: Reference,
    /// The one key that is used; all of them when none is named.
    pub key: Option<String>,
    pub optional: bool,
}

/// Everything a pod spec reads, wherever it says so.
pub fn uses(namespace: &str, pod: &Value) -> BTreeSet<Use> {
    let mut found = BTreeSet::new();
    let mut add = |source: Source, selector: &Value, name_field: &str| {
        let Some(name) = selector[name_field].as_str().filter(|name| !name.is_empty()) else {
            return;
        };
        // A volume may mount a few keys only.
        let mut keys: Vec<Option<&str>> = items(&selector["items"])
            .map(|item| item["key"].as_str())
            .collect();
        if keys.is_empty() {
            keys.push(selector["key"].as_str());
        }
        for key in keys {
            found.insert(Use {
                reference: Reference {
                    source,
                    key: ObjectKey::new(namespace, name),
                },
                key: key.map(ToOwned::to_owned),
                optional: selector["optional"].as_bool().unwrap_or(false),
            });
        }
    };
    for list in ["containers", "initContainers"] {
        for container in items(&pod[list]) {
            for variable in items(&container["env"]) {
                add(Source::Secret, &variable["valueFrom"]["secretKeyRef"], "name");
                add(
                    Source::ConfigMap,
                    &variable["valueFrom"]["configMapKeyRef"],
                    "name",
                );
            }
            for whole in items(&container["envFrom"]) {
                add(Source::Secret, &whole["secretRef"], "name");
                add(Source::ConfigMap, &whole["configMapRef"], "name");
            }
        }
    }
    for volume in items(&pod["volumes"]) {
        add(Source::Secret, &volume["secret"], "secretName");
        add(Source::ConfigMap, &volume["configMap"], "name");
        for part in items(&volume["projected"]["sources"]) {
            add(Source::Secret, &part["secret"], "name");
            add(Source::ConfigMap, &part["configMap"], "name");
        }
    }
    found
}

/// The first use that cannot be met, as the object's source and words for the user.
pub fn missing(uses: &BTreeSet<Use>, known: &Known) -> Option<(Source, String)> {
    uses.iter().filter(|used| !used.optional).find_map(|used| {
        let Reference { source, key } = &used.reference;
        let resolved = known.get(&used.reference).and_then(Option::as_ref);
        match (resolved, &used.key) {
            (None, _) => Some((
                *source,
                format!("{source} {} does not exist: create it", key.name),
            )),
            (Some(resolved), Some(wanted)) if !resolved.digests.contains_key(wanted) => Some((
                *source,
                format!("{source} {} has no key {wanted:?}: add it", key.name),
            )),
            _ => None,
        }
    })
}

/// Changes when, and only when, something that the pod reads changes. Nothing when it reads nothing.
pub fn fingerprint(uses: &BTreeSet<Use>, known: &Known) -> Option<String> {
    if uses.is_empty() {
        return None;
    }
    let parts: Vec<Value> = uses
        .iter()
        .map(|used| {
            let resolved = known.get(&used.reference).and_then(Option::as_ref);
            let values = resolved.map(|resolved| match &used.key {
                Some(key) => json!(resolved.digests.get(key)),
                None => json!(resolved.digests),
            });
            json!([
                used.reference.source.to_string(),
                used.reference.key.name,
                used.key,
                values
            ])
        })
        .collect();
    Some(digest(&json!(parts)))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({
            "containers": [{"env": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "opt", "key": "k", "optional": true}}},
            ], "envFrom": [{"configMapRef": {"name": "all"}}]}],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "init"}}]}],
            "volumes": [{"secret": {"secretName": "vol"}}, {"projected": {"sources": [{"configMap": {"name": "proj"}}]}}],
        })
    }

    fn known(secret_value: &str, other: &str) -> Known {
        let resolved = |key: &str, value: &str| {
            Some(Arc::new(Resolved {
                digests: [(key.to_owned(), value.to_owned())].into(),
                ..Resolved::default()
            }))
        };
        uses("ns", &pod())
            .into_iter()
            .map(|used| {
                let value = match used.reference.key.name.as_str() {
                    "s" => {
                        let mut both = Resolved::default();
                        both.digests.insert("k".into(), secret_value.into());
                        both.digests.insert("unused".into(), other.into());
                        Some(Arc::new(both))
                    }
                    "opt" => None,
                    _ => resolved("x", "1"),
                };
                (used.reference, value)
            })
            .collect()
    }

    #[test]
    fn all_places_are_found() {
        let names: BTreeSet<String> = uses("ns", &pod())
            .into_iter()
            .map(|used| used.reference.key.name)
            .collect();
        assert_eq!(
            names,
            ["all", "init", "opt", "proj", "s", "vol"]
                .map(ToOwned::to_owned)
                .into()
        );
    }

    #[test]
    fn only_what_is_used_rolls_the_pods() {
        let uses = uses("ns", &pod());
        let before = fingerprint(&uses, &known("1", "1"));
        assert_eq!(
            before,
            fingerprint(&uses, &known("1", "2")),
            "another key of the Secret"
        );
        assert_ne!(before, fingerprint(&uses, &known("2", "1")));
        assert_eq!(fingerprint(&BTreeSet::new(), &known("1", "1")), None);
    }

    #[test]
    fn of_a_volume_with_items_only_those_keys_count() {
        let pod = json!({"volumes": [{"secret": {"secretName": "s", "items": [{"key": "a", "path": "x"}]}}]});
        let keys: Vec<_> = uses("ns", &pod).into_iter().map(|used| used.key).collect();
        assert_eq!(keys, [Some("a".to_owned())]);
    }

    #[test]
    fn what_is_missing_is_named_unless_optional() {
        let uses = uses("ns", &pod());
        assert_eq!(missing(&uses, &known("1", "1")), None);
        let mut without = known("1", "1");
        for (reference, value) in &mut without {
            if reference.key.name == "vol" {
                *value = None;
            }
        }
        let (source, message) = missing(&uses, &without).unwrap();
        assert_eq!(source, Source::Secret);
        assert!(message.contains("vol"), "{message}");
    }
}
