//! The pure steps: YAML in, what would be sent out. Snapshots are accepted with `INSTA_UPDATE=always make unit`, after
//! reading what changed.

use std::sync::Arc;

use gantry_crds::ollama::{Model, ModelPhase};
use gantry_kit::{
    ObjectKey, Progress, Truth,
    references::{Reference, Resolved, Source},
    wish::Belongs,
};
use kube::core::ApiResource;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Models,
    api::Info,
    build,
    observe::{Observed, Seen},
    pull::State,
    status,
    store::{Live, StoreId},
    validate,
};
use crate::{
    Settings,
    workload::{refs, verdicts::Blocked},
};

fn model(name: &str, age: u32, spec: &str) -> Model {
    let spec: Value = serde_saphyr::from_str(spec).expect("YAML");
    serde_json::from_value(json!({
        "apiVersion": "ollama.ayaka.io/v1", "kind": "Model",
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "generation": 1,
            "creationTimestamp": format!("2026-01-{:02}T00:00:00Z", 28 - age),
        },
        "spec": spec,
    }))
    .expect("a Model")
}

fn present() -> State {
    State::Present(Arc::new(Info {
        name: "phi3:latest".into(),
        digest: "abc".into(),
        size: Some(2_176_178_401),
        parameters: "3.8B".into(),
        quantization: "Q4_0".into(),
        ..Info::default()
    }))
}

/// The store is up, and says this.
fn observed(model: &Model, others: &[Model], pull: Option<State>) -> Observed {
    let id = StoreId::of(model);
    let mut users: Vec<Arc<Model>> = others.iter().chain([model]).cloned().map(Arc::new).collect();
    users.retain(|user| StoreId::of(user) == id);
    users.sort_by_key(|user| user.metadata.creation_timestamp.as_ref().map(|time| time.0));
    Observed {
        users,
        store: Live {
            workload: Some(json!({"status": {"readyReplicas": 1}})),
            ..Live::default()
        },
        refused_size: None,
        info: match &pull {
            Some(State::Present(info)) => Some(info.as_ref().clone()),
            _ => None,
        },
        pull,
        served_before: None,
        deployment: None,
        known: refs::Known::new(),
        has_gateway_api: false,
        monitoring: [true; 3],
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

fn wish(model: &Model, observed: &Observed) -> Result<Vec<Value>, Blocked> {
    let valid = validate::validate(model, &Settings::default(), observed)?;
    let wish = build::build(&valid, &autoscaler());
    Ok(wish.objects().iter().map(|wished| wished.body.clone()).collect())
}

fn kinds(objects: &[Value]) -> Vec<&str> {
    objects
        .iter()
        .filter_map(|object| object["kind"].as_str())
        .collect()
}

#[rstest]
#[case::plain("{image: phi3}")]
#[case::per_model(
    "{image: 'hf.co/org/model:Q4_K_M', store: {scope: PerModel, size: 20Gi, nodeSelector: {disk: large}},
      imagePullPolicy: Always, server: {netBindService: true}}"
)]
#[case::read_only_claim(
    "{image: phi3, persistentVolumeClaim: {claimName: weights, readOnly: true},
      persistentVolume: {accessMode: ReadOnlyMany}}"
)]
#[case::everything(
    "{image: phi3, replicas: 2, runtimeClassName: nvidia, resources: {limits: {nvidia.com/gpu: 1}},
      extraEnv: [{name: OLLAMA_KEEP_ALIVE, value: 1h}], service: {type: NodePort, nodePort: 30123},
      ingress: {host: phi.example.org, tls: {secretName: cert}},
      autoscaling: {maxReplicas: 4, targetMemory: 80},
      podTemplate: {metadata: {labels: {team: a}}, spec: {containers: [{name: server, image: mine, args: [serve, -v]}]}}}"
)]
#[case::counted(
    "{image: phi3, server: {proxy: {maxConcurrency: 4}}, extraEnv: [{name: OLLAMA_NUM_PARALLEL, value: '2'}],
      autoscaling: {maxReplicas: 4, targetRequestRate: 2, targetQueueDepth: 500m},
      monitoring: {serviceMonitor: true, podMonitor: true, prometheusRule: true, interval: 30s, labels: {release: prom}}}"
)]
fn what_is_built(#[case] spec: &str) {
    let model = model("demo", 1, spec);
    let objects = wish(&model, &observed(&model, &[], Some(present()))).expect("valid");
    // One file a case, named by it.
    let name = std::thread::current()
        .name()
        .and_then(|name| name.rsplit("::").next().map(ToOwned::to_owned));
    insta::assert_yaml_snapshot!(name.unwrap_or_default(), objects);
}

