//! Agent: a process that answers by asking a model, calling tools and delegating to other agents.

use super::{AgentConfig, Phase};
use crate::common::{
    Autoscaling, ContainerOverride, DeploymentStatus, Fragment, GatewayRoute, Problem, lenient_conditions,
    text,
};
use crate::schema;
use crate::validate::{autoscaling_problems, spec_problems};
use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, ResourceRequirements, SecretKeySelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The variable that names the model in the older shape.
pub const MODEL_NAME_VARIABLE: &str = "MODEL_NAME";

/// What the agent is told, which model it asks, which tools it has and whom it may talk to.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kaos.tools",
    version = "v1alpha1",
    kind = "Agent",
    plural = "agents",
    singular = "agent",
    shortname = "agent",
    shortname = "agents",
    category = "gantry",
    category = "kaos",
    namespaced,
    status = "AgentStatus",
    derive = "PartialEq",
    doc = "A process that answers by asking a model, calling tools and delegating to other agents.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "ModelAPI", type_ = "string", json_path = ".spec.modelAPI"),
    printcolumn(name = "Model", type_ = "string", json_path = ".status.model"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".status.endpoint",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["modelAPI"]))]
pub struct AgentSpec {
    /// The ModelAPI that the agent asks: its name, or `namespace/name` where that namespace allows it.
    #[serde(rename = "modelAPI", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_REFERENCE), regex(pattern = schema::REFERENCE_PATTERN))]
    pub model_api: Option<String>,

    /// The model to ask for, one that the ModelAPI serves. Preferred over the older way, a variable `MODEL_NAME` in
    /// `config.env`. May be left out where the ModelAPI serves a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub model: Option<String>,

    /// MCPServers whose tools the agent may call: names, or `namespace/name` where that namespace allows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 128),
        inner(length(max = schema::MAX_REFERENCE), regex(pattern = schema::REFERENCE_PATTERN))
    )]
    pub mcp_servers: Option<Vec<String>>,

    /// Who may talk to whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_network: Option<AgentNetwork>,

    /// What the agent is told and how it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<AgentConfig>,

    /// Limits that stop an agent which runs away. The smaller value counts where `config.taskConfig` or
    /// `config.reasoningLoopMaxSteps` set one too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,

    /// A coding harness to run instead of the ordinary runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub harness: Option<Harness>,

    /// Whether the pods are held back until the ModelAPI, the MCPServers and the peers are ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub wait_for_dependencies: Option<bool>,

    /// How many pods serve. Left to the autoscaler while `autoscaling` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 1))]
    pub replicas: Option<i32>,

    /// A HorizontalPodAutoscaler for the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// Requests and limits of the agent container. `container.resources` is preferred and wins where both name a
    /// quantity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,

    /// ServiceAccount of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::OPTIONAL_NAME_PATTERN))]
    pub service_account_name: Option<String>,

    /// Secrets for pulling the images from a private registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::local_references")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,

    /// A NetworkPolicy that lets the agent reach its model, its tools, its peers and the cluster DNS, and nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<AgentNetworkPolicy>,

    /// How the agent is reached through the Gateway API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_route: Option<GatewayRoute>,

    /// Changes to the agent container (`agent`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerOverride>>,

    /// A PodSpec fragment, merged strategically over the generated pod; the container is called `agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_spec: Option<Fragment>,
}

/// Who may talk to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentNetwork {
    /// Whether a Service exposes the agent to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub expose: Option<bool>,

    /// Agents that this one may delegate to: names, or `namespace/name` where that namespace allows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 128),
        inner(length(max = schema::MAX_REFERENCE), regex(pattern = schema::REFERENCE_PATTERN))
    )]
    pub access: Option<Vec<String>>,
}

/// Limits of what an agent may use up; 0 or absent is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentLimits {
    /// Reasoning steps per task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_steps: Option<i32>,

    /// Wall-clock seconds per task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_runtime_seconds: Option<i32>,

    /// Tool calls per task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_tool_calls: Option<i32>,

    /// Model tokens per task, in and out together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000_000_i64))]
    pub max_tokens_per_task: Option<i64>,

    /// Model tokens per day (UTC), in and out together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000_000_i64))]
    pub max_tokens_per_day: Option<i64>,
}

