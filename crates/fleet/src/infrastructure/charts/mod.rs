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
use tokio::sync::{Semaphore, SemaphorePermit};

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
    #[error(
        "the server ended {0} times while the chart was read, so it is not read again unless somebody asks for a refresh"
    )]
    Unfinished(i32),
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

/// A chart as its repository has it.
pub struct Packed {
    archive: Vec<u8>,
    digest: Option<String>,
}

pub struct Charts {
    http: reqwest::Client,
    helm: Option<PathBuf>,
    /// Of memory, for Helm.
    share: u64,
    /// Charts that are read at once: where there is little memory, one.
    turns: Semaphore,
    /// Indexes that are read at once. People wait for them too, so they do not wait for charts.
    indexes: Semaphore,
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
            indexes: Semaphore::new(share.at_once),
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
            Repository::Http(url) => {
                let index = index::fetch(&self.http, url, credentials).await?;
                // Not while it is fetched: a repository that is slow must not keep the others waiting.
                let _turn = self.indexes.acquire().await.ok();
                index::versions(index, chart).await
            }
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

    /// Held while a chart is read: packed and unpacked it takes memory here as well.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// The definitions of one version: from `crds/` and plain templates as they are, from other templates by Helm.
    pub async fn definitions(&self, packed: Packed, values: &Value) -> Result<Definitions, ChartError> {
        let Packed { archive, digest } = packed;
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

    /// The chart of one version.
    pub async fn fetch(
        &self,
        repository: &Repository,
        chart: &str,
        version: &VersionRow,
        credentials: Option<&Credentials>,
    ) -> Result<Packed, ChartError> {
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
                let packed = |(archive, digest)| Packed {
                    archive,
                    digest: Some(digest),
                };
                return fetched.map(packed);
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
        Ok(Packed {
            archive: bytes,
            digest: None,
        })
    }
}

/// What can be read without Helm, and whether there is more to be rendered by it.
fn plain(packed: &[u8], with_helm: bool) -> Result<(Definitions, bool), ChartError> {
    let mut found = Definitions::default();
    let mut templated = false;
    // All files share them: each may be small, and have many brothers.
    let mut left = yaml::CHART;
    archive::visit(packed, &mut |file| {
        if !documents::may_define(&file) {
            return;
        }
        let mut definitions = Vec::new();
        if documents::is_templated(&file) {
            templated = true;
            if !with_helm {
                let (documents, notes) = documents::approximate(&file, left);
                definitions = documents;
                found.notes.extend(notes);
            }
        } else {
            match documents::read(&file, left) {
                Ok(documents) => definitions = documents,
                Err(why) => found.notes.push(format!("{} {why}", file.path)),
            }
        }
        definitions.retain(is_definition);
        left.spend(&definitions);
        found.definitions.extend(definitions);
    })?;
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

    use super::{archive::tests::packed, *};

    /// Small while it is packed, and a hundred times as much in memory as it is unpacked.
    #[test]
    fn what_a_chart_unfolds_to_is_bounded_over_all_of_its_files() {
        let file = |name: &str, objects: usize| {
            let objects = vec!["{\"\":0}"; objects].join(",");
            format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"{name}"}},"x":[{objects}]}}"#
            )
            .into_bytes()
        };
        let kept = |files: &[(&str, &[u8])]| {
            let chart = [&[("x/Chart.yaml", &b"name: x"[..])], files].concat();
            let (found, _) = plain(&packed(&chart), false).unwrap();
            (found.definitions.len(), found.notes)
        };
        let (wide, half) = (file("wide", 1_000_000), file("half", 150_000));
        let (number, notes) = kept(&[("x/crds/wide.json", &wide), ("x/crds/half.json", &half)]);
        assert_eq!(number, 1, "the other file is read");
        assert!(
            notes.len() == 1 && notes[0].starts_with("x/crds/wide.json is"),
            "{notes:?}"
        );
        let (number, notes) = kept(&[
            ("x/crds/a.json", &half),
            ("x/crds/b.json", &half),
            ("x/crds/c.json", &half),
        ]);
        assert_eq!((number, notes.len()), (2, 1), "{notes:?}");
    }

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
