//! The pure steps: YAML in, what would be sent out. Snapshots are accepted with `INSTA_UPDATE=always make unit`, after
//! reading what changed.

use std::{collections::BTreeMap, sync::Arc};

use gantry_crds::penin::{ClusterPhase, PeninOmegaCluster, Service};
use gantry_kit::{Progress, Verdict, references::Resolved};
use k8s_openapi::jiff::Timestamp;
use kube::core::ApiResource;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Clusters, Kinds, build, keeper,
    observe::{Observed, Seen, SeenPart},
    plan::{Plan, REDIS},
    status, validate,
};
use crate::{
    Settings,
    workload::{refs, verdicts::Blocked},
};

fn cluster(spec: &str) -> PeninOmegaCluster {
    let spec: Value = serde_saphyr::from_str(spec).expect("YAML");
    serde_json::from_value(json!({
        "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster",
        "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1}, "spec": spec,
    }))
    .expect("a PeninOmegaCluster")
}

/// Every Secret that the spec refers to exists, with the keys that are asked for.
fn observed(cluster: &PeninOmegaCluster, settings: &Settings) -> Observed {
    let plan = Plan::new(cluster, settings);
    let mut known: BTreeMap<_, Resolved> = BTreeMap::new();
    for used in validate::uses(&plan) {
        let key = used.key.unwrap_or("KEY".into());
        let resolved = known.entry(used.reference).or_default();
        resolved.digests.insert(key, "digest".into());
    }
    let known: refs::Known = known
        .into_iter()
        .map(|(reference, resolved)| (reference, Some(Arc::new(resolved))))
        .collect();
    Observed {
        known,
        has_service_monitors: true,
        ..Observed::default()
    }
}

fn kinds() -> Kinds {
    let of = |group: &str, version: &str, kind: &str| ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    };
    Kinds {
        autoscaler: of("autoscaling", "v2", "HorizontalPodAutoscaler"),
        budget: of("policy", "v1", "PodDisruptionBudget"),
    }
}

fn wish(spec: &str) -> Result<Vec<Value>, Blocked> {
    wish_with(spec, &Settings::default())
}

fn wish_with(spec: &str, settings: &Settings) -> Result<Vec<Value>, Blocked> {
    let cluster = cluster(spec);
    let valid = validate::validate(&cluster, settings, &observed(&cluster, settings))?;
    let wish = build::build(&valid, &kinds());
    Ok(wish.objects().iter().map(|wished| wished.body.clone()).collect())
}

#[rstest]
#[case::defaults("{}")]
#[case::small(
    "{replicas: {acfaLeague: 0}, storage: {wormLedger: {enabled: false}, cache: {type: memory}},
      observability: {metrics: false, tracing: false}}"
)]
#[case::production(
    "{version: 1.0.0, image: {repository: mine/penin, pullSecrets: [{name: pull}]},
      replicas: {omegaMeta: 2, sigmaGuard: 3, srOmegaInfinity: 2, acfaLeague: 2},
      autoScaling: {services: {omegaMeta: {enabled: false}, sigmaGuard: {metrics: [{name: penin_sr_score, averageValue: 1}]}}},
      availability: {antiAffinity: Required}, networkPolicy: {},
      secrets: {providerKeys: [{name: providers}], cacheHmacKey: {name: keys, key: hmac}, metricsToken: {name: keys, key: token}},
      observability: {tracingEndpoint: 'http://otel:4317', serviceMonitor: true, dashboards: true},
      storage: {wormLedger: {storageClass: nfs, accessMode: ReadWriteMany, deletionPolicy: Delete},
                cache: {storage: {size: 1Gi, deletionPolicy: Retain}}},
      services: {acfaLeague: {port: 9000, probe: {type: TCP}, container: {args: [--quick]}}}}"
)]
fn what_is_built(#[case] spec: &str) {
    let objects = wish(spec).expect("valid");
    // One file a case, named by it.
    let name = std::thread::current()
        .name()
        .and_then(|name| name.rsplit("::").next().map(ToOwned::to_owned));
    insta::assert_yaml_snapshot!(name.unwrap_or_default(), objects);
}

