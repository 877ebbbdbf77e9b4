//! How a pod shall behave: its `simnode.gantry.dev/…` annotations over the node's defaults.

use std::{collections::BTreeMap, time::Duration};

use crate::text::parse_duration;

pub const PREFIX: &str = "simnode.gantry.dev/";

/// What pods without annotations do.
#[derive(Debug, Clone)]
pub struct Defaults {
    pub ready_delay: Duration,
    pub terminate_for: Duration,
    pub crash_backoff: Duration,
    pub crash_backoff_max: Duration,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            ready_delay: Duration::from_millis(500),
            terminate_for: Duration::from_millis(200),
            crash_backoff: Duration::from_secs(10),
            crash_backoff_max: Duration::from_mins(5),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fail {
    CrashLoop,
    ImagePull,
    NeverReady,
    Oom,
    InitCrashLoop,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Behaviour {
    /// From scheduled to ready.
    pub ready_delay: Duration,
    /// How long each init container runs.
    pub init_run_for: Duration,
    /// How long the pod of a Job runs.
    pub run_for: Duration,
    /// How long a failing container runs before it fails; zero keeps it in its back-off all the time.
    pub crash_after: Duration,
    pub crash_backoff: Duration,
    pub crash_backoff_max: Duration,
    pub terminate_for: Duration,
    pub fail: Option<Fail>,
    pub fail_message: Option<String>,
    pub fail_container: Option<String>,
    /// Annotations that could not be read: the default is used, and the user is told.
    pub problems: Vec<String>,
}

impl Behaviour {
    pub fn parse(annotations: &BTreeMap<String, String>, defaults: &Defaults) -> Self {
        let mut problems = Vec::new();
        let get = |name: &str| annotations.get(&format!("{PREFIX}{name}")).map(String::as_str);
        let mut duration = |name: &str, default: Duration| match get(name).map(parse_duration) {
            None => default,
            Some(Ok(duration)) => duration,
            Some(Err(problem)) => {
                problems.push(format!("{PREFIX}{name}: {problem}"));
                default
            }
        };
        let crash_backoff = duration("crash-backoff", defaults.crash_backoff);
        let mut behaviour = Self {
            ready_delay: duration("ready-delay", defaults.ready_delay),
            init_run_for: duration("init-run-for", Duration::from_millis(100)),
            run_for: duration("run-for", Duration::from_secs(1)),
            crash_after: duration("crash-after", Duration::ZERO),
            crash_backoff,
            crash_backoff_max: duration("crash-backoff-max", defaults.crash_backoff_max).max(crash_backoff),
            terminate_for: duration("terminate-for", defaults.terminate_for),
            fail: None,
            fail_message: get("fail-message").map(ToOwned::to_owned),
            fail_container: get("fail-container").map(ToOwned::to_owned),
            problems,
        };
        behaviour.fail = match get("fail").map(str::trim) {
            None | Some("" | "none") => None,
            Some("crash-loop") => Some(Fail::CrashLoop),
            Some("image-pull") => Some(Fail::ImagePull),
            Some("never-ready") => Some(Fail::NeverReady),
            Some("oom") => Some(Fail::Oom),
            Some("init-crash-loop") => Some(Fail::InitCrashLoop),
            Some(other) => {
                behaviour.problems.push(format!(
                    "{PREFIX}fail: '{other}' is none of crash-loop, image-pull, never-ready, oom, init-crash-loop"
                ));
                None
            }
        };
        behaviour
    }

    /// The kubelet's back-off before restart number `restarts` + 1.
    pub fn backoff(&self, restarts: i32) -> Duration {
        let doublings = u32::try_from(restarts.saturating_sub(1)).unwrap_or(0).min(31);
        self.crash_backoff
            .saturating_mul(1 << doublings)
            .min(self.crash_backoff_max)
    }
}
