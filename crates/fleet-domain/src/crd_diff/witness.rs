//! Looks for an object that the old schema takes and a new rule refuses. One that is found shows that the rule breaks
//! something. That none is found shows something only where the values that were tried are all that the rule can tell
//! apart; otherwise nothing is claimed.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    candidates::{MAX_DEPTH, MAX_VALUES, Maker, Place, Plan, cost, whole},
    meaning,
    object::{Checker, cel::Due, filled_in, keeps_all, prune},
    pattern::Budget,
    reads::{self, Reading, Reads},
    restated,
    schema::{Rule, Schema},
    sink::{Step, render},
};

/// How much is tried for one pair of definitions: about steps of rules.
const MAX_WORK: u64 = 250_000;
/// What it takes to try one value, beside the rules.
const TRY: u64 = 20;
/// And for each of its fields; more where some of them are filled in, and the value is copied for that.
const FIELD: u64 = 2;
const FILLED_FIELD: u64 = 8;
/// What it takes to find one that is tried.
const PLAN: u64 = 4;
/// So many fields that are missing are looked into by themselves.
const MAX_LACKING: u32 = 64;
/// How many values are altered until the old schema takes them.
const MAX_REPAIRS: u32 = 16;
/// So many of the old rules are looked at beside the new one.
const MAX_BESIDE: usize = 12;
/// And so many of the new ones, for one that was kept.
const MAX_KEPT: usize = 1_000;
/// More places are not kept in mind one by one.
const MAX_LOST: usize = 256;
/// Among more schemas, nobody looks for defaults that differ.
const MAX_LOOKED_AT: usize = 20_000;
/// A longer example helps nobody.
const MAX_EXAMPLE: usize = 200;

/// Tries values on rules, within bounds over the whole of one pair of definitions.
pub struct Model {
    checker: Checker,
    patterns: Budget,
    left: u64,
    lacking: u32,
    /// What rules and combinations spoke of that went from schemas around this place: they may have refused what is
    /// refused here now.
    lost_around: Vec<String>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            checker: Checker::default(),
            patterns: Budget::default(),
            left: MAX_WORK,
            lacking: MAX_LACKING,
            lost_around: Vec::new(),
        }
    }
}

/// Two schemas at one place.
#[derive(Clone, Copy)]
pub struct Pair<'s> {
    pub old: &'s Schema,
    pub new: &'s Schema,
    /// They are of the whole object.
    pub root: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// No value that the old schema took breaks the rule.
    Safe,
    /// The old schema takes this one, and the rule refuses it.
    Refuses(String),
    /// The same for one that leaves fields to their defaults; as it was stored, it passes.
    RefusesAnew(String),
    /// None of those that were tried breaks it, and there are others.
    NotFound,
    /// There was nothing to try, or the rule cannot be evaluated.
    Unknown,
}

impl Model {
    /// One that tries nothing.
    pub fn idle() -> Self {
        Self {
            left: 0,
            ..Self::default()
        }
    }

    /// Whether values that the old schema took break the rule of the new one.
    pub fn judge(&mut self, pair: Pair<'_>, rule: &Rule) -> Answer {
        let Some(reading) = self.read(rule, pair.new).filter(|reading| !reading.cut) else {
            return Answer::Unknown;
        };
        let reads = reading.reads.clone();
        let mut repairs = 0;
        let Question {
            values,
            beside,
            choices,
        } = self.question(pair, reading);
        let mut answer = if values.complete {
            Answer::Safe
        } else {
            Answer::NotFound
        };
        let (mut met, mut open, mut later) = (false, false, None);
        for number in 0..values.len() {
            if self.left == 0 {
                answer = Answer::NotFound;
                break;
            }
            let value = &values.nth(number);
            let stored = filled_in(pair.old, value);
            let of_field = match stored {
                Cow::Borrowed(_) => FIELD,
                Cow::Owned(_) => FILLED_FIELD,
            };
            let stored = &*stored;
            let costs = cost(pair.old, stored) + cost(pair.new, stored);
            self.left = self.left.saturating_sub(values.cost() + TRY + of_field * costs);
            if !self.may_be(pair, stored, &beside, choices.as_ref()) {
                continue;
            }
            let met_as_stored = self.meets(rule, pair, stored);
            // Without what the old defaults filled in; mostly there is nothing of that kind.
            let anew = if stored == value {
                met_as_stored
            } else {
                self.meets(rule, pair, value)
            };
            match met_as_stored {
                Some(true) if anew != Some(true) => {
                    answer = Answer::NotFound;
                    if anew == Some(false) && later.is_none() && self.surely_is(pair, stored) {
                        later = Some(example(value));
                    }
                }
                Some(true) => met = true,
                Some(false) if self.surely_is(pair, stored) => return Answer::Refuses(example(stored)),
                Some(false) => {
                    answer = Answer::NotFound;
                    repairs += 1;
                    if repairs < MAX_REPAIRS
                        && let Some(better) = self.repaired(pair, value, &reads)
                        && self.meets(rule, pair, &better) == Some(false)
                        && self.surely_is(pair, &better)
                    {
                        return Answer::Refuses(example(&better));
                    }
                }
                None => (answer, open) = (Answer::NotFound, true),
            }
        }
        match (answer, later) {
            (Answer::NotFound, Some(example)) => Answer::RefusesAnew(example),
            (Answer::NotFound, None) if open || !met => Answer::Unknown,
            (answer, _) => answer,
        }
    }

