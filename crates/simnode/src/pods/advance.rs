//! How containers move on: init containers one after the other, then the others together, failing as annotated.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    Env, Kind, PodEvent, PodView, RestartPolicy,
    behaviour::Fail,
    container::{Container, State, full_image},
};
use crate::text::go_duration;

/// The kubelet restarts at once after the first failure; this is how long that takes.
const FIRST_RESTART: Duration = Duration::from_millis(500);
/// How long a pull takes to fail, where the back-off is not shorter still.
const PULL: Duration = Duration::from_secs(1);
/// From here on, a probed pod is seen running before it is ready.
const LONG_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Plan {
    pub wake: Option<Timestamp>,
    pub events: Vec<PodEvent>,
}

impl Plan {
    fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |old| old.min(time)));
    }

    fn wake_in(&mut self, env: &Env, delay: Duration) {
        self.wake_at(env.now.checked_add(delay).unwrap_or(Timestamp::MAX));
    }

    fn event(&mut self, warning: bool, reason: &'static str, message: String, container: &Container) {
        let list = if container.kind == Kind::Main {
            "containers"
        } else {
            "initContainers"
        };
        let field_path = format!("spec.{list}{{{}}}", container.name);
        self.events.push(PodEvent {
            warning,
            reason,
            message,
            field_path,
        });
    }
}

pub fn advance(pod: &PodView, containers: &mut [Container], env: &Env) -> Plan {
    let mut plan = Plan::default();
    let split = containers
        .iter()
        .position(|c| c.kind == Kind::Main)
        .unwrap_or(containers.len());
    let (init, main) = containers.split_at_mut(split);
    if initialize(pod, init, env, &mut plan) {
        run(pod, main, env, &mut plan);
    }
    plan
}

/// Brings the init containers on; true once they are through and the others may start in this step.
fn initialize(pod: &PodView, init: &mut [Container], env: &Env, plan: &mut Plan) -> bool {
    let target = (pod.behaviour.fail == Some(Fail::InitCrashLoop))
        .then(|| target(pod, init))
        .flatten();
    let mut changed = false;
    for (index, container) in init.iter_mut().enumerate() {
        if target == Some(index) {
            crash(pod, container, env, plan);
            return false;
        }
        match (&container.state, container.kind) {
            (State::Terminated(t), Kind::Init) if t.exit_code == 0 => continue,
            (State::Running { .. }, Kind::Sidecar) => continue,
            (State::Running { .. }, _) if !changed => {
                if let Some(wake) = env.wait(pod.behaviour.init_run_for) {
                    plan.wake_at(wake);
                    return false;
                }
                container.stop(0, "Completed", None, env.now);
                container.ready = true;
                changed = true;
                continue;
            }
            (State::Terminated(t), Kind::Init)
                if t.exit_code != 0 && pod.restart_policy == RestartPolicy::Never =>
            {
                return false;
            }
            _ => (),
        }
        let sidecar = container.kind == Kind::Sidecar;
        container.start(&pod.uid, env.now, sidecar);
        changed = true;
        if !sidecar {
            plan.wake_in(env, pod.behaviour.init_run_for);
            return false;
        }
    }
    if changed && !start_delay(pod).is_zero() {
        plan.wake_in(env, start_delay(pod));
        return false;
    }
    true
}

/// How long a running pod takes to become ready; part of its delay.
fn settle(pod: &PodView) -> Duration {
    let probed = pod.containers.iter().any(|c| c.kind == Kind::Main && c.probed);
    if probed && pod.behaviour.ready_delay >= LONG_DELAY {
        pod.behaviour.ready_delay / 2
    } else {
        Duration::ZERO
    }
}

fn start_delay(pod: &PodView) -> Duration {
    pod.behaviour.ready_delay.saturating_sub(settle(pod))
}

fn run(pod: &PodView, main: &mut [Container], env: &Env, plan: &mut Plan) {
    if main.iter().any(Container::is_new) {
        if pod.status.start_time.is_none() && !start_delay(pod).is_zero() {
            plan.wake_in(env, start_delay(pod));
            return;
        }
        if let Some(wake) = env.wait(start_delay(pod)) {
            plan.wake_at(wake);
            return;
        }
    }
    let failing = pod.behaviour.fail.filter(|fail| *fail != Fail::InitCrashLoop);
    let target = failing.and_then(|fail| Some((target(pod, main)?, fail)));
    for (index, container) in main.iter_mut().enumerate() {
        match target.filter(|(target, _)| *target == index) {
            None => live(pod, container, env, plan, true),
            Some((_, Fail::NeverReady)) => {
                let was_ready = container.ready || !container.is_running();
                live(pod, container, env, plan, false);
                if was_ready && container.is_running() {
                    let message = "Readiness probe failed: HTTP probe failed with statuscode: 503".to_owned();
                    plan.event(true, "Unhealthy", message, container);
                }
            }
            Some((_, Fail::ImagePull)) => fail_pull(pod, container, env, plan),
            Some((_, _)) => crash(pod, container, env, plan),
        }
    }
}

/// The container that fails: the one that is named, else the first.
fn target(pod: &PodView, containers: &[Container]) -> Option<usize> {
    let named = pod.behaviour.fail_container.as_deref();
    let found = named.and_then(|name| containers.iter().position(|c| c.name == name));
    found.or_else(|| (!containers.is_empty()).then_some(0))
}

