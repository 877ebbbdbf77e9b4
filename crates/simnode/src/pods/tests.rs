//! Pods' lives from beginning to end, against a clock that jumps to the next thing due.

mod details;
mod lives;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{Env, PodEvent, PodView, behaviour::Defaults, step};

/// A pod with its node: writes what the state machine says, and lets time pass until the next thing is due.
struct Sim {
    pod: Value,
    now: Timestamp,
    stage: u64,
    entered: Timestamp,
    begun: Timestamp,
    deleted: bool,
    events: Vec<PodEvent>,
    trace: Vec<String>,
}

fn annotations(pairs: &[(&str, &str)]) -> Value {
    pairs
        .iter()
        .map(|(key, value)| (format!("simnode.gantry.dev/{key}"), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn pod(annotated: &[(&str, &str)], spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u-1", "resourceVersion": "1"},
        "spec": {"nodeName": "sim-0", "containers": [{"name": "c", "image": "nginx:1"}]},
        "status": {"phase": "Pending"},
    });
    pod["metadata"]["annotations"] = annotations(annotated);
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

impl Sim {
    fn new(annotated: &[(&str, &str)], spec: Value) -> Self {
        let begun: Timestamp = "2026-01-01T00:00:00.4Z".parse().unwrap();
        let mut sim = Self {
            pod: pod(annotated, spec),
            now: begun,
            stage: 0,
            entered: begun,
            begun,
            deleted: false,
            events: Vec::new(),
            trace: Vec::new(),
        };
        sim.stage = sim.view().stage();
        sim
    }

    fn view(&self) -> PodView {
        let pod: Pod = serde_json::from_value(self.pod.clone()).unwrap();
        PodView::new(pod, &Defaults::default()).unwrap()
    }

    fn annotate(&mut self, pairs: &[(&str, &str)]) -> &mut Self {
        self.pod["metadata"]["annotations"] = annotations(pairs);
        self
    }

    /// Lives until nothing is due, or for so long.
    fn live(&mut self, limit: Duration) -> &mut Self {
        let until = self.now.checked_add(limit).unwrap();
        for _ in 0..1000 {
            let view = self.view();
            let env = Env {
                now: self.now,
                entered: self.entered,
                pod_ip: "10.0.0.1",
                host_ip: "10.9.0.1",
            };
            let next = step(&view, &env);
            self.events.extend(next.events.clone());
            if let Some(status) = &next.status {
                // As the server merges: the conditions of others stay.
                let old = self.pod["status"]["conditions"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                self.pod["status"] = json!(status);
                let new = self.pod["status"]["conditions"].as_array_mut().unwrap();
                let kept = old
                    .into_iter()
                    .filter(|c| !new.iter().any(|new| new["type"] == c["type"]));
                let kept: Vec<Value> = kept.collect();
                new.extend(kept);
                self.trace.push(self.line());
                if self.stage != self.view().stage() {
                    self.stage = self.view().stage();
                    self.entered = self.now;
                }
            }
            if next.delete {
                self.deleted = true;
                return self;
            }
            if next.status.is_none() {
                match next.wake {
                    Some(wake) if wake <= until => {
                        assert!(wake > self.now, "a wake in the past spins");
                        self.now = wake;
                    }
                    _ => {
                        self.now = until;
                        return self;
                    }
                }
            }
        }
        panic!("never comes to rest: {:#?}", self.trace);
    }

    /// `seconds since the beginning: phase ready| container state restarts ready …`
    fn line(&self) -> String {
        let status = self.view().status;
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let all = status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .flatten();
        let containers: Vec<String> = all
            .map(|c| {
                let state = c.state.clone().unwrap_or_default();
                let what = match (state.waiting, state.terminated) {
                    (Some(waiting), _) => waiting.reason.unwrap_or_default(),
                    (_, Some(terminated)) => terminated.reason.unwrap_or_default(),
                    _ => "Running".to_owned(),
                };
                format!(
                    "{} {what} {}{}",
                    c.name,
                    c.restart_count,
                    if c.ready { "+" } else { "" }
                )
            })
            .collect();
        let elapsed = self.now.duration_since(self.begun).as_secs_f64();
        let ready = if ready { " Ready" } else { "" };
        format!(
            "{elapsed:.1} {}{ready}: {}",
            status.phase.unwrap_or_default(),
            containers.join(", ")
        )
    }

    fn condition(&self, kind: &str) -> (String, Option<String>, Option<String>) {
        let status = self.view().status;
        let found = status
            .conditions
            .into_iter()
            .flatten()
            .find(|c| c.type_ == kind)
            .unwrap();
        (found.status, found.reason, found.message)
    }

    fn waiting_message(&self) -> String {
        let status = self.view().status.container_statuses.unwrap().remove(0);
        status.state.unwrap().waiting.unwrap().message.unwrap()
    }
}

const MINUTE: Duration = Duration::from_mins(1);

fn probed() -> Value {
    json!({"containers": [{"name": "c", "image": "nginx:1", "readinessProbe": {"httpGet": {"port": 80}}}]})
}

fn with_init() -> Value {
    json!({"initContainers": [{"name": "i1", "image": "x"}, {"name": "i2", "image": "x"}]})
}

fn restart(policy: &str) -> Value {
    json!({"restartPolicy": policy})
}
