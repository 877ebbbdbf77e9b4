//! The pure steps: YAML in, what would be sent out. Snapshots are accepted with `INSTA_UPDATE=always make unit`, after
//! reading what changed.

use std::{collections::BTreeMap, sync::Arc};

use gantry_crds::kaos::{MCPServer, Phase};
use gantry_kit::{Controller, Progress, references::Resolved};
use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    McpServers, build,
    observe::{Observed, Seen},
    registry::Registry,
    status, validate,
};
use crate::{
    Settings,
    settings::Gateway,
    workload::{refs, verdicts::Blocked},
};

fn server(spec: &str) -> MCPServer {
    let spec: Value = serde_saphyr::from_str(spec).expect("YAML");
    serde_json::from_value(json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer",
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}, "spec": spec,
    }))
    .expect("an MCPServer")
}

/// Every Secret and ConfigMap that the spec refers to exists, with the keys that are asked for.
fn observed(server: &MCPServer, settings: &Settings) -> Observed {
    observed_with(server, settings, Registry::parse(None))
}

fn observed_with(server: &MCPServer, settings: &Settings, registry: Registry) -> Observed {
    let pod = validate::pod(server, settings, &registry).unwrap_or_default();
    let known: refs::Known = refs::uses("ns", &pod)
        .into_iter()
        .map(|used| {
            let digests = BTreeMap::from([(used.key.unwrap_or("KEY".into()), "digest".into())]);
            (
                used.reference,
                Some(Arc::new(Resolved {
                    digests,
                    ..Resolved::default()
                })),
            )
        })
        .collect();
    Observed {
        registry,
        known,
        has_gateway_api: true,
        running: None,
    }
}

fn autoscaler() -> ApiResource {
    ApiResource {
        group: "autoscaling".into(),
        version: "v2".into(),
        api_version: "autoscaling/v2".into(),
        kind: "HorizontalPodAutoscaler".into(),
        plural: "horizontalpodautoscalers".into(),
    }
}

fn wish(spec: &str, settings: &Settings) -> Result<Vec<Value>, Blocked> {
    let server = server(spec);
    let valid = validate::validate(&server, settings, &observed(&server, settings))?;
    let wish = build::build(&valid, &autoscaler());
    Ok(wish.objects().iter().map(|wished| wished.body.clone()).collect())
}

/// Kubernetes would put variables in for what looks like one, and make two dollars one.
#[rstest]
#[case::plain("price = '5$' # ${x}", "price = '5$' # ${x}")]
#[case::a_variable("home = '$(HOME)'", "home = '$$(HOME)'")]
#[case::two("pid = '$$'", "pid = '$$$$'")]
#[case::both("'$(A)$$B$'", "'$$(A)$$$$B$$'")]
fn code_reaches_the_server_as_it_is(#[case] code: &str, #[case] sent: &str) {
    for (spec, variable) in [
        (
            json!({"config": {"tools": {"fromString": code}}}),
            "MCP_TOOLS_STRING",
        ),
        (
            json!({"runtime": "python-string", "params": code}),
            "MCP_TOOLS_STRING",
        ),
        (
            json!({"runtime": "custom", "params": code, "container": {"image": "i"}}),
            "MCP_PARAMS",
        ),
    ] {
        let server = server(&spec.to_string());
        let pod = validate::pod(&server, &Settings::default(), &Registry::parse(None)).expect("a pod");
        let env = pod["containers"][0]["env"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let found = env
            .iter()
            .find(|entry| entry["name"] == variable)
            .map(|entry| &entry["value"]);
        assert_eq!(found, Some(&json!(sent)), "{spec}");
    }
}

#[rstest]
#[case::runtime("{runtime: python-string, params: 'def a(): pass'}")]
#[case::package("{config: {mcp: 'mcp-server-time[extra]==1.0', args: [--local-timezone, UTC]}}")]
#[case::stdio("{config: {mcp: mcp-server-time, transport: stdio, indexUrl: 'http://index:3141/simple'}}")]
#[case::node("{type: node-runtime, config: {mcp: '@scope/server@2.0'}}")]
#[case::secret("{config: {tools: {fromSecretKeyRef: {name: code, key: tools.py}}}}")]
#[case::everything(
    "{runtime: slack, replicas: 3, serviceAccountName: robot, telemetry: {enabled: true, endpoint: 'http://otel:4317'},
      container: {env: [{name: SLACK_BOT_TOKEN, valueFrom: {secretKeyRef: {name: slack, key: token}}},
                        {name: SLACK_TEAM_ID, value: T1}], resources: {limits: {memory: 1Gi}}},
      podSpec: {nodeSelector: {disk: ssd}}}"
)]
#[case::autoscaled("{runtime: kubernetes, autoscaling: {minReplicas: 2, maxReplicas: 5, targetMemory: 80}}")]
fn what_is_built(#[case] spec: &str) {
    let gateway = Gateway {
        name: "gw".into(),
        namespace: "edge".into(),
        agent_timeout: "300s".into(),
        modelapi_timeout: "120s".into(),
        mcp_timeout: "60s".into(),
    };
    let settings = Settings {
        gateway: Some(gateway),
        image_pull_secrets: vec!["pull".into()],
        ..Settings::default()
    };
    let objects = wish(spec, &settings).expect("valid");
    // One file a case, named by it.
    let name = std::thread::current()
        .name()
        .and_then(|name| name.rsplit("::").next().map(ToOwned::to_owned));
    insta::assert_yaml_snapshot!(name.unwrap_or_default(), objects);
}

