//! PeninOmegaCluster.

use gantry_crds::penin::Service;
use gantry_e2e::fixtures::peninomegacluster_resource;
use serde_json::{Value, json};

use super::{Row, Table, merge, row};

pub fn table() -> Table {
    let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"a": "1", "b": "2"}});
    Table {
        kind: "PeninOmegaCluster",
        resource: peninomegacluster_resource(),
        rows: rows(),
        before: vec![secret("keys"), secret("more")],
        child_name: |child, root| match child.split_once('/') {
            Some((_, component)) => format!("{root}-{component}"),
            None => root.to_owned(),
        },
        // Dynamic resource allocation is newer than this server, which refuses the field.
        exempt: &[
            "storage.cache.resources.claims",
            "services.omegaMeta.container.resources.claims",
            "services.sigmaGuard.container.resources.claims",
            "services.srOmegaInfinity.container.resources.claims",
            "services.acfaLeague.container.resources.claims",
        ],
        // Reaches no child: it decides about InfrastructureChanges (`tests/changes`, and a table beside the policy).
        exempt_below: &["selfArchitecting."],
        // No volume shrinks.
        stays: &["storage.wormLedger.size", "storage.cache.storage.size"],
        makes: &[
            "observability.serviceMonitor",
            "observability.dashboards",
            "storage.wormLedger.enabled",
            "storage.wormLedger.storageClass",
            "storage.wormLedger.accessMode",
            "storage.cache.enabled",
            "storage.cache.type",
            "storage.cache.storage.enabled",
            "storage.cache.storage.storageClassName",
            "storage.cache.storage.accessMode",
        ],
        // The same field of all four services.
        shared: |field| {
            let own = ["replicas.", "resources.", "services.", "autoScaling.services."];
            let start = own.into_iter().find(|start| field.starts_with(start))?;
            let (_, rest) = field[start.len()..].split_once('.').unwrap_or_default();
            Some(format!("{start}{rest}").to_lowercase().replace('.', "-") + "-x")
        },
    }
}

/// Objects without pods: what is looked at are the Deployments. Where an autoscaler makes pods, they are small.
fn quiet() -> Value {
    let small = json!({"cpu": "1m", "memory": "1Mi"});
    json!({
        "replicas": {"omegaMeta": 0, "sigmaGuard": 0, "srOmegaInfinity": 0, "acfaLeague": 0},
        "resources": {"omegaMeta": small, "sigmaGuard": small, "srOmegaInfinity": small, "acfaLeague": small},
        "storage": {"wormLedger": {"enabled": false}, "cache": {"enabled": false}},
    })
}

fn quiet_with(more: Value) -> Value {
    let mut spec = quiet();
    merge(&mut spec, &more);
    spec
}

/// With autoscalers, which are real and keep within these bounds.
fn scaled(more: Value) -> Value {
    let mut spec = quiet_with(json!({"autoScaling": {"minReplicas": 1, "maxReplicas": 3}}));
    merge(&mut spec, &json!({"autoScaling": more}));
    spec
}

/// `a.b` and a value as the nested object.
fn at(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |inner, name| json!({name: inner}))
}

fn text(text: String) -> &'static str {
    text.leak()
}

/// A path within the container of a service.
fn main(service: Service, rest: &str) -> &'static str {
    text(format!(
        "spec/template/spec/containers/[name={}]/{rest}",
        service.name()
    ))
}

fn deployment(service: Service) -> &'static str {
    text(format!("Deployment/{}", service.name()))
}

/// A field that becomes a variable of one service.
fn variable(field: &'static str, value: Value, service: Service, name: &str, expected: &str) -> Row {
    let pointer = main(service, &format!("env/[name={name}]/value"));
    row(
        field,
        quiet(),
        at(field, value),
        deployment(service),
        pointer,
        json!(expected),
    )
}

fn rows() -> Vec<Row> {
    let mut rows = general();
    rows.extend(settings());
    rows.extend(secrets());
    rows.extend(ledger());
    rows.extend(cache());
    rows.extend(Service::ALL.into_iter().flat_map(of_service));
    rows
}

