//! Definitions and objects of a live cluster. Reads only, in pages, each with a deadline.

use std::fmt::Write as _;

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use gantry_fleet_domain::crd_diff::{Crd, Proof, Prover, ServerVersion};
use http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;

use super::source::{Definitions, Source};

/// Definitions are large, objects are not.
const DEFINITIONS_PER_PAGE: usize = 20;
const OBJECTS_PER_PAGE: usize = 200;
const DEADLINE: Duration = Duration::from_secs(30);
/// A list that expires while it is read is begun anew so often.
const TRIES: usize = 3;

pub struct Cluster {
    name: String,
    client: Client,
    pub version: Option<ServerVersion>,
}

impl Cluster {
    pub async fn connect(source: &Source) -> anyhow::Result<Self> {
        let Source::Cluster(context) = source else {
            bail!("{source} is not a cluster");
        };
        let mut config = match context {
            None => Config::infer()
                .await
                .context("no cluster: set KUBECONFIG, or run inside a pod")?,
            Some(context) => {
                let options = KubeConfigOptions {
                    context: Some(context.clone()),
                    ..KubeConfigOptions::default()
                };
                let kubeconfig = Kubeconfig::read().context("no kubeconfig")?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .with_context(|| format!("the kubeconfig has no usable context {context:?}"))?
            }
        };
        config.read_timeout = Some(DEADLINE);
        config.connect_timeout = Some(DEADLINE);
        let client = Client::try_from(config).with_context(|| format!("failed to connect to {source}"))?;
        let version = tokio::time::timeout(DEADLINE, client.apiserver_version())
            .await
            .map_err(|_| anyhow!("{source} does not answer"))?
            .with_context(|| format!("{source} does not answer"))?;
        Ok(Self {
            name: source.to_string(),
            client,
            version: version.git_version.parse().ok(),
        })
    }

    pub async fn definitions(&self) -> anyhow::Result<Definitions> {
        let mut found = Definitions::default();
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.pages(path, DEFINITIONS_PER_PAGE, &mut |mut document| {
            // Objects in a list do not say what they are.
            document["apiVersion"] = "apiextensions.k8s.io/v1".into();
            document["kind"] = "CustomResourceDefinition".into();
            found.take(&document, &self.name);
        })
        .await
        .with_context(|| format!("failed to list the definitions of {}", self.name))?
        .map_err(|Expired| anyhow!("the list of definitions expired while it was read"))?;
        Ok(found)
    }

    /// Puts all stored objects of a kind to its new definition; only one page is held at a time.
    pub async fn prove(&self, installed: &Crd, new: &Crd) -> anyhow::Result<Result<Proof, String>> {
        let Some(version) = shared_version(installed, new) else {
            return Ok(Err(format!(
                "objects of {} in {} were not checked: no served version is in the new definition",
                new.name, self.name
            )));
        };
        let path = format!("/apis/{}/{version}/{}", installed.group, installed.plural);
        for _ in 0..TRIES {
            let server = self.version;
            let Some(mut prover) = Prover::new(&self.name, Some(installed), new, version, server) else {
                break;
            };
            let read = self
                .pages(&path, OBJECTS_PER_PAGE, &mut |object| prover.put(&object))
                .await;
            let read = read.with_context(|| format!("failed to list {} in {}", new.name, self.name))?;
            if read.is_ok() {
                return Ok(Ok(prover.finish()));
            }
        }
        Ok(Err(format!(
            "objects of {} in {} were not checked: the list expired {TRIES} times while it was read",
            new.name, self.name
        )))
    }

    async fn pages(
        &self,
        path: &str,
        size: usize,
        each: &mut (dyn FnMut(Value) + Send),
    ) -> anyhow::Result<Result<(), Expired>> {
        let mut token = String::new();
        loop {
            let mut uri = format!("{path}?limit={size}");
            if !token.is_empty() {
                let _ = write!(uri, "&continue={}", escape(&token));
            }
            let request = Request::get(uri).body(Vec::new())?;
            let answer = tokio::time::timeout(DEADLINE, self.client.request::<Value>(request)).await;
            let mut page = match answer {
                Err(_) => bail!("no answer within {} s", DEADLINE.as_secs()),
                Ok(Err(kube::Error::Api(status))) if status.code == 410 => return Ok(Err(Expired)),
                Ok(answer) => answer?,
            };
            if let Some(Value::Array(items)) = page.get_mut("items") {
                for item in std::mem::take(items) {
                    each(item);
                }
            }
            match page["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() => next.clone_into(&mut token),
                _ => return Ok(Ok(())),
            }
        }
    }
}

/// The server forgot the list that was being read.
struct Expired;

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