#[rstest]
#[case::python("", None, &[("PIP_INDEX_URL", "http://ours:3141/simple"), ("PIP_TRUSTED_HOST", "ours")])]
#[case::python_with_its_own("", Some("https://other/simple"), &[("PIP_INDEX_URL", "https://other/simple")])]
// The operator's index knows Python packages.
#[case::node("node-runtime", None, &[])]
#[case::node_with_its_own("node-runtime", Some("https://npm"), &[("NPM_CONFIG_REGISTRY", "https://npm")])]
fn packages_come_from_an_index_of_their_language(
    #[case] language: &str,
    #[case] own: Option<&str>,
    #[case] expected: &[(&str, &str)],
) {
    let mut spec = json!({"config": {"mcp": "pkg"}});
    if !language.is_empty() {
        spec["type"] = json!(language);
    }
    if let Some(own) = own {
        spec["config"]["indexUrl"] = json!(own);
    }
    let settings = Settings {
        package_index: "http://ours:3141/simple".to_owned(),
        ..Settings::default()
    };
    let pod = validate::pod(&server(&spec.to_string()), &settings, &Registry::parse(None)).expect("a pod");
    let env = pod["initContainers"][0]["env"].as_array().cloned();
    let all = ["MCP_PACKAGE", "HOME"];
    let named = env.unwrap_or_default().into_iter();
    let named: Vec<Value> = named
        .filter(|entry| all.iter().all(|name| entry["name"] != *name))
        .collect();
    let expected = expected
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}));
    assert_eq!(named, expected.collect::<Vec<_>>());
    let runs_modules = pod["containers"][0]["command"].to_string().contains("python -m");
    assert_eq!(runs_modules, language.is_empty());
}

#[rstest]
#[case::nothing("{}", "InvalidSpec", "exactly one source")]
#[case::unknown_runtime("{runtime: nope}", "RuntimeNotFound", "kaos-mcp-runtimes")]
#[case::required_env("{runtime: slack}", "InvalidSpec", "SLACK_BOT_TOKEN and SLACK_TEAM_ID")]
#[case::params_unused("{runtime: kubernetes, params: x}", "InvalidSpec", "takes no params")]
#[case::node_stdio(
    "{type: node-runtime, config: {mcp: x, transport: stdio}}",
    "InvalidSpec",
    "Python packages only"
)]
#[case::bad_pod(
    "{runtime: kubernetes, podSpec: {containers: 5}}",
    "InvalidOverride",
    "podSpec"
)]
fn what_is_refused(#[case] spec: &str, #[case] reason: &str, #[case] words: &str) {
    let blocked = wish(spec, &Settings::default()).expect_err("refused");
    assert_eq!(blocked.reason, reason);
    assert!(blocked.message.contains(words), "{}", blocked.message);
    assert_eq!(blocked.progress, Progress::Stuck);
}