fn general() -> Vec<Row> {
    use Service::{OmegaMeta, SigmaGuard};
    let two = || quiet_with(json!({"replicas": {"sigmaGuard": 2}}));
    let guard = deployment(SigmaGuard);
    let scaled = || scaled(json!({"enabled": true}));
    let hpa = "HorizontalPodAutoscaler/sigma-guard";
    let scaling = |field: &'static str, value: i32, pointer: &'static str| {
        row(
            field,
            scaled(),
            at(field, json!(value)),
            hpa,
            pointer,
            json!(value),
        )
    };
    let policy = || quiet_with(json!({"networkPolicy": {}}));
    vec![
        row(
            "version",
            quiet(),
            json!({"version": "1.2.3"}),
            guard,
            main(SigmaGuard, "image"),
            json!("~:1.2.3"),
        ),
        row(
            "image.repository",
            quiet(),
            at("image.repository", json!("mine/penin")),
            guard,
            main(SigmaGuard, "image"),
            json!("mine/penin:0.9.0"),
        ),
        row(
            "image.pullPolicy",
            quiet(),
            at("image.pullPolicy", json!("Never")),
            guard,
            main(SigmaGuard, "imagePullPolicy"),
            json!("Never"),
        ),
        row(
            "image.pullSecrets",
            quiet(),
            at("image.pullSecrets", json!([{"name": "keys"}])),
            guard,
            "spec/template/spec/imagePullSecrets/0/name",
            json!("keys"),
        ),
        row(
            "availability.podDisruptionBudget",
            two(),
            at("availability.podDisruptionBudget", json!(false)),
            "PodDisruptionBudget/sigma-guard",
            "spec/maxUnavailable",
            Value::Null,
        ),
        row(
            "availability.antiAffinity",
            two(),
            at("availability.antiAffinity", json!("Required")),
            guard,
            "spec/template/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/topologyKey",
            json!("kubernetes.io/hostname"),
        ),
        row(
            "networkPolicy.enabled",
            policy(),
            at("networkPolicy.enabled", json!(false)),
            "NetworkPolicy/services",
            "spec/policyTypes/0",
            Value::Null,
        ),
        row(
            "networkPolicy.egress",
            policy(),
            at(
                "networkPolicy.egress",
                json!([{"to": [{"namespaceSelector": {}}]}]),
            ),
            "NetworkPolicy/services",
            "spec/egress/2/to/0",
            json!({"namespaceSelector": {}}),
        ),
        row(
            "networkPolicy.ingress",
            policy(),
            at("networkPolicy.ingress", json!([{"from": [{"podSelector": {}}]}])),
            "NetworkPolicy/services",
            "spec/ingress/2/from/0",
            json!({"podSelector": {}}),
        ),
        row(
            "autoScaling.enabled",
            scaled(),
            at("autoScaling.enabled", json!(false)),
            hpa,
            "spec/maxReplicas",
            Value::Null,
        ),
        scaling("autoScaling.minReplicas", 3, "spec/minReplicas"),
        scaling("autoScaling.maxReplicas", 7, "spec/maxReplicas"),
        scaling(
            "autoScaling.targetCPU",
            42,
            "spec/metrics/1/resource/target/averageUtilization",
        ),
        scaling(
            "autoScaling.targetMemory",
            43,
            "spec/metrics/0/resource/target/averageUtilization",
        ),
        variable(
            "observability.metrics",
            json!(false),
            OmegaMeta,
            "PENIN_METRICS_ENABLED",
            "false",
        ),
        variable(
            "observability.tracing",
            json!(false),
            OmegaMeta,
            "PENIN_TRACING_ENABLED",
            "false",
        ),
        variable(
            "observability.tracingEndpoint",
            json!("http://otel:4317"),
            OmegaMeta,
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://otel:4317",
        ),
        variable(
            "observability.logging.level",
            json!("ERROR"),
            OmegaMeta,
            "PENIN_LOG_LEVEL",
            "ERROR",
        ),
        variable(
            "observability.logging.format",
            json!("text"),
            OmegaMeta,
            "PENIN_LOG_FORMAT",
            "text",
        ),
        row(
            "observability.serviceMonitor",
            quiet(),
            at("observability.serviceMonitor", json!(true)),
            "ServiceMonitor/omega-meta",
            "spec/endpoints/0/path",
            json!("/metrics"),
        ),
        row(
            "observability.metricsIntervalSeconds",
            quiet_with(json!({"observability": {"serviceMonitor": true}})),
            at("observability.metricsIntervalSeconds", json!(60)),
            "ServiceMonitor/omega-meta",
            "spec/endpoints/0/interval",
            json!("60s"),
        ),
        row(
            "observability.dashboards",
            quiet(),
            at("observability.dashboards", json!(true)),
            "ConfigMap/dashboards",
            "metadata/labels/grafana_dashboard",
            json!("1"),
        ),
    ]
}

