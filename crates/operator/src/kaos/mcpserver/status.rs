//! Pure: what is told about a server.

use gantry_crds::{
    conditions::{reasons, types},
    kaos::{MCPServer, MCPServerStatus, Phase},
};
use gantry_kit::{Outcome, Verdict, conditions};

use super::{
    observe::Seen,
    validate::{Blocked, PORT, Route, Valid},
};
use crate::workload::rollout;

/// Nothing was built for this spec; what runs already goes on and is reported as it was.
pub fn blocked(server: &MCPServer, blocked: Blocked) -> Outcome<MCPServerStatus> {
    let status = server.status.clone().unwrap_or_default();
    let kept = |type_: &'static str| {
        let known = status
            .conditions
            .as_deref()
            .and_then(|known| conditions::find(known, type_));
        let verdict = known.map(|known| {
            let message = known.message.clone();
            match known.status.as_str() {
                "True" => Verdict::yes(known.reason.clone(), message),
                "False" => Verdict::no(known.reason.clone(), message),
                _ => Verdict::unknown(known.reason.clone(), message),
            }
        });
        (
            type_,
            verdict.unwrap_or_else(|| Verdict::unknown(blocked.reason, "")),
        )
    };
    let also = [types::AVAILABLE, types::TOOLS_DISCOVERED, types::ROUTED].map(kept);
    let ready = Verdict::no(blocked.reason, blocked.message);
    let mut outcome = Outcome::new(status, ready, blocked.progress);
    outcome.also = also.into();
    outcome
}

pub fn from_applied(server: &Valid, seen: &Seen) -> Outcome<MCPServerStatus> {
    let (ready, progress) = rollout::verdict(&seen.deployment, &seen.pods);
    let report = rollout::report(&seen.deployment);
    let available = report.available_replicas.unwrap_or(0);
    let selector = super::build::selector(server);
    let mut pairs: Vec<String> = selector
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort();
    let status = MCPServerStatus {
        endpoint: Some(format!(
            "http://{}.{}.svc.cluster.local:{PORT}",
            server.child, server.namespace
        )),
        runtime: Some(server.runtime.clone()),
        available_tools: seen.tools.clone().and_then(Result::ok),
        replicas: report.replicas,
        selector: Some(pairs.join(",")),
        deployment: Some(report),
        ..MCPServerStatus::default()
    };
    Outcome::new(status, ready, progress)
        .with(types::AVAILABLE, available_verdict(available))
        .with(types::TOOLS_DISCOVERED, tools_verdict(seen))
        .with(types::ROUTED, route_verdict(server))
}

fn available_verdict(available: i32) -> Verdict {
    if available > 0 {
        Verdict::yes(reasons::SUCCEEDED, "at least one pod serves")
    } else {
        Verdict::no(reasons::PROGRESSING, "no pod serves yet")
    }
}

fn tools_verdict(seen: &Seen) -> Verdict {
    match &seen.tools {
        Some(Ok(tools)) => Verdict::yes(
            reasons::TOOLS_LISTED,
            format!("the server lists {} tools", tools.len()),
        ),
        Some(Err(why)) => Verdict::no(
            reasons::TOOLS_UNREACHABLE,
            format!("the server does not list its tools: {why}"),
        ),
        None => Verdict::unknown(reasons::NOT_ASKED_YET, "tools are asked for once a pod is ready"),
    }
}

fn route_verdict(server: &Valid) -> Verdict {
    match &server.route {
        Route::NotWanted => Verdict::no(reasons::NOT_REQUESTED, ""),
        Route::Impossible(why) => Verdict::no(reasons::GATEWAY_API_MISSING, why.clone()),
        Route::Wanted(gateway) => Verdict::yes(
            reasons::ROUTE_CREATED,
            format!(
                "/{}/mcp/{} on gateway {}",
                server.namespace, server.name, gateway.name
            ),
        ),
    }
}

/// The words that the seed's users read, from the conditions and nothing else.
pub fn summarize(status: &mut MCPServerStatus) {
    let known = status.conditions.as_deref().unwrap_or_default();
    let ready = conditions::find(known, types::READY);
    let is_ready = ready.is_some_and(|ready| ready.status == "True");
    let reason = ready.map(|ready| ready.reason.as_str()).unwrap_or_default();
    let phase = if is_ready || reason == reasons::SCALED_TO_ZERO {
        Phase::Ready
    } else if conditions::is_true(known, types::STALLED) {
        Phase::Failed
    } else if reason.starts_with("WaitingFor") {
        Phase::Waiting
    } else {
        Phase::Pending
    };
    status.message = ready.map(|ready| ready.message.clone());
    status.ready = Some(is_ready);
    status.phase = Some(phase);
}
