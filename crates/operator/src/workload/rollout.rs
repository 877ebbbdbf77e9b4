//! What a Deployment and its pods say about themselves, as one verdict.

use std::sync::Arc;

use gantry_crds::{common::DeploymentStatus, conditions::reasons};
use gantry_kit::{
    Context, ObjectKey, Progress, Result, Verdict,
    pods::{ContainerSummary, PodSummary},
};
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentCondition},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::core::ApiResource;

/// Name of the init container that installs packages; its failures have a reason of their own.
pub const INSTALLER: &str = "install";
/// Name of the init container that pulls a model, likewise.
pub const PULLER: &str = "pull-model";

/// Ready and progress of a workload that is one Deployment.
pub fn verdict(deployment: &Deployment, pods: &[Arc<PodSummary>]) -> (Verdict, Progress) {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let observed = status.observed_generation >= deployment.metadata.generation;
    let updated = status.updated_replicas.unwrap_or(0);
    let available = status.available_replicas.unwrap_or(0);
    let total = status.replicas.unwrap_or(0);
    if observed && updated >= wanted && available >= wanted && total <= wanted.max(updated) {
        let ready = if wanted == 0 {
            Verdict::no(
                reasons::SCALED_TO_ZERO,
                "no replicas are asked for: raise replicas to serve",
            )
        } else {
            Verdict::yes(
                reasons::READY,
                format!("{available} of {wanted} pods are available"),
            )
        };
        return (ready, Progress::Done);
    }
    if observed {
        // Until the first pod of this spec is there, all that are in trouble are of one before.
        if updated > 0
            && let Some((reason, message)) = trouble_of(deployment, pods)
        {
            return (Verdict::no(reason, message), Progress::Stuck);
        }
        if let Some(failure) = condition(deployment, "ReplicaFailure", "True") {
            let message = failure.message.clone().unwrap_or_default();
            let reason = if message.contains("exceeded quota") {
                reasons::QUOTA_EXCEEDED
            } else {
                reasons::REJECTED
            };
            return (
                Verdict::no(reason, format!("pods cannot be created: {message}")),
                Progress::Stuck,
            );
        }
        if let Some(late) = condition(deployment, "Progressing", "False") {
            let message = late.message.clone().unwrap_or_default();
            return (
                Verdict::no(reasons::PROGRESS_DEADLINE_EXCEEDED, message),
                Progress::Stuck,
            );
        }
    }
    let runs = |name: &str| {
        let mut containers = pods.iter().flat_map(|pod| &pod.containers);
        containers.any(|c| c.init && c.name == name && c.running)
    };
    let what = if runs(INSTALLER) {
        "installing the package; "
    } else if runs(PULLER) {
        "pulling the model; "
    } else {
        ""
    };
    let message = format!("{what}{updated} of {wanted} pods are up to date, {available} available");
    (Verdict::no(reasons::ROLLING_OUT, message), Progress::Working)
}

/// Whether every pod was made from the template as it is now.
pub fn is_one_template(deployment: &Deployment) -> bool {
    let status = deployment.status.as_ref();
    let observed = status.and_then(|status| status.observed_generation);
    let updated = status.and_then(|status| status.updated_replicas);
    observed >= deployment.metadata.generation && updated == status.and_then(|status| status.replicas)
}

/// The cause that a person would look for, from the newest pod that has one. Of pods that ReplicaSets made only the newest
/// set counts: what is wrong with the pods of before is what a correction replaces, and must not be told of the correction.
pub fn trouble(pods: &[Arc<PodSummary>]) -> Option<(&'static str, String)> {
    let staying = || pods.iter().filter(|pod| !pod.is_being_deleted());
    // Times of creation are whole seconds: two sets may be the newest.
    let last = staying().map(|pod| pod.created()).max()?;
    let newest: Vec<&str> = staying()
        .filter(|pod| pod.created() == last)
        .map(|pod| pod.template_hash.as_str())
        .collect();
    trouble_in(pods, &newest)
}

/// The same for a Deployment, which mostly names its newest ReplicaSet. A pod of an older one may be younger than all of
/// the newest: one that was evicted while the rollout is stuck.
fn trouble_of(deployment: &Deployment, pods: &[Arc<PodSummary>]) -> Option<(&'static str, String)> {
    match rolled_out(deployment) {
        Some(hash) => trouble_in(pods, &[hash]),
        None => trouble(pods),
    }
}

/// The template hash in the name of the ReplicaSet that the Deployment tells of. It tells of none without a deadline.
fn rolled_out(deployment: &Deployment) -> Option<&str> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    let progressing = conditions
        .iter()
        .find(|condition| condition.type_.as_deref() == Some("Progressing"))?;
    let name = progressing.message.as_deref()?.split('"').nth(1)?;
    let own = deployment.metadata.name.as_deref()?;
    name.strip_prefix(own)?.strip_prefix('-')
}

