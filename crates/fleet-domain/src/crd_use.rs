//! May a schema be used in an environment? Asked before anything is rolled out, and answered with the reason and the cure.
//!
//! A breaking change needs somebody's approval before Production may have it, and an approval is for the step from one
//! version to the next. So all steps count between what the environment's clusters run and what they shall run: a version
//! that breaks nothing by itself does not carry the breaking one before it past the approval. A cluster that runs a schema
//! that is none of these (edited by hand, too old, or forgotten) may be before any of them: all steps count then.
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

/// A cluster that has the definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub cluster: String,
    pub environment: Environment,
    /// Which schema it runs, if it is one that is known.
    pub position: Option<i32>,
    /// Its `status.storedVersions`.
    pub stored_versions: Vec<String>,
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
    let strangers: Vec<&str> = here
        .iter()
        .filter(|cluster| cluster.position.is_none())
        .map(|cluster| cluster.cluster.as_str())
        .collect();
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
    if !strangers.is_empty() {
        if decision.reason == COMPATIBLE {
            decision.reason = UNKNOWN_SCHEMA;
        }
        decision.message.push_str(&strangers_words(&strangers));
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

/// The steps that a change to `wanted` takes: all after the oldest schema that runs here, and all there are where something
/// runs that is unknown, since that may be older than any of them. Where nothing runs, or something newer, its own.
fn taken<'s>(wanted: &'s Step, steps: &'s [Step], here: &[&Installed]) -> Vec<&'s Step> {
    if !here.is_empty()
        && here
            .iter()
            .all(|cluster| cluster.position == Some(wanted.position))
    {
        return Vec::new();
    }
    let known: Option<Vec<i32>> = here.iter().map(|cluster| cluster.position).collect();
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

/// What stands against the way back from what is newer here, if something is.
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
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cluster::Environment::{Development, Production, Staging};

    fn step(position: i32, approval: Approval) -> Step {
        let breaks = !matches!(approval, Approval::NotRequired | Approval::Waived);
        Step {
            operator_version: format!("{position}.0.0"),
            position,
            approval,
            breaking: if breaks {
                vec![format!("v1: .spec.f{position}")]
            } else {
                Vec::new()
            },
            back: Some(Vec::new()),
            api_versions: vec!["v1".to_owned()],
        }
    }

    fn cluster(environment: Environment, position: Option<i32>, stored: &[&str]) -> Installed {
        Installed {
            cluster: format!("{}-one", environment.name().to_lowercase()),
            environment,
            position,
            stored_versions: stored.iter().map(|&version| version.to_owned()).collect(),
        }
    }

    fn decide(environment: &Environment, steps: &[Step], installed: &[Installed]) -> Decision {
        let wanted = steps.last().unwrap();
        may_use("things.x", environment, wanted, steps, installed, Life::Active)
    }

    #[rstest]
    #[case::breaks_nothing(Approval::NotRequired, Production, true, "Compatible")]
    #[case::waits(Approval::Pending, Production, false, "ApprovalRequired")]
    #[case::waits_elsewhere(Approval::Pending, Staging, true, "NotProduction")]
    #[case::own_name(Approval::Pending, Environment::Other("canary".into()), true, "NotProduction")]
    #[case::approved(Approval::Approved, Production, true, "Approved")]
    #[case::waived(Approval::Waived, Production, true, "Waived")]
    #[case::rejected(Approval::Rejected, Development, false, "Rejected")]
    fn by_approval(
        #[case] approval: Approval,
        #[case] environment: Environment,
        #[case] may_be_used: bool,
        #[case] reason: &str,
    ) {
        let steps = [step(1, Approval::NotRequired), step(2, approval)];
        let installed = [cluster(environment.clone(), Some(1), &["v1"])];
        for installed in [&installed[..], &[]] {
            let got = decide(&environment, &steps, installed);
            assert_eq!((got.may_be_used, got.reason), (may_be_used, reason), "{got:?}");
        }
    }

    #[test]
    fn why_not_says_what_breaks_and_who_can_help() {
        let steps = [step(1, Approval::NotRequired), step(2, Approval::Pending)];
        let got = decide(&Production, &steps, &[]);
        for word in [
            "2.0.0",
            "v1: .spec.f2",
            "administrator",
            "/api/v1/crds/things.x/approve",
            "waivers",
        ] {
            assert!(got.message.contains(word), "{word}: {}", got.message);
        }
    }

    #[test]
    fn a_harmless_version_does_not_carry_a_breaking_one_past_its_approval() {
        let steps = [
            step(1, Approval::NotRequired),
            step(2, Approval::Pending),
            step(3, Approval::NotRequired),
        ];
        let runs = |position| [cluster(Production, Some(position), &["v1"])];
        let got = decide(&Production, &steps, &runs(1));
        assert_eq!(got.reason, "ApprovalRequired");
        assert!(
            got.message.contains("2.0.0") && !got.message.contains("3.0.0"),
            "{}",
            got.message
        );
        assert_eq!(decide(&Production, &steps, &runs(2)).reason, "Compatible");
        // The slowest cluster counts, and only those of the environment.
        let both = [
            cluster(Production, Some(3), &["v1"]),
            cluster(Production, Some(1), &["v1"]),
        ];
        assert_eq!(decide(&Production, &steps, &both).reason, "ApprovalRequired");
        let elsewhere = [
            cluster(Production, Some(2), &["v1"]),
            cluster(Staging, Some(1), &["v1"]),
        ];
        assert_eq!(decide(&Production, &steps, &elsewhere).reason, "Compatible");
    }

    #[test]
    fn a_schema_that_nobody_knows_may_be_older_than_all_that_breaks() {
        let steps = [
            step(1, Approval::NotRequired),
            step(2, Approval::Pending),
            step(3, Approval::NotRequired),
        ];
        let stranger = cluster(Production, None, &["v1"]);
        let mut newer = cluster(Production, Some(3), &["v1"]);
        "production-two".clone_into(&mut newer.cluster);
        for installed in [vec![stranger.clone()], vec![newer, stranger.clone()]] {
            let got = decide(&Production, &steps, &installed);
            assert_eq!(
                (got.may_be_used, got.reason),
                (false, "ApprovalRequired"),
                "{got:?}"
            );
            for word in ["2.0.0", "production-one runs a schema", "gantry crds diff"] {
                assert!(got.message.contains(word), "{word}: {}", got.message);
            }
            assert!(!got.message.contains("production-two"), "{}", got.message);
        }
        // Elsewhere it stands against nothing here.
        let elsewhere = [cluster(Staging, None, &["v1"])];
        assert_eq!(decide(&Production, &steps, &elsewhere).reason, "Compatible");
    }

    #[rstest]
    #[case(Approval::NotRequired, "UnknownSchema")]
    #[case(Approval::Approved, "Approved")]
    #[case(Approval::Waived, "Waived")]
    fn a_step_that_nobody_compared_is_told(#[case] approval: Approval, #[case] reason: &str) {
        let steps = [step(1, Approval::NotRequired), step(2, approval)];
        let got = decide(&Production, &steps, &[cluster(Production, None, &["v1"])]);
        assert_eq!((got.may_be_used, got.reason), (true, reason), "{got:?}");
        assert!(got.message.contains("is not known"), "{}", got.message);
    }

    #[test]
    fn what_runs_already_may_go_on() {
        let steps = [step(1, Approval::NotRequired), step(2, Approval::Pending)];
        let runs = [cluster(Production, Some(2), &["v1"])];
        assert!(decide(&Production, &steps, &runs).may_be_used);
        // One of two does not run it yet, or runs nobody knows what.
        for other in [Some(1), None] {
            let both = [runs[0].clone(), cluster(Production, other, &["v1"])];
            assert!(!decide(&Production, &steps, &both).may_be_used);
        }
    }

    fn breaks_back(position: i32, back: Option<&[&str]>) -> Step {
        Step {
            back: back.map(|places| places.iter().map(|&place| place.to_owned()).collect()),
            ..step(position, Approval::NotRequired)
        }
    }

    #[rstest]
    #[case::breaks(Some(&["v1: .spec.b"][..]), Production, false, "DowngradeBreaks", "2.0.0 (v1: .spec.b)")]
    #[case::breaks_elsewhere(Some(&["v1: .spec.b"][..]), Staging, true, "NotProduction", "v1: .spec.b")]
    #[case::breaks_nothing(Some(&[][..]), Production, true, "Compatible", "nothing")]
    #[case::not_compared(None, Production, false, "DowngradeBreaks", "not known")]
    fn a_way_back_is_judged_backward(
        #[case] back: Option<&[&str]>,
        #[case] environment: Environment,
        #[case] may_be_used: bool,
        #[case] reason: &str,
        #[case] word: &str,
    ) {
        let steps = [step(1, Approval::NotRequired), breaks_back(2, back)];
        let go_back = |installed: &[Installed]| {
            may_use(
                "things.x",
                &environment,
                &steps[0],
                &steps,
                installed,
                Life::Active,
            )
        };
        let got = go_back(&[
            cluster(environment.clone(), Some(2), &["v1"]),
            cluster(environment.clone(), Some(1), &["v1"]),
        ]);
        assert_eq!((got.may_be_used, got.reason), (may_be_used, reason), "{got:?}");
        assert!(got.message.contains(word), "{}", got.message);
        // What runs it already, and what runs elsewhere, goes nowhere.
        for stays in [
            cluster(Development, Some(2), &["v1"]),
            cluster(environment.clone(), Some(1), &["v1"]),
        ] {
            assert_eq!(go_back(&[stays]).reason, "Compatible");
        }
    }

    #[test]
    fn every_version_on_the_way_back_counts_also_one_that_was_forgotten() {
        let steps = [
            step(1, Approval::NotRequired),
            breaks_back(2, Some(&["v1: .spec.b"])),
            breaks_back(3, Some(&[])),
        ];
        let runs = [cluster(Production, Some(3), &["v1"])];
        let reason = |steps: &[Step], wanted: &Step| {
            may_use("things.x", &Production, wanted, steps, &runs, Life::Active).reason
        };
        assert_eq!(reason(&steps, &steps[1]), "Compatible");
        assert_eq!(reason(&steps, &steps[0]), "DowngradeBreaks");
        let forgotten = [steps[0].clone(), steps[2].clone()];
        assert_eq!(reason(&forgotten, &steps[0]), "DowngradeBreaks");
    }

    #[test]
    fn no_approval_helps_where_objects_are_stored_in_a_version_that_goes() {
        let steps = [step(1, Approval::NotRequired), step(2, Approval::Approved)];
        let installed = [cluster(Staging, Some(1), &["v1alpha1", "v1"])];
        let got = decide(&Staging, &steps, &installed);
        assert_eq!((got.may_be_used, got.reason), (false, "StoredVersionRemoved"));
        for word in ["v1alpha1", "staging-one", "status.storedVersions"] {
            assert!(got.message.contains(word), "{}", got.message);
        }
        assert!(decide(&Production, &steps, &installed).may_be_used);
    }

    #[rstest]
    #[case(Life::Deprecated { reason: "use gadgets" }, "Deprecated", "use gadgets")]
    #[case(Life::Removed, "Removed", "does not bring it")]
    fn what_goes_may_be_used_until_then(#[case] life: Life<'_>, #[case] reason: &str, #[case] word: &str) {
        let fine = [step(1, Approval::NotRequired)];
        let got = may_use("x", &Production, &fine[0], &fine, &[], life);
        assert_eq!((got.may_be_used, got.reason), (true, reason));
        assert!(got.message.contains(word), "{}", got.message);
        let waits = [step(1, Approval::Pending)];
        let got = may_use("x", &Production, &waits[0], &waits, &[], life);
        assert_eq!(got.reason, "ApprovalRequired", "that comes first");
    }
}
