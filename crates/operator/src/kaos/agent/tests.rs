//! The pure steps: YAML in, what would be sent out. Snapshots are accepted with `INSTA_UPDATE=always make unit`, after
//! reading what changed.

use std::{collections::BTreeMap, sync::Arc};

use gantry_crds::kaos::{Agent, AgentStatus, MCPServer, ModelAPI, Phase};
use gantry_kit::{Outcome, Progress, driver, manager::Roots, references::Resolved, store::NamespaceFacts};
use k8s_openapi::jiff::Timestamp;
use kube::core::{ApiResource, DeserializeGuard};
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Agents, build,
    dependencies::{self, Caches, Dependencies},
    harness,
    observe::{Observed, Seen},
    status, validate,
};
use crate::{
    Settings,
    settings::Gateway,
    workload::{refs, verdicts::Blocked},
};

fn object(kind: &str, name: &str, spec: &str, status: &Value) -> Value {
    let spec: Value = serde_saphyr::from_str(spec).expect("YAML");
    json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "ns", "uid": name, "generation": 1}, "spec": spec, "status": status,
    })
}

fn agent(spec: &str) -> Agent {
    serde_json::from_value(object("Agent", "demo", spec, &Value::Null)).expect("an Agent")
}

/// A namespace `ns` with objects of all three kinds.
#[derive(Default)]
struct World {
    model_apis: Roots<ModelAPI>,
    mcp_servers: Roots<MCPServer>,
    agents: Roots<Agent>,
}

impl World {
    /// Everything there is and ready: ModelAPI `llm`, MCPServers `echo` and `my-tools`, Agent `helper`.
    fn whole() -> Self {
        let world = Self::default();
        world.model_api("{mode: Proxy, proxyConfig: {models: [gpt-4o, 'local/*']}}", true);
        for name in ["echo", "my-tools"] {
            world.mcp_server(name, &json!({"ready": true}));
        }
        world.agent("helper", "{modelAPI: llm}", &json!({"ready": true}));
        world
    }

    fn model_api(&self, spec: &str, ready: bool) {
        let object = object("ModelAPI", "llm", spec, &json!({"ready": ready}));
        let object = serde_json::from_value(object).expect("a ModelAPI");
        self.model_apis.put(DeserializeGuard(Ok(object)));
    }

    fn mcp_server(&self, name: &str, status: &Value) {
        let object = object("MCPServer", name, "{runtime: python-string}", status);
        let object = serde_json::from_value(object).expect("an MCPServer");
        self.mcp_servers.put(DeserializeGuard(Ok(object)));
    }

    fn agent(&self, name: &str, spec: &str, status: &Value) {
        let object = serde_json::from_value(object("Agent", name, spec, status)).expect("an Agent");
        self.agents.put(DeserializeGuard(Ok(object)));
    }

    fn observed(&self, agent: &Agent, settings: &Settings) -> Observed {
        let caches = Caches {
            model_apis: &self.model_apis,
            mcp_servers: &self.mcp_servers,
            agents: &self.agents,
        };
        let needed = dependencies::needed(agent);
        let all: Vec<_> = needed
            .iter()
            .map(|needed| caches.find(needed, agent.status.as_ref()))
            .collect();
        let mut observed = Observed {
            dependencies: Dependencies {
                served: needed.first().and_then(|needed| caches.served(needed)),
                model_before: agent.status.as_ref().and_then(|status| status.model.clone()),
                circle: false,
                all,
            },
            harnesses: registry(),
            has_gateway_api: true,
            ..Observed::default()
        };
        // Every Secret that the spec refers to exists, with the keys that are asked for.
        let pod = validate::pod(agent, settings, &observed).unwrap_or_default();
        let resolved = |used: refs::Use| {
            let digests = BTreeMap::from([(used.key.unwrap_or("KEY".into()), "digest".into())]);
            let resolved = Resolved {
                digests,
                ..Resolved::default()
            };
            (used.reference, Some(Arc::new(resolved)))
        };
        observed.known = refs::uses("ns", &pod).into_iter().map(resolved).collect();
        observed
    }
}

