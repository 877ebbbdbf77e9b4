//! Collects findings while two definitions are walked, and knows where the walk is.

use std::fmt::{Display, Write as _};

use super::{
    choices::Fuel,
    filled::{Above, Turn},
    finding::{Class, Direction, Finding, Hurt, Impact},
    kind::Kind,
    said::{Around, Reader, Said},
    schema::Schema,
    server::{Ratcheting, ServerVersion},
};

/// More findings than anybody reads; a hostile pair must not fill the memory.
const MAX_FINDINGS: usize = 5_000;
/// The same for their texts, which may be as long as the definition.
const MAX_BYTES: usize = 4 << 20;
/// Longer texts are cut in reports; the fingerprint is made of the whole.
const MAX_TEXT: usize = 300;

#[derive(Clone, Copy)]
pub enum Step<'a> {
    Field(&'a str),
    /// Every entry of a list.
    Items,
    /// Every value of a map.
    Values,
}

pub struct Sink<'a> {
    findings: Vec<Finding>,
    direction: Direction,
    server: Option<ServerVersion>,
    crd: &'a str,
    version: Option<&'a str>,
    steps: Vec<Step<'a>>,
    around: Around<'a>,
    above: Above<'a>,
    /// How deep the schemas are of which a schema around says something new.
    held: Vec<usize>,
    /// For findings that stop somebody, and for all others: a flood of harmless ones must not hide what does harm.
    harmful: Room,
    harmless: Room,
    /// There was no room for the last one.
    dropped: bool,
    /// Findings of this kind are not written down, only counted.
    pub untold: Option<(Kind, usize)>,
    /// The new server drops `status` from objects that are made anew.
    pub drops_status: bool,
    /// Where somebody wants to know: places that were free, and whose schema drops what is in values of another type.
    pub emptied: Option<Vec<String>>,
}

/// What was found until now.
pub struct Mark {
    findings: usize,
    harmful: Room,
    harmless: Room,
    untold: Option<(Kind, usize)>,
}

/// How many more findings are taken.
#[derive(Clone, Copy)]
struct Room {
    findings: usize,
    bytes: usize,
    /// So many were not.
    cut: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            findings: MAX_FINDINGS,
            bytes: MAX_BYTES,
            cut: 0,
        }
    }
}

impl<'a> Sink<'a> {
    pub fn new(crd: &'a str, direction: Direction, server: Option<ServerVersion>) -> Self {
        Self {
            findings: Vec::new(),
            direction,
            server,
            crd,
            version: None,
            steps: Vec::new(),
            around: Around::default(),
            above: Above::default(),
            held: Vec::new(),
            harmful: Room::default(),
            harmless: Room::default(),
            dropped: false,
            untold: None,
            drops_status: false,
            emptied: None,
        }
    }

    /// Another one for the same server and direction.
    pub fn beside(&self) -> Self {
        Self::new(self.crd, self.direction, self.server)
    }

    /// All that was found, and that there was more.
    pub fn finish(mut self) -> Vec<Finding> {
        for (kind, cut) in [
            (Kind::TooMany, self.harmful.cut),
            (Kind::TooManyHarmless, self.harmless.cut),
        ] {
            if cut > 0 {
                (self.harmful, self.harmless) = Default::default();
                self.add_at(kind, "", "", format!("{cut} more are not written down"));
            }
        }
        self.findings
    }

    /// Runs `inside` with findings that belong to this version.
    pub fn in_version(&mut self, version: &'a str, inside: impl FnOnce(&mut Self)) {
        self.version = Some(version);
        inside(self);
        self.version = None;
        self.drops_status = false;
    }

    pub fn enter(&mut self, step: Step<'a>) {
        self.steps.push(step);
    }

    pub fn leave(&mut self) {
        self.steps.pop();
    }

    /// The walk is inside these schemas, at the place where it is now, until it has [come out](Self::come_out).
    pub fn go_into(&mut self, old: &'a Schema, new: &'a Schema) {
        self.around.enter(self.steps.len(), old);
        self.above.enter(self.steps.len(), new);
        if new.is_held_anew(Some(old)) {
            self.held.push(self.steps.len());
        }
    }

    pub fn come_out(&mut self) {
        self.around.leave(self.steps.len());
        self.above.leave(self.steps.len());
        self.held.pop_if(|depth| *depth == self.steps.len());
    }

