//! The pure steps: YAML in, what would be sent out. Snapshots are accepted with `INSTA_UPDATE=always make unit`, after
//! reading what changed.

use std::{collections::BTreeMap, sync::Arc};

use gantry_crds::kaos::{ModelAPI, Phase};
use gantry_kit::{Progress, pods::PodSummary, references::Resolved};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::core::ApiResource;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    ModelApis, build,
    observe::{Observed, Seen},
    status, validate,
};
use crate::{
    Settings,
    settings::Gateway,
    workload::{claim, refs, verdicts::Blocked},
};

fn api(spec: &str) -> ModelAPI {
    let spec: Value = serde_saphyr::from_str(spec).expect("YAML");
    serde_json::from_value(json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": "ModelAPI",
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}, "spec": spec,
    }))
    .expect("a ModelAPI")
}

/// Every Secret and ConfigMap of the user's that the spec refers to exists, with the keys that are asked for.
fn observed(api: &ModelAPI, settings: &Settings) -> Observed {
    let pod = validate::pod(api, settings, None).unwrap_or_default();
    let mut known = refs::Known::new();
    for used in refs::uses("ns", &pod) {
        if used.reference.key.name == "litellm-config-demo" {
            continue;
        }
        let digests = BTreeMap::from([(used.key.unwrap_or("KEY".into()), "digest".into())]);
        let resolved = Resolved {
            digests,
            ..Resolved::default()
        };
        known.insert(used.reference, Some(Arc::new(resolved)));
    }
    Observed {
        known,
        claim: claim::Known::default(),
        has_gateway_api: true,
        running: None,
    }
}

fn wish(spec: &str, settings: &Settings) -> Result<Vec<Value>, Blocked> {
    let api = api(spec);
    let valid = validate::validate(&api, settings, &observed(&api, settings))?;
    let autoscaler = ApiResource {
        group: "autoscaling".into(),
        version: "v2".into(),
        api_version: "autoscaling/v2".into(),
        kind: "HorizontalPodAutoscaler".into(),
        plural: "horizontalpodautoscalers".into(),
    };
    let wish = build::build(&valid, &autoscaler);
    Ok(wish.objects().iter().map(|wished| wished.body.clone()).collect())
}

const HOSTED: &str = "{mode: Hosted, hostedConfig: {model: 'smollm2:135m'}}";
const PROXY: &str = "{mode: Proxy, proxyConfig: {}}";

#[rstest]
#[case::wildcard("{mode: Proxy, proxyConfig: {apiBase: 'http://stub:8080/v1'}}")]
#[case::listed(
    "{mode: Proxy, proxyConfig: {models: [gpt-4o, openai/*], provider: openai,
        apiKey: {valueFrom: {secretKeyRef: {name: openai, key: key}}}},
      replicas: 2, imagePullSecrets: [{name: own}], telemetry: {enabled: true, endpoint: 'http://otel:4318'}}"
)]
#[case::own_secret(
    "{mode: Proxy, proxyConfig: {configYaml: {fromSecretKeyRef: {name: litellm, key: proxy.yaml}},
        env: [{name: LITELLM_LOG, value: DEBUG}]}}"
)]
#[case::own_text(
    "{mode: Proxy, proxyConfig: {configYaml: {fromString: 'model_list: []'}, apiKey: {value: k}},
      autoscaling: {maxReplicas: 4, targetMemory: 80}, gatewayRoute: {timeout: 5m}}"
)]
#[case::hosted(
    "{mode: Hosted, serverConfig: {model: 'smollm2:135m', env: [{name: HTTPS_PROXY, value: 'http://p'}]}}"
)]
#[case::hosted_claim(
    "{mode: Hosted, hostedConfig: {model: 'smollm2:135m', pullTimeoutSeconds: 900,
        storage: {size: 5Gi, storageClassName: fast}},
      resources: {limits: {nvidia.com/gpu: 1}}, container: {image: 'mine/ollama:1'}}"
)]
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
#[case::no_mode("{}", "InvalidSpec", "mode")]
#[case::no_config("{mode: Proxy}", "InvalidSpec", "needs proxyConfig")]
#[case::no_model("{mode: Hosted, hostedConfig: {}}", "InvalidSpec", "hostedConfig.model")]
#[case::read_only(
    "{mode: Hosted, hostedConfig: {model: m, storage: {accessMode: ReadOnlyMany}}}",
    "InvalidSpec",
    "stays empty"
)]
#[case::bad_pod(
    "{mode: Proxy, proxyConfig: {}, podSpec: {containers: 5}}",
    "InvalidOverride",
    "podSpec"
)]
fn what_is_refused(#[case] spec: &str, #[case] reason: &str, #[case] words: &str) {
    let blocked = wish(spec, &Settings::default()).expect_err("refused");
    assert_eq!(blocked.reason, reason, "{}", blocked.message);
    assert!(blocked.message.contains(words), "{}", blocked.message);
    assert_eq!(blocked.progress, Progress::Stuck);
}

