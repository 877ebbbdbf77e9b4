//! Compares what single values have to meet: types, closed lists, bounds, patterns, formats.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    kind::Kind,
    number::{Bound, Number, write_canonical},
    object::Checker,
    pattern::{self, Budget, Inclusion},
    schema::{Count, Limits, Schema, Types},
    sink::Sink,
};

/// How many values of a list are named in a finding.
const NAMED_VALUES: usize = 8;

/// Compares type and limits. Returns the kinds of values that both sides know, for which the walk goes on.
pub fn compare(sink: &mut Sink<'_>, old: &Schema, new: &Schema, patterns: &mut Budget) -> Types {
    let shared = old.types.and(new.types).without(Types::NULL);
    if old.types == new.types && old.limits == new.limits {
        return shared;
    }
    if let Some(values) = closed(old) {
        if new.limits.patterns.is_empty() || patterns.compiles_one_more() {
            closed_list(sink, old, new, &values);
        } else {
            sink.add(Kind::PatternAdded, "listed values", "listed values and a pattern");
            sink.undecidable(pattern::TOO_MANY);
        }
        return shared;
    }
    let lost = old.types.without(new.types).without(Types::NULL);
    if !lost.is_empty() {
        sink.add(Kind::TypeChanged, old.types.to_string(), new.types.to_string());
        if shared.is_empty() {
            return shared;
        }
    } else if !new.types.without(old.types).is_empty() {
        sink.add(Kind::Loosened, old.types.to_string(), new.types.to_string());
    }
    if let Some(allowed) = &new.limits.enumeration {
        sink.add(Kind::EnumAdded, "any value", list(&allowed.values));
    }
    let mut tightened = false;
    if shared.has(Types::NUMBER) {
        tightened |= numbers(sink, old, new);
    }
    if shared.has(Types::STRING) {
        tightened |= lengths(sink, old, new);
        tightened |= texts(sink, &old.limits, &new.limits, patterns);
    }
    if shared.has(Types::ARRAY) {
        tightened |= count(sink, "items", old.limits.items, new.limits.items);
        if new.limits.unique && !old.limits.unique {
            sink.add(Kind::LimitTightened, "items may be equal", "items must differ");
            tightened = true;
        }
    }
    if shared.has(Types::OBJECT) {
        let mut before = old.limits.fields;
        before.min = before.min.max(old.required.len() as u64);
        tightened |= count(sink, "fields", before, new.limits.fields);
    }
    tightened |= formats(sink, &old.limits, &new.limits, old.types);
    if !tightened && new.limits.enumeration.is_none() && looser(&old.limits, &new.limits) {
        sink.add(Kind::Loosened, "limited", "less limited");
    }
    shared
}

/// All values that can be there, where they are few enough to be listed.
fn closed(schema: &Schema) -> Option<Vec<&Value>> {
    const EITHER: [Value; 2] = [Value::Bool(true), Value::Bool(false)];
    let values: &[Value] = match &schema.limits.enumeration {
        Some(listed) => &listed.values,
        None if schema.types.without(Types::NULL) == Types::BOOLEAN => {
            return Some(EITHER.iter().collect());
        }
        None => return None,
    };
    // Null has its own rules, and what is not of the type was never allowed.
    let possible = values.iter().filter(|value| {
        let kind = Types::of(value);
        kind != Types::NULL && schema.types.has(kind)
    });
    Some(possible.collect())
}

/// Where the old values are listed, each is put to the new schema: exact, whatever the new schema says.
fn closed_list(sink: &mut Sink<'_>, old: &Schema, new: &Schema, values: &[&Value]) {
    let mut checker = Checker::default();
    let mut takes = |schema: &Schema, value: &Value| checker.is_within(schema.types, &schema.limits, value);
    let gone: Vec<Value> = values
        .iter()
        .filter(|value| !takes(new, value) && takes(old, value))
        .map(|value| (*value).clone())
        .collect();
    let types_changed = old.types.and(new.types).without(Types::NULL).is_empty();
    match (&old.limits.enumeration, &new.limits.enumeration) {
        _ if !gone.is_empty() && types_changed => {
            sink.add(Kind::TypeChanged, old.types.to_string(), new.types.to_string());
        }
        (Some(_), Some(allowed)) if !gone.is_empty() => {
            let before = format!("{} allowed", list(&gone));
            let after = format!("not among {}", list(&allowed.values));
            sink.add(Kind::EnumNarrowed, before, after);
        }
        (None, Some(allowed)) if !gone.is_empty() => {
            sink.add(Kind::EnumAdded, old.types.to_string(), list(&allowed.values));
        }
        _ if !gone.is_empty() => {
            let before = format!("{} allowed", list(&gone));
            sink.add(Kind::LimitTightened, before, "refused by the new limits");
        }
        (Some(known), None) => sink.add(Kind::Loosened, list(&known.values), "any value"),
        (None, None) if new.types != old.types => {
            sink.add(Kind::Loosened, old.types.to_string(), new.types.to_string());
        }
        _ => {}
    }
    if let (Some(known), Some(allowed)) = (&old.limits.enumeration, &new.limits.enumeration) {
        let grown: Vec<Value> = allowed
            .values
            .iter()
            .filter(|value| !value.is_null() && !known.contains(value))
            .cloned()
            .collect();
        if !grown.is_empty() {
            sink.add(
                Kind::EnumGrown,
                list(&known.values),
                format!("also {}", list(&grown)),
            );
        }
    }
}

