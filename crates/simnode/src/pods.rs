//! The kubelet's part in a pod's life, as one pure function: a pod as the API server shows it, and the time, give the
//! next status and the moment to look again. All memory is in the pod's own status, so that a restart goes on where it was.

mod advance;
pub mod behaviour;
mod container;
mod render;
#[cfg(test)]
mod tests;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as SpecContainer, Pod, PodStatus};
use kube::ResourceExt as _;

use self::{
    behaviour::{Behaviour, Defaults},
    container::{Container, State},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Init,
    /// An init container that restarts always: it starts in order, and stays.
    Sidecar,
    Main,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    pub name: String,
    pub image: String,
    pub kind: Kind,
    pub probed: bool,
}

/// What the state machine reads of a pod; everything else of the object is dropped at once.
#[derive(Debug, Clone)]
pub struct PodView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: u64,
    pub node: String,
    pub host_network: bool,
    /// Init containers first, in order.
    pub containers: Vec<ContainerSpec>,
    pub restart_policy: RestartPolicy,
    pub readiness_gates: Vec<String>,
    pub behaviour: Behaviour,
    /// The grace period, in seconds, once deletion was asked for.
    pub deleting: Option<i64>,
    pub status: PodStatus,
}

impl PodView {
    /// `None` for what is not bound to a node.
    pub fn new(mut pod: Pod, defaults: &Defaults) -> Option<Self> {
        let spec = pod.spec.take()?;
        let container = |c: SpecContainer, init: bool| ContainerSpec {
            kind: match c.restart_policy.as_deref() {
                _ if !init => Kind::Main,
                Some("Always") => Kind::Sidecar,
                _ => Kind::Init,
            },
            name: c.name,
            image: c.image.unwrap_or_default(),
            probed: c.readiness_probe.is_some(),
        };
        let init = spec
            .init_containers
            .unwrap_or_default()
            .into_iter()
            .map(|c| container(c, true));
        let main = spec.containers.into_iter().map(|c| container(c, false));
        Some(Self {
            node: spec.node_name.filter(|node| !node.is_empty())?,
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            resource_version: pod
                .metadata
                .resource_version
                .as_deref()
                .and_then(|v| v.parse().ok())
                .unwrap_or(0),
            host_network: spec.host_network.unwrap_or(false),
            containers: init.chain(main).collect(),
            restart_policy: match spec.restart_policy.as_deref() {
                Some("Never") => RestartPolicy::Never,
                Some("OnFailure") => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            readiness_gates: spec
                .readiness_gates
                .into_iter()
                .flatten()
                .map(|gate| gate.condition_type)
                .collect(),
            behaviour: Behaviour::parse(pod.annotations(), defaults),
            deleting: pod
                .metadata
                .deletion_timestamp
                .is_some()
                .then(|| pod.metadata.deletion_grace_period_seconds.unwrap_or(0)),
            status: pod.status.unwrap_or_default(),
        })
    }

    /// Changes whenever the pod enters another stage of its life, and only then. Delays count from that moment.
    pub fn stage(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (
            &self.status.phase,
            self.status.start_time.is_some(),
            self.deleting.is_some(),
        )
            .hash(&mut hash);
        for container in self.load() {
            container.stage().hash(&mut hash);
        }
        hash.finish()
    }

    /// When the present stage began, as far as the status tells: for pods first seen after a restart of ours.
    pub fn stage_since(&self) -> Option<Timestamp> {
        let containers = self.load();
        let times = containers.iter().filter_map(|c| match &c.state {
            State::Waiting { .. } => c.last.as_ref().and_then(|t| t.finished_at),
            State::Running { started_at } => Some(*started_at),
            State::Terminated(t) => t.finished_at,
        });
        let conditions = self.status.conditions.iter().flatten();
        times
            .chain(conditions.filter_map(|c| c.last_transition_time.as_ref().map(|t| t.0)))
            .chain(self.status.start_time.as_ref().map(|t| t.0))
            .max()
            .filter(|_| self.status.start_time.is_some())
    }

    pub fn ip(&self) -> Option<&str> {
        self.status.pod_ip.as_deref().filter(|ip| !ip.is_empty())
    }

    fn is_over(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    fn load(&self) -> Vec<Container> {
        Container::load(self)
    }
}

/// What the node knows and the pod does not say.
#[derive(Debug, Clone)]
pub struct Env<'a> {
    pub now: Timestamp,
    /// When the pod entered its present stage.
    pub entered: Timestamp,
    pub pod_ip: &'a str,
    pub host_ip: &'a str,
}

impl Env<'_> {
    /// When `delay` after the start of the stage is over; `None` if it is.
    fn wait(&self, delay: Duration) -> Option<Timestamp> {
        let until = self.entered.checked_add(delay).unwrap_or(Timestamp::MAX);
        (until > self.now).then_some(until)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEvent {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    /// `spec.containers{name}`.
    pub field_path: String,
}

/// What to do now: write the status, then delete, then sleep until `wake` unless the pod changes before.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    pub status: Option<PodStatus>,
    pub delete: bool,
    pub wake: Option<Timestamp>,
    pub events: Vec<PodEvent>,
}

impl Step {
    pub fn is_idle(&self) -> bool {
        self.status.is_none() && !self.delete && self.events.is_empty()
    }
}

/// The next step of a pod's life.
pub fn step(pod: &PodView, env: &Env) -> Step {
    match pod.deleting {
        // Already without grace: it is gone, or waits for somebody's finalizer.
        Some(0) => return Step::default(),
        Some(_) if pod.is_over() => {
            return Step {
                delete: true,
                ..Step::default()
            };
        }
        Some(grace) => return terminate(pod, env, grace),
        None if pod.is_over() => return Step::default(),
        None => (),
    }
    let mut containers = pod.load();
    let plan = advance::advance(pod, &mut containers, env);
    let status = render::render(pod, &containers, env);
    Step {
        status: render::differs(pod, &status).then_some(status),
        delete: false,
        wake: plan.wake,
        events: plan.events,
    }
}

/// Stops every container, reports that, and lets go of the object.
fn terminate(pod: &PodView, env: &Env, grace: i64) -> Step {
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    if let Some(wake) = env.wait(pod.behaviour.terminate_for.min(grace)) {
        return Step {
            wake: Some(wake),
            ..Step::default()
        };
    }
    let mut containers = pod.load();
    let ran = containers
        .iter()
        .any(|c| matches!(c.state, State::Running { .. }));
    for container in &mut containers {
        if matches!(container.state, State::Running { .. }) {
            container.stop(143, "Error", None, env.now);
        }
        container.ready = false;
    }
    // What never ran has nothing to report.
    let status = ran.then(|| render::render(pod, &containers, env));
    Step {
        status,
        delete: true,
        ..Step::default()
    }
}