fn fingerprint(spec: &str, change: impl Fn(&mut Observed)) -> Option<String> {
    let api = api(spec);
    let mut observed = observed(&api, &Settings::default());
    change(&mut observed);
    let valid = validate::validate(&api, &Settings::default(), &observed).expect("valid");
    valid.fingerprint
}

#[test]
fn what_the_pods_read_rolls_them() {
    let nothing = |_: &mut Observed| {};
    let one = fingerprint("{mode: Proxy, proxyConfig: {models: [a]}}", nothing);
    let other = fingerprint("{mode: Proxy, proxyConfig: {models: [b]}}", nothing);
    assert_ne!(one, other, "the generated configuration");
    let secret = "{mode: Proxy, proxyConfig: {configYaml: {fromSecretKeyRef: {name: s, key: k}}}}";
    let changed = fingerprint(secret, |observed| {
        for known in observed.known.values_mut().flatten() {
            let known = Arc::make_mut(known);
            known.digests.insert("k".into(), "new".into());
        }
    });
    assert_ne!(fingerprint(secret, nothing), changed, "the user's configuration");
}

#[test]
fn a_missing_key_is_waited_for() {
    let api = api("{mode: Proxy, proxyConfig: {apiKey: {valueFrom: {secretKeyRef: {name: s, key: k}}}}}");
    let mut observed = observed(&api, &Settings::default());
    observed.known.values_mut().for_each(|known| *known = None);
    let blocked = validate::validate(&api, &Settings::default(), &observed)
        .err()
        .expect("waits");
    assert_eq!(
        (blocked.reason, blocked.progress),
        ("WaitingForSecret", Progress::Working)
    );
    let lost = serde_json::from_value(json!({
        "spec": {"selector": {}, "template": {}}, "status": {"replicas": 2, "availableReplicas": 0},
    }));
    let mut before = api.clone();
    before.status = serde_json::from_value(json!({"replicas": 1, "conditions": [{
        "type": "Available", "status": "True", "reason": "Succeeded", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}))
    .expect("a status");
    let outcome = status::blocked(&before, Some(&lost.expect("a Deployment")), blocked);
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    let mut told = gantry_kit::driver::settle::<ModelApis>(before.status.as_ref(), outcome, Some(1), now);
    // What was built earlier goes on, and is told as it is.
    assert_eq!(told.replicas, Some(2));
    let conditions = told.conditions.take().unwrap_or_default();
    assert!(
        !gantry_kit::conditions::is_true(&conditions, "Available"),
        "{conditions:?}"
    );
    assert_eq!(
        (told.phase, told.observed_generation),
        (Some(Phase::Waiting), Some(1))
    );
}

fn pod(statuses: Value) -> Arc<PodSummary> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "labels": {}}, "status": statuses,
    }))
    .expect("a Pod");
    Arc::new(PodSummary::new(pod))
}

