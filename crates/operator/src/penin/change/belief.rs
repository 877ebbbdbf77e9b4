//! Pure: what is so, when the status of a change and the ledger may tell different stories. Whoever approves can write the
//! whole status, and a cache can be old; the ledger is signed, and every step stands in it before it is made.

use gantry_crds::penin::{ChangePhase, InfrastructureChangeStatus};

use super::{
    book::Page,
    record::{Memory, Step},
};

/// How to go on with a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Belief {
    /// It is over, and this is its status.
    Ended(Box<InfrastructureChangeStatus>),
    /// It goes on from this status.
    Going(Box<InfrastructureChangeStatus>),
    /// The ledger is broken and says something else than the status: neither can be acted on.
    Doubt(String),
}

/// Whether the status says what the ledger cannot have known when it was last read. It may have been read before another
/// process wrote to it.
pub fn contradicts(known: &InfrastructureChangeStatus, memory: &Memory, uid: &str) -> bool {
    let phase = known.phase.unwrap_or_default();
    let intended = memory.intended(uid).is_some();
    memory.ended(uid).is_none() && ((phase.is_end() && intended) || (is_made(phase) && !intended))
}

pub fn believe(known: InfrastructureChangeStatus, page: &Page, uid: &str) -> Belief {
    let memory = &page.memory;
    let phase = known.phase.unwrap_or_default();
    if let Some(end) = memory.ended(uid) {
        // A broken ledger is no better a witness.
        let end = if page.fault.is_some() && phase.is_end() {
            known
        } else {
            InfrastructureChangeStatus {
                approval: known.approval,
                ..end.clone()
            }
        };
        return Belief::Ended(Box::new(end));
    }
    let Some(intended) = memory.intended(uid) else {
        return if phase.is_end() {
            Belief::Ended(Box::new(known))
        } else if is_made(phase) {
            Belief::Going(Box::new(told_by_others(known)))
        } else {
            Belief::Going(Box::new(known))
        };
    };
    if let Some(fault) = page.fault.as_ref().filter(|_| known.plan != intended.plan) {
        return Belief::Doubt(fault.clone());
    }
    let mut going = InfrastructureChangeStatus {
        phase: Some(ChangePhase::Validated),
        plan: known.plan.clone().or_else(|| intended.plan.clone()),
        baseline: known.baseline.clone().or_else(|| intended.baseline.clone()),
        applied_at: known.applied_at.clone(),
        applied_generation: known.applied_generation,
        ..told_by_others(known)
    };
    going.requested_by.clone_from(&intended.requested_by);
    if memory.knows(uid, Step::Applied) {
        going = as_intended(going, memory, uid);
        if is_made(phase) {
            let observing = phase == ChangePhase::Observing && memory.knows(uid, Step::Observing);
            going.phase = Some(if observing {
                ChangePhase::Observing
            } else {
                ChangePhase::Applied
            });
        }
    }
    Belief::Going(Box::new(going))
}

/// A status with what was intended, of a change that is made. Before it is made the plan in the status may be a newer one;
/// all of that is checked again.
pub fn as_intended(
    status: InfrastructureChangeStatus,
    memory: &Memory,
    uid: &str,
) -> InfrastructureChangeStatus {
    match memory.intended(uid) {
        Some(intended) => InfrastructureChangeStatus {
            plan: intended.plan.clone(),
            baseline: intended.baseline.clone(),
            requested_by: intended.requested_by.clone(),
            ..status
        },
        None => status,
    }
}

fn is_made(phase: ChangePhase) -> bool {
    matches!(phase, ChangePhase::Applied | ChangePhase::Observing)
}

