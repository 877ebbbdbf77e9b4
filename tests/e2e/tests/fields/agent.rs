//! Agent. Nothing that it needs exists here: `waitForDependencies: false` lets it start by names alone.

use gantry_e2e::fixtures::agent_resource;
use serde_json::{Value, json};

use super::{Row, Table, merge, row};

pub fn table() -> Table {
    let secret = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"token": "1", "other": "2"},
        })
    };
    Table {
        kind: "Agent",
        resource: agent_resource(),
        rows: rows(),
        before: vec![secret("git-one"), secret("git-two")],
        child_name: |_, root| format!("agent-{root}"),
        // Dynamic resource allocation is newer than this server, which refuses the field.
        exempt: &["resources.claims", "container.resources.claims"],
        exempt_below: &[],
        // As for MCPServer.
        stays: &["autoscaling.behavior"],
        makes: &[],
        shared: |_| None,
    }
}

const MAIN: &str = "spec/template/spec/containers/[name=agent]";

fn with(more: Value) -> Value {
    let mut spec = json!({"modelAPI": "llm", "model": "m", "waitForDependencies": false});
    merge(&mut spec, &more);
    spec
}

fn main_pointer(rest: &str) -> &'static str {
    format!("{MAIN}/{rest}").leak()
}

/// A field that ends up in one variable: it is set by `set`, on top of `start`.
fn variable(field: &'static str, start: Value, set: Value, name: &str, expected: &str) -> Row {
    let pointer = main_pointer(&format!("env/[name={name}]/value"));
    row(field, with(start), set, "Deployment", pointer, json!(expected))
}

fn rows() -> Vec<Row> {
    let mut rows = identity();
    rows.extend(memory());
    rows.extend(work());
    rows.extend(harness());
    rows.extend(workload());
    rows
}

fn identity() -> Vec<Row> {
    let none = || json!({});
    vec![
        variable(
            "modelAPI",
            none(),
            json!({"modelAPI": "other"}),
            "MODEL_API_URL",
            "~modelapi-other.",
        ),
        variable("model", none(), json!({"model": "n"}), "MODEL_NAME", "n"),
        variable(
            "mcpServers",
            none(),
            json!({"mcpServers": ["b", "a-a"]}),
            "MCP_SERVERS",
            "a-a,b",
        ),
        row(
            "agentNetwork.expose",
            with(none()),
            json!({"agentNetwork": {"expose": false}}),
            "Service",
            "spec/ports/0/port",
            Value::Null,
        ),
        variable(
            "agentNetwork.access",
            none(),
            json!({"agentNetwork": {"access": ["a-b"]}}),
            "PEER_AGENT_A_B_CARD_URL",
            "~agent-a-b.",
        ),
        // It decides when, not what; tests/agents.rs shows it. Here: that a change of it is no harm.
        row(
            "waitForDependencies",
            json!({"modelAPI": "llm", "model": "m", "waitForDependencies": false}),
            json!({"waitForDependencies": true, "model": "waited-for"}),
            "Deployment",
            main_pointer("env/[name=MODEL_NAME]/value"),
            json!("waited-for"),
        ),
        variable(
            "config.description",
            none(),
            json!({"config": {"description": "d"}}),
            "AGENT_DESCRIPTION",
            "d",
        ),
        variable(
            "config.instructions",
            none(),
            json!({"config": {"instructions": "i"}}),
            "AGENT_INSTRUCTIONS",
            "i",
        ),
        variable(
            "config.systemPrompt",
            none(),
            json!({"config": {"systemPrompt": "s"}}),
            "AGENT_SYSTEM_PROMPT",
            "s",
        ),
        variable(
            "config.reasoningLoopMaxSteps",
            none(),
            json!({"config": {"reasoningLoopMaxSteps": 9}}),
            "AGENTIC_LOOP_MAX_STEPS",
            "9",
        ),
        variable(
            "config.agenticLoop.maxSteps",
            none(),
            json!({"config": {"agenticLoop": {"maxSteps": 8}}}),
            "AGENTIC_LOOP_MAX_STEPS",
            "8",
        ),
        variable(
            "config.agenticLoop.enableTools",
            none(),
            json!({"config": {"agenticLoop": {"enableTools": false}}}),
            "AGENTIC_LOOP_ENABLE_TOOLS",
            "false",
        ),
        variable(
            "config.agenticLoop.enableDelegation",
            none(),
            json!({"config": {"agenticLoop": {"enableDelegation": false}}}),
            "AGENTIC_LOOP_ENABLE_DELEGATION",
            "false",
        ),
        variable(
            "config.toolCallMode",
            none(),
            json!({"config": {"toolCallMode": "native"}}),
            "TOOL_CALL_MODE",
            "native",
        ),
        variable(
            "config.debugMemoryEndpoints",
            none(),
            json!({"config": {"debugMemoryEndpoints": false}}),
            "AGENT_DEBUG_MEMORY_ENDPOINTS",
            "false",
        ),
        variable(
            "config.env",
            none(),
            json!({"config": {"env": [{"name": "A", "value": "1"}]}}),
            "A",
            "1",
        ),
        variable(
            "config.telemetry.enabled",
            none(),
            json!({"config": {"telemetry": {"enabled": true}}}),
            "OTEL_SDK_DISABLED",
            "false",
        ),
        variable(
            "config.telemetry.endpoint",
            json!({"config": {"telemetry": {"enabled": true}}}),
            json!({"config": {"telemetry": {"endpoint": "http://otel:4317"}}}),
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://otel:4317",
        ),
    ]
}

