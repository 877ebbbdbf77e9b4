//! Pure: what is told about a cluster.

use gantry_crds::{
    conditions::{reasons, types},
    penin::{
        ClusterMetrics, ClusterPhase, PeninOmegaCluster, PeninOmegaClusterStatus, PerService, Service,
        ServiceStatus,
    },
};
use gantry_kit::{Outcome, Progress, Verdict, conditions};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    keeper, ledger, metrics,
    observe::{Seen, SeenPart},
    plan::Plan,
    validate::Valid,
};
use crate::workload::verdicts::{self, Blocked};

/// Nothing was built for this spec; what runs already goes on and is reported as it was.
pub fn blocked(cluster: &PeninOmegaCluster, blocked: Blocked) -> Outcome<PeninOmegaClusterStatus> {
    let status = cluster.status.clone().unwrap_or_default();
    let known = status.conditions.clone();
    let kept = [
        types::AVAILABLE,
        types::LEDGER_READY,
        types::LEDGER_KEPT,
        types::METRICS_AVAILABLE,
        types::AUTOSCALED,
    ];
    let reason = blocked.reason;
    blocked
        .outcome(status, None, known.as_deref(), &kept)
        .with(types::DEGRADED, Verdict::no(reason, ""))
}

pub fn from_applied(
    valid: &Valid<'_>,
    before: &PeninOmegaCluster,
    seen: &Seen,
    now: Timestamp,
) -> Outcome<PeninOmegaClusterStatus> {
    let previous = before.status.clone().unwrap_or_default();
    let (ready, progress) = ready(&seen.parts);
    let mut services = PerService::default();
    for part in &seen.parts {
        if let Some(service) = part.service {
            services.set(service, Some(told(part)));
        }
    }
    let cache = seen.parts.iter().find(|part| part.service.is_none());
    let (metrics, metrics_verdict) = metrics(valid, before, seen);
    let mut status = PeninOmegaClusterStatus {
        version: if progress == Progress::Done {
            Some(valid.plan.spec.version().to_owned())
        } else {
            previous.version.clone()
        },
        services: Some(services),
        cache: cache.map(told),
        metrics,
        last_update_time: previous.last_update_time.clone(),
        ..PeninOmegaClusterStatus::default()
    };
    if !same(&status, &previous) {
        status.last_update_time = Some(Time(now));
    }
    let serving = |part: &&SeenPart| part.service.is_some() && part.available > 0;
    let degraded = degraded(&seen.parts);
    let mut outcome = Outcome::new(status, ready, progress)
        .with(
            types::AVAILABLE,
            available(seen.parts.iter().filter(serving).count()),
        )
        .with(types::DEGRADED, degraded)
        .with(types::LEDGER_READY, ledger_verdict(valid, seen))
        .with(types::LEDGER_KEPT, kept(&valid.plan, seen))
        .with(types::METRICS_AVAILABLE, metrics_verdict)
        .with(types::AUTOSCALED, autoscaled(&valid.plan));
    outcome.warnings.clone_from(&valid.warnings);
    outcome
}

/// Whether all but the time and what is derived from conditions is as it was.
fn same(one: &PeninOmegaClusterStatus, other: &PeninOmegaClusterStatus) -> bool {
    one.version == other.version
        && one.services == other.services
        && one.cache == other.cache
        && one.metrics == other.metrics
}

fn told(part: &SeenPart) -> ServiceStatus {
    ServiceStatus {
        ready: Some(part.ready.truth == gantry_kit::Truth::True),
        replicas: Some(part.replicas),
        ready_replicas: Some(part.ready_replicas),
    }
}

fn is_stopped(part: &SeenPart) -> bool {
    part.ready.reason == reasons::SCALED_TO_ZERO
}

/// All ready: healthy. Some stuck: what the first of them says. All services stuck: failed. Else it is under way.
fn ready(parts: &[SeenPart]) -> (Verdict, Progress) {
    let words = |parts: &[&SeenPart]| {
        let each = parts
            .iter()
            .map(|part| format!("{}: {}", part.component, part.ready.message));
        each.collect::<Vec<_>>().join("; ")
    };
    let stuck: Vec<&SeenPart> = parts.iter().filter(|p| p.progress == Progress::Stuck).collect();
    if let Some(first) = stuck.first() {
        let all = parts
            .iter()
            .filter(|part| part.service.is_some())
            .all(|part| part.progress == Progress::Stuck || is_stopped(part));
        let reason = if all && stuck.len() > 1 {
            reasons::ALL_SERVICES_FAILED.to_owned()
        } else {
            first.ready.reason.clone()
        };
        return (Verdict::no(reason, words(&stuck)), Progress::Stuck);
    }
    let pending: Vec<&SeenPart> = parts.iter().filter(|p| p.progress != Progress::Done).collect();
    if !pending.is_empty() {
        return (
            Verdict::no(reasons::SERVICES_PENDING, words(&pending)),
            Progress::Working,
        );
    }
    let stopped: Vec<&str> = parts
        .iter()
        .filter(|part| is_stopped(part))
        .map(|part| part.component)
        .collect();
    let verdict = match stopped.len() {
        0 => Verdict::yes(reasons::ALL_SERVICES_HEALTHY, "all services are ready"),
        4 => Verdict::no(
            reasons::SCALED_TO_ZERO,
            "no replicas are asked for: raise replicas to serve",
        ),
        _ => Verdict::yes(
            reasons::ALL_SERVICES_HEALTHY,
            format!("all services are ready; stopped: {}", stopped.join(", ")),
        ),
    };
    (verdict, Progress::Done)
}

