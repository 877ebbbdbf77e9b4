//! The writes of one step, as requests that a kubelet would send.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(10);

/// What became of a step's writes.
#[derive(Debug)]
pub enum Written {
    /// The pod as it is now, if it still is.
    Done(Option<Box<Pod>>),
    /// No such pod any more.
    Gone,
    /// Somebody else wrote: look again.
    Conflict,
    Failed(String),
}

/// The pod that is written to.
#[derive(Debug, Clone)]
pub struct Target {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Writes the status, if any, and then deletes, if asked to.
pub async fn write(client: Client, target: Target, status: Option<Box<PodStatus>>, delete: bool) -> Written {
    let api: Api<Pod> = Api::namespaced(client, &target.namespace);
    let work = async {
        let mut pod = None;
        if let Some(status) = status {
            let patch = Patch::Strategic(status_patch(&target.uid, &status));
            pod = Some(Box::new(
                api.patch_status(&target.name, &PatchParams::default(), &patch)
                    .await?,
            ));
        }
        if delete {
            let uid = Preconditions {
                uid: Some(target.uid.clone()),
                resource_version: None,
            };
            let params = DeleteParams::default().grace_period(0).preconditions(uid);
            // With finalizers it stays, without grace now; the watch tells.
            api.delete(&target.name, &params).await?;
            pod = None;
        }
        Ok(pod)
    };
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(Ok(pod)) => Written::Done(pod),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Written::Gone,
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Written::Conflict,
        Ok(Err(error)) => Written::Failed(error.to_string()),
        Err(_) => Written::Failed("no answer in time".to_owned()),
    }
}

/// A strategic merge, as the kubelet's: conditions merge by type, so that those of others stay, and what ours no longer
/// say has to be named. The uid makes it fail on a successor of the same name.
pub fn status_patch(uid: &str, status: &PodStatus) -> Value {
    let mut status = json!(status);
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["reason", "message"] {
                condition.entry(field).or_insert(Value::Null);
            }
            condition.insert("lastProbeTime".to_owned(), Value::Null);
        }
    }
    json!({"metadata": {"uid": uid}, "status": status})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodCondition;

    use super::*;

    #[test]
    fn what_conditions_no_longer_say_is_taken_back() {
        let ready = PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            ..PodCondition::default()
        };
        let status = PodStatus {
            conditions: Some(vec![ready]),
            ..PodStatus::default()
        };
        let expected = json!({
            "metadata": {"uid": "u"},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "reason": null, "message": null, "lastProbeTime": null},
            ]},
        });
        assert_eq!(status_patch("u", &status), expected);
    }
}
