//! A PersistentVolumeClaim as a spec asks for it, beside the one that is there: little of a claim can be changed, and
//! what cannot is told instead of tried.

use gantry_crds::{
    common::text,
    conditions::reasons,
    storage::{AccessMode, ClaimStorage, DeletionPolicy},
};
use gantry_kit::{Context, ObjectKey, Result, Verdict, project::quantity};
use k8s_openapi::{
    api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Api, core::ApiResource};
use serde_json::{Value, json};

/// What is known of a claim before anything is decided.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub live: Option<PersistentVolumeClaim>,
    /// Its StorageClass lets it grow.
    pub can_grow: bool,
}

/// Reads the claim that `storage` asks for: ours from the cache, and its class where that matters.
pub async fn look(storage: &ClaimStorage, own: ObjectKey, context: &Context) -> Result<Known> {
    let mut key = own;
    if let Some(existing) = storage.existing_claim() {
        existing.clone_into(&mut key.name);
    }
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    let client = context.caller.client();
    let live: Option<PersistentVolumeClaim> = if let Some(child) = context.children.cached(&resource, &key) {
        Some(child.parse()?)
    } else {
        // Somebody else's, or none: the pods that want it tell us of changes.
        let api = Api::namespaced(client.clone(), &key.namespace);
        let read = api.get_opt(&key.name);
        let action = format!("get PersistentVolumeClaim {key}");
        context.caller.read(action, read).await?
    };
    let growing = live.as_ref().filter(|live| wants_to_grow(storage, live));
    let can_grow = match growing.and_then(class) {
        Some(class) => {
            let api = Api::<StorageClass>::all(client);
            let action = format!("get StorageClass {class}");
            let found = context.caller.read(action, api.get_opt(class)).await?;
            found.and_then(|class| class.allow_volume_expansion)
        }
        None => None,
    };
    Ok(Known {
        live,
        can_grow: can_grow.unwrap_or(false),
    })
}

/// A claim that pods mount.
#[derive(Clone, Debug)]
pub struct Claim {
    pub name: String,
    pub access_mode: AccessMode,
    /// Stays when the root is deleted.
    pub is_retained: bool,
    /// The claim's spec, unless it is somebody else's and used as it is.
    pub spec: Option<Value>,
    /// What of the wish is impossible with the claim that is there.
    pub fault: Option<Verdict>,
}

impl Claim {
    /// The claim that `storage` asks for, called `own_name` unless one exists already.
    pub fn decide(storage: &ClaimStorage, own_name: String, known: &Known) -> Self {
        let live = known.live.as_ref();
        if let Some(existing) = storage.existing_claim() {
            return Self {
                name: existing.to_owned(),
                access_mode: storage
                    .access_mode
                    .or(live.and_then(access_mode))
                    .unwrap_or_default(),
                is_retained: true,
                spec: None,
                fault: None,
            };
        }
        let wanted_mode = storage.access_mode();
        let wanted_class = text(storage.storage_class_name.as_ref());
        let (size, size_fault) = size(&own_name, &storage.size(), known);
        let mode = live.and_then(access_mode).unwrap_or(wanted_mode);
        let class = live.and_then(class).or(wanted_class);
        let fault = if live.is_some_and(|live| live.metadata.deletion_timestamp.is_some()) {
            let message = format!("claim {own_name} is being deleted; a new one follows when no pod uses it");
            Some(Verdict::no(reasons::WAITING_FOR_VOLUME, message))
        } else if wanted_class.is_some_and(|wanted| class != Some(wanted)) {
            Some(unchangeable(
                &own_name,
                "storageClassName",
                class,
                wanted_class.unwrap_or_default(),
            ))
        } else if mode != wanted_mode {
            Some(unchangeable(
                &own_name,
                "accessMode",
                Some(mode.as_str()),
                wanted_mode.as_str(),
            ))
        } else {
            size_fault
        };
        Self {
            access_mode: mode,
            is_retained: storage.deletion_policy() == DeletionPolicy::Retain,
            spec: Some(json!({
                "accessModes": [mode.as_str()],
                "storageClassName": class,
                "resources": {"requests": {"storage": size}},
            })),
            fault,
            name: own_name,
        }
    }

