//! Model.

use gantry_e2e::fixtures::model_resource;
use serde_json::{Value, json};

use super::{Row, Table, merge, row};

pub fn table() -> Table {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "mine"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let env = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "model-env"}, "data": {"A": "1"}});
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"a": "1", "b": "2"}});
    Table {
        kind: "Model",
        resource: model_resource(),
        rows: rows(),
        before: vec![claim, env, secret("keys"), secret("more")],
        child_name: |child, root| match child {
            "StatefulSet" => format!("ollama-models-store-{root}"),
            "PersistentVolumeClaim" => format!("ollama-models-store-{root}-pvc"),
            _ => format!("ollama-model-{root}"),
        },
        exempt_below: &[],
        shared: |_| None,
        exempt: &[
            // Dynamic resource allocation is newer than this server, which refuses the field.
            "resources.claims",
            "store.resources.claims",
            "server.proxy.resources.claims",
            // Newer than this server.
            "service.loadBalancerClass",
            // Seen when the last Model of its weights goes: `a_model_waits_for_its_weights_to_go_and_says_so_unless_they_stay`.
            "store.weightsPolicy",
            // How the operator itself behaves.
            "pull.stallTimeoutSeconds",
        ],
        stays: &[
            // The test cluster's old server stores autoscalers in a version that knows no behaviour and keeps it in an
            // annotation, from which it comes back; newer servers remove it.
            "autoscaling.behavior",
            // A port that was given once stays until the type changes.
            "service.nodePort",
        ],
        // Of a claim that is there, its class and (with the cluster's class) size cannot change.
        makes: &[
            "storageClassName",
            "store.size",
            "monitoring.serviceMonitor",
            "monitoring.podMonitor",
            "monitoring.prometheusRule",
        ],
    }
}

const POD: &str = "spec/template/spec";

