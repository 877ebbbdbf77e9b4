//! Text and numbers for a rule to be tried on: the constants that it compares with, what is beside them, and others.

use serde_json::Value;

use super::{
    candidates::{MAX_COUNTED, MAX_LENGTH, MAX_LONG, MAX_VALUES, Maker, Place, Values},
    number::Number,
    pattern::{self, Inclusion},
    reads::Reads,
    schema::{Schema, Types},
};

/// Text of many forms.
const TEXTS: [&str; 17] = [
    "other",
    "o",
    "",
    "0",
    "1",
    "o-1",
    "1h",
    "10Mi",
    "o.example.com",
    "https://o.example.com/o",
    "10.0.0.1",
    "10.0.0.0/8",
    "2024-01-01T00:00:00Z",
    "/o",
    "O o!",
    "*.example.com",
    "ftp://o.example.com",
];

impl Maker<'_> {
    pub fn scalars(&mut self, place: Place<'_>, reads: &Reads) -> Values {
        let schema = place.old;
        let free = schema.limits.formats.is_empty()
            && schema.choices.is_empty()
            && (place.top || schema.rules.is_empty());
        let types = schema.types.without(Types::NULL);
        if types == Types::BOOLEAN {
            return Values {
                list: vec![true.into(), false.into()],
                complete: true,
            };
        }
        let mut list: Vec<Value> = reads.constants.iter().take(MAX_VALUES).cloned().collect();
        let mut complete = !reads.opaque && reads.constants.len() <= MAX_VALUES;
        if types.has(Types::STRING) {
            complete &= self.texts(schema, reads, &mut list, free);
        }
        if types.has(Types::NUMBER) {
            complete &= numbers(schema, reads, &mut list, free);
        }
        let known = [Types::STRING, Types::INTEGER, Types::NUMBER, Types::INT_OR_STRING];
        complete &= known.contains(&types);
        let mut once: Vec<Value> = Vec::new();
        for value in list {
            if schema.types.has(Types::of(&value)) && !once.contains(&value) {
                once.push(value);
            }
        }
        Values { list: once, complete }
    }

    fn texts(&mut self, schema: &Schema, reads: &Reads, list: &mut Vec<Value>, free: bool) -> bool {
        let limits = &schema.limits;
        if reads.opaque {
            let more = self.constants.iter().filter(|value| value.is_string());
            let old = limits.patterns.first().map(String::as_str);
            for constant in more.take(16) {
                list.push(constant.clone());
                // It may be a pattern: then some text that does not match tells most.
                if let Some(pattern) = constant.as_str()
                    && let Inclusion::No(text) = pattern::includes(old, pattern, limits.length, self.patterns)
                {
                    list.push(text.into());
                }
            }
        }
        let mut others = 0;
        for text in TEXTS {
            let text = Value::from(text);
            let wanted = if reads.opaque { TEXTS.len() } else { 1 };
            if others < wanted && !list.contains(&text) && self.checker.accepts(schema, &text) {
                list.push(text);
                others += 1;
            }
        }
        if let (0, Some(pattern)) = (others, limits.patterns.first())
            && let Inclusion::No(text) =
                pattern::includes(Some(pattern), NOTHING, limits.length, self.patterns)
        {
            list.push(text.into());
        }
        let mut lengths: Vec<u64> = reads
            .sizes
            .iter()
            .flat_map(|n| [n.saturating_sub(1), *n, n + 1])
            .collect();
        lengths.extend([limits.length.min, 1]);
        lengths.extend(limits.length.max);
        let mut long = MAX_LONG;
        for length in lengths.iter().copied() {
            if length > MAX_LENGTH {
                if long == 0 || length > MAX_COUNTED {
                    continue;
                }
                long -= 1;
                *self.left = self.left.saturating_sub(length / 8);
            }
            let made = |letter: &str| Value::from(letter.repeat(usize::try_from(length).unwrap_or(0)));
            let fresh = ["o", "k", "v"].into_iter().map(made);
            list.extend(fresh.into_iter().find(|text| !reads.constants.contains(text)));
        }
        reads.sizes.is_empty()
            || (free && limits.patterns.is_empty() && lengths.iter().all(|length| *length <= MAX_LENGTH))
    }
}

/// A pattern that no text matches.
const NOTHING: &str = "[^\\s\\S]";

/// The constants, what is beside them, and the bounds. Says whether that is all.
fn numbers(schema: &Schema, reads: &Reads, list: &mut Vec<Value>, free: bool) -> bool {
    let whole = !schema.types.has(Types::FRACTION);
    let bounds = [schema.limits.minimum, schema.limits.maximum];
    let mut beside = |number: f64, whole: Option<i64>| {
        if let Some(number) = whole {
            list.extend([-1, 0, 1].map(|step| Value::from(number.saturating_add(step))));
        } else {
            list.extend([-0.5, 0.0, 0.5].map(|step| Value::from(number + step)));
        }
    };
    for constant in &reads.constants {
        if let Some(number) = constant.as_f64() {
            beside(number, constant.as_i64().filter(|_| whole));
        }
    }
    for bound in bounds.iter().flatten() {
        match bound.value {
            Number::Whole(number) => beside(number as f64, i64::try_from(number).ok()),
            Number::Real(number) => beside(number, None),
        }
    }
    list.extend([1, 0, 7, -7].map(Value::from));
    !reads.ordered || (whole && free && schema.limits.multiples.is_empty())
}
