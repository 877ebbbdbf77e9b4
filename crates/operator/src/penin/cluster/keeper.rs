//! Pure: the pod that copies the record of changes to the volume of the ledger, and what is told about it.

use std::sync::Arc;

use gantry_crds::{
    conditions::reasons,
    penin::Service,
    storage::{AccessMode, ClaimStorage},
};
use gantry_kit::{Truth, Verdict, Wish, error::shorten, pods::PodSummary};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::ServiceAccount,
    rbac::v1::{Role, RoleBinding},
};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{env::DATA, ledger, plan::Plan, services};
use crate::{
    penin::keeper::{DISAGREES, NOT_WRITABLE},
    workload::{deployment::Identity, pod as pods, rollout},
};

pub const COMPONENT: &str = "ledger-keeper";
const PORT: i32 = 8080;

/// Why there is nothing to copy, or nowhere to copy it to.
pub fn off(plan: &Plan<'_>) -> Option<Verdict> {
    let policy = plan.spec.self_architecting.as_ref();
    if !policy.is_some_and(gantry_crds::penin::SelfArchitecting::enabled) {
        let message = "selfArchitecting is off, so that there are no changes to record";
        return Some(Verdict::no(reasons::NOT_REQUESTED, message));
    }
    match ledger::storage(plan).map(|storage| storage.access_mode()) {
        None => Some(Verdict::no(
            reasons::NOT_REQUESTED,
            "the record of changes is in ConfigMaps only: set storage.wormLedger.enabled to have a copy on a volume",
        )),
        Some(AccessMode::ReadWriteOncePod) => Some(Verdict::no(
            reasons::ACCESS_MODE_IMPOSSIBLE,
            "a ReadWriteOncePod volume has room for the pod of omega-meta only, so that the record of changes is in \
             ConfigMaps only: set storage.wormLedger.accessMode to ReadWriteOnce or ReadWriteMany",
        )),
        Some(_) => None,
    }
}

/// The folder of the copy on the volume.
pub fn folder(plan: &Plan<'_>) -> String {
    format!("{DATA}/gantry-changes/{}", plan.name)
}

/// Runs as Ω-META does and where it does, as both mount the same volume.
pub fn pod(plan: &Plan<'_>, storage: &ClaimStorage, omega_meta: &Value) -> Value {
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": PORT}, "periodSeconds": 5});
    let container = json!({
        "name": COMPONENT,
        "image": plan.settings.gantry_image,
        "args": [
            "penin", "ledger", "keep", plan.name, "--namespace", plan.namespace, "--dir", folder(plan),
            "--admin-address", format!("0.0.0.0:{PORT}"),
        ],
        "ports": [{"name": "admin", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "readinessProbe": probe("/readyz"),
        "livenessProbe": probe("/healthz"),
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    });
    let data = services::volume(Some(storage), plan.ledger_claim());
    let mut pod = pods::secure(vec![container], Vec::new(), vec![data]);
    for field in ["securityContext", "nodeSelector", "tolerations"] {
        if !omega_meta[field].is_null() {
            pod[field] = omega_meta[field].clone();
        }
    }
    pod["enableServiceLinks"] = json!(false);
    if ledger::is_pinned(plan, Service::OmegaMeta) {
        pod["affinity"] = json!({"podAffinity": ledger::together(plan)});
    }
    pods::run_as(
        &mut pod,
        Some(&plan.child(COMPONENT)),
        &services::pull_secrets(plan),
    );
    pod
}

/// The Deployment, and the right of its pods to read ConfigMaps here.
pub fn add_to(wish: &mut Wish, plan: &Plan<'_>, identity: &Identity<'_>, pod: &Value) {
    let name = identity.child;
    let metadata = json!({"name": name, "labels": identity.labels()});
    wish.add_json(
        ApiResource::erase::<ServiceAccount>(&()),
        json!({"metadata": metadata, "automountServiceAccountToken": false}),
    );
    // A Role cannot name ConfigMaps that are not there yet, nor choose them by their labels.
    let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]});
    wish.add_json(
        ApiResource::erase::<Role>(&()),
        json!({"metadata": metadata, "rules": [rule]}),
    );
    wish.add_json(
        ApiResource::erase::<RoleBinding>(&()),
        json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": plan.namespace}],
        }),
    );
    // Where the volume is on one node and nobody of Ω-META is there to say which, it must not choose.
    let replicas = i32::from(!waits(plan));
    let mut deployment = identity.deployment(pod, Some(replicas), None);
    // Two would append to the same file.
    deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    wish.add_json(ApiResource::erase::<Deployment>(&()), deployment);
}

fn waits(plan: &Plan<'_>) -> bool {
    ledger::is_pinned(plan, Service::OmegaMeta) && plan.most_pods(Service::OmegaMeta) == 0
}

/// Whether the copy is kept up to date. Its last words are in the status of the pod.
pub fn verdict(plan: &Plan<'_>, deployment: &Deployment, pods: &[Arc<PodSummary>]) -> Verdict {
    if waits(plan) {
        let message = "omega-meta has no pods; the copy goes on when it has, on the same node";
        return Verdict::no(reasons::SCALED_TO_ZERO, message);
    }
    let unready = pods.iter().filter(|pod| !pod.ready && !pod.is_being_deleted());
    let ends = unready
        .flat_map(|pod| &pod.containers)
        .filter_map(|container| container.ended.as_ref());
    for (_, code, said) in ends {
        let reason = match u8::try_from(*code) {
            Ok(DISAGREES) => reasons::LEDGER_DISAGREES,
            Ok(NOT_WRITABLE) => reasons::LEDGER_NOT_WRITABLE,
            _ => continue,
        };
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
        return Verdict::no(reason, shorten(last.unwrap_or_default().to_owned(), 1000));
    }
    let (ready, _) = rollout::verdict(deployment, pods);
    match ready.truth {
        Truth::True => Verdict::yes(reasons::SUCCEEDED, format!("copied to {}", folder(plan))),
        _ => ready,
    }
}