fn memory() -> Vec<Row> {
    let none = || json!({});
    let of = |block: Value| json!({"config": {"memory": block}});
    let stored = || json!({"config": {"memory": {"memoryStore": "s"}}});
    vec![
        variable(
            "config.memory.enabled",
            none(),
            of(json!({"enabled": false})),
            "MEMORY_ENABLED",
            "false",
        ),
        variable(
            "config.memory.type",
            none(),
            of(json!({"type": "remote", "memoryStore": "s"})),
            "MEMORY_TYPE",
            "remote",
        ),
        variable(
            "config.memory.contextLimit",
            none(),
            of(json!({"contextLimit": 9})),
            "MEMORY_CONTEXT_LIMIT",
            "9",
        ),
        variable(
            "config.memory.maxSessions",
            none(),
            of(json!({"maxSessions": 9})),
            "MEMORY_MAX_SESSIONS",
            "9",
        ),
        variable(
            "config.memory.maxSessionEvents",
            none(),
            of(json!({"maxSessionEvents": 9})),
            "MEMORY_MAX_SESSION_EVENTS",
            "9",
        ),
        variable(
            "config.memory.memoryStore",
            none(),
            stored(),
            "MEMORY_STORE_ENDPOINT",
            "~memorystore-s.",
        ),
        variable(
            "config.memory.maxReadScope",
            none(),
            of(json!({"maxReadScope": "user"})),
            "MEMORY_MAX_READ_SCOPE",
            "user",
        ),
        variable(
            "config.memory.scope",
            none(),
            of(json!({"scope": "private"})),
            "MEMORY_MAX_READ_SCOPE",
            "agent",
        ),
        variable(
            "config.memory.defaultReadScope",
            none(),
            of(json!({"defaultReadScope": "session"})),
            "MEMORY_MAX_READ_SCOPE",
            "session",
        ),
        variable(
            "config.memory.readScopes",
            none(),
            of(json!({"readScopes": ["session", "agent"]})),
            "MEMORY_MAX_READ_SCOPE",
            "agent",
        ),
        variable(
            "config.memory.tools",
            stored(),
            of(json!({"tools": "read"})),
            "MEMORY_TOOLS",
            "read",
        ),
        variable(
            "config.memory.failureMode",
            none(),
            of(json!({"failureMode": "strict"})),
            "MEMORY_FAILURE_MODE",
            "strict",
        ),
        variable(
            "config.memory.clientParams.tokenBudget",
            none(),
            of(json!({"clientParams": {"tokenBudget": 9}})),
            "MEMORY_SHORT_TERM_TOKEN_BUDGET",
            "9",
        ),
        variable(
            "config.memory.clientParams.rollingSummary",
            none(),
            of(json!({"clientParams": {"rollingSummary": false}})),
            "MEMORY_ROLLING_SUMMARY",
            "false",
        ),
    ]
}

