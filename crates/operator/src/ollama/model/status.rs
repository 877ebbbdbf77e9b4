//! Pure: what is told about a Model.

use gantry_crds::{
    conditions::{reasons, types},
    ollama::{Model, ModelIngress, ModelPhase, ModelStatus},
};
use gantry_kit::{Outcome, Progress, Truth, Verdict};
use k8s_openapi::api::apps::v1::Deployment;

use super::{network, observe::Seen, pull::State, validate::Valid};
use crate::workload::{
    rollout,
    route::Route,
    verdicts::{self, Blocked},
};

const ALSO: &[&str] = &[
    types::AVAILABLE,
    types::PROGRESSING,
    types::STORE_READY,
    types::MODEL_PULLED,
    types::ACCEPTED,
    types::ROUTED,
    types::MONITORED,
];

/// Nothing was built for this spec; what runs already goes on, and its pods are reported as they are.
pub fn blocked(model: &Model, running: Option<&Deployment>, blocked: Blocked) -> Outcome<ModelStatus> {
    let mut status = model.status.clone().unwrap_or_default();
    status.stage = None;
    if let Some(running) = running {
        status = with_counts(status, running);
    }
    let known = status.conditions.clone();
    let refused = matches!(
        blocked.reason,
        reasons::INVALID_SPEC | reasons::INVALID_OVERRIDE | reasons::ACCESS_MODE_IMPOSSIBLE
    );
    let accepted = if refused {
        Verdict::no(blocked.reason, blocked.message.clone())
    } else {
        Verdict::yes(reasons::SUCCEEDED, "")
    };
    let available = running.and(status.available_replicas);
    let mut outcome = blocked.outcome(status, available, known.as_deref(), ALSO);
    for (type_, verdict) in &mut outcome.also {
        if *type_ == types::ACCEPTED {
            *verdict = accepted.clone();
        }
    }
    outcome
}

fn with_counts(status: ModelStatus, deployment: &Deployment) -> ModelStatus {
    let report = rollout::report(deployment);
    let available = report.available_replicas.unwrap_or(0);
    let wanted = deployment.spec.replicas.unwrap_or(0);
    ModelStatus {
        replicas: Some(report.replicas.unwrap_or(0)),
        ready_replicas: Some(report.ready_replicas.unwrap_or(0)),
        available_replicas: Some(available),
        unavailable_replicas: Some((wanted - available).max(0)),
        ..status
    }
}

pub fn from_applied(model: &Valid, before: &Model, seen: &Seen) -> Outcome<ModelStatus> {
    let store = store_verdict(model, seen);
    let (ready, progress) = ready(model, seen, &store);
    let none = Deployment::default();
    let status = ModelStatus {
        stage: Some(stage(model, &ready)),
        endpoint: Some(network::endpoint(model)),
        size: model.info.size.map(human),
        digest: Some(model.info.digest.clone()).filter(|digest| !digest.is_empty()),
        selector: Some(verdicts::selector_text(&model.selector)),
        ..with_counts(ModelStatus::default(), seen.deployment.as_ref().unwrap_or(&none))
    };
    let available = status.available_replicas.unwrap_or(0);
    let progressing = match progress {
        Progress::Working => Verdict::yes(ready.reason.clone(), ready.message.clone()),
        Progress::Done | Progress::Stuck => Verdict::no(ready.reason.clone(), ""),
    };
    let mut outcome = Outcome::new(status, ready, progress)
        .with(types::AVAILABLE, verdicts::available(available))
        .with(types::PROGRESSING, progressing)
        .with(types::STORE_READY, store)
        .with(types::MODEL_PULLED, pulled(model, before))
        .with(types::ACCEPTED, accepted(model))
        .with(types::ROUTED, routed(model))
        .with(types::MONITORED, model.monitoring.verdict());
    if !model.store.conflicts.is_empty() {
        outcome.warnings = vec![(reasons::STORE_CONFLICT, model.store.conflicts.join("; "))];
    }
    outcome
}

fn ready(model: &Valid, seen: &Seen, store: &Verdict) -> (Verdict, Progress) {
    let rollout = seen.deployment.as_ref().map(|deployment| {
        let (verdict, progress) = rollout::verdict(deployment, &seen.pods);
        (with_hint(model, verdict), progress)
    });
    if let Some((verdict, Progress::Done)) = rollout {
        // The pods' readiness proves the model, whatever the store says by now.
        return (verdict, Progress::Done);
    }
    if rollout.is_none() && store.truth != Truth::True {
        let progress = match rollout::trouble(&seen.store_pods) {
            Some(_) => Progress::Stuck,
            None => Progress::Working,
        };
        return (Verdict::no(store.reason.clone(), store.message.clone()), progress);
    }
    match (&model.pull, rollout) {
        (Some(State::Pulling(_)), _) => {
            let message = format!("{} is being downloaded", model.model.short());
            (Verdict::no(reasons::PULLING, message), Progress::Working)
        }
        (Some(State::Failed(words)), _) => (
            Verdict::no(reasons::PULL_FAILED, failure(model, words)),
            Progress::Stuck,
        ),
        (_, Some(rollout)) => rollout,
        (_, None) => {
            let message = "the store is asked whether it has the weights";
            (
                Verdict::no(reasons::WAITING_FOR_STORE, message),
                Progress::Working,
            )
        }
    }
}

