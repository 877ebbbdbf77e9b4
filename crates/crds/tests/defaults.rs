//! Defaults in code equal the defaults in the schema, so that a nested default which vanishes with its absent parent
//! is still the value that counts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

mod support;

use gantry_crds::common::{Autoscaling, Telemetry};
use gantry_crds::kaos::{
    AgentConfig, AgentMemory, AgentSpec, Autonomous, HarnessWorkspace, MCPServerSpec, MemoryType,
    ModelAPISpec, ReadScope, TaskConfig, ToolSource, serves,
};
use gantry_crds::nimbusguard::ScalingPolicySpec;
use gantry_crds::ollama::{ModelAutoscaling, ModelSpec, ModelStore, StoreScope};
use gantry_crds::penin::{CacheType, PeninOmegaClusterSpec, Service};
use gantry_crds::storage::{AccessMode, ClaimStorage, DeletionPolicy};
use gantry_crds::{KINDS, Kind};
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use support::{nodes, root};

/// Every default of a schema, by path below `spec`.
fn schema_defaults(kind: Kind) -> BTreeMap<String, Value> {
    let schema = root(KINDS.iter().find(|k| k.id == kind).unwrap());
    let mut found = Vec::new();
    nodes("", &schema["properties"]["spec"], false, &mut found);
    found
        .into_iter()
        .filter_map(|n| {
            Some((
                n.path.trim_start_matches('.').to_owned(),
                n.schema.get("default")?.clone(),
            ))
        })
        .collect()
}

fn table(rows: Vec<(&str, Value)>) -> BTreeMap<String, Value> {
    rows.into_iter()
        .map(|(path, value)| (path.to_owned(), value))
        .collect()
}

fn same(kind: Kind, code: Vec<(&str, Value)>) {
    // Compared as text with whole floats as integers, as manifests are.
    let text = |map: BTreeMap<String, Value>| -> BTreeMap<String, String> {
        let plain = |v: &Value| v.as_f64().map_or_else(|| v.to_string(), |f| f.to_string());
        map.iter().map(|(path, v)| (path.clone(), plain(v))).collect()
    };
    assert_eq!(text(table(code)), text(schema_defaults(kind)));
}

#[test]
fn mcp_server() {
    let spec = MCPServerSpec::default();
    same(
        Kind::MCPServer,
        vec![
            ("replicas", json!(spec.replicas())),
            ("config.transport", json!(spec.transport())),
            ("telemetry.enabled", json!(Telemetry::default().enabled())),
        ],
    );
}

#[test]
fn model_api() {
    let spec = ModelAPISpec::default();
    same(
        Kind::ModelAPI,
        vec![
            ("replicas", json!(spec.replicas())),
            ("telemetry.enabled", json!(Telemetry::default().enabled())),
        ],
    );
}

#[test]
fn agent() {
    let (spec, config, memory) = (
        AgentSpec::default(),
        AgentConfig::default(),
        AgentMemory::default(),
    );
    same(
        Kind::Agent,
        vec![
            ("replicas", json!(spec.replicas())),
            ("waitForDependencies", json!(spec.wait_for_dependencies())),
            ("agentNetwork.expose", json!(spec.expose())),
            ("config.toolCallMode", json!(config.tool_call_mode())),
            ("config.telemetry.enabled", json!(Telemetry::default().enabled())),
            ("config.memory.enabled", json!(memory.enabled())),
            ("config.memory.contextLimit", json!(memory.context_limit())),
            ("config.memory.maxSessions", json!(memory.max_sessions())),
            (
                "config.memory.maxSessionEvents",
                json!(memory.max_session_events()),
            ),
            (
                "harness.workspace.branch",
                json!(HarnessWorkspace::default().branch()),
            ),
        ],
    );
}

#[test]
fn model() {
    let spec = ModelSpec::default();
    same(
        Kind::Model,
        vec![
            ("replicas", json!(spec.replicas())),
            ("telemetry.enabled", json!(Telemetry::default().enabled())),
        ],
    );
}

