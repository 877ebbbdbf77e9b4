//! Repositories with an `index.yaml`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use url::Url;

use super::{ChartError, ChartVersion};
use crate::infrastructure::http::{self, Credentials, HttpError};

/// Large repositories have some tens of megabytes.
const MAX_INDEX: usize = 64 << 20;
const MAX_NODES: usize = 8_000_000;

/// What is of use in an index. Fields that we do not name are read over.
#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    entries: BTreeMap<String, Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    version: String,
    #[serde(default)]
    app_version: Option<String>,
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    deprecated: Option<bool>,
    #[serde(default)]
    digest: Option<String>,
    #[serde(default)]
    urls: Vec<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

pub async fn versions(
    client: &reqwest::Client,
    base: &Url,
    chart: &str,
    credentials: Option<&Credentials>,
) -> Result<Vec<ChartVersion>, ChartError> {
    let url = resolve(base, "index.yaml")?;
    let bytes = match http::get(client, &url, credentials, MAX_INDEX).await {
        Err(HttpError::Status {
            status: 401 | 403, ..
        }) => return Err(ChartError::Credentials),
        answer => answer?,
    };
    let parsed = tokio::task::spawn_blocking(move || parse(&bytes)).await;
    let mut index = parsed.map_err(|_| ChartError::Index("reading it failed".to_owned()))??;
    let Some(entries) = index.entries.remove(chart) else {
        return Err(ChartError::NoChart {
            hint: hint(chart, index.entries.keys()),
            chart: chart.to_owned(),
        });
    };
    Ok(entries
        .into_iter()
        .filter_map(|entry| {
            let mut annotations = entry.annotations.unwrap_or_default();
            Some(ChartVersion {
                location: entry.urls.into_iter().next()?,
                version: entry.version,
                app_version: entry.app_version.filter(|version| !version.is_empty()),
                released_at: entry.created.and_then(|text| text.parse::<Timestamp>().ok()),
                deprecated: entry.deprecated.unwrap_or(false),
                digest: entry.digest.filter(|digest| !digest.is_empty()),
                changelog_url: annotations
                    .remove("artifacthub.io/changesUrl")
                    .or_else(|| annotations.remove("changelog"))
                    .filter(|url| url.starts_with("https://")),
            })
        })
        .collect())
}

fn parse(bytes: &[u8]) -> Result<Index, ChartError> {
    let bad = |why: &str| ChartError::Index(why.to_owned());
    let text = std::str::from_utf8(bytes).map_err(|_| bad("it is not text"))?;
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|_| bad("it is not an index of charts"));
    }
    if text.trim_start().starts_with('<') {
        return Err(bad(
            "it is a web page; is this the address of a chart repository?",
        ));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_depth: 64,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|_| bad("it is not an index of charts"))
}

/// The names that are nearest, for those who mistyped.
fn hint<'n>(chart: &str, names: impl Iterator<Item = &'n String>) -> String {
    let near: Vec<&str> = names
        .filter(|name| name.contains(chart) || chart.contains(name.as_str()))
        .take(3)
        .map(String::as_str)
        .collect();
    if near.is_empty() {
        String::new()
    } else {
        format!("; it has {}", near.join(", "))
    }
}

/// An address as an index has it: whole, or below the repository.
pub fn resolve(base: &Url, location: &str) -> Result<Url, ChartError> {
    let mut base = base.clone();
    if !base.path().ends_with('/') {
        let path = format!("{}/", base.path());
        base.set_path(&path);
    }
    let url = base
        .join(location)
        .map_err(|_| ChartError::Index("it has an address that is none".to_owned()))?;
    match url.scheme() {
        "https" => Ok(url),
        "http" if base.scheme() == "http" => Ok(url),
        _ => Err(ChartError::Index(
            "it leads to an address that is not https".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "https://a.example/charts",
        "x-1.tgz",
        Some("https://a.example/charts/x-1.tgz")
    )]
    #[case(
        "https://a.example/charts/",
        "https://b.example/x.tgz",
        Some("https://b.example/x.tgz")
    )]
    #[case("https://a.example", "http://b.example/x.tgz", None)]
    #[case("http://a.example", "http://b.example/x.tgz", Some("http://b.example/x.tgz"))]
    #[case("http://a.example", "file:///etc/passwd", None)]
    fn addresses(#[case] base: &str, #[case] location: &str, #[case] expected: Option<&str>) {
        let base = Url::parse(base).unwrap();
        let found = resolve(&base, location).ok().map(String::from);
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn indexes_are_read_and_other_things_are_not() {
        let index = parse(
            b"apiVersion: v1\nentries:\n  x:\n  - version: 1.0.0\n    urls: [x-1.tgz]\n    more: {a: 1}\n",
        );
        assert_eq!(index.unwrap().entries["x"][0].version, "1.0.0");
        for text in ["<html>", "entries: 7", "\u{0}", "entries:\n  x: [{urls: []}]\n"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
