//! Puts a value to a schema.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use regex::Regex;
use serde_json::{Map, Value};

use super::{
    cel::{Due, Rules, Undecided},
    format,
    place::At,
};
use crate::crd_diff::{
    number::{Number, canonical},
    pattern,
    schema::{Limits, ListType, Schema, Types},
    server::ServerVersion,
};

/// A list of violations longer than this helps nobody.
const MAX_VIOLATIONS: usize = 100;

/// Why a value is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where in this object, with indices.
    pub path: String,
    /// Where in the schema, as findings name it.
    pub place: String,
    pub message: String,
    /// A server that ratchets lets it pass while the value is left alone.
    pub ratchets: bool,
    /// Every server lets it pass where the stored object has it already.
    pub spared: bool,
}

/// Validates; keeps compiled patterns, so one is used for many objects.
pub struct Checker {
    patterns: HashMap<String, Option<Regex>>,
    max_regex: usize,
    rules: Rules,
    ignores_rules: bool,
    /// Nothing if it may be any.
    server: Option<ServerVersion>,
    /// Patterns that were met and not understood.
    pub skipped_patterns: u64,
}

/// What one walk has found so far.
#[derive(Default)]
struct Found<'v> {
    violations: Vec<Violation>,
    /// Values that have rules. The server looks at rules when all else is well.
    with_rules: Vec<WithRules<'v>>,
}

struct WithRules<'v> {
    schema: &'v Schema,
    value: &'v Value,
    path: String,
    place: String,
    /// The whole object.
    root: bool,
}

impl Default for Checker {
    fn default() -> Self {
        Self::with_patterns_to(pattern::MAX_REGEX_BYTES)
    }
}

impl Checker {
    /// Larger patterns are skipped.
    pub fn with_patterns_to(max_regex: usize) -> Self {
        Self {
            patterns: HashMap::new(),
            max_regex,
            rules: Rules::default(),
            ignores_rules: false,
            server: None,
            skipped_patterns: 0,
        }
    }

    /// One that checks what a server of this version checks.
    pub fn of(server: Option<ServerVersion>) -> Self {
        Self {
            server,
            ignores_rules: !server.is_none_or(ServerVersion::evaluates_rules),
            ..Self::default()
        }
    }

    /// Whether all but CEL rules is met.
    pub fn accepts(&mut self, schema: &Schema, value: &Value) -> bool {
        let mut found = Found::default();
        self.node(schema, value, &At::Whole, &mut found);
        if !found.with_rules.is_empty() && !self.ignores_rules {
            self.rules.note(".", "it is inside anyOf, oneOf or not");
        }
        found.violations.is_empty()
    }

    /// The places of rules that were met and could not be decided.
    pub fn undecided(&self) -> &BTreeMap<String, Undecided> {
        self.rules.undecided()
    }

    /// The places of rules that were met and speak of changes alone.
    pub fn transitions(&self) -> &BTreeSet<String> {
        self.rules.transitions()
    }

    /// The type and the limits alone, without the list of values; what is inside a value is not looked at.
    pub fn is_within(&mut self, types: Types, limits: &Limits, value: &Value) -> bool {
        types.has(Types::of(value))
            && self.limits(limits, value).is_empty()
            && self.number_formats(limits, value).is_empty()
    }

    /// Puts a whole object to the schema of its version.
    pub fn check(&mut self, schema: &Schema, value: &Value) -> Vec<Violation> {
        let mut found = Found::default();
        self.node(schema, value, &At::Whole, &mut found);
        if !self.ignores_rules {
            self.put_to_rules(&mut found);
        }
        found.violations
    }

    /// Puts a value to the schema of a part of an object.
    pub fn check_part(&mut self, schema: &Schema, value: &Value) -> Vec<Violation> {
        let mut found = Found::default();
        self.node(schema, value, &At::Part, &mut found);
        self.put_to_rules(&mut found);
        found.violations
    }

    /// The rules that it has read.
    pub fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// How many steps rules have taken so far.
    pub fn spent(&self) -> u64 {
        self.rules.spent()
    }