#[test]
fn scaling_policy() {
    let spec = ScalingPolicySpec::default();
    let (bounds, learner, lstm) = (spec.bounds(), spec.q_learning(), spec.lstm());
    let (cpu, memory) = (
        gantry_crds::nimbusguard::CpuMetric::default(),
        gantry_crds::nimbusguard::MemoryMetric::default(),
    );
    same(
        Kind::ScalingPolicy,
        vec![
            ("scaling.minReplicas", json!(bounds.min_replicas())),
            ("scaling.maxReplicas", json!(bounds.max_replicas())),
            ("scaling.cooldownPeriod", json!(bounds.cooldown_period())),
            ("scaling.scaleUpFactor", json!(bounds.scale_up_factor())),
            ("scaling.scaleDownFactor", json!(bounds.scale_down_factor())),
            ("aiConfig.qLearning.learningRate", json!(learner.learning_rate())),
            (
                "aiConfig.qLearning.discountFactor",
                json!(learner.discount_factor()),
            ),
            ("aiConfig.qLearning.epsilonStart", json!(learner.epsilon_start())),
            ("aiConfig.qLearning.epsilonEnd", json!(learner.epsilon_end())),
            ("aiConfig.qLearning.epsilonDecay", json!(learner.epsilon_decay())),
            ("aiConfig.lstm.enabled", json!(lstm.enabled())),
            ("aiConfig.lstm.predictionWindow", json!(lstm.prediction_window())),
            ("aiConfig.lstm.sequenceLength", json!(lstm.sequence_length())),
            ("metrics.cpu.targetUtilization", json!(cpu.target_utilization())),
            ("metrics.cpu.threshold", json!(cpu.threshold())),
            (
                "metrics.memory.targetUtilization",
                json!(memory.target_utilization()),
            ),
            ("metrics.memory.threshold", json!(memory.threshold())),
        ],
    );
}

#[test]
fn penin_omega_cluster() {
    let spec = PeninOmegaClusterSpec::default();
    let (config, seen, storage) = (spec.config(), spec.observability(), spec.storage());
    let scaling = gantry_crds::penin::AutoScaling::default()
        .of(Service::OmegaMeta)
        .unwrap();
    let per_service: Vec<(String, Value)> = Service::ALL
        .into_iter()
        .flat_map(|service| {
            let (cpu, memory) = spec.resources(service);
            [
                (
                    format!("replicas.{}", service.key()),
                    json!(spec.replicas(service)),
                ),
                (format!("resources.{}.cpu", service.key()), json!(cpu)),
                (format!("resources.{}.memory", service.key()), json!(memory)),
            ]
        })
        .collect();
    let mut rows = vec![
        ("version", json!(spec.version())),
        ("config.budgetDailyUsd", json!(config.budget_daily_usd())),
        ("config.caosPlus.maxBoost", json!(config.max_boost())),
        ("config.caosPlus.kappa", json!(config.kappa())),
        ("config.sigmaGuard.eceThreshold", json!(config.ece_threshold())),
        ("config.sigmaGuard.biasThreshold", json!(config.bias_threshold())),
        ("config.evolution.seed", json!(config.seed())),
        ("observability.metrics", json!(seen.metrics())),
        ("observability.tracing", json!(seen.tracing())),
        ("observability.logging.level", json!(seen.log_level())),
        (
            "storage.wormLedger.enabled",
            json!(storage.worm_ledger().enabled()),
        ),
        (
            "storage.wormLedger.storageClass",
            json!(storage.worm_ledger().storage_class()),
        ),
        ("storage.wormLedger.size", json!(storage.worm_ledger().size())),
        ("storage.cache.enabled", json!(storage.cache().enabled())),
        ("storage.cache.type", json!(storage.cache().cache_type())),
        ("autoScaling.minReplicas", json!(scaling.min_replicas)),
        ("autoScaling.maxReplicas", json!(scaling.max_replicas)),
        ("autoScaling.targetCPU", json!(scaling.target_cpu)),
        ("autoScaling.targetMemory", json!(scaling.target_memory)),
    ];
    rows.extend(
        per_service
            .iter()
            .map(|(path, value)| (path.as_str(), value.clone())),
    );
    same(Kind::PeninOmegaCluster, rows);
    assert_eq!(spec.replicas(Service::SigmaGuard), 2);
    assert!(storage.wants_redis());
    assert_eq!(storage.cache().cache_type(), CacheType::Redis);
    assert_eq!(storage.worm_ledger().deletion_policy(), DeletionPolicy::Retain);
    assert_eq!(spec.image(), "ghcr.io/danielgonzagat/peninaocubo:0.9.0");
}

