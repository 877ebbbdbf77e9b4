//! Compares CEL rules. Two expressions cannot be compared by what they mean; what can be told is said, and the rest is
//! said to be undecidable.

use super::{
    kind::Kind,
    schema::{Rule, Schema},
    sink::Sink,
};

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
        if let Some(field) = guard(&rule.expression)
            && !old.keeps(field)
            && new.properties.get(field).is_some_and(|p| p.default.is_none())
        {
            sink.add(Kind::Loosened, "no rule", rule.expression.as_str());
            sink.note("The rule speaks only of objects that set a field which is new.");
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

/// The field of rules such as `!has(self.field) || …`, which say nothing of objects without it.
fn guard(expression: &str) -> Option<&str> {
    let rest = expression.strip_prefix("!has(self.")?;
    let (field, rest) = rest.split_once(')')?;
    let plain = field.chars().all(|c| c.is_alphanumeric() || c == '_');
    // A conditional binds weaker than `||`, and would take the guard into its condition.
    (plain && rest.trim_start().starts_with("||") && !rest.contains('?')).then_some(field)
}