fn settings() -> Vec<Row> {
    use Service::{AcfaLeague, OmegaMeta, SigmaGuard, SrOmegaInfinity};
    vec![
        variable(
            "config.budgetDailyUsd",
            json!(12.5),
            OmegaMeta,
            "PENIN_BUDGET_DAILY_USD",
            "12.5",
        ),
        variable(
            "config.caosPlus.maxBoost",
            json!(0.1),
            SrOmegaInfinity,
            "PENIN_CAOS_PLUS__MAX_BOOST",
            "0.1",
        ),
        variable(
            "config.caosPlus.kappa",
            json!(25.0),
            OmegaMeta,
            "PENIN_CAOS_PLUS__KAPPA",
            "25.0",
        ),
        variable(
            "config.sigmaGuard.eceThreshold",
            json!(0.02),
            SigmaGuard,
            "PENIN_SIGMA_GUARD__ECE_THRESHOLD",
            "0.02",
        ),
        variable(
            "config.sigmaGuard.biasThreshold",
            json!(1.1),
            SigmaGuard,
            "PENIN_SIGMA_GUARD__BIAS_THRESHOLD",
            "1.1",
        ),
        variable(
            "config.evolution.seed",
            json!(42),
            AcfaLeague,
            "PENIN_EVOLUTION__SEED",
            "42",
        ),
        variable(
            "config.maxParallelProviders",
            json!(7),
            OmegaMeta,
            "PENIN_MAX_PARALLEL_PROVIDERS",
            "7",
        ),
        variable(
            "config.maxTokensPerRound",
            json!(1000),
            OmegaMeta,
            "PENIN_MAX_TOKENS_PER_ROUND",
            "1000",
        ),
        variable(
            "config.env",
            json!([{"name": "EXTRA", "value": "1"}]),
            SigmaGuard,
            "EXTRA",
            "1",
        ),
    ]
}

/// The three fields of a reference to a key of a Secret that becomes a variable.
fn key_rows(path: &'static str, start: &Value, child: &'static str, pointer: &str) -> Vec<Row> {
    let field = |name: &str| text(format!("{path}.{name}"));
    let mut given = start.clone();
    merge(&mut given, &at(path, json!({"name": "keys", "key": "a"})));
    let one = |name: &str, value: Value| {
        let pointer = text(format!("{pointer}/valueFrom/secretKeyRef/{name}"));
        row(
            field(name),
            given.clone(),
            at(field(name), value.clone()),
            child,
            pointer,
            value,
        )
    };
    vec![
        one("name", json!("more")),
        one("key", json!("b")),
        one("optional", json!(true)),
    ]
}

fn secrets() -> Vec<Row> {
    let meta = Service::OmegaMeta;
    let variable = |name: &str| main(meta, &format!("env/[name={name}]"));
    let mut rows = vec![row(
        "secrets.providerKeys",
        quiet(),
        at("secrets.providerKeys", json!([{"name": "keys"}])),
        deployment(meta),
        main(meta, "envFrom/0/secretRef/name"),
        json!("keys"),
    )];
    rows.extend(key_rows(
        "secrets.cacheHmacKey",
        &quiet(),
        deployment(meta),
        variable("PENIN_CACHE_HMAC_KEY"),
    ));
    rows.extend(key_rows(
        "secrets.metricsToken",
        &quiet(),
        deployment(meta),
        variable("PENIN_METRICS_TOKEN"),
    ));
    rows
}

const LEDGER: &str = "PersistentVolumeClaim/ledger";

