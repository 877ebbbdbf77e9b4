//! What a rule looks at: which fields, which constants it compares them with, how it counts entries of lists. From this,
//! values can be made that between them show all that the rule can tell apart.
//!
//! A part is *opaque* where the rule does more with a value than to ask whether it is there or to compare it with
//! constants; then only all possible values would show everything.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    object::cel::{Expr, Loop, Op, unescape},
    schema::{Choices, Schema, Types},
};

/// More constants or fields are not looked into.
const MAX_PARTS: usize = 200;
/// Combinations with more branches are not looked into.
const MAX_BRANCHES: usize = 64;
/// Lists with more entries are not made of all kinds of them.
const MAX_COUNT: u64 = 3;

/// What is looked at in a value.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    pub fields: BTreeMap<String, Reads>,
    /// The entries of a list.
    pub items: Option<Box<Reads>>,
    pub constants: Vec<Value>,
    /// Compared by more than equality.
    pub ordered: bool,
    /// Numbers that the length is compared with.
    pub sizes: BTreeSet<u64>,
    /// So many equal entries of a list are told from fewer, and not from more.
    pub alike: u64,
    pub opaque: bool,
}

impl Reads {
    pub fn merge(&mut self, other: &Self) {
        for (name, reads) in &other.fields {
            self.fields.entry(name.clone()).or_default().merge(reads);
        }
        if let Some(items) = &other.items {
            self.items.get_or_insert_default().merge(items);
        }
        for constant in &other.constants {
            self.constant(constant.clone());
        }
        self.ordered |= other.ordered;
        self.sizes.extend(&other.sizes);
        self.alike = self.alike.max(other.alike);
        self.opaque |= other.opaque;
    }

    pub fn constant(&mut self, value: Value) {
        if !self.constants.contains(&value) {
            self.constants.push(value);
        }
    }

    /// Whether something that both look at is the same.
    pub fn meets(&self, other: &Self) -> bool {
        let leaf = |reads: &Self| reads.fields.is_empty() && reads.items.is_none();
        let items = match (&self.items, &other.items) {
            (Some(one), Some(other)) => one.meets(other),
            _ => false,
        };
        leaf(self)
            || leaf(other)
            || items
            || self
                .fields
                .iter()
                .any(|(name, reads)| other.fields.get(name).is_some_and(|other| reads.meets(other)))
    }
}

/// One rule, looked into.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub reads: Reads,
    /// All constants, wherever they stand.
    pub constants: Vec<Value>,
    /// There was too much to look into.
    pub cut: bool,
}

/// A way from `self` to a part of it.
type Path = Vec<Step>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Items,
}

/// What the rule looks at in a value of this schema.
pub fn of(rule: &Expr, schema: &Schema) -> Reading {
    let mut reader = Reader {
        schema,
        // Nothing changes, so the value before is the value now.
        scope: vec![("self", Some(Path::new())), ("oldSelf", Some(Path::new()))],
        reading: Reading::default(),
        parts: 0,
    };
    reader.visit(rule);
    reader.reading
}

struct Reader<'e> {
    schema: &'e Schema,
    /// Names, and what of `self` they stand for.
    scope: Vec<(&'e str, Option<Path>)>,
    reading: Reading,
    parts: usize,
}

impl<'e> Reader<'e> {
    fn at(&mut self, path: &[Step]) -> &mut Reads {
        self.parts += 1;
        let mut reads = &mut self.reading.reads;
        if self.parts > MAX_PARTS {
            self.reading.cut = true;
            return reads;
        }
        for step in path {
            reads = match step {
                Step::Field(name) => reads.fields.entry(name.clone()).or_default(),
                Step::Items => reads.items.get_or_insert_default(),
            };
        }
        reads
    }

    fn is_list(&self, path: &[Step]) -> bool {
        let mut schema = self.schema;
        for step in path {
            let next = match step {
                Step::Field(name) => schema.properties.get(name).or(schema.additional.as_deref()),
                Step::Items => schema.items.as_deref(),
            };
            match next {
                Some(child) => schema = child,
                None => return false,
            }
        }
        schema.types.without(Types::NULL) == Types::ARRAY
    }

    /// The part of `self` that an expression is.
    fn path(&self, expr: &Expr) -> Option<Path> {
        let field = |of: &Expr, name: &str| {
            let mut path = self.path(of)?;
            path.push(Step::Field(name.to_owned()));
            Some(path)
        };
        match expr {
            Expr::Name(name) => {
                let known = self.scope.iter().rev().find(|(known, _)| known == name);
                known.and_then(|(_, path)| path.clone())
            }
            Expr::Field { of, name, .. } => field(of, &unescape(name)?),
            Expr::Index { of, at, .. } => match &**at {
                Expr::Text(key) => field(of, key),
                _ => None,
            },
            Expr::Call {
                name,
                on: Some(on),
                args,
            } if name == "value" && args.is_empty() => self.path(on),
            _ => None,
        }
    }

