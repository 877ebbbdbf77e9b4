//! What a status says in detail, and what happens when something changes on the way.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    super::behaviour::{Behaviour, Defaults, Fail},
    MINUTE, Sim, annotations, restart, with_init,
};

#[test]
fn conditions_are_the_kubelets() {
    let mut sim = Sim::new(&[], with_init());
    sim.live(Duration::ZERO);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        sim.condition("Initialized"),
        (
            "False".into(),
            some("ContainersNotInitialized"),
            some("containers with incomplete status: [i1 i2]")
        )
    );
    for kind in ["Ready", "ContainersReady"] {
        let expected = (
            "False".into(),
            some("ContainersNotReady"),
            some("containers with unready status: [c]"),
        );
        assert_eq!(sim.condition(kind), expected);
    }
    assert_eq!(sim.condition("PodScheduled"), ("True".into(), None, None));
    sim.live(MINUTE);
    for kind in ["Initialized", "Ready", "ContainersReady", "PodScheduled"] {
        assert_eq!(sim.condition(kind), ("True".into(), None, None), "{kind}");
    }

    let mut job = Sim::new(&[], restart("OnFailure"));
    job.live(MINUTE);
    assert_eq!(
        job.condition("Initialized"),
        ("True".into(), some("PodCompleted"), None)
    );
    assert_eq!(
        job.condition("Ready"),
        ("False".into(), some("PodCompleted"), None)
    );
}

#[test]
fn addresses_and_times_are_set() {
    let mut sim = Sim::new(&[], json!({}));
    sim.live(Duration::ZERO);
    let status = sim.view().status;
    assert_eq!(
        (status.host_ip.as_deref(), status.pod_ip),
        (Some("10.9.0.1"), None)
    );
    sim.live(MINUTE);
    let status = sim.view().status;
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(status.pod_ips.unwrap()[0].ip, "10.0.0.1");
    assert_eq!(status.start_time.unwrap().0.to_string(), "2026-01-01T00:00:00Z");
    let container = &status.container_statuses.unwrap()[0];
    assert!(
        container
            .container_id
            .as_deref()
            .unwrap()
            .starts_with("containerd://")
    );
    assert!(container.image_id.starts_with("docker.io/library/nginx@sha256:"));
    assert_eq!(container.started, Some(true));
}

#[test]
fn a_closed_readiness_gate_holds_the_pod_back() {
    let mut sim = Sim::new(&[], json!({"readinessGates": [{"conditionType": "x/y"}]}));
    sim.live(MINUTE);
    let (status, reason, message) = sim.condition("Ready");
    assert_eq!(
        (status.as_str(), reason.as_deref()),
        ("False", Some("ReadinessGatesNotReady"))
    );
    assert!(message.unwrap().contains("\"x/y\" does not exist"));
    let conditions = sim.pod["status"]["conditions"].as_array_mut().unwrap();
    conditions.push(json!({"type": "x/y", "status": "True"}));
    sim.live(MINUTE);
    assert_eq!(sim.condition("Ready").0, "True");
}

#[test]
fn messages_are_the_kubelets() {
    let mut sim = Sim::new(
        &[("fail", "crash-loop"), ("fail-message", "no route to db")],
        json!({}),
    );
    sim.live(Duration::from_mins(5));
    assert_eq!(
        sim.waiting_message(),
        "back-off 2m40s restarting failed container=c pod=p_ns(u-1)"
    );
    let status = sim.view().status.container_statuses.unwrap().remove(0);
    let last = status.last_state.unwrap().terminated.unwrap();
    assert_eq!(
        (last.exit_code, last.message.as_deref()),
        (1, Some("no route to db"))
    );
    assert!(last.started_at.unwrap() <= last.finished_at.unwrap() && last.container_id.is_some());
    assert_eq!(sim.events[0].message, "Back-off restarting failed container");
    assert_eq!(sim.events[0].field_path, "spec.containers{c}");
    // Doubling ends at five minutes.
    sim.live(Duration::from_mins(50));
    assert!(sim.waiting_message().starts_with("back-off 5m0s "));

    let mut sim = Sim::new(&[("fail", "image-pull")], json!({}));
    sim.live(Duration::from_secs(1));
    assert!(
        sim.waiting_message()
            .contains("failed to resolve reference \"docker.io/library/nginx:1\"")
    );
    sim.live(Duration::from_secs(1));
    assert_eq!(sim.waiting_message(), "Back-off pulling image \"nginx:1\"");
    let reasons: Vec<_> = sim.events.iter().map(|e| (e.reason, e.warning)).collect();
    assert_eq!(
        reasons,
        [
            ("Failed", true),
            ("Failed", true),
            ("BackOff", false),
            ("Failed", true)
        ]
    );
}

