//! Comparisons of definitions, and what is kept of them.

use std::collections::BTreeSet;

use gantry_fleet_domain::{
    crd_diff::{Crd, Options, Report, ServerVersion, compare},
    crd_policy::{Approval, Change, assess},
};
use serde_json::{Value, json};

use crate::Error;

/// Of each kind; a schema that changes everything needs no list of everything.
pub(super) const MAX_CHANGES: usize = 200;

/// Whether everything that breaks is among what broke before: an approval was given for that, and for no more. A list that
/// was cut short may hide something.
pub(super) fn is_covered(changes: &str, before: &str) -> bool {
    let breaking = |changes: &str| -> Option<BTreeSet<String>> {
        let changes: Vec<Change> = serde_json::from_str(changes).ok()?;
        (changes.len() < MAX_CHANGES).then(|| {
            let breaking = changes.into_iter().filter(|change| change.is_breaking);
            breaking.map(|change| change.fingerprint).collect()
        })
    };
    match (breaking(changes), breaking(before)) {
        (Some(now), Some(before)) => now.is_subset(&before),
        _ => false,
    }
}

/// What is kept of a comparison with the version before, as JSON.
pub(super) struct Judged {
    pub changes: String,
    /// What breaks on the way back.
    pub back: String,
    pub approval: Approval,
}

pub(super) async fn judged(before: Option<Value>, after: Value) -> Result<Judged, Error> {
    let Some(before) = before else {
        return Ok(Judged {
            changes: "[]".to_owned(),
            back: "[]".to_owned(),
            approval: Approval::NotRequired,
        });
    };
    // Without a look at clusters: the answer is kept, and they change.
    let report = compared(before, after, Known::default()).await?.report;
    let mut all = Change::breaking(&report);
    all.extend(Change::harmless(&report));
    all.truncate(MAX_CHANGES);
    let mut back = Change::back(&report);
    back.truncate(MAX_CHANGES);
    Ok(Judged {
        changes: json!(all).to_string(),
        back: json!(back).to_string(),
        approval: Approval::of(&report),
    })
}

/// What is known of the clusters that a comparison is for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub server: Option<ServerVersion>,
    /// The versions that objects are stored in.
    pub stored: Option<BTreeSet<String>>,
}

pub(super) struct Compared {
    pub report: Report,
    /// Those of the new definition.
    pub api_versions: Vec<String>,
}

/// A comparison takes up to a tenth of a second: away from those who answer requests.
pub(super) async fn compared(old: Value, new: Value, known: Known) -> Result<Compared, Error> {
    let compare = move || -> Result<Compared, Error> {
        let parse = |document: &Value| {
            Crd::parse(document).map_err(|error| Error::invalid("schemaDefinition", error.to_string()))
        };
        let (mut old, new) = (parse(&old)?, parse(&new)?);
        old.stored_versions = known.stored;
        let api_versions = api_versions(&new);
        if old.name == new.name {
            let report = assess(&old, &new, known.server);
            return Ok(Compared { report, api_versions });
        }
        let options = Options {
            forward: true,
            backward: true,
            server: known.server,
            ..Options::default()
        };
        let report = compare(&[old], &[new], &options);
        Ok(Compared { report, api_versions })
    };
    tokio::task::spawn_blocking(compare)
        .await
        .map_err(|error| Error::internal("failed to compare definitions", error))?
}

pub(super) fn api_versions(crd: &Crd) -> Vec<String> {
    crd.versions.iter().map(|version| version.name.clone()).collect()
}
