//! Chart repositories: which versions there are, and what definitions a chart brings. Everything that comes from them is
//! hostile until it is parsed.

pub mod archive;
pub mod documents;
mod helm;
mod index;
mod oci;

use std::{path::PathBuf, time::Duration};

use gantry_fleet_domain::{crd_diff::is_definition, operator::Repository};
use jiff::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{
    http::{self, Credentials, HttpError},
    store::operators::VersionRow,
    yaml,
};

/// One packed chart.
const MAX_ARCHIVE: usize = 64 << 20;
/// For asking a registry what is under all of its tags.
const DIGESTS: Duration = Duration::from_mins(3);

#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the repository has no chart {chart:?}{hint}")]
    NoChart { chart: String, hint: String },
    #[error("the repository's index cannot be read: {0}")]
    Index(String),
    #[error("the chart cannot be read: {0}")]
    Archive(String),
    #[error("the chart is not the one that the repository announced: its digest differs")]
    Digest,
    #[error("helm could not render the chart: {0}")]
    Helm(String),
    #[error("helm could not be run: {0}")]
    NoHelm(&'static str),
    #[error("the registry wants credentials, or does not take those that are known")]
    Credentials,
}

impl ChartError {
    /// Whether it may be otherwise in a while.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Http(error) if error.is_passing())
    }
}

/// A version that a repository has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChartVersion {
    pub version: String,
    pub app_version: Option<String>,
    pub released_at: Option<Timestamp>,
    pub deprecated: bool,
    pub digest: Option<String>,
    /// An address for HTTP, a tag for a registry.
    pub location: String,
    pub changelog_url: Option<String>,
}

/// What a chart brings, and what the reader should know about how it was found.
#[derive(Debug, Default)]
pub struct Definitions {
    pub definitions: Vec<Value>,
    pub notes: Vec<String>,
    /// What was read, where only reading it tells: the digest of a registry's manifest.
    pub digest: Option<String>,
}

