//! ModelAPI.

use gantry_e2e::fixtures::modelapi_resource;
use serde_json::{Value, json};

use super::{Row, Table, merge, row};

pub fn table() -> Table {
    let data = || json!({"a": "one", "b": "two", "config.yaml": "model_list: []"});
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data()});
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data()});
    Table {
        kind: "ModelAPI",
        resource: modelapi_resource(),
        rows: rows(),
        before: vec![secret("keys"), secret("more"), map("keys-map"), map("more-map")],
        child_name: |child, root| match child {
            "ConfigMap" => format!("litellm-config-{root}"),
            "PersistentVolumeClaim" => format!("modelapi-{root}-models"),
            _ => format!("modelapi-{root}"),
        },
        // Dynamic resource allocation is newer than this server, which refuses the field.
        exempt: &["resources.claims", "container.resources.claims"],
        exempt_below: &[],
        // As with MCPServer: the old server gives the behaviour back.
        stays: &["autoscaling.behavior"],
        // Of a claim that is there, its class, mode and (with the cluster's class) size cannot change.
        makes: &[
            "hostedConfig.storage.size",
            "hostedConfig.storage.storageClassName",
            "hostedConfig.storage.accessMode",
            "serverConfig.storage.size",
            "serverConfig.storage.storageClassName",
            "serverConfig.storage.accessMode",
        ],
        shared: |_| None,
    }
}

fn rows() -> Vec<Row> {
    let mut rows = proxy();
    rows.extend(hosted("hostedConfig"));
    rows.extend(hosted("serverConfig"));
    rows.extend(common());
    rows.extend(container());
    rows
}

fn run() -> Value {
    json!({"mode": "Proxy", "proxyConfig": {}})
}

fn main(rest: &str) -> &'static str {
    format!("spec/template/spec/containers/[name=model-api]/{rest}").leak()
}

fn proxy() -> Vec<Row> {
    let with = |more: Value| {
        let mut spec = run();
        merge(&mut spec, &json!({"proxyConfig": more}));
        spec
    };
    let change = |field: &'static str,
                  start: Value,
                  set: Value,
                  child: &'static str,
                  pointer: &'static str,
                  expected: Value| {
        row(
            field,
            with(start),
            json!({"proxyConfig": set}),
            child,
            pointer,
            expected,
        )
    };
    let config = "data/config.yaml";
    let secret = |selector: Value| json!({"apiKey": {"valueFrom": {"secretKeyRef": selector}}});
    let map = |selector: Value| json!({"apiKey": {"valueFrom": {"configMapKeyRef": selector}}});
    let yaml = |selector: Value| json!({"configYaml": {"fromSecretKeyRef": selector}});
    let key = |rest: &str| main(&format!("env/[name=PROXY_API_KEY]/{rest}"));
    let volume = |rest: &str| -> &'static str {
        format!("spec/template/spec/volumes/[name=secret-config]/secret/{rest}").leak()
    };
    let a = || json!({"name": "keys", "key": "a"});
    let map_a = || json!({"name": "keys-map", "key": "a"});
    vec![
        row(
            "mode",
            json!({"mode": "Proxy", "proxyConfig": {}, "hostedConfig": {"model": "m"}}),
            json!({"mode": "Hosted"}),
            "Service",
            "spec/ports/0/port",
            json!(11434),
        ),
        change(
            "proxyConfig.models",
            json!({}),
            json!({"models": ["gpt-x"]}),
            "ConfigMap",
            config,
            json!("~gpt-x"),
        ),
        change(
            "proxyConfig.provider",
            json!({}),
            json!({"provider": "gemini"}),
            "ConfigMap",
            config,
            json!("~gemini/*"),
        ),
        change(
            "proxyConfig.apiBase",
            json!({}),
            json!({"apiBase": "http://stub/v1"}),
            "Deployment",
            main("env/[name=PROXY_API_BASE]/value"),
            json!("http://stub/v1"),
        ),
        change(
            "proxyConfig.apiKey.value",
            json!({}),
            json!({"apiKey": {"value": "k"}}),
            "Deployment",
            key("value"),
            json!("k"),
        ),
        change(
            "proxyConfig.apiKey.valueFrom.secretKeyRef.name",
            secret(a()),
            secret(json!({"name": "more"})),
            "Deployment",
            key("valueFrom/secretKeyRef/name"),
            json!("more"),
        ),
        change(
            "proxyConfig.apiKey.valueFrom.secretKeyRef.key",
            secret(a()),
            secret(json!({"key": "b"})),
            "Deployment",
            key("valueFrom/secretKeyRef/key"),
            json!("b"),
        ),
        change(
            "proxyConfig.apiKey.valueFrom.secretKeyRef.optional",
            secret(a()),
            secret(json!({"optional": true})),
            "Deployment",
            key("valueFrom/secretKeyRef/optional"),
            json!(true),
        ),
        change(
            "proxyConfig.apiKey.valueFrom.configMapKeyRef.name",
            map(map_a()),
            map(json!({"name": "more-map"})),
            "Deployment",
            key("valueFrom/configMapKeyRef/name"),
            json!("more-map"),
        ),
        change(
            "proxyConfig.apiKey.valueFrom.configMapKeyRef.key",
            map(map_a()),
            map(json!({"key": "b"})),
            "Deployment",
            key("valueFrom/configMapKeyRef/key"),
            json!("b"),
        ),
        change(
            "proxyConfig.apiKey.valueFrom.configMapKeyRef.optional",
            map(map_a()),
            map(json!({"optional": true})),
            "Deployment",
            key("valueFrom/configMapKeyRef/optional"),
            json!(true),
        ),
        change(
            "proxyConfig.configYaml.fromString",
            json!({}),
            json!({"configYaml": {"fromString": "model_list: []"}}),
            "ConfigMap",
            config,
            json!("model_list: []"),
        ),
        change(
            "proxyConfig.configYaml.fromSecretKeyRef.name",
            json!({}),
            yaml(json!({"name": "more", "key": "a"})),
            "Deployment",
            volume("secretName"),
            json!("more"),
        ),
        change(
            "proxyConfig.configYaml.fromSecretKeyRef.key",
            yaml(a()),
            yaml(json!({"key": "config.yaml"})),
            "Deployment",
            volume("items/0/key"),
            json!("config.yaml"),
        ),
        change(
            "proxyConfig.configYaml.fromSecretKeyRef.optional",
            yaml(a()),
            yaml(json!({"optional": true})),
            "Deployment",
            volume("optional"),
            json!(true),
        ),
        change(
            "proxyConfig.env",
            json!({}),
            json!({"env": [{"name": "A", "value": "1"}]}),
            "Deployment",
            main("env/[name=A]/value"),
            json!("1"),
        ),
    ]
}