    /// An object that the old schema takes and that leaves this field out, or has a null in it; and that the new one
    /// refuses for having too few fields, or none of those that a combination asks for.
    pub fn lacking(&mut self, pair: Pair<'_>, name: &str, null: bool) -> Option<String> {
        self.lacking = self.lacking.checked_sub(1)?;
        let mut value = self.maker(&[]).sample(pair.old, MAX_DEPTH)?;
        let fields = value.as_object_mut()?;
        if null {
            fields.insert(name.to_owned(), Value::Null);
        } else {
            fields.remove(name);
        }
        if pair.root {
            for (name, own) in whole() {
                fields.entry(name).or_insert(own);
            }
        }
        let stored = filled_in(pair.old, &value);
        let costs = cost(pair.old, &stored) + cost(pair.new, &stored);
        self.left = self.left.saturating_sub(TRY + FILLED_FIELD * costs);
        if self.left == 0 || !self.surely_is(pair, &stored) {
            return None;
        }
        let mut after = value.clone();
        prune(pair.new, &mut after, pair.root);
        let after = filled_in(pair.new, &after);
        let mut alone = Schema::empty();
        alone.limits.fields = pair.new.limits.fields;
        alone.choices = (*pair.new.choices).clone().into();
        let doubts = self.checker.skipped_patterns;
        let refused = !self.checker.accepts(&alone, &after) && self.checker.skipped_patterns == doubts;
        refused.then(|| example(&value))
    }

    /// Whether the rule only says what the old limits said already.
    pub fn is_restated(&mut self, pair: Pair<'_>, rule: &Rule) -> bool {
        self.left = self.left.saturating_sub(TRY + rule.source.cost());
        if self.left == 0 {
            return false;
        }
        let program = rule.source.program();
        program.is_ok_and(|program| restated::is_met(&program.expr, pair.old, pair.new, &mut self.patterns))
    }

    /// Whether the defaults of something that the rule looks at are others than before.
    pub fn minds_defaults(&mut self, pair: Pair<'_>, rule: &Rule) -> bool {
        // When nobody looks any more, it may be so wherever something changed.
        if self.left == 0 {
            return pair.old != pair.new;
        }
        let reads = match self.read(rule, pair.new) {
            Some(reading) if !reading.cut => reading.reads,
            _ => everything(),
        };
        let mut differing = Differing { left: MAX_LOOKED_AT };
        let differs = differing.on_the_way(Some(pair.old), Some(pair.new), &reads);
        self.left = self.left.saturating_sub((MAX_LOOKED_AT - differing.left) as u64);
        differs
    }

    /// The walk goes into a schema at this place; what it lost is kept in mind until it [leaves](Self::leave).
    pub fn enter(&mut self, old: &Schema, new: &Schema, path: impl FnOnce() -> String) -> usize {
        let before = self.lost_around.len();
        let choices = !old.choices.is_empty() && old.choices != new.choices;
        let rules = !old.rules.is_empty() && old.rules != new.rules;
        if !choices && !rules {
            return before;
        }
        let path = path();
        if choices {
            self.lost_around.push(path.clone());
        }
        for rule in old.rules.iter().take(MAX_BESIDE) {
            let went = new
                .rules
                .iter()
                .take(MAX_KEPT)
                .all(|kept| kept.expression != rule.expression);
            if rules && went {
                match self.read(rule, old).filter(|reading| !reading.cut) {
                    Some(reading) => paths(&reading.reads, &path, &mut self.lost_around),
                    None => self.lost_around.push(path.clone()),
                }
            }
        }
        if rules && (old.rules.len() > MAX_BESIDE || self.lost_around.len() > MAX_LOST) {
            self.lost_around.truncate(before);
            self.lost_around.push(path);
        }
        before
    }

