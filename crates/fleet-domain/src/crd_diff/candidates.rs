//! Makes values of a schema for a rule to be tried on: for each field that the rule looks at, it is there or not, and has
//! one of the constants that it is compared with or another value.
//!
//! Between them, the values show all that the rule can tell apart, or it is said that they do not. How many there are is
//! bounded.

use serde_json::{Map, Value, json};

use super::{
    object::{Checker, filled_in},
    pattern::Budget,
    reads::{self, Reads},
    schema::{ListType, Schema, Types},
};

/// How many values are made.
pub const MAX_VALUES: usize = 512;
/// How many values of an enum are looked at.
const MAX_LISTED: usize = 64;
/// How many kinds of entries a list is made of.
const MAX_ENTRIES: usize = 24;
/// Longer text and lists are not made without need.
pub const MAX_LENGTH: u64 = 300;
/// Nor are longer ones where a rule counts so far, and no more of them for one rule.
pub const MAX_COUNTED: u64 = 2_000;
pub const MAX_LONG: usize = 6;
/// How many values are altered so that the schema takes them.
const MAX_REPAIRED: usize = 32;
/// How many rules are looked at for that.
const MAX_RULES: usize = 32;
/// How many values of a field are tried for that.
const MAX_TRIED: usize = 6;
/// How deep a value is made that has to be there and is not looked at.
pub const MAX_DEPTH: usize = 12;

/// Keys of many forms.
const KEYS: [&str; 6] = ["o", "", "0", "O o!", "*", "example.com/o"];

/// Fields that every whole object has.
const ALWAYS: [&str; 3] = ["apiVersion", "kind", "metadata"];

#[derive(Debug, Default)]
pub struct Values {
    pub list: Vec<Value>,
    /// Whatever is not in the list is like something in it.
    pub complete: bool,
}

/// Where a value is made for: objects of the old schema, which the new one types.
#[derive(Clone, Copy)]
pub struct Place<'s> {
    pub old: &'s Schema,
    pub new: Option<&'s Schema>,
    /// The whole object.
    pub root: bool,
    /// The place whose rules are in question: they do not count here.
    pub top: bool,
}

pub struct Maker<'m> {
    pub checker: &'m mut Checker,
    pub patterns: &'m mut Budget,
    /// The constants of all rules in question.
    pub constants: &'m [Value],
    /// How much more may be done.
    pub left: &'m mut u64,
}

/// Values that are made one by one: of the fields of an object, every choice of what each of them may be.
#[derive(Debug, Default)]
pub struct Plan {
    /// What all of them have.
    base: Map<String, Value>,
    /// Each field, and what it may be; nothing is that it is not there.
    options: Vec<(String, Vec<Option<Value>>)>,
    /// So many choices, this far apart, are looked at.
    choices: usize,
    stride: usize,
    /// Those that are no such choice.
    others: Vec<Value>,
    /// Whatever is not among them is like something that is.
    pub complete: bool,
}

impl Plan {
    pub fn len(&self) -> usize {
        self.choices + self.others.len()
    }

    pub fn nth(&self, number: usize) -> Value {
        if number >= self.choices {
            return self.others[number - self.choices].clone();
        }
        let mut rest = number.wrapping_mul(self.stride);
        let mut fields = self.base.clone();
        for (name, values) in &self.options {
            if let Some(value) = &values[rest % values.len()] {
                fields.insert(name.clone(), value.clone());
            }
            rest /= values.len();
        }
        Value::Object(fields)
    }

    /// What it took to find out what there is to try.
    pub fn weight(&self) -> u64 {
        let options = self.options.iter().map(|(_, values)| 1 + values.len());
        (self.base.len() + options.sum::<usize>() + self.others.len()) as u64
    }

    /// What it takes to make one.
    pub fn cost(&self) -> u64 {
        1 + 2 * (self.base.len() + self.options.len()) as u64
    }
}

impl From<Values> for Plan {
    fn from(values: Values) -> Self {
        Self {
            others: values.list,
            complete: values.complete,
            ..Self::default()
        }
    }
}