#[rstest]
#[case::no_image("{}", "InvalidSpec", "image")]
#[case::bad_image("{image: 'a b'}", "InvalidSpec", "no name of a model")]
#[case::not_counted(
    "{image: phi3, autoscaling: {targetQueueDepth: 1}, server: {proxy: {enabled: false}}}",
    "InvalidSpec",
    "need the numbers of the proxy"
)]
#[case::one_pod(
    "{image: phi3, persistentVolume: {accessMode: ReadWriteOncePod}}",
    "AccessModeImpossible",
    "use ReadWriteOnce"
)]
#[case::never_filled(
    "{image: phi3, persistentVolume: {accessMode: ReadOnlyMany}}",
    "AccessModeImpossible",
    "persistentVolumeClaim"
)]
#[case::bad_pod(
    "{image: phi3, podTemplate: {spec: {containers: 5}}}",
    "InvalidOverride",
    "podTemplate"
)]
fn what_is_refused(#[case] spec: &str, #[case] reason: &str, #[case] words: &str) {
    let model = model("demo", 1, spec);
    let blocked = wish(&model, &observed(&model, &[], None)).expect_err("invalid");
    assert_eq!(blocked.reason, reason);
    assert!(blocked.message.contains(words), "{}", blocked.message);
}

/// New pods hold GPUs: they wait for the weights as long as the store can tell about them. Old ones are looked after.
#[rstest]
#[case::not_asked(None, false, false)]
#[case::on_its_way(Some(State::Pulling("pulling 4%".into())), false, false)]
#[case::failed(Some(State::Failed("file does not exist".into())), false, false)]
#[case::there(Some(present()), false, true)]
#[case::unreachable(Some(State::Unreachable("refused".into())), false, true)]
#[case::running_already(Some(State::Pulling("pulling 4%".into())), true, true)]
fn when_pods_are_made(#[case] pull: Option<State>, #[case] exists: bool, #[case] expected: bool) {
    let model = model("demo", 1, "{image: phi3}");
    let mut observed = observed(&model, &[], pull);
    observed.deployment = exists.then(|| json!({"spec": {"selector": {"matchLabels": {"app": "theirs"}}}}));
    let objects = wish(&model, &observed).expect("valid");
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
    assert_eq!(deployment.is_some(), expected, "{:?}", kinds(&objects));
    if exists {
        // A selector cannot change on a live Deployment.
        let selector = deployment.map(|live| live["spec"]["selector"]["matchLabels"].clone());
        assert_eq!(selector, Some(json!({"app": "theirs"})));
    }
}

