//! Evaluates the CEL rules of a schema (`x-kubernetes-validations`) on objects, as a server would.
//!
//! The rule of this module: never a wrong answer. What is not known here for sure — a function, a value that readers
//! read differently, a rule that takes too many steps — is undecided and said to be, with the reason. Servers check the
//! types of a rule before they take it, so that a rule which does not fit its schema is nothing to decide either.
//!
//! A small evaluator of our own: every step is counted, which no library offers (docs/adr/0014-cel.md).

mod ast;
mod eval;
mod functions;
mod lex;
mod names;
mod net;
mod ops;
mod parse;
mod quantity;
mod source;
mod text;
mod time;
mod value;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use regex::Regex;
use serde_json::Value as Json;

pub use self::{
    ast::{Expr, Loop, Op},
    names::unescape,
    source::Source,
};

use self::{
    eval::{Evaluator, TOO_COSTLY},
    value::{Stop, Value, typed},
};
use crate::crd_diff::schema::{Rule, Schema};

/// How many steps one rule may take at one value. A million of them take about a tenth of a second.
const STEPS_OF_RULE: u64 = 200_000;
/// And all rules at one object.
const STEPS_OF_OBJECT: u64 = 1_000_000;
/// And all rules at all objects that are put to one schema.
const STEPS: u64 = 500_000_000;

/// A longer message than this is not shown in full.
const MAX_MESSAGE: usize = 500;

/// A value, and the schema whose rules it has to meet.
pub struct Due<'v> {
    pub schema: &'v Schema,
    pub value: &'v Json,
    /// Where in the schema, as findings name it.
    pub place: &'v str,
    /// The whole object.
    pub root: bool,
}

/// A rule that is broken.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    /// In words, for whoever has to repair it.
    pub message: String,
    /// It could not be evaluated, on the server as little as here.
    pub failed: bool,
    /// A server that ratchets lets it pass while the value is left alone.
    pub ratchets: bool,
}

enum Verdict {
    Met,
    /// With the error, where it could not be evaluated.
    Broken(Option<String>),
}

/// The rules that could not be decided at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    pub times: u64,
    /// Why the first of them could not.
    pub reason: String,
}

/// Evaluates rules, and remembers what came of it.
#[derive(Default)]
pub struct Rules {
    patterns: HashMap<String, Option<Regex>>,
    /// Rules that took too many steps once are not tried again.
    too_costly: HashSet<String>,
    undecided: BTreeMap<String, Undecided>,
    /// The places of rules that speak of changes, of which an object says nothing.
    transitions: BTreeSet<String>,
    spent: u64,
    spent_on_object: u64,
}

impl Rules {
    pub fn undecided(&self) -> &BTreeMap<String, Undecided> {
        &self.undecided
    }

    pub fn transitions(&self) -> &BTreeSet<String> {
        &self.transitions
    }

    /// How many steps were taken so far.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// A new object is looked at.
    pub fn next_object(&mut self) {
        self.spent_on_object = 0;
    }

    /// The rules of one schema that its value breaks. Nulls break none.
    pub fn broken(&mut self, due: &Due<'_>) -> Vec<Broken> {
        let mut all = Vec::new();
        if due.value.is_null() {
            return all;
        }
        for rule in &due.schema.rules {
            let transition = || rule.source.program().is_ok_and(|program| program.about_changes);
            match self.verdict(rule, due) {
                Ok(Verdict::Met) => {}
                Ok(Verdict::Broken(error)) => all.push(Broken {
                    failed: error.is_some(),
                    message: self.message(rule, due, error),
                    // Every write changes the whole object.
                    ratchets: !due.root && !transition(),
                }),
                Err(reason) if reason == value::MISTYPED => {}
                Err(reason) => self.note(due.place, &reason),
            }
        }
        all
    }

    pub fn note(&mut self, place: &str, reason: &str) {
        let known = self
            .undecided
            .entry(place.to_owned())
            .or_insert_with(|| Undecided {
                times: 0,
                reason: shortened(reason),
            });
        known.times += 1;
    }

    /// Whether a value meets one rule; nothing if that cannot be told.
    pub fn meets(&mut self, rule: &Rule, due: &Due<'_>) -> Option<bool> {
        self.next_object();
        Some(due.value.is_null() || matches!(self.verdict(rule, due).ok()?, Verdict::Met))
    }

    /// Or why it cannot be told.
    fn verdict(&mut self, rule: &Rule, due: &Due<'_>) -> Result<Verdict, String> {
        let program = rule.source.program().map_err(Clone::clone)?;
        // It speaks of a change, and there is none.
        if program.about_changes && !rule.optional_old_self {
            if !self.transitions.contains(due.place) {
                self.transitions.insert(due.place.to_owned());
            }
            return Ok(Verdict::Met);
        }
        match self.run(&rule.source.text, &program.expr, due) {
            Ok(Value::Bool(true)) => Ok(Verdict::Met),
            Ok(Value::Bool(false)) => Ok(Verdict::Broken(None)),
            Ok(_) => Err("its value is neither true nor false".to_owned()),
            Err(Stop::Fails(error)) => Ok(Verdict::Broken(Some(error))),
            Err(Stop::Undecided(reason)) => Err(reason),
        }
    }

    fn run<'a>(&mut self, source: &str, program: &'a Expr, due: &Due<'a>) -> Result<Value<'a>, Stop> {
        let steps = STEPS_OF_RULE
            .min(STEPS_OF_OBJECT - self.spent_on_object)
            .min(STEPS.saturating_sub(self.spent));
        if steps == 0 || self.too_costly.contains(source) {
            return value::undecided(TOO_COSTLY);
        }
        let this = typed(due.value, due.schema, due.root)?;
        // The object as it is stored is what comes before its next write.
        let scope = vec![("oldSelf", Value::some(this.clone())), ("self", this)];
        let mut evaluator = Evaluator::new(scope, steps, &mut self.patterns);
        let outcome = evaluator.eval(program);
        let left = evaluator.steps_left();
        self.spent += steps - left;
        self.spent_on_object += steps - left;
        if left == 0 && steps == STEPS_OF_RULE {
            self.too_costly.insert(source.to_owned());
        }
        outcome
    }

    /// The author's words where there are any, and what failed.
    fn message(&mut self, rule: &Rule, due: &Due<'_>, error: Option<String>) -> String {
        let made = rule.message_expression.as_ref().and_then(|source| {
            let program = source.program().ok()?;
            match self.run(&source.text, &program.expr, due) {
                Ok(Value::Text(text)) => Some(text.trim().to_owned()),
                _ => None,
            }
        });
        let usable = |text: &String| !text.is_empty() && !text.contains('\n');
        let given = || rule.message.as_deref().map(|text| text.trim().to_owned());
        let message = match made.filter(usable).or_else(given).filter(|text| !text.is_empty()) {
            Some(words) => shortened(&format!("breaks a rule: {words}")),
            None => shortened(&format!("breaks the rule {}", rule.expression)),
        };
        match error {
            Some(error) => shortened(&format!("{message} ({error})")),
            None => message,
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
