//! Evaluates an expression, step by step and with so many steps only.

use std::{collections::HashMap, rc::Rc};

use regex::Regex;

use super::{
    ast::{Expr, Loop, Op},
    functions, ops,
    value::{List, Map, Stop, Text, Value, fails, undecided},
};
use crate::crd_diff::pattern;

pub type Outcome<'a> = Result<Value<'a>, Stop>;

pub const TOO_COSTLY: &str = "it takes too many steps";

/// How many patterns there may be, all rules and the values that they make patterns from together.
const MOST_PATTERNS: usize = 512;
/// What compiling one costs, in steps.
const COMPILE: u64 = 2_000;
/// What running one over a byte costs: it may be in many states at once.
const MATCH: u64 = 4;

/// Names before a dot that are no values.
const LIBRARIES: [&str; 11] = [
    "base64", "cel", "cidr", "format", "ip", "lists", "math", "optional", "regex", "sets", "strings",
];

const TYPES: [&str; 10] = [
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "type",
    "uint",
];

pub struct Evaluator<'a, 'p> {
    scope: Vec<(&'a str, Value<'a>)>,
    steps: u64,
    patterns: &'p mut HashMap<String, Option<Regex>>,
}

impl<'a, 'p> Evaluator<'a, 'p> {
    pub fn new(
        scope: Vec<(&'a str, Value<'a>)>,
        steps: u64,
        patterns: &'p mut HashMap<String, Option<Regex>>,
    ) -> Self {
        Self {
            scope,
            steps,
            patterns,
        }
    }

    pub fn steps_left(&self) -> u64 {
        self.steps
    }

    pub fn spend(&mut self, steps: u64) -> Result<(), Stop> {
        match self.steps.checked_sub(steps) {
            Some(left) if left > 0 => {
                self.steps = left;
                Ok(())
            }
            _ => {
                self.steps = 0;
                undecided(TOO_COSTLY)
            }
        }
    }

    /// So many bytes are looked at or copied.
    pub fn spend_on(&mut self, bytes: usize) -> Result<(), Stop> {
        self.spend(1 + bytes as u64 / 16)
    }

    /// A pattern to be run over this text.
    pub fn pattern(&mut self, pattern: &str, text: &str) -> Result<Regex, Stop> {
        self.spend(1 + text.len() as u64 * MATCH)?;
        if !self.patterns.contains_key(pattern) {
            if self.patterns.len() >= MOST_PATTERNS {
                return undecided("there are too many patterns");
            }
            self.spend(COMPILE)?;
            self.patterns
                .insert(pattern.to_owned(), pattern::compile(pattern));
        }
        let compiled = self.patterns.get(pattern).cloned().flatten();
        compiled.map_or_else(
            || undecided(format!("the pattern {pattern:?} is not understood")),
            Ok,
        )
    }

