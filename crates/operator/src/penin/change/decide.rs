//! What becomes of a change that is applied: when its watching ends, and how.

use std::time::Duration;

use gantry_crds::penin::{ChangePhase, OnInconclusive, Readings, SelfArchitecting, Verdict};
use serde::{Deserialize, Serialize};

use super::verdict::{self, Judgement};

/// How a change ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub phase: ChangePhase,
    /// Whether the spec goes back to what it was.
    pub roll_back: bool,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Readings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
}

/// What is known of the cluster since the change was applied.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    /// The very cluster is gone.
    pub gone: bool,
    /// Planned fields that somebody set to something else, or made their own.
    pub edited: Vec<String>,
    /// Somebody edited the spec elsewhere.
    pub edited_beside: bool,
    /// The services follow the change and are ready.
    pub ready: bool,
    /// Since the change was applied.
    pub since_applied: Duration,
}

/// What the readings say so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    pub readings: Readings,
    pub since: Duration,
    /// Why the last question had no answer.
    pub silent: Option<String>,
}

/// How long the services may take to follow a change.
pub fn patience(policy: &SelfArchitecting) -> Duration {
    window(policy).max(Duration::from_secs(600))
}

pub fn window(policy: &SelfArchitecting) -> Duration {
    Duration::from_secs(u64::try_from(policy.observation_seconds()).unwrap_or(300))
}

/// Time between two readings: twice as many as are needed fit into the window.
pub fn interval(policy: &SelfArchitecting, rule: &Verdict) -> Duration {
    let needed = u32::try_from(rule.min_samples()).unwrap_or(1).max(1);
    (window(policy) / (2 * needed)).clamp(Duration::from_millis(100), Duration::from_secs(30))
}

/// An end that the cluster itself brings about, whatever was measured.
pub fn interrupted(watched: &Watched, policy: &SelfArchitecting) -> Option<Decision> {
    let superseded = |message: String| Decision {
        phase: ChangePhase::Superseded,
        roll_back: false,
        message,
        outcome: None,
        gain: None,
    };
    if watched.gone {
        return Some(superseded("the cluster was deleted meanwhile".to_owned()));
    }
    if !watched.edited.is_empty() {
        return Some(superseded(format!(
            "somebody set {} meanwhile, and that stays",
            watched.edited.join(", ")
        )));
    }
    if watched.edited_beside {
        return Some(unclear(
            "the cluster's spec was edited meanwhile, so that the effect cannot be told",
            policy,
        ));
    }
    if !policy.enabled() {
        return Some(unclear("the policy was switched off meanwhile", policy));
    }
    None
}

fn unclear(cause: &str, policy: &SelfArchitecting) -> Decision {
    let keep = policy
        .verdict
        .as_ref()
        .map(Verdict::on_inconclusive)
        .unwrap_or_default()
        == OnInconclusive::Keep;
    let becomes = if keep { "it stays" } else { "rolled back" };
    Decision {
        phase: ChangePhase::Inconclusive,
        roll_back: !keep,
        message: format!("{cause}; {becomes}, as the policy says"),
        outcome: None,
        gain: None,
    }
}

/// The end of a change whose services do not follow it.
pub fn never_ready(watched: &Watched, policy: &SelfArchitecting) -> Option<Decision> {
    (!watched.ready && watched.since_applied >= patience(policy)).then(|| Decision {
        phase: ChangePhase::RolledBack,
        roll_back: true,
        message: format!(
            "the cluster did not become ready within {} s of the change",
            patience(policy).as_secs()
        ),
        outcome: None,
        gain: None,
    })
}

