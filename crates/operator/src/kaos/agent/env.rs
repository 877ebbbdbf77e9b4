//! The environment of an agent: the seed's variables, the original's, and ours for limits.

use gantry_crds::{
    common::text,
    conditions::reasons,
    kaos::{
        Agent, AgentConfig, AgentLimits, AgentMemory, AgentSpec, FailureMode, MODEL_NAME_VARIABLE,
        MemoryTools, MemoryType, ReadScope, TaskConfig,
    },
};
use k8s_openapi::api::core::v1::EnvVar;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    dependencies::{Dependencies, Role},
    validate::{CONTAINER, PORT},
};
use crate::{
    Settings,
    workload::{pod, telemetry, verdicts::Blocked},
};

/// Where a memory store is, by its name. No kind of ours serves one, but something else may.
pub const MEMORY_STORE_VARIABLE: &str = "MEMORY_STORE_ENDPOINT";
/// Variables with a default of ours that nobody means to protect.
const FREE: &[&str] = &["LOG_LEVEL", "AGENT_LOG_LEVEL", "PYTHONUNBUFFERED"];

/// Everything but the user's own variables.
pub fn build(
    agent: &Agent,
    settings: &Settings,
    dependencies: &Dependencies,
    model: Option<&str>,
) -> Vec<Value> {
    let name = agent.name_any();
    let namespace = agent.namespace().unwrap_or_default();
    let config = agent.spec.config.clone().unwrap_or_default();
    let limits = agent.spec.limits.clone().unwrap_or_default();
    let mut env = Vec::new();
    let mut set = |name: &str, value: &str| env.push(json!({"name": name, "value": value}));
    set("AGENT_NAME", &name);
    set("AGENT_IDENTITY", &format!("kaos://agent/{namespace}/{name}"));
    set("AGENT_PORT", &PORT.to_string());
    set("LOG_LEVEL", &settings.log_level);
    set("AGENT_LOG_LEVEL", &settings.log_level);
    set("PYTHONUNBUFFERED", "1");
    let texts = [
        ("AGENT_DESCRIPTION", &config.description),
        ("AGENT_INSTRUCTIONS", &config.instructions),
        ("AGENT_SYSTEM_PROMPT", &config.system_prompt),
    ];
    for (variable, given) in texts {
        if let Some(given) = text(given.as_ref()) {
            set(variable, &pod::literal(given));
        }
    }
    for served in dependencies.of(Role::Model) {
        set("MODEL_API_URL", &served.address);
    }
    if let Some(model) = model {
        set(MODEL_NAME_VARIABLE, model);
    }
    set("TOOL_CALL_MODE", config.tool_call_mode().as_str());
    let steps = smaller(config.max_steps(), limits.max_steps);
    set("AGENTIC_LOOP_MAX_STEPS", &steps.to_string());
    set("AGENTIC_LOOP_ENABLE_TOOLS", flag(config.enable_tools()));
    set("AGENTIC_LOOP_ENABLE_DELEGATION", flag(config.enable_delegation()));
    set(
        "AGENT_DEBUG_MEMORY_ENDPOINTS",
        flag(config.debug_memory_endpoints()),
    );
    memory(&config, &namespace, &mut set);
    work(&config, &limits, &mut set);
    others(dependencies, &mut set);
    env.extend(telemetry::env(
        config.telemetry.as_ref(),
        settings,
        &namespace,
        &name,
    ));
    env
}

