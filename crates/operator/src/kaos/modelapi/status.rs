//! Pure: what is told about an endpoint.

use gantry_crds::{
    conditions::{reasons, types},
    kaos::{ModelAPI, ModelAPIStatus},
};
use gantry_kit::{Outcome, Progress, Verdict};
use k8s_openapi::api::apps::v1::Deployment;

use super::{observe::Seen, validate::Valid};
use crate::{
    kaos::phase,
    workload::{
        rollout,
        verdicts::{self, Blocked},
    },
};

/// Nothing was built for this spec; what runs already goes on, and its pods are reported as they are.
pub fn blocked(api: &ModelAPI, running: Option<&Deployment>, blocked: Blocked) -> Outcome<ModelAPIStatus> {
    let mut status = api.status.clone().unwrap_or_default();
    let known = status.conditions.clone();
    let report = running.map(rollout::report);
    if let Some(report) = &report {
        status.replicas = report.replicas;
        status.deployment = Some(report.clone());
    }
    let also = [types::AVAILABLE, types::STORAGE_READY, types::ROUTED];
    let serving = report.and_then(|report| report.available_replicas);
    blocked.outcome(status, serving, known.as_deref(), &also)
}

pub fn from_applied(api: &Valid, seen: &Seen) -> Outcome<ModelAPIStatus> {
    let (ready, progress) = rollout::verdict(&seen.deployment, &seen.pods);
    let report = rollout::report(&seen.deployment);
    let available = report.available_replicas.unwrap_or(0);
    let status = ModelAPIStatus {
        endpoint: Some(format!(
            "http://{}.{}.svc.cluster.local:{}",
            api.child, api.namespace, api.port
        )),
        supported_models: Some(api.spec.supported_models()),
        replicas: report.replicas,
        selector: Some(verdicts::selector_text(&super::build::selector(api))),
        deployment: Some(report),
        ..ModelAPIStatus::default()
    };
    Outcome::new(status, ready, progress)
        .with(types::AVAILABLE, verdicts::available(available))
        .with(types::STORAGE_READY, storage(api, seen, progress))
        .with(types::ROUTED, api.route.verdict(&api.path()))
}

fn storage(api: &Valid, seen: &Seen, progress: Progress) -> Verdict {
    let Some(claim) = &api.claim else {
        return Verdict::no(reasons::NOT_REQUESTED, "");
    };
    let asked = seen.deployment.spec.replicas.unwrap_or(1);
    let most = api.most_pods().max(asked);
    claim.verdict(seen.claim.as_ref(), most, progress == Progress::Done)
}

/// The words that the seed's users read, from the conditions and nothing else.
pub fn summarize(status: &mut ModelAPIStatus) {
    let summary = verdicts::summary(status.conditions.as_deref().unwrap_or_default());
    status.phase = Some(phase(&summary));
    status.ready = Some(summary.is_ready);
    status.message = Some(summary.message.to_owned());
}