fn trouble_in(pods: &[Arc<PodSummary>], hashes: &[&str]) -> Option<(&'static str, String)> {
    pods.iter()
        .filter(|pod| !pod.is_being_deleted() && !pod.ready && hashes.contains(&pod.template_hash.as_str()))
        .find_map(|pod| {
            if let Some(why) = &pod.unschedulable {
                return Some((
                    reasons::UNSCHEDULABLE,
                    format!("pod {} finds no node: {why}", pod.name()),
                ));
            }
            pod.containers
                .iter()
                .find_map(|container| container_trouble(pod.name(), container))
        })
}

fn container_trouble(pod: &str, container: &ContainerSummary) -> Option<(&'static str, String)> {
    let name = &container.name;
    if let Some((reason, message)) = &container.waiting {
        match reason.as_str() {
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                let message = format!("image of container {name} in pod {pod} cannot be pulled: {message}");
                return Some((reasons::IMAGE_PULL_FAILED, message));
            }
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
                let message = format!("container {name} in pod {pod} cannot start: {message}");
                return Some((reasons::CONTAINER_CONFIG, message));
            }
            _ => {}
        }
    }
    let (ended, code, message) = container.ended.as_ref()?;
    let backs_off = container
        .waiting
        .as_ref()
        .is_some_and(|(reason, _)| reason == "CrashLoopBackOff");
    let again_and_again = backs_off || container.restarts >= 2;
    // A server is not meant to end, be it without a fault; an init container is.
    if *code == 0 && (container.init || !again_and_again) {
        return None;
    }
    if container.running && !again_and_again {
        return None;
    }
    let words = last_words(message);
    // No restart count here: a message that ticks would be a write at every restart.
    let again = format!("container {name} in pod {pod} keeps ending with code {code}");
    if ended == "OOMKilled" {
        let message = format!("container {name} in pod {pod} ran out of memory: raise its memory limit");
        return Some((reasons::OUT_OF_MEMORY, message));
    }
    if container.init && name == INSTALLER {
        return Some((
            reasons::PACKAGE_INSTALL_FAILED,
            format!("the package could not be installed: {words}"),
        ));
    }
    if container.init && name == PULLER {
        return Some((
            reasons::PULL_FAILED,
            format!("the model could not be pulled: {words}"),
        ));
    }
    Some((
        reasons::CRASH_LOOP,
        if words.is_empty() {
            again
        } else {
            format!("{again}: {words}")
        },
    ))
}

/// The lines of a container's log that tell why it ended, without the counters and times that change at every restart.
fn last_words(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let errors: Vec<&str> = lines
        .iter()
        .filter(|line| line.to_lowercase().contains("error"))
        .copied()
        .collect();
    let telling = if errors.is_empty() { &lines } else { &errors };
    let last: Vec<&str> = telling.iter().rev().take(3).rev().copied().collect();
    gantry_kit::error::shorten(last.join(" · "), 600)
}

fn condition<'a>(deployment: &'a Deployment, type_: &str, status: &str) -> Option<&'a DeploymentCondition> {
    deployment
        .status
        .as_ref()?
        .conditions
        .iter()
        .flatten()
        .find(|condition| {
            condition.type_.as_deref() == Some(type_) && condition.status.as_deref() == Some(status)
        })
}

/// The Deployment as it is known, for those that nothing is built for now.
pub fn known(context: &Context, key: &ObjectKey) -> Result<Option<Deployment>> {
    let child = context
        .children
        .cached(&ApiResource::erase::<Deployment>(&()), key);
    child.map(|child| child.parse()).transpose()
}

/// The Deployment's report as our kinds carry it.
pub fn report(deployment: &Deployment) -> DeploymentStatus {
    let status = deployment.status.clone().unwrap_or_default();
    let mut conditions: Vec<Condition> = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .map(copied)
        .collect();
    // The Deployment controller changes their order at will, which would look like a change.
    conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    DeploymentStatus {
        replicas: Some(status.replicas.unwrap_or(0)),
        ready_replicas: Some(status.ready_replicas.unwrap_or(0)),
        available_replicas: Some(status.available_replicas.unwrap_or(0)),
        updated_replicas: Some(status.updated_replicas.unwrap_or(0)),
        conditions: Some(conditions),
    }
}

