//! A registered cluster: its environment and what its health means.

use std::{fmt, str::FromStr};

use jiff::{SignedDuration, Timestamp};

use crate::fields::{Complaints, Labels};

/// Where a cluster belongs. Rules get stricter towards production; others have names of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Environment {
    Development,
    Staging,
    Production,
    Other(String),
}

impl Environment {
    pub fn name(&self) -> &str {
        match self {
            Self::Development => "Development",
            Self::Staging => "Staging",
            Self::Production => "Production",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "an environment is Development, Staging, Production or a name of 1 to 63 letters, digits and hyphens"
)]
pub struct NoEnvironment;

impl FromStr for Environment {
    type Err = NoEnvironment;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        match text.to_ascii_lowercase().as_str() {
            "development" | "dev" => Ok(Self::Development),
            "staging" | "stage" => Ok(Self::Staging),
            "production" | "prod" => Ok(Self::Production),
            _ if (1..=63).contains(&text.len())
                && text.chars().all(good)
                && text.starts_with(|c: char| c.is_ascii_alphanumeric()) =>
            {
                Ok(Self::Other(text.to_owned()))
            }
            _ => Err(NoEnvironment),
        }
    }
}

/// What is asked for when a cluster is registered; the kubeconfig is `kubeconfig`'s.
#[derive(Clone, Debug)]
pub struct NewCluster {
    pub name: String,
    pub description: String,
    pub environment: String,
    pub labels: Labels,
}

impl NewCluster {
    pub fn check(&self) -> Result<Environment, Complaints> {
        let mut complaints = Complaints::default();
        complaints.dns_label("name", &self.name);
        complaints.at_most("description", &self.description, 2000);
        complaints.labels("labels", &self.labels);
        match self.environment.parse() {
            Ok(environment) => complaints.or(environment),
            Err(error) => {
                complaints.add("environment", NoEnvironment::to_string(&error));
                Err(complaints)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    Unknown,
    Healthy,
    Degraded,
    Unhealthy,
}

impl Health {
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Healthy, Self::Degraded, Self::Unhealthy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Healthy => "Healthy",
            Self::Degraded => "Degraded",
            Self::Unhealthy => "Unhealthy",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|health| health.name().eq_ignore_ascii_case(name))
    }
}

/// What a look at a cluster found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    Seen {
        ready: u32,
        not_ready: u32,
        /// Why its definitions are not known, where they are not.
        no_definitions: Option<String>,
    },
    /// One PascalCase word, and a sentence.
    Unreachable { reason: &'static str, message: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub health: Health,
    pub reason: &'static str,
    pub message: String,
}

pub fn verdict(sight: &Sight) -> Verdict {
    match sight {
        Sight::Unreachable { reason, message } => Verdict {
            health: Health::Unhealthy,
            reason,
            message: message.clone(),
        },
        Sight::Seen {
            ready,
            not_ready,
            no_definitions,
        } => {
            let mut verdict = of_nodes(*ready, *not_ready);
            // That says nothing of the health, and much of what may be used there.
            if let Some(why) = no_definitions {
                verdict.message.push_str("; its definitions could not be read: ");
                verdict.message.push_str(why);
            }
            verdict
        }
    }
}

fn of_nodes(ready: u32, not_ready: u32) -> Verdict {
    let (health, reason, message) = match (ready, not_ready) {
        (0, 0) => (
            Health::Degraded,
            "NoNodes",
            "the API server answers, and there is no node".to_owned(),
        ),
        (0, not_ready) => (
            Health::Unhealthy,
            "NoReadyNodes",
            format!("none of {not_ready} nodes is ready"),
        ),
        (1, 0) => (Health::Healthy, "NodesReady", "1 node is ready".to_owned()),
        (ready, 0) => (Health::Healthy, "NodesReady", format!("{ready} nodes are ready")),
        (ready, not_ready) => (
            Health::Degraded,
            "NodesNotReady",
            format!("{not_ready} of {} nodes are not ready", ready + not_ready),
        ),
    };
    Verdict {
        health,
        reason,
        message,
    }
}

/// What was found counts for this long; after it, nobody knows.
pub const FRESH: SignedDuration = SignedDuration::from_mins(5);

/// The health to act on now: an old look is no look, and neither is one that is yet to come (a clock was put back).
pub fn current(stored: Health, checked_at: Option<Timestamp>, now: Timestamp) -> Health {
    match checked_at {
        Some(at) if now.duration_since(at).abs() <= FRESH => stored,
        _ => Health::Unknown,
    }
}

