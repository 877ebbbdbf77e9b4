//! Service accounts of ours in a target cluster, and tokens that do not last. What people upload is used to set them up
//! and to renew them, and for nothing else.

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, Secret, ServiceAccount},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Unreachable, explain};

const NAMESPACE: &str = "gantry-fleet";
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

/// Servers before 1.24 make a Secret with a token that never ends for every account. It is removed; such a server makes
/// another one, so removing it whenever our own token is renewed is what bounds the life of each.
pub async fn remove_lasting_tokens(client: &Client, name: &str) -> Result<(), Unreachable> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let params = ListParams::default().fields("type=kubernetes.io/service-account-token");
    let all = secrets.list(&params).await.map_err(|error| explain(&error))?;
    for secret in all.items {
        let annotations = secret.metadata.annotations.unwrap_or_default();
        let is_ours = annotations
            .get("kubernetes.io/service-account.name")
            .is_some_and(|account| account == name);
        if let (true, Some(secret)) = (is_ours, secret.metadata.name) {
            delete(&secrets, &secret).await?;
        }
    }
    Ok(())
}

/// Whether the server is one of those.
pub fn makes_lasting_tokens(major: &str, minor: &str) -> bool {
    let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
    matches!((number(major), number(minor)), (Some(1), Some(minor)) if minor < 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_told_by_their_version() {
        assert!(makes_lasting_tokens("1", "20"));
        assert!(makes_lasting_tokens("1", "23+"));
        assert!(!makes_lasting_tokens("1", "24"));
        assert!(!makes_lasting_tokens("", ""));
    }
}