    pub fn leave(&mut self, before: usize) {
        self.lost_around.truncate(before);
    }

    /// Whether something that went from around may have spoken of this place.
    pub fn may_have_lost(&self, path: &str) -> bool {
        // Rules name the keys of a map, and the walk does not.
        let path = path.split(".*").next().unwrap_or(path);
        let mut lost = self.lost_around.iter();
        lost.any(|lost| path.starts_with(lost.as_str()) || lost.starts_with(path))
    }

    /// What a rule means by its text, while there is room to look.
    pub fn meaning(&mut self, rule: &Rule) -> Option<meaning::Expr> {
        // It is written out part by part.
        self.left = self
            .left
            .saturating_sub(rule.source.cost() + rule.source.text.len() as u64 / 4);
        (self.left > 0).then(|| meaning::of(&rule.source))
    }

    fn read(&mut self, rule: &Rule, schema: &Schema) -> Option<Reading> {
        self.left = self.left.saturating_sub(TRY + rule.source.cost());
        if self.left == 0 {
            return None;
        }
        let program = rule.source.program().ok()?;
        Some(reads::of(&program.expr, schema))
    }

    /// What to try: the rule's own fields first, then those that old rules and combinations tie them to.
    fn question<'s>(&mut self, pair: Pair<'s>, reading: Reading) -> Question<'s> {
        let Reading {
            mut reads,
            mut constants,
            ..
        } = reading;
        let mut question = Question {
            values: self.values(pair, &reads, &constants),
            beside: Vec::new(),
            choices: None,
        };
        if let Some(tied) = reads::tied(&pair.old.choices) {
            let mut more = reads.clone();
            more.merge(&tied);
            let values = self.values(pair, &more, &constants);
            if values.len() < MAX_VALUES && (values.complete || !question.values.complete) {
                let mut alone = Schema::empty();
                alone.choices = (*pair.old.choices).clone().into();
                reads = more;
                question.values = values;
                question.choices = Some(alone);
            }
        }
        let mut others: Vec<(&Rule, Reading)> = Vec::new();
        for rule in pair
            .old
            .rules
            .iter()
            .filter(|rule| !rule.transition)
            .take(MAX_BESIDE)
        {
            others.extend(self.read(rule, pair.old).map(|reading| (rule, reading)));
        }
        others.retain(|(_, reading)| !reading.cut);
        others.sort_by_key(|(_, reading)| !reading.reads.meets(&reads));
        for (rule, reading) in others {
            let mut more = reads.clone();
            more.merge(&reading.reads);
            let all: Vec<Value> = constants.iter().chain(&reading.constants).cloned().collect();
            let values = self.values(pair, &more, &all);
            if values.len() < MAX_VALUES && (values.complete || !question.values.complete) {
                reads = more;
                constants = all;
                question.values = values;
                question.beside.push(rule);
            }
        }
        question
    }

    fn values(&mut self, pair: Pair<'_>, reads: &Reads, constants: &[Value]) -> Plan {
        let plan = self.maker(constants).plan(place(pair), reads);
        self.left = self.left.saturating_sub(PLAN * plan.weight());
        plan
    }

    /// A value that the old schema is sure to take, with the same in all that the rule looks at.
    fn repaired(&mut self, pair: Pair<'_>, value: &Value, reads: &Reads) -> Option<Value> {
        let value = self.maker(&[]).repaired(place(pair), value, reads)?;
        Some(filled_in(pair.old, &value).into_owned())
    }

    fn maker<'m>(&'m mut self, constants: &'m [Value]) -> Maker<'m> {
        Maker {
            checker: &mut self.checker,
            patterns: &mut self.patterns,
            constants,
            left: &mut self.left,
        }
    }

    /// Whether the old rules and combinations that were looked into do not refuse it.
    fn may_be(&mut self, pair: Pair<'_>, stored: &Value, beside: &[&Rule], choices: Option<&Schema>) -> bool {
        let due = Due {
            schema: pair.old,
            value: stored,
            place: ".",
            root: pair.root,
        };
        let before = self.checker.spent();
        let rules = self.checker.rules();
        let refused = beside.iter().any(|rule| rules.meets(rule, &due) == Some(false));
        self.left = self.left.saturating_sub(self.checker.spent() - before);
        !refused && choices.is_none_or(|choices| self.checker.accepts(choices, stored))
    }

    /// Whether the old schema takes it, with all that it says.
    fn surely_is(&mut self, pair: Pair<'_>, stored: &Value) -> bool {
        let unsure = |checker: &Checker| {
            let rules = checker.undecided().values().map(|undecided| undecided.times);
            rules.sum::<u64>() + checker.skipped_patterns
        };
        // What was decided when the object came is not known: it had no value before.
        if pair.old.rules.iter().any(|rule| rule.optional_old_self) {
            return false;
        }
        let (doubts, spent) = (unsure(&self.checker), self.checker.spent());
        let violations = if pair.root {
            self.checker.check(pair.old, stored)
        } else {
            self.checker.check_part(pair.old, stored)
        };
        self.left = self.left.saturating_sub(self.checker.spent() - spent);
        violations.is_empty() && unsure(&self.checker) == doubts
    }

    /// Whether a stored value meets the rule when the new schema has pruned it and filled it in.
    fn meets(&mut self, rule: &Rule, pair: Pair<'_>, value: &Value) -> Option<bool> {
        let mut kept = Cow::Borrowed(value);
        if !keeps_all(pair.new, value, pair.root) {
            prune(pair.new, kept.to_mut(), pair.root);
        }
        let value = filled_in(pair.new, &kept);
        let due = Due {
            schema: pair.new,
            value: &value,
            place: ".",
            root: pair.root,
        };
        let before = self.checker.spent();
        let met = self.checker.rules().meets(rule, &due);
        self.left = self.left.saturating_sub(self.checker.spent() - before);
        met
    }
}