/// The Secret that is referred to has one key, `KEY`.
#[rstest]
#[case::as_it_is("", "KEY", true)]
#[case::prefixed("SLACK_", "SLACK_KEY", true)]
#[case::without_its_prefix("SLACK_", "KEY", false)]
fn required_variables_may_come_from_a_whole_secret(
    #[case] prefix: &str,
    #[case] required: &str,
    #[case] given: bool,
) {
    let server = server(&format!(
        "{{runtime: mine, container: {{envFrom: [{{prefix: '{prefix}', secretRef: {{name: s}}}}]}}}}"
    ));
    let settings = Settings::default();
    let text = format!("mine: {{image: i, requiredEnv: [{required}]}}");
    let registry = Registry::parse(Some(&Resolved {
        data: [("runtimes.yaml".to_owned(), text)].into(),
        ..Resolved::default()
    }));
    let observed = observed_with(&server, &settings, registry);
    assert_eq!(validate::validate(&server, &settings, &observed).is_ok(), given);
}

#[test]
fn a_missing_secret_is_waited_for() {
    let server = server("{config: {tools: {fromSecretKeyRef: {name: code, key: tools.py}}}}");
    let mut observed = observed(&server, &Settings::default());
    observed.known.values_mut().for_each(|known| *known = None);
    let blocked = validate::validate(&server, &Settings::default(), &observed)
        .err()
        .expect("waits");
    assert_eq!(
        (blocked.reason, blocked.progress),
        ("WaitingForSecret", Progress::Working)
    );
    let running = deployment(json!({"replicas": 2, "availableReplicas": 1}));
    let outcome = status::blocked(&server, Some(&running), blocked);
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    let told = gantry_kit::driver::settle::<McpServers>(None, outcome, Some(1), now);
    // What was built earlier goes on, and is told as it is.
    assert_eq!(told.replicas, Some(2));
    let conditions = told.conditions.clone().unwrap_or_default();
    assert!(
        gantry_kit::conditions::is_true(&conditions, "Available"),
        "{conditions:?}"
    );
    assert_eq!(
        (told.phase, told.observed_generation),
        (Some(Phase::Waiting), Some(1))
    );
}

fn deployment(status: Value) -> k8s_openapi::api::apps::v1::Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "mcpserver-demo", "generation": 2},
        "spec": {"replicas": 2, "selector": {}, "template": {}}, "status": status,
    }))
    .expect("a Deployment")
}

fn pod(container: Value) -> Arc<gantry_kit::pods::PodSummary> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "labels": {}},
        "status": {"containerStatuses": [container]},
    }))
    .expect("a Pod");
    Arc::new(gantry_kit::pods::PodSummary::new(pod))
}

#[rstest]
#[case::done(json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}), Value::Null, "Ready", Phase::Ready)]
#[case::old_generation(json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}), Value::Null, "RollingOut", Phase::Pending)]
#[case::old_pods_left(json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 3}), Value::Null, "RollingOut", Phase::Pending)]
#[case::crash(json!({"observedGeneration": 2, "updatedReplicas": 1}),
    json!({"name": "mcp-server", "image": "", "imageID": "", "ready": false, "restartCount": 4,
           "state": {"waiting": {"reason": "CrashLoopBackOff"}},
           "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "ValueError: no token"}}}),
    "CrashLoop", Phase::Failed)]
#[case::memory(json!({"observedGeneration": 2, "updatedReplicas": 1}),
    json!({"name": "mcp-server", "image": "", "imageID": "", "ready": false, "restartCount": 4,
           "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}),
    "OutOfMemory", Phase::Failed)]
#[case::quota(json!({"observedGeneration": 2, "conditions": [
    {"type": "ReplicaFailure", "status": "True", "message": "pods \"x\" is forbidden: exceeded quota: none"}]}),
    Value::Null, "QuotaExceeded", Phase::Failed)]
#[case::late(json!({"observedGeneration": 2, "conditions": [
    {"type": "Progressing", "status": "False", "message": "has timed out progressing"}]}),
    Value::Null, "ProgressDeadlineExceeded", Phase::Failed)]
fn what_is_told(#[case] status: Value, #[case] container: Value, #[case] reason: &str, #[case] phase: Phase) {
    let server = server("{runtime: kubernetes}");
    let valid = validate::validate(
        &server,
        &Settings::default(),
        &observed(&server, &Settings::default()),
    )
    .expect("valid");
    let pods = if container.is_null() {
        Vec::new()
    } else {
        vec![pod(container)]
    };
    let seen = Seen {
        deployment: deployment(status),
        pods,
        serves: false,
        tools: None,
    };
    let outcome = status::from_applied(&valid, &server, &seen);
    assert_eq!(outcome.ready.reason, reason, "{}", outcome.ready.message);
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    let told = gantry_kit::driver::settle::<McpServers>(None, outcome, Some(1), now);
    assert_eq!(told.phase, Some(phase));
    assert_eq!(
        McpServers::status(&MCPServer {
            status: Some(told.clone()),
            ..server
        }),
        Some(&told)
    );
}