#[test]
fn all_models_of_a_store_have_the_same_wish_for_it_and_the_younger_is_told() {
    let old = model("old", 9, "{image: phi3, store: {size: 10Gi, image: 'ollama:1'}}");
    let silent = model("silent", 5, "{image: llama3}");
    let young = model(
        "young",
        1,
        "{image: phi3, store: {size: 20Gi, image: 'ollama:1', env: [{name: A, value: b}]}}",
    );
    let all = [old.clone(), silent.clone(), young.clone()];
    let store = |model: &Model| {
        let others: Vec<Model> = all
            .iter()
            .filter(|other| other.metadata.name != model.metadata.name)
            .cloned()
            .collect();
        let observed = observed(model, &others, None);
        let valid = validate::validate(model, &Settings::default(), &observed).expect("valid");
        let wish = build::build(&valid, &autoscaler());
        let shared = wish
            .objects()
            .iter()
            .filter(|wished| wished.belongs == Belongs::ToMany);
        let bodies: Vec<Value> = shared.map(|wished| wished.body.clone()).collect();
        (bodies, valid.store.conflicts)
    };
    let (bodies, conflicts) = store(&young);
    assert_eq!(bodies.len(), 3);
    assert_eq!(bodies[0]["spec"]["resources"]["requests"]["storage"], "10Gi");
    assert!(
        bodies[1].to_string().contains("\"A\""),
        "what only the young one says counts"
    );
    assert_eq!(conflicts.len(), 1);
    assert!(
        conflicts[0].contains("store.size") && conflicts[0].contains("Model old"),
        "{conflicts:?}"
    );
    assert_eq!(store(&old), (bodies.clone(), vec![]));
    assert_eq!(store(&silent), (bodies, vec![]));
}

#[rstest]
#[case::shrink("{size: 1Gi}", None, "5Gi", "cannot shrink")]
#[case::grow("{size: 9Gi}", None, "9Gi", "")]
#[case::refused("{size: 9Gi}", Some("9Gi"), "5Gi", "does not let it grow")]
fn what_a_volume_cannot_is_told_and_left(
    #[case] store: &str,
    #[case] refused: Option<&str>,
    #[case] size: &str,
    #[case] words: &str,
) {
    let model = model(
        "demo",
        1,
        &format!("{{image: phi3, storageClassName: fast, store: {store}}}"),
    );
    let mut observed = observed(&model, &[], None);
    observed.refused_size = refused.map(ToOwned::to_owned);
    observed.store.claim = Some(json!({"spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "slow", "resources": {"requests": {"storage": "5Gi"}},
    }}));
    let valid = validate::validate(&model, &Settings::default(), &observed).expect("valid");
    let told = valid.store.conflicts.join("; ");
    assert!(
        told.contains("storageClassName") && told.contains(words),
        "{told}"
    );
    let wish = build::build(&valid, &autoscaler());
    let claim = wish
        .find("PersistentVolumeClaim", "ollama-models-store-pvc")
        .expect("a claim");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], size);
    assert_eq!(claim["spec"]["storageClassName"], "slow", "as it is");
}

/// A claim that is given is used as it is: its own mode says where pods can be and whether anything can be written.
#[rstest]
#[case::many("{}", &["ReadWriteMany"], false, false)]
#[case::widest("{}", &["ReadOnlyMany", "ReadWriteMany"], false, false)]
#[case::one_node("{}", &["ReadWriteOnce"], true, false)]
#[case::read_only("{}", &["ReadOnlyMany"], false, true)]
#[case::user_knows_better("{accessMode: ReadWriteMany}", &["ReadWriteOnce"], false, false)]
fn the_mode_of_a_given_claim_counts(
    #[case] said: &str,
    #[case] modes: &[&str],
    #[case] tied: bool,
    #[case] read_only: bool,
) {
    let spec = format!("{{image: phi3, persistentVolumeClaim: mine, persistentVolume: {said}}}");
    let model = model("demo", 1, &spec);
    let mut observed = observed(&model, &[], Some(present()));
    observed.store.claim = Some(json!({"spec": {
        "accessModes": modes, "storageClassName": "slow", "resources": {"requests": {"storage": "1Gi"}},
    }}));
    let valid = validate::validate(&model, &Settings::default(), &observed).expect("valid");
    assert_eq!(valid.store.conflicts, [""; 0], "nothing of it is asked for");
    assert_eq!(valid.template["spec"]["affinity"].is_object(), tied);
    let mount = valid.store.pod()["volumes"][0]["persistentVolumeClaim"]["readOnly"] == true;
    assert_eq!((valid.store.read_only, mount), (read_only, read_only));
    let id = StoreId::of(&model);
    let asked = super::store::read_only(&id, &observed.users, &observed.store);
    assert_eq!(
        asked, read_only,
        "nothing is downloaded into what cannot be written"
    );
}