fn memory(config: &AgentConfig, namespace: &str, set: &mut impl FnMut(&str, &str)) {
    let memory = config.memory.clone().unwrap_or_default();
    set("MEMORY_ENABLED", flag(memory.enabled()));
    set(
        "MEMORY_TYPE",
        match memory.memory_type() {
            MemoryType::Local => "local",
            MemoryType::Remote => "remote",
        },
    );
    set("MEMORY_CONTEXT_LIMIT", &memory.context_limit().to_string());
    set("MEMORY_MAX_SESSIONS", &memory.max_sessions().to_string());
    set(
        "MEMORY_MAX_SESSION_EVENTS",
        &memory.max_session_events().to_string(),
    );
    if let Some(store) = text(memory.memory_store.as_ref()) {
        set(MEMORY_STORE_VARIABLE, &store_address(store, namespace));
        // Nothing here proves who asks, so the store must not insist on it.
        set("MEMORY_REQUIRE_PRINCIPAL", "false");
        set("MEMORY_REQUIRE_AGENT_IDENTITY", "false");
    }
    for (variable, word) in memory_words(&memory) {
        set(variable, word);
    }
    let client = memory.client_params.unwrap_or_default();
    if let Some(budget) = client.token_budget {
        set("MEMORY_SHORT_TERM_TOKEN_BUDGET", &budget.to_string());
    }
    if let Some(summary) = client.rolling_summary {
        set("MEMORY_ROLLING_SUMMARY", flag(summary));
    }
}

fn memory_words(memory: &AgentMemory) -> Vec<(&'static str, &'static str)> {
    let mut words = Vec::new();
    words.extend(memory.max_read_scope().map(|scope| {
        let word = match scope {
            ReadScope::Session => "session",
            ReadScope::Agent => "agent",
            ReadScope::User => "user",
        };
        ("MEMORY_MAX_READ_SCOPE", word)
    }));
    words.extend(memory.tools.map(|tools| {
        let word = match tools {
            MemoryTools::All => "all",
            MemoryTools::Read => "read",
            MemoryTools::Write => "write",
        };
        ("MEMORY_TOOLS", word)
    }));
    words.extend(memory.failure_mode.map(|mode| {
        let word = match mode {
            FailureMode::Soft => "soft",
            FailureMode::Strict => "strict",
        };
        ("MEMORY_FAILURE_MODE", word)
    }));
    words
}

/// As the original names the Service of a MemoryStore.
pub fn store_address(store: &str, namespace: &str) -> String {
    format!("http://memorystore-{store}.{namespace}.svc.cluster.local:8080")
}

/// What the agent does by itself, and the limits of what it does for others.
fn work(config: &AgentConfig, limits: &AgentLimits, set: &mut impl FnMut(&str, &str)) {
    let task: TaskConfig = config.task_config.clone().unwrap_or_default();
    let bounded = [
        ("TASK_MAX_ITERATIONS", task.max_iterations(), limits.max_steps),
        (
            "TASK_MAX_RUNTIME_SECONDS",
            task.max_runtime_seconds(),
            limits.max_runtime_seconds,
        ),
        (
            "TASK_MAX_TOOL_CALLS",
            task.max_tool_calls(),
            limits.max_tool_calls,
        ),
    ];
    for (variable, own, limit) in bounded {
        set(variable, &smaller(own, limit).to_string());
    }
    let tokens = [
        ("TASK_MAX_TOKENS", limits.max_tokens_per_task),
        ("AGENT_MAX_TOKENS_PER_DAY", limits.max_tokens_per_day),
    ];
    for (variable, limit) in tokens {
        if let Some(limit) = limit.filter(|limit| *limit > 0) {
            set(variable, &limit.to_string());
        }
    }
    let autonomous = config.autonomous.clone().unwrap_or_default();
    if let Some(goal) = autonomous.goal() {
        set("AUTONOMOUS_GOAL", goal);
        set(
            "AUTONOMOUS_INTERVAL_SECONDS",
            &autonomous.interval_seconds().to_string(),
        );
        let round = smaller(autonomous.max_iter_runtime_seconds(), limits.max_runtime_seconds);
        set("AUTONOMOUS_MAX_ITER_RUNTIME_SECONDS", &round.to_string());
    }
}

