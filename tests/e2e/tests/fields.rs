//! Every field of every kind reaches a child, and removing it goes back. The table must name every field of the schema:
//! a new field without a row fails here.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually, fixtures::mcpserver_resource, operator, snapshot::child_kinds,
};
use gantry_kit::{Options, testing::Faults};
use gantry_operator::{Settings, settings::Gateway};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

/// One field: where it starts, what it is set to, and where that must be seen.
struct Row {
    field: &'static str,
    start: Value,
    set: Value,
    child: &'static str,
    /// Segments by `/`; `[key=value]` picks a list item.
    pointer: &'static str,
    /// The expected value; a text that starts with `~` must be contained.
    expected: Value,
}

const MAIN: &str = "spec/template/spec/containers/[name=mcp-server]";

fn rows() -> Vec<Row> {
    let row = |field, start: Value, set: Value, child, pointer, expected: Value| Row {
        field,
        start,
        set,
        child,
        pointer,
        expected,
    };
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

/// Fields that the test cluster's old server cannot show, and why.
const EXEMPT: &[&str] = &[
    // Dynamic resource allocation is newer than this server, which refuses the field.
    "resources.claims",
    "container.resources.claims",
];

/// The test cluster's old server stores autoscalers in a version that knows no behaviour and keeps it in an annotation,
/// from which it comes back; newer servers remove it.
const STAYS_ON_THIS_SERVER: &[&str] = &["autoscaling.behavior"];

#[test]
fn every_field_has_a_row() {
    let crd = gantry_crds::crd("MCPServer").expect("known kind");
    let schema = json!(crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone();
    let mut fields = BTreeSet::new();
    leaves(&schema, "", &mut fields);
    let covered: BTreeSet<String> = rows().iter().map(|row| row.field.to_owned()).collect();
    let missing: Vec<&String> = fields
        .iter()
        .filter(|field| !covered.contains(*field) && !EXEMPT.contains(&field.as_str()))
        .collect();
    assert!(missing.is_empty(), "fields without a row: {missing:?}");
    let unknown: Vec<&String> = covered.difference(&fields).collect();
    assert!(unknown.is_empty(), "rows without a field: {unknown:?}");
}

fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(properties) => {
            for (name, inner) in properties {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(inner, &path, found);
            }
        }
        None => {
            found.insert(path.to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_reaches_a_child_and_every_removal_goes_back() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    install_http_routes(&cluster).await?;
    for name in ["code", "more"] {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name}, "stringData": {"a": "def a(): pass", "b": "def b(): pass"},
        }))?;
        Api::namespaced(cluster.client.clone(), &cluster.namespace)
            .create(&PostParams::default(), &secret)
            .await?;
    }
    let gateway = Gateway {
        name: "gw".into(),
        namespace: "gw".into(),
        mcp_timeout: "60s".into(),
    };
    let settings = Settings {
        gateway: Some(gateway),
        ..operator::settings()
    };
    let _operator = Running::start_with(&cluster, &Faults::default(), Options::default(), settings).await?;
    let rows = rows();
    let object = |index: usize, spec: Value| {
        json!({
            "apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer",
            "metadata": {"name": format!("row-{index}")}, "spec": spec,
        })
    };
    let mut before = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        cluster
            .apply(&mcpserver_resource(), &object(index, row.start.clone()))
            .await?;
    }
    for (index, row) in rows.iter().enumerate() {
        // The Deployment comes last, but the autoscaler and the route after it: wait for all that there will be.
        let seen = eventually(async || {
            let seen = look(&cluster, row, index).await?;
            let wanted = !row.expected.is_null() || row.field == "params";
            let needs_object = matches!(row.child, "HorizontalPodAutoscaler" | "HTTPRoute") && !wanted;
            ensure!(seen.exists, "{} of {} is not there yet", row.child, row.field);
            ensure!(!needs_object || !seen.value.is_null(), "not complete yet");
            Ok(seen.value)
        })
        .await
        .with_context(|| format!("start of {}", row.field))?;
        assert!(
            !matches(&seen, &row.expected),
            "{} starts with what it is set to",
            row.field
        );
        before.push(seen);
    }
    for (index, row) in rows.iter().enumerate() {
        let mut spec = row.start.clone();
        merge(&mut spec, &row.set);
        cluster.apply(&mcpserver_resource(), &object(index, spec)).await?;
    }
    for (index, row) in rows.iter().enumerate() {
        expect(&cluster, row, index, &row.expected)
            .await
            .with_context(|| format!("change of {}", row.field))?;
    }
    for (index, row) in rows.iter().enumerate() {
        cluster
            .apply(&mcpserver_resource(), &object(index, row.start.clone()))
            .await?;
    }
    for (index, row) in rows.iter().enumerate() {
        if STAYS_ON_THIS_SERVER.contains(&row.field) {
            continue;
        }
        expect(&cluster, row, index, &before[index])
            .await
            .with_context(|| format!("removal of {}", row.field))?;
    }
    cluster.done().await
}

