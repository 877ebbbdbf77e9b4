//! What the new schemas would do to objects that exist: counts, and a few by name. Objects are put to it one by one, so
//! that nothing has to be held.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::Serialize;
use serde_json::Value;

use super::{
    crd::{Crd, Version},
    finding::{Class, Direction, Finding, Hurt, Impact},
    kind::Kind,
    object::{self, Checker, Pruned, Violation},
    report::Report,
    schema::Schema,
    server::{Ratcheting, ServerVersion},
    sink::{Sink, Step, render},
};

/// How many objects are named; the others are counted.
const NAMED_OBJECTS: usize = 50;
/// How many places of undecided rules are named.
const NAMED_PLACES: usize = 5;
/// How many reasons are given for one object.
const NAMED_REASONS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Harm {
    /// Refused at every write.
    Rejected,
    /// Refused when the value itself is changed, and when the object is made anew.
    RejectedWhenChanged,
    /// Loses fields.
    Pruned,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HurtObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub harm: Harm,
    pub reasons: Vec<String>,
}

/// What was found out for the objects of one definition at one place.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// A cluster or a folder.
    pub place: String,
    pub crd: String,
    pub version: String,
    pub checked: u64,
    pub rejected: u64,
    pub rejected_when_changed: u64,
    pub pruned: u64,
    pub objects: Vec<HurtObject>,
    /// What was not looked at, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// How many objects are hurt at each place of the schema.
    #[serde(skip)]
    places: BTreeMap<String, u64>,
    /// Where in the schema there are rules of which the objects do not tell all.
    #[serde(skip)]
    unproven_rules: BTreeSet<String>,
    /// Objects came from the API, and so with the defaults of the schema that is there.
    #[serde(skip)]
    filled_in: bool,
    /// How many are refused by the version that is stored from now on, where that is another one.
    #[serde(skip)]
    moved: Option<Moved>,
    /// Patterns were taken as met because they were not understood: it is not known where they would have refused.
    #[serde(skip)]
    skipped_patterns: bool,
}

/// What becomes of objects that are stored in another version by its name alone.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    refused: u64,
    /// Not all was looked at that the version asks for.
    open: bool,
}

/// Two versions of which one is stored in place of the other, without a webhook.
struct Move<'c> {
    from: &'c Version,
    to: &'c Version,
    checker: Checker,
    before: Checker,
}

impl<'c> Move<'c> {
    fn new(old: &'c Crd, new: &'c Crd, server: Option<ServerVersion>) -> Option<Self> {
        let (from, to) = (old.storage()?, new.storage()?);
        (from.name != to.name && !new.conversion.webhook).then(|| Self {
            from,
            to,
            checker: Checker::of(server),
            before: Checker::of(server),
        })
    }

    fn put(&mut self, value: &Value) -> Vec<Violation> {
        let mut violations = object::put_to(&mut self.checker, &self.to.schema, value).violations;
        if !violations.is_empty() {
            let before = object::put_to(&mut self.before, &self.from.schema, value).violations;
            violations.retain(|violation| !before.contains(violation));
        }
        violations
    }
}

/// Puts objects of one definition to the new one.
pub struct Prover<'c> {
    version: &'c Version,
    /// What the same schema said before; nobody is hurt by what was refused or pruned already.
    old: Option<&'c Version>,
    ratchets: bool,
    checker: Checker,
    before: Checker,
    moves: Option<Move<'c>>,
    /// Fields of which the whole object's `allOf` says something new, as they stand in a path: that is an error of the
    /// whole object, which no write leaves alone.
    held: HashSet<String>,
    /// The fields that the old schema names anywhere, as they stand in a path.
    named: HashSet<String>,
    proof: Proof,
}

