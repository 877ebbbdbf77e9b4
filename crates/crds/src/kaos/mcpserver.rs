//! MCPServer: a server of tools that agents call over the Model Context Protocol.

use super::Phase;
use crate::common::{
    Autoscaling, ContainerOverride, DeploymentStatus, Fragment, GatewayRoute, Problem, Telemetry, given,
    lenient_conditions, text,
};
use crate::schema::{self, Rule};
use crate::validate::{autoscaling_problems, spec_problems};
use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements, SecretKeySelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `runtime` word for an image that the registry does not know: `container.image` says which.
pub const CUSTOM_RUNTIME: &str = "custom";

/// What the server runs and how. Name exactly one source of tools: `runtime` (preferred), `config.mcp`,
/// `config.toolsString`, or one of `config.tools`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kaos.tools",
    version = "v1alpha1",
    kind = "MCPServer",
    plural = "mcpservers",
    singular = "mcpserver",
    shortname = "mcp",
    shortname = "mcps",
    category = "gantry",
    category = "kaos",
    namespaced,
    status = "MCPServerStatus",
    derive = "PartialEq",
    doc = "A server of tools that agents call over the Model Context Protocol.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Runtime",
        type_ = "string",
        json_path = ".status.runtime",
        description = "What the pods run."
    ),
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
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[
    ONE_SOURCE, PARAMS_NEED_RUNTIME, CUSTOM_NEEDS_IMAGE, NODE_NEEDS_PACKAGE
])))]
pub struct MCPServerSpec {
    /// Preferred shape. A key of the runtime registry (`python-string`, `kubernetes`, `slack`, …), or `custom` for
    /// the image in `container.image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub runtime: Option<String>,

    /// What the runtime is told, in the variable that its registry entry names; for `python-string` the Python code
    /// of the tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TEXT))]
    pub params: Option<String>,

    /// Older shape: the language of `config.mcp` and `config.tools.fromPackage`, Python when absent. Not needed with
    /// `runtime`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<McpServerType>,

    /// Where the tools come from when no `runtime` is named, and settings of the process that serves them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<McpServerConfig>,

    /// ServiceAccount of the pods, for tools that talk to the Kubernetes API. The namespace's default one, without a
    /// mounted token, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::OPTIONAL_NAME_PATTERN))]
    pub service_account_name: Option<String>,

    /// How many pods serve. Left to the autoscaler while `autoscaling` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 1))]
    pub replicas: Option<i32>,

    /// A HorizontalPodAutoscaler for the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// Requests and limits of the server container. `container.resources` wins where both name a quantity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,

    /// OpenTelemetry settings. As the operator is configured when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,

    /// How the server is reached through the Gateway API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_route: Option<GatewayRoute>,

    /// Changes to the server container (`mcp-server`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerOverride>>,

    /// A PodSpec fragment, merged strategically over the generated pod; the container is called `mcp-server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_spec: Option<Fragment>,
}

/// Language of a tool package (older shape).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum McpServerType {
    /// A package from PyPI.
    #[serde(rename = "python-runtime")]
    Python,
    /// A package from npm.
    #[serde(rename = "node-runtime")]
    Node,
}

/// Where tools come from, and settings of the process that serves them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[PACKAGE_ONLY])))]
pub struct McpServerConfig {
    /// A package that holds an MCP server, as pip (or, for `node-runtime`, npm) takes it: `mcp-server-time`,
    /// `mcp-server-time==2025.1`. It is installed by the pod when it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = schema::PACKAGE_PATTERN))]
    pub mcp: Option<String>,

    /// Python code whose functions become the tools. `runtime: python-string` with `params` does the same and is
    /// preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TEXT))]
    pub tools_string: Option<String>,

    /// The sources above under their later names, and code from a Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<McpTools>,

    /// What the package speaks: `http` (streamable HTTP on port 8000), or `stdio`, which is bridged to HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "http"))]
    pub transport: Option<McpTransport>,

    /// Package index to install from instead of the public one, for example a mirror inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), regex(pattern = schema::URL_PATTERN))]
    pub index_url: Option<String>,

