//! Repositories with an `index.yaml`.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use url::Url;

use super::{ChartError, ChartVersion};
use crate::infrastructure::{
    http::{self, Credentials, HttpError},
    lean::{self, Fields},
};

/// Large repositories have some tens of megabytes.
const MAX_INDEX: usize = 64 << 20;
const MAX_NODES: usize = 8_000_000;
/// Of one chart; the newest come first. No chart has nearly as many.
const MAX_VERSIONS: usize = 20_000;
/// Names of other charts, for those who mistyped, and how long one may be to be of help.
const NEAR: usize = 3;
const LONGEST_NAME: usize = 250;

/// What is of use in an index: one chart. Others, and fields that we do not name, are read over.
struct Index<'c> {
    chart: &'c str,
    entries: Option<Vec<Entry>>,
    near: Vec<String>,
}

impl<'de> Fields<'de> for Index<'_> {
    fn is_wanted(&mut self, name: &str) -> bool {
        name == "entries"
    }

    fn take<D: Deserializer<'de>>(&mut self, _: &str, deserializer: D) -> Result<(), D::Error> {
        lean::fields(deserializer, &mut Charts(self))
    }
}

struct Charts<'i, 'c>(&'i mut Index<'c>);

impl<'de> Fields<'de> for Charts<'_, '_> {
    fn is_wanted(&mut self, name: &str) -> bool {
        let Index { chart, near, .. } = &mut *self.0;
        if name == *chart {
            return true;
        }
        let is_near = name.contains(*chart) || chart.contains(name);
        if is_near && near.len() < NEAR && name.len() <= LONGEST_NAME {
            near.push(name.to_owned());
        }
        false
    }

    fn take<D: Deserializer<'de>>(&mut self, _: &str, deserializer: D) -> Result<(), D::Error> {
        let entries = self.0.entries.insert(Vec::new());
        lean::each(deserializer, |entry| {
            if entries.len() < MAX_VERSIONS {
                entries.push(entry);
            }
        })
    }
}

#[derive(Debug, Deserialize)]
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
    #[serde(default, rename = "urls", deserialize_with = "first")]
    url: Option<String>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Debug, Deserialize)]
struct Annotations {
    #[serde(default, rename = "artifacthub.io/changesUrl")]
    changes_url: Option<String>,
    #[serde(default)]
    changelog: Option<String>,
}

fn first<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let mut first = None;
    lean::each(deserializer, |url| {
        first.get_or_insert(url);
    })?;
    Ok(first)
}

pub async fn fetch(
    client: &reqwest::Client,
    base: &Url,
    credentials: Option<&Credentials>,
) -> Result<Vec<u8>, ChartError> {
    let url = resolve(base, "index.yaml")?;
    match http::get(client, &url, credentials, MAX_INDEX).await {
        Err(HttpError::Status {
            status: 401 | 403, ..
        }) => Err(ChartError::Credentials),
        answer => Ok(answer?),
    }
}

/// The versions of a chart, from an index.
pub async fn versions(index: Vec<u8>, chart: &str) -> Result<Vec<ChartVersion>, ChartError> {
    let name = chart.to_owned();
    let parsed = tokio::task::spawn_blocking(move || parse(&index, &name)).await;
    let entries = parsed.map_err(|_| ChartError::Index("reading it failed".to_owned()))??;
    Ok(entries
        .into_iter()
        .filter_map(|entry| {
            let changes = entry
                .annotations
                .and_then(|annotations| annotations.changes_url.or(annotations.changelog));
            Some(ChartVersion {
                location: entry.url?,
                version: entry.version,
                app_version: entry.app_version.filter(|version| !version.is_empty()),
                released_at: entry.created.and_then(|text| text.parse::<Timestamp>().ok()),
                deprecated: entry.deprecated.unwrap_or(false),
                digest: entry.digest.filter(|digest| !digest.is_empty()),
                changelog_url: changes.filter(|url| url.starts_with("https://")),
            })
        })
        .collect())
}

