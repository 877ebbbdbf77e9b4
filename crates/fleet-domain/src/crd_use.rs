//! May a schema be used in an environment? Asked before anything is rolled out, and answered with the reason and the cure.
//!
//! A breaking change needs somebody's approval before Production may have it, and an approval is for the step from one
//! version to the next. So all steps count between what the environment's clusters run and what they shall run: a version
//! that breaks nothing by itself does not carry the breaking one before it past the approval. A cluster that runs a schema
//! that is none of these (edited by hand, too old, or forgotten) may be before any of them: all steps count then. So they do
//! where nobody could look into a cluster: it may have the definition, or another schema of it than when it was last seen.
//!
//! Where a cluster runs something newer than what is wanted, it goes back, which nobody approves: what breaks on the way back
//! is waived, finding by finding, or stands against it.

use std::collections::BTreeMap;

use crate::{cluster::Environment, crd_policy::Approval};

/// The reason where objects are stored in a version that goes.
pub const STORED_VERSION_REMOVED: &str = "StoredVersionRemoved";
/// The reason where no step stands against it, and the first one begins at a schema that nobody has compared.
pub const UNKNOWN_SCHEMA: &str = "UnknownSchema";
/// The reason where a newer schema runs, and the way back breaks something.
const DOWNGRADE_BREAKS: &str = "DowngradeBreaks";
const NOT_PRODUCTION: &str = "NotProduction";

/// One schema of a definition, as the step from the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub operator_version: String,
    /// Higher is newer.
    pub position: i32,
    pub approval: Approval,
    /// Where it breaks, without what is waived.
    pub breaking: Vec<String>,
    /// Where the way back to the one before it breaks, without what is waived; nothing while that is not known.
    pub back: Option<Vec<String>>,
    /// The API versions that it has.
    pub api_versions: Vec<String>,
}

/// A cluster that has the definition, or may have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub cluster: String,
    pub environment: Environment,
    /// Whether it is known what it has. Where it is not, the rest is what was seen of it last.
    pub is_seen: bool,
    /// Which schema it runs, if it is one that is known.
    pub position: Option<i32>,
    /// Its `status.storedVersions`.
    pub stored_versions: Vec<String>,
}

impl Installed {
    fn runs(&self) -> Option<i32> {
        self.position.filter(|_| self.is_seen)
    }
}

/// What was decided about the definition as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life<'a> {
    Active,
    Deprecated {
        reason: &'a str,
    },
    /// The newest version of its operator does not bring it any more.
    Removed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub may_be_used: bool,
    /// One word for programs.
    pub reason: &'static str,
    /// What stands against it and what to do, or what to know.
    pub message: String,
}

impl Decision {
    fn yes(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            may_be_used: true,
            reason,
            message: message.into(),
        }
    }

    fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            may_be_used: false,
            reason,
            message: message.into(),
        }
    }
}

/// Whether `wanted` of the definition `name` may be used in an environment. `steps` are all of its schemas, also `wanted`.
pub fn may_use(
    name: &str,
    environment: &Environment,
    wanted: &Step,
    steps: &[Step],
    installed: &[Installed],
    life: Life<'_>,
) -> Decision {
    let here: Vec<&Installed> = installed
        .iter()
        .filter(|cluster| cluster.environment == *environment)
        .collect();
    // No approval helps where an API server refuses.
    let lost = lost(&wanted.api_versions, &here);
    if !lost.is_empty() {
        return Decision::no(STORED_VERSION_REMOVED, lost_words(&lost));
    }
    let names = |is: fn(&Installed) -> bool| -> Vec<&str> {
        let some = here.iter().filter(|cluster| is(cluster));
        some.map(|cluster| cluster.cluster.as_str()).collect()
    };
    let strangers = names(|cluster| cluster.is_seen && cluster.position.is_none());
    let unseen = names(|cluster| !cluster.is_seen);
    let mut decision = by_steps(name, environment, &taken(wanted, steps, &here), life);
    if decision.may_be_used
        && let Some(words) = back(name, wanted, steps, &here)
    {
        if *environment == Environment::Production {
            decision = Decision::no(DOWNGRADE_BREAKS, words);
        } else if decision.reason == COMPATIBLE {
            decision = Decision::yes(NOT_PRODUCTION, words);
        } else {
            decision.message.push_str("; ");
            decision.message.push_str(&words);
        }
    }
    let is_known = strangers.is_empty() && unseen.is_empty();
    if !is_known && decision.reason == COMPATIBLE {
        decision.reason = UNKNOWN_SCHEMA;
    }
    if !strangers.is_empty() {
        decision.message.push_str(&strangers_words(&strangers));
    }
    if !unseen.is_empty() {
        decision.message.push_str(&unseen_words(&unseen));
    }
    decision
}