impl Definitions {
    /// Adds what Helm made of the templates. A chart that needs values to be rendered still brings what is in its `crds/`, so
    /// its words become a note then. What is wrong on our side is an error: it is tried again.
    fn take_rendered(&mut self, rendered: Result<Vec<Value>, ChartError>) -> Result<(), ChartError> {
        match rendered {
            Ok(rendered) => {
                self.definitions
                    .extend(rendered.into_iter().filter(is_definition));
                Ok(())
            }
            Err(error @ ChartError::Helm(_)) if !self.definitions.is_empty() => {
                self.notes.push(format!(
                    "{error}; the definitions outside of templates are known, others may be missing"
                ));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

pub struct Charts {
    http: reqwest::Client,
    helm: Option<PathBuf>,
    /// Of memory, for Helm.
    share: u64,
    /// Charts that are read at once: where there is little memory, one.
    turns: Semaphore,
}

impl Charts {
    /// With so much memory for this process, if that is limited.
    pub fn new(http: reqwest::Client, helm: Option<PathBuf>, memory: Option<u64>) -> Self {
        let share = helm::Share::of(memory);
        Self {
            http,
            helm,
            share: share.bytes,
            turns: Semaphore::new(share.at_once),
        }
    }

    /// Whether what a chart brings depends on values.
    pub fn use_values(&self) -> bool {
        self.helm.is_some()
    }

    pub async fn versions(
        &self,
        repository: &Repository,
        chart: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Vec<ChartVersion>, ChartError> {
        match repository {
            Repository::Http(url) => index::versions(&self.http, url, chart, credentials).await,
            Repository::Oci(url) => oci::versions(&self.http, url, chart, credentials).await,
        }
    }

    /// What is under the tags of a registry now; nothing for those that could not be asked for. An index tells it with its
    /// versions.
    pub async fn digests(
        &self,
        repository: &Repository,
        chart: &str,
        tags: &[&str],
        credentials: Option<&Credentials>,
    ) -> Result<Vec<Option<String>>, ChartError> {
        match repository {
            Repository::Oci(url) => oci::digests(&self.http, url, chart, tags, credentials, DIGESTS).await,
            Repository::Http(_) => Ok(vec![None; tags.len()]),
        }
    }

    /// The definitions of one version: from `crds/` and plain templates as they are, from other templates by Helm.
    pub async fn definitions(
        &self,
        repository: &Repository,
        chart: &str,
        version: &VersionRow,
        values: &Value,
        credentials: Option<&Credentials>,
    ) -> Result<Definitions, ChartError> {
        let (archive, digest) = self.fetch(repository, chart, version, credentials).await?;
        // Held until it is read: packed and unpacked it takes memory here as well.
        let _turn = self.turns.acquire().await;
        // Away from those who answer requests: a chart may be large, and may be made to be slow.
        let packed = archive.clone();
        let with_helm = self.helm.is_some();
        let read = tokio::task::spawn_blocking(move || plain(&packed, with_helm));
        let (mut found, templated) = read
            .await
            .map_err(|_| ChartError::Archive("reading it failed".to_owned()))??;
        if templated && let Some(helm) = &self.helm {
            let rendered = helm::template(helm, archive, values, self.share).await;
            found.take_rendered(rendered)?;
        }
        found.digest = digest;
        // A chart may bring one twice: packed and rendered. The first one counts.
        let mut names = std::collections::BTreeSet::new();
        found.definitions.retain(|definition| {
            names.insert(
                definition["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            )
        });
        Ok(found)
    }

    async fn fetch(
        &self,
        repository: &Repository,
        chart: &str,
        version: &VersionRow,
        credentials: Option<&Credentials>,
    ) -> Result<(Vec<u8>, Option<String>), ChartError> {
        let bytes = match repository {
            Repository::Http(base) => {
                let url = index::resolve(base, &version.location)?;
                // An index may lead elsewhere; what is meant for the repository is not sent there.
                let credentials = credentials.filter(|_| url.origin() == base.origin());
                http::get(&self.http, &url, credentials, MAX_ARCHIVE).await?
            }
            Repository::Oci(base) => {
                let tag = &version.location;
                let fetched = oci::fetch(&self.http, base, chart, tag, credentials, MAX_ARCHIVE).await;
                return fetched.map(|(bytes, digest)| (bytes, Some(digest)));
            }
        };
        // Some repositories announce a digest with its algorithm, some without, some none.
        if let Some(announced) = version
            .digest
            .as_deref()
            .map(|digest| digest.trim_start_matches("sha256:"))
            && announced.len() == 64
            && !announced.eq_ignore_ascii_case(&sha256(&bytes))
        {
            return Err(ChartError::Digest);
        }
        Ok((bytes, None))
    }
}

/// What can be read without Helm, and whether there is more to be rendered by it.
fn plain(packed: &[u8], with_helm: bool) -> Result<(Definitions, bool), ChartError> {
    let mut found = Definitions::default();
    let mut templated = false;
    let files = archive::read(packed)?;
    for file in files.into_iter().filter(documents::may_define) {
        if documents::is_templated(&file) {
            templated = true;
            if !with_helm {
                let (documents, notes) = documents::approximate(&file, yaml::CHART);
                found
                    .definitions
                    .extend(documents.into_iter().filter(is_definition));
                found.notes.extend(notes);
            }
            continue;
        }
        match documents::read(&file, yaml::CHART) {
            Ok(documents) => found
                .definitions
                .extend(documents.into_iter().filter(is_definition)),
            Err(why) => found.notes.push(format!("{} {why}", file.path)),
        }
    }
    if templated && !with_helm {
        found.notes.push(
            "definitions in templates were read as far as they do not depend on values: no helm is installed here"
                .to_owned(),
        );
    }
    Ok((found, templated))
}

pub fn sha256(bytes: &[u8]) -> String {
    gantry_fleet_domain::hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definitions(name: &str) -> Vec<Value> {
        vec![json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        })]
    }

    fn refused() -> Result<Vec<Value>, ChartError> {
        Err(ChartError::Helm("a value is required".to_owned()))
    }

    #[test]
    fn what_helm_refuses_takes_nothing_away() {
        let mut found = Definitions {
            definitions: definitions("a"),
            ..Definitions::default()
        };
        found.take_rendered(refused()).unwrap();
        assert_eq!(found.definitions.len(), 1);
        assert!(found.notes[0].contains("a value is required"), "{found:?}");
        let away = Err(ChartError::NoHelm("no room for it"));
        assert!(found.take_rendered(away).is_err(), "it is tried again");
        found.take_rendered(Ok(definitions("b"))).unwrap();
        assert_eq!(found.definitions.len(), 2);
    }

    #[test]
    fn a_chart_of_which_nothing_is_known_has_failed() {
        assert!(Definitions::default().take_rendered(refused()).is_err());
    }
}