#[rstest]
#[case::plain("phi", "ollama-model-phi", "ollama-model-phi")]
#[case::dots("llama3.1", "ollama-model-llama3.1", "ollama-model-llama3-1-")]
fn names_are_those_of_the_original(#[case] name: &str, #[case] workload: &str, #[case] service: &str) {
    let model = model(name, 1, "{image: phi3}");
    let observed = observed(&model, &[], Some(present()));
    let valid = validate::validate(&model, &Settings::default(), &observed).expect("valid");
    assert_eq!(valid.workload, workload);
    assert!(valid.service.starts_with(service), "{}", valid.service);
}

fn deployment(ready: i32) -> Value {
    json!({
        "metadata": {"name": "d", "generation": 1}, "spec": {"replicas": 1, "selector": {}, "template": {}},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": ready,
                   "availableReplicas": ready},
    })
}

#[rstest]
#[case::store_starts(0, None, None, ModelPhase::Pending, "waiting for the store")]
#[case::asked(1, None, None, ModelPhase::Pending, "waiting for the store")]
#[case::pulling(1, Some(State::Pulling("pulling 43%".into())), None, ModelPhase::Pulling, "pulling 43%")]
#[case::failed(1, Some(State::Failed("no such host".into())), None, ModelPhase::Failed, "download failed")]
#[case::loading(1, Some(present()), Some(0), ModelPhase::Loading, "loading")]
#[case::ready(1, Some(present()), Some(1), ModelPhase::Ready, "serving")]
#[case::store_lost(0, None, Some(1), ModelPhase::Ready, "serving")]
#[case::unreachable(1, Some(State::Unreachable("refused".into())), Some(1), ModelPhase::Ready, "serving")]
fn what_is_told(
    #[case] store_ready: i32,
    #[case] pull: Option<State>,
    #[case] pods: Option<i32>,
    #[case] phase: ModelPhase,
    #[case] stage: &str,
) {
    let model = model("demo", 1, "{image: phi3}");
    let observed = observed(&model, &[], pull.clone());
    let valid = validate::validate(&model, &Settings::default(), &observed).expect("valid");
    let seen = Seen {
        deployment: pods.map(|ready| serde_json::from_value(deployment(ready)).expect("a Deployment")),
        pods: vec![],
        store: Live {
            workload: Some(json!({"status": {"readyReplicas": store_ready}})),
            ..Live::default()
        },
        store_pods: vec![],
    };
    let outcome = status::from_applied(&valid, &model, &seen);
    if let Some(State::Failed(words)) = &pull {
        assert!(outcome.ready.message.contains(words), "Ollama's words");
        assert_eq!(outcome.progress, Progress::Stuck);
    }
    let told = gantry_kit::driver::settle::<Models>(None, outcome, Some(1), jiff::Timestamp::UNIX_EPOCH);
    assert_eq!((told.phase, told.stage.as_deref()), (Some(phase), Some(stage)));
    assert_eq!(
        told.endpoint.as_deref(),
        Some("http://ollama-model-demo.ns.svc.cluster.local:11434")
    );
    if matches!(pull, Some(State::Present(_))) {
        assert_eq!(told.size.as_deref(), Some("2.1 GB"));
    }
}