    /// Whether new combinations, of the object at this place or around it, may mind what becomes of its field.
    pub fn minds(&self, turn: Turn, field: &str, fuel: &mut Fuel) -> bool {
        self.above.minds(turn, &self.steps, field, fuel)
    }

    /// Whether there are new combinations, here or around, that may mind something.
    pub fn is_combined(&self) -> bool {
        !self.above.is_empty()
    }

    /// What rules and combinations of the old schemas around say of the values here.
    pub fn said(&mut self, reader: &mut Reader) -> Option<Said> {
        let rules = self.may_be(ServerVersion::evaluates_rules);
        self.around.here(&self.steps, rules, reader)
    }

    pub fn mark(&self) -> Mark {
        Mark {
            findings: self.findings.len(),
            harmful: self.harmful,
            harmless: self.harmless,
            untold: self.untold,
        }
    }

    /// Whether something was found since that may stop somebody.
    pub fn has_harm_since(&self, mark: &Mark) -> bool {
        self.harmful.findings < mark.harmful.findings
    }

    /// Says of all that was found since: objects that come from the API have the old defaults, and do not tell.
    pub fn veil_since(&mut self, mark: &Mark) {
        let found = self.findings.get_mut(mark.findings..).unwrap_or_default();
        for finding in found {
            finding.veiled = true;
        }
    }

    /// Says of all that was found since and may stop somebody: stored objects are spared from it.
    pub fn spares_stored_since(&mut self, mark: &Mark, sentence: &str) {
        let found = self.findings.get_mut(mark.findings..).unwrap_or_default();
        for finding in found {
            if finding.impact <= Impact::Undecidable {
                finding.class = finding.class.max(Class::Clients);
                let why = finding.why.to_mut();
                why.push(' ');
                why.push_str(sentence);
            }
        }
    }

    /// As if nothing was found since.
    pub fn back_to(&mut self, mark: Mark) {
        self.findings.truncate(mark.findings);
        (self.harmful, self.harmless) = (mark.harmful, mark.harmless);
        self.untold = mark.untold;
        self.dropped = true;
    }

    /// Whether there may be a server that does this. Without a version it may be any.
    pub fn may_be(&self, does: impl FnOnce(ServerVersion) -> bool) -> bool {
        self.server.is_none_or(does)
    }

    /// Whether this server, or else every one, checks the format.
    pub fn is_sure_to_check(&self, format: &str) -> bool {
        let oldest = ServerVersion { major: 1, minor: 0 };
        self.server.unwrap_or(oldest).checks_format(format)
    }

    pub fn path(&self) -> String {
        render(&self.steps)
    }

    /// A finding at the place where the walk is. What it says is written only if there is room for it.
    pub fn add(&mut self, kind: Kind, before: impl Display, after: impl Display) {
        // A path may be long, and is not written for nothing.
        if self.has_room(kind) {
            let path = self.path();
            self.add_at(kind, path, before, after);
        }
    }

    fn has_room(&mut self, kind: Kind) -> bool {
        if let Some((untold, count)) = &mut self.untold
            && *untold == kind
        {
            *count += 1;
            self.dropped = true;
            return false;
        }
        let room = self.room(kind);
        let has_room = room.findings > 0 && room.bytes > 0;
        room.cut += usize::from(!has_room);
        self.dropped = !has_room;
        has_room
    }

    fn room(&mut self, kind: Kind) -> &mut Room {
        if kind.meaning().impact <= Impact::Undecidable {
            &mut self.harmful
        } else {
            &mut self.harmless
        }
    }

    /// A value of another type loses what is in it at a child of that place.
    pub fn empties(&mut self, step: Step<'a>) {
        self.enter(step);
        let path = self.path();
        self.leave();
        if let Some(emptied) = &mut self.emptied
            && emptied.len() < MAX_FINDINGS
        {
            emptied.push(path);
        }
    }

    /// A finding at a child of that place.
    pub fn add_child(&mut self, kind: Kind, step: Step<'a>, before: impl Display, after: impl Display) {
        self.enter(step);
        self.add(kind, before, after);
        self.leave();
    }