fn registry() -> harness::Registry {
    let data = BTreeMap::from([(
        "runtimes.yaml".to_owned(),
        "runtimes: {pi: {image: 'pi:1', driver: pi-driver}}".to_owned(),
    )]);
    harness::Registry::parse(Some(&Resolved {
        data,
        ..Resolved::default()
    }))
}

fn settings() -> Settings {
    let gateway = Gateway {
        name: "gw".into(),
        namespace: "edge".into(),
        agent_timeout: "300s".into(),
        modelapi_timeout: "120s".into(),
        mcp_timeout: "60s".into(),
    };
    Settings {
        gateway: Some(gateway),
        image_pull_secrets: vec!["pull".into()],
        ..Settings::default()
    }
}

fn validated(world: &World, agent: &Agent) -> Result<validate::Valid, Blocked> {
    let settings = settings();
    validate::validate(agent, &settings, &world.observed(agent, &settings))
}

fn wish(valid: &validate::Valid) -> Vec<Value> {
    let autoscaler = ApiResource {
        group: "autoscaling".into(),
        version: "v2".into(),
        api_version: "autoscaling/v2".into(),
        kind: "HorizontalPodAutoscaler".into(),
        plural: "horizontalpodautoscalers".into(),
    };
    let wish = build::build(valid, &autoscaler);
    wish.objects().iter().map(|wished| wished.body.clone()).collect()
}

#[rstest]
#[case::small("{modelAPI: llm, model: gpt-4o}")]
#[case::seed(
    "{modelAPI: llm, mcpServers: [my-tools, echo], agentNetwork: {access: [helper], expose: true},
      config: {description: d, instructions: i, agenticLoop: {maxSteps: 7, enableTools: false},
               env: [{name: MODEL_NAME, value: local/phi}]}}"
)]
#[case::everything(
    "{modelAPI: llm, model: gpt-4o, mcpServers: [echo], agentNetwork: {access: [helper]}, replicas: 2,
      serviceAccountName: robot, imagePullSecrets: [{name: mine}], resources: {limits: {memory: 2Gi}},
      limits: {maxSteps: 3, maxRuntimeSeconds: 20, maxToolCalls: 100, maxTokensPerTask: 1000, maxTokensPerDay: 5000},
      config: {systemPrompt: p, toolCallMode: native, debugMemoryEndpoints: false,
               memory: {memoryStore: notes, maxReadScope: user, tools: read, failureMode: strict,
                        clientParams: {tokenBudget: 9, rollingSummary: true}},
               autonomous: {goal: tidy, intervalSeconds: 5}, taskConfig: {maxToolCalls: 0},
               telemetry: {enabled: true, endpoint: 'http://otel:4317'}},
      networkPolicy: {egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}], ingress: []},
      gatewayRoute: {timeout: 0s}, podSpec: {nodeSelector: {disk: ssd}}}"
)]
#[case::harness(
    "{modelAPI: llm, model: gpt-4o, agentNetwork: {expose: false}, autoscaling: {maxReplicas: 3},
      harness: {runtime: pi, workspace: {repoURL: 'https://git/repo', credentialsSecretRef: {name: git}}}}"
)]
fn what_is_built(#[case] spec: &str) {
    let valid = validated(&World::whole(), &agent(spec)).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    // One file a case, named by it.
    let name = std::thread::current()
        .name()
        .and_then(|name| name.rsplit("::").next().map(ToOwned::to_owned));
    insta::assert_yaml_snapshot!(name.unwrap_or_default(), wish(&valid));
}

