//! A reader in the target cluster: a service account that may look at nodes and definitions, with tokens that last an
//! hour. What people upload is used to set it up and to renew it, and for nothing else.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Unreachable, explain};

const NAMESPACE: &str = "gantry-fleet";
const MANAGER: &str = "gantry-fleet";
const SECONDS: i64 = 3600;

/// One for each registration: two fleets, or one cluster registered twice, do not share it.
fn name(cluster: Uuid) -> String {
    let short = cluster.simple().to_string();
    format!("gantry-fleet-reader-{}", &short[..12])
}

/// Whether what was uploaded may not do this: then it is used itself.
pub fn is_refused(why: &Unreachable) -> bool {
    why.reason == "Forbidden"
}

/// Makes the reader, if it is not there, and a token for it.
pub async fn open(
    client: &Client,
    cluster: Uuid,
    now: Timestamp,
) -> Result<(String, Timestamp), Unreachable> {
    let name = name(cluster);
    let labels =
        json!({"app.kubernetes.io/part-of": "gantry", "app.kubernetes.io/managed-by": "gantry-fleet"});
    let params = PatchParams::apply(MANAGER).force();
    let wrong = |error: kube::Error| explain(&error);
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}});
    Api::<Namespace>::all(client.clone())
        .patch(NAMESPACE, &params, &Patch::Apply(&namespace))
        .await
        .map_err(wrong)?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "labels": labels},
        "automountServiceAccountToken": false,
    });
    accounts
        .patch(&name, &params, &Patch::Apply(&account))
        .await
        .map_err(wrong)?;
    let (role, binding) = rights(&name, &labels);
    Api::<ClusterRole>::all(client.clone())
        .patch(&name, &params, &Patch::Apply(&role))
        .await
        .map_err(wrong)?;
    Api::<ClusterRoleBinding>::all(client.clone())
        .patch(&name, &params, &Patch::Apply(&binding))
        .await
        .map_err(wrong)?;
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(&name, &PostParams::default(), &request)
        .await
        .map_err(wrong)?;
    let token = answer.status.and_then(|status| status.token).unwrap_or_default();
    if token.is_empty() {
        return Err(Unreachable {
            reason: "NoToken",
            message: "the API server gives no token for our service account".to_owned(),
        });
    }
    // Servers may shorten it, so it is renewed well before.
    Ok((token, now + SignedDuration::from_secs(SECONDS / 2)))
}

fn rights(name: &str, labels: &Value) -> (Value, Value) {
    let api_version = "rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": name, "labels": labels},
        "rules": [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
            {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]},
        ],
    });
    let binding = json!({
        "apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": {"name": name, "labels": labels},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
    });
    (role, binding)
}

/// Takes the reader away. The namespace stays: others may have readers in it.
pub async fn remove(client: &Client, cluster: Uuid) -> Result<(), Unreachable> {
    let name = name(cluster);
    let params = DeleteParams::default();
    let gone = |answer: Result<(), kube::Error>| match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map_err(|error| explain(&error)),
    };
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    gone(bindings.delete(&name, &params).await.map(drop))?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    gone(roles.delete(&name, &params).await.map(drop))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    gone(accounts.delete(&name, &params).await.map(drop))
}
