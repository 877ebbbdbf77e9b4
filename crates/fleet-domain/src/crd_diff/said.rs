//! What the rules and combinations of a schema come to in the words of limits and required fields. `self in ['a', 'b']`
//! and `anyOf` of two lists say the same as one `enum`: a schema that is put into other words refuses nothing new.
//!
//! All that is told here is true of every value that the schema takes; what is not understood is left out.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    number::{Bound, Number},
    object::cel::{Expr, Op, unescape},
    reads::{as_constant, size_of},
    schema::{Choices, Count, Enumeration, Limits, Schema, Types},
    sink::Step,
};

/// How much is looked into for one pair of definitions: branches, parts of rules, values of lists.
const MAX_PARTS: usize = 20_000;
/// Longer lists and longer patterns are not put together.
const MAX_VALUES: usize = 1_000;
const MAX_PATTERN: usize = 2_048;

/// What is true of a value.
#[derive(Clone, Debug)]
pub struct Said {
    /// Of which kinds it is.
    pub types: Types,
    pub limits: Limits,
    /// Fields that are there.
    pub there: BTreeSet<String>,
    /// Fields that are not.
    absent: BTreeSet<String>,
    /// What is true of fields, where they are there.
    fields: BTreeMap<String, Said>,
    /// There is no such value.
    never: bool,
}

impl Default for Said {
    fn default() -> Self {
        Self {
            types: Types::ANY,
            limits: Limits::default(),
            there: BTreeSet::new(),
            absent: BTreeSet::new(),
            fields: BTreeMap::new(),
            never: false,
        }
    }
}

impl Said {
    fn never() -> Self {
        Self {
            never: true,
            ..Self::default()
        }
    }

    /// Both are true.
    pub fn and(&mut self, other: Self) {
        self.never |= other.never;
        self.types = self.types.and(other.types);
        restrict(&mut self.limits, other.limits);
        self.there.extend(other.there);
        self.absent.extend(other.absent);
        for (name, said) in other.fields {
            self.fields.entry(name).or_default().and(said);
        }
        // So that either way to say it can be compared with the other.
        let count = self.there.len() as u64;
        self.limits.fields.min = self.limits.fields.min.max(count);
    }

    /// One of both is true.
    fn or(self, other: Self) -> Self {
        if self.never {
            return other;
        }
        if other.never {
            return self;
        }
        let kinds = [self.types, other.types];
        // A side that has no values of this kind says nothing of them.
        let of = |kind: Types| kinds.map(|types| types.has(kind));
        let (a, b) = (self.limits, other.limits);
        let numbers = |a: Option<Bound>, b: Option<Bound>, is_tighter: fn(Bound, Bound) -> bool| {
            one_of(of(Types::NUMBER), a, b, |a, b| {
                let (a, b) = (a?, b?);
                Some(if is_tighter(a, b) { b } else { a })
            })
        };
        let limits = Limits {
            enumeration: either_list(a.enumeration, b.enumeration),
            minimum: numbers(a.minimum, b.minimum, Bound::is_tighter_lower),
            maximum: numbers(a.maximum, b.maximum, Bound::is_tighter_upper),
            length: one_of(of(Types::STRING), a.length, b.length, hull),
            items: one_of(of(Types::ARRAY), a.items, b.items, hull),
            fields: one_of(of(Types::OBJECT), a.fields, b.fields, hull),
            patterns: one_of(of(Types::STRING), a.patterns, b.patterns, either_pattern),
            ..Limits::default()
        };
        let objects = of(Types::OBJECT);
        let common = |a: BTreeSet<String>, b: BTreeSet<String>| a.intersection(&b).cloned().collect();
        let (before, after) = (self.fields, other.fields);
        let fields = either_fields(objects, (before, &self.absent), (after, &other.absent));
        Self {
            types: kinds[0].or(kinds[1]),
            limits,
            there: one_of(objects, self.there, other.there, common),
            absent: one_of(objects, self.absent, other.absent, common),
            fields,
            never: false,
        }
    }

    /// A schema with these types and limits, and what is true of its values besides.
    pub fn added_to(self, schema: &Schema) -> Schema {
        let mut limits = (*schema.limits).clone();
        restrict(&mut limits, self.limits);
        Schema {
            types: schema.types.and(self.types),
            limits: limits.into(),
            required: schema.required.clone(),
            ..Schema::empty()
        }
    }

    fn at(&mut self, path: &[String]) -> &mut Self {
        path.iter()
            .fold(self, |said, name| said.fields.entry(name.clone()).or_default())
    }

