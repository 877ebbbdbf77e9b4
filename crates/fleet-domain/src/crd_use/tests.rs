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
        is_seen: true,
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
#[case::never_seen(None)]
#[case::last_seen_with_the_newest(Some(3))]
#[case::last_seen_before_it(Some(2))]
fn a_cluster_that_nobody_can_look_into_may_run_anything(#[case] position: Option<i32>) {
    let steps = [
        step(1, Approval::NotRequired),
        step(2, Approval::Pending),
        step(3, Approval::NotRequired),
    ];
    let unseen = |environment: Environment| Installed {
        is_seen: false,
        ..cluster(environment, position, &["v1"])
    };
    let got = decide(&Production, &steps, &[unseen(Production)]);
    assert_eq!(
        (got.may_be_used, got.reason),
        (false, "ApprovalRequired"),
        "{got:?}"
    );
    for word in ["2.0.0", "production-one", "clusters/production-one/health"] {
        assert!(got.message.contains(word), "{word}: {}", got.message);
    }
    assert_eq!(
        decide(&Production, &steps, &[unseen(Staging)]).reason,
        "Compatible"
    );
    let harmless = [step(2, Approval::NotRequired), step(3, Approval::NotRequired)];
    let got = decide(&Production, &harmless, &[unseen(Production)]);
    assert_eq!((got.may_be_used, got.reason), (true, "UnknownSchema"), "{got:?}");
}

#[test]
fn what_was_seen_last_still_stands_against_a_way_back() {
    let steps = [
        step(1, Approval::NotRequired),
        breaks_back(2, Some(&["v1: .spec.b"])),
    ];
    let unseen = Installed {
        is_seen: false,
        ..cluster(Production, Some(2), &["v1"])
    };
    let got = may_use(
        "things.x",
        &Production,
        &steps[0],
        &steps,
        &[unseen],
        Life::Active,
    );
    assert_eq!(
        (got.may_be_used, got.reason),
        (false, "DowngradeBreaks"),
        "{got:?}"
    );
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