/// What the last look left behind.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'s> {
    pub health: Health,
    pub reason: &'s str,
    pub message: &'s str,
    pub since: Option<Timestamp>,
    pub checked_at: Option<Timestamp>,
    pub is_enabled: bool,
}

/// What people are told now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub health: Health,
    pub reason: String,
    pub message: String,
    pub since: Option<Timestamp>,
}

/// Where nobody knows, nothing of the last look is told as if it were so now.
pub fn shown(stored: &Stored<'_>, now: Timestamp) -> Shown {
    let health = current(stored.health, stored.checked_at, now);
    if health != Health::Unknown {
        return Shown {
            health,
            reason: stored.reason.to_owned(),
            message: stored.message.to_owned(),
            since: stored.since,
        };
    }
    let (reason, message) = if stored.is_enabled {
        ("NotChecked", "it was not looked at in the last five minutes")
    } else {
        ("Disabled", "it is disabled, and not looked at")
    };
    // A look in the future tells nothing of when.
    let last = stored.checked_at.filter(|at| *at <= now);
    Shown {
        health,
        reason: reason.to_owned(),
        message: message.to_owned(),
        since: last.map(|at| at + FRESH),
    }
}

/// Whether an API group is somebody's own, and not one of Kubernetes itself.
pub fn is_own_group(group: &str) -> bool {
    const KUBERNETES: [&str; 18] = [
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    ];
    // Its older groups (apps, batch, policy) have no dot; a definition's group always has one.
    group.contains('.') && !KUBERNETES.contains(&group)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("Dev", "Development")]
    #[case("development", "Development")]
    #[case("Prod", "Production")]
    #[case("QA-2", "QA-2")]
    fn environments(#[case] text: &str, #[case] name: &str) {
        assert_eq!(text.parse::<Environment>().unwrap().name(), name);
        assert!("".parse::<Environment>().is_err());
        assert!("a b".parse::<Environment>().is_err());
    }

    #[rstest]
    #[case(3, 0, Health::Healthy)]
    #[case(2, 1, Health::Degraded)]
    #[case(0, 3, Health::Unhealthy)]
    #[case(0, 0, Health::Degraded)]
    fn nodes(#[case] ready: u32, #[case] not_ready: u32, #[case] health: Health) {
        let seen = |no_definitions: Option<String>| {
            verdict(&Sight::Seen {
                ready,
                not_ready,
                no_definitions,
            })
        };
        let (with, without) = (seen(None), seen(Some("they are forbidden".to_owned())));
        assert_eq!((with.health, without.health), (health, health));
        assert_eq!(with.reason, without.reason);
        assert!(!with.message.contains("definitions"), "{}", with.message);
        assert!(
            without.message.ends_with("they are forbidden"),
            "{}",
            without.message
        );
    }

    #[test]
    fn an_old_look_is_no_look() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let ago = |minutes: i64| Some(now - SignedDuration::from_mins(minutes));
        assert_eq!(current(Health::Healthy, ago(4), now), Health::Healthy);
        assert_eq!(current(Health::Healthy, ago(6), now), Health::Unknown);
        assert_eq!(current(Health::Unhealthy, None, now), Health::Unknown);
    }

    #[rstest]
    #[case::fresh(1, true, "Healthy", "NodesReady")]
    #[case::just_disabled(1, false, "Healthy", "NodesReady")]
    #[case::stale(6, true, "Unknown", "NotChecked")]
    #[case::disabled(6, false, "Unknown", "Disabled")]
    #[case::to_come(-6, true, "Unknown", "NotChecked")]
    fn what_is_not_known_is_told_with_no_words_of_what_was(
        #[case] minutes_ago: i64,
        #[case] is_enabled: bool,
        #[case] health: &str,
        #[case] reason: &str,
    ) {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let at = now - SignedDuration::from_mins(minutes_ago);
        let stored = Stored {
            health: Health::Healthy,
            reason: "NodesReady",
            message: "3 nodes are ready",
            since: Some(at),
            checked_at: Some(at),
            is_enabled,
        };
        let got = shown(&stored, now);
        assert_eq!((got.health.name(), got.reason.as_str()), (health, reason));
        assert_eq!(got.message.contains("3 nodes"), health == "Healthy", "{got:?}");
        assert!(got.since.is_none_or(|since| since <= now), "{got:?}");
    }
}
