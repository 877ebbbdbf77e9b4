//! The definitions that a cluster has. They are large and change rarely: only their metadata is listed at every look, and
//! those are fetched whose revision is another one than at the last.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use gantry_fleet_domain::crd_digest;
use kube::{
    Api, Client,
    api::{ListParams, PartialObjectMeta},
    core::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{PAGE, Unreachable, explain};
use crate::infrastructure::store::clusters::SeenCrd;

/// More than any cluster has; whoever lists more is not an API server, or means no good.
const MOST: usize = 20_000;

/// Asks for those that are not known yet, for this long. The others have no digest: which schemas they are is not known, and
/// the next look goes on with them.
pub async fn look(
    client: &Client,
    known: &[SeenCrd],
    patience: Duration,
) -> Result<Vec<SeenCrd>, Unreachable> {
    let until = Instant::now() + patience;
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        "customresourcedefinitions",
    );
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let listed = tokio::time::timeout_at(until, list(&api))
        .await
        .map_err(|_| Unreachable::timeout(patience))??;
    let (mut seen, missing) = sort(listed, known);
    let mut missing = missing.into_iter();
    for crd in missing.by_ref() {
        match tokio::time::timeout_at(until, fetch(&api, &crd.name)).await {
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

async fn list(api: &Api<DynamicObject>) -> Result<Vec<Listed>, Unreachable> {
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api
            .list_metadata(&params)
            .await
            .map_err(|error| explain(&error))?;
        let listed = |object: PartialObjectMeta<DynamicObject>| {
            let revision = revision(&object.metadata);
            object.metadata.name.map(|name| Listed { name, revision })
        };
        all.extend(page.items.into_iter().filter_map(listed));
        if all.len() > MOST {
            return Err(Unreachable {
                reason: "AnswerTooLarge",
                message: format!("the API server has more than {MOST} definitions"),
            });
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
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
fn revision(metadata: &ObjectMeta) -> String {
    match (&metadata.uid, &metadata.resource_version) {
        (Some(uid), Some(version)) => format!("{uid}/{version}"),
        _ => String::new(),
    }
}

/// One of them, if it is still there.
async fn fetch(api: &Api<DynamicObject>, name: &str) -> Result<Option<SeenCrd>, Unreachable> {
    let found = api.get_opt(name).await.map_err(|error| explain(&error))?;
    Ok(found.map(|crd| {
        let versions = crd
            .data
            .pointer("/status/storedVersions")
            .and_then(Value::as_array);
        SeenCrd {
            name: name.to_owned(),
            digest: crd_digest::digest(&crd.data),
            revision: revision(&crd.metadata),
            stored_versions: versions
                .into_iter()
                .flatten()
                .filter_map(|version| version.as_str().map(str::to_owned))
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
}
