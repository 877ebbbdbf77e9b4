//! Whole lives, written out.

use rstest::rstest;
use serde_json::{Value, json};

use super::{MINUTE, Sim, probed, restart, with_init};

#[rstest]
#[case::plain(&[], json!({}), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Running Ready: c Running 0+",
])]
#[case::without_delay_in_one_write(&[("ready-delay", "0")], json!({}), &[
    "0.0 Running Ready: c Running 0+",
])]
#[case::probed_and_slow_is_seen_running(&[("ready-delay", "4s")], probed(), &[
    "0.0 Pending: c ContainerCreating 0",
    "2.0 Running: c Running 0",
    "4.0 Running Ready: c Running 0+",
])]
#[case::init_containers_in_order(&[], with_init(), &[
    "0.0 Pending: i1 Running 0, i2 PodInitializing 0, c PodInitializing 0",
    "0.1 Pending: i1 Completed 0+, i2 Running 0, c PodInitializing 0",
    "0.2 Pending: i1 Completed 0+, i2 Completed 0+, c PodInitializing 0",
    "0.7 Running Ready: i1 Completed 0+, i2 Completed 0+, c Running 0+",
])]
#[case::sidecars_stay(&[], json!({"initContainers": [{"name": "s", "image": "x", "restartPolicy": "Always"}]}), &[
    "0.0 Pending: s Running 0+, c PodInitializing 0",
    "0.5 Running Ready: s Running 0+, c Running 0+",
])]
#[case::job(&[("run-for", "3s")], restart("Never"), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Running Ready: c Running 0+",
    "3.5 Succeeded: c Completed 0",
])]
#[case::failed_job(&[("fail", "crash-loop")], restart("Never"), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Failed: c Error 0",
])]
#[case::crash_loop(&[("fail", "crash-loop"), ("crash-backoff", "10s")], json!({}), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Running: c Error 0",
    "1.0 Running: c CrashLoopBackOff 1",
    "11.0 Running: c CrashLoopBackOff 2",
    "31.0 Running: c CrashLoopBackOff 3",
])]
#[case::crash_loop_on_failure(&[("fail", "crash-loop"), ("crash-backoff", "30s")], restart("OnFailure"), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Running: c Error 0",
    "1.0 Running: c CrashLoopBackOff 1",
    "31.0 Running: c CrashLoopBackOff 2",
])]
#[case::crash_after_a_while(&[("fail", "crash-loop"), ("crash-backoff", "20s"), ("crash-after", "5s")], json!({}), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Running Ready: c Running 0+",
    "5.5 Running: c Error 0",
    "6.0 Running Ready: c Running 1+",
    "11.0 Running: c CrashLoopBackOff 1",
    "31.0 Running Ready: c Running 2+",
    "36.0 Running: c CrashLoopBackOff 2",
])]
#[case::oom(&[("fail", "oom"), ("crash-backoff", "1m")], json!({}), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Running: c OOMKilled 0",
    "1.0 Running: c CrashLoopBackOff 1",
])]
#[case::image_pull(&[("fail", "image-pull")], json!({}), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Pending: c ErrImagePull 0",
    "1.5 Pending: c ImagePullBackOff 0",
    "11.5 Pending: c ErrImagePull 0",
    "12.5 Pending: c ImagePullBackOff 0",
    "25.4 Pending: c ErrImagePull 0",
    "26.4 Pending: c ImagePullBackOff 0",
    "53.2 Pending: c ErrImagePull 0",
    "54.2 Pending: c ImagePullBackOff 0",
])]
#[case::never_ready(&[("fail", "never-ready")], json!({}), &[
    "0.0 Pending: c ContainerCreating 0",
    "0.5 Running: c Running 0",
])]
#[case::init_crash_loop(&[("fail", "init-crash-loop"), ("fail-container", "i2"), ("crash-backoff", "30s")], with_init(), &[
    "0.0 Pending: i1 Running 0, i2 PodInitializing 0, c PodInitializing 0",
    "0.1 Pending: i1 Completed 0+, i2 Error 0, c PodInitializing 0",
    "0.6 Pending: i1 Completed 0+, i2 CrashLoopBackOff 1, c PodInitializing 0",
    "30.6 Pending: i1 Completed 0+, i2 CrashLoopBackOff 2, c PodInitializing 0",
])]
#[case::one_of_two(&[("fail", "crash-loop"), ("fail-container", "b"), ("crash-backoff", "1m")],
    json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]}), &[
    "0.0 Pending: a ContainerCreating 0, b ContainerCreating 0",
    "0.5 Running: a Running 0+, b Error 0",
    "1.0 Running: a Running 0+, b CrashLoopBackOff 1",
])]
fn lives(#[case] annotated: &[(&str, &str)], #[case] spec: Value, #[case] expected: &[&str]) {
    let mut sim = Sim::new(annotated, spec);
    sim.live(MINUTE);
    assert_eq!(sim.trace, expected);
}
