//! One container: read from the pod's status, moved on, written back.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{Kind, PodView};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Termination {
    pub exit_code: i32,
    pub reason: String,
    pub message: Option<String>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub container_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Waiting { reason: String, message: Option<String> },
    Running { started_at: Timestamp },
    Terminated(Termination),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub image: String,
    pub kind: Kind,
    pub probed: bool,
    pub state: State,
    pub last: Option<Termination>,
    pub restarts: i32,
    pub ready: bool,
    pub id: Option<String>,
}

impl Container {
    /// All containers of the pod in the order of its spec; those without a status have not begun.
    pub fn load(pod: &PodView) -> Vec<Self> {
        let init = pod.status.init_container_statuses.iter().flatten();
        let main = pod.status.container_statuses.iter().flatten();
        let known: Vec<&ContainerStatus> = init.chain(main).collect();
        let first_reason = if pod.containers.iter().any(|c| c.kind != Kind::Main) {
            "PodInitializing"
        } else {
            "ContainerCreating"
        };
        pod.containers
            .iter()
            .map(|spec| {
                let status = known.iter().find(|status| status.name == spec.name);
                let state = status.and_then(|s| s.state.as_ref()).and_then(read_state);
                Self {
                    name: spec.name.clone(),
                    image: spec.image.clone(),
                    kind: spec.kind,
                    probed: spec.probed,
                    state: state.unwrap_or_else(|| State::waiting(first_reason, None)),
                    last: status
                        .and_then(|s| s.last_state.as_ref())
                        .and_then(|s| s.terminated.as_ref())
                        .map(read_termination),
                    restarts: status.map_or(0, |s| s.restart_count),
                    ready: status.is_some_and(|s| s.ready),
                    id: status
                        .and_then(|s| s.container_id.clone())
                        .filter(|id| !id.is_empty()),
                }
            })
            .collect()
    }

    /// Not started yet: nothing but the first wait lies behind it.
    pub fn is_new(&self) -> bool {
        matches!(&self.state, State::Waiting { reason, .. } if reason == "ContainerCreating" || reason == "PodInitializing")
    }