/// The end that the readings bring about, once the window is over.
pub fn judged(policy: &SelfArchitecting, before: &Readings, after: &Measured) -> Option<Decision> {
    if after.since < window(policy) {
        return None;
    }
    let Some(rule) = policy.verdict.as_ref() else {
        return Some(unclear("the policy says no longer how to judge", policy));
    };
    let (gain, judgement) = verdict::judge(rule, before, &after.readings);
    let told = |word: &str, gain: Option<f64>| {
        format!(
            "{} is {word} by {} (from {} to {})",
            rule.metric.as_deref().unwrap_or("the query"),
            gain.unwrap_or_default().abs(),
            before.median.unwrap_or_default(),
            after.readings.median.unwrap_or_default(),
        )
    };
    let mut decision = match judgement {
        Judgement::Better => Decision {
            phase: ChangePhase::Kept,
            roll_back: false,
            message: told("better", gain),
            outcome: None,
            gain: None,
        },
        Judgement::Worse => Decision {
            phase: ChangePhase::RolledBack,
            roll_back: true,
            message: told("worse", gain),
            outcome: None,
            gain: None,
        },
        Judgement::Unclear(cause) => {
            let cause = match &after.silent {
                Some(silent) => format!("{cause} ({silent})"),
                None => cause,
            };
            unclear(&cause, policy)
        }
    };
    decision.outcome = Some(after.readings.clone());
    decision.gain = gain;
    Some(decision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn policy(more: serde_json::Value) -> SelfArchitecting {
        let mut base = json!({
            "enabled": true, "allowedFields": ["replicas.*"], "observationSeconds": 60,
            "verdict": {"metric": "srScore", "minSamples": 2},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            base[name] = value.clone();
        }
        serde_json::from_value(base).unwrap()
    }

    fn quiet() -> Watched {
        Watched {
            ready: true,
            ..Watched::default()
        }
    }

    #[rstest]
    #[case::nothing_happened(quiet(), json!({}), None)]
    #[case::deleted(Watched { gone: true, ..quiet() }, json!({}), Some((ChangePhase::Superseded, false)))]
    #[case::edited(Watched { edited: vec!["replicas.sigmaGuard".into()], ..quiet() }, json!({}), Some((ChangePhase::Superseded, false)))]
    #[case::edited_there_and_beside(Watched { edited: vec!["a".into()], edited_beside: true, ..quiet() }, json!({}), Some((ChangePhase::Superseded, false)))]
    #[case::edited_beside(Watched { edited_beside: true, ..quiet() }, json!({}), Some((ChangePhase::Inconclusive, true)))]
    #[case::edited_beside_and_keep(
        Watched { edited_beside: true, ..quiet() },
        json!({"verdict": {"metric": "srScore", "onInconclusive": "Keep"}}), Some((ChangePhase::Inconclusive, false)))]
    #[case::switched_off(quiet(), json!({"enabled": false}), Some((ChangePhase::Inconclusive, true)))]
    fn what_interrupts(
        #[case] watched: Watched,
        #[case] more: serde_json::Value,
        #[case] expected: Option<(ChangePhase, bool)>,
    ) {
        let found = interrupted(&watched, &policy(more));
        assert_eq!(
            found.map(|decision| (decision.phase, decision.roll_back)),
            expected
        );
    }

    #[rstest]
    #[case::in_time(false, 599, false)]
    #[case::too_late(false, 600, true)]
    #[case::ready(true, 9999, false)]
    fn who_does_not_follow_goes_back(#[case] ready: bool, #[case] seconds: u64, #[case] ends: bool) {
        let watched = Watched {
            ready,
            since_applied: Duration::from_secs(seconds),
            ..Watched::default()
        };
        let found = never_ready(&watched, &policy(json!({})));
        assert_eq!(found.is_some_and(|decision| decision.roll_back), ends);
    }

    fn measured(value: f64, count: usize, seconds: u64) -> Measured {
        Measured {
            readings: verdict::summary(&vec![value; count]),
            since: Duration::from_secs(seconds),
            silent: None,
        }
    }

    #[rstest]
    #[case::too_early(measured(2.0, 9, 59), None)]
    #[case::better(measured(2.0, 3, 60), Some((ChangePhase::Kept, false)))]
    #[case::worse(measured(0.5, 3, 60), Some((ChangePhase::RolledBack, true)))]
    #[case::the_same(measured(1.0, 3, 60), Some((ChangePhase::Inconclusive, true)))]
    #[case::too_few(measured(2.0, 1, 60), Some((ChangePhase::Inconclusive, true)))]
    fn what_the_readings_say(#[case] after: Measured, #[case] expected: Option<(ChangePhase, bool)>) {
        let found = judged(&policy(json!({})), &verdict::summary(&[1.0; 3]), &after);
        assert_eq!(
            found.map(|decision| (decision.phase, decision.roll_back)),
            expected
        );
    }

    #[rstest]
    #[case(60, 2, 15_000)]
    #[case(300, 5, 30_000)]
    #[case(10, 1000, 100)]
    fn readings_are_spread_over_the_window(#[case] window: i32, #[case] samples: i32, #[case] expected: u64) {
        let policy = policy(json!({"observationSeconds": window}));
        let rule = Verdict {
            min_samples: Some(samples),
            ..Verdict::default()
        };
        assert_eq!(interval(&policy, &rule), Duration::from_millis(expected));
    }
}
