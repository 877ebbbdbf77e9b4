//! Compares CEL rules. Two expressions cannot be compared by what they mean; what can be told is said, and the rest is
//! said to be undecidable.

use serde_json::Value;

use super::{
    cel::{self, Truth},
    kind::Kind,
    schema::{Rule, Schema},
    sink::Sink,
};

/// Each new rule is compared with so many that went.
const MAX_COMPARED: usize = 16;

pub fn compare(sink: &mut Sink<'_>, old: &Schema, new: &Schema) {
    let known = |rule: &Rule| {
        old.rules.iter().any(|other| {
            other.expression == rule.expression
                && (!rule.optional_old_self || other.optional_old_self == rule.optional_old_self)
        })
    };
    let mut gone: Vec<&Rule> = old
        .rules
        .iter()
        .filter(|rule| !new.rules.iter().any(|other| other.expression == rule.expression))
        .collect();
    let removed = gone.len();
    let mut added = 0;
    for rule in new.rules.iter().filter(|rule| !known(rule)) {
        added += 1;
        let meaning = cel::parse(&rule.expression);
        if cel::truth(&meaning, &Stored { old, new }, &[]) == Truth::True {
            sink.add(Kind::Loosened, "no rule", rule.expression.as_str());
            sink.note("No stored object can break the rule.");
            continue;
        }
        let wider_than = |other: &&Rule| {
            (other.transition, other.optional_old_self) == (rule.transition, rule.optional_old_self)
                && cel::implies(&cel::parse(&other.expression), &meaning)
        };
        if let Some(index) = gone.iter().take(MAX_COMPARED).position(wider_than) {
            let before = gone.remove(index);
            sink.add(
                Kind::Loosened,
                before.expression.as_str(),
                rule.expression.as_str(),
            );
            continue;
        }
        match take_counterpart(&mut gone, rule) {
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

/// The rule that this one seems to replace: the one with the same message, or else the only one that went.
fn take_counterpart<'r>(gone: &mut Vec<&'r Rule>, rule: &Rule) -> Option<&'r Rule> {
    let same_message = gone
        .iter()
        .position(|other| other.message.is_some() && other.message == rule.message);
    let index = match same_message {
        Some(index) => index,
        None if gone.len() == 1 && gone[0].transition == rule.transition => 0,
        None => return None,
    };
    Some(gone.remove(index))
}

/// What is known of objects that were stored under the old schema.
struct Stored<'s> {
    old: &'s Schema,
    new: &'s Schema,
}

impl cel::Fields for Stored<'_> {
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
        let filled = |schema: &Schema| {
            let property = schema.properties.get(field);
            property.is_some_and(|property| property.default.is_some())
        };
        filled(self.new) || (kept && self.old.demands(field))
    }

    fn is_never(&self, field: &str, text: &str) -> bool {
        let listed = |schema: &Schema| schema.properties.get(field)?.limits.enumeration.clone();
        let text = Value::from(text);
        let default = self
            .new
            .properties
            .get(field)
            .and_then(|property| property.default.as_ref());
        self.old.keeps(field)
            && default != Some(&text)
            && listed(self.old).is_some_and(|values| !values.contains(&text))
    }
}