/// What is tried, and what the old schema says of it that is understood.
struct Question<'s> {
    values: Plan,
    beside: Vec<&'s Rule>,
    choices: Option<Schema>,
}

fn place(pair: Pair<'_>) -> Place<'_> {
    Place {
        old: pair.old,
        new: Some(pair.new),
        root: pair.root,
        top: true,
    }
}

/// The places that a rule looks at.
fn paths(reads: &Reads, path: &str, all: &mut Vec<String>) {
    // The root is written with a dot of its own.
    let base = if path == "." { "" } else { path };
    for (name, inner) in &reads.fields {
        paths(inner, &format!("{base}{}", render(&[Step::Field(name)])), all);
    }
    if let Some(inner) = &reads.items {
        paths(inner, &format!("{base}{}", render(&[Step::Items])), all);
    }
    if reads.opaque || (reads.fields.is_empty() && reads.items.is_none()) {
        all.push(path.to_owned());
    }
}

fn example(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_EXAMPLE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn everything() -> Reads {
    Reads {
        opaque: true,
        ..Reads::default()
    }
}

/// Looks for defaults that differ, so far only.
struct Differing {
    left: usize,
}

impl Differing {
    /// Whether a default differs on the way to something that is looked at, or there is too much to look at.
    fn on_the_way(&mut self, old: Option<&Schema>, new: Option<&Schema>, reads: &Reads) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return true;
        }
        let nothing = Schema::empty();
        let (Some(old), Some(new)) = (old.or(Some(&nothing)), new) else {
            return false;
        };
        if old == new {
            return false;
        }
        let all = everything();
        let items = if reads.opaque {
            Some(&all)
        } else {
            reads.items.as_deref()
        };
        let values = (reads.opaque || !reads.fields.is_empty()).then_some(&all);
        items.is_some_and(|inner| self.on_the_way(old.items.as_deref(), new.items.as_deref(), inner))
            || values.is_some_and(|inner| {
                self.on_the_way(old.additional.as_deref(), new.additional.as_deref(), inner)
            })
            || if reads.opaque {
                let mut names = new.properties.keys().chain(old.properties.keys());
                names.any(|name| self.of_field(old, new, name, &all))
            } else {
                let mut fields = reads.fields.iter();
                fields.any(|(name, inner)| self.of_field(old, new, name, inner))
            }
    }

    fn of_field(&mut self, old: &Schema, new: &Schema, name: &str, reads: &Reads) -> bool {
        let (before, after) = (old.properties.get(name), new.properties.get(name));
        let filled_in = before.and_then(|before| before.default.as_deref());
        // In the place of a null too, as long as there may be none.
        let null_stays = filled_in.is_some()
            && !before.is_some_and(|field| field.nullable)
            && after.is_some_and(|field| field.nullable);
        null_stays
            || filled_in != after.and_then(|after| after.default.as_deref())
            || self.on_the_way(before, after, reads)
    }
}
