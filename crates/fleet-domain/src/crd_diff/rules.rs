//! Compares CEL rules. What two expressions mean cannot be compared in general: what their text tells is said, then
//! values are tried, and the rest is said to be undecidable.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::{
    kind::Kind,
    meaning::{self, Fields, Truth},
    schema::{Rule, Schema},
    sink::Sink,
    witness::{Answer, Model, Pair},
};

/// Each new rule is compared with so many that went.
const MAX_COMPARED: usize = 16;
/// More rules at one place are not looked into.
const MAX_LOOKED_INTO: usize = 100;

pub fn compare(sink: &mut Sink<'_>, old: &Schema, new: &Schema, root: bool, model: &mut Model) {
    if new.rules.is_empty() && old.rules.is_empty() || old == new {
        return;
    }
    let mark = sink.mark();
    rules(sink, old, new, root, model);
    // What is made anew has no status, even where every stored object has one.
    let lacks_status = root && sink.drops_status && (has_status(old) || has_status(new));
    if lacks_status && new.rules != old.rules && !sink.has_harm_since(&mark) {
        sink.back_to(mark);
        let mark = sink.mark();
        rules(sink, &without_status(old), &without_status(new), root, model);
        sink.spares_stored_since(&mark, "Stored objects have a status, and new ones lack it.");
    }
}

/// Whether all stored objects have a status, as far as the schema says.
fn has_status(schema: &Schema) -> bool {
    let status = schema.properties.get("status");
    schema.required.contains("status") || status.is_some_and(|status| status.default.is_some())
}

/// The same for objects that are made anew.
fn without_status(schema: &Schema) -> Schema {
    let mut schema = schema.clone();
    schema.required.remove("status");
    if let Some(status) = schema.properties.get_mut("status") {
        status.default = None;
        status.forget();
    }
    schema.forget();
    schema
}

fn rules(sink: &mut Sink<'_>, old: &Schema, new: &Schema, root: bool, model: &mut Model) {
    // Whether one of the old rules with this expression looks at new objects too.
    let mut known: HashMap<&str, bool> = HashMap::new();
    for rule in &old.rules {
        *known.entry(&rule.expression).or_default() |= rule.optional_old_self;
    }
    let is_known = |rule: &Rule| match known.get(rule.expression.as_str()) {
        Some(optional) => !rule.optional_old_self || *optional,
        None => false,
    };
    let pair = Pair { old, new, root };
    let mut gone = Gone::new(old, new);
    let removed = gone.rules.len();
    let look = new.rules.len() <= MAX_LOOKED_INTO;
    let (mut added, mut lost) = (0, None);
    for rule in &new.rules {
        if is_known(rule) {
            kept(sink, pair, rule, look, model);
            continue;
        }
        added += 1;
        let meant = if look { model.meaning(rule) } else { None };
        let about_changes = rule.transition && !rule.optional_old_self;
        if let Some(meant) = &meant
            && meaning::truth(meant, &Stored { old, new }, &[]) == Truth::True
        {
            sink.add(Kind::Loosened, "no rule", rule.expression.as_str());
            sink.note(HARMLESS);
            continue;
        }
        if look && !rule.transition && model.is_restated(pair, rule) {
            sink.add(Kind::Loosened, "the same as a limit", rule.expression.as_str());
            sink.note(HARMLESS);
            continue;
        }
        let by_text = about_changes || !model.minds_defaults(pair, rule);
        if by_text
            && let Some(meant) = &meant
            && let Some(before) = gone.take_narrower(rule, meant, model)
        {
            sink.add(
                Kind::Loosened,
                before.expression.as_str(),
                rule.expression.as_str(),
            );
            continue;
        }
        let answer = if look && !about_changes {
            model.judge(pair, rule)
        } else {
            Answer::Unknown
        };
        let lost = *lost.get_or_insert_with(|| {
            if removed > 0
                || old.limits != new.limits
                || (old.choices != new.choices && !old.choices.is_empty())
            {
                Lost::Here
            } else if model.may_have_lost(&sink.path()) {
                Lost::Around
            } else {
                Lost::Nothing
            }
        });
        came(sink, rule, answer, gone.take_counterpart(rule), lost);
    }
    if added == 0 && removed > 0 {
        sink.add(Kind::Loosened, format!("{removed} more rules"), "dropped");
    }
}

const HARMLESS: &str = "No stored object can break the rule.";

/// Where something went that may have refused what a new rule refuses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    Nothing,
    Here,
    Around,
}

/// A rule that the old schema does not have, and what was found out about it.
fn came(sink: &mut Sink<'_>, rule: &Rule, answer: Answer, before: Option<&Rule>, lost: Lost) {
    let after = rule.expression.as_str();
    let text = before.map_or("no rule", |before| before.expression.as_str());
    let kind = if rule.transition && !rule.optional_old_self {
        Kind::TransitionRuleAdded
    } else if before.is_some() {
        Kind::RuleChanged
    } else {
        Kind::RuleAdded
    };
    match answer {
        Answer::Safe if rule.transition => {
            sink.add(Kind::TransitionRuleAdded, text, after);
            sink.note("New objects that break it are refused too.");
        }
        Answer::Safe => {
            sink.add(Kind::Loosened, text, after);
            sink.note(HARMLESS);
        }
        Answer::Refuses(example) if lost == Lost::Around => {
            sink.add(kind, text, after);
            sink.undecidable(format!(
                "the rule refuses {example}, and so may have done what went from a schema around it"
            ));
        }
        Answer::Refuses(example) => {
            sink.add(kind, text, after);
            sink.breaking();
            sink.note(&format!("For example {example}."));
        }
        Answer::RefusesAnew(example) => {
            sink.add(kind, text, after);
            sink.undecidable(format!(
                "stored objects meet it, but {example} met the old schema with its old defaults, and breaks the rule"
            ));
        }
        Answer::NotFound => {
            sink.add(kind, text, after);
            sink.undecidable("no value was found that breaks it, and not all values were tried");
        }
        Answer::Unknown if before.is_some() => {
            sink.add(kind, text, after);
            sink.undecidable("what two CEL expressions let through cannot be compared by their text");
        }
        Answer::Unknown => {
            sink.add(kind, text, after);
            if lost != Lost::Nothing && kind == Kind::RuleAdded {
                sink.undecidable(
                    "something else that refused values went, and may have refused what the rule refuses",
                );
            }
        }
    }
}