const COMPATIBLE: &str = "Compatible";

fn by_steps(name: &str, environment: &Environment, taken: &[&Step], life: Life<'_>) -> Decision {
    let with = |approval: Approval| -> Vec<&Step> {
        taken
            .iter()
            .copied()
            .filter(|step| step.approval == approval)
            .collect()
    };
    let rejected = with(Approval::Rejected);
    if !rejected.is_empty() {
        return Decision::no(
            "Rejected",
            format!(
                "{} was rejected; use a version without the changes in it",
                versions(&rejected)
            ),
        );
    }
    let pending = with(Approval::Pending);
    if !pending.is_empty() && *environment == Environment::Production {
        return Decision::no(
            "ApprovalRequired",
            format!(
                "{} and nobody has taken responsibility for it; an administrator approves it (POST /api/v1/crds/{name}/approve \
                 with the operatorVersion), or waives each of the changes (POST /api/v1/crds/{name}/waivers)",
                broken(&pending)
            ),
        );
    }
    match life {
        Life::Deprecated { reason } => Decision::yes(
            "Deprecated",
            format!(
                "the definition is deprecated ({reason}); see its migrationGuide, and plan to do without it"
            ),
        ),
        Life::Removed => Decision::yes(
            "Removed",
            "the newest version of its operator does not bring it any more: after an upgrade nobody looks after its objects",
        ),
        Life::Active if !pending.is_empty() => Decision::yes(
            NOT_PRODUCTION,
            format!("{}; try it here, Production needs an approval", broken(&pending)),
        ),
        Life::Active => match (with(Approval::Approved), with(Approval::Waived)) {
            (approved, waived) if approved.is_empty() && waived.is_empty() => {
                Decision::yes(COMPATIBLE, "it breaks nothing")
            }
            (approved, waived) if waived.is_empty() => Decision::yes(
                "Approved",
                format!("{} breaks something, and is approved", versions(&approved)),
            ),
            (_, waived) => Decision::yes(
                "Waived",
                format!(
                    "what {} breaks is waived, for as long as the waivers last",
                    versions(&waived)
                ),
            ),
        },
    }
}

/// The steps that a change to `wanted` takes: all after the oldest schema that runs here, and all there are where it is
/// unknown what runs, since that may be older than any of them. Where nothing runs, or something newer, its own.
fn taken<'s>(wanted: &'s Step, steps: &'s [Step], here: &[&Installed]) -> Vec<&'s Step> {
    if !here.is_empty() && here.iter().all(|cluster| cluster.runs() == Some(wanted.position)) {
        return Vec::new();
    }
    let known: Option<Vec<i32>> = here.iter().map(|cluster| cluster.runs()).collect();
    let from = known.map(|positions| {
        let oldest = positions.into_iter().min();
        oldest.unwrap_or(i32::MAX).min(wanted.position - 1)
    });
    let mut taken: Vec<&Step> = steps
        .iter()
        .filter(|step| from.is_none_or(|from| step.position > from) && step.position <= wanted.position)
        .collect();
    taken.sort_by_key(|step| step.position);
    taken
}

