//! The definitions that a cluster has. They are large and change rarely: only their metadata is listed at every look, and
//! those are fetched whose revision is another one than at the last.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use gantry_fleet_domain::crd_digest;
use kube::{Client, api::ListParams, core::Request};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    PAGE, Unreachable,
    answers::{self, too_much},
    explain,
    objects::{self, ListError},
};
use crate::infrastructure::{lean::Take, store::clusters::SeenCrd};

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// More than any cluster has; whoever lists more is not an API server, or means no good.
const MOST: usize = 20_000;
/// Names are no longer on any server, nor are uids and revisions, and few definitions have more than three versions.
const LONGEST: usize = 253;
const MOST_VERSIONS: usize = 100;

/// Asks for those that are not known yet, for this long. The others have no digest: which schemas they are is not known, and
/// the next look goes on with them.
pub async fn look(
    client: &Client,
    known: &[SeenCrd],
    patience: Duration,
) -> Result<Vec<SeenCrd>, Unreachable> {
    let until = Instant::now() + patience;
    let listed = tokio::time::timeout_at(until, list(client))
        .await
        .map_err(|_| Unreachable::timeout(patience))??;
    let (mut seen, missing) = sort(listed, known);
    let mut missing = missing.into_iter();
    for crd in missing.by_ref() {
        match tokio::time::timeout_at(until, fetch(client, &crd.name)).await {
            Ok(Ok(found)) => seen.extend(found),
            Ok(Err(why)) => return Err(why),
            Err(_) => {
                seen.push(crd);
                break;
            }
        }
    }
    seen.extend(missing);
    Ok(seen)
}

/// One of them by its name, and as which it is there.
#[derive(Clone)]
struct Listed {
    name: String,
    /// Empty where the server does not tell.
    revision: String,
}

async fn list(client: &Client) -> Result<Vec<Listed>, Unreachable> {
    let mut all = Listing::default();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let request = Request::new(PATH).list_metadata(&params);
        let request = request.map_err(|error| explain(&kube::Error::BuildRequest(error)))?;
        let next = answers::page(client, request, &mut all).await;
        if all.0.len() > MOST {
            return Err(Unreachable {
                reason: "AnswerTooLarge",
                message: format!("the API server has more than {MOST} definitions"),
            });
        }
        match next.map_err(|error| explain(&error))? {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all.0),
        }
    }
}

#[derive(Default)]
struct Listing(Vec<Listed>);

#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    resource_version: Option<String>,
}

impl<'de> Take<'de> for Listing {
    fn take<D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error> {
        if self.0.len() > MOST {
            return Err(too_much());
        }
        let metadata = Item::deserialize(deserializer)?.metadata.unwrap_or_default();
        let revision = revision(metadata.uid.as_deref(), metadata.resource_version.as_deref());
        if let Some(name) = metadata.name.filter(|name| is_name(name)) {
            self.0.push(Listed { name, revision });
        }
        Ok(())
    }
}

/// What is known of them, and those of which too little is.
fn sort(listed: Vec<Listed>, known: &[SeenCrd]) -> (Vec<SeenCrd>, Vec<SeenCrd>) {
    let known: HashMap<&str, &SeenCrd> = known.iter().map(|crd| (crd.name.as_str(), crd)).collect();
    let mut names = HashSet::new();
    let (mut seen, mut missing) = (Vec::new(), Vec::new());
    for Listed { name, revision } in listed {
        if !names.insert(name.clone()) {
            continue;
        }
        let before = known.get(name.as_str());
        let same = before.filter(|crd| {
            !revision.is_empty() && crd.revision == revision && crd.digest.starts_with(crd_digest::FORM)
        });
        match same {
            Some(same) => seen.push((*same).clone()),
            None => missing.push(SeenCrd {
                // Objects do not leave a version by themselves.
                stored_versions: before.map(|crd| crd.stored_versions.clone()).unwrap_or_default(),
                name,
                digest: String::new(),
                revision: String::new(),
            }),
        }
    }
    (seen, missing)
}

