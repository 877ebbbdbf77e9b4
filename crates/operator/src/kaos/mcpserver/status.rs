//! Pure: what is told about a server.

use std::fmt::Write;

use gantry_crds::{
    conditions::{reasons, types},
    kaos::{MCPServer, MCPServerStatus, McpTransport, ToolSource},
};
use gantry_kit::{Outcome, Verdict};
use k8s_openapi::api::apps::v1::Deployment;

use super::{
    observe::Seen,
    validate::{CONTAINER, PORT, Valid},
};
use crate::{
    kaos::phase,
    workload::{
        rollout,
        verdicts::{self, Blocked},
    },
};

/// Nothing was built for this spec; what runs already goes on and is reported as it is.
pub fn blocked(
    server: &MCPServer,
    running: Option<&Deployment>,
    blocked: Blocked,
) -> Outcome<MCPServerStatus> {
    let mut status = server.status.clone().unwrap_or_default();
    let known = status.conditions.clone();
    let report = running.map(rollout::report);
    if let Some(report) = &report {
        status.replicas = report.replicas;
        status.deployment = Some(report.clone());
    }
    let also = [types::AVAILABLE, types::TOOLS_DISCOVERED, types::ROUTED];
    let serving = report.and_then(|report| report.available_replicas);
    blocked.outcome(status, serving, known.as_deref(), &also)
}

pub fn from_applied(server: &Valid, before: &MCPServer, seen: &Seen) -> Outcome<MCPServerStatus> {
    let (mut ready, progress) = rollout::verdict(&seen.deployment, &seen.pods);
    if ready.reason == reasons::CRASH_LOOP && ends_for_want_of_input(server, seen) {
        ready.message.push_str(
            "; a package that serves stdio ends when nobody writes to it: set config.transport to stdio if it is one",
        );
    }
    let report = rollout::report(&seen.deployment);
    let available = report.available_replicas.unwrap_or(0);
    let (tools, tools_verdict) = tools(before, seen);
    let status = MCPServerStatus {
        endpoint: Some(format!(
            "http://{}.{}.svc.cluster.local:{PORT}",
            server.child, server.namespace
        )),
        runtime: Some(server.runtime.clone()),
        available_tools: tools,
        replicas: report.replicas,
        selector: Some(verdicts::selector_text(&super::build::selector(server))),
        deployment: Some(report),
        ..MCPServerStatus::default()
    };
    Outcome::new(status, ready, progress)
        .with(types::AVAILABLE, verdicts::available(available))
        .with(types::TOOLS_DISCOVERED, tools_verdict)
        .with(types::ROUTED, server.route.verdict(&server.path()))
}

/// Whether it looks like a package that speaks stdio, run as if it served HTTP: it ends, and finds nothing wrong.
fn ends_for_want_of_input(server: &Valid, seen: &Seen) -> bool {
    let package = matches!(server.spec.source(), Some(ToolSource::Package { .. }));
    let mut containers = seen.pods.iter().flat_map(|pod| &pod.containers);
    package
        && server.spec.transport() != McpTransport::Stdio
        && containers
            .any(|container| container.name == CONTAINER && matches!(container.ended, Some((_, 0, _))))
}

fn tools(before: &MCPServer, seen: &Seen) -> (Option<Vec<String>>, Verdict) {
    match &seen.tools {
        Some(Ok(tools)) => {
            let listed = tools.names.len() + tools.left_out;
            let mut message = format!("the server lists {listed} tools");
            if tools.left_out > 0 {
                let left_out = tools.left_out;
                let _ = write!(
                    message,
                    "; {left_out} of them are not in this status, their names being too long or too many"
                );
            }
            (
                Some(tools.names.clone()),
                Verdict::yes(reasons::TOOLS_LISTED, message),
            )
        }
        Some(Err(why)) => {
            let message = format!("the server does not list its tools: {why}");
            (None, Verdict::no(reasons::TOOLS_UNREACHABLE, message))
        }
        None => {
            // After a restart of the operator nothing is known yet; what was told of these very pods still stands. Others may
            // come for the same spec: with another key of a Secret, say.
            let same = |status: &&MCPServerStatus| {
                seen.serves
                    && status.observed_generation == before.metadata.generation
                    && rollout::is_one_template(&seen.deployment)
            };
            let status = before.status.as_ref().filter(same);
            let verdict = status
                .and_then(|status| verdicts::known(status.conditions.as_deref(), types::TOOLS_DISCOVERED));
            let tools = status.and_then(|status| status.available_tools.clone());
            let unknown =
                || Verdict::unknown(reasons::NOT_ASKED_YET, "tools are asked for once a pod is ready");
            (tools, verdict.unwrap_or_else(unknown))
        }
    }
}

/// The words that the seed's users read, from the conditions and nothing else.
pub fn summarize(status: &mut MCPServerStatus) {
    let summary = verdicts::summary(status.conditions.as_deref().unwrap_or_default());
    status.phase = Some(phase(&summary));
    status.ready = Some(summary.is_ready);
    status.message = Some(summary.message.to_owned());
}
