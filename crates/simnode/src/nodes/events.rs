//! The kubelet's Events about failing pods: the first few of each, then silence.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::Semaphore;

use super::write::Target;
use crate::pods::PodEvent;

/// How often one Event is repeated (as a count) before nothing more is said.
const REPEATS: u32 = 5;
/// How many different Events one pod may have.
const KINDS: usize = 8;

/// How often each Event of a pod was sent; empty for the many pods that never fail.
#[derive(Debug, Default)]
pub struct Sent(Vec<(u64, u32)>);

impl Sent {
    /// The number of this occurrence; `None` if enough was said.
    fn next(&mut self, event: &PodEvent) -> Option<(u64, u32)> {
        let mut hash = DefaultHasher::new();
        (event.reason, &event.message, &event.field_path).hash(&mut hash);
        let key = hash.finish();
        if let Some((_, count)) = self.0.iter_mut().find(|(known, _)| *known == key) {
            *count = count.saturating_add(1);
            return (*count <= REPEATS).then_some((key, *count));
        }
        if self.0.len() >= KINDS {
            return None;
        }
        self.0.push((key, 1));
        Some((key, 1))
    }
}

#[derive(Clone)]
pub struct Recorder {
    client: Client,
    enabled: bool,
    permits: Arc<Semaphore>,
}

impl Recorder {
    pub fn new(client: Client, enabled: bool) -> Self {
        Self {
            client,
            enabled,
            permits: Arc::new(Semaphore::new(4)),
        }
    }

    /// Sends what is due in the background; an Event that fails to be written is lost, as a kubelet's is.
    pub fn record(&self, sent: &mut Sent, target: &Target, node: &str, events: Vec<PodEvent>) {
        if !self.enabled {
            return;
        }
        for event in events {
            let Some((key, count)) = sent.next(&event) else {
                continue;
            };
            let (recorder, target, node) = (self.clone(), target.clone(), node.to_owned());
            tokio::spawn(async move {
                let Ok(_permit) = recorder.permits.acquire().await else {
                    return;
                };
                if let Err(error) = send(&recorder.client, &target, &node, &event, key, count).await {
                    tracing::debug!(pod = target.name, %error, "failed to write an event");
                }
            });
        }
    }
}

async fn send(
    client: &Client,
    target: &Target,
    node: &str,
    event: &PodEvent,
    key: u64,
    count: u32,
) -> anyhow::Result<()> {
    let api: Api<Event> = Api::namespaced(client.clone(), &target.namespace);
    let uid = target.uid.split('-').next().unwrap_or_default();
    let name = format!("{}.{uid}{key:016x}", target.name);
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    if count > 1 {
        let patch = Patch::Merge(json!({"count": count, "lastTimestamp": now}));
        match api.patch(&name, &PatchParams::default(), &patch).await {
            // It expired, or the first one was lost.
            Err(kube::Error::Api(status)) if status.code == 404 => (),
            other => return Ok(other.map(|_| ())?),
        }
    }
    let object: Event = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": target.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": target.namespace,
            "name": target.name,
            "uid": target.uid,
            "fieldPath": event.field_path,
        },
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "message": event.message,
        "source": {"component": "kubelet", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": count,
    }))?;
    match api.create(&PostParams::default(), &object).await {
        // Sent before a restart of ours.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => Ok(other.map(|_| ())?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_says_each_thing_a_few_times() {
        let event = |message: &str| PodEvent {
            warning: true,
            reason: "BackOff",
            message: message.into(),
            field_path: String::new(),
        };
        let mut sent = Sent::default();
        let counts: Vec<_> = (0..10)
            .filter_map(|_| sent.next(&event("a")))
            .map(|(_, count)| count)
            .collect();
        assert_eq!(counts, [1, 2, 3, 4, 5]);
        assert_eq!(
            (0..20)
                .filter_map(|i| sent.next(&event(&format!("m{i}"))))
                .count(),
            KINDS - 1
        );
    }
}