fn copied(condition: DeploymentCondition) -> Condition {
    Condition {
        type_: condition.type_.unwrap_or_default(),
        status: condition.status.unwrap_or_default(),
        reason: condition.reason.unwrap_or_default(),
        message: condition.message.unwrap_or_default(),
        last_transition_time: condition
            .last_transition_time
            .unwrap_or(Time(Timestamp::UNIX_EPOCH)),
        observed_generation: None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn deployment(updated: i32) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "d", "generation": 3},
            "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {"observedGeneration": 3, "replicas": 1, "updatedReplicas": updated},
        }))
        .unwrap()
    }

    fn pod(hash: &str, list: &str, container: &Value) -> Arc<PodSummary> {
        let mut status =
            json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 1});
        status
            .as_object_mut()
            .unwrap()
            .extend(container.as_object().unwrap().clone());
        let second = i32::from(hash == "new");
        let pod = json!({
            "metadata": {
                "name": format!("p-{hash}"), "labels": {"pod-template-hash": hash},
                "creationTimestamp": format!("2026-01-01T00:00:0{second}Z"),
            },
            "status": {list: [status]},
        });
        Arc::new(PodSummary::new(serde_json::from_value(pod).unwrap()))
    }

    fn no_image(hash: &str) -> Arc<PodSummary> {
        let waiting = json!({"state": {"waiting": {"reason": "ImagePullBackOff", "message": hash}}});
        pod(hash, "containerStatuses", &waiting)
    }

    fn starting(hash: &str) -> Arc<PodSummary> {
        let waiting = json!({"state": {"waiting": {"reason": "ContainerCreating"}}, "restartCount": 0});
        pod(hash, "containerStatuses", &waiting)
    }

    /// Newest first, as they come.
    #[rstest]
    #[case::none_of_this_spec_yet(0, vec![no_image("old")], "RollingOut")]
    #[case::the_cure_starts(1, vec![starting("new"), no_image("old")], "RollingOut")]
    #[case::the_cure_is_none(1, vec![no_image("new"), no_image("old")], "ImagePullFailed")]
    #[case::the_only_one(1, vec![no_image("new")], "ImagePullFailed")]
    #[case::another_pod_of_it(2, vec![starting("new"), no_image("new")], "ImagePullFailed")]
    #[case::no_replica_set(1, vec![starting(""), no_image("")], "ImagePullFailed")]
    fn only_pods_of_the_newest_spec_are_judged(
        #[case] updated: i32,
        #[case] pods: Vec<Arc<PodSummary>>,
        #[case] reason: &str,
    ) {
        let (ready, progress) = verdict(&deployment(updated), &pods);
        assert_eq!(ready.reason, reason, "{}", ready.message);
        assert_eq!(progress == Progress::Working, reason == "RollingOut");
    }

    #[test]
    fn pods_of_the_same_second_are_all_judged() {
        let pods = [starting("old"), no_image("too")];
        assert_eq!(verdict(&deployment(1), &pods).0.reason, "ImagePullFailed");
    }

    #[rstest]
    #[case::is_progressing(r#"ReplicaSet "d-old" is progressing."#, "ImagePullFailed")]
    #[case::was_made(r#"Created new replica set "d-old""#, "ImagePullFailed")]
    #[case::another(r#"ReplicaSet "d-other" is progressing."#, "RollingOut")]
    #[case::of_somebody_else(r#"ReplicaSet "e-old" is progressing."#, "RollingOut")]
    #[case::in_other_words("all goes well", "RollingOut")]
    fn the_set_that_the_deployment_names_is_judged(#[case] message: &str, #[case] reason: &str) {
        let mut deployment = deployment(1);
        deployment.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
            {"type": "Available", "status": "True", "message": "ReplicaSet \"d-new\""},
            {"type": "Progressing", "status": "True", "message": message},
        ]))
        .unwrap();
        // The younger one is of the set before: it took the place of one that was evicted.
        let pods = [starting("new"), no_image("old")];
        assert_eq!(verdict(&deployment, &pods).0.reason, reason);
    }

    #[rstest]
    #[case::backs_off("containerStatuses", json!({"waiting": {"reason": "CrashLoopBackOff"}}), 1, true)]
    #[case::once("containerStatuses", json!({"terminated": {"exitCode": 0}}), 0, false)]
    #[case::started_again("containerStatuses", json!({"running": {}}), 1, false)]
    #[case::again_and_again("containerStatuses", json!({"running": {}}), 2, true)]
    #[case::an_init_container_is_done("initContainerStatuses", json!({"terminated": {"exitCode": 0}}), 3, false)]
    fn a_server_that_ends_without_a_fault_is_named(
        #[case] list: &str,
        #[case] state: Value,
        #[case] restarts: i32,
        #[case] named: bool,
    ) {
        let container = json!({
            "state": state, "restartCount": restarts, "lastState": {"terminated": {"exitCode": 0, "reason": "Completed"}},
        });
        let (ready, _) = verdict(&deployment(1), &[pod("new", list, &container)]);
        assert_eq!(ready.reason == reasons::CRASH_LOOP, named, "{}", ready.message);
    }
}