impl<'c> Prover<'c> {
    /// Nothing if the new definition does not have this version.
    pub fn new(
        place: &str,
        old: Option<&'c Crd>,
        new: &'c Crd,
        version: &str,
        server: Option<ServerVersion>,
    ) -> Option<Self> {
        let version = new.version(version)?;
        let moves = old.and_then(|old| Move::new(old, new, server));
        let moves = moves.filter(|moves| moves.to.name != version.name);
        let old = old.and_then(|old| old.version(&version.name));
        let mut named = HashSet::new();
        if let Some(old) = old {
            names(&old.schema, &mut named);
        }
        let before = |name: &str| old.and_then(|old| old.schema.properties.get(name));
        let held = version.schema.properties.iter();
        let held = held.filter(|(name, field)| field.is_held_anew(before(name)));
        Some(Self {
            version,
            old,
            named,
            held: held.map(|(name, _)| render(&[Step::Field(name)])).collect(),
            ratchets: server.is_some_and(|server| server.ratcheting() != Ratcheting::No),
            checker: Checker::of(server),
            before: Checker::of(server),
            proof: Proof {
                filled_in: false,
                moved: moves.as_ref().map(|_| Moved::default()),
                place: place.to_owned(),
                crd: new.name.clone(),
                version: version.name.clone(),
                checked: 0,
                rejected: 0,
                rejected_when_changed: 0,
                pruned: 0,
                objects: Vec::new(),
                notes: Vec::new(),
                places: BTreeMap::new(),
                unproven_rules: BTreeSet::new(),
                skipped_patterns: false,
            },
            moves,
        })
    }

    pub fn put(&mut self, value: &Value) {
        self.proof.checked += 1;
        // Only what a server has stored has one.
        self.proof.filled_in |= value["metadata"]["uid"].is_string();
        let mut outcome = object::put_to(&mut self.checker, &self.version.schema, value);
        if let Some(old) = self.old
            && !outcome.is_fine()
        {
            let before = object::put_to(&mut self.before, &old.schema, value);
            // Of one object there may be very many.
            let known: HashSet<_> = before.pruned.into_iter().collect();
            outcome.pruned.retain(|pruned| !known.contains(pruned));
            outcome
                .violations
                .retain(|violation| !before.violations.contains(violation));
        }
        let moved = self
            .moves
            .as_mut()
            .map(|moves| moves.put(value))
            .unwrap_or_default();
        if outcome.is_fine() && moved.is_empty() {
            return;
        }
        if let Some(known) = &mut self.proof.moved {
            known.refused += u64::from(!moved.is_empty());
        }
        let is_held = |violation: &Violation| {
            let first = steps(&violation.place).first().copied();
            first.is_some_and(|first| self.held.contains(first))
        };
        let passes = |violation: &Violation| {
            violation.spared || (self.ratchets && violation.ratchets && !is_held(violation))
        };
        let all = || outcome.violations.iter().chain(&moved);
        let harm = if !all().all(passes) {
            self.proof.rejected += 1;
            Harm::Rejected
        } else if all().next().is_some() {
            self.proof.rejected_when_changed += 1;
            Harm::RejectedWhenChanged
        } else {
            Harm::Pruned
        };
        if !outcome.pruned.is_empty() {
            self.proof.pruned += 1;
        }
        let lost = outcome.pruned.iter().map(|pruned| self.place(pruned));
        let places: BTreeSet<&str> = outcome
            .violations
            .iter()
            .map(|violation| violation.place.as_str())
            .chain(lost)
            .collect();
        for place in places {
            *self.proof.places.entry(place.to_owned()).or_default() += 1;
        }
        if self.proof.objects.len() < NAMED_OBJECTS {
            let refused = outcome
                .violations
                .iter()
                .map(|violation| format!("{} {}", violation.path, violation.message));
            let stored_as = self.moves.as_ref().map_or("", |moves| moves.to.name.as_str());
            let moved = moved
                .iter()
                .map(|violation| format!("as {stored_as}: {} {}", violation.path, violation.message));
            let lost = outcome
                .pruned
                .iter()
                .map(|pruned| format!("{} is pruned", pruned.path));
            let metadata = |field: &str| value["metadata"][field].as_str().map(str::to_owned);
            self.proof.objects.push(HurtObject {
                namespace: metadata("namespace"),
                name: metadata("name").unwrap_or_default(),
                harm,
                reasons: refused.chain(lost).chain(moved).take(NAMED_REASONS).collect(),
            });
        }
    }

