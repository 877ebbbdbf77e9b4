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
mod text;
mod time;
mod value;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use regex::Regex;
use serde_json::Value as Json;

pub use self::{
    ast::{Expr, Loop, Op},
    names::unescape,
    parse::parse,
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

/// The rules that could not be decided at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    pub times: u64,
    /// Why the first of them could not.
    pub reason: String,
}

/// Rules, compiled once.
#[derive(Default)]
pub struct Rules {
    programs: HashMap<String, Arc<Result<Expr, String>>>,
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
            match self.verdict(rule, due) {
                Ok(None) => {}
                Ok(Some(broken)) => all.push(broken),
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
        Some(due.value.is_null() || self.verdict(rule, due).ok()?.is_none())
    }

    /// Nothing if the rule is met, or why it cannot be told.
    fn verdict(&mut self, rule: &Rule, due: &Due<'_>) -> Result<Option<Broken>, String> {
        let program = self.compiled(&rule.source);
        let program = program.as_ref().as_ref().map_err(Clone::clone)?;
        let transition = program.mentions("oldSelf");
        // It speaks of a change, and there is none.
        if transition && !rule.optional_old_self {
            if !self.transitions.contains(due.place) {
                self.transitions.insert(due.place.to_owned());
            }
            return Ok(None);
        }
        let (error, failed) = match self.run(&rule.source, program, due) {
            Ok(Value::Bool(true)) => return Ok(None),
            Ok(Value::Bool(false)) => (None, false),
            Ok(_) => return Err("its value is neither true nor false".to_owned()),
            Err(Stop::Fails(error)) => (Some(error), true),
            Err(Stop::Undecided(reason)) => return Err(reason),
        };
        let message = self.message(rule, due);
        Ok(Some(Broken {
            message: match error {
                Some(error) => shortened(&format!("{message} ({error})")),
                None => message,
            },
            failed,
            // Every write changes the whole object.
            ratchets: !due.root && !transition,
        }))
    }

    pub fn compiled(&mut self, source: &str) -> Arc<Result<Expr, String>> {
        if let Some(known) = self.programs.get(source) {
            return known.clone();
        }
        let program = Arc::new(parse(source));
        self.programs.insert(source.to_owned(), program.clone());
        program
    }

    fn run<'a>(&mut self, source: &str, program: &'a Expr, due: &Due<'a>) -> Result<Value<'a>, Stop> {
        let steps = STEPS_OF_RULE
            .min(STEPS_OF_OBJECT - self.spent_on_object)
            .min(STEPS - self.spent);
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

    /// The author's words where there are any.
    fn message(&mut self, rule: &Rule, due: &Due<'_>) -> String {
        let made = rule.message_expression.as_ref().and_then(|source| {
            let program = self.compiled(source);
            let program = program.as_ref().as_ref().ok()?;
            match self.run(source, program, due) {
                Ok(Value::Text(text)) => Some(text.trim().to_owned()),
                _ => None,
            }
        });
        let usable = |text: &String| !text.is_empty() && !text.contains('\n');
        let given = || rule.message.as_deref().map(|text| text.trim().to_owned());
        match made.filter(usable).or_else(given).filter(|text| !text.is_empty()) {
            Some(words) => shortened(&format!("breaks a rule: {words}")),
            None => shortened(&format!("breaks the rule {}", rule.expression)),
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
