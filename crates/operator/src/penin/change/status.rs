//! Pure: what is told about a change.

use std::time::Duration;

use gantry_crds::{
    conditions::reasons,
    penin::{ChangePhase, InfrastructureChangeStatus},
};
use gantry_kit::{Outcome, Progress, Verdict, conditions};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::decide::Decision;

/// Soon enough to be at once, and yet a new visit.
pub const NEXT: Duration = Duration::from_millis(10);

/// Something is waited for.
pub fn waiting(
    status: InfrastructureChangeStatus,
    reason: &str,
    message: impl Into<String>,
    again: Option<Duration>,
) -> Outcome<InfrastructureChangeStatus> {
    let mut outcome = Outcome::new(status, Verdict::no(reason, message), Progress::Working);
    outcome.again = again;
    outcome
}

/// Only a person can help.
pub fn stuck(
    status: InfrastructureChangeStatus,
    reason: &str,
    message: impl Into<String>,
) -> Outcome<InfrastructureChangeStatus> {
    Outcome::new(status, Verdict::no(reason, message), Progress::Stuck)
}

/// A step was made; the next one follows at once.
pub fn advanced(
    mut status: InfrastructureChangeStatus,
    phase: ChangePhase,
    message: &str,
) -> Outcome<InfrastructureChangeStatus> {
    status.phase = Some(phase);
    waiting(status, phase.as_str(), message, Some(NEXT))
}

/// The status at the end, before it is recorded.
pub fn at_end(
    mut status: InfrastructureChangeStatus,
    decision: &Decision,
    rule: Option<&str>,
    now: Timestamp,
) -> InfrastructureChangeStatus {
    status.phase = Some(decision.phase);
    status.message = Some(decision.message.clone());
    status.rule = rule.map(ToOwned::to_owned);
    status.outcome.clone_from(&decision.outcome);
    status.gain = decision.gain;
    status.in_effect = Some(match decision.phase {
        ChangePhase::Kept => true,
        ChangePhase::Inconclusive => !decision.roll_back,
        _ => false,
    });
    status.ended_at = Some(Time(now));
    status.conditions = None;
    status
}

/// Nothing more will happen.
pub fn ended(status: InfrastructureChangeStatus) -> Outcome<InfrastructureChangeStatus> {
    let phase = status.phase.unwrap_or_default();
    let message = status.message.clone().unwrap_or_default();
    if phase == ChangePhase::Kept {
        return Outcome::new(status, Verdict::yes(reasons::KEPT, message), Progress::Done);
    }
    Outcome::new(status, Verdict::no(phase.as_str(), message), Progress::Stuck)
}

/// The message is that of `Ready`; the phase is what the controller decided.
pub fn summarize(status: &mut InfrastructureChangeStatus) {
    let ready = status
        .conditions
        .as_deref()
        .and_then(|known| conditions::find(known, conditions::READY));
    if let Some(ready) = ready {
        status.message = Some(ready.message.clone());
    }
    if status.phase.is_none() {
        status.phase = Some(ChangePhase::Requested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_kit::Truth;
    use rstest::rstest;

    #[rstest]
    #[case(ChangePhase::Kept, false, true, Truth::True)]
    #[case(ChangePhase::RolledBack, true, false, Truth::False)]
    #[case(ChangePhase::Rejected, false, false, Truth::False)]
    #[case(ChangePhase::Superseded, false, false, Truth::False)]
    #[case(ChangePhase::Inconclusive, true, false, Truth::False)]
    #[case(ChangePhase::Inconclusive, false, true, Truth::False)]
    fn only_what_did_good_is_ready(
        #[case] phase: ChangePhase,
        #[case] roll_back: bool,
        #[case] in_effect: bool,
        #[case] truth: Truth,
    ) {
        let decision = Decision {
            phase,
            roll_back,
            message: "m".into(),
            outcome: None,
            gain: None,
        };
        let status = at_end(
            InfrastructureChangeStatus::default(),
            &decision,
            None,
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(status.in_effect, Some(in_effect));
        let outcome = ended(status);
        assert_eq!(
            (outcome.ready.truth, outcome.ready.reason.as_str()),
            (truth, phase.as_str())
        );
    }
}