    fn put_to_rules(&mut self, found: &mut Found<'_>) {
        let otherwise_fine = found.violations.is_empty();
        self.rules.next_object();
        for part in &found.with_rules {
            let due = Due {
                schema: part.schema,
                value: part.value,
                place: &part.place,
                root: part.root,
            };
            for broken in self.rules.broken(&due) {
                // A rule that fails where a field is missing or of another type says nothing new.
                if found.violations.len() < MAX_VIOLATIONS && (otherwise_fine || !broken.failed) {
                    found.violations.push(Violation {
                        path: part.path.clone(),
                        place: part.place.clone(),
                        message: broken.message,
                        ratchets: broken.ratchets,
                        spared: false,
                    });
                }
            }
        }
    }

    fn node<'v>(&mut self, schema: &'v Schema, value: &'v Value, at: &At<'_>, found: &mut Found<'v>) {
        if found.violations.len() >= MAX_VIOLATIONS {
            return;
        }
        // Every write changes the whole object.
        let ratchets = !at.is_whole();
        let mut refuse = |message: String, spared: bool| {
            found.violations.push(Violation {
                path: at.path(),
                place: at.place(),
                message,
                ratchets,
                spared,
            });
        };
        let kind = Types::of(value);
        if !schema.types.has(kind) {
            refuse(format!("has to be {}", schema.types), false);
            return;
        }
        let listed = schema.limits.enumeration.as_ref();
        if listed.is_some_and(|all| !all.contains(value)) {
            refuse("is not one of the allowed values".to_owned(), false);
        }
        for message in self.limits(&schema.limits, value) {
            refuse(message, false);
        }
        for message in self.number_formats(&schema.limits, value) {
            refuse(message, true);
        }
        if let Value::Array(items) = value
            && let Some(message) = unique(&schema.list, items)
        {
            refuse(message, true);
        }
        // A null meets every combination: the server looks at its type and at listed values alone.
        if kind != Types::NULL && !self.choices(schema, value) {
            refuse("does not meet anyOf, oneOf or not".to_owned(), false);
        }
        if !schema.rules.is_empty() && !schema.unstructured {
            found.with_rules.push(WithRules {
                schema,
                value,
                path: at.path(),
                place: at.place(),
                root: at.is_whole(),
            });
        }
        match value {
            Value::Object(fields) => self.object(schema, fields, at, found),
            Value::Array(items) => {
                let Some(schema) = &schema.items else { return };
                for (index, item) in items.iter().enumerate() {
                    self.node(schema, item, &At::Item(at, index), found);
                }
            }
            _ => {}
        }
    }

    fn object<'v>(
        &mut self,
        schema: &'v Schema,
        fields: &'v Map<String, Value>,
        at: &At<'_>,
        found: &mut Found<'v>,
    ) {
        let required = schema.required.iter().map(String::as_str);
        let required = required.filter(|name| !fields.contains_key(*name));
        // What makes a whole object of an embedded one is looked at apart, and that does not ratchet.
        let of_embedded = ["apiVersion", "kind"].into_iter().filter(|name| {
            let text = fields.get(*name).and_then(Value::as_str);
            schema.embedded && text.is_none_or(str::is_empty)
        });
        let named: BTreeSet<&str> = of_embedded.clone().collect();
        let missing = required
            .filter(|name| !named.contains(name))
            .map(|name| (name, !at.is_whole()))
            .chain(of_embedded.map(|name| (name, false)));
        for (name, ratchets) in missing {
            let field = At::Field(at, name);
            found.violations.push(Violation {
                path: field.path(),
                place: field.place(),
                message: "is required".to_owned(),
                ratchets,
                spared: false,
            });
        }
        for (name, value) in fields {
            match (schema.properties.get(name), &schema.additional) {
                (Some(property), _) => self.node(property, value, &At::Field(at, name), found),
                (None, Some(values)) => self.node(values, value, &At::Value(at, name), found),
                (None, None) => {}
            }
        }
    }

    fn limits(&mut self, limits: &Limits, value: &Value) -> Vec<String> {
        let mut broken = Vec::new();
        match value {
            Value::Number(_) => {
                if let Some(number) = Number::from_json(value) {
                    numbers(limits, number, &mut broken);
                }
            }
            Value::String(text) => {
                if !limits.length.admits(text.chars().count() as u64) {
                    broken.push("is too short or too long".to_owned());
                }
                for pattern in &limits.patterns {
                    if self.matches(pattern, text) == Some(false) {
                        broken.push(format!("does not match {pattern:?}"));
                    }
                }
                for name in &limits.formats {
                    if self.checks_format(name) && !format::matches(name, text) {
                        broken.push(format!("does not have the format {name}"));
                    }
                }
            }
            Value::Array(items) => {
                if !limits.items.admits(items.len() as u64) {
                    broken.push("has too few or too many items".to_owned());
                }
                if limits.unique && unique(&ListType::Set, items).is_some() {
                    broken.push("has equal items".to_owned());
                }
            }
            Value::Object(fields) if !limits.fields.admits(fields.len() as u64) => {
                broken.push("has too few or too many fields".to_owned());
            }
            _ => {}
        }
        broken
    }

    /// Servers that check these let a stored value pass.
    fn number_formats(&self, limits: &Limits, value: &Value) -> Vec<String> {
        let Some(number) = Number::from_json(value) else {
            return Vec::new();
        };
        let fits = |format: &str| match (format, number) {
            ("int32", Number::Whole(whole)) => i32::try_from(whole).is_ok(),
            ("int32", Number::Real(_)) => false,
            ("float", number) => number.as_f64().abs() <= f64::from(f32::MAX),
            _ => true,
        };
        let checked = limits.formats.iter().filter(|format| self.checks_format(format));
        checked
            .filter(|format| !fits(format))
            .map(|format| format!("{number} does not have the format {format}"))
            .collect()
    }

    fn checks_format(&self, format: &str) -> bool {
        self.server.is_none_or(|server| server.checks_format(format))
    }

    /// Nothing if the pattern is not understood; it is counted, not guessed.
    fn matches(&mut self, pattern: &str, text: &str) -> Option<bool> {
        if !self.patterns.contains_key(pattern) {
            let compiled = pattern::compile_within(pattern, self.max_regex);
            self.patterns.insert(pattern.to_owned(), compiled);
        }
        let compiled = self.patterns.get(pattern)?;
        if compiled.is_none() {
            self.skipped_patterns += 1;
        }
        compiled.as_ref().map(|regex| regex.is_match(text))
    }

    fn choices(&mut self, schema: &Schema, value: &Value) -> bool {
        let choices = &schema.choices;
        choices
            .any
            .iter()
            .all(|group| group.iter().any(|branch| self.accepts(branch, value)))
            && choices
                .one
                .iter()
                .all(|group| group.iter().filter(|branch| self.accepts(branch, value)).count() == 1)
            && !choices.not.iter().any(|branch| self.accepts(branch, value))
    }
}

fn numbers(limits: &Limits, number: Number, broken: &mut Vec<String>) {
    if limits
        .minimum
        .is_some_and(|bound| !bound.admits_from_below(number))
        || limits
            .maximum
            .is_some_and(|bound| !bound.admits_from_above(number))
    {
        broken.push(format!("{number} is too small or too large"));
    }
    if limits.multiples.iter().any(|step| !number.is_multiple_of(*step)) {
        broken.push(format!("{number} is not a multiple of what is asked for"));
    }
}

fn unique(list: &ListType, items: &[Value]) -> Option<String> {
    let mut seen = HashSet::new();
    let all_differ = match list {
        ListType::Atomic => true,
        ListType::Set => items.iter().all(|item| seen.insert(canonical(item))),
        ListType::Map(keys) => items.iter().all(|item| {
            let key: Vec<String> = keys
                .iter()
                .map(|key| item.get(key).map(canonical).unwrap_or_default())
                .collect();
            seen.insert(key.join("\u{0}"))
        }),
    };
    (!all_differ).then(|| format!("has equal entries, and is a {list}"))
}