/// The block has two names; both reach the same children.
fn hosted(block: &'static str) -> Vec<Row> {
    let with = |more: Value| {
        let mut inner = json!({"model": "m"});
        merge(&mut inner, &more);
        json!({"mode": "Hosted", block: inner})
    };
    let change = |field: &str,
                  start: Value,
                  set: Value,
                  child: &'static str,
                  pointer: &'static str,
                  expected: Value| {
        let field: &'static str = format!("{block}.{field}").leak();
        row(field, with(start), json!({block: set}), child, pointer, expected)
    };
    let off = || json!({"storage": {"enabled": false}});
    let on = |more: Value| {
        let mut storage = json!({"enabled": true});
        merge(&mut storage, &more);
        json!({"storage": storage})
    };
    let claim_name = "spec/template/spec/volumes/[name=ollama-claim]/persistentVolumeClaim/claimName";
    let pull = |name: &str| -> &'static str {
        format!("spec/template/spec/initContainers/[name=pull-model]/env/[name={name}]/value").leak()
    };
    let claim = "PersistentVolumeClaim";
    vec![
        change(
            "model",
            json!({}),
            json!({"model": "n"}),
            "Deployment",
            pull("PULL_MODEL"),
            json!("n"),
        ),
        change(
            "env",
            json!({}),
            json!({"env": [{"name": "A", "value": "1"}]}),
            "Deployment",
            main("env/[name=A]/value"),
            json!("1"),
        ),
        change(
            "pullTimeoutSeconds",
            json!({}),
            json!({"pullTimeoutSeconds": 77}),
            "Deployment",
            pull("PULL_SECONDS"),
            json!("77"),
        ),
        change(
            "storage.enabled",
            off(),
            on(json!({})),
            "Deployment",
            claim_name,
            json!("~-models"),
        ),
        change(
            "storage.size",
            off(),
            on(json!({"size": "3Gi"})),
            claim,
            "spec/resources/requests/storage",
            json!("3Gi"),
        ),
        change(
            "storage.storageClassName",
            off(),
            on(json!({"storageClassName": "standard"})),
            claim,
            "spec/storageClassName",
            json!("standard"),
        ),
        change(
            "storage.accessMode",
            off(),
            on(json!({"accessMode": "ReadWriteMany"})),
            claim,
            "spec/accessModes/0",
            json!("ReadWriteMany"),
        ),
        change(
            "storage.existingClaim",
            off(),
            on(json!({"existingClaim": "theirs"})),
            "Deployment",
            claim_name,
            json!("theirs"),
        ),
        // A retained claim belongs to nobody.
        change(
            "storage.deletionPolicy",
            on(json!({})),
            json!({"storage": {"deletionPolicy": "Retain"}}),
            claim,
            "metadata/ownerReferences",
            Value::Null,
        ),
    ]
}