impl Maker<'_> {
    /// All values of a plan.
    pub fn values(&mut self, place: Place<'_>, reads: &Reads) -> Values {
        let plan = self.plan(place, reads);
        *self.left = self.left.saturating_sub(plan.len() as u64 * plan.cost());
        let mut list: Vec<Value> = (0..plan.len()).map(|number| plan.nth(number)).collect();
        let schema = place.old;
        let limited = !schema.rules.is_empty() || !schema.choices.is_empty();
        if limited && !place.top {
            for value in list.iter_mut().take(plan.choices.min(MAX_REPAIRED)) {
                if let Some(better) = self.repaired(place, value, reads) {
                    *value = better;
                }
            }
        }
        Values {
            list,
            complete: plan.complete,
        }
    }

    pub fn plan(&mut self, place: Place<'_>, reads: &Reads) -> Plan {
        let schema = place.old;
        let types = schema.types.without(Types::NULL);
        let readable = schema.unread.is_none() && *self.left > 0;
        if readable && types == Types::OBJECT && schema.limits.enumeration.is_none() {
            let mut plan = self.objects(place, reads);
            if schema.nullable {
                plan.others.push(Value::Null);
            }
            return plan;
        }
        let mut values = if !readable {
            Values::default()
        } else if let Some(listed) = &schema.limits.enumeration {
            Values {
                list: listed
                    .values
                    .iter()
                    .take(MAX_LISTED)
                    .filter(|value| !value.is_null())
                    .cloned()
                    .collect(),
                complete: listed.values.len() <= MAX_LISTED,
            }
        } else if types == Types::ARRAY {
            self.lists(place, reads)
        } else {
            self.scalars(place, reads)
        };
        if schema.nullable {
            values.list.push(Value::Null);
        }
        if types != Types::OBJECT && types != Types::ARRAY {
            let open = schema.limits.enumeration.is_none() && types != Types::BOOLEAN;
            let is_constant = |value: &Value| value.is_null() || reads.constants.contains(value);
            values.list.retain(|value| self.takes(schema, value, place.top));
            if !(reads.opaque || reads.ordered) && reads.sizes.is_empty() {
                // What the rule cannot tell apart is one and the same to it.
                let mut seen = Types::NULL;
                values.list.retain(|value| {
                    let kind = Types::of(value);
                    let first = !seen.has(kind);
                    if !is_constant(value) {
                        seen = seen.or(kind);
                    }
                    first || is_constant(value)
                });
            }
            // Where the constants are not all there is, something has to stand for the others.
            values.complete &= !open || values.list.iter().any(|value| !is_constant(value));
        }
        values.into()
    }

    /// Whether the schema takes a value for itself.
    fn takes(&mut self, schema: &Schema, value: &Value, top: bool) -> bool {
        *self.left = self.left.saturating_sub(1);
        if top {
            self.checker.accepts(schema, value)
        } else {
            self.checker.check_part(schema, value).is_empty()
        }
    }

    fn lists(&mut self, place: Place<'_>, reads: &Reads) -> Values {
        let schema = place.old;
        let nothing = Reads::default();
        let entries = match &schema.items {
            Some(items) => {
                let child = Place {
                    old: items,
                    new: place.new.and_then(|new| new.items.as_deref()),
                    root: false,
                    top: false,
                };
                self.values(child, reads.items.as_deref().unwrap_or(&nothing))
            }
            None => Values::default(),
        };
        let alike = usize::try_from(reads.alike).unwrap_or(1).max(1);
        let limits = schema.limits.items;
        let mut complete = entries.complete && !reads.opaque && reads.sizes.is_empty();
        let kinds = entries.list.len();
        let all = (alike + 1).checked_pow(u32::try_from(kinds).unwrap_or(u32::MAX));
        let mut list = Vec::new();
        let looked_at = |name: &str| {
            reads
                .items
                .as_ref()
                .is_some_and(|items| items.fields.contains_key(name))
        };
        let mut add = |some: Vec<Value>, padding: Option<&Value>| {
            let mut some = some;
            // The last one stands for more of its kind.
            while (some.len() as u64) < limits.min.min(MAX_LENGTH)
                && let Some(more) = padding
            {
                some.push(more.clone());
            }
            if let ListType::Map(keys) = &schema.list {
                for key in keys.iter().filter(|key| !looked_at(key)) {
                    number_by(key, &mut some);
                }
            }
            if limits.admits(some.len() as u64) || limits.min > MAX_LENGTH {
                list.push(Value::from(some));
            }
        };
        if let Some(all) = all.filter(|all| *all <= MAX_VALUES / 2) {
            for number in 0..all {
                let (mut some, mut padding, mut rest) = (Vec::new(), None, number);
                for entry in &entries.list {
                    let count = rest % (alike + 1);
                    rest /= alike + 1;
                    some.extend(std::iter::repeat_n(entry.clone(), count));
                    if count == alike {
                        padding = Some(entry);
                    }
                }
                add(some, padding);
            }
        } else {
            complete = false;
            add(Vec::new(), entries.list.first());
            for entry in entries.list.iter().take(MAX_ENTRIES) {
                add(vec![entry.clone()], Some(entry));
                add(vec![entry.clone(); alike.max(2)], Some(entry));
            }
            for pair in entries.list.windows(2).take(MAX_ENTRIES) {
                add(pair.to_vec(), pair.last());
            }
        }
        for size in reads.sizes.iter().take(MAX_LONG) {
            // One more than the rule counts to, all of one kind.
            let count = size.saturating_add(1);
            if let Some(entry) = entries.list.first()
                && limits.admits(count)
                && count.saturating_mul(weight(entry)) <= MAX_COUNTED
                && let Ok(length) = usize::try_from(count)
            {
                let mut some = vec![entry.clone(); length];
                match &schema.list {
                    ListType::Map(keys) => {
                        if let Some(key) = keys.first() {
                            number_by(key, &mut some);
                        }
                    }
                    ListType::Set => number_all(&mut some),
                    ListType::Atomic => {}
                }
                *self.left = self.left.saturating_sub(MAX_COUNTED / 4);
                list.push(Value::from(some));
            }
        }
        complete &= limits.min <= MAX_LENGTH && (schema.list == ListType::Atomic || limits.min <= 1);
        *self.left = self.left.saturating_sub(list.len() as u64);
        Values { list, complete }
    }

    fn objects(&mut self, place: Place<'_>, reads: &Reads) -> Plan {
        let schema = place.old;
        let mut complete = !reads.opaque && reads.items.is_none() && reads.sizes.is_empty();
        let mut base = Map::new();
        if place.root {
            base = whole().into_iter().collect();
        }
        for name in &schema.required {
            if schema.demands(name)
                && !reads.fields.contains_key(name)
                && let Some(child) = schema.properties.get(name).or(schema.additional.as_deref())
                && let Some(value) = self.sample(child, MAX_DEPTH)
            {
                base.insert(name.clone(), value);
            }
        }
        let mut options: Vec<(String, Vec<Option<Value>>)> = Vec::new();
        for (name, inner) in &reads.fields {
            if (place.root || schema.embedded) && ALWAYS.contains(&name.as_str()) {
                complete &= name == "metadata" && place.root;
                continue;
            }
            if !schema.keeps(name) {
                continue;
            }
            let after = place
                .new
                .and_then(|new| new.properties.get(name).or(new.additional.as_deref()));
            let before = schema.properties.get(name).filter(|child| !child.unstructured);
            // Where anything was kept, what counts is what the new schema takes of it.
            let Some(old) = before.or(schema.additional.as_deref()).or(after) else {
                complete = false;
                continue;
            };
            let child = Place {
                old,
                new: after,
                root: false,
                top: false,
            };
            let values = self.values(child, inner);
            complete &= values.complete;
            let mut all: Vec<Option<Value>> = values.list.into_iter().map(Some).collect();
            if !old.nullable && after.is_some_and(|after| after.nullable) {
                // It was dropped, and is not any more.
                all.push(Some(Value::Null));
            }
            if !schema.demands(name) {
                all.insert(0, None);
            }
            options.push((name.clone(), all));
        }
        if place.root
            && let Some(metadata) = reads.fields.get("metadata")
        {
            options.push(("metadata".to_owned(), self.named(place, metadata, &mut complete)));
        }
        let all = options
            .iter()
            .try_fold(1_usize, |all, (_, values)| all.checked_mul(values.len()))
            .unwrap_or(usize::MAX);
        complete &= all <= MAX_VALUES;
        // Where not all are made, they are taken from everywhere.
        let stride = if all > MAX_VALUES {
            (all / MAX_VALUES) | 1
        } else {
            1
        };
        let mut others = Vec::new();
        if reads.opaque
            && let Some(values) = &schema.additional
            && let Some(value) = self.sample(values, MAX_DEPTH)
        {
            let texts = self.constants.iter().filter_map(Value::as_str).take(16);
            for key in KEYS.into_iter().chain(texts) {
                others.push(json!({key: value}));
            }
            others.push(json!({"o".repeat(64): value}));
        }
        Plan {
            base,
            options,
            choices: all.min(MAX_VALUES),
            stride,
            others,
            complete,
        }
    }

    /// The value with other fields than `fixed` set so that the schema takes it, with its rules and combinations: most
    /// of these ask for one more field, or for one less.
    pub fn repaired(&mut self, place: Place<'_>, value: &Value, fixed: &Reads) -> Option<Value> {
        let schema = place.old;
        let mut tied = reads::tied(&schema.choices).unwrap_or_default();
        for rule in schema.rules.iter().take(MAX_RULES) {
            *self.left = self.left.saturating_sub(rule.source.cost());
            if let Ok(program) = rule.source.program() {
                tied.merge(&reads::of(&program.expr, schema).reads);
            }
        }
        let mut best = value.clone();
        let mut faults = self.faults(place, &best);
        for (name, inner) in tied
            .fields
            .iter()
            .filter(|(name, _)| !fixed.fields.contains_key(*name))
        {
            if faults == 0 || *self.left == 0 {
                break;
            }
            let before = schema.properties.get(name).or(schema.additional.as_deref());
            let Some(old) = before else { continue };
            let child = Place {
                old,
                new: None,
                root: false,
                top: false,
            };
            let values = self
                .values(child, inner)
                .list
                .into_iter()
                .take(MAX_TRIED)
                .map(Some);
            for option in values.chain([None]) {
                let mut other = best.clone();
                let Value::Object(fields) = &mut other else {
                    return None;
                };
                match option {
                    Some(value) => fields.insert(name.clone(), value),
                    None => fields.remove(name),
                };
                let left = self.faults(place, &other);
                if left < faults {
                    (best, faults) = (other, left);
                }
            }
        }
        (faults == 0).then_some(best)
    }

    /// How much the schema has against a value.
    fn faults(&mut self, place: Place<'_>, value: &Value) -> usize {
        let spent = self.checker.spent();
        let value = filled_in(place.old, value);
        let found = if place.root {
            self.checker.check(place.old, &value)
        } else {
            self.checker.check_part(place.old, &value)
        };
        let costs = self.checker.spent() - spent + 2 * cost(place.old, &value);
        *self.left = self.left.saturating_sub(costs);
        found.len()
    }

    /// The metadata of a whole object, of which rules see the name.
    fn named(&mut self, place: Place<'_>, reads: &Reads, complete: &mut bool) -> Vec<Option<Value>> {
        let nothing = Reads::default();
        let name = reads.fields.get("name").unwrap_or(&nothing);
        let limited = |schema: &Schema| {
            schema
                .properties
                .get("metadata")
                .is_some_and(|own| !own.is_bare())
        };
        *complete &= !(reads.opaque || name.opaque || name.ordered)
            && name.sizes.is_empty()
            && reads.fields.keys().all(|field| field == "name")
            && !(limited(place.old) || place.new.is_some_and(limited));
        let more: &[Value] = if name.opaque { self.constants } else { &[] };
        let constants = name.constants.iter().chain(more).filter_map(Value::as_str);
        let valid = |name: &&str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            name.len() < 250
                && name.starts_with(inner)
                && name.ends_with(inner)
                && name
                    .split('.')
                    .all(|part| part.starts_with(inner) && part.ends_with(inner))
                && name.chars().all(|c| inner(c) || matches!(c, '-' | '.'))
        };
        let names = constants.filter(valid).take(MAX_LISTED).chain(["example"]);
        names.map(|name| Some(json!({"name": name}))).collect()
    }

    /// A value that the schema takes, if one is found.
    pub fn sample(&mut self, schema: &Schema, depth: usize) -> Option<Value> {
        *self.left = self.left.saturating_sub(1);
        if depth == 0 || *self.left == 0 {
            return None;
        }
        if let Some(default) = &schema.default {
            return Some((**default).clone());
        }
        match schema.types.without(Types::NULL) {
            Types::OBJECT if schema.limits.enumeration.is_none() => {
                let mut fields = Map::new();
                for name in &schema.required {
                    let child = schema.properties.get(name).or(schema.additional.as_deref());
                    if schema.demands(name) {
                        fields.insert(name.clone(), self.sample(child?, depth - 1)?);
                    }
                }
                Some(fields.into())
            }
            Types::ARRAY if schema.limits.enumeration.is_none() => {
                let mut items = Vec::new();
                if schema.limits.items.min > 0 {
                    let entry = self.sample(schema.items.as_deref()?, depth - 1)?;
                    let count = usize::try_from(schema.limits.items.min.min(MAX_LENGTH)).ok()?;
                    items = vec![entry; count];
                }
                Some(items.into())
            }
            _ => {
                let place = Place {
                    old: schema,
                    new: None,
                    root: false,
                    top: false,
                };
                let values = self.values(place, &Reads::default());
                values.list.into_iter().find(|value| !value.is_null())
            }
        }
    }
}

