//! MCPServer: a Deployment and a Service for a server of tools, and the names of those tools in its status.

mod build;
mod observe;
mod registry;
mod status;
#[cfg(test)]
mod tests;
mod tools;
mod validate;

use std::time::Duration;

use gantry_crds::kaos::{MCPServer, MCPServerStatus};
use gantry_kit::{Common, Context, Controller, ObjectKey, Outcome, Result, probe::Probes};
use kube::{Client, core::ApiResource};

use crate::{
    Settings,
    rbac::{OWN, READ, Rule},
};

/// What this controller does in the cluster, beside what the kit does for all.
pub const RBAC: &[Rule] = &[
    Rule {
        group: "kaos.tools",
        resources: &["mcpservers"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        group: "kaos.tools",
        resources: &["mcpservers/status"],
        verbs: &["patch"],
    },
    // The garbage collector's admission check asks for this before an owner reference may block deletion.
    Rule {
        group: "kaos.tools",
        resources: &["mcpservers/finalizers"],
        verbs: &["update"],
    },
    Rule {
        group: "apps",
        resources: &["deployments"],
        verbs: OWN,
    },
    Rule {
        group: "",
        resources: &["services"],
        verbs: OWN,
    },
    Rule {
        group: "autoscaling",
        resources: &["horizontalpodautoscalers"],
        verbs: OWN,
    },
    Rule {
        group: "gateway.networking.k8s.io",
        resources: &["httproutes"],
        verbs: OWN,
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: READ,
    },
];

pub struct McpServers {
    settings: Settings,
    autoscaler: ApiResource,
    probes: Probes<tools::Tools>,
    asker: tools::Asker,
}

impl McpServers {
    pub fn new(client: Client, settings: Settings, autoscaler: ApiResource) -> Self {
        let asker = tools::Asker::new(client, settings.reach);
        Self {
            settings,
            autoscaler,
            probes: Probes::new(Duration::from_secs(600)),
            asker,
        }
    }
}

impl Controller for McpServers {
    type Kind = MCPServer;
    type Status = MCPServerStatus;

    const NAME: &'static str = "mcpserver";
    const OBSOLETE_FINALIZERS: &'static [&'static str] = &["kaos.tools/mcpserver-finalizer"];

    fn status(object: &MCPServer) -> Option<&MCPServerStatus> {
        object.status.as_ref()
    }

    fn common(status: &mut MCPServerStatus) -> Common<'_> {
        Common {
            conditions: status.conditions.get_or_insert_default(),
            observed_generation: &mut status.observed_generation,
        }
    }

    fn summarize(status: &mut MCPServerStatus) {
        status::summarize(status);
    }

    async fn reconcile(&self, server: &MCPServer, context: &Context) -> Result<Outcome<MCPServerStatus>> {
        let observed = observe::observe(server, &self.settings, context).await?;
        let valid = match validate::validate(server, &self.settings, &observed) {
            Ok(valid) => valid,
            Err(blocked) => return Ok(status::blocked(server, observed.running.as_ref(), blocked)),
        };
        let wish = build::build(&valid, &self.autoscaler);
        let applied = context.apply(server, wish).await?;
        let seen = observe::look_again(self, server, &valid, &applied, context)?;
        Ok(status::from_applied(&valid, server, &seen))
    }

    fn forget(&self, key: &ObjectKey) {
        self.probes.forget(key);
    }
}