/// What one Model says about the store that it shares must not end the others.
#[rstest]
#[case::store_is_up(1, true, "Ready", "changes to it wait")]
#[case::store_is_not_there(0, false, "WaitingForSecret", "does not exist")]
fn a_secret_that_the_store_misses_holds_up_the_store_alone(
    #[case] store_ready: i32,
    #[case] is_ready: bool,
    #[case] reason: &str,
    #[case] words: &str,
) {
    let other = model(
        "old",
        9,
        "{image: llama3, store: {registryKey: {name: absent, key: k}}}",
    );
    let model = model("demo", 1, "{image: phi3}");
    let mut observed = observed(&model, &[other], Some(present()));
    observed.store.workload = Some(json!({"status": {"readyReplicas": store_ready}}));
    let valid = validate::validate(&model, &Settings::default(), &observed).expect("not blocked");
    let wish = build::build(&valid, &autoscaler());
    let shared = wish
        .objects()
        .iter()
        .any(|wished| wished.belongs == Belongs::ToMany);
    assert!(!shared, "the store is left as it is");
    assert_eq!(wish.find("Deployment", "ollama-model-demo").is_some(), is_ready);
    let seen = Seen {
        deployment: is_ready.then(|| serde_json::from_value(deployment(1)).expect("a Deployment")),
        pods: vec![],
        store: observed.store.clone(),
        store_pods: vec![],
    };
    let outcome = status::from_applied(&valid, &model, &seen);
    let also = |wanted: &str| outcome.also.iter().find(|(type_, _)| *type_ == wanted);
    let (_, store) = also("StoreReady").expect("told");
    assert_eq!(
        (store.truth == Truth::True, store.reason.as_str()),
        (is_ready, reason)
    );
    assert!(store.message.contains(words), "{}", store.message);
    assert_eq!(
        outcome.ready.truth == Truth::True,
        is_ready,
        "{:?}",
        outcome.ready
    );
}

#[rstest]
#[case::runs(1, "True", ModelPhase::Degraded)]
#[case::lost(0, "False", ModelPhase::Failed)]
fn one_that_is_blocked_tells_of_its_pods_as_they_are(
    #[case] ready: i32,
    #[case] available: &str,
    #[case] phase: ModelPhase,
) {
    let model = model("demo", 1, "{image: 'a b'}");
    let mut observed = observed(&model, &[], None);
    observed.deployment = Some(deployment(ready));
    let blocked = wish(&model, &observed).expect_err("invalid");
    let outcome = status::blocked(&model, observed.running().as_ref(), blocked);
    let told = gantry_kit::driver::settle::<Models>(None, outcome, Some(1), jiff::Timestamp::UNIX_EPOCH);
    let counts = (told.replicas, told.available_replicas, told.unavailable_replicas);
    assert_eq!(counts, (Some(1), Some(ready), Some(1 - ready)));
    let conditions = told.conditions.unwrap_or_default();
    let condition = gantry_kit::conditions::find(&conditions, "Available").expect("told");
    assert_eq!((condition.status.as_str(), told.phase), (available, Some(phase)));
}

/// And where it reads nothing there is no trace of it: a store that is taken over must not restart for that.
#[test]
fn a_secret_that_changes_rolls_the_store() {
    let rolled_by = |spec: &str, digest: &str| {
        let model = model("demo", 1, spec);
        let mut observed = observed(&model, &[], Some(present()));
        let reference = Reference {
            source: Source::Secret,
            key: ObjectKey::new("ns", "keys"),
        };
        let resolved = Resolved {
            digests: [("k".to_owned(), digest.to_owned())].into(),
            ..Resolved::default()
        };
        observed.known = [(reference, Some(Arc::new(resolved)))].into();
        let valid = validate::validate(&model, &Settings::default(), &observed).expect("valid");
        let wish = build::build(&valid, &autoscaler());
        let store = wish.find("StatefulSet", "ollama-models-store").expect("a store");
        store["spec"]["template"]["metadata"]["annotations"].clone()
    };
    let spec = "{image: phi3, store: {registryKey: {name: keys, key: k}}}";
    assert_ne!(rolled_by(spec, "1"), Value::Null);
    assert_eq!(rolled_by(spec, "1"), rolled_by(spec, "1"));
    assert_ne!(rolled_by(spec, "1"), rolled_by(spec, "2"));
    assert_eq!(rolled_by("{image: phi3}", "1"), Value::Null);
}