fn with_hint(model: &Valid, mut verdict: Verdict) -> Verdict {
    if verdict.reason == reasons::UNSCHEDULABLE && !model.store.access_mode.is_shared() {
        verdict.message.push_str(
            "; a ReadWriteOnce volume ties these pods to the node of the store: make room there, use store.scope \
             PerModel, or a volume with accessMode ReadWriteMany",
        );
    }
    verdict
}

fn failure(model: &Valid, words: &str) -> String {
    let image = model.model.short();
    if model.store.read_only {
        format!("{image} cannot be downloaded into a volume that is read only: {words}")
    } else {
        format!("{image} cannot be downloaded: {words}")
    }
}

fn store_verdict(model: &Valid, seen: &Seen) -> Verdict {
    match &model.store_waits {
        Some(waits) if seen.store.is_ready() => {
            let message = format!("the store is up, but changes to it wait: {}", waits.message);
            return Verdict::yes(reasons::READY, message);
        }
        Some(waits) => return Verdict::no(waits.reason, format!("the store: {}", waits.message)),
        None if seen.store.is_ready() => return Verdict::yes(reasons::READY, "the store is up"),
        None => {}
    }
    match rollout::trouble(&seen.store_pods) {
        Some((reason, message)) => Verdict::no(reason, format!("the store: {message}")),
        None => Verdict::no(reasons::WAITING_FOR_STORE, "the store of the weights is starting"),
    }
}

fn pulled(model: &Valid, before: &Model) -> Verdict {
    // What was told of this very spec.
    let status = before
        .status
        .as_ref()
        .filter(|status| status.observed_generation == before.metadata.generation);
    let known = status.and_then(|status| verdicts::known(status.conditions.as_deref(), types::MODEL_PULLED));
    match &model.pull {
        Some(State::Present(_)) => Verdict::yes(reasons::PULLED, "the weights are in the store"),
        Some(State::Pulling(_)) => Verdict::no(reasons::PULLING, "the weights are being downloaded"),
        Some(State::Failed(words)) => Verdict::no(reasons::PULL_FAILED, failure(model, words)),
        // The network has many words for the same trouble; the first ones stay.
        Some(State::Unreachable(why)) => known
            .filter(|known| known.reason == reasons::STORE_UNREACHABLE)
            .unwrap_or_else(|| {
                let message = format!("the store cannot be asked: {why}");
                Verdict::unknown(reasons::STORE_UNREACHABLE, message)
            }),
        // After a restart of the operator nothing is known yet; what was told still stands.
        None => known
            .unwrap_or_else(|| Verdict::unknown(reasons::NOT_ASKED_YET, "the store is asked once it is up")),
    }
}

fn accepted(model: &Valid) -> Verdict {
    if model.store.conflicts.is_empty() {
        Verdict::yes(reasons::SUCCEEDED, "")
    } else {
        Verdict::no(reasons::STORE_CONFLICT, model.store.conflicts.join("; "))
    }
}

fn routed(model: &Valid) -> Verdict {
    let ingress = model.spec.ingress.as_ref().filter(|ingress| ingress.enabled());
    match (ingress, &model.route) {
        (Some(ingress), Route::NotWanted) => {
            let host =
                |ingress: &ModelIngress| ingress.host.clone().unwrap_or_else(|| "every host".to_owned());
            let message = format!("{} on {} by Ingress", ingress.path(), host(ingress));
            Verdict::yes(reasons::ROUTE_CREATED, message)
        }
        (_, route) => route.verdict(&model.path()),
    }
}

fn stage(model: &Valid, ready: &Verdict) -> String {
    match (&model.pull, ready.reason.as_str()) {
        (_, reasons::READY) => "serving".to_owned(),
        (Some(State::Pulling(stage)), reasons::PULLING) => stage.clone(),
        (_, reasons::WAITING_FOR_STORE) => "waiting for the store".to_owned(),
        (_, reasons::ROLLING_OUT) => "loading".to_owned(),
        (_, reasons::SCALED_TO_ZERO) => "scaled to zero".to_owned(),
        (_, reasons::PULL_FAILED) => "download failed".to_owned(),
        _ => "in trouble".to_owned(),
    }
}

/// As `ollama list` writes it.
fn human(bytes: u64) -> String {
    let units = [("GB", 1_000_000_000_u64), ("MB", 1_000_000), ("KB", 1_000)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some(("GB", unit)) => format!("{}.{} GB", bytes / unit, bytes % unit / (unit / 10)),
        Some((name, unit)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// The seed's words, from the conditions and nothing else.
pub fn summarize(status: &mut ModelStatus) {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let summary = verdicts::summary(conditions);
    let is_available = gantry_kit::conditions::is_true(conditions, types::AVAILABLE);
    let phase = match summary.reason {
        reasons::TERMINATING => ModelPhase::Terminating,
        _ if summary.is_ready => ModelPhase::Ready,
        reasons::SCALED_TO_ZERO => ModelPhase::Ready,
        _ if summary.is_stalled && is_available => ModelPhase::Degraded,
        _ if summary.is_stalled => ModelPhase::Failed,
        reasons::PULLING => ModelPhase::Pulling,
        reasons::ROLLING_OUT => ModelPhase::Loading,
        _ => ModelPhase::Pending,
    };
    let message = summary.message.to_owned();
    if phase == ModelPhase::Terminating {
        status.stage = Some("being removed".to_owned());
    }
    status.phase = Some(phase);
    status.message = Some(message);
}