/// Defaults that the schema leaves out, because another shape could say otherwise.
#[test]
fn defaults_in_code_only() {
    assert_eq!(AgentConfig::default().max_steps(), 5);
    assert!(AgentConfig::default().enable_tools() && AgentConfig::default().enable_delegation());
    assert!(AgentConfig::default().debug_memory_endpoints());
    let task = TaskConfig::default();
    assert_eq!(
        (
            task.max_iterations(),
            task.max_runtime_seconds(),
            task.max_tool_calls()
        ),
        (10, 300, 50)
    );
    let autonomous = Autonomous::default();
    assert_eq!(
        (
            autonomous.interval_seconds(),
            autonomous.max_iter_runtime_seconds()
        ),
        (0, 60)
    );
    assert_eq!(autonomous.goal(), None);
    assert_eq!(ClaimStorage::default().size().0, "20Gi");
    assert_eq!(ModelStore::default().size().0, "100Gi");
    assert_eq!(ModelSpec::default().access_mode(), AccessMode::ReadWriteOnce);
    assert_eq!(ModelSpec::default().store_scope(), StoreScope::Shared);
    let scaling = Autoscaling::default();
    assert_eq!(
        (
            scaling.min_replicas(),
            scaling.max_replicas(),
            scaling.target_cpu()
        ),
        (1, 10, Some(70))
    );
}

#[test]
fn steps_come_from_either_shape() {
    let config = |value: Value| serde_json::from_value::<AgentConfig>(value).unwrap();
    assert_eq!(config(json!({"agenticLoop": {"maxSteps": 9}})).max_steps(), 9);
    assert_eq!(config(json!({"reasoningLoopMaxSteps": 3})).max_steps(), 3);
}

#[test]
fn the_model_comes_from_either_shape() {
    let spec = |value: Value| serde_json::from_value::<AgentSpec>(value).unwrap();
    let env = json!({"modelAPI": "m", "config": {"env": [{"name": "MODEL_NAME", "value": "old"}]}});
    assert_eq!(spec(env.clone()).model_name(), Some("old"));
    let mut both = env;
    both["model"] = "new".into();
    assert_eq!(spec(both).model_name(), Some("new"));
    assert_eq!(spec(json!({"modelAPI": "m"})).model_name(), None);
}

#[test]
fn memory_follows_from_its_store() {
    let memory = |value: Value| serde_json::from_value::<AgentMemory>(value).unwrap();
    assert_eq!(memory(json!({})).memory_type(), MemoryType::Local);
    assert_eq!(
        memory(json!({"memoryStore": "s"})).memory_type(),
        MemoryType::Remote
    );
    assert_eq!(
        memory(json!({"scope": "private"})).max_read_scope(),
        Some(ReadScope::Agent)
    );
    assert_eq!(
        memory(json!({"readScopes": ["session", "user"]})).max_read_scope(),
        Some(ReadScope::User)
    );
    assert_eq!(
        memory(json!({"maxReadScope": "session", "scope": "user"})).max_read_scope(),
        Some(ReadScope::Session)
    );
}

#[rstest]
#[case(&["*"], "anything", true)]
#[case(&["openai/*"], "openai/gpt-4o", true)]
#[case(&["openai/*"], "openai", false)]
#[case(&["openai/*"], "ollama/phi", false)]
#[case(&["gpt-4o", "gpt-4o-mini"], "gpt-4o-mini", true)]
#[case(&["gpt-4o"], "gpt-4o-mini", false)]
#[case(&["gpt-4*"], "gpt-4o", false)]
#[case(&[], "gpt-4o", false)]
fn models_are_matched(#[case] supported: &[&str], #[case] model: &str, #[case] expected: bool) {
    let supported: Vec<String> = supported.iter().map(|s| (*s).to_owned()).collect();
    assert_eq!(serves(&supported, model), expected);
}