fn numbers(sink: &mut Sink<'_>, old: &Schema, new: &Schema) -> bool {
    let mut tightened = false;
    let integers = !old.types.has(Types::FRACTION) || !new.types.has(Types::FRACTION);
    let lower = |bound: Option<Bound>| {
        if integers {
            bound.map(Bound::lower_for_integers)
        } else {
            bound
        }
    };
    let upper = |bound: Option<Bound>| {
        if integers {
            bound.map(Bound::upper_for_integers)
        } else {
            bound
        }
    };
    let floor = within_format(&old.limits, old.limits.minimum, i32::MIN, Bound::is_tighter_lower);
    let (before, after) = (lower(floor), lower(new.limits.minimum));
    if let Some(bound) = after
        && before.is_none_or(|known| bound.is_tighter_lower(known))
    {
        sink.add(
            Kind::LimitTightened,
            at_bound("at least", "more than", before),
            at_bound("at least", "more than", after),
        );
        tightened = true;
    }
    let ceiling = within_format(&old.limits, old.limits.maximum, i32::MAX, Bound::is_tighter_upper);
    let (before, after) = (upper(ceiling), upper(new.limits.maximum));
    if let Some(bound) = after
        && before.is_none_or(|known| bound.is_tighter_upper(known))
    {
        sink.add(
            Kind::LimitTightened,
            at_bound("at most", "less than", before),
            at_bound("at most", "less than", after),
        );
        tightened = true;
    }
    for step in &new.limits.multiples {
        let covered = old
            .limits
            .multiples
            .iter()
            .any(|known| known.is_multiple_of(*step))
            || (integers && *step == Number::Whole(1));
        if !covered {
            sink.add(
                Kind::LimitTightened,
                "other steps allowed",
                format!("multiple of {step}"),
            );
            tightened = true;
        }
    }
    tightened
}

fn at_bound(inclusive: &str, exclusive: &str, bound: Option<Bound>) -> String {
    match bound {
        None => "no limit".to_owned(),
        Some(bound) if bound.exclusive => format!("{exclusive} {}", bound.value),
        Some(bound) => format!("{inclusive} {}", bound.value),
    }
}

fn lengths(sink: &mut Sink<'_>, old: &Schema, new: &Schema) -> bool {
    let mut before = old.limits.length;
    let after = new.limits.length;
    // A pattern that does not match the empty text asks for one character as well.
    if before.min == 0
        && after.min == 1
        && old
            .limits
            .patterns
            .iter()
            .any(|pattern| pattern::wants_text(pattern))
    {
        before.min = 1;
    }
    count(sink, "characters", before, after)
}

fn count(sink: &mut Sink<'_>, what: &str, old: Count, new: Count) -> bool {
    let mut tightened = false;
    if new.min > old.min {
        sink.add(
            Kind::LimitTightened,
            if old.min == 0 {
                format!("any number of {what}")
            } else {
                format!("at least {} {what}", old.min)
            },
            format!("at least {} {what}", new.min),
        );
        tightened = true;
    }
    if let Some(max) = new.max
        && old.max.is_none_or(|known| max < known)
    {
        sink.add(
            Kind::LimitTightened,
            old.max.map_or_else(
                || format!("any number of {what}"),
                |known| format!("at most {known} {what}"),
            ),
            format!("at most {max} {what}"),
        );
        tightened = true;
    }
    tightened
}

