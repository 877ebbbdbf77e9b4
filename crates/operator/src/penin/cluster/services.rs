//! Pure: the pod of one of the four services.

use gantry_crds::{
    common::PullPolicy,
    conditions::reasons,
    penin::{AntiAffinity, ProbeType, Service},
    storage::{AccessMode, ClaimStorage},
};
use serde_json::{Value, json};

use super::{
    env::{self, DATA, LOGS},
    ledger::{self, is_pinned},
    plan::Plan,
};
use crate::workload::{merge::strategic, pod as pods, verdicts::Blocked};

/// The user of the image: what it installs is this user's.
const USER: i64 = 1000;
/// How long a pod that is going still serves.
const DRAIN_SECONDS: i64 = 5;

pub fn pod(plan: &Plan<'_>, service: Service) -> Result<Value, Blocked> {
    let name = service.name();
    let own = plan.spec.service(service);
    let port = plan.spec.port(service);
    let (cpu, memory) = plan.spec.resources(service);
    let resources = json!({"cpu": cpu, "memory": memory});
    let probe = probe(plan, service);
    let with = |more: Value| {
        let mut probe = probe.clone();
        strategic(&mut probe, &more);
        probe
    };
    let image = plan.spec.image.clone().unwrap_or_default();
    let container = json!({
        "name": name,
        "image": plan.spec.image(),
        "imagePullPolicy": image.pull_policy.unwrap_or(PullPolicy::IfNotPresent).as_str(),
        "command": ["penin", service.command()],
        // By itself the program listens on other ports, and on the pod's own address only.
        "args": ["--host", "0.0.0.0", "--port", port.to_string()],
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "env": env::env(plan, service),
        "envFrom": env::env_from(plan, service),
        "resources": {"requests": resources, "limits": resources},
        "startupProbe": with(json!({"periodSeconds": 2, "failureThreshold": 150})),
        "readinessProbe": with(json!({"periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3})),
        "livenessProbe": with(json!({"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3})),
        "volumeMounts": [{"name": "data", "mountPath": DATA}, {"name": "logs", "mountPath": LOGS}],
        // Every node has to hear first that this pod is going; until then it is still sent requests.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", DRAIN_SECONDS.to_string()]}}},
    });
    let claim = ledger::mode_of(plan, service).and_then(|_| ledger::storage(plan));
    let data = volume(claim.as_ref(), plan.ledger_claim());
    let mut pod = pods::secure(
        vec![container],
        Vec::new(),
        vec![data, json!({"name": "logs", "emptyDir": {}})],
    );
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        pod["securityContext"][field] = json!(USER);
    }
    pod["terminationGracePeriodSeconds"] = json!(DRAIN_SECONDS + 25);
    // A cluster called "penin" would otherwise get PENIN_… variables that nobody meant.
    pod["enableServiceLinks"] = json!(false);
    let affinity = affinity(plan, service);
    if !affinity.is_null() {
        pod["affinity"] = affinity;
    }
    let extra = plan.spec.config().env.unwrap_or_default();
    strategic(&mut pod, &json!({"containers": [{"name": name, "env": extra}]}));
    pods::run_as(&mut pod, None, &pull_secrets(plan));
    pods::with_overrides(pod, name, own.container.as_ref(), own.pod_spec.as_ref()).map_err(|message| {
        let message = format!("services.{}: {message}", service.key());
        Blocked::stuck(reasons::INVALID_OVERRIDE, message)
    })
}

/// The volume `data`: on the claim that is asked for, or in the pod.
pub fn volume(storage: Option<&ClaimStorage>, own_claim: String) -> Value {
    match storage {
        Some(storage) => {
            let claim = storage.existing_claim().map_or(own_claim, ToOwned::to_owned);
            json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}})
        }
        None => json!({"name": "data", "emptyDir": {}}),
    }
}

/// Names of the operator's pull secrets and the cluster's own.
pub fn pull_secrets(plan: &Plan<'_>) -> Vec<String> {
    let own = plan
        .spec
        .image
        .iter()
        .flat_map(|i| i.pull_secrets.iter().flatten());
    let own = own.map(|secret| secret.name.clone());
    let mut names = plan.settings.image_pull_secrets.clone();
    names.extend(own.filter(|name| !name.is_empty()));
    names
}

fn probe(plan: &Plan<'_>, service: Service) -> Value {
    let port = plan.spec.port(service);
    let probe = plan.spec.service(service).probe.unwrap_or_default();
    match probe.type_.unwrap_or_default() {
        ProbeType::Tcp => json!({"tcpSocket": {"port": port}}),
        ProbeType::Http => {
            let path = probe.path.filter(|path| !path.is_empty());
            let path = path.unwrap_or_else(|| service.probe_path().to_owned());
            // The scheme is the server's default. Said here, it is ours, and goes when the probe becomes another one.
            json!({"httpGet": {"path": path, "port": port, "scheme": "HTTP"}})
        }
    }
}

fn anti_affinity(plan: &Plan<'_>) -> AntiAffinity {
    plan.spec.availability.clone().unwrap_or_default().anti_affinity()
}

/// Whether pods must not share a node. One pod alone needs no rule that could keep its successor out.
fn is_spread(plan: &Plan<'_>, service: Service) -> bool {
    anti_affinity(plan) == AntiAffinity::Required && plan.most_pods(service) >= 2 && !is_pinned(plan, service)
}

fn affinity(plan: &Plan<'_>, service: Service) -> Value {
    let term = json!({
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": plan.selector(service.name())},
    });
    let required = || json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    // The next pod has to come to where the volume is, also when there is only one at a time.
    if is_pinned(plan, service) {
        return json!({"podAffinity": ledger::together(plan)});
    }
    if is_spread(plan, service) {
        return json!({"podAntiAffinity": required()});
    }
    match anti_affinity(plan) {
        // Whatever the number of pods: a rule that came with the second pod would restart the first one.
        AntiAffinity::Preferred => json!({"podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}],
        }}),
        AntiAffinity::Required | AntiAffinity::None => Value::Null,
    }
}

/// How new pods replace old ones.
pub fn strategy(plan: &Plan<'_>, service: Service) -> Value {
    if ledger::mode_of(plan, service) == Some(AccessMode::ReadWriteOncePod) {
        return json!({"type": "Recreate"});
    }
    // Where every node may be taken already, one has to be freed first.
    let unavailable = i32::from(is_spread(plan, service));
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": 1}})
}