#[rstest]
#[case(json!({"mode": "Proxy", "proxyConfig": {}}), &["*"])]
#[case(json!({"mode": "Proxy", "proxyConfig": {"models": ["a", "b"]}}), &["a", "b"])]
#[case(json!({"mode": "Hosted", "hostedConfig": {"model": "phi"}}), &["phi"])]
#[case(json!({"mode": "Hosted", "serverConfig": {"model": "phi"}}), &["phi"])]
fn served_models(#[case] spec: Value, #[case] expected: &[&str]) {
    let spec: ModelAPISpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.supported_models(), expected);
}

#[test]
fn sources_of_tools() {
    let spec = |value: Value| serde_json::from_value::<MCPServerSpec>(value).unwrap();
    let runtime = spec(json!({"runtime": "python-string", "params": "x", "config": {"mcp": ""}}));
    assert_eq!(
        runtime.source(),
        Some(ToolSource::Runtime {
            name: "python-string",
            params: Some("x")
        })
    );
    let package = spec(json!({"config": {"tools": {"fromPackage": "p"}}}));
    assert!(matches!(
        package.source(),
        Some(ToolSource::Package { package: "p", .. })
    ));
    assert!(matches!(
        spec(json!({"config": {"toolsString": "x"}})).source(),
        Some(ToolSource::ToolsString("x"))
    ));
    let secret = spec(json!({"config": {"tools": {"fromSecretKeyRef": {"name": "s", "key": "k"}}}}));
    assert!(matches!(secret.source(), Some(ToolSource::ToolsSecret(s)) if s.key == "k"));
    assert_eq!(spec(json!({})).source(), None);
    assert_eq!(
        spec(json!({"runtime": "a", "config": {"mcp": "b"}})).source(),
        None
    );
}

#[test]
fn the_proxy_runs_where_its_numbers_are_needed() {
    let spec = |value: Value| serde_json::from_value::<ModelSpec>(value).unwrap();
    assert!(!spec(json!({"image": "phi"})).proxy_enabled());
    assert!(spec(json!({"image": "phi", "autoscaling": {"targetQueueDepth": 2}})).proxy_enabled());
    assert!(
        !spec(json!({"image": "phi", "autoscaling": {"enabled": false, "targetQueueDepth": 2}}))
            .proxy_enabled()
    );
    assert!(spec(json!({"image": "phi", "server": {"proxy": {"enabled": true}}})).proxy_enabled());
    let scaling: ModelAutoscaling = serde_json::from_value(json!({"targetRequestRate": "2"})).unwrap();
    assert_eq!(scaling.target_cpu(), None);
    assert_eq!(ModelAutoscaling::default().target_cpu(), Some(70));
}

#[test]
fn services_inherit_their_scaling() {
    let spec: PeninOmegaClusterSpec = serde_json::from_value(json!({
        "autoScaling": {"maxReplicas": 6, "services": {
            "sigmaGuard": {"minReplicas": 4, "targetCPU": 50},
            "acfaLeague": {"enabled": false},
        }},
    }))
    .unwrap();
    let guard = spec.auto_scaling(Service::SigmaGuard).unwrap();
    assert_eq!(
        (
            guard.min_replicas,
            guard.max_replicas,
            guard.target_cpu,
            guard.target_memory
        ),
        (4, 6, 50, 80)
    );
    assert_eq!(spec.auto_scaling(Service::AcfaLeague), None);
    assert_eq!(spec.auto_scaling(Service::OmegaMeta).unwrap().min_replicas, 2);
    assert_eq!(
        PeninOmegaClusterSpec::default().auto_scaling(Service::OmegaMeta),
        None
    );
}

#[rstest]
#[case("replicas.sigmaGuard", true)]
#[case("replicas.omegaMeta", false)]
#[case("config.caosPlus.kappa", true)]
#[case("configuration", false)]
#[case("config", true)]
fn changes_are_allowed_by_path(#[case] path: &str, #[case] expected: bool) {
    let policy: gantry_crds::penin::SelfArchitecting =
        serde_json::from_value(json!({"allowedFields": ["replicas.sigmaGuard", "config.*"]})).unwrap();
    assert_eq!(policy.allows(path), expected);
}