    /// What is told of it: `live` as it is after the apply, `most` the most pods that may want it at once.
    pub fn verdict(&self, live: Option<&PersistentVolumeClaim>, most: i32, all_pods_run: bool) -> Verdict {
        let name = &self.name;
        if let Some(fault) = &self.fault {
            return fault.clone();
        }
        if most > 1 && !self.access_mode.is_shared() && !all_pods_run {
            let who = match self.access_mode {
                AccessMode::ReadWriteOncePod => "one single pod",
                _ => "the pods of one node",
            };
            let mode = self.access_mode.as_str();
            let message = format!(
                "claim {name} is {mode}, so that only {who} can mount it, and {most} pods are asked for: use a claim \
                 with ReadWriteMany, or one pod"
            );
            return Verdict::no(reasons::ACCESS_MODE_IMPOSSIBLE, message);
        }
        let Some(live) = live else {
            return Verdict::no(
                reasons::WAITING_FOR_VOLUME,
                format!("claim {name} does not exist: create it"),
            );
        };
        let status = live.status.clone().unwrap_or_default();
        match status.phase.as_deref() {
            Some("Bound") => {}
            Some("Lost") => {
                let message =
                    format!("the volume of claim {name} is lost: delete the claim to get a new one");
                return Verdict::no(reasons::INVALID_CLAIM, message);
            }
            _ => {
                let message = format!("claim {name} has no volume yet");
                return Verdict::no(reasons::WAITING_FOR_VOLUME, message);
            }
        }
        let has = status
            .capacity
            .and_then(|capacity| capacity.get("storage").cloned());
        let asked = requested(live);
        if let (Some(has), Some(asked)) = (&has, &asked)
            && self.spec.is_some()
            && bytes(has) < bytes(asked)
        {
            let message = format!("the volume of claim {name} grows from {} to {}", has.0, asked.0);
            return Verdict::no(reasons::PROGRESSING, message);
        }
        let has = has.map(|has| format!(" with {}", has.0)).unwrap_or_default();
        Verdict::yes(reasons::SUCCEEDED, format!("claim {name} has a volume{has}"))
    }
}

/// Whether the answer to "can its class grow?" matters.
fn wants_to_grow(storage: &ClaimStorage, live: &PersistentVolumeClaim) -> bool {
    storage.existing_claim().is_none()
        && is_bound(live)
        && requested(live).is_some_and(|has| bytes(&storage.size()) > bytes(&has))
}

fn class(live: &PersistentVolumeClaim) -> Option<&str> {
    live.spec
        .as_ref()
        .and_then(|spec| text(spec.storage_class_name.as_ref()))
}

/// The size to ask for: only growing is possible, and only of a claim that has a volume.
fn size(name: &str, wanted: &Quantity, known: &Known) -> (Quantity, Option<Verdict>) {
    let Some((live, has)) = known
        .live
        .as_ref()
        .and_then(|live| Some((live, requested(live)?)))
    else {
        return (wanted.clone(), None);
    };
    let (wanted_bytes, has_bytes) = (bytes(wanted), bytes(&has));
    if wanted_bytes == has_bytes {
        return (has, None);
    }
    let fault = if wanted_bytes < has_bytes {
        let message = format!(
            "claim {name} has {} and cannot shrink to {}: set size to {} or more, or delete the claim and its data",
            has.0, wanted.0, has.0
        );
        Verdict::no(reasons::VOLUME_CANNOT_SHRINK, message)
    } else if !is_bound(live) {
        let message = format!("claim {name} has no volume yet; it grows to {} then", wanted.0);
        Verdict::no(reasons::WAITING_FOR_VOLUME, message)
    } else if known.can_grow {
        return (wanted.clone(), None);
    } else {
        let class = class(live).unwrap_or("(none)");
        let message = format!(
            "claim {name} has {} and cannot grow to {}: StorageClass {class} does not say allowVolumeExpansion",
            has.0, wanted.0
        );
        Verdict::no(reasons::VOLUME_CANNOT_GROW, message)
    };
    (has, Some(fault))
}

fn unchangeable(name: &str, field: &str, has: Option<&str>, wanted: &str) -> Verdict {
    let has = has.unwrap_or("none");
    let message = format!(
        "claim {name} has {field} {has}, which cannot become {wanted}: set it back, or delete the claim and its data"
    );
    Verdict::no(reasons::INVALID_CLAIM, message)
}

fn is_bound(live: &PersistentVolumeClaim) -> bool {
    let phase = live.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Bound")
}

fn access_mode(live: &PersistentVolumeClaim) -> Option<AccessMode> {
    widest(live.spec.as_ref()?.access_modes.as_ref()?)
}