    /// A field that no schema names is told at what it is in. Objects may have any number of such names, and what is kept
    /// is bounded by the schemas.
    fn place<'p>(&self, pruned: &'p Pruned) -> &'p str {
        let name = steps(&pruned.place).pop().unwrap_or_default();
        if self.named.contains(name) {
            return &pruned.place;
        }
        match &pruned.place[..pruned.place.len() - name.len()] {
            "" => ".",
            around => around,
        }
    }

    pub fn finish(mut self) -> Proof {
        let undecided = self.checker.undecided();
        for (place, why) in undecided.iter().take(NAMED_PLACES) {
            self.proof.notes.push(format!(
                "a CEL rule at {place} was not decided ({}; {} times): objects that break it are not counted",
                why.reason, why.times
            ));
        }
        if undecided.len() > NAMED_PLACES {
            self.proof.notes.push(format!(
                "nor were CEL rules at {} more places",
                undecided.len() - NAMED_PLACES
            ));
        }
        let transitions = self.checker.transitions().iter();
        self.proof.unproven_rules = undecided.keys().chain(transitions).cloned().collect();
        if let (Some(moved), Some(moves)) = (&mut self.proof.moved, &self.moves) {
            let checker = &moves.checker;
            moved.open = checker.skipped_patterns > 0
                || !checker.undecided().is_empty()
                || !checker.transitions().is_empty();
        }
        if self.checker.skipped_patterns > 0 {
            self.proof.skipped_patterns = true;
            self.proof
                .notes
                .push("some patterns were not understood, and taken as met".to_owned());
        }
        self.proof
    }
}

impl Report {
    /// Takes the proofs of all places that were to be looked at, and tells at each finding that objects can prove how many
    /// it hurts. Of definitions that are `unseen` somewhere nothing is told: no harm there was not shown. Harm that no
    /// finding tells of is one of its own.
    pub fn prove(&mut self, proofs: Vec<Proof>, unseen: &BTreeSet<String>) {
        for finding in self
            .findings
            .iter_mut()
            .filter(|finding| finding.direction == Direction::Forward && provable(finding))
        {
            let moves = finding.kind == Kind::StorageRejects;
            let concerned = |proof: &&Proof| {
                proof.crd == finding.crd
                    && if moves {
                        proof.moved.is_some()
                    } else {
                        finding.version.as_deref() == Some(proof.version.as_str())
                    }
            };
            let is_rule = matches!(
                finding.kind,
                Kind::RuleAdded | Kind::RuleChanged | Kind::DefaultUnderChoice
            );
            let is_veiled = |proof: &Proof| finding.veiled && proof.filled_in;
            let is_open = |proof: &Proof| {
                proof.skipped_patterns
                    || (is_rule && proof.unproven_rules.contains(&finding.path))
                    || is_veiled(proof)
                    || (moves && proof.moved.is_some_and(|moved| moved.open))
            };
            let mut hurt: Option<Hurt> = None;
            for proof in proofs.iter().filter(concerned) {
                let hurt = hurt.get_or_insert_default();
                hurt.checked += proof.checked;
                hurt.objects += match proof.moved {
                    Some(moved) if moves => moved.refused,
                    _ => proof.hurt_by(finding),
                };
            }
            let veiled = proofs.iter().filter(concerned).any(is_veiled);
            let open = unseen.contains(&finding.crd) || proofs.iter().filter(concerned).any(is_open);
            finding.hurt = hurt.filter(|hurt| hurt.objects > 0 || !open);
            if veiled && finding.hurt.is_none() {
                finding.why.to_mut().push_str(
                    " Objects come from the API with the old default filled in, so they do not tell which are stored without it.",
                );
            }
        }
        if self.forward.is_some() {
            self.tell_unexplained(&proofs);
        }
        self.proofs = proofs;
    }