#[rstest]
#[case("crash-loop", "Running 3+")]
#[case("oom", "Running 3+")]
#[case("image-pull", "Running 0+")]
#[case("never-ready", "Running 0+")]
fn pods_can_be_healed(#[case] fail: &str, #[case] expected: &str) {
    let mut sim = Sim::new(&[("fail", fail), ("crash-backoff", "10s")], json!({}));
    sim.live(Duration::from_secs(15)).annotate(&[]).live(MINUTE);
    assert_eq!(
        sim.trace.last(),
        Some(&format!("15.0 Running Ready: c {expected}"))
    );
}

#[rstest]
#[case("crash-loop", "Running: c CrashLoopBackOff 1")]
#[case("oom", "Running: c CrashLoopBackOff 1")]
#[case("image-pull", "Running: c ImagePullBackOff 0")]
#[case("never-ready", "Running: c Running 0")]
fn running_pods_can_be_broken(#[case] fail: &str, #[case] expected: &str) {
    let mut sim = Sim::new(&[], json!({}));
    sim.live(MINUTE)
        .annotate(&[("fail", fail)])
        .live(Duration::from_secs(5));
    assert!(sim.line().ends_with(expected), "{}", sim.line());
    assert!(!sim.events.is_empty());
}

#[rstest]
#[case(json!({"deletionTimestamp": "2026-01-01T00:01:30Z", "deletionGracePeriodSeconds": 30}), true, 143)]
#[case(json!({"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}), false, 0)]
fn deleted_pods_stop_and_go(#[case] metadata: Value, #[case] deleted: bool, #[case] exit_code: i32) {
    let mut sim = Sim::new(&[], json!({}));
    sim.live(MINUTE);
    for (key, value) in metadata.as_object().unwrap() {
        sim.pod["metadata"][key] = value.clone();
    }
    (sim.stage, sim.entered) = (sim.view().stage(), sim.now);
    let before = sim.now;
    sim.live(MINUTE);
    assert_eq!(sim.deleted, deleted);
    let state = sim
        .view()
        .status
        .container_statuses
        .unwrap()
        .remove(0)
        .state
        .unwrap();
    assert_eq!(state.terminated.map_or(0, |t| t.exit_code), exit_code);
    if deleted {
        assert_eq!(sim.now.duration_since(before).as_millis(), 200);
        assert_eq!(sim.condition("Ready").0, "False");
    }
}

#[test]
fn a_restart_of_ours_goes_on_where_it_was() {
    let mut sim = Sim::new(&[("fail", "crash-loop"), ("crash-backoff", "10s")], json!({}));
    sim.live(Duration::from_secs(12));
    assert!(sim.line().ends_with("CrashLoopBackOff 2"));
    // Only the status is left: its times are whole seconds.
    sim.entered = sim.view().stage_since().unwrap();
    sim.live(Duration::from_secs(25));
    assert!(sim.line().ends_with("CrashLoopBackOff 3"), "{}", sim.line());
}

#[test]
fn fields_of_others_do_not_cause_writes() {
    let mut sim = Sim::new(&[], json!({}));
    sim.live(MINUTE);
    let writes = sim.trace.len();
    sim.pod["status"]["qosClass"] = json!("Burstable");
    sim.pod["status"]["hostIPs"] = json!([{"ip": "10.9.0.1"}]);
    sim.pod["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "x", "status": "Unknown"}));
    sim.pod["status"]["conditions"][0]["observedGeneration"] = json!(3);
    sim.pod["status"]["containerStatuses"][0]["resources"] = json!({"limits": {"cpu": "1"}});
    sim.live(MINUTE);
    assert_eq!(sim.trace.len(), writes);
}

#[test]
fn bad_annotations_are_told_and_left_out() {
    let pairs = [("ready-delay", "soon"), ("fail", "sometimes")];
    let map = serde_json::from_value(annotations(&pairs)).unwrap();
    let behaviour = Behaviour::parse(&map, &Defaults::default());
    assert_eq!(behaviour.problems.len(), 2);
    assert_eq!(
        (behaviour.fail, behaviour.ready_delay),
        (None, Defaults::default().ready_delay)
    );
    let map = serde_json::from_value(annotations(&[("fail", "oom"), ("crash-backoff", "10m")])).unwrap();
    let behaviour = Behaviour::parse(&map, &Defaults::default());
    assert_eq!(behaviour.fail, Some(Fail::Oom));
    // A base above the cap raises the cap.
    assert_eq!(behaviour.backoff(9), Duration::from_mins(10));
}