fn ledger() -> Vec<Row> {
    let ledger = |more: Value| quiet_with(at("storage.wormLedger", more));
    let off = || ledger(json!({"enabled": false, "deletionPolicy": "Delete"}));
    let on = || ledger(json!({"enabled": true, "storageClass": "growing", "deletionPolicy": "Delete"}));
    vec![
        row(
            "storage.wormLedger.enabled",
            off(),
            at("storage.wormLedger.enabled", json!(true)),
            LEDGER,
            "spec/storageClassName",
            json!("standard"),
        ),
        row(
            "storage.wormLedger.storageClass",
            off(),
            at(
                "storage.wormLedger",
                json!({"enabled": true, "storageClass": "growing"}),
            ),
            LEDGER,
            "spec/storageClassName",
            json!("growing"),
        ),
        row(
            "storage.wormLedger.accessMode",
            off(),
            at(
                "storage.wormLedger",
                json!({"enabled": true, "accessMode": "ReadWriteMany"}),
            ),
            LEDGER,
            "spec/accessModes/0",
            json!("ReadWriteMany"),
        ),
        row(
            "storage.wormLedger.size",
            on(),
            at("storage.wormLedger.size", json!("20Gi")),
            LEDGER,
            "spec/resources/requests/storage",
            json!("20Gi"),
        ),
        row(
            "storage.wormLedger.existingClaim",
            on(),
            at("storage.wormLedger.existingClaim", json!("mine")),
            "Deployment/omega-meta",
            "spec/template/spec/volumes/[name=data]/persistentVolumeClaim/claimName",
            json!("mine"),
        ),
        row(
            "storage.wormLedger.deletionPolicy",
            ledger(json!({"enabled": true})),
            at("storage.wormLedger.deletionPolicy", json!("Delete")),
            LEDGER,
            "metadata/ownerReferences/0/kind",
            json!("PeninOmegaCluster"),
        ),
    ]
}

fn cache() -> Vec<Row> {
    let redis = "Deployment/redis";
    let claim = "PersistentVolumeClaim/redis";
    let container = |rest: &str| text(format!("spec/template/spec/containers/[name=redis]/{rest}"));
    let cached = |more: Value| {
        let mut cache = json!({"enabled": true});
        merge(&mut cache, &more);
        quiet_with(at("storage.cache", cache))
    };
    let kept = |more: Value| {
        let mut storage = json!({"storageClassName": "growing", "size": "1Gi"});
        merge(&mut storage, &more);
        cached(json!({"storage": storage}))
    };
    let without = || cached(json!({"storage": {"enabled": false}}));
    let storage = |more: Value| {
        let mut storage = json!({"enabled": true});
        merge(&mut storage, &more);
        at("storage.cache.storage", storage)
    };
    let mut rows = vec![
        row(
            "storage.cache.enabled",
            quiet(),
            at("storage.cache.enabled", json!(true)),
            redis,
            container("command/0"),
            json!("redis-server"),
        ),
        row(
            "storage.cache.type",
            cached(json!({"type": "memory"})),
            at("storage.cache.type", json!("redis")),
            redis,
            container("command/0"),
            json!("redis-server"),
        ),
        row(
            "storage.cache.image",
            cached(json!({})),
            at("storage.cache.image", json!("mine:7")),
            redis,
            container("image"),
            json!("mine:7"),
        ),
        row(
            "storage.cache.resources.limits",
            cached(json!({})),
            at("storage.cache.resources.limits", json!({"memory": "1Gi"})),
            redis,
            container("resources/limits/memory"),
            json!("1Gi"),
        ),
        row(
            "storage.cache.resources.requests",
            cached(json!({})),
            at("storage.cache.resources.requests", json!({"cpu": "70m"})),
            redis,
            container("resources/requests/cpu"),
            json!("70m"),
        ),
        row(
            "storage.cache.storage.enabled",
            without(),
            storage(json!({})),
            claim,
            "spec/resources/requests/storage",
            json!("20Gi"),
        ),
        row(
            "storage.cache.storage.storageClassName",
            without(),
            storage(json!({"storageClassName": "growing"})),
            claim,
            "spec/storageClassName",
            json!("growing"),
        ),
        row(
            "storage.cache.storage.accessMode",
            without(),
            storage(json!({"accessMode": "ReadWriteMany"})),
            claim,
            "spec/accessModes/0",
            json!("ReadWriteMany"),
        ),
        row(
            "storage.cache.storage.size",
            kept(json!({})),
            storage(json!({"size": "2Gi"})),
            claim,
            "spec/resources/requests/storage",
            json!("2Gi"),
        ),
        row(
            "storage.cache.storage.existingClaim",
            cached(json!({"storage": {}})),
            storage(json!({"existingClaim": "mine"})),
            redis,
            "spec/template/spec/volumes/[name=data]/persistentVolumeClaim/claimName",
            json!("mine"),
        ),
        row(
            "storage.cache.storage.deletionPolicy",
            kept(json!({})),
            storage(json!({"deletionPolicy": "Retain"})),
            claim,
            "metadata/ownerReferences/0/kind",
            Value::Null,
        ),
    ];
    rows.extend(key_rows(
        "storage.cache.passwordSecretRef",
        &cached(json!({})),
        redis,
        container("env/[name=REDIS_PASSWORD]"),
    ));
    rows
}