    /// What a rule reads is there, or it could not be met.
    fn reads(path: &[String]) -> Self {
        let mut said = Self::default();
        for (depth, name) in path.iter().enumerate() {
            let parent = said.at(&path[..depth]);
            parent.there.insert(name.clone());
            parent.limits.fields.min = 1;
        }
        said
    }

    /// A limit of what a rule reads.
    fn limited(path: &[String], limits: Limits) -> Self {
        let mut said = Self::reads(path);
        said.at(path).and(Self {
            limits,
            ..Self::default()
        });
        said
    }
}

/// What both sides know, each only if it can have such values at all.
fn one_of<T>(sides: [bool; 2], a: T, b: T, both: impl FnOnce(T, T) -> T) -> T {
    match sides {
        [true, false] => a,
        [false, true] => b,
        _ => both(a, b),
    }
}

fn hull(a: Count, b: Count) -> Count {
    Count {
        min: a.min.min(b.min),
        max: a.max.zip(b.max).map(|(a, b)| a.max(b)),
    }
}

fn either_list(a: Option<Box<Enumeration>>, b: Option<Box<Enumeration>>) -> Option<Box<Enumeration>> {
    let (a, b) = (a?, b?);
    if a.values.len() + b.values.len() > MAX_VALUES {
        return None;
    }
    Some(Box::new(Enumeration::new([a.values, b.values].concat())))
}

/// Of several patterns that hold together, one is as true as all.
fn either_pattern(a: BTreeSet<String>, b: BTreeSet<String>) -> BTreeSet<String> {
    if a == b {
        return a;
    }
    let (Some(a), Some(b)) = (a.first(), b.first()) else {
        return BTreeSet::new();
    };
    let joined = format!("(?:{a})|(?:{b})");
    BTreeSet::from_iter((joined.len() <= MAX_PATTERN).then_some(joined))
}

type Fields<'s> = (BTreeMap<String, Said>, &'s BTreeSet<String>);

fn either_fields(
    objects: [bool; 2],
    (a, not_in_a): Fields<'_>,
    (mut b, not_in_b): Fields<'_>,
) -> BTreeMap<String, Said> {
    match objects {
        [true, false] => return a,
        [false, true] => return b,
        _ => {}
    }
    let mut fields = BTreeMap::new();
    for (name, said) in a {
        if let Some(other) = b.remove(&name) {
            fields.insert(name, said.or(other));
        } else if not_in_b.contains(&name) {
            fields.insert(name, said);
        }
    }
    fields.extend(b.into_iter().filter(|(name, _)| not_in_a.contains(name)));
    fields
}

/// Makes limits those that hold together with others.
fn restrict(limits: &mut Limits, other: Limits) {
    limits.enumeration = match (limits.enumeration.take(), other.enumeration) {
        (Some(mut a), Some(b)) => {
            a.values.retain(|value| b.contains(value));
            Some(Box::new(Enumeration::new(a.values)))
        }
        (a, b) => a.or(b),
    };
    let tighter = |a: Option<Bound>, b: Option<Bound>, is_tighter: fn(Bound, Bound) -> bool| match (a, b) {
        (Some(a), Some(b)) => Some(if is_tighter(a, b) { a } else { b }),
        (a, b) => a.or(b),
    };
    limits.minimum = tighter(limits.minimum, other.minimum, Bound::is_tighter_lower);
    limits.maximum = tighter(limits.maximum, other.maximum, Bound::is_tighter_upper);
    limits.length.merge(other.length);
    limits.items.merge(other.items);
    limits.fields.merge(other.fields);
    limits.patterns.extend(other.patterns);
}

/// The schemas around a place whose rules and combinations may speak of it, with their depth, and what they come to
/// once somebody asked.
#[derive(Default)]
pub struct Around<'a>(Vec<(usize, &'a Schema, Option<Said>)>);

impl<'a> Around<'a> {
    /// The walk goes into a schema that is so many steps deep.
    pub fn enter(&mut self, depth: usize, schema: &'a Schema) {
        if !schema.choices.is_empty() || !schema.rules.is_empty() {
            self.0.push((depth, schema, None));
        }
    }

    pub fn leave(&mut self, depth: usize) {
        self.0.pop_if(|(own, ..)| *own == depth);
    }