struct Seen {
    exists: bool,
    value: Value,
}

async fn expect(cluster: &Cluster, row: &Row, index: usize, expected: &Value) -> anyhow::Result<()> {
    eventually(async || {
        let seen = look(cluster, row, index).await?.value;
        ensure!(
            matches(&seen, expected),
            "{} is {seen}, not {expected}",
            row.pointer
        );
        Ok(())
    })
    .await
}

fn matches(seen: &Value, expected: &Value) -> bool {
    match expected.as_str().and_then(|text| text.strip_prefix('~')) {
        Some(part) => seen.as_str().is_some_and(|seen| seen.contains(part)),
        None => seen == expected,
    }
}

async fn look(cluster: &Cluster, row: &Row, index: usize) -> anyhow::Result<Seen> {
    let kind = child_kinds()
        .into_iter()
        .find(|kind| kind.kind == row.child)
        .context("unknown child")?;
    let prefix = if row.child == "HTTPRoute" {
        "mcp"
    } else {
        "mcpserver"
    };
    let found = cluster
        .api(&kind)
        .get_opt(&format!("{prefix}-row-{index}"))
        .await?;
    let exists = found.is_some();
    let value = found
        .map(|object| pick(&json!(object), row.pointer))
        .unwrap_or_default();
    Ok(Seen { exists, value })
}

fn pick(value: &Value, pointer: &str) -> Value {
    let mut value = Some(value);
    let mut rest = pointer;
    while !rest.is_empty() {
        let end = if rest.starts_with('[') {
            rest.find(']').map(|end| end + 1)
        } else {
            rest.find('/')
        };
        let (segment, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after.trim_start_matches('/');
        value = value.and_then(|value| step(value, segment));
    }
    value.cloned().unwrap_or_default()
}

fn step<'a>(value: &'a Value, segment: &str) -> Option<&'a Value> {
    if let Some(choice) = segment
        .strip_prefix('[')
        .and_then(|segment| segment.strip_suffix(']'))
    {
        let (key, wanted) = choice.split_once('=')?;
        return value.as_array()?.iter().find(|item| item[key] == wanted);
    }
    match segment.parse::<usize>() {
        Ok(index) => value.get(index),
        Err(_) => value.get(segment),
    }
}

fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(
                    base.entry(key.clone()).or_insert(Value::Object(Map::new())),
                    value,
                );
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

/// A stand-in for the Gateway API: the name and version are what counts, any spec is accepted.
async fn install_http_routes(cluster: &Cluster) -> anyhow::Result<()> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "httproutes.gateway.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
        },
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute", "listKind": "HTTPRouteList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": open},
            }}}],
        },
    });
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let name = "httproutes.gateway.networking.k8s.io";
    api.patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(&crd))
        .await?;
    Ok(())
}