fn work() -> Vec<Row> {
    let none = || json!({});
    let goal = || json!({"config": {"autonomous": {"goal": "g"}}});
    let autonomous = |block: Value| json!({"config": {"autonomous": block}});
    let task = |block: Value| json!({"config": {"taskConfig": block}});
    let limit = |block: Value| json!({"limits": block});
    vec![
        variable("config.autonomous.goal", none(), goal(), "AUTONOMOUS_GOAL", "g"),
        variable(
            "config.autonomous.intervalSeconds",
            goal(),
            autonomous(json!({"intervalSeconds": 9})),
            "AUTONOMOUS_INTERVAL_SECONDS",
            "9",
        ),
        variable(
            "config.autonomous.maxIterRuntimeSeconds",
            goal(),
            autonomous(json!({"maxIterRuntimeSeconds": 9})),
            "AUTONOMOUS_MAX_ITER_RUNTIME_SECONDS",
            "9",
        ),
        variable(
            "config.taskConfig.maxIterations",
            none(),
            task(json!({"maxIterations": 9})),
            "TASK_MAX_ITERATIONS",
            "9",
        ),
        variable(
            "config.taskConfig.maxRuntimeSeconds",
            none(),
            task(json!({"maxRuntimeSeconds": 9})),
            "TASK_MAX_RUNTIME_SECONDS",
            "9",
        ),
        variable(
            "config.taskConfig.maxToolCalls",
            none(),
            task(json!({"maxToolCalls": 0})),
            "TASK_MAX_TOOL_CALLS",
            "0",
        ),
        variable(
            "limits.maxSteps",
            none(),
            limit(json!({"maxSteps": 2})),
            "AGENTIC_LOOP_MAX_STEPS",
            "2",
        ),
        variable(
            "limits.maxRuntimeSeconds",
            none(),
            limit(json!({"maxRuntimeSeconds": 2})),
            "TASK_MAX_RUNTIME_SECONDS",
            "2",
        ),
        variable(
            "limits.maxToolCalls",
            none(),
            limit(json!({"maxToolCalls": 2})),
            "TASK_MAX_TOOL_CALLS",
            "2",
        ),
        variable(
            "limits.maxTokensPerTask",
            none(),
            limit(json!({"maxTokensPerTask": 2})),
            "TASK_MAX_TOKENS",
            "2",
        ),
        variable(
            "limits.maxTokensPerDay",
            none(),
            limit(json!({"maxTokensPerDay": 2})),
            "AGENT_MAX_TOKENS_PER_DAY",
            "2",
        ),
    ]
}

