//! Agent: a Deployment that is told its model, its tools and its peers, once they are there.

mod build;
mod dependencies;
mod env;
mod harness;
mod network;
mod observe;
mod peers;
mod status;
#[cfg(test)]
mod tests;
mod validate;

use std::sync::Arc;

use gantry_crds::kaos::{Agent, AgentStatus, MCPServer, ModelAPI};
use gantry_kit::{Common, Context, Controller, Outcome, Result, manager::Roots};
use kube::core::ApiResource;

use crate::{
    Settings,
    rbac::{OWN, READ, Rule},
};

/// What this controller does in the cluster, beside what the kit does for all.
pub const RBAC: &[Rule] = &[
    Rule {
        group: "kaos.tools",
        resources: &["agents"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        group: "kaos.tools",
        resources: &["agents/status"],
        verbs: &["patch"],
    },
    // The garbage collector's admission check asks for this before an owner reference may block deletion.
    Rule {
        group: "kaos.tools",
        resources: &["agents/finalizers"],
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
        group: "networking.k8s.io",
        resources: &["networkpolicies"],
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

pub struct Agents {
    pub settings: Settings,
    pub autoscaler: ApiResource,
    /// Whether namespaces can be read, which say who may refer to what is in them.
    pub sees_namespaces: bool,
    pub model_apis: Arc<Roots<ModelAPI>>,
    pub mcp_servers: Arc<Roots<MCPServer>>,
    pub agents: Arc<Roots<Agent>>,
}

impl Agents {
    fn caches(&self) -> dependencies::Caches<'_> {
        dependencies::Caches {
            model_apis: &self.model_apis,
            mcp_servers: &self.mcp_servers,
            agents: &self.agents,
        }
    }
}

impl Controller for Agents {
    type Kind = Agent;
    type Status = AgentStatus;

    const NAME: &'static str = "agent";
    const OBSOLETE_FINALIZERS: &'static [&'static str] = &["kaos.tools/agent-finalizer"];
    const LOOKS_AT: &'static [&'static str] = &["modelapi", "mcpserver"];

    fn status(object: &Agent) -> Option<&AgentStatus> {
        object.status.as_ref()
    }

    fn common(status: &mut AgentStatus) -> Common<'_> {
        Common {
            conditions: status.conditions.get_or_insert_default(),
            observed_generation: &mut status.observed_generation,
        }
    }

    fn summarize(status: &mut AgentStatus) {
        status::summarize(status);
    }

    async fn reconcile(&self, agent: &Agent, context: &Context) -> Result<Outcome<AgentStatus>> {
        let observed = observe::observe(self, agent, context).await?;
        let warnings = validate::warnings(agent, &self.settings, &observed);
        let mut outcome = match validate::validate(agent, &self.settings, &observed) {
            Err(blocked) => status::blocked(agent, observed.running.as_ref(), blocked),
            Ok(valid) => {
                let wish = build::build(&valid, &self.autoscaler);
                let applied = context.apply(agent, wish).await?;
                let seen = observe::look_again(agent, &valid.child, &applied, context)?;
                status::from_applied(&valid, &seen)
            }
        };
        outcome.warnings = warnings;
        Ok(outcome)
    }
}