fn pull(state: Value) -> Value {
    let mut status =
        json!({"name": "pull-model", "image": "", "imageID": "", "ready": false, "restartCount": 1});
    status["state"] = state;
    json!({"initContainerStatuses": [status]})
}

#[rstest]
#[case::proxy(PROXY, json!({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}),
    json!({}), "Ready", "1 of 1", Phase::Ready)]
#[case::pulling(HOSTED, json!({"observedGeneration": 2}),
    pull(json!({"running": {}})), "RollingOut", "pulling the model", Phase::Pending)]
#[case::pull_failed(HOSTED, json!({"observedGeneration": 2, "updatedReplicas": 1}),
    pull(json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "error: pull model manifest: file does not exist"}})),
    "PullFailed", "file does not exist", Phase::Failed)]
fn what_is_told(
    #[case] spec: &str,
    #[case] status: Value,
    #[case] pod_status: Value,
    #[case] reason: &str,
    #[case] words: &str,
    #[case] phase: Phase,
) {
    let api = api(spec);
    let settings = Settings::default();
    let valid = validate::validate(&api, &settings, &observed(&api, &settings)).expect("valid");
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "modelapi-demo", "generation": 2},
        "spec": {"replicas": 1, "selector": {}, "template": {}}, "status": status,
    }))
    .expect("a Deployment");
    let seen = Seen {
        deployment,
        claim: None,
        pods: vec![pod(pod_status)],
    };
    let outcome = status::from_applied(&valid, &seen);
    assert_eq!(outcome.ready.reason, reason, "{}", outcome.ready.message);
    assert!(outcome.ready.message.contains(words), "{}", outcome.ready.message);
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    let told = gantry_kit::driver::settle::<ModelApis>(None, outcome, Some(1), now);
    assert_eq!(told.phase, Some(phase));
    let port = if spec == HOSTED { 11434 } else { 8000 };
    let endpoint = format!("http://modelapi-demo.ns.svc.cluster.local:{port}");
    assert_eq!(told.endpoint, Some(endpoint));
}

/// Of a claim that is there, nothing is asked for that the server would refuse.
#[test]
fn a_claim_that_cannot_be_as_asked_for_is_told_and_left() {
    let api = api("{mode: Hosted, hostedConfig: {model: m, storage: {size: 1Gi, storageClassName: other}}}");
    let settings = Settings::default();
    let live: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "modelapi-demo-models"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                 "resources": {"requests": {"storage": "5Gi"}}},
        "status": {"phase": "Bound"},
    }))
    .expect("a claim");
    let mut observed = observed(&api, &settings);
    observed.claim.live = Some(live.clone());
    let valid = validate::validate(&api, &settings, &observed).expect("valid");
    let claim = valid.claim.expect("a claim");
    assert_eq!(claim.spec, Some(json!(live.spec)));
    assert_eq!(claim.verdict(Some(&live), 1, true).reason, "InvalidClaim");
}

#[rstest]
#[case::nothing("{}")]
#[case::no_text("{value: ''}")]
fn a_key_that_is_not_given_is_not_passed_on(#[case] key: &str) {
    let spec = format!("{{mode: Proxy, proxyConfig: {{apiKey: {key}, configYaml: {{fromString: ''}}}}}}");
    let absent = wish("{mode: Proxy, proxyConfig: {}}", &Settings::default());
    assert_eq!(wish(&spec, &Settings::default()), absent);
}

#[test]
fn any_spec_is_refused_or_built() {
    let good = [
        HOSTED,
        PROXY,
        "{mode: Proxy, proxyConfig: {models: [a], apiKey: {value: k}}}",
    ];
    crate::specs::check(gantry_crds::Kind::ModelAPI, &good, |spec| {
        serde_json::from_value::<gantry_crds::kaos::ModelAPISpec>(spec.clone()).ok()?;
        Some(wish(&spec.to_string(), &Settings::default()))
    });
}