/// A rule that the old schema has too: it may mind what defaults fill in now.
fn kept(sink: &mut Sink<'_>, pair: Pair<'_>, rule: &Rule, look: bool, model: &mut Model) {
    let about_changes = rule.transition && !rule.optional_old_self;
    if about_changes || !model.minds_defaults(pair, rule) {
        return;
    }
    let answer = if look {
        model.judge(pair, rule)
    } else {
        Answer::Unknown
    };
    if answer == Answer::Safe {
        return;
    }
    sink.add(
        Kind::DefaultUnderChoice,
        "other defaults",
        rule.expression.as_str(),
    );
    match answer {
        Answer::Refuses(example) => {
            sink.breaking();
            sink.note(&format!("For example {example}, with its defaults."));
        }
        Answer::RefusesAnew(example) => sink.undecidable(format!(
            "stored objects meet it, but {example} met the rule with the old defaults, and breaks it with the new ones"
        )),
        _ => sink.undecidable("whether what is filled in breaks the rule depends on the object"),
    }
}

/// Rules that the new schema does not have, by their place, and the places of each message.
struct Gone<'r> {
    rules: BTreeMap<usize, &'r Rule>,
    /// Of those that were looked into.
    meanings: HashMap<usize, meaning::Expr>,
    by_message: HashMap<&'r str, VecDeque<usize>>,
}

impl<'r> Gone<'r> {
    fn new(old: &'r Schema, new: &Schema) -> Self {
        let kept: HashSet<&str> = new.rules.iter().map(|rule| rule.expression.as_str()).collect();
        let mut gone = Self {
            rules: BTreeMap::new(),
            meanings: HashMap::new(),
            by_message: HashMap::new(),
        };
        for (place, rule) in old.rules.iter().enumerate() {
            if !kept.contains(rule.expression.as_str()) {
                gone.rules.insert(place, rule);
                if let Some(message) = &rule.message {
                    gone.by_message.entry(message).or_default().push_back(place);
                }
            }
        }
        gone
    }

    /// The first rule that lets nothing through which this one does not.
    fn take_narrower(&mut self, rule: &Rule, meant: &meaning::Expr, model: &mut Model) -> Option<&'r Rule> {
        let mut some = self.rules.iter().take(MAX_COMPARED);
        let (place, _) = some.find(|(place, other)| {
            (other.transition, other.optional_old_self) == (rule.transition, rule.optional_old_self) && {
                if !self.meanings.contains_key(*place)
                    && let Some(other) = model.meaning(other)
                {
                    self.meanings.insert(**place, other);
                }
                let other = self.meanings.get(*place);
                other.is_some_and(|other| meaning::implies(other, meant))
            }
        })?;
        let place = *place;
        self.rules.remove(&place)
    }

    /// The rule that this one seems to replace: the one with the same message, or else the only one that went.
    fn take_counterpart(&mut self, rule: &Rule) -> Option<&'r Rule> {
        let mut places = rule
            .message
            .as_deref()
            .and_then(|message| self.by_message.get_mut(message));
        while let Some(place) = places.as_mut().and_then(|places| places.pop_front()) {
            if let Some(before) = self.rules.remove(&place) {
                return Some(before);
            }
        }
        let (_, only) = self.rules.first_key_value()?;
        if self.rules.len() > 1 || only.transition != rule.transition {
            return None;
        }
        self.rules.pop_first().map(|(_, before)| before)
    }
}

/// What is known of objects that were stored under the old schema.
struct Stored<'s> {
    old: &'s Schema,
    new: &'s Schema,
}

impl Fields for Stored<'_> {
    fn is_never_there(&self, field: &str) -> bool {
        !self.old.keeps(field)
            && self
                .new
                .properties
                .get(field)
                .is_some_and(|property| property.default.is_none())
    }

    fn is_always_there(&self, field: &str) -> bool {
        let kept = self.new.keeps(field) && self.old.keeps(field);
        // A null is as good as nothing to a rule, and neither dropped nor replaced by a default.
        let may_be_null = |schema: &Schema| {
            let property = schema.properties.get(field).or(schema.additional.as_deref());
            property.is_none_or(|property| property.nullable)
        };
        let filled = |schema: &Schema| {
            let property = schema.properties.get(field);
            property.is_some_and(|property| property.default.is_some())
        };
        let taken = self.old.keeps(field) && may_be_null(self.old) && may_be_null(self.new);
        !taken && (filled(self.new) || (kept && self.old.demands(field)))
    }

    fn is_never(&self, field: &str, text: &str) -> bool {
        let property = self.old.properties.get(field);
        let listed = property.and_then(|property| property.limits.enumeration.as_ref());
        let text = Value::from(text);
        let filled = self
            .new
            .properties
            .get(field)
            .and_then(|new| new.default.as_deref());
        self.old.keeps(field) && filled != Some(&text) && listed.is_some_and(|values| !values.contains(&text))
    }
}
