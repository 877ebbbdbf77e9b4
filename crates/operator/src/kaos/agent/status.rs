//! Pure: what is told about an agent.

use std::collections::BTreeMap;

use gantry_crds::{
    common::text,
    conditions::{reasons, types},
    kaos::{Agent, AgentStatus},
};
use gantry_kit::{Outcome, Truth, Verdict};
use k8s_openapi::api::apps::v1::Deployment;

use super::{
    env,
    observe::Seen,
    validate::{PORT, Valid, selector},
};
use crate::{
    kaos::phase,
    workload::{
        rollout,
        verdicts::{self, Blocked},
    },
};

/// Nothing was built for this spec; what runs already goes on, and its pods are reported as they are.
pub fn blocked(agent: &Agent, running: Option<&Deployment>, blocked: Blocked) -> Outcome<AgentStatus> {
    let mut status = agent.status.clone().unwrap_or_default();
    let known = status.conditions.clone();
    let report = running.map(rollout::report);
    if let Some(report) = &report {
        status.observed_replicas = report.replicas;
        status.replicas = report.replicas;
        status.deployment = Some(report.clone());
    }
    let serving = report.and_then(|report| report.available_replicas);
    let also = [
        types::AVAILABLE,
        types::DEGRADED,
        types::MEMORY_DEGRADED,
        types::ROUTED,
    ];
    blocked.outcome(status, serving, known.as_deref(), &also)
}

pub fn from_applied(agent: &Valid, seen: &Seen) -> Outcome<AgentStatus> {
    let (mut ready, progress) = rollout::verdict(&seen.deployment, &seen.pods);
    let report = rollout::report(&seen.deployment);
    let available = report.available_replicas.unwrap_or(0);
    let degraded = degraded(agent);
    if ready.truth == Truth::True && degraded.truth == Truth::True {
        // The pods are fine, so the agent is ready; but who looks at the list should see what it misses.
        ready.reason.clone_from(&degraded.reason);
        ready.message = format!("{}; {}", ready.message, degraded.message);
    }
    let endpoint = || {
        format!(
            "http://{}.{}.svc.cluster.local:{PORT}",
            agent.child, agent.namespace
        )
    };
    let status = AgentStatus {
        endpoint: agent.spec.expose().then(endpoint),
        model: agent.model.clone(),
        linked_resources: Some(links(agent)),
        observed_replicas: report.replicas,
        replicas: report.replicas,
        selector: Some(verdicts::selector_text(&selector(&agent.name))),
        deployment: Some(report),
        ..AgentStatus::default()
    };
    Outcome::new(status, ready, progress)
        .with(types::AVAILABLE, verdicts::available(available))
        .with(types::DEGRADED, degraded)
        .with(types::MEMORY_DEGRADED, memory(agent))
        .with(types::ROUTED, agent.route.verdict(&agent.path()))
}

/// What the pods were built with. The name of the ModelAPI as the original told it, then every address.
fn links(agent: &Valid) -> BTreeMap<String, String> {
    let model_api = agent.spec.model_api.clone().unwrap_or_default();
    let mut links = BTreeMap::from([("modelapi".to_owned(), model_api)]);
    for one in &agent.dependencies.all {
        links.insert(one.needed.link(), one.address.clone());
    }
    links
}

fn degraded(agent: &Valid) -> Verdict {
    match agent.dependencies.lost() {
        Some(lost) => Verdict::yes(reasons::DEPENDENCY_LOST, lost),
        None => Verdict::no(reasons::SUCCEEDED, "everything that the agent uses is there"),
    }
}

fn memory(agent: &Valid) -> Verdict {
    let memory = agent
        .spec
        .config
        .as_ref()
        .and_then(|config| config.memory.as_ref());
    let Some(store) = memory.and_then(|memory| text(memory.memory_store.as_ref())) else {
        return Verdict::no(reasons::NOT_REQUESTED, "");
    };
    let mut own = env::given(&agent.spec).into_iter();
    if own.any(|variable| variable.name == env::MEMORY_STORE_VARIABLE) {
        let message = "the store is where the environment says";
        return Verdict::no(reasons::MEMORY_HEALTHY, message);
    }
    let address = env::store_address(store, &agent.namespace);
    Verdict::yes(
        reasons::MEMORY_STORE_NOT_SERVED,
        format!(
            "this operator serves no MemoryStore {store}: the agent is told to look for it at {address}, and remembers in \
             its pod until something answers there; set {} in config.env for a store elsewhere",
            env::MEMORY_STORE_VARIABLE
        ),
    )
}

/// The words that the seed's users read, from the conditions and nothing else.
pub fn summarize(status: &mut AgentStatus) {
    let summary = verdicts::summary(status.conditions.as_deref().unwrap_or_default());
    status.phase = Some(phase(&summary));
    status.ready = Some(summary.is_ready);
    status.message = Some(summary.message.to_owned());
}
