//! One thing that changes, in words that a person can act on.

use std::{borrow::Cow, fmt, fmt::Write as _};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{kind::Kind, waiver::Waiver};

/// What a change does, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Stored data is pruned, or can no longer be read.
    DataLoss,
    /// Objects that are stored today are refused at their next write.
    RejectsObjects,
    /// Those who talk to the API are refused, or get something else than before.
    Clients,
    NoEffect,
}

impl Class {
    pub fn words(self) -> &'static str {
        match self {
            Self::DataLoss => "data loss",
            Self::RejectsObjects => "rejects existing objects",
            Self::Clients => "rejects or surprises clients",
            Self::NoEffect => "no effect",
        }
    }
}

/// What to make of it, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Impact {
    /// Something that works today stops working.
    Breaking,
    /// Nobody can tell from the two schemas alone; a person has to.
    Undecidable,
    /// Nothing is refused or lost, but somebody may be surprised.
    Warning,
    Info,
}

impl Impact {
    pub fn words(self) -> &'static str {
        match self {
            Self::Breaking => "breaking",
            Self::Undecidable => "undecidable",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The upgrade: objects written under the old schema meet the new one.
    Forward,
    /// The rollback: objects written under the new schema meet the old one.
    Backward,
}

impl Direction {
    pub fn word(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How many live objects a finding hurts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hurt {
    pub objects: u64,
    pub checked: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The same for the same change, whatever else changes around it; waivers name it.
    pub fingerprint: String,
    pub kind: Kind,
    pub class: Class,
    pub impact: Impact,
    pub direction: Direction,
    pub crd: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where in the object, or in the definition's spec.
    pub path: String,
    pub before: String,
    pub after: String,
    pub why: Cow<'static, str>,
    /// To whom it matters.
    pub affects: &'static str,
    /// What to do about it.
    pub action: &'static str,
    /// Why it cannot be decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undecidable: Option<String>,
    /// The server lets stored objects pass as long as the value is left alone.
    pub ratcheted: bool,
    /// Objects that come from the API do not tell whom it hurts: they have the old defaults.
    #[serde(skip)]
    pub veiled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hurt: Option<Hurt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiver: Option<Waiver>,
}

impl Finding {
    /// Breaking, and nobody has taken responsibility for it.
    pub fn is_open(&self, impact: Impact) -> bool {
        self.impact == impact && self.waiver.is_none()
    }

    pub fn print_over(&mut self) {
        let version = self.version.as_deref().unwrap_or_default();
        // Which of several rules that went a new one replaces is only guessed, and depends on what else went.
        let (kind, before) = match self.kind {
            Kind::RuleAdded | Kind::RuleChanged | Kind::TransitionRuleAdded => ("rule", ""),
            kind => (kind.id(), self.before.as_str()),
        };
        self.fingerprint = fingerprint(&[
            kind,
            self.direction.word(),
            &self.crd,
            version,
            &self.path,
            before,
            &self.after,
        ]);
    }

    /// Makes the fingerprint one of this content too.
    pub fn stand_for(&mut self, content: u64) {
        self.fingerprint = fingerprint(&[&self.fingerprint, &content.to_string()]);
    }

    /// Worst first, then by place.
    pub fn order(&self) -> impl Ord + '_ {
        (
            self.impact,
            self.class,
            self.crd.as_str(),
            self.version.as_deref(),
            self.path.as_str(),
            self.kind.id(),
        )
    }
}

fn fingerprint(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut hex = String::with_capacity(16);
    for byte in hash.finalize().iter().take(8) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