#[rstest]
#[case::read_only_ledger("{storage: {wormLedger: {accessMode: ReadOnlyMany}}}", "AccessModeImpossible")]
#[case::lonely_ledger(
    "{replicas: {omegaMeta: 2}, storage: {wormLedger: {accessMode: ReadWriteOncePod}}}",
    "AccessModeImpossible"
)]
#[case::bad_pod("{services: {sigmaGuard: {podSpec: {containers: 5}}}}", "InvalidOverride")]
#[case::memory_with_image("{storage: {cache: {type: memory, image: x}}}", "InvalidSpec")]
fn what_is_refused(#[case] spec: &str, #[case] reason: &str) {
    let blocked = wish(spec).expect_err("refused");
    assert_eq!((blocked.reason, blocked.progress), (reason, Progress::Stuck));
}

/// Names of the Deployments whose pods differ between two specs.
fn rolled(before: &str, after: &str) -> Vec<String> {
    let templates = |spec: &str| -> BTreeMap<String, Value> {
        let objects = wish(spec).expect("valid").into_iter();
        let deployments = objects.filter(|object| object["kind"] == "Deployment");
        deployments
            .map(|object| {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                (name.to_owned(), object["spec"]["template"].clone())
            })
            .collect()
    };
    let (before, after) = (templates(before), templates(after));
    let changed = before
        .iter()
        .filter(|(name, template)| after.get(*name) != Some(*template));
    changed.map(|(name, _)| name.clone()).collect()
}

#[rstest]
#[case::scaling("{replicas: {omegaMeta: 3, sigmaGuard: 1}}", &[])]
#[case::autoscaling("{autoScaling: {}}", &[])]
#[case::policies("{networkPolicy: {}, observability: {dashboards: true, serviceMonitor: true}}", &[])]
#[case::gate("{config: {sigmaGuard: {eceThreshold: 0.5}}}", &["demo-sigma-guard"])]
#[case::seed("{config: {evolution: {seed: 7}}}", &["demo-acfa-league", "demo-omega-meta"])]
#[case::kappa("{config: {caosPlus: {kappa: 7}}}", &["demo-omega-meta", "demo-sr-omega-infinity"])]
#[case::resources("{resources: {srOmegaInfinity: {cpu: 1}}}", &["demo-sr-omega-infinity"])]
#[case::ledger("{storage: {wormLedger: {size: 1Ti}}}", &[])]
#[case::self_architecting(
    "{selfArchitecting: {enabled: true, allowedFields: [replicas.sigmaGuard], verdict: {metric: srScore}}}", &[]
)]
#[case::redis_size("{storage: {cache: {resources: {limits: {memory: 1Gi}}}}}", &["demo-redis"])]
fn a_change_rolls_what_it_touches_and_nothing_else(#[case] after: &str, #[case] expected: &[&str]) {
    assert_eq!(rolled("{}", after), expected);
}

const CHANGES: &str =
    "selfArchitecting: {enabled: true, allowedFields: [replicas.sigmaGuard], verdict: {metric: srScore}}";

/// Behind a NetworkPolicy the services can ask for changes where the operator takes requests, and go nowhere else.
#[rstest]
#[case::asked("networkPolicy: {}", Some("0.0.0.0:8082"), true)]
#[case::nobody_listens("networkPolicy: {}", None, false)]
fn a_network_policy_lets_requests_for_changes_through(
    #[case] spec: &str,
    #[case] address: Option<&str>,
    #[case] open: bool,
) {
    let settings = Settings {
        namespace: "home".into(),
        changes_address: address.map(|address| address.parse().expect("an address")),
        ..Settings::default()
    };
    for (spec, open) in [
        (format!("{{{CHANGES}, {spec}}}"), open),
        (format!("{{{spec}}}"), false),
    ] {
        let objects = wish_with(&spec, &settings).expect("valid");
        let mut policies = objects.iter().filter(|object| object["kind"] == "NetworkPolicy");
        let services = policies
            .find(|policy| policy["metadata"]["name"] == "demo-services")
            .expect("a policy");
        let rule = json!({
            "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "home"}}}],
            "ports": [{"port": 8082, "protocol": "TCP"}],
        });
        let egress = services["spec"]["egress"].as_array().expect("rules");
        assert_eq!(egress.contains(&rule), open, "{spec}: {egress:?}");
    }
}