fn common() -> Vec<Row> {
    let scaled = |more: Value| {
        let mut spec = run();
        merge(&mut spec, &json!({"autoscaling": {"enabled": true}}));
        merge(&mut spec, &json!({"autoscaling": more}));
        spec
    };
    let hpa = |field: &'static str, set: Value, pointer: &'static str, expected: Value| {
        row(
            field,
            scaled(json!({})),
            json!({"autoscaling": set}),
            "HorizontalPodAutoscaler",
            pointer,
            expected,
        )
    };
    let set = |field: &'static str, set: Value, pointer: &'static str, expected: Value| {
        row(field, run(), set, "Deployment", pointer, expected)
    };
    let route = |field: &'static str, set: Value, pointer: &'static str, expected: Value| {
        row(
            field,
            run(),
            json!({"gatewayRoute": set}),
            "HTTPRoute",
            pointer,
            expected,
        )
    };
    let mut measured = run();
    measured["telemetry"] = json!({"enabled": true});
    vec![
        set("replicas", json!({"replicas": 3}), "spec/replicas", json!(3)),
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
        set(
            "resources.limits",
            json!({"resources": {"limits": {"memory": "3Gi"}}}),
            main("resources/limits/memory"),
            json!("3Gi"),
        ),
        set(
            "resources.requests",
            json!({"resources": {"requests": {"cpu": "70m"}}}),
            main("resources/requests/cpu"),
            json!("70m"),
        ),
        set(
            "serviceAccountName",
            json!({"serviceAccountName": "robot"}),
            "spec/template/spec/serviceAccountName",
            json!("robot"),
        ),
        set(
            "imagePullSecrets",
            json!({"imagePullSecrets": [{"name": "registry"}]}),
            "spec/template/spec/imagePullSecrets/0/name",
            json!("registry"),
        ),
        set(
            "telemetry.enabled",
            json!({"telemetry": {"enabled": true}}),
            main("env/[name=OTEL_EXPORTER]/value"),
            json!("otlp_grpc"),
        ),
        row(
            "telemetry.endpoint",
            measured,
            json!({"telemetry": {"endpoint": "http://otel:4317"}}),
            "Deployment",
            main("env/[name=OTEL_EXPORTER_OTLP_ENDPOINT]/value"),
            json!("http://otel:4317"),
        ),
        route(
            "gatewayRoute.enabled",
            json!({"enabled": false}),
            "spec/rules/0/backendRefs/0/port",
            Value::Null,
        ),
        route(
            "gatewayRoute.timeout",
            json!({"timeout": "5s"}),
            "spec/rules/0/timeouts/request",
            json!("5s"),
        ),
        route(
            "gatewayRoute.retries",
            json!({"retries": 2}),
            "spec/rules/0/retry/attempts",
            json!(2),
        ),
        set(
            "podSpec",
            json!({"podSpec": {"hostname": "h"}}),
            "spec/template/spec/hostname",
            json!("h"),
        ),
    ]
}

fn container() -> Vec<Row> {
    let of = |field: &str, value: Value, pointer: &str, expected: Value| {
        let name: &'static str = format!("container.{field}").leak();
        let mut set = value;
        for part in field.rsplit('.') {
            set = json!({part: set});
        }
        row(
            name,
            run(),
            json!({"container": set}),
            "Deployment",
            main(pointer),
            expected,
        )
    };
    vec![
        of("image", json!("mine:1"), "image", json!("mine:1")),
        of(
            "imagePullPolicy",
            json!("Never"),
            "imagePullPolicy",
            json!("Never"),
        ),
        of("command", json!(["run"]), "command", json!(["run"])),
        of("args", json!(["--now"]), "args", json!(["--now"])),
        of(
            "env",
            json!([{"name": "B", "value": "2"}]),
            "env/[name=B]/value",
            json!("2"),
        ),
        of(
            "envFrom",
            json!([{"secretRef": {"name": "keys"}}]),
            "envFrom/0/secretRef/name",
            json!("keys"),
        ),
        of(
            "resources.limits",
            json!({"cpu": "3"}),
            "resources/limits/cpu",
            json!("3"),
        ),
        of(
            "resources.requests",
            json!({"memory": "99Mi"}),
            "resources/requests/memory",
            json!("99Mi"),
        ),
        of(
            "securityContext",
            json!({"runAsUser": 5}),
            "securityContext/runAsUser",
            json!(5),
        ),
        of("workingDir", json!("/work"), "workingDir", json!("/work")),
        of(
            "volumeMounts",
            json!([{"name": "tmp", "mountPath": "/x"}]),
            "volumeMounts/[mountPath=/x]/name",
            json!("tmp"),
        ),
    ]
}