fn harness() -> Vec<Row> {
    // The harness comes with an image of the user's, so that no registry is needed.
    let of = |block: Value| json!({"container": {"image": "pi:1"}, "harness": block});
    let cloned = |more: Value| {
        let mut workspace = json!({"repoURL": "https://git/one"});
        merge(&mut workspace, &more);
        of(json!({"runtime": "pi", "workspace": workspace}))
    };
    let token = |name: &str, key: &str| json!({"credentialsSecretRef": {"name": name, "key": key}});
    let secret = |rest: &str| main_pointer(&format!("env/[name=GIT_TOKEN]/valueFrom/secretKeyRef/{rest}"));
    let init = "spec/template/spec/initContainers/[name=workspace-clone]";
    let mut optional = token("git-one", "token");
    optional["credentialsSecretRef"]["optional"] = json!(true);
    vec![
        variable(
            "harness.runtime",
            of(json!({"runtime": "pi"})),
            of(json!({"runtime": "claude"})),
            "HARNESS_DRIVER",
            "claude",
        ),
        row(
            "harness.workspace.repoURL",
            with(of(json!({"runtime": "pi"}))),
            cloned(json!({})),
            "Deployment",
            format!("{init}/env/[name=HARNESS_REPO_URL]/value").leak(),
            json!("https://git/one"),
        ),
        variable(
            "harness.workspace.branch",
            cloned(json!({})),
            cloned(json!({"branch": "next"})),
            "HARNESS_BRANCH",
            "next",
        ),
        row(
            "harness.workspace.credentialsSecretRef.name",
            with(cloned(token("git-one", "token"))),
            cloned(token("git-two", "token")),
            "Deployment",
            secret("name"),
            json!("git-two"),
        ),
        row(
            "harness.workspace.credentialsSecretRef.key",
            with(cloned(token("git-one", "token"))),
            cloned(token("git-one", "other")),
            "Deployment",
            secret("key"),
            json!("other"),
        ),
        row(
            "harness.workspace.credentialsSecretRef.optional",
            with(cloned(token("git-one", "token"))),
            cloned(optional),
            "Deployment",
            secret("optional"),
            json!(true),
        ),
    ]
}