    /// Whatever the comparison made of it, an object that is hurt is hurt.
    fn tell_unexplained(&mut self, proofs: &[Proof]) {
        let mut unexplained: BTreeMap<(&str, &str), BTreeMap<&str, Hurt>> = BTreeMap::new();
        for proof in proofs {
            let explains = |finding: &&Finding| {
                finding.direction == Direction::Forward
                    && finding.crd == proof.crd
                    && finding.impact <= Impact::Undecidable
                    && finding.hurt.is_none_or(|hurt| hurt.objects > 0)
            };
            let findings: Vec<&Finding> = self.findings.iter().filter(explains).collect();
            // It is said once for all places.
            let all_pruned = findings
                .iter()
                .any(|finding| finding.kind == Kind::PruningTurnedOn);
            let here: Vec<Vec<&str>> = findings
                .iter()
                .filter(|finding| finding.version.as_deref() == Some(proof.version.as_str()))
                .map(|finding| steps(&finding.path))
                .collect();
            for (place, objects) in &proof.places {
                let place_steps = steps(place);
                let explained = |path: &Vec<&str>| {
                    is_at_or_below(&place_steps, path) || is_at_or_below(path, &place_steps)
                };
                if !all_pruned && !here.iter().any(explained) {
                    let all = unexplained.entry((&proof.crd, &proof.version)).or_default();
                    let hurt = all.entry(place).or_default();
                    hurt.objects += objects;
                    hurt.checked += proof.checked;
                }
            }
        }
        for ((crd, version), places) in unexplained {
            let mut sink = Sink::new(crd, Direction::Forward, self.server_version);
            sink.in_version(version, |sink| {
                for (place, hurt) in places {
                    sink.add_at(
                        Kind::ObjectsHurt,
                        place,
                        "taken and kept",
                        "refused, or less than it was",
                    );
                    sink.hurts(hurt);
                }
            });
            self.findings.append(&mut sink.finish());
        }
        self.findings.sort_by(|a, b| a.order().cmp(&b.order()));
        self.judge(self.forward.is_some(), self.backward.is_some());
    }
}

/// The fields that a schema names, here and anywhere below.
fn names(schema: &Schema, all: &mut HashSet<String>) {
    for (name, field) in &schema.properties {
        all.insert(render(&[Step::Field(name)]));
        names(field, all);
    }
    let others = [&schema.additional, &schema.items];
    for child in others.into_iter().flatten() {
        names(child, all);
    }
}

impl Proof {
    /// How many objects are hurt at each place of the schema.
    pub fn places(&self) -> impl Iterator<Item = (&str, u64)> {
        self.places
            .iter()
            .map(|(place, objects)| (place.as_str(), *objects))
    }

    fn hurt_by(&self, finding: &Finding) -> u64 {
        let path = steps(&finding.path);
        // What is filled in or missing is told at the field, and refused by the object around it.
        let shows_around = matches!(
            finding.kind,
            Kind::DefaultUnderChoice | Kind::DefaultMissed | Kind::NullRejected
        );
        let hurts = |place: &str| {
            let place = steps(place);
            is_at_or_below(&place, &path) || (shows_around && is_at_or_below(&path, &place))
        };
        let at_or_inside = self.places.iter().filter(|(place, _)| hurts(place));
        // An object hurt at two places inside is one object; the largest number is sure, the sum may count twice.
        at_or_inside.map(|(_, count)| *count).max().unwrap_or(0)
    }
}

/// A path as findings write it, step by step.
fn steps(path: &str) -> Vec<&str> {
    let mut steps = Vec::new();
    let mut rest = if path == "." { "" } else { path };
    while !rest.is_empty() {
        let end = if rest.starts_with("[\"") {
            // A name in quotes, with its escapes.
            let mut escaped = false;
            let closed = rest.char_indices().skip(2).find(|(_, c)| {
                let ends = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                ends
            });
            closed.map(|(at, _)| at + 2)
        } else {
            let mut inner = rest.char_indices().skip(1);
            inner.find(|(_, c)| matches!(c, '.' | '[')).map(|(at, _)| at)
        };
        let (step, after) = rest
            .split_at_checked(end.unwrap_or(rest.len()))
            .unwrap_or((rest, ""));
        steps.push(step);
        rest = after;
    }
    steps
}

/// Where one side knows a map, and the other one a field of it, both are one place.
fn is_at_or_below(place: &[&str], path: &[&str]) -> bool {
    let same = |one: &str, other: &str| {
        one == other || (one == ".*" && other != "[*]") || (other == ".*" && one != "[*]")
    };
    place.len() >= path.len() && place.iter().zip(path).all(|(one, other)| same(one, other))
}

/// Surprises do not show in objects.
fn provable(finding: &Finding) -> bool {
    (finding.version.is_some() || finding.kind == Kind::StorageRejects)
        && matches!(
            finding.class,
            Class::DataLoss | Class::RejectsObjects | Class::Clients
        )
        && (finding.kind.meaning().class <= Class::RejectsObjects)
        && finding.kind != Kind::NotComparable
}
