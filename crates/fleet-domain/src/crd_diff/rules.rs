//! Compares CEL rules. Two expressions cannot be compared by what they mean; what can be told is said, and the rest is
//! said to be undecidable.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use serde_json::Value;

use super::{
    kind::Kind,
    meaning::{self, Fields, Truth},
    schema::{Rule, Schema},
    sink::Sink,
};

/// Each new rule is compared with so many that went.
const MAX_COMPARED: usize = 16;
/// More rules at one place are not looked into.
const MAX_LOOKED_INTO: usize = 100;

pub fn compare(sink: &mut Sink<'_>, old: &Schema, new: &Schema) {
    if old.rules == new.rules {
        return;
    }
    // Whether one of the old rules with this expression looks at new objects too.
    let mut known: HashMap<&str, bool> = HashMap::new();
    for rule in &old.rules {
        *known.entry(&rule.expression).or_default() |= rule.optional_old_self;
    }
    let is_known = |rule: &&Rule| match known.get(rule.expression.as_str()) {
        Some(optional) => !rule.optional_old_self || *optional,
        None => false,
    };
    let mut gone = Gone::new(old, new);
    let removed = gone.rules.len();
    let mut added = 0;
    for rule in new.rules.iter().filter(|rule| !is_known(rule)) {
        added += 1;
        let meant = (new.rules.len() <= MAX_LOOKED_INTO).then(|| meaning::of(&rule.source));
        if let Some(meant) = &meant
            && meaning::truth(meant, &Stored { old, new }, &[]) == Truth::True
        {
            sink.add(Kind::Loosened, "no rule", rule.expression.as_str());
            sink.note("No stored object can break the rule.");
            continue;
        }
        let wider_than = |other: &&Rule| {
            (other.transition, other.optional_old_self) == (rule.transition, rule.optional_old_self)
                && meant
                    .as_ref()
                    .is_some_and(|meant| meaning::implies(&meaning::of(&other.source), meant))
        };
        if let Some(before) = gone.take(wider_than) {
            sink.add(
                Kind::Loosened,
                before.expression.as_str(),
                rule.expression.as_str(),
            );
            continue;
        }
        match gone.take_counterpart(rule) {
            Some(before) => {
                sink.add(
                    Kind::RuleChanged,
                    before.expression.as_str(),
                    rule.expression.as_str(),
                );
                sink.undecidable("what two CEL expressions let through cannot be compared by their text");
            }
            None if rule.transition && !rule.optional_old_self => {
                sink.add(Kind::TransitionRuleAdded, "no rule", rule.expression.as_str());
            }
            None => sink.add(Kind::RuleAdded, "no rule", rule.expression.as_str()),
        }
    }
    if added == 0 && removed > 0 {
        sink.add(Kind::Loosened, format!("{removed} more rules"), "dropped");
    }
}

/// Rules that the new schema does not have, by their place, and the places of each message.
struct Gone<'r> {
    rules: BTreeMap<usize, &'r Rule>,
    by_message: HashMap<&'r str, VecDeque<usize>>,
}

impl<'r> Gone<'r> {
    fn new(old: &'r Schema, new: &Schema) -> Self {
        let kept: HashSet<&str> = new.rules.iter().map(|rule| rule.expression.as_str()).collect();
        let mut gone = Self {
            rules: BTreeMap::new(),
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

    /// The first rule that is such a one.
    fn take(&mut self, is_one: impl Fn(&&Rule) -> bool) -> Option<&'r Rule> {
        let mut some = self.rules.iter().take(MAX_COMPARED);
        let place = some.find(|(_, rule)| is_one(rule)).map(|(place, _)| *place)?;
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
