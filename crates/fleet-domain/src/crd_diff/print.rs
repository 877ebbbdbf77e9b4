//! Short hashes of what findings stand for, for their fingerprints: the same on every machine and in every release (but
//! [`of_many`]), and whatever the order is of what has none. They tell changes apart that somebody made; they are no proof
//! against somebody who makes one to have the hash of another.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::{
    number::{Bound, canonical},
    schema::{Choices, Count, Enumeration, Limits, ListType, Schema},
};

/// Schemas have tens of thousands of parts, and most say little: only what is said is written, a word at a time.
#[derive(Default)]
struct Print(u64);

impl Print {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn text(&mut self, text: &str) {
        for part in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(part) {
                *to = *from;
            }
            self.word(u64::from_le_bytes(word));
        }
        self.word(text.len() as u64);
    }

    /// A part that may be there; the first number says which.
    fn part<T>(&mut self, number: u64, part: Option<T>, print: impl FnOnce(T) -> u64) {
        if let Some(part) = part {
            self.word(number);
            self.word(print(part));
        }
    }

    fn end(self) -> u64 {
        stirred(self.0)
    }
}

/// Its upper bits depend on all others.
fn stirred(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

/// FNV-1a.
pub fn of_text(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    stirred(hash)
}

/// Of several, in any order. Added up, because to sort very many takes long.
pub fn of_all(prints: impl IntoIterator<Item = u64>) -> u64 {
    prints.into_iter().fold(0, u64::wrapping_add)
}

/// Of several, in this order.
pub fn of_each(prints: impl IntoIterator<Item = u64>) -> u64 {
    let mut print = Print::default();
    for one in prints {
        print.word(one);
    }
    print.end()
}

fn of_texts<'t>(texts: impl IntoIterator<Item = &'t String>) -> u64 {
    let mut print = Print::default();
    for text in texts {
        print.text(text);
    }
    print.end()
}

/// Whatever the order of fields is, and however a number is written.
fn of_value(value: &Value) -> u64 {
    let mut print = Print::default();
    match value {
        Value::Null => print.word(0),
        Value::Bool(yes) => print.word(1 + u64::from(*yes)),
        Value::Number(_) => print.text(&canonical(value)),
        Value::String(text) => {
            print.word(3);
            print.text(text);
        }
        Value::Array(items) => {
            print.word(4);
            for item in items {
                print.word(of_value(item));
            }
        }
        Value::Object(fields) => {
            print.word(5);
            print.word(of_all(fields.iter().map(|(name, value)| {
                let mut print = Print::default();
                print.text(name);
                print.word(of_value(value));
                print.end()
            })));
        }
    }
    print.end()
}

/// Of values that may be there.
pub fn of_values<'v>(values: impl IntoIterator<Item = &'v Option<Box<Value>>>) -> u64 {
    let values = values.into_iter();
    of_each(values.map(|value| value.as_deref().map_or(0, of_value)))
}

/// Of fields with all that is said of them.
pub fn of_fields<'s>(fields: impl IntoIterator<Item = (&'s String, &'s Schema)>) -> u64 {
    let mut print = Print::default();
    for (name, field) in fields {
        print.text(name);
        print.word(of(field));
    }
    print.end()
}

/// Of all that a schema says.
pub fn of(schema: &Schema) -> u64 {
    // All parts are named, so that none is forgotten that comes later. What is known by looking is no part.
    let Schema {
        types,
        nullable,
        preserve,
        embedded,
        atomic_map,
        unstructured,
        default,
        properties,
        additional,
        items,
        required,
        limits,
        choices,
        list,
        rules,
        unread,
        held: _,
        facts: _,
    } = schema;
    let mut print = Print::default();
    let flags = [nullable, preserve, embedded, atomic_map, unstructured];
    let flags = flags
        .into_iter()
        .fold(types.bits(), |all, flag| (all << 1) | u64::from(*flag));
    print.word(flags);
    print.part(1, default.as_deref(), of_value);
    print.part(2, Some(properties).filter(|all| !all.is_empty()), of_fields);
    print.part(3, additional.as_deref(), of);
    print.part(4, items.as_deref(), of);
    print.part(5, Some(required).filter(|all| !all.is_empty()), of_texts);
    print.part(6, limits.said(), of_limits);
    print.part(7, choices.said(), of_choices);
    print.part(8, Some(list).filter(|list| **list != ListType::Atomic), |list| {
        of_text(&list.to_string())
    });
    print.part(9, Some(rules).filter(|all| !all.is_empty()), |rules| {
        of_texts(rules.iter().map(|rule| &rule.expression))
    });
    print.part(10, unread.as_deref(), of_value);
    print.end()
}

fn of_list(list: &Enumeration) -> u64 {
    of_all(list.values.iter().map(of_value))
}

pub fn of_limits(limits: &Limits) -> u64 {
    let Limits {
        enumeration,
        minimum,
        maximum,
        multiples,
        length,
        items,
        fields,
        patterns,
        formats,
        unique,
    } = limits;
    let bound = |bound: &Bound| of_text(&format!("{} {}", bound.value, bound.exclusive));
    let count = |count: &Count| of_each([count.min, u64::from(count.max.is_some()), count.max.unwrap_or(0)]);
    let mut print = Print::default();
    print.part(1, enumeration.as_deref(), of_list);
    print.part(2, minimum.as_ref(), bound);
    print.part(3, maximum.as_ref(), bound);
    print.part(4, Some(multiples).filter(|all| !all.is_empty()), |steps| {
        of_each(steps.iter().map(|step| of_text(&step.to_string())))
    });
    for (number, counted) in (5..).zip([length, items, fields]) {
        print.part(
            number,
            Some(counted).filter(|counted| **counted != Count::default()),
            count,
        );
    }
    print.part(8, Some(patterns).filter(|all| !all.is_empty()), of_texts);
    print.part(9, Some(formats).filter(|all| !all.is_empty()), of_texts);
    print.part(10, Some(()).filter(|()| *unique), |()| 1);
    print.end()
}

/// Of branches, whose order says nothing.
pub fn of_branches(branches: &[Schema]) -> u64 {
    of_all(branches.iter().map(of))
}

/// Of so many branches that to go through them takes long: by hashes that are there already, in the order of the branches.
/// Another compiler may make others of them, and then such a waiver is to be given anew.
pub fn of_many(choices: &Choices) -> u64 {
    let mut hasher = DefaultHasher::new();
    choices.hash(&mut hasher);
    hasher.finish()
}

pub fn of_choices(choices: &Choices) -> u64 {
    let Choices { any, one, not } = choices;
    // A group is more than its branches: two of one branch are not one of two.
    let groups = |groups: &[Vec<Schema>]| of_all(groups.iter().map(|group| stirred(of_branches(group))));
    of_each([groups(any), groups(one), of_branches(not)])
}