    pub fn eval(&mut self, expr: &'a Expr) -> Outcome<'a> {
        self.spend(1)?;
        match expr {
            Expr::Null => Ok(Value::Null),
            Expr::Bool(yes) => Ok(Value::Bool(*yes)),
            Expr::Int(number) => Ok(Value::Int(*number)),
            Expr::Uint(number) => Ok(Value::Uint(*number)),
            Expr::Double(number) => Ok(Value::Double(*number)),
            Expr::Text(text) => Ok(Value::Text(Text::Found(text))),
            Expr::Bytes(bytes) => Ok(Value::Bytes(bytes.as_slice().into())),
            Expr::List(entries) => self.all(entries).map(Value::list),
            Expr::Map(entries) => self.map(entries),
            Expr::Name(name) => self.name(name),
            Expr::Field { of, name, optional } => self.field(of, name, *optional),
            Expr::Index { of, at, optional } => self.index(of, at, *optional),
            Expr::Has { of, name } => self.has(of, name),
            Expr::Not(of) => match self.eval(of)? {
                Value::Bool(yes) => Ok(Value::Bool(!yes)),
                _ => undecided("! stands before something that is neither true nor false"),
            },
            Expr::Minus(of) => {
                let value = self.eval(of)?;
                ops::minus(&value)
            }
            Expr::Or(parts) => self.chain(parts, true),
            Expr::And(parts) => self.chain(parts, false),
            Expr::If(parts) => self.choose(parts),
            Expr::Binary(op, parts) => self.binary(*op, parts),
            Expr::Call { name, on, args } => self.call(name, on.as_deref(), args),
            Expr::Loop {
                kind,
                over,
                names,
                steps,
            } => self.walk(*kind, over, names, steps),
            Expr::OptionalMap { of, name, body, flat } => self.optional_map(of, name, body, *flat),
            Expr::Unknown(name) => undecided(format!("{name}() is not known here")),
        }
    }

    fn all(&mut self, exprs: &'a [Expr]) -> Result<Vec<Value<'a>>, Stop> {
        exprs.iter().map(|expr| self.eval(expr)).collect()
    }

    fn with(&mut self, names: &[(&'a str, Value<'a>)], body: &'a Expr) -> Outcome<'a> {
        let before = self.scope.len();
        self.scope.extend_from_slice(names);
        let outcome = self.eval(body);
        self.scope.truncate(before);
        outcome
    }

    fn map(&mut self, entries: &'a [(Expr, Expr)]) -> Outcome<'a> {
        let mut made: Vec<(Value<'a>, Value<'a>)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            for (known, _) in &made {
                if ops::equal(self, known, &key)? {
                    return undecided("a key comes twice");
                }
            }
            made.push((key, value));
        }
        Ok(Value::Map(Map::Made(Rc::new(made))))
    }

    fn lookup(&self, name: &str) -> Option<&Value<'a>> {
        let known = self.scope.iter().rev().find(|(known, _)| *known == name);
        known.map(|(_, value)| value)
    }

    fn name(&self, name: &str) -> Outcome<'a> {
        if let Some(value) = self.lookup(name) {
            return Ok(value.clone());
        }
        match TYPES.iter().find(|known| **known == name) {
            Some(known) => Ok(Value::Type(known)),
            None => undecided(format!("the name {name} is not known here")),
        }
    }

    fn field(&mut self, of: &'a Expr, name: &str, optional: bool) -> Outcome<'a> {
        match self.eval(of)? {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => value.field(name).map(as_optional),
            value if optional => value.field(name).map(as_optional),
            value => value
                .field(name)?
                .map_or_else(|| fails(format!("no such key: {name}")), Ok),
        }
    }

    fn has(&mut self, of: &'a Expr, name: &str) -> Outcome<'a> {
        let found = match self.eval(of)? {
            Value::Optional(None) => None,
            Value::Optional(Some(value)) => value.field(name)?,
            value => value.field(name)?,
        };
        Ok(Value::Bool(found.is_some()))
    }

    fn index(&mut self, of: &'a Expr, at: &'a Expr, optional: bool) -> Outcome<'a> {
        let of = self.eval(of)?;
        let at = self.eval(at)?;
        let (of, optional) = match of {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => ((*value).clone(), true),
            value => (value, optional),
        };
        let (found, missing) = match (&of, &at) {
            (Value::List(list), Value::Int(index)) => {
                let item = usize::try_from(*index).ok().and_then(|index| list.get(index));
                (item.transpose()?, format!("index out of bounds: {index}"))
            }
            (Value::Map(_), Value::Text(key)) => (of.field(key)?, format!("no such key: {}", &**key)),
            (Value::Map(Map::Made(entries)), key) => {
                let mut found = None;
                for (known, value) in &**entries {
                    if ops::equal(self, known, key)? {
                        found = Some(value.clone());
                    }
                }
                (found, "no such key".to_owned())
            }
            _ => return undecided("[] is used on something that it is not for"),
        };
        match found {
            found if optional => Ok(as_optional(found)),
            Some(value) => Ok(value),
            None => fails(missing),
        }
    }

    /// `||` and `&&`: a part that decides does so whatever the others are, even if they fail.
    fn chain(&mut self, parts: &'a [Expr], decisive: bool) -> Outcome<'a> {
        let mut open = None;
        for part in parts {
            let outcome = self.eval(part);
            if self.decides(outcome, decisive, &mut open)? {
                return Ok(Value::Bool(decisive));
            }
        }
        open.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    /// Whether this part decides. What stops it is kept, and counts if no other part decides.
    fn decides(
        &mut self,
        outcome: Outcome<'a>,
        decisive: bool,
        open: &mut Option<Stop>,
    ) -> Result<bool, Stop> {
        let stop = match outcome {
            Ok(Value::Bool(yes)) => return Ok(yes == decisive),
            Ok(_) => Stop::Undecided("a condition is neither true nor false".to_owned()),
            Err(stop) => stop,
        };
        if self.steps == 0 {
            return Err(stop);
        }
        if open.is_none() || matches!(stop, Stop::Undecided(_)) {
            *open = Some(stop);
        }
        Ok(false)
    }

    fn choose(&mut self, parts: &'a (Expr, Expr, Expr)) -> Outcome<'a> {
        match self.eval(&parts.0)? {
            Value::Bool(true) => self.eval(&parts.1),
            Value::Bool(false) => self.eval(&parts.2),
            _ => undecided("a condition is neither true nor false"),
        }
    }

    fn binary(&mut self, op: Op, parts: &'a (Expr, Expr)) -> Outcome<'a> {
        let left = self.eval(&parts.0)?;
        let right = self.eval(&parts.1)?;
        ops::binary(self, op, &left, &right)
    }

    fn call(&mut self, name: &'a str, on: Option<&'a Expr>, args: &'a [Expr]) -> Outcome<'a> {
        if let Some(Expr::Name(library)) = on
            && LIBRARIES.contains(&library.as_str())
            && self.lookup(library).is_none()
        {
            let args = self.all(args)?;
            return functions::call(self, &format!("{library}.{name}"), &args);
        }
        let mut values = Vec::with_capacity(args.len() + 1);
        if let Some(on) = on {
            let on = self.eval(on)?;
            // What it may be replaced with is not looked at when it has a value.
            match (&on, name) {
                (Value::Optional(Some(value)), "orValue") => return Ok((**value).clone()),
                (Value::Optional(Some(_)), "or") => return Ok(on),
                _ => values.push(on),
            }
        }
        values.extend(self.all(args)?);
        functions::call(self, name, &values)
    }

    fn optional_map(&mut self, of: &'a Expr, name: &'a str, body: &'a Expr, flat: bool) -> Outcome<'a> {
        match self.eval(of)? {
            Value::Optional(Some(value)) => {
                let made = self.with(&[(name, (*value).clone())], body)?;
                Ok(if flat { made } else { Value::some(made) })
            }
            Value::Optional(None) => Ok(Value::Optional(None)),
            _ => undecided("optMap() is used on something that is not optional"),
        }
    }

    fn walk(&mut self, kind: Loop, over: &'a Expr, names: &'a [String], steps: &'a [Expr]) -> Outcome<'a> {
        let over = self.eval(over)?;
        let keys = match &over {
            Value::List(list) => List::Made(Rc::new((0..list.len()).map(|i| Value::Int(i as i64)).collect())),
            Value::Map(map) => List::Made(Rc::new(map.keys())),
            _ => return undecided("a macro walks over something that is neither a list nor a map"),
        };
        self.spend_on(keys.len())?;
        let mut made = Vec::new();
        let mut open = None;
        let mut hits = 0;
        for key in keys.iter() {
            let key = key?;
            let entry = entry(&over, &key, names);
            match kind {
                Loop::All | Loop::Exists => {
                    let outcome = entry.and_then(|entry| self.with(&entry, &steps[0]));
                    if self.decides(outcome, kind == Loop::Exists, &mut open)? {
                        return Ok(Value::Bool(kind == Loop::Exists));
                    }
                }
                Loop::ExistsOne | Loop::Filter => {
                    let entry = entry?;
                    if self.holds(&entry, &steps[0])? {
                        hits += 1;
                        made.extend(entry.last().map(|(_, value)| value.clone()));
                    }
                }
                Loop::Map => {
                    let entry = entry?;
                    let (condition, step) = match steps {
                        [condition, step] => (Some(condition), step),
                        [step, ..] => (None, step),
                        [] => return undecided("a macro has no steps"),
                    };
                    let wanted = condition.map_or(Ok(true), |condition| self.holds(&entry, condition))?;
                    if wanted {
                        made.push(self.with(&entry, step)?);
                    }
                }
            }
        }
        match kind {
            Loop::All | Loop::Exists => open.map_or(Ok(Value::Bool(kind == Loop::All)), Err),
            Loop::ExistsOne => Ok(Value::Bool(hits == 1)),
            Loop::Filter | Loop::Map => Ok(Value::list(made)),
        }
    }

    fn holds(&mut self, entry: &[(&'a str, Value<'a>)], condition: &'a Expr) -> Result<bool, Stop> {
        match self.with(entry, condition)? {
            Value::Bool(yes) => Ok(yes),
            _ => undecided("a condition is neither true nor false"),
        }
    }
}

fn as_optional(value: Option<Value<'_>>) -> Value<'_> {
    Value::Optional(value.map(Rc::new))
}

/// One name is for the entries of a list or the keys of a map, two are for the places and what is there.
fn entry<'a>(
    over: &Value<'a>,
    key: &Value<'a>,
    names: &'a [String],
) -> Result<Vec<(&'a str, Value<'a>)>, Stop> {
    let item = match (over, key) {
        (Value::List(list), Value::Int(index)) => usize::try_from(*index)
            .ok()
            .and_then(|index| list.get(index))
            .unwrap_or_else(|| undecided("an entry is gone")),
        (Value::Map(_), Value::Text(text)) if names.len() == 2 => over
            .field(text)?
            .map_or_else(|| undecided("an entry is gone"), Ok),
        (Value::Map(_), key) if names.len() == 1 => Ok(key.clone()),
        _ => undecided("a map has keys that are no text"),
    }?;
    match names {
        [one] => Ok(vec![(one, item)]),
        [place, one] => Ok(vec![(place, key.clone()), (one, item)]),
        _ => undecided("a macro has too many names"),
    }
}