/// What every whole object has.
pub fn whole() -> [(String, Value); 3] {
    [
        ("apiVersion".to_owned(), json!("example.com/v1")),
        ("kind".to_owned(), json!("Example")),
        ("metadata".to_owned(), json!({"name": "example"})),
    ]
}

/// What it takes to fill in and check a value: fields that it has, and a little for those that are looked at for defaults.
pub fn cost(schema: &Schema, value: &Value) -> u64 {
    match value {
        Value::Object(fields) => {
            let children = fields.iter().map(|(name, value)| {
                let child = schema.properties.get(name).or(schema.additional.as_deref());
                child.map_or(1, |child| cost(child, value))
            });
            let looked_at = if schema.fills() {
                schema.properties.len()
            } else {
                0
            };
            1 + ((looked_at + schema.required.len()) / 8) as u64 + children.sum::<u64>()
        }
        Value::Array(items) => {
            let entries = items
                .iter()
                .map(|item| schema.items.as_deref().map_or(1, |entry| cost(entry, item)));
            1 + entries.sum::<u64>()
        }
        _ => 1,
    }
}

/// How many values there are inside.
fn weight(value: &Value) -> u64 {
    match value {
        Value::Object(fields) => 1 + fields.values().map(weight).sum::<u64>(),
        Value::Array(items) => 1 + items.iter().map(weight).sum::<u64>(),
        _ => 1,
    }
}

/// Text or numbers that have to differ.
fn number_all(entries: &mut [Value]) {
    for (index, entry) in entries.iter_mut().enumerate().skip(1) {
        match entry {
            Value::String(text) => text.push_str(&index.to_string()),
            number @ Value::Number(_) => *number = (index + 1).into(),
            _ => {}
        }
    }
}

/// Entries of a list that have to differ in this key.
fn number_by(key: &str, entries: &mut [Value]) {
    for (index, entry) in entries.iter_mut().enumerate().skip(1) {
        match entry.get_mut(key) {
            Some(Value::String(text)) => text.push_str(&index.to_string()),
            Some(number @ Value::Number(_)) => *number = (index + 1).into(),
            _ => {}
        }
    }
}