    pub fn add_at(&mut self, kind: Kind, path: impl Display, before: impl Display, after: impl Display) {
        if !self.has_room(kind) {
            return;
        }
        let meaning = kind.meaning();
        let mut finding = Finding {
            fingerprint: String::new(),
            kind,
            class: meaning.class,
            impact: meaning.impact,
            direction: self.direction,
            crd: self.crd.to_owned(),
            version: self.version.map(str::to_owned),
            path: path.to_string(),
            before: before.to_string(),
            after: after.to_string(),
            why: meaning.why.into(),
            affects: meaning.affects,
            action: meaning.action,
            undecidable: None,
            ratcheted: false,
            veiled: false,
            hurt: None,
            waiver: None,
        };
        finding.print_over();
        let room = self.room(kind);
        room.findings -= 1;
        let bytes = finding.path.len() + finding.before.len() + finding.after.len();
        room.bytes = room.bytes.saturating_sub(bytes);
        finding.before = cut(finding.before);
        finding.after = cut(finding.after);
        if meaning.ratchets && !self.is_of_the_whole(kind) {
            self.ratchet(&mut finding);
        }
        self.findings.push(finding);
    }

    /// Says of the last finding that it cannot be decided.
    pub fn undecidable(&mut self, reason: impl Into<String>) {
        if let Some(last) = self.last() {
            last.impact = Impact::Undecidable;
            last.undecidable = Some(reason.into());
        }
    }

    /// Says of the last finding that it is sure to break something.
    pub fn breaking(&mut self) {
        if let Some(last) = self.last() {
            last.impact = Impact::Breaking;
        }
    }

    /// Says of the last finding how many objects it hurts.
    pub fn hurts(&mut self, hurt: Hurt) {
        if let Some(last) = self.last() {
            last.hurt = Some(hurt);
        }
    }

    /// Says what the words of the last finding only count, or leave out: a waiver of it is none of another one.
    pub fn stands_for(&mut self, content: impl FnOnce() -> u64) {
        if let Some(last) = self.last() {
            last.stand_for(content());
        }
    }

    /// Says of the last finding that a server spares stored objects, if it does so at all.
    pub fn ratcheted(&mut self) {
        if !self.dropped
            && let Some(mut last) = self.findings.pop()
        {
            self.ratchet(&mut last);
            self.findings.push(last);
        }
    }

    /// Adds a sentence to the last finding.
    pub fn note(&mut self, sentence: &str) {
        if let Some(last) = self.last() {
            let why = last.why.to_mut();
            why.push(' ');
            why.push_str(sentence);
        }
    }

    fn last(&mut self) -> Option<&mut Finding> {
        self.findings.last_mut().filter(|_| !self.dropped)
    }

    /// Whether it is the whole object that is refused, which no write leaves alone. A field is missing in its parent.
    fn is_of_the_whole(&self, kind: Kind) -> bool {
        // An error of the whole object's `allOf` is one of the whole object, however deep the value is.
        if self.held.first() == Some(&1) {
            return true;
        }
        match kind {
            Kind::RequiredAdded | Kind::NullRejected => self.steps.len() < 2,
            _ => self.steps.is_empty(),
        }
    }

    /// A server that ratchets spares stored objects until the value itself is changed; new objects are refused as ever.
    fn ratchet(&self, finding: &mut Finding) {
        let Some(server) = self.server else { return };
        let unless = match server.ratcheting() {
            Ratcheting::No => return,
            Ratcheting::ByDefault => ", unless that is switched off there",
            Ratcheting::Always => "",
        };
        finding.ratcheted = true;
        finding.class = Class::Clients;
        let what = match self.held.first().and_then(|depth| self.steps.get(..depth - 1)) {
            Some(around) => format!("all of {}", render(around)),
            None => "this value".to_owned(),
        };
        let _ = write!(
            finding.why.to_mut(),
            " A {server} server lets stored objects pass as long as {what} is left alone{unless}; new objects, and changes of it, are refused."
        );
    }
}

fn cut(text: String) -> String {
    if text.len() <= MAX_TEXT || text.chars().count() <= MAX_TEXT {
        return text;
    }
    let mut short: String = text.chars().take(MAX_TEXT).collect();
    short.push('…');
    short
}

/// `.spec.endpoints[*].headers.*`: a list's entries are `[*]`, a map's values `.*`.
pub fn render(steps: &[Step<'_>]) -> String {
    let mut path = String::new();
    for step in steps {
        write_step(&mut path, *step);
    }
    if path.is_empty() {
        path.push('.');
    }
    path
}

pub fn write_step(path: &mut String, step: Step<'_>) {
    match step {
        Step::Items => path.push_str("[*]"),
        Step::Values => path.push_str(".*"),
        Step::Field(name) if is_plain(name) => {
            path.push('.');
            path.push_str(name);
        }
        Step::Field(name) => {
            let _ = write!(path, "[{name:?}]");
        }
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '$'))
}
