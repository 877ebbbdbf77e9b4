//! The whole answer: every definition of two sets, in one direction or both.

use std::fmt::Write as _;

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Date;
use serde::Serialize;

use super::{
    crd::Crd,
    definition,
    finding::{Class, Direction, Finding, Impact},
    kind::Kind,
    proof::Proof,
    server::ServerVersion,
    sink::Sink,
    waiver::{self, Waiver},
};

/// Which way, and what is known of where it happens.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Options {
    pub forward: bool,
    pub backward: bool,
    pub server: Option<ServerVersion>,
    /// The old set is all that a cluster has; what the new set does not name is none of its business.
    pub old_is_cluster: bool,
    /// The same for the new set.
    pub new_is_cluster: bool,
}

/// The worst that is left after waivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Breaking,
    Undecidable,
    /// Nothing is refused or lost; warnings may be there.
    Safe,
}

impl Verdict {
    pub fn words(self) -> &'static str {
        match self {
            Self::Breaking => "breaking",
            Self::Undecidable => "undecidable",
            Self::Safe => "safe",
        }
    }

    pub fn of<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Self {
        let worst = findings
            .into_iter()
            .filter(|finding| finding.waiver.is_none())
            .map(|finding| finding.impact)
            .min();
        match worst {
            Some(Impact::Breaking) => Self::Breaking,
            Some(Impact::Undecidable) => Self::Undecidable,
            _ => Self::Safe,
        }
    }
}

/// From where on a rollback no longer brings everything back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PointOfNoReturn {
    pub crd: String,
    pub when: String,
    pub because: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backward: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_version: Option<ServerVersion>,
    /// How many definitions were compared.
    pub definitions: usize,
    pub findings: Vec<Finding>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points_of_no_return: Vec<PointOfNoReturn>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<Proof>,
    /// What the reader should know about how it was found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Compares two sets of definitions.
pub fn compare(old: &[Crd], new: &[Crd], options: &Options) -> Report {
    let mut findings = Vec::new();
    if options.forward {
        let mut forward = set(old, new, Direction::Forward, options);
        findings.append(&mut forward);
    }
    if options.backward {
        let mut backward = set(new, old, Direction::Backward, options);
        findings.append(&mut backward);
    }
    findings.sort_by(|a, b| a.order().cmp(&b.order()));
    let mut report = Report {
        forward: None,
        backward: None,
        server_version: options.server,
        definitions: old.iter().filter(|crd| named(new, &crd.name).is_some()).count(),
        points_of_no_return: if options.backward {
            points_of_no_return(&findings)
        } else {
            Vec::new()
        },
        findings,
        proofs: Vec::new(),
        notes: Vec::new(),
    };
    report.judge(options.forward, options.backward);
    report
}

impl Report {
    pub(super) fn judge(&mut self, forward: bool, backward: bool) {
        let towards = |direction: Direction| {
            Verdict::of(
                self.findings
                    .iter()
                    .filter(|finding| finding.direction == direction),
            )
        };
        let (ahead, back) = (towards(Direction::Forward), towards(Direction::Backward));
        self.forward = forward.then_some(ahead);
        self.backward = backward.then_some(back);
    }

    /// Marks what is waived, and judges again.
    pub fn waive(&mut self, waivers: &[Waiver], today: Date) {
        let notes = waiver::apply(&mut self.findings, waivers, today);
        self.notes.extend(notes);
        self.judge(self.forward.is_some(), self.backward.is_some());
    }

    /// The verdict that counts: of the upgrade, where that was asked for.
    pub fn verdict(&self) -> Verdict {
        self.forward.or(self.backward).unwrap_or(Verdict::Safe)
    }

    /// Only definitions, versions and clients count, and live objects: a schema that refuses nobody's object is fine.
    pub fn verdict_by_harm(&self) -> Verdict {
        let direction = if self.forward.is_some() {
            Direction::Forward
        } else {
            Direction::Backward
        };
        let hurts = |finding: &&Finding| {
            finding.direction == direction && finding.hurt.is_none_or(|hurt| hurt.objects > 0)
        };
        Verdict::of(self.findings.iter().filter(hurts))
    }
}

fn named<'c>(set: &'c [Crd], name: &str) -> Option<&'c Crd> {
    set.iter().find(|crd| crd.name == name)
}

