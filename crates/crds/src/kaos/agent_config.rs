//! What an agent is told and how it works: the `config` block of an Agent.

use crate::common::{Problem, Telemetry, given, text};
use crate::schema::{self, Rule};
use k8s_openapi::api::core::v1::EnvVar;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the agent is told and how it works.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[ONE_STEP_LIMIT])))]
pub struct AgentConfig {
    /// What the agent is for, in a sentence that its peers read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TEXT))]
    pub description: Option<String>,

    /// What the agent is told before every run; not kept in the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TEXT))]
    pub instructions: Option<String>,

    /// A system prompt that is kept in the conversation, beside the instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TEXT))]
    pub system_prompt: Option<String>,

    /// Most reasoning steps per question, 5 when absent. Preferred over `agenticLoop.maxSteps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub reasoning_loop_max_steps: Option<i32>,

    /// Older shape of the loop's settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agentic_loop: Option<AgenticLoop>,

    /// How the model is made to call tools: `auto` finds out what it can do, `native` uses function calls, `string`
    /// uses JSON in text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "auto"))]
    pub tool_call_mode: Option<ToolCallMode>,

    /// What the agent remembers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<AgentMemory>,

    /// OpenTelemetry settings. As the operator is configured when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,

    /// Work that the agent does by itself, without being asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autonomous: Option<Autonomous>,

    /// Limits of tasks that others hand to the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_config: Option<TaskConfig>,

    /// Whether the runtime serves `/memory/…` for looking into it. On when absent, as in the original.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_memory_endpoints: Option<bool>,

    /// Environment variables of the agent. `container.env` is preferred and wins where both name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub env: Option<Vec<EnvVar>>,
}

/// The loop of reasoning, tool calls and delegation (older shape).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgenticLoop {
    /// Most reasoning steps per question; `config.reasoningLoopMaxSteps` is preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub max_steps: Option<i32>,

    /// Whether the agent may call tools. True when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_tools: Option<bool>,

    /// Whether the agent may delegate to its peers. True when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_delegation: Option<bool>,
}

/// How a model is made to call tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum ToolCallMode {
    /// As the model can.
    #[default]
    Auto,
    /// By function calls.
    Native,
    /// By JSON in text.
    String,
}

impl ToolCallMode {
    /// The word as the runtime takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::String => "string",
        }
    }
}

/// What an agent remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend(
    "x-kubernetes-validations" = schema::rules(&[REMOTE_NEEDS_STORE, LOCAL_HAS_NO_STORE, TOOLS_NEED_STORE])
))]
pub struct AgentMemory {
    /// Whether the agent remembers at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub enabled: Option<bool>,

    /// `local` keeps it in the pod, `remote` in a memory store. Follows from `memoryStore` when absent.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<MemoryType>,

    /// How many earlier messages a question sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100), extend("default" = 6))]
    pub context_limit: Option<i32>,

    /// Most sessions that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000), extend("default" = 1000))]
    pub max_sessions: Option<i32>,

    /// Most events that are kept per session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000), extend("default" = 500))]
    pub max_session_events: Option<i32>,

    /// A MemoryStore for long-term memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = schema::OPTIONAL_NAME_PATTERN))]
    pub memory_store: Option<String>,

    /// The widest scope that the agent may read: its session, everything of this agent, or everything of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_read_scope: Option<ReadScope>,

    /// Oldest name of the scope setting; `maxReadScope` is preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<LegacyScope>,

    /// Older name of the scope setting; `maxReadScope` is preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_read_scope: Option<ReadScope>,

    /// Older way to list scopes; `maxReadScope` is preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub read_scopes: Option<Vec<ReadScope>>,

    /// Memory tools that the agent gets: save and search (`all`), search (`read`) or save (`write`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<MemoryTools>,

    /// Whether a store that fails is passed over (`soft`) or fails the request (`strict`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_mode: Option<FailureMode>,

    /// Settings of the memory client in the runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_params: Option<MemoryClientParams>,
}

/// Where memory is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum MemoryType {
    /// In the pod.
    Local,
    /// In a memory store.
    Remote,
}

/// Whose memory may be read, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum ReadScope {
    /// That of the session.
    Session,
    /// That of the agent.
    Agent,
    /// That of the user.
    User,
}

/// Whose memory may be read, in the oldest words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum LegacyScope {
    Private,
    User,
    Shared,
    Session,
}

/// Memory tools that an agent gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum MemoryTools {
    All,
    Read,
    Write,
}

/// What happens when the memory store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum FailureMode {
    Soft,
    Strict,
}

/// Settings of the memory client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryClientParams {
    /// Most tokens of earlier messages that are replayed word for word.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000_000))]
    pub token_budget: Option<i32>,

    /// Whether a running summary stands in for what no longer fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_summary: Option<bool>,
}

/// Work that an agent does by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Autonomous {
    /// What to work towards. Naming a goal switches autonomous work on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = schema::MAX_TEXT))]
    pub goal: Option<String>,

    /// Pause between two rounds in seconds, 0 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub interval_seconds: Option<i32>,

    /// Most seconds per round, 60 when absent; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub max_iter_runtime_seconds: Option<i32>,
}

/// Limits of a task that others hand to the agent; 0 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskConfig {
    /// Most rounds, 10 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_iterations: Option<i32>,

    /// Most seconds, 300 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub max_runtime_seconds: Option<i32>,

    /// Most tool calls, 50 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_tool_calls: Option<i32>,
}

const ONE_STEP_LIMIT: Rule = Rule {
    rule: "!has(self.reasoningLoopMaxSteps) || !has(self.agenticLoop) || !has(self.agenticLoop.maxSteps) || \
           self.reasoningLoopMaxSteps == self.agenticLoop.maxSteps",
    message: "reasoningLoopMaxSteps and agenticLoop.maxSteps disagree: keep reasoningLoopMaxSteps, remove \
              agenticLoop.maxSteps",
};