fn rows() -> Vec<Row> {
    let plain = || json!({"image": "phi3"});
    let with = |more: Value| {
        let mut spec = plain();
        merge(&mut spec, &more);
        spec
    };
    let alone = || json!({"image": "phi3", "store": {"scope": "PerModel"}});
    // A volume of its own goes when the Model goes back to the one that all share.
    let shared = || json!({"image": "phi3", "store": {"deletionPolicy": "Delete"}});
    let scaled = || with(json!({"autoscaling": {"enabled": true}}));
    let reached = || with(json!({"ingress": {"host": "a.example.org"}}));
    let server = |rest: &str| -> &'static str { format!("{POD}/containers/[name=server]/{rest}").leak() };
    let init = |rest: &str| -> &'static str {
        format!("{POD}/initContainers/[name=ollama-image-pull]/{rest}").leak()
    };
    let pod = |rest: &str| -> &'static str { format!("{POD}/{rest}").leak() };
    let claim = || pod("volumes/[name=image-storage]/persistentVolumeClaim/claimName");
    let on_pod = |field, set: Value, pointer, expected: Value| {
        row(field, plain(), set, "Deployment", pointer, expected)
    };
    let on_store = |field: &'static str, value: Value, pointer, expected: Value| {
        let name = field.rsplit('.').next().unwrap_or(field);
        row(
            field,
            alone(),
            json!({"store": {name: value}}),
            "StatefulSet",
            pointer,
            expected,
        )
    };
    let registry_key = |field, set: Value, pointer: &str, expected: Value| {
        let mut keyed = alone();
        merge(
            &mut keyed,
            &json!({"store": {"registryKey": {"name": "keys", "key": "a"}}}),
        );
        row(
            field,
            keyed,
            json!({"store": {"registryKey": set}}),
            "StatefulSet",
            pod(&format!("volumes/[name=registry-key]/secret/{pointer}")),
            expected,
        )
    };
    let on_service = |field, set: Value, pointer, expected: Value| {
        row(
            field,
            plain(),
            json!({"service": set}),
            "Service",
            pointer,
            expected,
        )
    };
    let on_ingress = |field, set: Value, pointer, expected: Value| {
        row(
            field,
            reached(),
            json!({"ingress": set}),
            "Ingress",
            pointer,
            expected,
        )
    };
    let counted = || with(json!({"server": {"proxy": {"enabled": true}}}));
    let proxy = |rest: &str| -> &'static str { format!("{POD}/containers/[name=model-proxy]/{rest}").leak() };
    let on_proxy = |name: &str, value: Value, pointer: &str, expected: Value| {
        let field: &'static str = format!("server.proxy.{name}").leak();
        let set = json!({"server": {"proxy": {name: value}}});
        row(field, counted(), set, "Deployment", proxy(pointer), expected)
    };
    let on_hpa = |field, set: Value, pointer, expected: Value| {
        let set = json!({"autoscaling": set});
        row(field, scaled(), set, "HorizontalPodAutoscaler", pointer, expected)
    };
    vec![
        on_pod(
            "image",
            json!({"image": "llama3.1:8b"}),
            init("env/[name=MODEL]/value"),
            json!("llama3.1:8b"),
        ),
        on_pod("replicas", json!({"replicas": 3}), "spec/replicas", json!(3)),
        on_pod(
            "imagePullPolicy",
            json!({"imagePullPolicy": "Always"}),
            init("command/2"),
            json!("~until ollama pull"),
        ),
        on_pod(
            "imagePullSecrets",
            json!({"imagePullSecrets": [{"name": "pull"}]}),
            pod("imagePullSecrets/0/name"),
            json!("pull"),
        ),
        on_pod(
            "resources.limits",
            json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}}),
            server("resources/limits"),
            json!({"nvidia.com/gpu": "1"}),
        ),
        on_pod(
            "resources.requests",
            json!({"resources": {"requests": {"cpu": "70m"}}}),
            server("resources/requests/cpu"),
            json!("70m"),
        ),
        on_pod(
            "persistentVolumeClaim",
            json!({"persistentVolumeClaim": "mine"}),
            claim(),
            json!("mine"),
        ),
        row(
            "persistentVolume.accessMode",
            with(json!({"persistentVolumeClaim": {"claimName": "mine"}})),
            json!({"persistentVolume": {"accessMode": "ReadWriteMany"}}),
            "Deployment",
            pod("affinity/podAffinity"),
            Value::Null,
        ),
        on_pod(
            "store.scope",
            json!({"store": {"scope": "PerModel"}}),
            claim(),
            json!("~ollama-models-store-row"),
        ),
        row(
            "storageClassName",
            shared(),
            json!({"storageClassName": "slow", "store": {"scope": "PerModel"}}),
            "PersistentVolumeClaim",
            "spec/storageClassName",
            json!("slow"),
        ),
        row(
            "store.size",
            shared(),
            json!({"store": {"scope": "PerModel", "size": "3Gi"}}),
            "PersistentVolumeClaim",
            "spec/resources/requests/storage",
            json!("3Gi"),
        ),
        on_store(
            "store.deletionPolicy",
            json!("Delete"),
            "metadata/annotations/gantry.dev~1deletion-policy",
            json!("Delete"),
        ),
        on_store("store.image", json!("store:1"), server("image"), json!("store:1")),
        on_store(
            "store.securityContext",
            json!({"runAsUser": 5}),
            pod("securityContext/runAsUser"),
            json!(5),
        ),
        on_store(
            "store.nodeSelector",
            json!({"disk": "large"}),
            pod("nodeSelector/disk"),
            json!("large"),
        ),
        on_store(
            "store.tolerations",
            json!([{"key": "gpu", "operator": "Exists"}]),
            pod("tolerations/0/key"),
            json!("gpu"),
        ),
        on_store(
            "store.env",
            json!([{"name": "HTTPS_PROXY", "value": "http://proxy"}]),
            server("env/[name=HTTPS_PROXY]/value"),
            json!("http://proxy"),
        ),
        registry_key(
            "store.registryKey.name",
            json!({"name": "more"}),
            "secretName",
            json!("more"),
        ),
        registry_key(
            "store.registryKey.key",
            json!({"key": "b"}),
            "items/0/key",
            json!("b"),
        ),
        registry_key(
            "store.registryKey.optional",
            json!({"optional": true}),
            "optional",
            json!(true),
        ),
        row(
            "store.resources.limits",
            alone(),
            json!({"store": {"resources": {"limits": {"memory": "2Gi"}}}}),
            "StatefulSet",
            server("resources/limits/memory"),
            json!("2Gi"),
        ),
        row(
            "store.resources.requests",
            alone(),
            json!({"store": {"resources": {"requests": {"cpu": "70m"}}}}),
            "StatefulSet",
            server("resources/requests/cpu"),
            json!("70m"),
        ),
        on_pod(
            "pull.insecure",
            json!({"pull": {"insecure": true}}),
            init("command/2"),
            json!("~--insecure"),
        ),
        on_pod(
            "pull.image",
            json!({"pull": {"image": "puller:1"}}),
            init("image"),
            json!("puller:1"),
        ),
        on_pod(
            "server.image",
            json!({"server": {"image": "ollama:rocm"}}),
            server("image"),
            json!("ollama:rocm"),
        ),
        on_pod(
            "server.imagePullPolicy",
            json!({"server": {"imagePullPolicy": "Never"}}),
            server("imagePullPolicy"),
            json!("Never"),
        ),
        on_pod(
            "server.startupTimeoutSeconds",
            json!({"server": {"startupTimeoutSeconds": 50}}),
            server("startupProbe/failureThreshold"),
            json!(10),
        ),
        on_pod(
            "server.netBindService",
            json!({"server": {"netBindService": true}}),
            server("securityContext/capabilities/add"),
            json!(["NET_BIND_SERVICE"]),
        ),
        on_pod(
            "server.proxy.enabled",
            json!({"server": {"proxy": {"enabled": true}}}),
            proxy("ports/[name=ollama]/containerPort"),
            json!(11434),
        ),
        on_proxy("image", json!("proxy:1"), "image", json!("proxy:1")),
        on_proxy("maxConcurrency", json!(7), "args/10", json!("7")),
        row(
            "server.proxy.resources.limits",
            counted(),
            json!({"server": {"proxy": {"resources": {"limits": {"memory": "64Mi"}}}}}),
            "Deployment",
            proxy("resources/limits/memory"),
            json!("64Mi"),
        ),
        row(
            "server.proxy.resources.requests",
            counted(),
            json!({"server": {"proxy": {"resources": {"requests": {"cpu": "70m"}}}}}),
            "Deployment",
            proxy("resources/requests/cpu"),
            json!("70m"),
        ),
        on_pod(
            "runtimeClassName",
            json!({"runtimeClassName": "nvidia"}),
            pod("runtimeClassName"),
            json!("nvidia"),
        ),
        on_pod(
            "extraEnvFrom",
            json!({"extraEnvFrom": [{"configMapRef": {"name": "model-env"}}]}),
            server("envFrom/0/configMapRef/name"),
            json!("model-env"),
        ),
        on_pod(
            "extraEnv",
            json!({"extraEnv": [{"name": "OLLAMA_DEBUG", "value": "1"}]}),
            server("env/[name=OLLAMA_DEBUG]/value"),
            json!("1"),
        ),
        on_pod(
            "podTemplate",
            json!({"podTemplate": {"spec": {"containers": [{"name": "server", "args": ["serve", "--now"]}]}}}),
            server("args"),
            json!(["serve", "--now"]),
        ),
        on_pod(
            "serviceAccountName",
            json!({"serviceAccountName": "robot"}),
            pod("serviceAccountName"),
            json!("robot"),
        ),
        on_service(
            "service.type",
            json!({"type": "NodePort"}),
            "spec/type",
            json!("NodePort"),
        ),
        on_service(
            "service.port",
            json!({"port": 80}),
            "spec/ports/0/port",
            json!(80),
        ),
        row(
            "service.nodePort",
            with(json!({"service": {"type": "NodePort"}})),
            json!({"service": {"nodePort": 31987}}),
            "Service",
            "spec/ports/0/nodePort",
            json!(31987),
        ),
        on_service(
            "service.annotations",
            json!({"annotations": {"lb": "fast"}}),
            "metadata/annotations/lb",
            json!("fast"),
        ),
        on_ingress(
            "ingress.enabled",
            json!({"enabled": false}),
            "spec/rules/0/host",
            Value::Null,
        ),
        on_ingress(
            "ingress.className",
            json!({"className": "nginx"}),
            "spec/ingressClassName",
            json!("nginx"),
        ),
        on_ingress(
            "ingress.host",
            json!({"host": "b.example.org"}),
            "spec/rules/0/host",
            json!("b.example.org"),
        ),
        on_ingress(
            "ingress.path",
            json!({"path": "/phi"}),
            "spec/rules/0/http/paths/0/path",
            json!("/phi"),
        ),
        on_ingress(
            "ingress.pathType",
            json!({"pathType": "Exact"}),
            "spec/rules/0/http/paths/0/pathType",
            json!("Exact"),
        ),
        on_ingress(
            "ingress.tls.secretName",
            json!({"tls": {"secretName": "cert"}}),
            "spec/tls/0/secretName",
            json!("cert"),
        ),
        on_ingress(
            "ingress.tls.hosts",
            json!({"tls": {"hosts": ["c.example.org"]}}),
            "spec/tls/0/hosts",
            json!(["c.example.org"]),
        ),
        on_ingress(
            "ingress.annotations",
            json!({"annotations": {"body": "8m"}}),
            "metadata/annotations/body",
            json!("8m"),
        ),
        row(
            "gatewayRoute.enabled",
            plain(),
            json!({"gatewayRoute": {"enabled": false}}),
            "HTTPRoute",
            "spec/rules/0/backendRefs/0/port",
            Value::Null,
        ),
        row(
            "gatewayRoute.timeout",
            plain(),
            json!({"gatewayRoute": {"timeout": "5s"}}),
            "HTTPRoute",
            "spec/rules/0/timeouts/request",
            json!("5s"),
        ),
        row(
            "gatewayRoute.retries",
            plain(),
            json!({"gatewayRoute": {"retries": 2}}),
            "HTTPRoute",
            "spec/rules/0/retry/attempts",
            json!(2),
        ),
        on_hpa(
            "autoscaling.enabled",
            json!({"enabled": false}),
            "spec/maxReplicas",
            Value::Null,
        ),
        on_hpa(
            "autoscaling.minReplicas",
            json!({"minReplicas": 2}),
            "spec/minReplicas",
            json!(2),
        ),
        on_hpa(
            "autoscaling.maxReplicas",
            json!({"maxReplicas": 7}),
            "spec/maxReplicas",
            json!(7),
        ),
        on_hpa(
            "autoscaling.targetCPU",
            json!({"targetCPU": 42}),
            "spec/metrics/0/resource/target/averageUtilization",
            json!(42),
        ),
        on_hpa(
            "autoscaling.targetMemory",
            json!({"targetMemory": 42}),
            "spec/metrics/0/resource/name",
            json!("memory"),
        ),
        on_hpa(
            "autoscaling.targetRequestRate",
            json!({"targetRequestRate": "3"}),
            "spec/metrics/0/pods/metric/name",
            json!("gantry_model_requests_per_second"),
        ),
        on_hpa(
            "autoscaling.targetQueueDepth",
            json!({"targetQueueDepth": "2"}),
            "spec/metrics/0/pods/target/averageValue",
            json!("2"),
        ),
        on_hpa(
            "autoscaling.metrics",
            json!({"metrics": [{"name": "queue", "averageValue": "5"}]}),
            "spec/metrics/0/pods/metric/name",
            json!("queue"),
        ),
        on_hpa(
            "autoscaling.behavior",
            json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 33}}}),
            "spec/behavior/scaleDown/stabilizationWindowSeconds",
            json!(33),
        ),
        row(
            "monitoring.serviceMonitor",
            plain(),
            json!({"monitoring": {"serviceMonitor": true}}),
            "ServiceMonitor",
            "spec/endpoints/0/port",
            json!("metrics"),
        ),
        row(
            "monitoring.podMonitor",
            plain(),
            json!({"monitoring": {"podMonitor": true}}),
            "PodMonitor",
            "spec/podMetricsEndpoints/0/port",
            json!("metrics"),
        ),
        row(
            "monitoring.prometheusRule",
            plain(),
            json!({"monitoring": {"prometheusRule": true}}),
            "PrometheusRule",
            "spec/groups/0/name",
            json!("~ollama-model-row"),
        ),
        row(
            "monitoring.interval",
            with(json!({"monitoring": {"serviceMonitor": true}})),
            json!({"monitoring": {"interval": "45s"}}),
            "ServiceMonitor",
            "spec/endpoints/0/interval",
            json!("45s"),
        ),
        row(
            "monitoring.labels",
            with(json!({"monitoring": {"serviceMonitor": true}})),
            json!({"monitoring": {"labels": {"release": "prom"}}}),
            "ServiceMonitor",
            "metadata/labels/release",
            json!("prom"),
        ),
        on_pod(
            "telemetry.enabled",
            json!({"telemetry": {"enabled": true}}),
            server("env/[name=OTEL_SDK_DISABLED]/value"),
            json!("false"),
        ),
        row(
            "telemetry.endpoint",
            with(json!({"telemetry": {"enabled": true}})),
            json!({"telemetry": {"endpoint": "http://otel:4317"}}),
            "Deployment",
            server("env/[name=OTEL_EXPORTER_OTLP_ENDPOINT]/value"),
            json!("http://otel:4317"),
        ),
    ]
}
