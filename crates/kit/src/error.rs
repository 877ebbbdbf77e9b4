//! What can go wrong while a controller reads or writes. Waiting and invalid specs are not errors: they are outcomes.

use std::{error::Error as StdError, time::Duration};

use gantry_crds::conditions::reasons;
use kube::core::Status;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {action}")]
    Api {
        /// What was attempted, as "verb resource name".
        action: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("failed to {action}: no answer within {} s", after.as_secs())]
    Timeout { action: String, after: Duration },
    #[error(
        "{kind} {name} exists and belongs to {owner}; remove it, rename this object, or annotate it with {}={root}",
        crate::ADOPT
    )]
    NotOurs {
        kind: String,
        name: String,
        owner: String,
        root: String,
    },
    #[error("{kind} {name} of a deleted predecessor is still being removed")]
    Predecessor { kind: String, name: String },
    #[error(
        "{kind} {name} is changed back again and again by {by}, and is written less and less often: let only one of them set \
         its fields"
    )]
    Contested { kind: String, name: String, by: String },
    #[error("lost the lease before this could be written")]
    NotLeader,
    #[error("failed to decode {what}")]
    Decode {
        what: String,
        #[source]
        source: serde_json::Error,
    },
}

/// First and longest wait between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    pub first: Duration,
    pub most: Duration,
}

impl Retry {
    /// For what goes away by itself, sooner or later.
    pub const PASSING: Self = Self::millis(1_000, 300_000);

    const fn millis(first: u64, most: u64) -> Self {
        Self {
            first: Duration::from_millis(first),
            most: Duration::from_millis(most),
        }
    }
}

impl Error {
    pub fn api(action: impl Into<String>, source: kube::Error) -> Self {
        Self::Api {
            action: action.into(),
            source: Box::new(source),
        }
    }

    /// The word used in conditions, events and metrics alike.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { source, .. } => match code(source) {
                Some(409) => reasons::CONFLICT,
                Some(403) => reasons::FORBIDDEN,
                Some(400 | 404 | 405 | 422) => reasons::REJECTED,
                _ => reasons::API_UNAVAILABLE,
            },
            Self::Timeout { .. } => reasons::API_UNAVAILABLE,
            Self::NotOurs { .. } => reasons::NOT_OURS,
            Self::Predecessor { .. } | Self::Contested { .. } => reasons::CONFLICT,
            Self::NotLeader => reasons::NOT_LEADER,
            Self::Decode { .. } => reasons::UNDECODABLE,
        }
    }

    pub fn retry(&self) -> Retry {
        if matches!(self, Self::Contested { .. }) {
            return Retry::millis(15_000, 300_000);
        }
        match self.reason() {
            reasons::CONFLICT => Retry::millis(200, 30_000),
            reasons::FORBIDDEN | reasons::NOT_OURS => Retry::millis(60_000, 60_000),
            reasons::REJECTED | reasons::UNDECODABLE => Retry::millis(30_000, 600_000),
            _ => Retry::PASSING,
        }
    }

    /// What the server asks us to wait at least, where it is too busy; bounded, since it is only a guess.
    pub fn retry_after(&self) -> Duration {
        let asked = match self {
            Self::Api { source, .. } => server_status(source).and_then(|status| status.details.as_ref()),
            _ => None,
        };
        let seconds = asked.map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(seconds.into()).min(Retry::PASSING.most)
    }

    /// True when only a person or another change can help, so that it belongs in `Ready`.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Contested { .. })
            || matches!(
                self.reason(),
                reasons::FORBIDDEN | reasons::REJECTED | reasons::NOT_OURS | reasons::UNDECODABLE
            )
    }

    /// True when the server answered that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api { source, .. } if code(source) == Some(404))
    }

    /// The message with its sources, fit for a condition or an event.
    pub fn report(&self) -> String {
        let mut text = self.to_string();
        if let Self::Api { source, .. } = self
            && let Some(status) = server_status(source)
        {
            return shorten(format!("{text}: {} ({})", status.message, status.code), 1000);
        }
        let mut source = self.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        shorten(text, 1000)
    }
}

/// The HTTP status of an API error.
pub fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The words of the server, where it spoke.
pub fn server_status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// Cuts at a character boundary.
pub fn shorten(mut text: String, most: usize) -> String {
    if text.len() > most {
        let mut end = most.saturating_sub('…'.len_utf8());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;
    use rstest::rstest;

    use super::*;

    fn api(code: u16) -> Error {
        let status = Status {
            code,
            message: "server words".into(),
            ..Status::default()
        };
        Error::api("apply Deployment a", kube::Error::Api(Box::new(status)))
    }

    #[rstest]
    #[case(409, "Conflict", 200)]
    #[case(403, "Forbidden", 60_000)]
    #[case(422, "Rejected", 30_000)]
    #[case(429, "ApiUnavailable", 1_000)]
    #[case(500, "ApiUnavailable", 1_000)]
    #[case(503, "ApiUnavailable", 1_000)]
    fn every_answer_has_a_reason_and_a_wait(#[case] code: u16, #[case] reason: &str, #[case] first: u64) {
        let error = api(code);
        assert_eq!(error.reason(), reason);
        assert_eq!(error.retry().first.as_millis(), u128::from(first));
    }

    #[rstest]
    #[case(0, 0)]
    #[case(7, 7)]
    #[case(u32::MAX, 300)]
    fn a_busy_server_says_how_long_to_wait(#[case] seconds: u32, #[case] waits: u64) {
        let status = Status {
            code: 429,
            details: Some(StatusDetails {
                retry_after_seconds: seconds,
                ..serde_json::from_str("{}").unwrap()
            }),
            ..Status::default()
        };
        let error = Error::api("apply Deployment a", kube::Error::Api(Box::new(status)));
        assert_eq!(error.retry_after().as_secs(), waits);
        assert_eq!(api(429).retry_after().as_secs(), 0);
    }

    #[test]
    fn the_report_carries_the_server_words_once() {
        let report = api(422).report();
        assert!(report.starts_with("failed to apply Deployment a"), "{report}");
        assert_eq!(report.matches("server words").count(), 1, "{report}");
    }

    #[test]
    fn shortening_respects_characters() {
        assert_eq!(shorten("äöü".repeat(10), 8).chars().last(), Some('…'));
        assert!(shorten("x".repeat(2000), 1000).len() <= 1000);
    }
}