/// The widest one counts, where a claim of somebody else's has several.
pub fn widest(modes: &[String]) -> Option<AccessMode> {
    let known = [
        AccessMode::ReadWriteMany,
        AccessMode::ReadWriteOnce,
        AccessMode::ReadWriteOncePod,
        AccessMode::ReadOnlyMany,
    ];
    known
        .into_iter()
        .find(|mode| modes.iter().any(|name| name == mode.as_str()))
}

fn requested(live: &PersistentVolumeClaim) -> Option<Quantity> {
    let resources = live.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage").cloned()
}

fn bytes(size: &Quantity) -> Option<i128> {
    quantity(&json!(size))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn storage(spec: Value) -> ClaimStorage {
        serde_json::from_value(spec).unwrap()
    }

    fn live(size: &str, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                     "resources": {"requests": {"storage": size}}},
            "status": {"phase": phase, "capacity": {"storage": "10Gi"}},
        }))
        .unwrap()
    }

    fn decided(spec: Value, live: Option<PersistentVolumeClaim>, can_grow: bool) -> Claim {
        Claim::decide(&storage(spec), "c".into(), &Known { live, can_grow })
    }

    #[rstest]
    #[case::new(json!({"size": "5Gi"}), None, true, "5Gi", None)]
    #[case::default_size(json!({}), None, true, "20Gi", None)]
    #[case::same_by_value(json!({"size": "10240Mi"}), Some("Bound"), true, "10Gi", None)]
    #[case::grows(json!({"size": "30Gi"}), Some("Bound"), true, "30Gi", None)]
    #[case::cannot_grow(json!({"size": "30Gi"}), Some("Bound"), false, "10Gi", Some("VolumeCannotGrow"))]
    #[case::unbound(json!({"size": "30Gi"}), Some("Pending"), true, "10Gi", Some("WaitingForVolume"))]
    #[case::shrinks(json!({"size": "1Gi"}), Some("Bound"), true, "10Gi", Some("VolumeCannotShrink"))]
    #[case::other_class(json!({"size": "10Gi", "storageClassName": "slow"}), Some("Bound"), true, "10Gi", Some("InvalidClaim"))]
    #[case::other_mode(json!({"size": "10Gi", "accessMode": "ReadWriteMany"}), Some("Bound"), true, "10Gi", Some("InvalidClaim"))]
    fn only_what_can_change_is_asked_for(
        #[case] spec: Value,
        #[case] phase: Option<&str>,
        #[case] can_grow: bool,
        #[case] size: &str,
        #[case] fault: Option<&str>,
    ) {
        let claim = decided(spec, phase.map(|phase| live("10Gi", phase)), can_grow);
        let asked = claim.spec.unwrap();
        assert_eq!(asked["resources"]["requests"]["storage"], size);
        assert_eq!(claim.fault.map(|fault| fault.reason).as_deref(), fault);
        if phase.is_some() {
            // What is there cannot change, and is asked for as it is.
            assert_eq!(
                (&asked["storageClassName"], &asked["accessModes"]),
                (&json!("fast"), &json!(["ReadWriteOnce"]))
            );
        }
    }

    #[rstest]
    #[case::bound(live("10Gi", "Bound"), 1, "Succeeded")]
    #[case::pending(live("10Gi", "Pending"), 1, "WaitingForVolume")]
    #[case::lost(live("10Gi", "Lost"), 1, "InvalidClaim")]
    #[case::growing(live("12Gi", "Bound"), 1, "Progressing")]
    #[case::two_pods(live("10Gi", "Bound"), 2, "AccessModeImpossible")]
    fn what_is_told(#[case] live: PersistentVolumeClaim, #[case] most: i32, #[case] reason: &str) {
        let size = requested(&live).unwrap();
        let claim = decided(json!({"size": size}), Some(live.clone()), true);
        assert_eq!(claim.verdict(Some(&live), most, false).reason, reason);
    }

    #[test]
    fn an_existing_claim_is_used_as_it_is() {
        let claim = decided(
            json!({"existingClaim": "theirs"}),
            Some(live("1Gi", "Bound")),
            false,
        );
        assert_eq!((claim.name.as_str(), claim.spec), ("theirs", None));
        let missing = decided(json!({"existingClaim": "theirs"}), None, false);
        assert_eq!(missing.verdict(None, 1, false).reason, "WaitingForVolume");
    }
}
