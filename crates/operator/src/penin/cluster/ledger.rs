//! Pure: the volume of the write-once ledger, and who mounts it.

use gantry_crds::{
    conditions::reasons,
    penin::Service,
    storage::{AccessMode, ClaimStorage},
};
use gantry_kit::Verdict;

use serde_json::{Value, json};

use super::{keeper, plan::Plan};
use crate::workload::verdicts::Blocked;

/// What is asked for, when a ledger on a volume is wanted.
pub fn storage(plan: &Plan<'_>) -> Option<ClaimStorage> {
    let ledger = plan.spec.storage().worm_ledger();
    ledger.enabled().then(|| ClaimStorage {
        enabled: None,
        size: Some(ledger.size()),
        storage_class_name: Some(ledger.storage_class().to_owned()),
        access_mode: Some(ledger.access_mode()),
        deletion_policy: Some(ledger.deletion_policy()),
        existing_claim: ledger.existing_claim,
    })
}

/// How the ledger of a service may be mounted. Ω-META writes it; the others have nothing to keep.
pub fn mode_of(plan: &Plan<'_>, service: Service) -> Option<AccessMode> {
    let ledger = storage(plan).filter(|_| service == Service::OmegaMeta);
    ledger.map(|ledger| ledger.access_mode())
}

/// Whether a volume that only one node can mount keeps the pods of this service together.
pub fn is_pinned(plan: &Plan<'_>, service: Service) -> bool {
    mode_of(plan, service) == Some(AccessMode::ReadWriteOnce)
}

/// Where a pod with a volume for one node has to go: to the others that have it, whoever comes first. The keeper is named
/// also where there is none, so that its coming restarts nobody.
pub fn together(plan: &Plan<'_>) -> Value {
    let mut others = json!({"matchLabels": plan.everything()});
    others["matchExpressions"] = json!([
        {"key": "service", "operator": "In", "values": [Service::OmegaMeta.name(), keeper::COMPONENT]},
    ]);
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": others});
    json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
}

/// Modes that the ledger cannot do with.
pub fn check(plan: &Plan<'_>) -> Result<(), Blocked> {
    let pods = plan.most_pods(Service::OmegaMeta);
    let why = match mode_of(plan, Service::OmegaMeta) {
        Some(AccessMode::ReadOnlyMany) => {
            "the ledger is written to: use ReadWriteOnce or ReadWriteMany".to_owned()
        }
        Some(AccessMode::ReadWriteOncePod) if pods >= 2 => format!(
            "{pods} pods of omega-meta cannot share a ReadWriteOncePod volume: use ReadWriteMany, or one pod"
        ),
        _ => return Ok(()),
    };
    let message = format!("spec.storage.wormLedger.accessMode: {why}");
    Err(Blocked::stuck(reasons::ACCESS_MODE_IMPOSSIBLE, message))
}

/// What a person should know about a ledger that works, but not as well as it could.
pub fn warning(plan: &Plan<'_>) -> Option<(&'static str, String)> {
    let pods = plan.most_pods(Service::OmegaMeta);
    (is_pinned(plan, Service::OmegaMeta) && pods >= 2).then(|| {
        let message = format!(
            "the ReadWriteOnce volume of the ledger keeps all {pods} pods of omega-meta on one node: set \
             storage.wormLedger.accessMode to ReadWriteMany, where the class can do that, to spread them"
        );
        (reasons::LEDGER_PINS_PODS, message)
    })
}

/// Without a volume, what is written is gone with its pod.
pub fn off() -> Verdict {
    Verdict::no(
        reasons::NOT_REQUESTED,
        "the ledger is in its pod and ends with it: set storage.wormLedger.enabled to keep it",
    )
}
