//! MCPServer.

use gantry_e2e::fixtures::mcpserver_resource;
use serde_json::{Value, json};

use super::{Row, Table, merge, row};

pub fn table() -> Table {
    let secret = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"a": "def a(): pass", "b": "def b(): pass"},
        })
    };
    Table {
        kind: "MCPServer",
        resource: mcpserver_resource(),
        rows: rows(),
        before: vec![secret("code"), secret("more")],
        child_name: |child, root| {
            let prefix = if child == "HTTPRoute" { "mcp" } else { "mcpserver" };
            format!("{prefix}-{root}")
        },
        // Dynamic resource allocation is newer than this server, which refuses the field.
        exempt: &["resources.claims", "container.resources.claims"],
        exempt_below: &[],
        // The test cluster's old server stores autoscalers in a version that knows no behaviour and keeps it in an
        // annotation, from which it comes back; newer servers remove it.
        stays: &["autoscaling.behavior"],
        makes: &[],
        shared: |_| None,
    }
}

const MAIN: &str = "spec/template/spec/containers/[name=mcp-server]";

fn rows() -> Vec<Row> {
    let run = || json!({"runtime": "python-string"});
    let package = || json!({"config": {"mcp": "tool"}});
    let scaled = |more: Value| {
        let mut block = json!({"enabled": true});
        merge(&mut block, &more);
        json!({"runtime": "python-string", "autoscaling": block})
    };
    let secret = |name: &str, key: &str, optional: bool| {
        let mut selector = json!({"name": name, "key": key});
        if optional {
            selector["optional"] = json!(true);
        }
        json!({"config": {"tools": {"fromSecretKeyRef": selector}}})
    };
    let code = "[name=MCP_TOOLS_STRING]";
    let main = |rest: &str| -> &'static str { format!("{MAIN}/{rest}").leak() };
    let init = |rest: &str| -> &'static str {
        format!("spec/template/spec/initContainers/[name=install]/{rest}").leak()
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
    vec![
        row(
            "runtime",
            run(),
            json!({"runtime": "kubernetes"}),
            "Deployment",
            main("args"),
            json!(["--port", "8000"]),
        ),
        row(
            "params",
            run(),
            json!({"params": "x"}),
            "Deployment",
            main(&format!("env/{code}/value")),
            json!("x"),
        ),
        row(
            "type",
            package(),
            json!({"type": "node-runtime"}),
            "Deployment",
            main("image"),
            json!("~node"),
        ),
        row(
            "config.mcp",
            package(),
            json!({"config": {"mcp": "b"}}),
            "Deployment",
            init("env/[name=MCP_PACKAGE]/value"),
            json!("b"),
        ),
        row(
            "config.toolsString",
            json!({"config": {"toolsString": "a"}}),
            json!({"config": {"toolsString": "b"}}),
            "Deployment",
            main(&format!("env/{code}/value")),
            json!("b"),
        ),
        row(
            "config.tools.fromPackage",
            json!({"config": {"tools": {"fromPackage": "a"}}}),
            json!({"config": {"tools": {"fromPackage": "b"}}}),
            "Deployment",
            init("env/[name=MCP_PACKAGE]/value"),
            json!("b"),
        ),
        row(
            "config.tools.fromString",
            json!({"config": {"tools": {"fromString": "a"}}}),
            json!({"config": {"tools": {"fromString": "b"}}}),
            "Deployment",
            main(&format!("env/{code}/value")),
            json!("b"),
        ),
        row(
            "config.tools.fromSecretKeyRef.name",
            secret("code", "a", false),
            secret("more", "a", false),
            "Deployment",
            main(&format!("env/{code}/valueFrom/secretKeyRef/name")),
            json!("more"),
        ),
        row(
            "config.tools.fromSecretKeyRef.key",
            secret("code", "a", false),
            secret("code", "b", false),
            "Deployment",
            main(&format!("env/{code}/valueFrom/secretKeyRef/key")),
            json!("b"),
        ),
        row(
            "config.tools.fromSecretKeyRef.optional",
            secret("code", "a", false),
            secret("code", "a", true),
            "Deployment",
            main(&format!("env/{code}/valueFrom/secretKeyRef/optional")),
            json!(true),
        ),
        row(
            "config.transport",
            package(),
            json!({"config": {"transport": "stdio"}}),
            "Deployment",
            main("command/2"),
            json!("~mcp-proxy"),
        ),
        row(
            "config.indexUrl",
            package(),
            json!({"config": {"indexUrl": "http://index/simple"}}),
            "Deployment",
            init("env/[name=PIP_INDEX_URL]/value"),
            json!("http://index/simple"),
        ),
        row(
            "config.args",
            package(),
            json!({"config": {"args": ["--x"]}}),
            "Deployment",
            main("args"),
            json!(["tool", "--x"]),
        ),
        row(
            "config.env",
            package(),
            json!({"config": {"env": [{"name": "A", "value": "1"}]}}),
            "Deployment",
            main("env/[name=A]/value"),
            json!("1"),
        ),
        row(
            "serviceAccountName",
            run(),
            json!({"serviceAccountName": "robot"}),
            "Deployment",
            "spec/template/spec/serviceAccountName",
            json!("robot"),
        ),
        row(
            "replicas",
            run(),
            json!({"replicas": 3}),
            "Deployment",
            "spec/replicas",
            json!(3),
        ),
        row(
            "autoscaling.enabled",
            scaled(json!({})),
            json!({"autoscaling": {"enabled": false}}),
            "HorizontalPodAutoscaler",
            "spec/maxReplicas",
            Value::Null,
        ),
        row(
            "autoscaling.minReplicas",
            scaled(json!({})),
            json!({"autoscaling": {"minReplicas": 2}}),
            "HorizontalPodAutoscaler",
            "spec/minReplicas",
            json!(2),
        ),
        row(
            "autoscaling.maxReplicas",
            scaled(json!({})),
            json!({"autoscaling": {"maxReplicas": 7}}),
            "HorizontalPodAutoscaler",
            "spec/maxReplicas",
            json!(7),
        ),
        row(
            "autoscaling.targetCPU",
            scaled(json!({})),
            json!({"autoscaling": {"targetCPU": 42}}),
            "HorizontalPodAutoscaler",
            "spec/metrics/0/resource/target/averageUtilization",
            json!(42),
        ),
        row(
            "autoscaling.targetMemory",
            scaled(json!({})),
            json!({"autoscaling": {"targetMemory": 42}}),
            "HorizontalPodAutoscaler",
            "spec/metrics/0/resource/name",
            json!("memory"),
        ),
        row(
            "autoscaling.metrics",
            scaled(json!({})),
            json!({"autoscaling": {"metrics": [{"name": "queue", "averageValue": "5"}]}}),
            "HorizontalPodAutoscaler",
            "spec/metrics/0/pods/metric/name",
            json!("queue"),
        ),
        row(
            "autoscaling.behavior",
            scaled(json!({})),
            json!({"autoscaling": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 33}}}}),
            "HorizontalPodAutoscaler",
            "spec/behavior/scaleDown/stabilizationWindowSeconds",
            json!(33),
        ),
        row(
            "resources.limits",
            run(),
            json!({"resources": {"limits": {"memory": "1Gi"}}}),
            "Deployment",
            main("resources/limits/memory"),
            json!("1Gi"),
        ),
        row(
            "resources.requests",
            run(),
            json!({"resources": {"requests": {"cpu": "70m"}}}),
            "Deployment",
            main("resources/requests/cpu"),
            json!("70m"),
        ),
        row(
            "telemetry.enabled",
            run(),
            json!({"telemetry": {"enabled": true}}),
            "Deployment",
            main("env/[name=OTEL_SDK_DISABLED]/value"),
            json!("false"),
        ),
        row(
            "telemetry.endpoint",
            json!({"runtime": "python-string", "telemetry": {"enabled": true}}),
            json!({"telemetry": {"endpoint": "http://otel:4317"}}),
            "Deployment",
            main("env/[name=OTEL_EXPORTER_OTLP_ENDPOINT]/value"),
            json!("http://otel:4317"),
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
            json!([{"secretRef": {"name": "code"}}]),
            main("envFrom/0/secretRef/name"),
            json!("code"),
        ),
        row(
            "container.resources.limits",
            run(),
            json!({"container": {"resources": {"limits": {"cpu": "2"}}}}),
            "Deployment",
            main("resources/limits/cpu"),
            json!("2"),
        ),
        row(
            "container.resources.requests",
            run(),
            json!({"container": {"resources": {"requests": {"memory": "99Mi"}}}}),
            "Deployment",
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
        row(
            "podSpec",
            run(),
            json!({"podSpec": {"hostname": "h"}}),
            "Deployment",
            "spec/template/spec/hostname",
            json!("h"),
        ),
    ]
}
