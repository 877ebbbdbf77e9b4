//! Pods that are safe by default, and the user's overrides on top.

use gantry_crds::common::{ContainerOverride, Fragment, text};
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::merge::strategic;

/// The user of generated pods; any image runs under it as long as it writes to mounted volumes only.
const USER: i64 = 65532;

/// A pod that meets the `restricted` Pod Security Standard: what goes in are the containers and volumes.
pub fn secure(containers: Vec<Value>, init_containers: Vec<Value>, mut volumes: Vec<Value>) -> Value {
    volumes.push(json!({"name": "tmp", "emptyDir": {}}));
    json!({
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 15,
        "containers": containers.into_iter().map(secure_container).collect::<Vec<_>>(),
        "initContainers": init_containers.into_iter().map(secure_container).collect::<Vec<_>>(),
        "volumes": volumes,
    })
}

/// Adds to a container what every one has: a writable `/tmp`, nothing else writable, no privileges, and its last
/// words in its status.
fn secure_container(mut container: Value) -> Value {
    let defaults = json!({
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "env": [{"name": "HOME", "value": "/tmp"}],
    });
    let given = container.clone();
    container = defaults;
    strategic(&mut container, &given);
    container
}

/// Whose name the pods run under, and where their images come from. The account is named in any case: the server keeps a
/// copy under an old name, from which a removed one would come back.
pub fn run_as(pod: &mut Value, account: Option<&String>, pull_secrets: &[String]) {
    let account = text(account);
    pod["serviceAccountName"] = json!(account.unwrap_or("default"));
    pod["automountServiceAccountToken"] = json!(account.is_some());
    if !pull_secrets.is_empty() {
        pod["imagePullSecrets"] = pull_secrets.iter().map(|name| json!({"name": name})).collect();
    }
}

/// Lays the user's wishes over a generated pod: first those about the main container, then the pod fragment.
/// Fails with words for the user when the outcome is no pod.
pub fn with_overrides(
    mut pod: Value,
    main: &str,
    container: Option<&ContainerOverride>,
    fragment: Option<&Fragment>,
) -> Result<Value, String> {
    if let Some(container) = container {
        let mut patch = json!(container);
        patch["name"] = json!(main);
        strategic(&mut pod, &json!({"containers": [patch]}));
    }
    if let Some(fragment) = fragment {
        strategic(&mut pod, &Value::Object(fragment.0.clone()));
    }
    serde_json::from_value::<PodSpec>(pod.clone())
        .map_err(|error| format!("podSpec and container do not give a valid pod: {error}"))?;
    Ok(pod)
}

/// A text that reaches the container as it is: in values of variables Kubernetes makes `$$` one dollar, and puts other
/// variables in for `$(NAME)`. A text with neither stays as it was, so that no pod is replaced for it.
pub fn literal(text: &str) -> String {
    if text.contains("$$") || text.contains("$(") {
        text.replace('$', "$$")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        secure(
            vec![json!({"name": "main", "image": "a", "env": [{"name": "A", "value": "1"}]})],
            vec![],
            vec![],
        )
    }

    #[test]
    fn every_container_is_locked_down() {
        let pod = pod();
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(
            container["securityContext"]["capabilities"]["drop"],
            json!(["ALL"])
        );
        assert_eq!(
            container["env"].as_array().unwrap().len(),
            2,
            "HOME is added to the given ones"
        );
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    }

    #[test]
    fn the_user_wins() {
        let container = ContainerOverride {
            image: Some("b".into()),
            security_context: serde_json::from_value(json!({"readOnlyRootFilesystem": false})).unwrap(),
            ..ContainerOverride::default()
        };
        let fragment = Fragment(
            json!({"securityContext": {"runAsUser": 1}})
                .as_object()
                .unwrap()
                .clone(),
        );
        let pod = with_overrides(pod(), "main", Some(&container), Some(&fragment)).unwrap();
        assert_eq!(pod["containers"][0]["image"], "b");
        assert_eq!(
            pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"],
            false
        );
        assert_eq!(
            pod["containers"][0]["securityContext"]["allowPrivilegeEscalation"],
            false
        );
        assert_eq!(
            (
                &pod["securityContext"]["runAsUser"],
                &pod["securityContext"]["runAsGroup"]
            ),
            (&json!(1), &json!(USER))
        );
    }

    #[test]
    fn rubbish_is_refused_with_words() {
        let fragment = Fragment(json!({"volumes": "none"}).as_object().unwrap().clone());
        let error = with_overrides(pod(), "main", None, Some(&fragment)).unwrap_err();
        assert!(error.contains("podSpec"), "{error}");
    }
}