    /// What all of them say of the place that these steps lead to; nothing if it is nothing.
    pub fn here(&mut self, steps: &[Step<'_>], rules: bool, reader: &mut Reader) -> Option<Said> {
        let mut here: Option<Said> = None;
        for (depth, schema, said) in &mut self.0 {
            let way = &steps[*depth..];
            if !reader.takes(1 + way.len()) {
                return None;
            }
            let said = &*said.get_or_insert_with(|| reader.of(schema, rules));
            let found = way.iter().try_fold(said, |said, step| match step {
                Step::Field(name) => said.fields.get(*name),
                Step::Items | Step::Values => None,
            });
            if let Some(found) = found {
                here.get_or_insert_default().and(found.clone());
            }
        }
        here
    }
}

/// Looks into schemas and rules, within bounds over the whole of one pair of definitions.
pub struct Reader {
    left: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self { left: MAX_PARTS }
    }
}

impl Reader {
    /// Whether there is room for so much more; what was asked for is gone in any case.
    fn takes(&mut self, parts: usize) -> bool {
        self.left = self.left.saturating_sub(parts);
        self.left > 0
    }

    /// What the combinations of a schema say, and its rules where the server looks at them.
    fn of(&mut self, schema: &Schema, rules: bool) -> Said {
        let mut said = self.choices(&schema.choices);
        // A transition rule says nothing of a value that stays.
        for rule in schema.rules.iter().filter(|rule| rules && !rule.transition) {
            if !self.takes(1 + rule.source.text.len() / 16) {
                break;
            }
            if let Ok(program) = rule.source.program() {
                said.and(self.rule(&program.expr, true));
            }
        }
        said
    }

    fn choices(&mut self, choices: &Choices) -> Said {
        let mut said = Said::default();
        for group in choices.any.iter().chain(&choices.one) {
            let branches = group.iter().map(|branch| self.branch(branch));
            said.and(branches.fold(Said::never(), Said::or));
        }
        for not in &choices.not {
            // One field that must not be there.
            let mut alone = Schema::empty();
            alone.types = not.types;
            alone.required.clone_from(&not.required);
            if self.takes(1) && not.required.len() == 1 && not.types.has(Types::OBJECT) && *not == alone {
                said.absent.extend(not.required.iter().cloned());
            }
        }
        said
    }

    /// All that a branch says.
    fn branch(&mut self, schema: &Schema) -> Said {
        let listed = schema
            .limits
            .enumeration
            .as_ref()
            .map_or(0, |list| list.values.len());
        if !self.takes(1 + schema.required.len() + listed + schema.limits.patterns.len())
            || schema.unread.is_some()
        {
            return Said::default();
        }
        let mut said = self.choices(&schema.choices);
        let fields = schema.properties.iter();
        said.and(Said {
            types: schema.types,
            limits: (*schema.limits).clone(),
            there: schema.required.clone(),
            fields: fields
                .map(|(name, field)| (name.clone(), self.branch(field)))
                .collect(),
            ..Said::default()
        });
        said
    }

    /// What is true of `self` where the expression is true, or where it is false. An error is neither.
    fn rule(&mut self, expr: &Expr, is: bool) -> Said {
        if !self.takes(1) {
            return Said::default();
        }
        match (expr, is) {
            (Expr::Bool(value), _) if *value != is => Said::never(),
            (Expr::Not(inner), _) => self.rule(inner, !is),
            (Expr::And(parts), true) | (Expr::Or(parts), false) => {
                let mut said = Said::default();
                for part in parts {
                    said.and(self.rule(part, is));
                }
                said
            }
            (Expr::Or(parts), true) | (Expr::And(parts), false) => {
                let parts = parts.iter().map(|part| self.rule(part, is));
                parts.fold(Said::never(), Said::or)
            }
            (Expr::If(parts), _) => {
                let mut yes = self.rule(&parts.0, true);
                yes.and(self.rule(&parts.1, is));
                let mut no = self.rule(&parts.0, false);
                no.and(self.rule(&parts.2, is));
                yes.or(no)
            }
            (Expr::Has { of, name }, _) => has(of, name, is).unwrap_or_default(),
            (Expr::Binary(op, sides), _) => compared(*op, &sides.0, &sides.1, is).unwrap_or_default(),
            (
                Expr::Call {
                    name,
                    on: Some(on),
                    args,
                },
                true,
            ) if name == "matches" => matches(on, args).unwrap_or_default(),
            _ => Said::default(),
        }
    }
}

/// The field of `self` that an expression is.
fn path(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Name(name) if name == "self" => Some(Vec::new()),
        Expr::Field {
            of,
            name,
            optional: false,
        } => {
            let mut path = path(of)?;
            path.push(unescape(name)?.into_owned());
            Some(path)
        }
        _ => None,
    }
}