/// What of a status is not the controller's own story.
fn told_by_others(known: InfrastructureChangeStatus) -> InfrastructureChangeStatus {
    InfrastructureChangeStatus {
        message: known.message,
        approval: known.approval,
        ledger_head: known.ledger_head,
        observed_generation: known.observed_generation,
        conditions: known.conditions,
        ..InfrastructureChangeStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_crds::{common::Fragment, penin::ChangePlan};
    use gantry_ledger::{Entry, Head};
    use rstest::rstest;
    use serde_json::json;

    use super::super::record::{Body, with_exact};

    /// A status with a plan whose way back leads to this many guards.
    fn status(phase: ChangePhase, guards: i32) -> InfrastructureChangeStatus {
        let before = json!({"replicas": {"sigmaGuard": guards}});
        InfrastructureChangeStatus {
            phase: Some(phase),
            plan: Some(ChangePlan {
                before: Some(Fragment(before.as_object().cloned().unwrap_or_default())),
                ..ChangePlan::default()
            }),
            requested_by: Some(format!("user-{guards}")),
            ..InfrastructureChangeStatus::default()
        }
    }

    /// What the ledger says; its plan leads to two guards.
    fn page(steps: &[Step]) -> Page {
        let mut head = Head::genesis("t");
        let mut memory = Memory::default();
        for step in steps {
            let told = match step {
                Step::Ended => status(ChangePhase::Kept, 2),
                _ => status(ChangePhase::Validated, 2),
            };
            let body = Body::new("c", "u", *step, with_exact(json!({}), &told));
            let entry = Entry::next(&head, "2026-01-01T00:00:00Z", body.to_value());
            head = entry.head();
            memory.read(&entry);
        }
        Page {
            memory,
            head,
            fault: None,
        }
    }

    const MADE: &[Step] = &[Step::Requested, Step::Validated, Step::Intent, Step::Applied];
    const OBSERVED: &[Step] = &[Step::Requested, Step::Intent, Step::Applied, Step::Observing];
    const OVER: &[Step] = &[Step::Requested, Step::Intent, Step::Applied, Step::Ended];

    /// Phase, and the guards that a way back would lead to; an end in capitals.
    fn told(belief: &Belief) -> (String, Option<i64>) {
        let (word, status) = match belief {
            Belief::Ended(status) => (status.phase.unwrap_or_default().as_str().to_uppercase(), status),
            Belief::Going(status) => (status.phase.unwrap_or_default().as_str().to_owned(), status),
            Belief::Doubt(_) => return ("?".to_owned(), None),
        };
        let before = status.plan.as_ref().and_then(|plan| plan.before.as_ref());
        let guards = before.and_then(|before| before.0["replicas"]["sigmaGuard"].as_i64());
        (word, guards)
    }

    #[rstest]
    #[case::new(ChangePhase::Requested, &[], "Requested", Some(9))]
    #[case::planned(ChangePhase::Validated, &[Step::Requested, Step::Validated], "Validated", Some(9))]
    #[case::planned_anew_after_an_intent(ChangePhase::Validated, &[Step::Intent], "Validated", Some(9))]
    #[case::made(ChangePhase::Applied, MADE, "Applied", Some(2))]
    #[case::observed(ChangePhase::Observing, OBSERVED, "Observing", Some(2))]
    #[case::forged_before_anything(ChangePhase::Observing, &[Step::Requested], "Requested", None)]
    #[case::forged_before_it_is_made(ChangePhase::Observing, &[Step::Intent], "Validated", Some(9))]
    #[case::forged_before_it_is_observed(ChangePhase::Observing, MADE, "Applied", Some(2))]
    #[case::forged_beginning(ChangePhase::Requested, OBSERVED, "Validated", Some(2))]
    #[case::forged_end(ChangePhase::Kept, OBSERVED, "Validated", Some(2))]
    #[case::forged_other_end(ChangePhase::RolledBack, OVER, "KEPT", Some(2))]
    #[case::lost(ChangePhase::Requested, OVER, "KEPT", Some(2))]
    #[case::end_of_a_ledger_that_is_gone(ChangePhase::Kept, &[], "KEPT", Some(9))]
    fn the_ledger_knows_better(
        #[case] phase: ChangePhase,
        #[case] steps: &[Step],
        #[case] expected: &str,
        #[case] guards: Option<i64>,
    ) {
        let page = page(steps);
        let belief = believe(status(phase, 9), &page, "u");
        assert_eq!(told(&belief), (expected.to_owned(), guards));
        if let Belief::Going(going) = belief {
            // Whatever plan is carried on with before the mark is looked at, that of the ledger is what is undone.
            if page.memory.intended("u").is_some() {
                let made = as_intended(*going, &page.memory, "u");
                assert_eq!(told(&Belief::Going(Box::new(made))).1, Some(2));
            }
        }
    }

    #[test]
    fn who_asked_is_not_taken_from_a_status() {
        let Belief::Going(going) = believe(status(ChangePhase::Validated, 9), &page(&[Step::Intent]), "u")
        else {
            panic!("it goes on");
        };
        assert_eq!(going.requested_by.as_deref(), Some("user-2"));
    }

    #[test]
    fn a_broken_ledger_that_disagrees_is_not_acted_on() {
        let mut page = page(OBSERVED);
        page.fault = Some("entry 2 was altered".to_owned());
        assert_eq!(
            told(&believe(status(ChangePhase::Observing, 9), &page, "u")).0,
            "?"
        );
        assert_eq!(
            told(&believe(status(ChangePhase::Observing, 2), &page, "u")).0,
            "Observing"
        );
    }

    #[rstest]
    #[case(ChangePhase::Kept, OBSERVED, true)]
    #[case(ChangePhase::Observing, &[], true)]
    #[case(ChangePhase::Observing, OBSERVED, false)]
    #[case(ChangePhase::Observing, OVER, false)]
    #[case(ChangePhase::Kept, OVER, false)]
    #[case(ChangePhase::Kept, &[], false)]
    fn an_old_page_is_noticed(#[case] phase: ChangePhase, #[case] steps: &[Step], #[case] expected: bool) {
        assert_eq!(contradicts(&status(phase, 2), &page(steps).memory, "u"), expected);
    }
}