fn set(old: &[Crd], new: &[Crd], direction: Direction, options: &Options) -> Vec<Finding> {
    let index: BTreeMap<&str, &Crd> = new.iter().map(|crd| (crd.name.as_str(), crd)).collect();
    let known: BTreeMap<&str, &Crd> = old.iter().map(|crd| (crd.name.as_str(), crd)).collect();
    let (old_is_cluster, new_is_cluster) = match direction {
        Direction::Forward => (options.old_is_cluster, options.new_is_cluster),
        Direction::Backward => (options.new_is_cluster, options.old_is_cluster),
    };
    let releases = Releases::new(old, &index);
    let mut findings = Vec::new();
    for crd in old {
        let mut sink = Sink::new(&crd.name, direction, options.server);
        match index.get(crd.name.as_str()) {
            Some(after) => findings.append(&mut definition::compare(crd, after, direction, options.server)),
            None if old_is_cluster => {
                if let Some(release) = crd
                    .release
                    .as_deref()
                    .filter(|release| releases.ships(crd, release))
                {
                    sink.add_at(Kind::CrdRemoved, "", "in the cluster", "not in the set");
                    sink.note(&format!(
                        "It belongs to Helm's release {release}: an upgrade to a chart without it deletes it, unless it has the annotation helm.sh/resource-policy: keep."
                    ));
                } else if new.iter().any(|other| other.group == crd.group) {
                    sink.add_at(Kind::CrdLeftOut, "", "in the cluster", "not in the set");
                }
            }
            None => {
                sink.add_at(Kind::CrdRemoved, "", "defined", "not in the set");
                if let Some(other) = renamed(crd, old, new) {
                    sink.note(&format!("It looks as if it was renamed to {other}."));
                }
            }
        }
        findings.append(&mut sink.finish());
    }
    for crd in new.iter().filter(|crd| !known.contains_key(crd.name.as_str())) {
        if !new_is_cluster {
            let mut sink = Sink::new(&crd.name, direction, options.server);
            sink.add_at(Kind::CrdAdded, "", "not in the set", "defined");
            findings.append(&mut sink.finish());
        }
    }
    findings
}

/// Which releases of Helm the new set is for: those that have others of its definitions in the cluster.
struct Releases<'c> {
    known: BTreeSet<&'c str>,
    groups: BTreeSet<&'c str>,
}

impl<'c> Releases<'c> {
    fn new(old: &'c [Crd], new: &BTreeMap<&str, &'c Crd>) -> Self {
        let shared = old.iter().filter(|crd| new.contains_key(crd.name.as_str()));
        Self {
            known: shared.filter_map(|crd| crd.release.as_deref()).collect(),
            groups: new.values().map(|crd| crd.group.as_str()).collect(),
        }
    }

    /// Where nothing tells, a set with definitions of the same group may be the chart of that release.
    fn ships(&self, crd: &Crd, release: &str) -> bool {
        self.known.contains(release) || (self.known.is_empty() && self.groups.contains(crd.group.as_str()))
    }
}

/// A definition that is new and has the same kind or the same plural name.
fn renamed<'c>(crd: &Crd, old: &[Crd], new: &'c [Crd]) -> Option<&'c str> {
    new.iter()
        .filter(|other| named(old, &other.name).is_none())
        .find(|other| other.kind == crd.kind || other.plural == crd.plural)
        .map(|other| other.name.as_str())
}

/// One sentence per definition: the earliest moment from which on the way back loses something.
fn points_of_no_return(findings: &[Finding]) -> Vec<PointOfNoReturn> {
    let mut by_crd: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    for finding in findings
        .iter()
        .filter(|finding| finding.impact <= Impact::Undecidable)
    {
        by_crd.entry(&finding.crd).or_default().push(finding);
    }
    let point = |(crd, findings): (&str, Vec<&Finding>)| {
        let of = |direction: Direction, wanted: &[Kind]| {
            findings
                .iter()
                .copied()
                .find(|finding| finding.direction == direction && wanted.contains(&finding.kind))
        };
        let at_once = of(Direction::Backward, &[Kind::ScopeChanged, Kind::KindChanged])
            .or_else(|| {
                of(Direction::Backward, &[Kind::VersionRemoved]).filter(|finding| finding.before == "stored")
            })
            .or_else(|| of(Direction::Backward, &[Kind::CrdRemoved]));
        let (when, why) = if let Some(finding) = at_once {
            let when = match finding.kind {
                Kind::CrdRemoved => "when the rollback deletes the definition: its objects go with it",
                _ => "when the new definition is applied",
            };
            (when.to_owned(), finding)
        } else if let Some(finding) = findings
            .iter()
            .find(|finding| finding.direction == Direction::Forward && finding.class == Class::DataLoss)
        {
            (
                "at the first write of each object after the upgrade".to_owned(),
                *finding,
            )
        } else {
            let finding = findings
                .iter()
                .find(|finding| finding.direction == Direction::Backward)?;
            let places: Vec<&str> = findings
                .iter()
                .filter(|finding| finding.direction == Direction::Backward)
                .map(|finding| finding.path.as_str())
                .collect();
            let mut named = places.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            if places.len() > 5 {
                let _ = write!(named, " and {} more", places.len() - 5);
            }
            (format!("at the first object that uses {named}"), *finding)
        };
        Some(PointOfNoReturn {
            crd: crd.to_owned(),
            when,
            because: format!("{} {}: {}", why.kind.id(), why.path, why.class.words()),
        })
    };
    by_crd.into_iter().filter_map(point).collect()
}
