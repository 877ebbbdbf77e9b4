//! What of a wish was not done while the rest went on, and how the status tells of it. Pure.

use gantry_crds::conditions::types::{AUTOSCALED, MONITORED, ROUTED};

use crate::{
    conditions::{Progress, Truth, Verdict},
    controller::Outcome,
    error::Error,
};

#[derive(Debug, Default)]
pub struct Refused {
    /// Each with the kind of the object that was wished for; none for an object that was to go.
    faults: Vec<(Option<String>, Error)>,
}

impl Refused {
    pub(crate) fn add(&mut self, kind: Option<&str>, error: Error) {
        self.faults.push((kind.map(ToOwned::to_owned), error));
    }

    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// Says so in an outcome that is otherwise as it was found. What is wrong already goes on being told first: pods that
    /// crash matter more than an autoscaler that they lack.
    pub fn tell_in<S>(&self, outcome: &mut Outcome<S>) {
        for (kind, error) in &self.faults {
            let about = kind.as_deref().and_then(condition_of);
            let mut also = outcome.also.iter_mut();
            if let Some((_, verdict)) = also.find(|(type_, _)| Some(*type_) == about)
                && verdict.truth == Truth::True
            {
                *verdict = Verdict::no(error.reason(), error.report());
            }
        }
        // What passes is tried again at once and told to nobody.
        let Some(error) = self.lasting() else { return };
        let ready = &mut outcome.ready;
        let (first, then) = (error.report(), ready.message.clone());
        if ready.truth == Truth::False && outcome.progress == Progress::Stuck {
            ready.message = format!("{then}; besides, {first}");
            return;
        }
        let message = match ready.truth {
            Truth::True => first,
            _ => format!("{first}; besides, {then}"),
        };
        *ready = Verdict::no(error.reason(), message);
        outcome.progress = Progress::Stuck;
    }

    /// The fault whose retry is waited for.
    pub fn into_error(mut self) -> Option<Error> {
        let lasting = self.faults.iter().position(|(_, error)| error.is_lasting());
        let passing = self.faults.iter().position(|(_, error)| !error.is_lasting());
        passing.or(lasting).map(|at| self.faults.swap_remove(at).1)
    }

    fn lasting(&self) -> Option<&Error> {
        let mut errors = self.faults.iter().map(|(_, error)| error);
        errors.find(|error| error.is_lasting())
    }
}

/// The condition that says that an object of this kind is there.
fn condition_of(kind: &str) -> Option<&'static str> {
    match kind {
        "HTTPRoute" | "Ingress" => Some(ROUTED),
        "HorizontalPodAutoscaler" => Some(AUTOSCALED),
        "ServiceMonitor" | "PodMonitor" | "PrometheusRule" => Some(MONITORED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use rstest::rstest;

    use super::*;

    fn api(code: u16, message: &str) -> Error {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        };
        Error::api("apply", kube::Error::Api(Box::new(status)))
    }

    fn crashes() -> Verdict {
        Verdict::no("CrashLoop", "it crashes")
    }

    #[rstest]
    #[case::serves(
        Verdict::yes("Ready", "all is well"),
        Progress::Done,
        "Rejected",
        "failed to apply: no (422)"
    )]
    #[case::rolls_out(
        Verdict::no("RollingOut", "0 of 1"),
        Progress::Working,
        "Rejected",
        "failed to apply: no (422); besides, 0 of 1"
    )]
    #[case::crashes(
        crashes(),
        Progress::Stuck,
        "CrashLoop",
        "it crashes; besides, failed to apply: no (422)"
    )]
    fn a_refusal_is_told_beside_what_was_found(
        #[case] ready: Verdict,
        #[case] progress: Progress,
        #[case] reason: &str,
        #[case] message: &str,
    ) {
        let mut refused = Refused::default();
        refused.add(None, api(409, "changed meanwhile"));
        refused.add(Some("HTTPRoute"), api(422, "no"));
        let mut outcome = Outcome::new((), ready, progress)
            .with(ROUTED, Verdict::yes("RouteCreated", ""))
            .with(MONITORED, Verdict::yes("Succeeded", ""));
        refused.tell_in(&mut outcome);
        assert_eq!(outcome.ready, Verdict::no(reason, message));
        assert_eq!(outcome.progress, Progress::Stuck);
        let truths: Vec<_> = outcome.also.iter().map(|(_, verdict)| verdict.truth).collect();
        assert_eq!(truths, [Truth::False, Truth::True], "a route that is not there");
        let error = refused.into_error().unwrap();
        assert_eq!(error.reason(), "Conflict", "what can be tried again soonest");
    }

    #[test]
    fn what_passes_is_told_to_nobody() {
        let mut refused = Refused::default();
        refused.add(None, api(409, "changed meanwhile"));
        let mut outcome = Outcome::new((), crashes(), Progress::Working);
        refused.tell_in(&mut outcome);
        assert_eq!((outcome.ready, outcome.progress), (crashes(), Progress::Working));
    }
}
