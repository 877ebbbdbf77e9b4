//! Service accounts of ours in a target cluster, and tokens that do not last. What people upload is used to set them up
//! and to renew them, and for nothing else.

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Unreachable, explain};

pub const NAMESPACE: &str = "gantry-fleet";
const MANAGER: &str = "gantry-fleet";

/// One for each registration: two fleets, or one cluster registered twice, do not share it.
pub fn name(kind: &str, id: Uuid) -> String {
    let short = id.simple().to_string();
    format!("gantry-fleet-{kind}-{}", &short[..12])
}

pub fn labels() -> Value {
    json!({"app.kubernetes.io/part-of": "gantry", "app.kubernetes.io/managed-by": "gantry-fleet"})
}

pub async fn apply<K>(api: &Api<K>, name: &str, body: &Value) -> Result<(), Unreachable>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body))
        .await
        .map(drop)
        .map_err(|error| explain(&error))
}

/// What is not there is gone as well.
pub async fn delete<K>(api: &Api<K>, name: &str) -> Result<(), Unreachable>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(explain(&error)),
        Ok(_) => Ok(()),
    }
}

fn accounts(client: &Client) -> Api<ServiceAccount> {
    Api::namespaced(client.clone(), NAMESPACE)
}

/// An account without rights. Before it gets any, `lasting` sees to it that no token of it lasts.
pub async fn make_account(client: &Client, name: &str) -> Result<(), Unreachable> {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels()},
    });
    apply(&Api::<Namespace>::all(client.clone()), NAMESPACE, &namespace).await?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "labels": labels()},
        "automountServiceAccountToken": false,
    });
    apply(&accounts(client), name, &account).await
}

/// Binds the account of this name to a cluster role, by a binding of this name.
pub async fn bind(client: &Client, name: &str, role: &str) -> Result<(), Unreachable> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": labels()},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
    });
    apply(&Api::<ClusterRoleBinding>::all(client.clone()), name, &binding).await
}

/// Takes binding and account away; tokens of the account end with it. The namespace stays: others may be in it.
pub async fn remove(client: &Client, name: &str) -> Result<(), Unreachable> {
    delete(&Api::<ClusterRoleBinding>::all(client.clone()), name).await?;
    delete(&accounts(client), name).await
}

/// A token for an account that is there.
pub async fn token(client: &Client, name: &str, seconds: i64) -> Result<String, Unreachable> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(seconds),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts(client)
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .map_err(|error| explain(&error))?;
    let token = answer.status.and_then(|status| status.token).unwrap_or_default();
    if token.is_empty() {
        return Err(Unreachable {
            reason: "NoToken",
            message: "the API server gives no token for our service account".to_owned(),
        });
    }
    Ok(token)
}