const REMOTE_NEEDS_STORE: Rule = Rule {
    rule: "!has(self.type) || self.type != 'remote' || (has(self.memoryStore) && self.memoryStore != '')",
    message: "memory of type remote needs a store: set memoryStore",
};

const LOCAL_HAS_NO_STORE: Rule = Rule {
    rule: "!has(self.type) || self.type != 'local' || !has(self.memoryStore) || self.memoryStore == ''",
    message: "memory of type local uses no store: remove memoryStore, or remove type",
};

const TOOLS_NEED_STORE: Rule = Rule {
    rule: "!has(self.tools) || (has(self.memoryStore) && self.memoryStore != '')",
    message: "memory tools work on a store: set memoryStore, or remove tools",
};

impl AgentConfig {
    /// Reasoning steps when the spec does not say.
    pub const DEFAULT_MAX_STEPS: i32 = 5;

    /// Most reasoning steps, from whichever field names them.
    pub fn max_steps(&self) -> i32 {
        self.reasoning_loop_max_steps
            .or_else(|| self.agentic_loop.as_ref()?.max_steps)
            .unwrap_or(Self::DEFAULT_MAX_STEPS)
    }

    /// Whether the agent may call tools, true when absent.
    pub fn enable_tools(&self) -> bool {
        self.agentic_loop
            .as_ref()
            .and_then(|l| l.enable_tools)
            .unwrap_or(true)
    }

    /// Whether the agent may delegate, true when absent.
    pub fn enable_delegation(&self) -> bool {
        self.agentic_loop
            .as_ref()
            .and_then(|l| l.enable_delegation)
            .unwrap_or(true)
    }

    /// How the model is made to call tools, `auto` when absent.
    pub fn tool_call_mode(&self) -> ToolCallMode {
        self.tool_call_mode.unwrap_or_default()
    }

    /// Whether the runtime serves its memory for looking into, true when absent.
    pub fn debug_memory_endpoints(&self) -> bool {
        self.debug_memory_endpoints.unwrap_or(true)
    }

    /// What is wrong across fields.
    pub(crate) fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let older = self.agentic_loop.as_ref().and_then(|l| l.max_steps);
        if let (Some(steps), Some(older)) = (self.reasoning_loop_max_steps, older)
            && steps != older
        {
            problems.push(Problem::new(field, ONE_STEP_LIMIT.message));
        }
        problems.extend(
            self.memory
                .iter()
                .flat_map(|memory| memory.problems(&format!("{field}.memory"))),
        );
        problems
    }
}

impl AgentMemory {
    /// Whether the agent remembers, true when absent.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Where memory is kept: as said, or as `memoryStore` implies.
    pub fn memory_type(&self) -> MemoryType {
        self.type_.unwrap_or(if given(self.memory_store.as_ref()) {
            MemoryType::Remote
        } else {
            MemoryType::Local
        })
    }

    /// Earlier messages that a question sees, 6 when absent.
    pub fn context_limit(&self) -> i32 {
        self.context_limit.unwrap_or(6)
    }

    /// Sessions that are kept, 1000 when absent.
    pub fn max_sessions(&self) -> i32 {
        self.max_sessions.unwrap_or(1000)
    }

    /// Events that are kept per session, 500 when absent.
    pub fn max_session_events(&self) -> i32 {
        self.max_session_events.unwrap_or(500)
    }

    /// The widest scope that may be read, under whichever name it was given.
    pub fn max_read_scope(&self) -> Option<ReadScope> {
        let oldest = self.scope.map(|scope| match scope {
            LegacyScope::Session => ReadScope::Session,
            LegacyScope::Private => ReadScope::Agent,
            LegacyScope::User | LegacyScope::Shared => ReadScope::User,
        });
        let listed = || self.read_scopes.iter().flatten().max().copied();
        self.max_read_scope
            .or_else(listed)
            .or(self.default_read_scope)
            .or(oldest)
    }

    fn problems(&self, field: &str) -> Vec<Problem> {
        let store = given(self.memory_store.as_ref());
        let rules = [
            (
                self.type_ == Some(MemoryType::Remote) && !store,
                REMOTE_NEEDS_STORE,
            ),
            (self.type_ == Some(MemoryType::Local) && store, LOCAL_HAS_NO_STORE),
            (self.tools.is_some() && !store, TOOLS_NEED_STORE),
        ];
        let broken = rules.into_iter().filter(|(broken, _)| *broken);
        broken
            .map(|(_, rule)| Problem::new(field, rule.message))
            .collect()
    }
}

impl Autonomous {
    /// What to work towards, if autonomous work is on.
    pub fn goal(&self) -> Option<&str> {
        text(self.goal.as_ref()).filter(|goal| !goal.trim().is_empty())
    }

    /// Pause between two rounds, 0 when absent.
    pub fn interval_seconds(&self) -> i32 {
        self.interval_seconds.unwrap_or(0)
    }

    /// Most seconds per round, 60 when absent.
    pub fn max_iter_runtime_seconds(&self) -> i32 {
        self.max_iter_runtime_seconds.unwrap_or(60)
    }
}

impl TaskConfig {
    /// Most rounds, 10 when absent.
    pub fn max_iterations(&self) -> i32 {
        self.max_iterations.unwrap_or(10)
    }

    /// Most seconds, 300 when absent.
    pub fn max_runtime_seconds(&self) -> i32 {
        self.max_runtime_seconds.unwrap_or(300)
    }

    /// Most tool calls, 50 when absent.
    pub fn max_tool_calls(&self) -> i32 {
        self.max_tool_calls.unwrap_or(50)
    }
}
