//! Tokens that never end, and how they are kept from coming to be. The token controller of servers before 1.24 makes a
//! Secret with one for every service account, and another as soon as that is deleted: unless the account refers to a token
//! Secret of its own already. So it has one of ours, with a word in place of a token; the controller fills only what is
//! empty. It leaves the namespace to the controller, and so tells that the controller has seen it: from then on none is made
//! for an account that refers to it, and one that is being made is taken back by the controller, because the account has
//! changed under its hands. What was made before is there then to be deleted. It all goes with the account.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Unreachable, explain,
    identity::{NAMESPACE, delete, labels},
};

/// Of the reference alone, so that who applies the rest of the account does not take it away.
const MANAGER: &str = "gantry-fleet-lasting-tokens";
const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Another Secret changes the account, also where the reference is there already.
const PLACEHOLDER_UID: &str = "gantry.dev/placeholder-uid";
/// What is in place of a token.
const WORD: &[u8] = b"none: this Secret keeps the cluster from making a token that never ends";
/// Until the controller has seen it; setting up a reader has ten seconds in all.
const NOTICE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);

/// Sees to it that an account, which must be there and have no rights yet, has no token that never ends. An error says that
/// it may have one.
pub async fn prevent(client: &Client, account: &str) -> Result<(), Unreachable> {
    let version = client
        .apiserver_version()
        .await
        .map_err(|error| explain(&error))?;
    if !is_made_by(&version.major, &version.minor) {
        return Ok(());
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let found = accounts.get(account).await.map_err(|error| explain(&error))?;
    let account_uid = found.metadata.uid.unwrap_or_default();
    let (placeholder_uid, was_seen) = take_place(&secrets, account, &account_uid).await?;
    let params = PatchParams::apply(MANAGER).force();
    accounts
        .patch(
            account,
            &params,
            &Patch::Apply(&reference(account, &placeholder_uid)),
        )
        .await
        .map_err(|error| explain(&error))?;
    remove(&secrets, account).await?;
    if was_seen {
        return Ok(());
    }
    Err(Unreachable {
        reason: "TokenControllerAway",
        message: format!(
            "the cluster's token controller took no note of the Secret {} within {} s; when it is back it may make a token \
             that never ends",
            placeholder(account),
            NOTICE.as_secs()
        ),
    })
}

/// Whether the server is one of those.
fn is_made_by(major: &str, minor: &str) -> bool {
    let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
    matches!((number(major), number(minor)), (Some(1), Some(minor)) if minor < 24)
}

fn placeholder(account: &str) -> String {
    format!("{account}-no-lasting-token")
}

fn reference(account: &str, placeholder_uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": account, "annotations": {PLACEHOLDER_UID: placeholder_uid}},
        "secrets": [{"name": placeholder(account)}],
    })
}