/// A coding harness.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Harness {
    /// A key of the harness registry (`pi`, `claude`, …).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub runtime: Option<String>,

    /// The repository that the harness works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<HarnessWorkspace>,
}

/// A repository that a harness works in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HarnessWorkspace {
    /// Address to clone from.
    #[serde(rename = "repoURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub repo_url: Option<String>,

    /// Branch to check out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), extend("default" = "main"))]
    pub branch: Option<String>,

    /// A key of a Secret with the token for the repository. Passed on as `GIT_TOKEN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key_or_name")]
    pub credentials_secret_ref: Option<SecretKeySelector>,
}

impl HarnessWorkspace {
    /// Branch to check out, `main` when absent.
    pub fn branch(&self) -> &str {
        text(self.branch.as_ref()).unwrap_or("main")
    }
}

/// A NetworkPolicy for the agent's pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentNetworkPolicy {
    /// Whether the policy is made. On when the block is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Further egress rules, as in a NetworkPolicy, for example to a database.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved_list")]
    pub egress: Option<Vec<Fragment>>,

    /// Further ingress rules, as in a NetworkPolicy, for example from a gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved_list")]
    pub ingress: Option<Vec<Fragment>>,
}

impl AgentNetworkPolicy {
    /// Whether the policy is wanted.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

/// How the agent is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// One word: Pending, Waiting, Ready or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Whether the agent answers now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,

    /// Address inside the cluster, absent while the agent is not exposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,

    /// What a person should know; the message of the Ready condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// The model that the agent asks for, whichever shape named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,

    /// What the agent uses: name by role, with its address as value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked_resources: Option<BTreeMap<String, String>>,

    /// Older name of `replicas`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_replicas: Option<i32>,

    /// Pods in all, for `kubectl scale` and autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Label selector of the pods, for autoscalers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// What the Deployment reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentStatus>,

    /// Conditions, one per type.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient_conditions"
    )]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,

    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl AgentSpec {
    /// Pods to run when no autoscaler does it, 1 when absent.
    pub fn replicas(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// The autoscaler's settings, when one is wanted.
    pub fn autoscaling(&self) -> Option<&Autoscaling> {
        self.autoscaling.as_ref().filter(|a| a.enabled())
    }

    /// Whether pods wait for what the agent needs, true when absent.
    pub fn wait_for_dependencies(&self) -> bool {
        self.wait_for_dependencies.unwrap_or(true)
    }

    /// Whether a Service exposes the agent, true when absent.
    pub fn expose(&self) -> bool {
        self.agent_network.as_ref().and_then(|n| n.expose).unwrap_or(true)
    }

    /// Agents that this one may delegate to.
    pub fn peers(&self) -> &[String] {
        self.agent_network
            .as_ref()
            .and_then(|n| n.access.as_deref())
            .unwrap_or_default()
    }

    /// MCPServers whose tools the agent may call.
    pub fn mcp_servers(&self) -> &[String] {
        self.mcp_servers.as_deref().unwrap_or_default()
    }

    /// The model as the spec names it: `model`, or a literal `MODEL_NAME` among the variables.
    pub fn model_name(&self) -> Option<&str> {
        let variable = |env: &'_ EnvVar| env.name == MODEL_NAME_VARIABLE;
        text(self.model.as_ref()).or_else(|| {
            let env = self.config.as_ref()?.env.as_ref()?;
            text(env.iter().find(|e| variable(e))?.value.as_ref())
        })
    }

    /// Everything that is wrong with the spec: what the schema and the CEL rules of the CRD would say, for servers
    /// that ignore them.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = spec_problems(crate::Kind::Agent, self);
        problems.extend(
            self.config
                .iter()
                .flat_map(|config| config.problems("spec.config")),
        );
        problems.extend(autoscaling_problems(
            "spec.autoscaling",
            self.autoscaling.as_ref(),
        ));
        problems
    }
}