fn of_service(service: Service) -> Vec<Row> {
    let key = service.key();
    let child = deployment(service);
    let field = |rest: &str| text(rest.replace('*', key));
    let simple = |path: &str, value: Value, child: &'static str, pointer: &'static str, expected: Value| {
        row(
            field(path),
            quiet(),
            at(field(path), value),
            child,
            pointer,
            expected,
        )
    };
    let mut rows = vec![
        simple("replicas.*", json!(3), child, "spec/replicas", json!(3)),
        simple(
            "resources.*.cpu",
            json!("333m"),
            child,
            main(service, "resources/limits/cpu"),
            json!("333m"),
        ),
        simple(
            "resources.*.memory",
            json!("333Mi"),
            child,
            main(service, "resources/requests/memory"),
            json!("333Mi"),
        ),
        simple(
            "services.*.port",
            json!(9999),
            child,
            main(service, "ports/0/containerPort"),
            json!(9999),
        ),
        simple(
            "services.*.probe.path",
            json!("/well"),
            child,
            main(service, "readinessProbe/httpGet/path"),
            json!("/well"),
        ),
        simple(
            "services.*.probe.type",
            json!("TCP"),
            child,
            main(service, "livenessProbe/tcpSocket/port"),
            json!(service.port()),
        ),
        row(
            field("services.*.metricsPath"),
            quiet_with(json!({"observability": {"serviceMonitor": true}})),
            at(field("services.*.metricsPath"), json!("/m")),
            text(format!("ServiceMonitor/{}", service.name())),
            "spec/endpoints/0/path",
            json!("/m"),
        ),
        simple(
            "services.*.podSpec",
            json!({"hostname": "h"}),
            child,
            "spec/template/spec/hostname",
            json!("h"),
        ),
    ];
    for (name, value, pointer, expected) in [
        ("image", json!("mine:1"), "image", json!("mine:1")),
        (
            "imagePullPolicy",
            json!("Never"),
            "imagePullPolicy",
            json!("Never"),
        ),
        ("command", json!(["run"]), "command", json!(["run"])),
        ("args", json!(["--now"]), "args", json!(["--now"])),
        (
            "env",
            json!([{"name": "B", "value": "2"}]),
            "env/[name=B]/value",
            json!("2"),
        ),
        (
            "envFrom",
            json!([{"secretRef": {"name": "keys"}}]),
            "envFrom/0/secretRef/name",
            json!("keys"),
        ),
        (
            "resources.limits",
            json!({"cpu": "2"}),
            "resources/limits/cpu",
            json!("2"),
        ),
        (
            "resources.requests",
            json!({"memory": "512Ki"}),
            "resources/requests/memory",
            json!("512Ki"),
        ),
        (
            "securityContext",
            json!({"runAsUser": 5}),
            "securityContext/runAsUser",
            json!(5),
        ),
        ("workingDir", json!("/work"), "workingDir", json!("/work")),
        (
            "volumeMounts",
            json!([{"name": "tmp", "mountPath": "/x"}]),
            "volumeMounts/[mountPath=/x]/name",
            json!("tmp"),
        ),
    ] {
        let path = format!("services.*.container.{name}");
        rows.push(simple(&path, value, child, main(service, pointer), expected));
    }
    let hpa = text(format!("HorizontalPodAutoscaler/{}", service.name()));
    for (name, value, pointer, expected) in [
        ("enabled", json!(false), "spec/maxReplicas", Value::Null),
        ("minReplicas", json!(3), "spec/minReplicas", json!(3)),
        ("maxReplicas", json!(7), "spec/maxReplicas", json!(7)),
        (
            "targetCPU",
            json!(42),
            "spec/metrics/1/resource/target/averageUtilization",
            json!(42),
        ),
        (
            "targetMemory",
            json!(43),
            "spec/metrics/0/resource/target/averageUtilization",
            json!(43),
        ),
        (
            "metrics",
            json!([{"name": "penin_sr_score", "averageValue": "1"}]),
            "spec/metrics/[type=Pods]/pods/metric/name",
            json!("penin_sr_score"),
        ),
    ] {
        let path = field(&format!("autoScaling.services.*.{name}"));
        let start = scaled(json!({}));
        rows.push(row(path, start, at(path, value), hpa, pointer, expected));
    }
    rows
}