/// Tools and peers, by the names that the runtime has for them.
fn others(dependencies: &Dependencies, set: &mut impl FnMut(&str, &str)) {
    let aliases = |role: Role| -> Vec<String> {
        let all = dependencies.of(role);
        all.map(|one| one.needed.alias()).collect()
    };
    let (tools, peers) = (aliases(Role::Tools), aliases(Role::Peer));
    if !tools.is_empty() {
        set("MCP_SERVERS", &tools.join(","));
    }
    if !peers.is_empty() {
        set("PEER_AGENTS", &peers.join(","));
    }
    for one in &dependencies.all {
        for variable in variables(one.needed.role, &one.needed.alias()) {
            set(&variable, &one.address);
        }
    }
}

/// The variables that carry an address: as the original spells it, and as a shell can read it.
fn variables(role: Role, alias: &str) -> Vec<String> {
    let safe: String = alias
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    let mut names = match role {
        Role::Model => Vec::new(),
        Role::Tools => vec![
            format!("MCP_SERVER_{alias}_URL"),
            format!("MCP_SERVER_{safe}_URL"),
        ],
        Role::Peer => vec![
            format!("PEER_AGENT_{}_CARD_URL", alias.to_uppercase().replace('-', "_")),
            format!("PEER_AGENT_{safe}_CARD_URL"),
        ],
    };
    names.dedup();
    names
}

/// Two objects whose addresses would go into one variable cannot both be used.
pub fn check_names(dependencies: &Dependencies) -> Result<(), Blocked> {
    let mut taken: std::collections::BTreeMap<String, &str> = std::collections::BTreeMap::new();
    for one in &dependencies.all {
        for variable in variables(one.needed.role, &one.needed.alias()) {
            let written = one.needed.written.as_str();
            if let Some(other) = taken.insert(variable.clone(), written) {
                let kind = one.needed.role.kind();
                let message =
                    format!("{kind} {other} and {written} would share variable {variable}: rename one");
                return Err(Blocked::stuck(reasons::INVALID_SPEC, message));
            }
        }
    }
    Ok(())
}

/// 0 and nothing are no limit.
fn smaller(own: i32, limit: Option<i32>) -> i32 {
    match limit.filter(|limit| *limit > 0) {
        Some(limit) if own == 0 => limit,
        Some(limit) => own.min(limit),
        None => own,
    }
}

fn flag(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// The user's variables, those that win last. What `envFrom` brings is not known here, and loses to all of them.
pub fn given(spec: &AgentSpec) -> Vec<EnvVar> {
    let config = spec.config.iter().flat_map(|config| config.env.iter());
    let container = spec.container.iter().flat_map(|container| container.env.iter());
    let fragment = spec.pod_spec.iter().filter_map(|pod| pod.0.get("containers"));
    let fragment = fragment.filter_map(Value::as_array).flatten();
    let fragment = fragment
        .filter(|container| container["name"] == CONTAINER)
        .filter_map(|container| container["env"].as_array())
        .flatten()
        .filter_map(|variable| serde_json::from_value(variable.clone()).ok());
    let simple = config.chain(container).flatten().cloned();
    simple.chain(fragment).collect()
}

/// Warns of variables that are ours and that the user sets as well. The user wins.
pub fn clashes(agent: &Agent, ours: &[Value]) -> Vec<(&'static str, String)> {
    // A model that only the environment names is the older shape, not a clash.
    let is_model = |name: &str| name == MODEL_NAME_VARIABLE && text(agent.spec.model.as_ref()).is_none();
    let given = given(&agent.spec);
    let mut names: Vec<&str> = given
        .iter()
        .map(|variable| variable.name.as_str())
        .filter(|name| ours.iter().any(|our| our["name"] == **name))
        .filter(|name| !FREE.contains(name) && !is_model(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Vec::new();
    }
    let note = format!(
        "{} set by config.env, container.env or podSpec in place of what the spec gives: remove them there if that is not meant",
        names.join(", ")
    );
    vec![(reasons::ENVIRONMENT_CLASH, note)]
}