#[rstest]
#[case::unserved("{modelAPI: llm, model: gpt-3}", "ModelNotServed", "gpt-4o, local/*")]
#[case::wildcard_needs_a_slash("{modelAPI: llm, model: localhost}", "ModelNotServed", "gpt-4o, local/*")]
#[case::unserved_by_environment(
    "{modelAPI: llm, model: gpt-4o, container: {env: [{name: MODEL_NAME, value: x}]}}",
    "ModelNotServed",
    "model x"
)]
#[case::not_named("{modelAPI: llm}", "InvalidSpec", "set spec.model")]
#[case::no_model_api("{model: a}", "InvalidSpec", "modelAPI")]
#[case::shared_variable(
    "{modelAPI: llm, model: gpt-4o, mcpServers: [a-b, a.b], waitForDependencies: false}",
    "InvalidSpec",
    "MCP_SERVER_A_B_URL"
)]
#[case::unknown_harness(
    "{modelAPI: llm, model: gpt-4o, harness: {runtime: nope}}",
    "RuntimeNotFound",
    "kaos-harness-runtimes"
)]
#[case::bad_policy(
    "{modelAPI: llm, model: gpt-4o, networkPolicy: {egress: [{to: 5}]}}",
    "InvalidOverride",
    "networkPolicy"
)]
#[case::bad_pod(
    "{modelAPI: llm, model: gpt-4o, podSpec: {containers: 5}}",
    "InvalidOverride",
    "podSpec"
)]
fn what_is_refused(#[case] spec: &str, #[case] reason: &str, #[case] words: &str) {
    let blocked = validated(&World::whole(), &agent(spec)).err().expect("refused");
    assert_eq!(blocked.reason, reason, "{}", blocked.message);
    assert!(blocked.message.contains(words), "{}", blocked.message);
    assert_eq!(blocked.progress, Progress::Stuck);
}

#[rstest]
#[case::named("{modelAPI: llm, model: gpt-4o}", Some("gpt-4o"))]
#[case::prefix("{modelAPI: llm, model: local/x}", Some("local/x"))]
#[case::older(
    "{modelAPI: llm, config: {env: [{name: MODEL_NAME, value: gpt-4o}]}}",
    Some("gpt-4o")
)]
#[case::by_reference(
    "{modelAPI: llm, config: {env: [{name: MODEL_NAME, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}}",
    None
)]
fn the_model_that_is_asked(#[case] spec: &str, #[case] expected: Option<&str>) {
    let valid = validated(&World::whole(), &agent(spec)).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    assert_eq!(valid.model.as_deref(), expected);
}

/// With no model named, what was chosen when it was the only one stays while it is served.
#[rstest]
#[case::still_served("gpt-4o", Some("gpt-4o"))]
#[case::by_prefix("local/x", Some("local/x"))]
#[case::not_served("gpt-3", None)]
fn a_model_more_ends_no_running_agent(#[case] before: &str, #[case] expected: Option<&str>) {
    let mut agent = agent("{modelAPI: llm}");
    agent.status = serde_json::from_value(json!({"model": before})).expect("a status");
    let model = validated(&World::whole(), &agent)
        .ok()
        .and_then(|valid| valid.model);
    assert_eq!(model.as_deref(), expected);
}

#[test]
fn instructions_reach_the_agent_as_they_are() {
    let agent = agent("{modelAPI: llm, model: gpt-4o, config: {instructions: 'Run $(date), pay 5$$.'}}");
    let valid = validated(&World::whole(), &agent).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    let env = valid.pod["containers"][0]["env"].as_array().expect("env");
    let found = env
        .iter()
        .find(|variable| variable["name"] == "AGENT_INSTRUCTIONS");
    assert_eq!(
        found.map(|found| &found["value"]),
        Some(&json!("Run $$(date), pay 5$$$$."))
    );
}

#[test]
fn the_only_model_need_not_be_named() {
    let world = World::default();
    world.model_api("{mode: Hosted, hostedConfig: {model: 'smollm2:135m'}}", true);
    let valid = validated(&world, &agent("{modelAPI: llm}")).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    assert_eq!(valid.model.as_deref(), Some("smollm2:135m"));
    assert_eq!(
        valid.dependencies.all[0].address,
        "http://modelapi-llm.ns.svc.cluster.local:11434"
    );
}