    /// A list of `self`, or some of its entries; what picks them is looked into.
    fn list(&mut self, expr: &'e Expr) -> Option<Path> {
        if let Expr::Loop {
            kind: Loop::Filter,
            over,
            names,
            steps,
        } = expr
        {
            let path = self.list(over)?;
            self.body(names, steps, Some(&path));
            return Some(path);
        }
        self.path(expr).filter(|path| self.is_list(path))
    }

    fn body(&mut self, names: &'e [String], steps: &'e [Expr], list: Option<&Path>) {
        let before = self.scope.len();
        let entry = list.map(|path| {
            let mut entry = path.clone();
            entry.push(Step::Items);
            self.at(&entry);
            entry
        });
        for name in names {
            self.scope.push((name, None));
        }
        // Of two names, the first is the place of the entry.
        if let (Some(last), true) = (self.scope.last_mut(), names.len() == 1) {
            last.1 = entry;
        } else if let Some(path) = list {
            self.at(path).opaque = true;
        }
        for step in steps {
            self.visit(step);
        }
        self.scope.truncate(before);
    }

    fn visit(&mut self, expr: &'e Expr) {
        if self.reading.cut || self.visit_known(expr) {
            return;
        }
        if let Some(path) = self.path(expr) {
            self.at(&path).opaque = true;
            return;
        }
        match expr {
            Expr::List(parts) | Expr::Or(parts) | Expr::And(parts) => {
                for part in parts {
                    self.visit(part);
                }
            }
            Expr::Map(entries) => {
                for (key, value) in entries {
                    self.visit(key);
                    self.visit(value);
                }
            }
            Expr::Field { of, .. } | Expr::Has { of, .. } | Expr::Not(of) | Expr::Minus(of) => self.visit(of),
            Expr::Index { of, at, .. } => {
                // By its place: the entries are not all alike then.
                if let Some(path) = self.list(of) {
                    self.at(&path).opaque = true;
                } else {
                    self.visit(of);
                }
                self.visit(at);
            }
            Expr::If(parts) => {
                self.visit(&parts.0);
                self.visit(&parts.1);
                self.visit(&parts.2);
            }
            Expr::Binary(_, sides) => {
                self.visit(&sides.0);
                self.visit(&sides.1);
            }
            Expr::Call { on, args, .. } => {
                for part in on.iter().map(|on| &**on).chain(args) {
                    self.visit(part);
                }
            }
            Expr::Loop {
                over, names, steps, ..
            } => {
                let list = self.list(over);
                match &list {
                    Some(path) => self.at(path).opaque = true,
                    None => self.visit(over),
                }
                self.body(names, steps, list.as_ref());
            }
            Expr::OptionalMap { of, name, body, .. } => {
                let path = self.path(of);
                match &path {
                    Some(path) => {
                        self.at(path);
                    }
                    None => self.visit(of),
                }
                self.scope.push((name, path));
                self.visit(body);
                self.scope.pop();
            }
            constant => {
                if let Some(value) = as_constant(constant)
                    && self.reading.constants.len() < MAX_PARTS
                {
                    self.reading.constants.push(value);
                }
            }
        }
    }

    /// The forms that tell apart no more than is written down of them.
    fn visit_known(&mut self, expr: &'e Expr) -> bool {
        match expr {
            Expr::Has { of, name } => {
                let Some(name) = unescape(name) else { return false };
                let Some(mut path) = self.path(of) else {
                    return false;
                };
                path.push(Step::Field(name.into_owned()));
                self.at(&path);
                true
            }
            Expr::Call {
                name,
                on: Some(on),
                args,
            } if name == "hasValue" && args.is_empty() => {
                let Some(path) = self.path(on) else { return false };
                self.at(&path);
                true
            }
            Expr::Binary(Op::In, sides) => self.visit_in(&sides.0, &sides.1),
            Expr::Binary(op, sides) => {
                self.visit_compared(*op, &sides.0, &sides.1) || self.visit_compared(*op, &sides.1, &sides.0)
            }
            Expr::Loop {
                kind,
                over,
                names,
                steps,
            } if names.len() == 1 => {
                let alike = match kind {
                    Loop::All | Loop::Exists => 1,
                    Loop::ExistsOne => 2,
                    Loop::Filter | Loop::Map => return false,
                };
                let Some(path) = self.list(over) else { return false };
                let reads = self.at(&path);
                reads.alike = reads.alike.max(alike);
                self.body(names, steps, Some(&path));
                true
            }
            _ => false,
        }
    }

    fn visit_in(&mut self, one: &'e Expr, of: &'e Expr) -> bool {
        if let (Some(path), Expr::List(list)) = (self.plain(one), of) {
            let Some(constants) = list.iter().map(as_constant).collect::<Option<Vec<_>>>() else {
                return false;
            };
            self.compared(&path, constants);
            return true;
        }
        let (Some(constant), Some(mut path)) = (as_constant(one), self.path(of)) else {
            return false;
        };
        if self.is_list(&path) {
            let reads = self.at(&path);
            reads.alike = reads.alike.max(1);
            path.push(Step::Items);
            self.compared(&path, vec![constant]);
        } else if let Value::String(key) = constant {
            path.push(Step::Field(key));
            self.at(&path);
        } else {
            return false;
        }
        true
    }

