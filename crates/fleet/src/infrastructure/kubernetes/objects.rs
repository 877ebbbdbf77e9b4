//! Definitions and custom resources of a cluster, a page at a time: reads only, each page with a deadline, and never more
//! than one of them, and one object of it, in memory.

use std::{fmt::Write as _, time::Duration};

use gantry_fleet_domain::crd_diff::{Crd, Proof, Prover, ServerVersion};
use kube::Client;
use serde_json::Value;

use super::answers::{self, Objects};

/// Definitions are large, objects are not; but any may have a megabyte and a half, and an answer has a limit.
const DEFINITIONS_PER_PAGE: usize = 20;
const OBJECTS_PER_PAGE: usize = 40;
const DEADLINE: Duration = Duration::from_secs(30);
/// A list that expires while it is read is begun anew so often.
const TRIES: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("no answer within {} s", DEADLINE.as_secs())]
    NoAnswer,
    /// The server forgot the list that was being read.
    #[error("the list expired while it was read")]
    Expired,
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// Every definition, as a whole document.
pub async fn definitions(client: &Client, each: &mut (dyn FnMut(Value) + Send)) -> Result<(), ListError> {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    pages(client, path, DEFINITIONS_PER_PAGE, &mut |mut document| {
        // Objects in a list do not say what they are.
        document["apiVersion"] = "apiextensions.k8s.io/v1".into();
        document["kind"] = "CustomResourceDefinition".into();
        each(document);
    })
    .await
}

/// One definition as the cluster has it.
pub async fn definition(client: &Client, name: &str) -> Result<Option<Value>, ListError> {
    let path = format!(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}",
        escape(name)
    );
    match in_time(answers::object(client, request(path)?)).await {
        Ok(document) => Ok(Some(document)),
        Err(ListError::Api(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts all stored objects of a kind to its new definition. What could not be looked at is a word, not an error.
pub async fn prove(
    client: &Client,
    place: &str,
    server: Option<ServerVersion>,
    installed: &Crd,
    new: &Crd,
) -> Result<Result<Proof, String>, ListError> {
    let Some(version) = shared_version(installed, new) else {
        return Ok(Err(format!(
            "objects of {} in {place} were not checked: no served version is in the new definition",
            new.name
        )));
    };
    let path = format!("/apis/{}/{version}/{}", installed.group, installed.plural);
    for _ in 0..TRIES {
        let Some(mut prover) = Prover::new(place, Some(installed), new, version, server) else {
            break;
        };
        match pages(client, &path, OBJECTS_PER_PAGE, &mut |object| prover.put(&object)).await {
            Ok(()) => return Ok(Ok(prover.finish())),
            Err(ListError::Expired) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Err(format!(
        "objects of {} in {place} were not checked: the list expired {TRIES} times while it was read",
        new.name
    )))
}

async fn pages(
    client: &Client,
    path: &str,
    size: usize,
    each: &mut (dyn FnMut(Value) + Send),
) -> Result<(), ListError> {
    let mut token = String::new();
    loop {
        let mut uri = format!("{path}?limit={size}");
        if !token.is_empty() {
            let _ = write!(uri, "&continue={}", escape(&token));
        }
        let mut objects = Objects(&mut *each);
        match in_time(answers::page(client, request(uri)?, &mut objects)).await {
            Err(ListError::Api(kube::Error::Api(status))) if status.code == 410 => {
                return Err(ListError::Expired);
            }
            answer => match answer? {
                Some(next) => token = next,
                None => return Ok(()),
            },
        }
    }
}

fn request(uri: String) -> Result<http::Request<Vec<u8>>, ListError> {
    let request = http::Request::get(uri).body(Vec::new());
    Ok(request.map_err(kube::Error::HttpError)?)
}

async fn in_time<T>(asked: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ListError> {
    tokio::time::timeout(DEADLINE, asked)
        .await
        .map_err(|_| ListError::NoAnswer)?
        .map_err(ListError::Api)
}

/// Best in the version that the new definition stores; at least in one that the server serves and the new one has.
fn shared_version<'c>(installed: &'c Crd, new: &Crd) -> Option<&'c str> {
    let usable: Vec<_> = installed
        .versions
        .iter()
        .filter(|version| version.served && new.version(&version.name).is_some())
        .collect();
    let stored_then = |name: &str| new.storage().is_some_and(|version| version.name == name);
    usable
        .iter()
        .find(|version| stored_then(&version.name))
        .or_else(|| usable.iter().find(|version| version.storage))
        .or_else(|| usable.first())
        .map(|version| version.name.as_str())
}

/// Tokens are opaque; what may not stand in a query is written in hexadecimal.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(versions: &[(&str, bool, bool)]) -> Crd {
        let versions: Vec<Value> = versions
            .iter()
            .map(|(name, served, storage)| json!({"name": name, "served": served, "storage": storage}))
            .collect();
        Crd::parse(&json!({
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "names": {"plural": "things", "kind": "Thing"}, "versions": versions},
        }))
        .unwrap()
    }

    #[test]
    fn objects_are_read_in_a_version_that_both_have() {
        let installed = crd(&[("v1beta1", true, true), ("v1", true, false)]);
        assert_eq!(
            shared_version(&installed, &crd(&[("v1", true, true)])),
            Some("v1")
        );
        assert_eq!(
            shared_version(&installed, &crd(&[("v1beta1", false, false), ("v2", true, true)])),
            Some("v1beta1")
        );
        assert_eq!(shared_version(&installed, &crd(&[("v2", true, true)])), None);
    }

    #[test]
    fn tokens_are_escaped() {
        assert_eq!(escape("aZ0-_/+="), "aZ0-_%2F%2B%3D");
    }
}