fn workload() -> Vec<Row> {
    let run = || with(json!({}));
    let scaled = |more: Value| {
        let mut block = json!({"enabled": true});
        merge(&mut block, &more);
        with(json!({"autoscaling": block}))
    };
    let hpa = |field: &'static str, block: Value, pointer: &'static str, expected: Value| {
        let set = json!({"autoscaling": block});
        row(
            field,
            scaled(json!({})),
            set,
            "HorizontalPodAutoscaler",
            pointer,
            expected,
        )
    };
    let pod = |field: &'static str, set: Value, pointer: &'static str, expected: Value| {
        row(field, run(), set, "Deployment", pointer, expected)
    };
    let container = |field: &'static str, value: Value, pointer: &'static str, expected: Value| {
        let mut set = json!({});
        set[field.rsplit('.').next().unwrap_or(field)] = value;
        row(
            field,
            run(),
            json!({"container": set}),
            "Deployment",
            pointer,
            expected,
        )
    };
    let policy = || with(json!({"networkPolicy": {"enabled": true}}));
    let main = main_pointer;
    vec![
        pod("replicas", json!({"replicas": 3}), "spec/replicas", json!(3)),
        hpa(
            "autoscaling.enabled",
            json!({"enabled": false}),
            "spec/maxReplicas",
            Value::Null,
        ),
        hpa(
            "autoscaling.minReplicas",
            json!({"minReplicas": 2}),
            "spec/minReplicas",
            json!(2),
        ),
        hpa(
            "autoscaling.maxReplicas",
            json!({"maxReplicas": 7}),
            "spec/maxReplicas",
            json!(7),
        ),
        hpa(
            "autoscaling.targetCPU",
            json!({"targetCPU": 42}),
            "spec/metrics/0/resource/target/averageUtilization",
            json!(42),
        ),
        hpa(
            "autoscaling.targetMemory",
            json!({"targetMemory": 42}),
            "spec/metrics/0/resource/name",
            json!("memory"),
        ),
        hpa(
            "autoscaling.metrics",
            json!({"metrics": [{"name": "queue", "averageValue": "5"}]}),
            "spec/metrics/0/pods/metric/name",
            json!("queue"),
        ),
        hpa(
            "autoscaling.behavior",
            json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 33}}}),
            "spec/behavior/scaleDown/stabilizationWindowSeconds",
            json!(33),
        ),
        pod(
            "resources.limits",
            json!({"resources": {"limits": {"memory": "2Gi"}}}),
            main("resources/limits/memory"),
            json!("2Gi"),
        ),
        pod(
            "resources.requests",
            json!({"resources": {"requests": {"cpu": "70m"}}}),
            main("resources/requests/cpu"),
            json!("70m"),
        ),
        pod(
            "serviceAccountName",
            json!({"serviceAccountName": "robot"}),
            "spec/template/spec/serviceAccountName",
            json!("robot"),
        ),
        pod(
            "imagePullSecrets",
            json!({"imagePullSecrets": [{"name": "pull"}]}),
            "spec/template/spec/imagePullSecrets/0/name",
            json!("pull"),
        ),
        row(
            "networkPolicy.enabled",
            policy(),
            json!({"networkPolicy": {"enabled": false}}),
            "NetworkPolicy",
            "spec/podSelector/matchLabels/app",
            Value::Null,
        ),
        row(
            "networkPolicy.egress",
            policy(),
            json!({"networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}}),
            "NetworkPolicy",
            "spec/egress/2/to/0/ipBlock/cidr",
            json!("10.0.0.0/8"),
        ),
        row(
            "networkPolicy.ingress",
            policy(),
            json!({"networkPolicy": {"ingress": [{"from": [{"namespaceSelector": {}}]}]}}),
            "NetworkPolicy",
            "spec/ingress/1/from/0/namespaceSelector",
            json!({}),
        ),
        row(
            "gatewayRoute.enabled",
            run(),
            json!({"gatewayRoute": {"enabled": false}}),
            "HTTPRoute",
            "spec/rules/0/backendRefs/0/port",
            Value::Null,
        ),
        row(
            "gatewayRoute.timeout",
            run(),
            json!({"gatewayRoute": {"timeout": "5s"}}),
            "HTTPRoute",
            "spec/rules/0/timeouts/request",
            json!("5s"),
        ),
        row(
            "gatewayRoute.retries",
            run(),
            json!({"gatewayRoute": {"retries": 2}}),
            "HTTPRoute",
            "spec/rules/0/retry/attempts",
            json!(2),
        ),
        container("container.image", json!("mine:1"), main("image"), json!("mine:1")),
        container(
            "container.imagePullPolicy",
            json!("Never"),
            main("imagePullPolicy"),
            json!("Never"),
        ),
        container(
            "container.command",
            json!(["run"]),
            main("command"),
            json!(["run"]),
        ),
        container("container.args", json!(["--now"]), main("args"), json!(["--now"])),
        container(
            "container.env",
            json!([{"name": "B", "value": "2"}]),
            main("env/[name=B]/value"),
            json!("2"),
        ),
        container(
            "container.envFrom",
            json!([{"secretRef": {"name": "git-one"}}]),
            main("envFrom/0/secretRef/name"),
            json!("git-one"),
        ),
        pod(
            "container.resources.limits",
            json!({"container": {"resources": {"limits": {"cpu": "2"}}}}),
            main("resources/limits/cpu"),
            json!("2"),
        ),
        pod(
            "container.resources.requests",
            json!({"container": {"resources": {"requests": {"memory": "99Mi"}}}}),
            main("resources/requests/memory"),
            json!("99Mi"),
        ),
        container(
            "container.securityContext",
            json!({"runAsUser": 5}),
            main("securityContext/runAsUser"),
            json!(5),
        ),
        container(
            "container.workingDir",
            json!("/work"),
            main("workingDir"),
            json!("/work"),
        ),
        container(
            "container.volumeMounts",
            json!([{"name": "tmp", "mountPath": "/x"}]),
            main("volumeMounts/[mountPath=/x]/name"),
            json!("tmp"),
        ),
        pod(
            "podSpec",
            json!({"podSpec": {"hostname": "h"}}),
            "spec/template/spec/hostname",
            json!("h"),
        ),
    ]
}