    fn compared(&mut self, path: &[Step], constants: Vec<Value>) {
        self.reading
            .constants
            .extend(constants.iter().take(MAX_PARTS).cloned());
        self.parts += constants.len();
        let reads = self.at(path);
        for constant in constants.into_iter().take(MAX_PARTS) {
            reads.constant(constant);
        }
    }

    fn visit_compared(&mut self, op: Op, one: &'e Expr, other: &'e Expr) -> bool {
        let compares = matches!(
            op,
            Op::Equal | Op::Unequal | Op::Less | Op::LessOrEqual | Op::Greater | Op::GreaterOrEqual
        );
        if !compares {
            return false;
        }
        let equality = matches!(op, Op::Equal | Op::Unequal);
        if let (Some(path), Some(of_other)) = (self.path(one), self.path(other))
            && path == of_other
            && is_one_value(&path, one, other)
        {
            self.at(&path);
            return equality;
        }
        let Some(constant) = as_constant(other) else {
            return false;
        };
        if let Some(counted) = size_of(one)
            && let Some(size) = constant.as_u64()
        {
            return self.visit_size(counted, size);
        }
        let Some(path) = self.plain(one) else { return false };
        if !equality && !constant.is_number() {
            return false;
        }
        self.compared(&path, vec![constant]);
        self.at(&path).ordered |= !equality;
        true
    }

    fn visit_size(&mut self, counted: &'e Expr, size: u64) -> bool {
        if let Some(path) = self.list(counted) {
            let reads = self.at(&path);
            reads.alike = reads.alike.max(size.saturating_add(1).min(MAX_COUNT));
            if size >= MAX_COUNT {
                reads.opaque = true;
                reads.sizes.insert(size);
            }
            return true;
        }
        let Some(path) = self.path(counted) else {
            return false;
        };
        self.at(&path).sizes.insert(size);
        true
    }

    /// A part of `self`, or what stands for it where it is missing.
    fn plain(&mut self, expr: &'e Expr) -> Option<Path> {
        match expr {
            Expr::Call {
                name,
                on: Some(on),
                args,
            } if name == "orValue" && args.len() == 1 && as_constant(&args[0]).is_some() => self.path(on),
            _ => self.path(expr),
        }
    }
}

/// Whether two expressions that lead to the same place are the same value: a list has many entries at one place, and
/// only what is taken from the same entry is of the same entry.
fn is_one_value(path: &[Step], one: &Expr, other: &Expr) -> bool {
    !path.contains(&Step::Items) || root(one).is_some_and(|name| root(other) == Some(name))
}

/// The name that an expression starts from.
fn root(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Name(name) => Some(name),
        Expr::Field { of, .. } | Expr::Index { of, .. } => root(of),
        Expr::Call { on: Some(on), .. } => root(on),
        _ => None,
    }
}

pub fn size_of(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Call {
            name,
            on: Some(on),
            args,
        } if name == "size" && args.is_empty() => Some(on),
        Expr::Call { name, on: None, args } if name == "size" && args.len() == 1 => args.first(),
        _ => None,
    }
}

pub fn as_constant(expr: &Expr) -> Option<Value> {
    Some(match expr {
        Expr::Bool(yes) => (*yes).into(),
        Expr::Int(number) => (*number).into(),
        Expr::Double(number) => (*number).into(),
        Expr::Text(text) => text.as_str().into(),
        Expr::Minus(inner) => match &**inner {
            Expr::Int(number) => number.checked_neg()?.into(),
            Expr::Double(number) => (-number).into(),
            _ => return None,
        },
        _ => return None,
    })
}

/// The fields that combinations tie together, where they speak of nothing but whether fields are there.
pub fn tied(choices: &Choices) -> Option<Reads> {
    let mut reads = Reads::default();
    let mut left = MAX_BRANCHES;
    (!choices.is_empty() && ties(choices, &mut reads, &mut left)).then_some(reads)
}

fn ties(choices: &Choices, reads: &mut Reads, left: &mut usize) -> bool {
    let groups = choices.any.iter().chain(&choices.one).flatten();
    groups.chain(&choices.not).all(|branch| {
        *left = left.saturating_sub(1);
        for name in branch.required.iter().take(*left) {
            reads.fields.entry(name.clone()).or_default();
        }
        let mut rest = Schema::empty();
        rest.types = branch.types;
        rest.required.clone_from(&branch.required);
        rest.choices = branch.choices.clone();
        *left > branch.required.len()
            && branch.types.has(Types::OBJECT)
            && *branch == rest
            && ties(&branch.choices, reads, left)
    })
}