#[rstest]
#[case::package("{config: {mcp: mcp-server-time}}", true)]
#[case::bridged("{config: {mcp: mcp-server-time, transport: stdio}}", false)]
#[case::no_package("{runtime: kubernetes}", false)]
fn a_package_that_only_speaks_stdio_is_told_so(#[case] spec: &str, #[case] hinted: bool) {
    let server = server(spec);
    let settings = Settings::default();
    let valid = validate::validate(&server, &settings, &observed(&server, &settings)).expect("valid");
    let container = json!({
        "name": "mcp-server", "image": "", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 0, "reason": "Completed"}},
    });
    let seen = Seen {
        deployment: deployment(json!({"observedGeneration": 2, "updatedReplicas": 1})),
        pods: vec![pod(container)],
        serves: false,
        tools: None,
    };
    let ready = status::from_applied(&valid, &server, &seen).ready;
    assert_eq!(ready.reason, "CrashLoop");
    assert_eq!(
        ready.message.contains("config.transport"),
        hinted,
        "{}",
        ready.message
    );
}

/// Before the server was asked: what was told stands as long as the pods are those that it was told of.
#[rstest]
#[case::restart_of_the_operator(json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}), true)]
#[case::just_changed(json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}), false)]
#[case::rolling(json!({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1}), false)]
fn tools_of_other_pods_are_not_told(#[case] deployed: Value, #[case] stands: bool) {
    let mut server = server("{runtime: kubernetes}");
    server.metadata.generation = Some(7);
    server.status = serde_json::from_value(json!({
        "observedGeneration": 7, "availableTools": ["a"],
        "conditions": [{
            "type": "ToolsDiscovered", "status": "True", "reason": "ToolsListed", "message": "the server lists 1 tools",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }))
    .unwrap();
    let settings = Settings::default();
    let valid = validate::validate(&server, &settings, &observed(&server, &settings)).expect("valid");
    let seen = Seen {
        deployment: deployment(deployed),
        pods: Vec::new(),
        serves: true,
        tools: None,
    };
    let outcome = status::from_applied(&valid, &server, &seen);
    let told = stands.then(|| vec!["a".to_owned()]);
    assert_eq!(outcome.status.available_tools, told);
    let mut also = outcome.also.into_iter();
    let (_, verdict) = also.find(|(type_, _)| *type_ == "ToolsDiscovered").unwrap();
    let reason = if stands { "ToolsListed" } else { "NotAskedYet" };
    assert_eq!(verdict.reason, reason);
}

#[rstest]
#[case::all(0, "the server lists 2 tools")]
#[case::some(3, "the server lists 5 tools; 3 of them are not in this status")]
fn tools_that_do_not_fit_are_counted(#[case] left_out: usize, #[case] told: &str) {
    let server = server("{runtime: kubernetes}");
    let settings = Settings::default();
    let valid = validate::validate(&server, &settings, &observed(&server, &settings)).expect("valid");
    let names = vec!["a".to_owned(), "b".to_owned()];
    let seen = Seen {
        deployment: deployment(json!({})),
        pods: Vec::new(),
        serves: true,
        tools: Some(Ok(super::tools::Tools {
            names: names.clone(),
            left_out,
        })),
    };
    let outcome = status::from_applied(&valid, &server, &seen);
    assert_eq!(outcome.status.available_tools, Some(names));
    let mut also = outcome.also.into_iter();
    let (_, verdict) = also.find(|(type_, _)| *type_ == "ToolsDiscovered").unwrap();
    assert_eq!(verdict.truth, gantry_kit::Truth::True);
    assert!(verdict.message.starts_with(told), "{}", verdict.message);
}

#[test]
fn any_spec_is_refused_or_built() {
    let good = [
        "{runtime: python-string, params: x}",
        "{runtime: custom, container: {image: i}}",
        "{config: {mcp: mcp-server-time, transport: stdio}}",
        "{config: {tools: {fromSecretKeyRef: {name: code, key: k}}}}",
    ];
    crate::specs::check(gantry_crds::Kind::MCPServer, &good, |spec| {
        serde_json::from_value::<gantry_crds::kaos::MCPServerSpec>(spec.clone()).ok()?;
        Some(wish(&spec.to_string(), &Settings::default()))
    });
}
