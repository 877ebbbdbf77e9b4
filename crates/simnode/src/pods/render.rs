//! From containers to the pod's status: phase and conditions by the kubelet's own rules
//! (`getPhase` and `status/generate.go` of Kubernetes).

use k8s_openapi::{
    api::core::v1::{PodCondition, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    Env, Kind, PodView, RestartPolicy,
    container::{Container, State, whole_seconds},
};

pub fn render(pod: &PodView, containers: &[Container], env: &Env) -> PodStatus {
    let phase = phase(pod.restart_policy, containers);
    let now = Time(whole_seconds(env.now));
    let verdicts = [
        initialized(containers, phase),
        ready(pod, containers, phase),
        containers_ready(containers, phase),
        Verdict::new("PodScheduled", true, None, None),
    ];
    let conditions = verdicts
        .into_iter()
        .map(|verdict| verdict.condition(pod, &now))
        .collect();
    // The sandbox, and with it the address, is there once the first container was tried.
    let sandbox = pod.ip().is_some() || containers.iter().any(|c| !c.is_new());
    let of = |init: bool| -> Option<Vec<_>> {
        let statuses: Vec<_> = containers
            .iter()
            .filter(|c| (c.kind != Kind::Main) == init)
            .map(Container::status)
            .collect();
        (!statuses.is_empty()).then_some(statuses)
    };
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions),
        host_ip: Some(env.host_ip.to_owned()),
        pod_ip: sandbox.then(|| env.pod_ip.to_owned()),
        pod_ips: sandbox.then(|| {
            vec![PodIP {
                ip: env.pod_ip.to_owned(),
            }]
        }),
        start_time: Some(pod.status.start_time.clone().unwrap_or(now)),
        init_container_statuses: of(true),
        container_statuses: of(false),
        ..PodStatus::default()
    }
}

/// Whether `next` says anything that the pod's status does not; fields that are not ours are left out of it.
pub fn differs(pod: &PodView, next: &PodStatus) -> bool {
    let old = &pod.status;
    let after = PodView {
        status: next.clone(),
        ..pod.clone()
    };
    (&old.phase, &old.host_ip, &old.pod_ip, &old.start_time)
        != (&next.phase, &next.host_ip, &next.pod_ip, &next.start_time)
        || Container::load(pod) != Container::load(&after)
        || old.container_statuses.is_none()
        || next.conditions.iter().flatten().any(|new| {
            find(old.conditions.as_deref(), &new.type_).is_none_or(|old| {
                (&old.status, &old.reason, &old.message) != (&new.status, &new.reason, &new.message)
            })
        })
}

fn phase(policy: RestartPolicy, containers: &[Container]) -> &'static str {
    let (mut pending_init, mut failed_init) = (false, false);
    let (mut running, mut waiting, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for c in containers {
        match (c.kind, &c.state) {
            (Kind::Sidecar, State::Running { .. }) => (),
            (Kind::Main, State::Running { .. }) => running += 1,
            (Kind::Main, State::Terminated(t)) => {
                stopped += 1;
                succeeded += usize::from(t.exit_code == 0);
            }
            (Kind::Main, State::Waiting { .. }) if c.last.is_some() => stopped += 1,
            (Kind::Main, State::Waiting { .. }) => waiting += 1,
            (_, State::Running { .. }) => pending_init = true,
            (_, State::Terminated(t)) => failed_init |= t.exit_code != 0,
            (_, State::Waiting { .. }) => match &c.last {
                Some(last) => failed_init |= last.exit_code != 0,
                None => pending_init = true,
            },
        }
    }
    match policy {
        RestartPolicy::Never if failed_init => "Failed",
        _ if pending_init || waiting > 0 => "Pending",
        _ if running > 0 => "Running",
        RestartPolicy::Always => "Running",
        _ if stopped == succeeded => "Succeeded",
        RestartPolicy::Never => "Failed",
        RestartPolicy::OnFailure => "Running",
    }
}

struct Verdict {
    type_: &'static str,
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn new(type_: &'static str, status: bool, reason: Option<&'static str>, message: Option<String>) -> Self {
        Self {
            type_,
            status,
            reason,
            message,
        }
    }

    /// The time of the last transition stays while the status does.
    fn condition(self, pod: &PodView, now: &Time) -> PodCondition {
        let status = if self.status { "True" } else { "False" };
        let since = find(pod.status.conditions.as_deref(), self.type_)
            .filter(|old| old.status == status)
            .and_then(|old| old.last_transition_time.clone());
        PodCondition {
            type_: self.type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.map(ToOwned::to_owned),
            message: self.message,
            last_transition_time: Some(since.unwrap_or_else(|| now.clone())),
            ..PodCondition::default()
        }
    }
}

fn initialized(containers: &[Container], phase: &str) -> Verdict {
    if phase == "Succeeded" {
        return Verdict::new("Initialized", true, Some("PodCompleted"), None);
    }
    match names(containers, |c| {
        c.kind != Kind::Main && !c.ready && !c.has_succeeded()
    }) {
        None => Verdict::new("Initialized", true, None, None),
        Some(names) => Verdict::new(
            "Initialized",
            false,
            Some("ContainersNotInitialized"),
            Some(format!("containers with incomplete status: {names}")),
        ),
    }
}

fn containers_ready(containers: &[Container], phase: &str) -> Verdict {
    if phase == "Succeeded" {
        return Verdict::new("ContainersReady", false, Some("PodCompleted"), None);
    }
    match names(containers, |c| c.kind != Kind::Init && !c.ready) {
        None => Verdict::new("ContainersReady", true, None, None),
        Some(names) => Verdict::new(
            "ContainersReady",
            false,
            Some("ContainersNotReady"),
            Some(format!("containers with unready status: {names}")),
        ),
    }
}

fn ready(pod: &PodView, containers: &[Container], phase: &str) -> Verdict {
    let verdict = Verdict {
        type_: "Ready",
        ..containers_ready(containers, phase)
    };
    if !verdict.status {
        return verdict;
    }
    let closed: Vec<String> = pod
        .readiness_gates
        .iter()
        .filter_map(|gate| match find(pod.status.conditions.as_deref(), gate) {
            None => Some(format!(
                "corresponding condition of pod readiness gate {gate:?} does not exist."
            )),
            Some(c) if c.status != "True" => Some(format!(
                "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                c.status
            )),
            Some(_) => None,
        })
        .collect();
    if closed.is_empty() {
        return verdict;
    }
    Verdict::new(
        "Ready",
        false,
        Some("ReadinessGatesNotReady"),
        Some(closed.join(", ")),
    )
}

fn find<'a>(conditions: Option<&'a [PodCondition]>, type_: &str) -> Option<&'a PodCondition> {
    conditions?.iter().find(|c| c.type_ == type_)
}

/// Go's way to print a list of strings: `[a b]`.
fn names(containers: &[Container], wanted: impl Fn(&Container) -> bool) -> Option<String> {
    let names: Vec<&str> = containers
        .iter()
        .filter(|c| wanted(c))
        .map(|c| c.name.as_str())
        .collect();
    (!names.is_empty()).then(|| format!("[{}]", names.join(" ")))
}