fn has(of: &Expr, name: &str, is: bool) -> Option<Said> {
    let mut path = path(of)?;
    let name = unescape(name)?.into_owned();
    if is {
        path.push(name);
        return Some(Said::reads(&path));
    }
    let mut said = Said::reads(&path);
    said.at(&path).absent.insert(name);
    Some(said)
}

fn matches(on: &Expr, args: &[Expr]) -> Option<Said> {
    let [Expr::Text(pattern)] = args else { return None };
    let limits = Limits {
        patterns: BTreeSet::from([pattern.clone()]),
        ..Limits::default()
    };
    Some(Said::limited(&path(on)?, limits))
}

fn compared(op: Op, one: &Expr, other: &Expr, is: bool) -> Option<Said> {
    if let (Op::In, true, Expr::List(values)) = (op, is, other) {
        return listed(
            &path(one)?,
            values.iter().map(as_constant).collect::<Option<_>>()?,
        );
    }
    let (op, one, other) = match as_constant(other) {
        Some(_) => (op, one, other),
        None => (turned(op)?, other, one),
    };
    let op = if is { op } else { opposite(op)? };
    let constant = as_constant(other)?;
    if let Some(counted) = size_of(one) {
        let count = count(op, constant.as_u64()?)?;
        // Only one of them is about values of its kind.
        let limits = Limits {
            length: count,
            items: count,
            fields: count,
            ..Limits::default()
        };
        return Some(Said::limited(&path(counted)?, limits));
    }
    let path = path(one)?;
    let mut limits = Limits::default();
    match op {
        Op::Equal => return listed(&path, vec![constant]),
        Op::Unequal if constant == "" => limits.length.min = 1,
        Op::Unequal => {}
        _ => {
            let value = Number::from_json(&constant)?;
            let bound = |exclusive| Some(Bound { value, exclusive });
            match op {
                Op::Less | Op::LessOrEqual => limits.maximum = bound(op == Op::Less),
                Op::Greater | Op::GreaterOrEqual => limits.minimum = bound(op == Op::Greater),
                _ => return None,
            }
        }
    }
    Some(Said::limited(&path, limits))
}

fn listed(path: &[String], values: Vec<serde_json::Value>) -> Option<Said> {
    if values.len() > MAX_VALUES {
        return None;
    }
    let limits = Limits {
        enumeration: Some(Box::new(Enumeration::new(values))),
        ..Limits::default()
    };
    Some(Said::limited(path, limits))
}

fn count(op: Op, number: u64) -> Option<Count> {
    let from = |min| Some(Count { min, max: None });
    let to = |max| {
        Some(Count {
            min: 0,
            max: Some(max),
        })
    };
    match op {
        Op::Equal => Some(Count {
            min: number,
            max: Some(number),
        }),
        Op::Unequal if number == 0 => from(1),
        Op::Greater => from(number.saturating_add(1)),
        Op::GreaterOrEqual => from(number),
        Op::Less => to(number.saturating_sub(1)),
        Op::LessOrEqual => to(number),
        _ => None,
    }
}

/// The same, with its sides exchanged.
fn turned(op: Op) -> Option<Op> {
    Some(match op {
        Op::Equal | Op::Unequal => op,
        Op::Less => Op::Greater,
        Op::LessOrEqual => Op::GreaterOrEqual,
        Op::Greater => Op::Less,
        Op::GreaterOrEqual => Op::LessOrEqual,
        _ => return None,
    })
}

/// What is true where it is false.
fn opposite(op: Op) -> Option<Op> {
    Some(match op {
        Op::Equal => Op::Unequal,
        Op::Unequal => Op::Equal,
        Op::Less => Op::GreaterOrEqual,
        Op::LessOrEqual => Op::Greater,
        Op::Greater => Op::LessOrEqual,
        Op::GreaterOrEqual => Op::Less,
        _ => return None,
    })
}

/// The one pattern that branches come to which are patterns and nothing else.
pub fn one_pattern(branches: &[Schema]) -> Option<String> {
    let mut joined = BTreeSet::new();
    for (index, branch) in branches.iter().enumerate() {
        let mut alone = Schema::empty();
        alone.limits.patterns.clone_from(&branch.limits.patterns);
        if branch.limits.patterns.len() != 1 || *branch != alone {
            return None;
        }
        let own = branch.limits.patterns.clone();
        joined = if index == 0 {
            own
        } else {
            either_pattern(joined, own)
        };
    }
    joined.pop_first()
}
