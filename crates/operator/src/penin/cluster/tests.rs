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
    Clusters, Kinds, build,
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
    let (cluster, settings) = (cluster(spec), Settings::default());
    let valid = validate::validate(&cluster, &settings, &observed(&cluster, &settings))?;
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
#[case::redis_size("{storage: {cache: {resources: {limits: {memory: 1Gi}}}}}", &["demo-redis"])]
fn a_change_rolls_what_it_touches_and_nothing_else(#[case] after: &str, #[case] expected: &[&str]) {
    assert_eq!(rolled("{}", after), expected);
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
