//! Standard conditions, computed without IO and with the time passed in.

pub use gantry_crds::conditions::types::{READY, RECONCILING, STALLED};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One condition without its bookkeeping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub truth: Truth,
    pub reason: String,
    pub message: String,
}

impl Verdict {
    pub fn new(truth: Truth, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            truth,
            reason: reason.into(),
            message: message.into(),
        }
    }

    pub fn yes(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Truth::True, reason, message)
    }

    pub fn no(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Truth::False, reason, message)
    }

    pub fn unknown(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Truth::Unknown, reason, message)
    }
}

/// Whether anything still moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing left to do.
    Done,
    /// Under way, or waiting for something that is.
    Working,
    /// Only a change by somebody else helps.
    Stuck,
}

impl Progress {
    /// `Reconciling` and `Stalled`, told in the words of `Ready`.
    pub fn verdicts(self, ready: &Verdict) -> [(&'static str, Verdict); 2] {
        let same = |truth| Verdict::new(truth, ready.reason.clone(), ready.message.clone());
        let quiet = |reason: &str| Verdict::no(reason, "");
        match self {
            Self::Done => [(RECONCILING, quiet("UpToDate")), (STALLED, quiet("UpToDate"))],
            Self::Working => [(RECONCILING, same(Truth::True)), (STALLED, quiet("Progressing"))],
            Self::Stuck => [(RECONCILING, quiet("Stalled")), (STALLED, same(Truth::True))],
        }
    }
}

/// The next condition list: times move only when a status flips, the order is that of `verdicts`.
pub fn merge(
    previous: &[Condition],
    verdicts: impl IntoIterator<Item = (&'static str, Verdict)>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    verdicts
        .into_iter()
        .map(|(type_, verdict)| {
            let before = previous.iter().find(|condition| condition.type_ == type_);
            let status = verdict.truth.as_str();
            let last_transition_time = match before {
                Some(before) if before.status == status => before.last_transition_time.clone(),
                _ => Time(now),
            };
            Condition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: verdict.reason,
                message: crate::error::shorten(verdict.message, 4096),
                observed_generation: generation,
                last_transition_time,
            }
        })
        .collect()
}

pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_time_moves_only_when_the_status_flips() {
        let first = merge(&[], [(READY, Verdict::no("A", "a"))], Some(1), at(10));
        let second = merge(&first, [(READY, Verdict::no("B", "b"))], Some(2), at(20));
        assert_eq!(second[0].last_transition_time, Time(at(10)));
        assert_eq!(
            (second[0].reason.as_str(), second[0].observed_generation),
            ("B", Some(2))
        );
        let third = merge(&second, [(READY, Verdict::yes("C", ""))], Some(2), at(30));
        assert_eq!(third[0].last_transition_time, Time(at(30)));
    }

    #[test]
    fn kstatus_never_sees_both_working_and_stalled() {
        let ready = Verdict::no("Why", "because");
        for (progress, reconciling, stalled) in [
            (Progress::Done, Truth::False, Truth::False),
            (Progress::Working, Truth::True, Truth::False),
            (Progress::Stuck, Truth::False, Truth::True),
        ] {
            let [(_, first), (_, second)] = progress.verdicts(&ready);
            assert_eq!(
                (first.truth, second.truth),
                (reconciling, stalled),
                "{progress:?}"
            );
        }
    }
}