fn parse(bytes: &[u8], chart: &str) -> Result<Vec<Entry>, ChartError> {
    let bad = |why: &str| ChartError::Index(why.to_owned());
    let text = std::str::from_utf8(bytes).map_err(|_| bad("it is not text"))?;
    let mut index = Index {
        chart,
        entries: None,
        near: Vec::new(),
    };
    let is_read = if text.trim_start().starts_with('{') {
        let mut reader = serde_json::Deserializer::from_str(text);
        lean::fields(&mut reader, &mut index)
            .and_then(|()| reader.end())
            .is_ok()
    } else if text.trim_start().starts_with('<') {
        return Err(bad(
            "it is a web page; is this the address of a chart repository?",
        ));
    } else {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_nodes: MAX_NODES,
                max_events: 2 * MAX_NODES,
                max_depth: 64,
            },
        };
        serde_saphyr::with_deserializer_from_str_with_options(text, options, |reader| {
            lean::fields(reader, &mut index)
        })
        .is_ok()
    };
    if !is_read {
        return Err(bad("it is not an index of charts"));
    }
    index.entries.ok_or_else(|| ChartError::NoChart {
        chart: chart.to_owned(),
        hint: hint(&index.near),
    })
}

fn hint(near: &[String]) -> String {
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
        let index = "apiVersion: v1\nentries:\n  y: 7\n  x:\n  - version: 1.0.0\n    urls: [x-1.tgz, y]\n    more: {a: 1}\n    annotations: {a: b, changelog: https://c}\n";
        let json = r#"{"entries": {"x": [{"version": "1.0.0", "urls": ["x-1.tgz", "y"], "annotations":
            {"a": "b", "changelog": "https://c"}}], "y": 7}}"#;
        for text in [index, json] {
            let found = parse(text.as_bytes(), "x").unwrap();
            assert_eq!((found.len(), found[0].version.as_str()), (1, "1.0.0"));
            assert_eq!(found[0].url.as_deref(), Some("x-1.tgz"));
            let annotations = found[0].annotations.as_ref().unwrap();
            assert_eq!(annotations.changelog.as_deref(), Some("https://c"));
            let missing = parse(text.as_bytes(), "x-y").unwrap_err().to_string();
            assert!(
                missing.ends_with("; it has x, y") || missing.ends_with("; it has y, x"),
                "{missing}"
            );
        }
        for text in [
            "<html>",
            "entries: 7",
            "\u{0}",
            "entries:\n  x: [{urls: []}]\n",
            "entries:\n  x: 7\n",
            "{\"entries\": {}} {}",
        ] {
            assert!(
                matches!(parse(text.as_bytes(), "x"), Err(ChartError::Index(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_an_index_unfolds_to_is_bounded() {
        let entries = |number: usize, entry: &str| format!("[{}]", vec![entry; number].join(","));
        let small = r#"{"version":"1"}"#;
        let many = entries(MAX_VERSIONS + 1000, small);
        let others: Vec<String> = (0..100_000).map(|number| format!("\"x{number}\":[]")).collect();
        let wide = entries(
            1,
            &format!(r#"{{"version":"1","urls":{}}}"#, entries(100_000, "\"u\"")),
        );
        for (index, expected) in [
            (format!(r#"{{"entries":{{"x":{many}}}}}"#), MAX_VERSIONS),
            (format!(r#"{{"entries":{{"y":{many},"x":[{small}]}}}}"#), 1),
            (format!(r#"{{"entries":{{{},"x":{wide}}}}}"#, others.join(",")), 1),
        ] {
            let found = parse(index.as_bytes(), "x").unwrap();
            assert_eq!(found.len(), expected, "{index:.60}");
        }
        let index = format!(r#"{{"entries":{{{}}}}}"#, others.join(","));
        let missing = parse(index.as_bytes(), "x").unwrap_err().to_string();
        assert!(missing.ends_with("; it has x0, x1, x2"), "{missing}");
    }
}
