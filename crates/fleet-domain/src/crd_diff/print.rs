//! Short hashes of what findings stand for, for their fingerprints: the same on every machine and in every release, and
//! whatever the order is of what has none.

use std::fmt::{self, Write as _};

use serde_json::Value;

use super::{
    number::write_canonical,
    schema::{Choices, Count, Enumeration, Limits, Rule, Schema},
};

/// FNV-1a, stirred once more for its upper bits.
struct Print(u64);

impl Default for Print {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Print {
    fn end(&self) -> u64 {
        let hash = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ (hash >> 29)
    }

    /// A word, and that it ends here.
    fn say(&mut self, what: impl fmt::Display) {
        // Nothing fails that only counts.
        let _ = write!(self, "{what}\0");
    }
}

impl fmt::Write for Print {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = text.bytes().fold(self.0, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Ok(())
    }
}

pub fn of_text(text: &str) -> u64 {
    let mut print = Print::default();
    let _ = print.write_str(text);
    print.end()
}

/// Of several, in any order. Added up, because to sort very many takes long.
pub fn of_all(prints: impl IntoIterator<Item = u64>) -> u64 {
    prints.into_iter().fold(0, u64::wrapping_add)
}

/// Of several, in this order.
pub fn of_each(prints: impl IntoIterator<Item = u64>) -> u64 {
    let mut print = Print::default();
    for one in prints {
        print.say(one);
    }
    print.end()
}

fn of_value(value: &Value) -> u64 {
    let mut text = String::new();
    write_canonical(value, &mut text);
    of_text(&text)
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
        print.say(name);
        print.say(of(field));
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
    print.say(types);
    for flag in [nullable, preserve, embedded, atomic_map, unstructured] {
        print.say(flag);
    }
    print.say(of_values([default, unread]));
    print.say(of_fields(properties));
    for child in [additional, items] {
        print.say(child.as_deref().map_or(0, of));
    }
    print.say(of_each(required.iter().map(|name| of_text(name))));
    print.say(of_limits(limits));
    print.say(of_choices(choices));
    print.say(list);
    print.say(of_each(rules.iter().map(of_rule)));
    print.end()
}

fn of_rule(rule: &Rule) -> u64 {
    of_text(&rule.expression)
}

pub fn of_list(list: &Enumeration) -> u64 {
    let mut written = String::new();
    of_all(list.values.iter().map(|value| {
        written.clear();
        write_canonical(value, &mut written);
        of_text(&written)
    }))
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
    let mut print = Print::default();
    print.say(enumeration.as_deref().map_or(0, of_list));
    for bound in [minimum, maximum] {
        match bound {
            Some(bound) => print.say(format_args!("{} {}", bound.value, bound.exclusive)),
            None => print.say(""),
        }
    }
    for step in multiples {
        print.say(step);
    }
    for Count { min, max } in [length, items, fields] {
        print.say(min);
        match max {
            Some(max) => print.say(max),
            None => print.say(""),
        }
    }
    for words in [patterns, formats] {
        print.say(of_each(words.iter().map(|word| of_text(word))));
    }
    print.say(unique);
    print.end()
}

/// Of branches, whose order says nothing.
pub fn of_branches(branches: &[Schema]) -> u64 {
    of_all(branches.iter().map(of))
}

pub fn of_choices(choices: &Choices) -> u64 {
    let Choices { any, one, not } = choices;
    let groups = |groups: &[Vec<Schema>]| {
        of_all(
            groups
                .iter()
                .map(|group| of_text(&of_branches(group).to_string())),
        )
    };
    of_each([groups(any), groups(one), of_branches(not)])
}