/// A container that works: started or restarted at once, ready when settled, done after its time if it is a Job's.
fn live(pod: &PodView, container: &mut Container, env: &Env, plan: &mut Plan, may_be_ready: bool) {
    let settle = settle(pod);
    match &container.state {
        State::Terminated(t) if t.exit_code == 0 && pod.restart_policy != RestartPolicy::Always => return,
        State::Terminated(_) if pod.restart_policy == RestartPolicy::Never => return,
        State::Running { .. } => {
            if container.ready != may_be_ready {
                match env.wait(settle) {
                    Some(wake) if may_be_ready => plan.wake_at(wake),
                    _ => container.ready = may_be_ready,
                }
            }
            if pod.restart_policy != RestartPolicy::Always && may_be_ready {
                match env.wait(pod.behaviour.run_for) {
                    Some(wake) => plan.wake_at(wake),
                    None => container.stop(0, "Completed", None, env.now),
                }
            }
            return;
        }
        _ => (),
    }
    container.start(&pod.uid, env.now, may_be_ready && settle.is_zero());
    if may_be_ready && !settle.is_zero() {
        plan.wake_in(env, settle);
    }
    if pod.restart_policy != RestartPolicy::Always && may_be_ready {
        plan.wake_in(env, pod.behaviour.run_for);
    }
}

/// A container that ends in failure whenever it runs, with the kubelet's growing back-off between two runs.
fn crash(pod: &PodView, container: &mut Container, env: &Env, plan: &mut Plan) {
    let crash_after = pod.behaviour.crash_after;
    let wait = match &container.state {
        State::Running { .. } => env.wait(crash_after),
        State::Terminated(t) if t.exit_code != 0 => {
            if pod.restart_policy == RestartPolicy::Never {
                return;
            }
            env.wait(FIRST_RESTART.min(pod.behaviour.crash_backoff))
        }
        State::Waiting { .. } if container.is_waiting("CrashLoopBackOff") => {
            env.wait(pod.behaviour.backoff(container.restarts))
        }
        _ => None,
    };
    if let Some(wake) = wait {
        plan.wake_at(wake);
        return;
    }
    if !container.is_running() {
        let ready = container.kind == Kind::Main && !container.probed && !crash_after.is_zero();
        container.start(&pod.uid, env.now, ready);
        if !crash_after.is_zero() {
            plan.wake_in(env, crash_after);
            return;
        }
    }
    let first = container.last.is_none();
    let (code, reason) = if pod.behaviour.fail == Some(Fail::Oom) {
        (137, "OOMKilled")
    } else {
        (1, "Error")
    };
    container.stop(code, reason, pod.behaviour.fail_message.clone(), env.now);
    if pod.restart_policy == RestartPolicy::Never {
        return;
    }
    if first {
        plan.wake_in(env, FIRST_RESTART.min(pod.behaviour.crash_backoff));
        return;
    }
    let backoff = pod.behaviour.backoff(container.restarts);
    container.wait(
        "CrashLoopBackOff",
        Some(format!(
            "back-off {} restarting failed container={} pod={}_{}({})",
            go_duration(backoff),
            container.name,
            pod.name,
            pod.namespace,
            pod.uid
        )),
    );
    plan.wake_in(env, backoff);
    plan.event(
        true,
        "BackOff",
        "Back-off restarting failed container".to_owned(),
        container,
    );
}

/// A container whose image cannot be pulled. The wait before the next try is as long as the pod has been trying, which
/// doubles it without having to remember the last one.
fn fail_pull(pod: &PodView, container: &mut Container, env: &Env, plan: &mut Plan) {
    let base = pod.behaviour.crash_backoff;
    let pull = PULL.min(base);
    if container.is_waiting("ErrImagePull") {
        if let Some(wake) = env.wait(pull) {
            plan.wake_at(wake);
            return;
        }
        let message = format!("Back-off pulling image {:?}", container.image);
        container.wait("ImagePullBackOff", Some(message.clone()));
        plan.event(false, "BackOff", message, container);
        plan.event(true, "Failed", "Error: ImagePullBackOff".to_owned(), container);
        plan.wake_in(env, pull_backoff(pod, env.now));
        return;
    }
    if container.is_waiting("ImagePullBackOff")
        && let Some(wake) = env.wait(pull_backoff(pod, env.entered))
    {
        plan.wake_at(wake);
        return;
    }
    if container.is_running() {
        container.stop(137, "Error", None, env.now);
    }
    let why = pod.behaviour.fail_message.clone().unwrap_or_else(|| {
        let image = full_image(&container.image);
        format!(
            "rpc error: code = NotFound desc = failed to pull and unpack image {image:?}: failed to resolve reference \
             {image:?}: {image}: not found"
        )
    });
    container.wait("ErrImagePull", Some(why.clone()));
    plan.event(
        true,
        "Failed",
        format!("Failed to pull image {:?}: {why}", container.image),
        container,
    );
    plan.event(true, "Failed", "Error: ErrImagePull".to_owned(), container);
    plan.wake_in(env, pull);
}

fn pull_backoff(pod: &PodView, since: Timestamp) -> Duration {
    let started = pod.status.start_time.as_ref().map_or(since, |t| t.0);
    let tried = Duration::try_from(since.duration_since(started)).unwrap_or_default();
    tried.clamp(pod.behaviour.crash_backoff, pod.behaviour.crash_backoff_max)
}