const NEEDY: &str = "{modelAPI: llm, model: gpt-4o, mcpServers: [echo], agentNetwork: {access: [helper]}}";

#[rstest]
#[case::nothing_there(World::default(), "WaitingForModelAPI", &["ModelAPI llm does not exist", "MCPServer echo", "Agent helper"])]
#[case::tools_not_ready(
    { let w = World::default(); w.model_api("{mode: Proxy, proxyConfig: {}}", true);
      w.mcp_server("echo", &json!({"ready": false, "conditions": [{"type": "Ready", "status": "False", "reason": "CrashLoop",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})); w },
    "WaitingForMCPServer", &["MCPServer echo is not ready (CrashLoop)"])]
#[case::peer_not_there(
    { let w = World::default(); w.model_api("{mode: Proxy, proxyConfig: {}}", true);
      w.mcp_server("echo", &json!({"ready": true})); w },
    "WaitingForPeer", &["Agent helper does not exist"])]
fn what_is_waited_for(#[case] world: World, #[case] reason: &str, #[case] words: &[&str]) {
    let blocked = validated(&world, &agent(NEEDY)).err().expect("waits");
    assert_eq!((blocked.reason, blocked.progress), (reason, Progress::Working));
    for words in words {
        assert!(blocked.message.contains(words), "{}", blocked.message);
    }
    let outcome = status::blocked(&agent(NEEDY), None, blocked);
    assert_eq!(settled(None, outcome).phase, Some(Phase::Waiting));
    // Told not to wait, it starts with addresses by name.
    let eager = agent(&NEEDY.replace("{modelAPI", "{waitForDependencies: false, modelAPI"));
    let valid = validated(&world, &eager).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    let env = wish(&valid).last().expect("a route").to_string() + &json!(wish(&valid)).to_string();
    assert!(env.contains("http://agent-helper.ns.svc.cluster.local:8000"));
}

fn settled(before: Option<&AgentStatus>, outcome: Outcome<AgentStatus>) -> AgentStatus {
    driver::settle::<Agents>(before, outcome, Some(1), Timestamp::UNIX_EPOCH)
}

fn running() -> Seen {
    let deployment = json!({
        "metadata": {"generation": 1}, "spec": {"replicas": 1, "selector": {}, "template": {}},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
    });
    Seen {
        deployment: serde_json::from_value(deployment).expect("a Deployment"),
        pods: Vec::new(),
    }
}

