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
        (
            type_,
            known(&status, type_).unwrap_or_else(|| Verdict::unknown(blocked.reason, "")),
        )
    };
    let also = [types::AVAILABLE, types::TOOLS_DISCOVERED, types::ROUTED].map(kept);
    let ready = Verdict::no(blocked.reason, blocked.message);
    let mut outcome = Outcome::new(status, ready, blocked.progress);
    outcome.also = also.into();
    outcome
}

/// A condition as it was told last time.
fn known(status: &MCPServerStatus, type_: &str) -> Option<Verdict> {
    let known = conditions::find(status.conditions.as_deref()?, type_)?;
    let (reason, message) = (known.reason.clone(), known.message.clone());
    Some(match known.status.as_str() {
        "True" => Verdict::yes(reason, message),
        "False" => Verdict::no(reason, message),
        _ => Verdict::unknown(reason, message),
    })
}

pub fn from_applied(server: &Valid, before: &MCPServer, seen: &Seen) -> Outcome<MCPServerStatus> {
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
    let (tools, tools_verdict) = tools(before, seen);
    let status = MCPServerStatus {
        endpoint: Some(format!(
            "http://{}.{}.svc.cluster.local:{PORT}",
            server.child, server.namespace
        )),
        runtime: Some(server.runtime.clone()),
        available_tools: tools,
        replicas: report.replicas,
        selector: Some(pairs.join(",")),
        deployment: Some(report),
        ..MCPServerStatus::default()
    };
    Outcome::new(status, ready, progress)
        .with(types::AVAILABLE, available_verdict(available))
        .with(types::TOOLS_DISCOVERED, tools_verdict)
        .with(types::ROUTED, route_verdict(server))
}

fn available_verdict(available: i32) -> Verdict {
    if available > 0 {
        Verdict::yes(reasons::SUCCEEDED, "at least one pod serves")
    } else {
        Verdict::no(reasons::PROGRESSING, "no pod serves yet")
    }
}

fn tools(before: &MCPServer, seen: &Seen) -> (Option<Vec<String>>, Verdict) {
    match &seen.tools {
        Some(Ok(tools)) => {
            let message = format!("the server lists {} tools", tools.len());
            (Some(tools.clone()), Verdict::yes(reasons::TOOLS_LISTED, message))
        }
        Some(Err(why)) => {
            let message = format!("the server does not list its tools: {why}");
            (None, Verdict::no(reasons::TOOLS_UNREACHABLE, message))
        }
        None => {
            // After a restart of the operator nothing is known yet; what was told of this very spec still stands.
            let status = before
                .status
                .as_ref()
                .filter(|status| seen.serves && status.observed_generation == before.metadata.generation);
            let verdict = status.and_then(|status| known(status, types::TOOLS_DISCOVERED));
            let tools = status.and_then(|status| status.available_tools.clone());
            let unknown =
                || Verdict::unknown(reasons::NOT_ASKED_YET, "tools are asked for once a pod is ready");
            (tools, verdict.unwrap_or_else(unknown))
        }
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