/// What stands against the way back from what is newer here, if something is. Also from what was newer when it was last seen.
fn back(name: &str, wanted: &Step, steps: &[Step], here: &[&Installed]) -> Option<String> {
    let newest = here.iter().filter_map(|cluster| cluster.position).max()?;
    if newest <= wanted.position {
        return None;
    }
    let is_newer = |cluster: &&&Installed| cluster.position.is_some_and(|runs| runs > wanted.position);
    let newer: Vec<&str> = here
        .iter()
        .filter(is_newer)
        .map(|cluster| cluster.cluster.as_str())
        .collect();
    let verb = if newer.len() == 1 { "runs" } else { "run" };
    let begin = format!("{} {verb} a newer version", some(&newer));
    let mut taken: Vec<&Step> = steps
        .iter()
        .filter(|step| step.position > wanted.position && step.position <= newest)
        .collect();
    taken.sort_by_key(|step| step.position);
    let breaks: Vec<(&str, &[String])> = taken
        .iter()
        .filter_map(|step| Some((step.operator_version.as_str(), step.back.as_deref()?)))
        .filter(|(_, places)| !places.is_empty())
        .collect();
    if !breaks.is_empty() {
        let each: Vec<String> = breaks
            .iter()
            .map(|(version, places)| {
                let places: Vec<&str> = places.iter().map(String::as_str).collect();
                format!("{version} ({})", some(&places))
            })
            .collect();
        let each: Vec<&str> = each.iter().map(String::as_str).collect();
        let from = breaks[0].0;
        return Some(format!(
            "{begin}, and going back from {} breaks stored objects or clients; stay with the newer version, or waive each of \
             the findings of the rollback (GET /api/v1/crds/{name}/diff?to={from}, POST /api/v1/crds/{name}/waivers)",
            some(&each)
        ));
    }
    // One for each position, or a version was forgotten on the way.
    let is_whole = i64::try_from(taken.len()).ok() == Some(i64::from(newest) - i64::from(wanted.position));
    let is_known = is_whole && taken.iter().all(|step| step.back.is_some());
    (!is_known).then(|| {
        format!(
            "{begin}, and what going back from it breaks is not known: compare the two \
             (GET /api/v1/crds/{name}/diff), or stay with the newer version"
        )
    })
}

/// API versions that clusters have objects in, and that these do not have.
fn lost<'c>(api_versions: &[String], here: &[&'c Installed]) -> BTreeMap<&'c str, Vec<&'c str>> {
    let mut lost: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for cluster in here {
        for version in &cluster.stored_versions {
            if !api_versions.contains(version) {
                lost.entry(version).or_default().push(&cluster.cluster);
            }
        }
    }
    lost
}

fn lost_words(lost: &BTreeMap<&str, Vec<&str>>) -> String {
    let each: Vec<String> = lost
        .iter()
        .map(|(version, clusters)| format!("{version} in {}", some(clusters)))
        .collect();
    format!(
        "objects may be stored in versions that it does not have: {}; the API server refuses it. Keep the version, or have \
         every object written again in the storage version and then take the old one out of status.storedVersions",
        each.join(", ")
    )
}

fn strangers_words(clusters: &[&str]) -> String {
    format!(
        "; {} {} a schema that is none of the known versions, so all of them up to this one count, and what the step from \
         it breaks is not known: compare it (gantry crds diff), or register it with the version that it is of",
        some(clusters),
        if clusters.len() == 1 { "runs" } else { "run" },
    )
}

fn unseen_words(clusters: &[&str]) -> String {
    format!(
        "; what {} runs is not known now, so all versions up to this one count: see why its definitions cannot be read \
         (GET /api/v1/clusters/{}/health)",
        some(clusters),
        clusters[0],
    )
}

fn versions(steps: &[&Step]) -> String {
    let names: Vec<&str> = steps.iter().map(|step| step.operator_version.as_str()).collect();
    some(&names)
}

fn broken(steps: &[&Step]) -> String {
    let each: Vec<String> = steps
        .iter()
        .map(|step| {
            let places: Vec<&str> = step.breaking.iter().map(String::as_str).collect();
            match places.as_slice() {
                [] => step.operator_version.clone(),
                _ => format!("{} ({})", step.operator_version, some(&places)),
            }
        })
        .collect();
    let each: Vec<&str> = each.iter().map(String::as_str).collect();
    let verb = if steps.len() == 1 { "breaks" } else { "break" };
    format!("{} {verb} stored objects or clients", some(&each))
}

/// The first three by name.
fn some(names: &[&str]) -> String {
    match names {
        [_, _, _, rest @ ..] if !rest.is_empty() => {
            format!("{} and {} more", names[..3].join(", "), rest.len())
        }
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests;