/// What was built earlier goes on, and may come and go.
#[rstest]
#[case::runs(1, "True Succeeded")]
#[case::lost(0, "False Progressing")]
fn one_that_is_blocked_tells_of_its_pods_as_they_are(#[case] pods: i32, #[case] available: &str) {
    let agent = agent("{modelAPI: llm}");
    let mut before = agent.clone();
    before.status = serde_json::from_value(json!({
        "replicas": 7, "conditions": [{"type": "Available", "status": "True", "reason": "Succeeded", "message": "",
                                       "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }))
    .expect("a status");
    let mut deployment = running().deployment;
    if let Some(status) = &mut deployment.status {
        status.replicas = Some(pods);
        status.available_replicas = Some(pods);
    }
    let blocked = validated(&World::whole(), &agent)
        .err()
        .expect("no model is named");
    let outcome = status::blocked(&before, Some(&deployment), blocked);
    let status = settled(before.status.as_ref(), outcome);
    assert_eq!(
        (status.replicas, status.observed_replicas),
        (Some(pods), Some(pods))
    );
    assert!(
        told(&status, "Available").starts_with(available),
        "{}",
        told(&status, "Available")
    );
}

/// Everything that is needed goes away: the pods stay exactly as they are, and the loss is told.
#[test]
fn a_loss_degrades_and_changes_no_pod() {
    let mut agent = agent(&NEEDY.replace(
        "model: gpt-4o, ",
        "config: {env: [{name: MODEL_NAME, value: gpt-4o}]}, ",
    ));
    let whole = World::whole();
    let before = validated(&whole, &agent).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    let status = settled(None, status::from_applied(&before, &running()));
    assert_eq!(status.phase, Some(Phase::Ready));
    assert!(
        told(&status, "Degraded").starts_with("False"),
        "{}",
        told(&status, "Degraded")
    );
    agent.status = Some(status.clone());

    let after = validated(&World::default(), &agent).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    assert_eq!(json!(wish(&after)), json!(wish(&before)), "no pod is touched");
    let status = settled(Some(&status), status::from_applied(&after, &running()));
    assert_eq!((status.phase, status.ready), (Some(Phase::Ready), Some(true)));
    let degraded = told(&status, "Degraded");
    assert!(degraded.starts_with("True DependencyLost"), "{degraded}");
    for lost in ["ModelAPI llm", "MCPServer echo", "Agent helper"] {
        assert!(degraded.contains(lost), "{degraded}");
        assert!(status.message.clone().unwrap_or_default().contains(lost));
    }
    // What is new in the spec is waited for all the same.
    agent.spec.mcp_servers = Some(vec!["echo".into(), "new".into()]);
    let blocked = validated(&World::default(), &agent).err().expect("waits");
    assert_eq!(blocked.reason, "WaitingForMCPServer");
}

fn told(status: &AgentStatus, type_: &str) -> String {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let found = gantry_kit::conditions::find(conditions, type_).expect("told");
    format!("{} {} {}", found.status, found.reason, found.message)
}

/// A rollout of a dependency is no loss.
#[test]
fn what_still_serves_is_not_lost() {
    let world = World::whole();
    let rolling = json!({"ready": false, "conditions": [
        {"type": "Available", "status": "True", "reason": "S", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]});
    world.mcp_server("rolling", &rolling);
    let agent = agent("{modelAPI: llm, model: gpt-4o, mcpServers: [rolling], waitForDependencies: false}");
    let valid = validated(&world, &agent).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    assert_eq!(valid.dependencies.lost(), None);
}

#[rstest]
#[case::ours_only(
    "{modelAPI: llm, model: gpt-4o, config: {env: [{name: MINE, value: x}]}}",
    None
)]
#[case::older_shape("{modelAPI: llm, config: {env: [{name: MODEL_NAME, value: gpt-4o}]}}", None)]
#[case::log_level(
    "{modelAPI: llm, model: gpt-4o, container: {env: [{name: LOG_LEVEL, value: DEBUG}]}}",
    None
)]
#[case::both(
    "{modelAPI: llm, model: gpt-4o, config: {env: [{name: MODEL_NAME, value: local/x}]},
      container: {env: [{name: MODEL_API_URL, value: x}, {name: MODEL_NAME, value: local/y}]}}",
    Some("MODEL_API_URL, MODEL_NAME")
)]
#[case::in_the_pod(
    "{modelAPI: llm, model: gpt-4o, container: {env: [{name: MODEL_NAME, value: local/x}]},
      podSpec: {containers: [{name: agent, env: [{name: MODEL_API_URL, value: x}, {name: MODEL_NAME, value: local/y}]}]}}",
    Some("MODEL_API_URL, MODEL_NAME")
)]
#[case::in_another_container(
    "{modelAPI: llm, model: gpt-4o, podSpec: {containers: [{name: side, env: [{name: MODEL_NAME, value: x}]}]}}",
    None
)]
fn clashes_are_told_and_the_user_wins(#[case] spec: &str, #[case] expected: Option<&str>) {
    let world = World::whole();
    let agent = agent(spec);
    let warnings = validate::warnings(&agent, &settings(), &world.observed(&agent, &settings()));
    assert_eq!(warnings.len(), usize::from(expected.is_some()));
    if let Some(expected) = expected {
        assert!(warnings[0].1.starts_with(expected), "{}", warnings[0].1);
        let valid = validated(&world, &agent).unwrap_or_else(|blocked| panic!("{blocked:?}"));
        assert_eq!(valid.model.as_deref(), Some("local/y"));
        let env = valid.pod["containers"][0]["env"].as_array().expect("env").clone();
        let value = |name: &str| {
            env.iter()
                .filter(|v| v["name"] == name)
                .map(|v| v["value"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(value("MODEL_API_URL"), ["x"]);
        assert_eq!(value("MODEL_NAME"), ["local/y"]);
    }
}

#[rstest]
#[case::nothing_said(json!({}), true, Some("gantry.dev/allow-references-from=ns"))]
#[case::listed(json!({"annotations": {"gantry.dev/allow-references-from": "a, ns"}}), true, None)]
#[case::others_listed(json!({"annotations": {"gantry.dev/allow-references-from": "a,n"}}), true, Some("may not be used"))]
#[case::all(json!({"annotations": {"gantry.dev/allow-references-from": "*"}}), true, None)]
#[case::label(json!({"labels": {"gantry.dev/allow-references": "true"}}), true, None)]
#[case::label_false(json!({"labels": {"gantry.dev/allow-references": "false"}}), true, Some("may not be used"))]
#[case::blind(json!({"annotations": {"gantry.dev/allow-references-from": "*"}}), false, Some("--watch-namespace"))]
fn other_namespaces_have_to_allow_it(
    #[case] mut meta: Value,
    #[case] sees: bool,
    #[case] expected: Option<&str>,
) {
    meta["name"] = json!("shared");
    let facts = NamespaceFacts::new(serde_json::from_value(json!({"metadata": meta})).expect("a namespace"));
    let agent = agent("{modelAPI: shared/llm, mcpServers: [ns/home]}");
    let needed = dependencies::needed(&agent);
    let refusal = dependencies::refusal(&needed[0], sees, Some(&facts));
    match expected {
        None => assert_eq!(refusal, None),
        Some(words) => assert!(refusal.clone().unwrap_or_default().contains(words), "{refusal:?}"),
    }
    assert_eq!(
        dependencies::refusal(&needed[1], false, None),
        None,
        "its own namespace"
    );
}

#[test]
fn a_store_that_nobody_serves_is_told() {
    let spec = "{modelAPI: llm, model: gpt-4o, config: {memory: {memoryStore: notes}}}";
    let valid = validated(&World::whole(), &agent(spec)).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    let status = settled(None, status::from_applied(&valid, &running()));
    assert!(told(&status, "MemoryDegraded").starts_with("True MemoryStoreNotServed"));
    let given = spec.replace(
        "{memory",
        "{env: [{name: MEMORY_STORE_ENDPOINT, value: 'http://x'}], memory",
    );
    let valid = validated(&World::whole(), &agent(&given)).unwrap_or_else(|blocked| panic!("{blocked:?}"));
    let status = settled(None, status::from_applied(&valid, &running()));
    assert!(told(&status, "MemoryDegraded").starts_with("False MemoryHealthy"));
}

#[test]
fn any_spec_is_refused_or_built() {
    let good = [
        "{modelAPI: llm, model: gpt-4o}",
        "{modelAPI: absent, model: m, waitForDependencies: false, mcpServers: [echo]}",
        "{modelAPI: llm, model: gpt-4o, harness: {runtime: pi}}",
    ];
    let world = World::whole();
    crate::specs::check(gantry_crds::Kind::Agent, &good, |spec| {
        serde_json::from_value::<gantry_crds::kaos::AgentSpec>(spec.clone()).ok()?;
        let valid = validated(&world, &agent(&spec.to_string()));
        Some(valid.map(|valid| wish(&valid)))
    });
}