fn wanted(account: &str, account_uid: &str) -> Secret {
    let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    Secret {
        metadata: ObjectMeta {
            name: Some(placeholder(account)),
            labels: serde_json::from_value(labels()).ok(),
            annotations: Some([(ACCOUNT, account), (ACCOUNT_UID, account_uid)].map(own).into()),
            ..ObjectMeta::default()
        },
        type_: Some(TOKEN_TYPE.to_owned()),
        data: Some(BTreeMap::from([("token".to_owned(), ByteString(WORD.to_vec()))])),
        ..Secret::default()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Empty,
    /// Of an account that had this name before, or with a token in it. It is in nobody's use.
    Wrong,
    /// Ours, and the controller may not know it yet.
    Unseen(&'a str),
    Seen(&'a str),
}

fn place<'a>(found: Option<&'a Secret>, account: &str, account_uid: &str) -> Place<'a> {
    let Some(secret) = found else { return Place::Empty };
    let annotated = |key: &str| secret.metadata.annotations.as_ref()?.get(key).map(String::as_str);
    let data = |key: &str| Some(secret.data.as_ref()?.get(key)?.0.as_slice());
    let is_right = secret.type_.as_deref() == Some(TOKEN_TYPE)
        && annotated(ACCOUNT) == Some(account)
        && annotated(ACCOUNT_UID) == Some(account_uid)
        && data("token") == Some(WORD)
        && secret.metadata.deletion_timestamp.is_none();
    let uid = secret.metadata.uid.as_deref().unwrap_or_default();
    match data("namespace") {
        _ if !is_right => Place::Wrong,
        Some(namespace) if !namespace.is_empty() => Place::Seen(uid),
        _ => Place::Unseen(uid),
    }
}

/// Gives the uid of our Secret, and whether the controller has seen it.
async fn take_place(
    secrets: &Api<Secret>,
    account: &str,
    account_uid: &str,
) -> Result<(String, bool), Unreachable> {
    let name = placeholder(account);
    let until = Instant::now() + NOTICE;
    loop {
        let found = secrets.get_opt(&name).await.map_err(|error| explain(&error))?;
        let is_late = Instant::now() >= until;
        match place(found.as_ref(), account, account_uid) {
            Place::Seen(uid) => return Ok((uid.to_owned(), true)),
            Place::Unseen(uid) if is_late => return Ok((uid.to_owned(), false)),
            _ if is_late => {
                return Err(Unreachable {
                    reason: "SecretTaken",
                    message: format!(
                        "the Secret {name} in the namespace {NAMESPACE} is removed or changed again and again by somebody else"
                    ),
                });
            }
            Place::Unseen(_) => {}
            Place::Wrong => {
                let seen = Preconditions {
                    uid: found.as_ref().and_then(|secret| secret.metadata.uid.clone()),
                    ..Preconditions::default()
                };
                let params = DeleteParams::default().preconditions(seen);
                unless_done(secrets.delete(&name, &params).await, &[404, 409])?;
            }
            Place::Empty => {
                let made = secrets
                    .create(&PostParams::default(), &wanted(account, account_uid))
                    .await;
                unless_done(made, &[409])?;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Somebody else, another replica or the controller, may have been first.
fn unless_done<T>(done: Result<T, kube::Error>, codes: &[u16]) -> Result<(), Unreachable> {
    match done {
        Err(kube::Error::Api(status)) if codes.contains(&status.code) => Ok(()),
        done => done.map(drop).map_err(|error| explain(&error)),
    }
}

/// Removes what the controller made.
async fn remove(secrets: &Api<Secret>, account: &str) -> Result<(), Unreachable> {
    let params = ListParams::default().fields(&format!("type={TOKEN_TYPE}"));
    let all = secrets.list(&params).await.map_err(|error| explain(&error))?;
    let ours = placeholder(account);
    for secret in all.items {
        let annotations = secret.metadata.annotations.unwrap_or_default();
        let is_of_it = annotations.get(ACCOUNT).is_some_and(|of| of == account);
        if let (true, Some(name)) = (is_of_it, secret.metadata.name)
            && name != ours
        {
            delete(secrets, &name).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_told_by_their_version() {
        assert!(is_made_by("1", "20"));
        assert!(is_made_by("1", "23+"));
        assert!(!is_made_by("1", "24"));
        assert!(!is_made_by("", ""));
    }

    #[test]
    fn the_place_of_a_token_is_taken_when_the_controller_has_seen_it() {
        let ours = || {
            let mut secret = wanted("a", "1");
            secret.metadata.uid = Some("s".to_owned());
            secret
        };
        let put = |mut secret: Secret, key: &str, value: &str| {
            let data = secret.data.get_or_insert_default();
            data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
            secret
        };
        let seen = put(ours(), "namespace", NAMESPACE);
        let of_another = put(wanted("a", "2"), "namespace", NAMESPACE);
        let filled = put(seen.clone(), "token", "eyJ.eyJ.x");
        let mut opaque = seen.clone();
        opaque.type_ = Some("Opaque".to_owned());
        for (found, expected) in [
            (None, Place::Empty),
            (Some(ours()), Place::Unseen("s")),
            (Some(put(ours(), "namespace", "")), Place::Unseen("s")),
            (Some(put(ours(), "ca.crt", "PEM")), Place::Unseen("s")),
            (Some(seen), Place::Seen("s")),
            (Some(of_another), Place::Wrong),
            (Some(filled), Place::Wrong),
            (Some(opaque), Place::Wrong),
        ] {
            assert_eq!(place(found.as_ref(), "a", "1"), expected, "{found:?}");
        }
    }

    #[test]
    fn what_is_in_place_of_a_token_is_none() {
        let secret = wanted("a", "1");
        let word = &secret.data.unwrap()["token"].0;
        assert!(!word.is_empty(), "the controller fills what is empty");
        assert!(!word.contains(&b'.'), "a token has three parts");
    }
}