/// Some parts are lost while services serve.
fn degraded(parts: &[SeenPart]) -> Verdict {
    let lost: Vec<&str> = parts
        .iter()
        .filter(|part| part.progress == Progress::Stuck)
        .map(|part| part.component)
        .collect();
    let serves = parts
        .iter()
        .any(|part| part.service.is_some() && part.progress != Progress::Stuck && !is_stopped(part));
    if !lost.is_empty() && serves {
        let message = format!("in trouble: {}", lost.join(", "));
        Verdict::yes(reasons::SERVICES_PENDING, message)
    } else {
        Verdict::no(reasons::SUCCEEDED, "")
    }
}

fn available(serving: usize) -> Verdict {
    match serving {
        0 => Verdict::no(reasons::PROGRESSING, "no service serves yet"),
        _ => Verdict::yes(reasons::SUCCEEDED, "at least one service serves"),
    }
}

fn ledger_verdict(valid: &Valid<'_>, seen: &Seen) -> Verdict {
    let Some(storage) = ledger::storage(&valid.plan) else {
        return ledger::off();
    };
    let own = valid.plan.ledger_claim();
    let name = storage.existing_claim().unwrap_or(&own);
    let claim = valid.claims.iter().find(|claim| claim.name == name);
    // How many pods may mount it was checked with the spec, and they are kept on one node where they must be.
    claim.map_or_else(ledger::off, |claim| claim.verdict(seen.ledger.as_ref(), 1, true))
}

/// Nobody's readiness depends on it: it tells of a copy, and is not one of the services.
fn kept(plan: &Plan<'_>, seen: &Seen) -> Verdict {
    let known = keeper::off(plan).or_else(|| seen.keeper.clone());
    known.unwrap_or_else(|| Verdict::unknown(reasons::PROGRESSING, ""))
}

fn autoscaled(plan: &Plan<'_>) -> Verdict {
    let scaled: Vec<&str> = Service::ALL
        .into_iter()
        .filter(|service| plan.spec.auto_scaling(*service).is_some())
        .map(Service::name)
        .collect();
    if scaled.is_empty() {
        Verdict::no(reasons::NOT_REQUESTED, "")
    } else {
        Verdict::yes(
            reasons::SUCCEEDED,
            format!("autoscalers for {}", scaled.join(", ")),
        )
    }
}

fn metrics(valid: &Valid<'_>, before: &PeninOmegaCluster, seen: &Seen) -> (Option<ClusterMetrics>, Verdict) {
    if !valid.plan.spec.observability().metrics() {
        let message = "observability.metrics is off";
        return (None, Verdict::no(reasons::NOT_REQUESTED, message));
    }
    let status = before.status.as_ref();
    let known = status.and_then(|status| status.metrics.as_ref());
    match &seen.reading {
        Some(Ok(reading)) if metrics::is_empty(&reading.metrics) => {
            let message = metrics::silence(reading);
            (None, Verdict::no(reasons::METRICS_NOT_SERVED, message))
        }
        Some(Ok(reading)) => {
            let told = metrics::steady(known, &reading.metrics);
            (
                Some(told),
                Verdict::yes(reasons::METRICS_READ, "read from the services"),
            )
        }
        Some(Err(why)) => {
            let message = format!("the services do not tell their metrics: {why}");
            (None, Verdict::no(reasons::METRICS_UNAVAILABLE, message))
        }
        None => {
            // After a restart of the operator nothing is known yet; what was told last still stands.
            let serves = seen
                .parts
                .iter()
                .any(|part| part.service.is_some() && part.ready_replicas > 0);
            let status = status.filter(|_| serves);
            let verdict = status
                .and_then(|status| verdicts::known(status.conditions.as_deref(), types::METRICS_AVAILABLE))
                .filter(|verdict| verdict.reason != reasons::NOT_REQUESTED);
            let unknown = || {
                Verdict::unknown(
                    reasons::NOT_ASKED_YET,
                    "metrics are asked for once a pod is ready",
                )
            };
            let metrics = known.filter(|_| serves).cloned();
            (metrics, verdict.unwrap_or_else(unknown))
        }
    }
}

/// The words that the seed's users read, from the conditions and what was told with them.
pub fn summarize(status: &mut PeninOmegaClusterStatus) {
    let all = status.conditions.clone().unwrap_or_default();
    let summary = verdicts::summary(&all);
    let degraded = conditions::is_true(&all, types::DEGRADED);
    status.phase = Some(if summary.reason == reasons::TERMINATING {
        ClusterPhase::Terminating
    } else if summary.is_ready || summary.reason == reasons::SCALED_TO_ZERO {
        ClusterPhase::Running
    } else if summary.is_stalled && !degraded {
        ClusterPhase::Failed
    } else if status.services.is_none() {
        ClusterPhase::Pending
    } else if status.version.is_none() {
        // It was never complete.
        ClusterPhase::Creating
    } else {
        ClusterPhase::Updating
    });
    status.message = Some(summary.message.to_owned());
    // The status changed when a condition did, too.
    let flipped = all.iter().map(|condition| condition.last_transition_time.0).max();
    let before = status.last_update_time.as_ref().map(|time| time.0);
    status.last_update_time = before.max(flipped).map(Time);
}