/// What belongs to the keeper of the ledger, as `Kind`s.
fn kept(spec: &str) -> Vec<(String, Value)> {
    let objects = wish(&format!("{{{spec}}}")).expect("valid").into_iter();
    let own = objects.filter(|object| object["metadata"]["name"] == "demo-ledger-keeper");
    own.map(|object| {
        (
            object["kind"].as_str().unwrap_or_default().to_owned(),
            object.clone(),
        )
    })
    .collect()
}

#[rstest]
#[case::nothing_to_record("", "", &[])]
#[case::nowhere_to_keep_it(CHANGES, "storage: {wormLedger: {enabled: false}}", &[])]
#[case::no_room_for_two(CHANGES, "replicas: {omegaMeta: 1}, storage: {wormLedger: {accessMode: ReadWriteOncePod}}", &[])]
#[case::both(CHANGES, "", &["ServiceAccount", "Role", "RoleBinding", "Deployment"])]
#[case::fenced(CHANGES, "networkPolicy: {}", &["NetworkPolicy", "ServiceAccount", "Role", "RoleBinding", "Deployment"])]
fn a_keeper_comes_with_changes_and_a_volume(
    #[case] one: &str,
    #[case] other: &str,
    #[case] expected: &[&str],
) {
    let spec: Vec<&str> = [one, other].into_iter().filter(|text| !text.is_empty()).collect();
    let kinds: Vec<String> = kept(&spec.join(", ")).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, expected);
}

#[rstest]
#[case::where_the_volume_is("", 1, true)]
#[case::anywhere("storage: {wormLedger: {accessMode: ReadWriteMany}}", 1, false)]
#[case::not_before_the_others("replicas: {omegaMeta: 0}", 0, true)]
fn the_keeper_goes_where_the_volume_can_be_mounted(
    #[case] spec: &str,
    #[case] replicas: i32,
    #[case] pinned: bool,
) {
    let objects = kept(&format!("{CHANGES}, {spec}"));
    let (_, deployment) = objects.last().expect("a Deployment");
    assert_eq!(deployment["spec"]["replicas"], replicas);
    assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}));
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(!pod["affinity"]["podAffinity"].is_null(), pinned);
    if pinned {
        let writer = wish(&format!("{{{CHANGES}, {spec}}}")).expect("valid");
        let writer = writer
            .iter()
            .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == "demo-omega-meta")
            .expect("omega-meta");
        assert_eq!(
            pod["affinity"]["podAffinity"], writer["spec"]["template"]["spec"]["affinity"]["podAffinity"],
            "whoever comes first, the other comes there too"
        );
    }
}

#[test]
fn the_keeper_runs_as_those_who_write_to_the_volume() {
    let own = "services: {omegaMeta: {podSpec: {securityContext: {fsGroup: 7}, tolerations: [{key: k}], nodeSelector: {a: b}}}},
        storage: {wormLedger: {existingClaim: mine}}";
    let objects = kept(&format!("{CHANGES}, {own}"));
    let mut pod = objects.last().expect("a Deployment").1["spec"]["template"]["spec"].clone();
    assert_eq!(pod["securityContext"]["fsGroup"], 7);
    assert_eq!(pod["securityContext"]["runAsUser"], 1000);
    assert_eq!(pod["nodeSelector"], json!({"a": "b"}));
    assert_eq!(pod["tolerations"], json!([{"key": "k"}]));
    assert_eq!(pod["volumes"][0]["persistentVolumeClaim"]["claimName"], "mine");
    assert_eq!(pod["serviceAccountName"], "demo-ledger-keeper");
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    // Its tag is our version.
    pod["containers"][0]["image"] = json!("ours");
    insta::assert_yaml_snapshot!("keeper", pod);
}

