//! What the ledger of a cluster says: the bodies of its entries, and what is known when they are read in order.

use std::collections::BTreeMap;

use gantry_crds::penin::{ChangePhase, InfrastructureChangeStatus};
use gantry_ledger::{Entry, settle};
use k8s_openapi::jiff::{Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{decide::Decision, policy::History};

/// One step of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Step {
    Requested,
    Validated,
    AwaitingApproval,
    Approved,
    /// The cluster is about to be changed, with the values from before.
    Intent,
    Applied,
    Observing,
    /// How it was judged, and what is to be done about it.
    Decided,
    /// It ended; the phase is in the entry.
    Ended,
    /// Its object is gone: nobody will judge it.
    Abandoned,
}

/// What stands in an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// Name of the InfrastructureChange.
    pub change: String,
    /// And its uid: names may be used again.
    pub uid: String,
    pub step: Step,
    #[serde(default)]
    pub detail: Value,
}

impl Body {
    /// The detail is taken as the ledger keeps it, so that what was written is known again.
    pub fn new(change: &str, uid: &str, step: Step, detail: Value) -> Self {
        Self {
            change: change.to_owned(),
            uid: uid.to_owned(),
            step,
            detail: settle(detail),
        }
    }

    pub fn to_value(&self) -> Value {
        json!(self)
    }
}

/// What the entries say, read in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Steps of changes, with a digest of what was said.
    steps: BTreeMap<(String, Step), String>,
    /// What was about to be done, as the status told it.
    intended: BTreeMap<String, InfrastructureChangeStatus>,
    decided: BTreeMap<String, Decision>,
    ended: BTreeMap<String, InfrastructureChangeStatus>,
    /// Intents on the day of the last one.
    day: String,
    count: u32,
    last_end: Option<Timestamp>,
    /// Applied or about to be, and not ended: uid and name.
    open: Option<(String, String)>,
}

impl Memory {
    pub fn read(&mut self, entry: &Entry) {
        let Ok(body) = serde_json::from_value::<Body>(entry.body.clone()) else {
            return;
        };
        let at: Option<Timestamp> = entry.at.parse().ok();
        match body.step {
            Step::Intent => {
                let again = self.steps.contains_key(&(body.uid.clone(), Step::Intent));
                let day = at.map(day).unwrap_or_default();
                if day != self.day {
                    self.day = day;
                    self.count = 0;
                }
                // A second intent of the same change is a second try, not a second change.
                if !again {
                    self.count += 1;
                }
                self.open = Some((body.uid.clone(), body.change.clone()));
                if let Some(status) = exactly(&body.detail) {
                    self.intended.insert(body.uid.clone(), status);
                }
            }
            Step::Decided => {
                if let Some(decision) = exactly(&body.detail) {
                    self.decided.insert(body.uid.clone(), decision);
                }
            }
            Step::Ended | Step::Abandoned => {
                if self.open.as_ref().is_some_and(|(uid, _)| *uid == body.uid) {
                    self.open = None;
                    self.last_end = at.or(self.last_end);
                }
                if let Some(status) = exactly::<InfrastructureChangeStatus>(&body.detail) {
                    let ledger_head = Some(entry.head().to_string());
                    let status = InfrastructureChangeStatus {
                        ledger_head,
                        ..status
                    };
                    self.ended.insert(body.uid.clone(), status);
                }
                self.intended.remove(&body.uid);
                self.decided.remove(&body.uid);
            }
            _ => {}
        }
        self.steps.insert((body.uid, body.step), digest(&body.detail));
    }

    /// Whether this very step stands in the ledger already.
    pub fn has(&self, body: &Body) -> bool {
        self.steps
            .get(&(body.uid.clone(), body.step))
            .is_some_and(|known| body.step != Step::Intent || *known == digest(&body.detail))
    }

    pub fn knows(&self, uid: &str, step: Step) -> bool {
        self.steps.contains_key(&(uid.to_owned(), step))
    }

    /// The status of a change when it was about to be made, until it has ended.
    pub fn intended(&self, uid: &str) -> Option<&InfrastructureChangeStatus> {
        self.intended.get(uid)
    }

    /// How a change was judged that is not ended yet.
    pub fn decided(&self, uid: &str) -> Option<&Decision> {
        self.decided.get(uid)
    }

    /// The status of a change at its end.
    pub fn ended(&self, uid: &str) -> Option<&InfrastructureChangeStatus> {
        self.ended.get(uid)
    }

    /// The change that is applied and not ended: uid and name.
    pub fn open(&self) -> Option<(&str, &str)> {
        self.open
            .as_ref()
            .map(|(uid, name)| (uid.as_str(), name.as_str()))
    }

    /// What the policy has to know, seen by one change.
    pub fn history(&self, uid: &str, now: Timestamp) -> History {
        let mut today = if day(now) == self.day { self.count } else { 0 };
        let own = self.knows(uid, Step::Intent);
        if own {
            today = today.saturating_sub(1);
        }
        History {
            today,
            last_end: self.last_end,
            open: self
                .open
                .as_ref()
                .filter(|(open, _)| open != uid)
                .map(|(_, name)| name.clone()),
        }
    }
}

/// The part of a status that is needed to go on from an intent.
pub fn planned(status: &InfrastructureChangeStatus) -> InfrastructureChangeStatus {
    InfrastructureChangeStatus {
        phase: Some(ChangePhase::Validated),
        requested_by: status.requested_by.clone(),
        plan: status.plan.clone(),
        baseline: status.baseline.clone(),
        ..InfrastructureChangeStatus::default()
    }
}