#[test]
fn one_that_goes_says_so() {
    let known = gantry_crds::ollama::ModelStatus {
        phase: Some(ModelPhase::Ready),
        stage: Some("serving".to_owned()),
        ..Default::default()
    };
    let told = gantry_kit::driver::ending::<Models>(Some(&known), jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(told.phase, Some(ModelPhase::Terminating));
    assert_eq!(told.stage.as_deref(), Some("being removed"));
}

#[rstest]
#[case::not_wanted("{}", [true; 3], "NotRequested", "")]
#[case::made("{serviceMonitor: true}", [true, false, false], "Succeeded", "")]
#[case::missing("{serviceMonitor: true, prometheusRule: true}", [true, false, false], "MonitoringApiMissing", "PrometheusRule")]
fn monitoring_is_told(
    #[case] monitoring: &str,
    #[case] known: [bool; 3],
    #[case] reason: &str,
    #[case] words: &str,
) {
    let monitoring = serde_saphyr::from_str(monitoring).expect("YAML");
    let verdict = super::monitoring::Plan::decide(Some(&monitoring), known).verdict();
    assert_eq!(verdict.reason, reason);
    assert!(verdict.message.contains(words), "{}", verdict.message);
}

#[test]
fn the_service_of_metrics_is_no_other_models_service() {
    let model = model("phi-metrics", 1, "{image: phi3}");
    let valid =
        validate::validate(&model, &Settings::default(), &observed(&model, &[], None)).expect("valid");
    assert_ne!(super::monitoring::service_name("phi"), valid.service);
}

#[test]
fn what_the_user_does_before_a_stop_replaces_ours() {
    let hook = "{name: server, lifecycle: {preStop: {exec: {command: [sync]}}}}";
    let spec = format!("{{image: phi3, podTemplate: {{spec: {{containers: [{hook}]}}}}}}");
    let model = model("demo", 1, &spec);
    let objects = wish(&model, &observed(&model, &[], Some(present()))).expect("valid");
    let deployment = objects
        .iter()
        .find(|object| object["kind"] == "Deployment")
        .expect("pods");
    let server = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        server["lifecycle"]["preStop"],
        json!({"exec": {"command": ["sync"]}})
    );
}

#[test]
fn a_minimum_of_zero_asks_for_external_metrics() {
    let spec = "{image: phi3, autoscaling: {minReplicas: 0, targetQueueDepth: 1}}";
    let model = model("demo", 1, spec);
    let objects = wish(&model, &observed(&model, &[], Some(present()))).expect("valid");
    let hpa = objects
        .iter()
        .find(|object| object["kind"] == "HorizontalPodAutoscaler")
        .expect("an autoscaler");
    let metric = &hpa["spec"]["metrics"][0]["external"]["metric"];
    assert_eq!(metric["name"], "gantry_model_queue_depth");
    assert_eq!(
        metric["selector"]["matchLabels"]["model.ollama.ayaka.io/name"],
        "demo"
    );
}

#[test]
fn alerts_about_one_model_leave_its_neighbours_alone() {
    let only = super::monitoring::Only {
        namespace: "ns",
        workload: "ollama-model-llama3.1",
        may_be_away: true,
    };
    let rules = super::monitoring::groups(Some(&only)).to_string();
    assert!(
        rules.contains(r"ollama-model-llama3\\\\.1-[a-z0-9]+-[a-z0-9]+"),
        "{rules}"
    );
    assert!(!rules.contains("GantryModelDown"), "it may be away");
}

#[test]
fn any_spec_is_refused_or_built() {
    let good = [
        "{image: phi3}",
        "{image: phi3, store: {size: 1Gi}, ingress: {host: a.example.org}}",
    ];
    crate::specs::check(gantry_crds::Kind::Model, &good, |spec| {
        serde_json::from_value::<gantry_crds::ollama::ModelSpec>(spec.clone()).ok()?;
        let model = model("demo", 1, &spec.to_string());
        Some(wish(&model, &observed(&model, &[], Some(present()))))
    });
}