    pub fn is_waiting(&self, why: &str) -> bool {
        matches!(&self.state, State::Waiting { reason, .. } if reason == why)
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub fn has_succeeded(&self) -> bool {
        matches!(&self.state, State::Terminated(t) if t.exit_code == 0)
    }

    pub fn stage(&self) -> (u8, &str, i32, bool) {
        match &self.state {
            State::Waiting { reason, .. } => (0, reason, self.restarts, self.ready),
            State::Running { .. } => (1, "", self.restarts, self.ready),
            State::Terminated(t) => (2, &t.reason, self.restarts, self.ready),
        }
    }

    /// Starts the container, as a restart where it ran before.
    pub fn start(&mut self, uid: &str, now: Timestamp, ready: bool) {
        if let State::Terminated(old) = &self.state {
            self.last = Some(old.clone());
        }
        if self.last.is_some() {
            self.restarts += 1;
        }
        self.state = State::Running {
            started_at: whole_seconds(now),
        };
        self.id = Some(format!(
            "containerd://{}",
            digest(&(uid, &self.name, self.restarts))
        ));
        self.ready = ready;
    }

    /// Ends the running container.
    pub fn stop(&mut self, exit_code: i32, reason: &str, message: Option<String>, now: Timestamp) {
        let started_at = match &self.state {
            State::Running { started_at } => *started_at,
            _ => whole_seconds(now),
        };
        self.state = State::Terminated(Termination {
            exit_code,
            reason: reason.to_owned(),
            message,
            started_at: Some(started_at),
            finished_at: Some(whole_seconds(now)),
            container_id: self.id.clone(),
        });
        self.ready = false;
    }

    /// Waits for a reason; an ended run becomes the last one.
    pub fn wait(&mut self, reason: &str, message: Option<String>) {
        if let State::Terminated(old) = &self.state {
            self.last = Some(old.clone());
        }
        self.state = State::waiting(reason, message);
        self.ready = false;
    }

    pub fn status(&self) -> ContainerStatus {
        let ran = self.id.is_some();
        ContainerStatus {
            name: self.name.clone(),
            image: self.image.clone(),
            image_id: if ran { image_id(&self.image) } else { String::new() },
            container_id: self.id.clone(),
            ready: self.ready,
            restart_count: self.restarts,
            started: (self.kind != Kind::Init).then_some(self.is_running()),
            state: Some(match &self.state {
                State::Waiting { reason, message } => ContainerState {
                    waiting: Some(ContainerStateWaiting {
                        reason: Some(reason.clone()),
                        message: message.clone(),
                    }),
                    ..ContainerState::default()
                },
                State::Running { started_at } => ContainerState {
                    running: Some(ContainerStateRunning {
                        started_at: Some(Time(*started_at)),
                    }),
                    ..ContainerState::default()
                },
                State::Terminated(t) => write_termination(t),
            }),
            last_state: Some(self.last.as_ref().map(write_termination).unwrap_or_default()),
            ..ContainerStatus::default()
        }
    }
}

impl State {
    pub fn waiting(reason: &str, message: Option<String>) -> Self {
        Self::Waiting {
            reason: reason.to_owned(),
            message,
        }
    }
}

fn read_state(state: &ContainerState) -> Option<State> {
    if let Some(running) = &state.running {
        return Some(State::Running {
            started_at: running.started_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
        });
    }
    if let Some(terminated) = &state.terminated {
        return Some(State::Terminated(read_termination(terminated)));
    }
    let waiting = state.waiting.as_ref()?;
    Some(State::Waiting {
        reason: waiting.reason.clone()?,
        message: waiting.message.clone(),
    })
}

fn read_termination(t: &ContainerStateTerminated) -> Termination {
    Termination {
        exit_code: t.exit_code,
        reason: t.reason.clone().unwrap_or_default(),
        message: t.message.clone(),
        started_at: t.started_at.as_ref().map(|t| t.0),
        finished_at: t.finished_at.as_ref().map(|t| t.0),
        container_id: t.container_id.clone(),
    }
}

fn write_termination(t: &Termination) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: t.exit_code,
            reason: Some(t.reason.clone()),
            message: t.message.clone(),
            started_at: t.started_at.map(Time),
            finished_at: t.finished_at.map(Time),
            container_id: t.container_id.clone(),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// The API server keeps whole seconds only; what is sent should equal what comes back.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The image's full name, with the registry and tag that it leaves out: `docker.io/library/redis:latest`.
pub fn full_image(image: &str) -> String {
    let prefix = match image.split_once('/') {
        None => "docker.io/library/",
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => "",
        Some(_) => "docker.io/",
    };
    let tagged = image.contains('@') || image.rsplit('/').next().is_some_and(|last| last.contains(':'));
    format!("{prefix}{image}{}", if tagged { "" } else { ":latest" })
}

/// `docker.io/library/redis@sha256:…`, the same for every pod with that image.
fn image_id(image: &str) -> String {
    let full = full_image(image);
    let name = full.split('@').next().unwrap_or(&full);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    format!("{name}@sha256:{}", digest(&full))
}

/// 64 hexadecimal digits that look like a digest and always come out the same.
fn digest(of: &impl std::hash::Hash) -> String {
    (0..4_u8).fold(String::with_capacity(64), |out, part| {
        let mut hash = DefaultHasher::new();
        (part, of).hash(&mut hash);
        out + &format!("{:016x}", hash.finish())
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("nginx", "docker.io/library/nginx:latest", "docker.io/library/nginx@")]
    #[case("a/b:1", "docker.io/a/b:1", "docker.io/a/b@")]
    #[case("localhost:5000/a", "localhost:5000/a:latest", "localhost:5000/a@")]
    #[case("ghcr.io/a/b@sha256:12", "ghcr.io/a/b@sha256:12", "ghcr.io/a/b@")]
    #[case(
        "localhost:5000/a:2@sha256:12",
        "localhost:5000/a:2@sha256:12",
        "localhost:5000/a@"
    )]
    fn images_have_full_names(#[case] image: &str, #[case] full: &str, #[case] id: &str) {
        assert_eq!(full_image(image), full);
        let digest = image_id(image)
            .strip_prefix(&format!("{id}sha256:"))
            .unwrap()
            .len();
        assert_eq!(digest, 64);
    }
}