/// Details with something that is read back: kept as text, because a ledger holds no fractions.
pub fn with_exact<T: Serialize>(mut detail: Value, exact: &T) -> Value {
    detail["exact"] = json!(json!(exact).to_string());
    detail
}

fn exactly<T: DeserializeOwned>(detail: &Value) -> Option<T> {
    serde_json::from_str(detail["exact"].as_str()?).ok()
}

fn day(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).date().to_string()
}

fn digest(value: &Value) -> String {
    gantry_kit::wish::digest(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_ledger::Head;

    fn decision() -> Decision {
        Decision {
            phase: ChangePhase::RolledBack,
            roll_back: true,
            message: "worse".into(),
            outcome: Some(super::super::verdict::summary(&[0.1, 0.3])),
            gain: Some(-0.1),
        }
    }

    fn with_status(hour: u32) -> Value {
        with_exact(json!({"n": hour}), &InfrastructureChangeStatus::default())
    }

    /// Entries at one hour after the other, from midnight.
    fn read(steps: &[(&str, Step, u32)]) -> Memory {
        let mut head = Head::genesis("t");
        let mut memory = Memory::default();
        for (uid, step, hour) in steps {
            let detail = if *step == Step::Decided {
                with_exact(json!({}), &decision())
            } else if [Step::Ended, Step::Intent].contains(step) {
                with_status(*hour)
            } else {
                json!({"n": hour})
            };
            let body = Body::new(&format!("name-{uid}"), uid, *step, detail);
            let at = format!("2026-01-{:02}T{:02}:00:00Z", 1 + hour / 24, hour % 24);
            let entry = Entry::next(&head, at, body.to_value());
            head = entry.head();
            memory.read(&entry);
        }
        memory
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_change_is_open_from_its_intent_to_its_end() {
        let memory = read(&[
            ("a", Step::Requested, 1),
            ("a", Step::Intent, 2),
            ("a", Step::Applied, 3),
        ]);
        assert_eq!(memory.open(), Some(("a", "name-a")));
        let now = at("2026-01-01T04:00:00Z");
        assert_eq!(memory.history("b", now).open.as_deref(), Some("name-a"));
        assert_eq!(
            memory.history("a", now).open,
            None,
            "it does not stand in its own way"
        );
        assert_eq!(
            (memory.history("b", now).today, memory.history("a", now).today),
            (1, 0)
        );
        let memory = read(&[("a", Step::Intent, 2), ("a", Step::Ended, 3)]);
        assert_eq!(memory.open(), None);
        assert_eq!(
            memory.history("b", now).last_end,
            Some(at("2026-01-01T03:00:00Z"))
        );
    }

    #[test]
    fn what_never_was_applied_starts_no_cooldown() {
        let memory = read(&[("a", Step::Requested, 1), ("a", Step::Ended, 2)]);
        assert_eq!(
            memory.history("b", at("2026-01-01T03:00:00Z")),
            History::default()
        );
        assert!(memory.ended("a").is_some());
    }

    #[test]
    fn a_new_day_has_a_new_budget_and_a_second_try_costs_nothing() {
        let memory = read(&[
            ("a", Step::Intent, 1),
            ("a", Step::Intent, 2),
            ("a", Step::Ended, 3),
            ("b", Step::Intent, 4),
        ]);
        assert_eq!(memory.history("c", at("2026-01-01T05:00:00Z")).today, 2);
        assert_eq!(memory.history("c", at("2026-01-02T05:00:00Z")).today, 0);
    }

    #[test]
    fn a_step_is_written_once_but_a_new_plan_is_a_new_intent() {
        let memory = read(&[("a", Step::Requested, 1), ("a", Step::Intent, 2)]);
        assert!(memory.has(&Body::new("x", "a", Step::Requested, json!("whatever"))));
        assert!(memory.has(&Body::new("x", "a", Step::Intent, with_status(2))));
        assert!(!memory.has(&Body::new("x", "a", Step::Intent, with_status(3))));
        assert!(!memory.has(&Body::new("x", "b", Step::Requested, json!(null))));
        let fraction = Body::new("x", "c", Step::Intent, json!({"baseline": 0.7}));
        let mut memory = Memory::default();
        memory.read(&Entry::next(&Head::genesis("t"), "now", fraction.to_value()));
        assert!(memory.has(&Body::new("x", "c", Step::Intent, json!({"baseline": 0.7}))));
    }

    #[test]
    fn what_was_intended_is_known_until_it_has_ended() {
        let memory = read(&[("a", Step::Intent, 1)]);
        assert!(memory.intended("a").is_some() && memory.intended("b").is_none());
        let memory = read(&[("a", Step::Intent, 1), ("a", Step::Ended, 3)]);
        assert!(memory.intended("a").is_none());
    }

    #[test]
    fn a_decision_is_known_until_it_is_carried_out() {
        let memory = read(&[("a", Step::Intent, 1), ("a", Step::Decided, 2)]);
        assert_eq!(memory.decided("a"), Some(&decision()));
        let memory = read(&[
            ("a", Step::Intent, 1),
            ("a", Step::Decided, 2),
            ("a", Step::Ended, 3),
        ]);
        assert_eq!(memory.decided("a"), None);
    }
}