fn texts(sink: &mut Sink<'_>, old: &Limits, new: &Limits, budget: &mut Budget) -> bool {
    let mut tightened = false;
    for pattern in new.patterns.difference(&old.patterns) {
        let answers: Vec<Inclusion> = if old.patterns.is_empty() {
            vec![pattern::includes(None, pattern, budget)]
        } else {
            let olds = old.patterns.iter();
            olds.map(|known| pattern::includes(Some(known), pattern, budget))
                .collect()
        };
        if answers.contains(&Inclusion::Yes) {
            continue;
        }
        tightened = true;
        if old.patterns.is_empty() {
            sink.add(Kind::PatternAdded, "any text", pattern.as_str());
        } else {
            let before: Vec<&str> = old.patterns.iter().map(String::as_str).collect();
            sink.add(Kind::PatternChanged, before.join(" and "), pattern.as_str());
        }
        // With several old patterns, an example against one may be ruled out by another.
        match answers.as_slice() {
            [Inclusion::No(example)] => sink.note(&format!("For example {example:?}.")),
            [Inclusion::Unknown(reason)] if !old.patterns.is_empty() => sink.undecidable(*reason),
            [Inclusion::Unknown(_)] => {}
            _ => sink.undecidable("several patterns hold together"),
        }
    }
    tightened
}

fn formats(sink: &mut Sink<'_>, old: &Limits, new: &Limits, types: Types) -> bool {
    let mut tightened = false;
    for format in new.formats.difference(&old.formats) {
        let matters = match format.as_str() {
            "int32" => types.has(Types::INTEGER) && !within_int32(old),
            "float" => types.has(Types::FRACTION),
            _ => types.has(Types::STRING),
        };
        let wider = match format.as_str() {
            "uuid" => old.formats.iter().any(|known| known.starts_with("uuid")),
            "isbn" => old.formats.iter().any(|known| known.starts_with("isbn")),
            "k8s-long-name" => old.formats.contains("k8s-short-name"),
            _ => false,
        };
        if matters && !wider {
            let before: Vec<&str> = old.formats.iter().map(String::as_str).collect();
            let before = if before.is_empty() {
                "no format".to_owned()
            } else {
                before.join(" and ")
            };
            sink.add(Kind::FormatAdded, before, format.as_str());
            tightened = true;
        }
    }
    tightened
}

/// A bound, or the one that the format `int32` is by itself.
fn within_format(
    limits: &Limits,
    known: Option<Bound>,
    edge: i32,
    is_tighter: fn(Bound, Bound) -> bool,
) -> Option<Bound> {
    if !limits.formats.contains("int32") {
        return known;
    }
    let edge = Bound {
        value: Number::Whole(edge.into()),
        exclusive: false,
    };
    Some(known.filter(|bound| is_tighter(*bound, edge)).unwrap_or(edge))
}

fn within_int32(limits: &Limits) -> bool {
    let floor = Number::Whole(i32::MIN.into());
    let ceiling = Number::Whole(i32::MAX.into());
    limits
        .minimum
        .is_some_and(|bound| bound.value.compare(floor).is_ge())
        && limits
            .maximum
            .is_some_and(|bound| bound.value.compare(ceiling).is_le())
}

fn looser(old: &Limits, new: &Limits) -> bool {
    old != new
}

/// Values in words: a few by name, the others by number and a hash, so that two long lists are not taken for one.
pub fn list(values: &[Value]) -> String {
    let named: Vec<String> = values
        .iter()
        .take(NAMED_VALUES)
        .map(ToString::to_string)
        .collect();
    let mut text = named.join(", ");
    if values.len() > NAMED_VALUES {
        // One text for all of them: a giant list is hashed without a copy of each value.
        let (mut written, mut ends) = (String::new(), Vec::new());
        for value in &values[NAMED_VALUES..] {
            write_canonical(value, &mut written);
            ends.push(written.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let mut others: Vec<&str> = starts
            .zip(&ends)
            .map(|(start, end)| &written[start..*end])
            .collect();
        others.sort_unstable();
        let mut digest = Sha256::new();
        for (index, other) in others.iter().enumerate() {
            digest.update(if index == 0 { "" } else { "\u{0}" });
            digest.update(other);
        }
        let hash: Vec<String> = digest
            .finalize()
            .iter()
            .take(3)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let _ = write!(text, " and {} more (#{})", others.len(), hash.concat());
    }
    if text.is_empty() {
        text.push_str("nothing");
    }
    text
}