    /// Arguments of the package's command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128), inner(length(max = 4096)))]
    pub args: Option<Vec<String>>,

    /// Environment variables of the server. `container.env` wins where both name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub env: Option<Vec<EnvVar>>,
}

/// Where tools come from, under the later names of the older shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct McpTools {
    /// Same as `config.mcp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = schema::PACKAGE_PATTERN))]
    pub from_package: Option<String>,

    /// Same as `config.toolsString`. Wins over `fromPackage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TEXT))]
    pub from_string: Option<String>,

    /// A key of a Secret that holds the Python code of the tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub from_secret_key_ref: Option<SecretKeySelector>,
}

/// What an MCP package speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum McpTransport {
    /// Streamable HTTP.
    #[default]
    Http,
    /// Standard input and output, bridged to HTTP.
    Stdio,
}

/// How the server is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MCPServerStatus {
    /// One word: Pending, Waiting, Ready or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Whether tools can be called now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,

    /// Address inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,

    /// What a person should know; the message of the Ready condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// What the pods run, whichever shape asked for it: the registry key, `custom`, `package` or `tools`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,

    /// Names of the tools, as the running server lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub available_tools: Option<Vec<String>>,

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

/// Where the tools of a server come from, whichever shape says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ToolSource<'a> {
    /// An entry of the runtime registry, or [`CUSTOM_RUNTIME`].
    Runtime {
        /// Registry key.
        name: &'a str,
        /// What the runtime is told.
        params: Option<&'a str>,
    },
    /// A package that the pod installs.
    Package {
        /// Requirement as pip or npm takes it.
        package: &'a str,
        /// Which of the two.
        language: McpServerType,
    },
    /// Python code in the spec.
    ToolsString(&'a str),
    /// Python code in a Secret.
    ToolsSecret(&'a SecretKeySelector),
}

const ONE_SOURCE: Rule = Rule {
    rule: "(has(self.runtime) && self.runtime != '' ? 1 : 0) + (!has(self.config) ? 0 : \
           (has(self.config.mcp) && self.config.mcp != '' ? 1 : 0) + \
           (has(self.config.toolsString) && self.config.toolsString != '' ? 1 : 0) + \
           (!has(self.config.tools) ? 0 : \
           (has(self.config.tools.fromString) && self.config.tools.fromString != '' ? 1 : \
           (has(self.config.tools.fromPackage) && self.config.tools.fromPackage != '' ? 1 : 0)) + \
           (has(self.config.tools.fromSecretKeyRef) ? 1 : 0))) == 1",
    message: "name exactly one source of tools: runtime, config.mcp, config.toolsString, config.tools.fromPackage, \
              config.tools.fromString or config.tools.fromSecretKeyRef",
};

const PARAMS_NEED_RUNTIME: Rule = Rule {
    rule: "!has(self.params) || self.params == '' || (has(self.runtime) && self.runtime != '')",
    message: "params are read by a runtime: set runtime as well, or remove params",
};

const CUSTOM_NEEDS_IMAGE: Rule = Rule {
    rule: "!has(self.runtime) || self.runtime != 'custom' || has(self.podSpec) || \
           (has(self.container) && has(self.container.image) && self.container.image != '')",
    message: "runtime custom needs an image: set container.image",
};

const NODE_NEEDS_PACKAGE: Rule = Rule {
    rule: "!has(self.type) || self.type != 'node-runtime' || !has(self.config) || \
           ((!has(self.config.toolsString) || self.config.toolsString == '') && (!has(self.config.tools) || \
           ((!has(self.config.tools.fromString) || self.config.tools.fromString == '') && \
           !has(self.config.tools.fromSecretKeyRef))))",
    message: "tools given as code are Python: set type to python-runtime, or name a package in config.mcp",
};

const PACKAGE_ONLY: Rule = Rule {
    rule: "((!has(self.transport) || self.transport != 'stdio') && !has(self.indexUrl) && \
           (!has(self.args) || size(self.args) == 0)) || (has(self.mcp) && self.mcp != '') || \
           (has(self.tools) && has(self.tools.fromPackage) && self.tools.fromPackage != '')",
    message: "transport stdio, indexUrl and args are for packages: set mcp or tools.fromPackage, or remove them \
              (for a runtime use container.args)",
};

impl McpServerConfig {
    /// The package, under either of its names.
    pub fn package(&self) -> Option<&str> {
        text(self.mcp.as_ref()).or_else(|| {
            self.tools
                .as_ref()
                .and_then(|tools| text(tools.from_package.as_ref()))
        })
    }

    /// What the package speaks, `http` when absent.
    pub fn transport(&self) -> McpTransport {
        self.transport.unwrap_or_default()
    }
}

impl MCPServerSpec {
    /// Pods to run when no autoscaler does it, 1 when absent.
    pub fn replicas(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// The autoscaler's settings, when one is wanted.
    pub fn autoscaling(&self) -> Option<&Autoscaling> {
        self.autoscaling.as_ref().filter(|a| a.enabled())
    }

    /// Language of a package, Python when absent.
    pub fn language(&self) -> McpServerType {
        self.type_.unwrap_or(McpServerType::Python)
    }

    /// What the package speaks, `http` when absent.
    pub fn transport(&self) -> McpTransport {
        self.config
            .as_ref()
            .map(McpServerConfig::transport)
            .unwrap_or_default()
    }

    /// Every source of tools that the spec names; a valid spec names one.
    pub fn sources(&self) -> Vec<ToolSource<'_>> {
        let mut sources = Vec::new();
        if let Some(name) = text(self.runtime.as_ref()) {
            sources.push(ToolSource::Runtime {
                name,
                params: text(self.params.as_ref()),
            });
        }
        let language = self.language();
        let Some(config) = &self.config else {
            return sources;
        };
        if let Some(package) = text(config.mcp.as_ref()) {
            sources.push(ToolSource::Package { package, language });
        }
        if let Some(code) = text(config.tools_string.as_ref()) {
            sources.push(ToolSource::ToolsString(code));
        }
        let Some(tools) = &config.tools else {
            return sources;
        };
        // The original reads no package where it finds code.
        if let Some(code) = text(tools.from_string.as_ref()) {
            sources.push(ToolSource::ToolsString(code));
        } else if let Some(package) = text(tools.from_package.as_ref()) {
            sources.push(ToolSource::Package { package, language });
        }
        sources.extend(tools.from_secret_key_ref.as_ref().map(ToolSource::ToolsSecret));
        sources
    }

    /// The source of tools, if the spec names exactly one.
    pub fn source(&self) -> Option<ToolSource<'_>> {
        match self.sources()[..] {
            [source] => Some(source),
            _ => None,
        }
    }

    /// Everything that is wrong with the spec: what the schema and the CEL rules of the CRD would say, for servers
    /// that ignore them.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = spec_problems(crate::Kind::MCPServer, self);
        let sources = self.sources();
        if sources.len() != 1 {
            problems.push(Problem::new("spec", ONE_SOURCE.message));
        }
        if given(self.params.as_ref()) && !given(self.runtime.as_ref()) {
            problems.push(Problem::new("spec", PARAMS_NEED_RUNTIME.message));
        }
        let has_image = self.container.as_ref().is_some_and(|c| given(c.image.as_ref()));
        if self.runtime.as_deref() == Some(CUSTOM_RUNTIME) && !has_image && self.pod_spec.is_none() {
            problems.push(Problem::new("spec", CUSTOM_NEEDS_IMAGE.message));
        }
        let code = |s: &ToolSource| matches!(s, ToolSource::ToolsString(_) | ToolSource::ToolsSecret(_));
        if self.language() == McpServerType::Node && sources.iter().any(code) {
            problems.push(Problem::new("spec", NODE_NEEDS_PACKAGE.message));
        }
        if let Some(config) = &self.config {
            let for_package = config.transport() == McpTransport::Stdio
                || config.index_url.is_some()
                || config.args.as_ref().is_some_and(|args| !args.is_empty());
            if for_package && config.package().is_none() {
                problems.push(Problem::new("spec.config", PACKAGE_ONLY.message));
            }
        }
        problems.extend(autoscaling_problems(
            "spec.autoscaling",
            self.autoscaling.as_ref(),
        ));
        problems
    }
}
