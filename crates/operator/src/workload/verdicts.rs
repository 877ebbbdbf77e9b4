//! What kinds with one Deployment tell in the same words, and why nothing was built.

use gantry_crds::{
    common::Problem,
    conditions::{reasons, types},
};
use gantry_kit::{Outcome, Progress, Verdict, conditions, references::Source};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

/// Why nothing was built.
#[derive(Debug, PartialEq, Eq)]
pub struct Blocked {
    pub reason: &'static str,
    pub message: String,
    pub progress: Progress,
}

impl Blocked {
    /// Nothing will change until a person does something.
    pub fn stuck(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            progress: Progress::Stuck,
        }
    }

    /// What is missing may come at any time, and then wakes us.
    pub fn waiting(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            progress: Progress::Working,
        }
    }

    /// Fails with all that is wrong with a spec.
    pub fn on_problems(problems: &[Problem]) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Err(Self::stuck(reasons::INVALID_SPEC, list.join("; ")))
    }

    /// Waits for a Secret or ConfigMap that the pod refers to.
    pub fn on_missing(missing: Option<(Source, String)>) -> Result<(), Self> {
        let Some((source, message)) = missing else {
            return Ok(());
        };
        let reason = match source {
            Source::Secret => reasons::WAITING_FOR_SECRET,
            Source::ConfigMap => reasons::WAITING_FOR_CONFIG_MAP,
        };
        Err(Self::waiting(reason, message))
    }

    /// What runs already goes on: `status` and the conditions `also` stay as they are, but for `Available` where it is
    /// known how many pods serve now.
    pub fn outcome<S>(
        self,
        status: S,
        serving: Option<i32>,
        known: Option<&[Condition]>,
        also: &[&'static str],
    ) -> Outcome<S> {
        let kept = |type_: &&'static str| {
            let now = serving.filter(|_| *type_ == types::AVAILABLE).map(available);
            let before = now.or_else(|| self::known(known, type_));
            (
                *type_,
                before.unwrap_or_else(|| Verdict::unknown(self.reason, "")),
            )
        };
        let also = also.iter().map(kept).collect();
        let mut outcome = Outcome::new(status, Verdict::no(self.reason, self.message), self.progress);
        outcome.also = also;
        outcome
    }
}

/// A condition as it was told last time.
pub fn known(conditions: Option<&[Condition]>, type_: &str) -> Option<Verdict> {
    let known = conditions::find(conditions?, type_)?;
    let (reason, message) = (known.reason.clone(), known.message.clone());
    Some(match known.status.as_str() {
        "True" => Verdict::yes(reason, message),
        "False" => Verdict::no(reason, message),
        _ => Verdict::unknown(reason, message),
    })
}

pub fn available(pods: i32) -> Verdict {
    if pods > 0 {
        Verdict::yes(reasons::SUCCEEDED, "at least one pod serves")
    } else {
        Verdict::no(reasons::PROGRESSING, "no pod serves yet")
    }
}

/// A selector as the scale subresource wants it: one line, sorted.
pub fn selector_text(labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    let mut pairs: Vec<String> = labels
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort();
    pairs.join(",")
}

/// What the Ready condition says, as the originals' one-word phases need it.
pub struct Summary<'a> {
    pub is_ready: bool,
    pub is_stalled: bool,
    pub reason: &'a str,
    pub message: &'a str,
}

pub fn summary(conditions: &[Condition]) -> Summary<'_> {
    let ready = conditions::find(conditions, types::READY);
    Summary {
        is_ready: ready.is_some_and(|ready| ready.status == "True"),
        is_stalled: conditions::is_true(conditions, types::STALLED),
        reason: ready.map(|ready| ready.reason.as_str()).unwrap_or_default(),
        message: ready.map(|ready| ready.message.as_str()).unwrap_or_default(),
    }
}