/// How the pod of the keeper ended, and what its cluster tells.
#[rstest]
#[case::disagrees(3, false, "LedgerDisagrees", "entry 2 was altered")]
#[case::full(4, false, "LedgerNotWritable", "entry 2 was altered")]
#[case::something_else(1, false, "CrashLoop", "keeps ending with code 1")]
#[case::good_again(3, true, "Succeeded", "/data/gantry-changes/demo")]
fn what_is_told_of_the_keeper(
    #[case] code: i32,
    #[case] ready: bool,
    #[case] reason: &str,
    #[case] words: &str,
) {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "status": {
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            "containerStatuses": [{
                "name": "ledger-keeper", "image": "i", "imageID": "i", "ready": ready, "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {
                    "exitCode": code, "reason": "Error", "message": "{\"a\": \"log\"}\nentry 2 was altered; do that\n",
                }},
            }],
        },
    });
    let pod = gantry_kit::pods::PodSummary::new(serde_json::from_value(pod).expect("a Pod"));
    let available = i32::from(ready);
    let deployment = serde_json::from_value(json!({
        "metadata": {"generation": 1}, "spec": {"replicas": 1, "selector": {}, "template": {}},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": available},
    }))
    .expect("a Deployment");
    let (cluster, settings) = (cluster(&format!("{{{CHANGES}}}")), Settings::default());
    let verdict = keeper::verdict(&Plan::new(&cluster, &settings), &deployment, &[Arc::new(pod)]);
    let valid = validate::validate(&cluster, &settings, &observed(&cluster, &settings)).expect("valid");
    let seen = Seen {
        parts: Service::ALL.map(|service| part(service.name(), "ready")).into(),
        keeper: Some(verdict),
        ledger: None,
        reading: None,
    };
    let outcome = status::from_applied(&valid, &cluster, &seen, Timestamp::UNIX_EPOCH);
    let told = gantry_kit::driver::settle::<Clusters>(None, outcome, Some(1), Timestamp::UNIX_EPOCH);
    let condition =
        gantry_kit::conditions::find(told.conditions.as_deref().unwrap_or_default(), "LedgerKept")
            .expect("LedgerKept")
            .clone();
    assert_eq!(condition.reason, reason, "{}", condition.message);
    assert!(condition.message.contains(words), "{}", condition.message);
    assert_eq!(condition.status == "True", ready);
    assert_eq!(told.phase, Some(ClusterPhase::Running), "a copy is not a service");
}

#[test]
fn a_password_that_nobody_gave_is_made_once() {
    let settings = Settings::default();
    let lacks = |spec: &str, known: bool| {
        let cluster = cluster(spec);
        let mut observed = observed(&cluster, &settings);
        if !known {
            observed.known.values_mut().for_each(|known| *known = None);
        }
        observed.lacks_password(&Plan::new(&cluster, &settings))
    };
    assert!(lacks("{}", false));
    assert!(!lacks("{}", true), "it is there");
    assert!(
        !lacks("{storage: {cache: {type: memory}}}", false),
        "nobody needs it"
    );
    let given = "{storage: {cache: {passwordSecretRef: {name: mine, key: p}}}}";
    assert!(!lacks(given, false), "theirs to make");
}

fn part(component: &'static str, how: &str) -> SeenPart {
    let (ready, progress, pods) = match how {
        "ready" => (Verdict::yes("Ready", ""), Progress::Done, 1),
        "stopped" => (Verdict::no("ScaledToZero", ""), Progress::Done, 0),
        "stuck" => (Verdict::no("CrashLoop", "it crashes"), Progress::Stuck, 0),
        _ => (Verdict::no("RollingOut", "0 of 1"), Progress::Working, 0),
    };
    SeenPart {
        service: Service::ALL.into_iter().find(|s| s.name() == component),
        component,
        replicas: pods,
        ready_replicas: pods,
        available: pods,
        ready,
        progress,
    }
}