/// The same for as long as nothing of the object changes; nothing where the server does not tell.
fn revision(uid: Option<&str>, version: Option<&str>) -> String {
    match (uid, version) {
        (Some(uid), Some(version)) if is_name(uid) && is_name(version) => format!("{uid}/{version}"),
        _ => String::new(),
    }
}

/// Whether it may be what it is said to be. A text with a zero byte could not be kept.
fn is_name(text: &str) -> bool {
    text.len() <= LONGEST && !text.chars().any(char::is_control)
}

/// One of them, if it is still there.
async fn fetch(client: &Client, name: &str) -> Result<Option<SeenCrd>, Unreachable> {
    let found = objects::definition(client, name).await;
    let found = found.map_err(|error| match error {
        ListError::Api(error) => explain(&error),
        other => Unreachable {
            reason: "Timeout",
            message: other.to_string(),
        },
    })?;
    Ok(found.map(|crd| {
        let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str);
        let versions = crd.pointer("/status/storedVersions").and_then(Value::as_array);
        SeenCrd {
            name: name.to_owned(),
            digest: crd_digest::digest(&crd),
            revision: revision(text("/metadata/uid"), text("/metadata/resourceVersion")),
            stored_versions: versions
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .filter(|version| is_name(version))
                .take(MOST_VERSIONS)
                .map(str::to_owned)
                .collect(),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str, revision: &str) -> Listed {
        Listed {
            name: name.to_owned(),
            revision: revision.to_owned(),
        }
    }

    fn crd(name: &str, digest: &str, revision: &str) -> SeenCrd {
        SeenCrd {
            name: name.to_owned(),
            digest: digest.to_owned(),
            revision: revision.to_owned(),
            stored_versions: vec!["v1".to_owned()],
        }
    }

    #[test]
    fn only_what_changed_is_asked_for() {
        let form = crd_digest::FORM;
        let fresh = format!("{form}x");
        let known = [
            crd("same", &fresh, "u/1"),
            crd("changed", &fresh, "u/1"),
            crd("old-form", "x", "u/1"),
            crd("gone", &fresh, "u/1"),
        ];
        let there = [
            ("same", "u/1"),
            ("changed", "u/2"),
            ("old-form", "u/1"),
            ("new", "u/1"),
            ("same", "u/1"),
        ];
        let there = there.map(|(name, revision)| listed(name, revision));
        let (seen, missing) = sort(there.to_vec(), &known);
        assert_eq!(seen, [known[0].clone()]);
        let names: Vec<&str> = missing.iter().map(|crd| crd.name.as_str()).collect();
        assert_eq!(names, ["changed", "old-form", "new"]);
        assert!(
            missing
                .iter()
                .all(|crd| crd.digest.is_empty() && crd.revision.is_empty())
        );
        assert_eq!(missing[0].stored_versions, ["v1"]);
        // A server that tells no revision is asked each time.
        let known = [crd("same", &fresh, "")];
        assert_eq!(sort(vec![listed("same", "")], &known).1.len(), 1);
    }
    #[test]
    fn what_is_listed_is_bounded() {
        let read = |items: &[String]| {
            let mut all = Listing::default();
            let text = format!("[{}]", items.join(","));
            let read =
                crate::infrastructure::lean::items(&mut serde_json::Deserializer::from_str(&text), &mut all);
            (all.0, read.is_ok())
        };
        let item = |name: &str, uid: &str| {
            format!(r#"{{"metadata":{{"name":"{name}","uid":"{uid}","resourceVersion":"1"}}}}"#)
        };
        let long = "x".repeat(LONGEST + 1);
        let (all, is_ok) = read(&[
            item("a", "u"),
            item("b", &long),
            item(&long, "u"),
            item("with\\u0000zero", "u"),
            "{}".to_owned(),
        ]);
        let found: Vec<(&str, &str)> = all
            .iter()
            .map(|listed| (listed.name.as_str(), listed.revision.as_str()))
            .collect();
        assert_eq!((found, is_ok), (vec![("a", "u/1"), ("b", "")], true));
        let (all, is_ok) = read(&vec![item("a", "u"); MOST + 100]);
        assert_eq!((all.len(), is_ok), (MOST + 1, false));
    }
}
