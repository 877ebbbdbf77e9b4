//! Compares CEL rules. Two expressions cannot be compared by what they mean; what can be told is said, and the rest is
//! said to be undecidable.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::{
    kind::Kind,
    schema::{Rule, Schema},
    sink::Sink,
};

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
        if let Some(field) = guard(&rule.expression)
            && !old.keeps(field)
            && new.properties.get(field).is_some_and(|p| p.default.is_none())
        {
            sink.add(Kind::Loosened, "no rule", rule.expression.as_str());
            sink.note("The rule speaks only of objects that set a field which is new.");
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

/// The field of rules such as `!has(self.field) || …`, which say nothing of objects without it.
fn guard(expression: &str) -> Option<&str> {
    let rest = expression.strip_prefix("!has(self.")?;
    let (field, rest) = rest.split_once(')')?;
    let plain = field.chars().all(|c| c.is_alphanumeric() || c == '_');
    // A conditional binds weaker than `||`, and would take the guard into its condition.
    (plain && rest.trim_start().starts_with("||") && !rest.contains('?')).then_some(field)
}