#[rstest]
#[case::all("ready ready ready ready ready", "AllServicesHealthy", ClusterPhase::Running)]
#[case::one_stopped(
    "ready ready ready ready stopped",
    "AllServicesHealthy",
    ClusterPhase::Running
)]
#[case::all_stopped(
    "ready stopped stopped stopped stopped",
    "ScaledToZero",
    ClusterPhase::Running
)]
#[case::some_pending("ready ready pending ready ready", "ServicesPending", ClusterPhase::Creating)]
#[case::no_cache("pending ready ready ready ready", "ServicesPending", ClusterPhase::Creating)]
#[case::one_stuck("ready ready stuck ready ready", "CrashLoop", ClusterPhase::Creating)]
#[case::all_stuck("ready stuck stuck stuck stuck", "AllServicesFailed", ClusterPhase::Failed)]
#[case::the_only_one_stuck("ready stopped stopped stopped stuck", "CrashLoop", ClusterPhase::Failed)]
fn what_is_told(#[case] parts: &str, #[case] reason: &str, #[case] phase: ClusterPhase) {
    let (mut cluster, settings) = (cluster("{}"), Settings::default());
    let names = [
        REDIS,
        "omega-meta",
        "sigma-guard",
        "sr-omega-infinity",
        "acfa-league",
    ];
    let seen = |parts: &str| Seen {
        parts: names
            .into_iter()
            .zip(parts.split(' '))
            .map(|(n, how)| part(n, how))
            .collect(),
        keeper: None,
        ledger: None,
        reading: None,
    };
    let tell = |cluster: &PeninOmegaCluster, parts: &str, seconds: i64| {
        let valid = validate::validate(cluster, &settings, &observed(cluster, &settings)).expect("valid");
        let now = Timestamp::from_second(seconds).expect("a time");
        let outcome = status::from_applied(&valid, cluster, &seen(parts), now);
        gantry_kit::driver::settle::<Clusters>(cluster.status.as_ref(), outcome, Some(1), now)
    };
    let told = tell(&cluster, parts, 100);
    let ready = gantry_kit::conditions::find(told.conditions.as_deref().unwrap_or_default(), "Ready");
    assert_eq!(ready.map(|ready| ready.reason.as_str()), Some(reason));
    assert_eq!(told.phase, Some(phase));
    cluster.status = Some(told.clone());
    assert_eq!(tell(&cluster, parts, 200), told, "nothing ticks");
    // Once it was complete, what is missing is an update.
    cluster.status = Some(tell(&cluster, "ready ready ready ready ready", 300));
    let again = tell(&cluster, parts, 400);
    let expected = if phase == ClusterPhase::Creating {
        ClusterPhase::Updating
    } else {
        phase
    };
    assert_eq!(again.phase, Some(expected));
    let end = gantry_kit::driver::ending::<Clusters>(Some(&again), Timestamp::UNIX_EPOCH);
    assert_eq!(end.phase, Some(ClusterPhase::Terminating));
}

#[test]
fn a_spec_that_cannot_be_is_failed_and_one_that_waits_is_pending() {
    let cluster = cluster("{}");
    let phase = |blocked: Blocked| {
        let outcome = status::blocked(&cluster, blocked);
        gantry_kit::driver::settle::<Clusters>(None, outcome, Some(1), Timestamp::UNIX_EPOCH).phase
    };
    assert_eq!(
        phase(Blocked::stuck("InvalidSpec", "")),
        Some(ClusterPhase::Failed)
    );
    assert_eq!(
        phase(Blocked::waiting("WaitingForSecret", "")),
        Some(ClusterPhase::Pending)
    );
}

#[test]
fn any_spec_is_refused_or_built() {
    let good = ["{}", "{version: 0.10.0, storage: {cache: {type: memory}}}"];
    crate::specs::check(gantry_crds::Kind::PeninOmegaCluster, &good, |spec| {
        serde_json::from_value::<gantry_crds::penin::PeninOmegaClusterSpec>(spec.clone()).ok()?;
        Some(wish(&spec.to_string()))
    });
}
