//! Compares what single values have to meet: types, closed lists, bounds, patterns, formats.

use std::fmt::Write as _;

use serde_json::Value;

use super::{
    few,
    kind::Kind,
    length,
    number::{Bound, Number, write_canonical},
    object::{Checker, format},
    pattern::{self, Budget, Inclusion},
    print,
    schema::{Count, Enumeration, Limits, Schema, Types},
    sink::Sink,
};

/// How many values of a list are named in a finding.
const NAMED_VALUES: usize = 8;

const BESIDE_A_FORMAT: &str =
    "the text also has to have a format, and what that lets through is not compared";

/// How many patterns that hold together are compared with another.
const MAX_TOGETHER: usize = 8;
/// How many pairs of steps under `multipleOf` are compared.
const MAX_STEPS: usize = 4_096;

/// Compares type and limits. Returns the kinds of values that both sides know, for which the walk goes on.
pub fn compare(sink: &mut Sink<'_>, old: &Schema, new: &Schema, patterns: &mut Budget) -> Types {
    let shared = old.types.and(new.types).without(Types::NULL);
    if old.types == new.types && old.limits == new.limits {
        return shared;
    }
    if let Some(values) = closed(old) {
        let both = old.limits.patterns.union(&new.limits.patterns).count();
        let text = values
            .iter()
            .filter_map(|(_, value)| value.as_str())
            .map(str::len);
        if both == 0 || patterns.runs(both, text.sum()) {
            closed_list(sink, old, new, &values);
        } else {
            sink.add(Kind::PatternAdded, "listed values", "listed values and a pattern");
            sink.stands_for(|| print::of_limits(&new.limits));
            sink.undecidable(pattern::TOO_MANY);
        }
        return shared;
    }
    let lost = old.types.without(new.types).without(Types::NULL);
    if !lost.is_empty() {
        let kind = if is_emptied(old, new, lost) {
            Kind::ShapeChanged
        } else {
            Kind::TypeChanged
        };
        sink.add(kind, old.types.to_string(), new.types.to_string());
        if shared.is_empty() {
            return shared;
        }
    } else if !new.types.without(old.types).is_empty() {
        sink.add(Kind::Loosened, old.types.to_string(), new.types.to_string());
    }
    if let Some(allowed) = &new.limits.enumeration {
        listed(sink, old, shared, allowed, patterns);
    }
    let mut tightened = false;
    if shared.has(Types::NUMBER) {
        tightened |= numbers(sink, old, new);
    }
    if shared.has(Types::STRING) {
        tightened |= lengths(sink, old, new, patterns);
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

/// Whether there is something in values of these kinds that the new schema drops before it refuses them.
fn is_emptied(old: &Schema, new: &Schema, kinds: Types) -> bool {
    let holds = |schema: &Schema| {
        schema.types.has(Types::OBJECT)
            && (schema.preserve || schema.additional.is_some() || !schema.properties.is_empty())
    };
    let names_none = new.additional.is_none() && new.properties.is_empty();
    let object = kinds.has(Types::OBJECT) && holds(old) && names_none;
    let list = kinds.has(Types::ARRAY) && old.items.as_deref().is_some_and(holds) && new.items.is_none();
    !new.preserve && (object || list)
}

/// All values that can be there, where they are listed, and the place of each.
fn closed(schema: &Schema) -> Option<Vec<(usize, &Value)>> {
    const EITHER: [Value; 2] = [Value::Bool(true), Value::Bool(false)];
    let values: &[Value] = match &schema.limits.enumeration {
        Some(listed) => &listed.values,
        None if schema.types.without(Types::NULL) == Types::BOOLEAN => {
            return Some(EITHER.iter().enumerate().collect());
        }
        None => return None,
    };
    // Null has its own rules, and what is not of the type was never allowed.
    let possible = values.iter().enumerate().filter(|(_, value)| {
        let kind = Types::of(value);
        kind != Types::NULL && schema.types.has(kind)
    });
    Some(possible.collect())
}

/// Where the old values are listed, each is put to the new schema: exact, whatever the new schema says.
fn closed_list(sink: &mut Sink<'_>, old: &Schema, new: &Schema, values: &[(usize, &Value)]) {
    let mut checker = Checker::with_patterns_to(pattern::MAX_LISTED_REGEX_BYTES);
    let mut takes = |schema: &Schema, value: &Value| checker.is_within(schema.types, &schema.limits, value);
    let unlisted = match (&old.limits.enumeration, &new.limits.enumeration) {
        (Some(known), Some(allowed)) => known.missing_in(allowed),
        (None, Some(allowed)) => {
            let missing = values.iter().filter(|(_, value)| !allowed.contains(value));
            missing.map(|(place, _)| *place).collect()
        }
        (_, None) => Vec::new(),
    };
    let gone: Vec<Value> = values
        .iter()
        .filter(|(place, value)| {
            let listed = unlisted.binary_search(place).is_err();
            !(listed && takes(new, value)) && takes(old, value)
        })
        .map(|(_, value)| (*value).clone())
        .collect();
    if checker.skipped_patterns > 0 {
        sink.add(Kind::PatternAdded, "listed values", "listed values and a pattern");
        sink.stands_for(|| print::of_limits(&new.limits));
        sink.undecidable("one of the patterns is too large, or of a form that is not understood");
    }
    let types_changed = old.types.and(new.types).without(Types::NULL).is_empty();
    match (&old.limits.enumeration, &new.limits.enumeration) {
        _ if !gone.is_empty() && types_changed => {
            sink.add(Kind::TypeChanged, old.types.to_string(), new.types.to_string());
        }
        (Some(_), Some(allowed)) if !gone.is_empty() => {
            let before = format!("{} allowed", list(&gone));
            let after = format!("not among {}", allowed.in_words());
            sink.add(Kind::EnumNarrowed, before, after);
        }
        (None, Some(allowed)) if !gone.is_empty() => {
            sink.add(Kind::EnumAdded, old.types.to_string(), allowed.in_words());
        }
        _ if !gone.is_empty() => {
            let before = format!("{} allowed", list(&gone));
            sink.add(Kind::LimitTightened, before, "refused by the new limits");
        }
        (Some(known), None) => sink.add(Kind::Loosened, known.in_words(), "any value"),
        (None, None) if new.types != old.types => {
            sink.add(Kind::Loosened, old.types.to_string(), new.types.to_string());
        }
        _ => {}
    }
    if let (Some(known), Some(allowed)) = (&old.limits.enumeration, &new.limits.enumeration) {
        let grown = allowed.missing_in(known).into_iter();
        let grown: Vec<Value> = grown
            .map(|place| allowed.values[place].clone())
            .filter(|value| !value.is_null())
            .collect();
        if !grown.is_empty() {
            sink.add(
                Kind::EnumGrown,
                known.in_words(),
                format!("also {}", list(&grown)),
            );
        }
    }
}

/// A list where there was none: nothing new where the old limits let no other values through.
fn listed(sink: &mut Sink<'_>, old: &Schema, shared: Types, allowed: &Enumeration, patterns: &mut Budget) {
    match few::among(old, shared, allowed, patterns) {
        Inclusion::Yes => sink.add(Kind::Loosened, "few values by their limits", allowed.in_words()),
        Inclusion::No(example) => {
            let text = Value::from(example.as_str());
            sink.add(Kind::EnumAdded, "any value", allowed.in_words());
            if known_formats(sink, &old.limits).any(|format| !format::matches(format, &example)) {
                sink.undecidable(BESIDE_A_FORMAT);
            } else {
                sink.note(&format!("For example {text}."));
            }
        }
        Inclusion::Unknown(reason) => {
            sink.add(Kind::EnumAdded, "any value", allowed.in_words());
            if shared == Types::STRING && !old.limits.patterns.is_empty() {
                sink.undecidable(reason);
            }
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
    let int32 = old.limits.formats.contains("int32") && sink.is_sure_to_check("int32");
    let floor = within_format(int32, old.limits.minimum, i32::MIN, Bound::is_tighter_lower);
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
    let ceiling = within_format(int32, old.limits.maximum, i32::MAX, Bound::is_tighter_upper);
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
    let (steps, known) = (&new.limits.multiples, &old.limits.multiples);
    if steps != known && steps.len().saturating_mul(known.len()) > MAX_STEPS {
        sink.add(Kind::LimitTightened, "other steps", "steps");
        sink.stands_for(|| print::of_limits(&new.limits));
        sink.undecidable("there are so many steps under multipleOf that they are not compared");
        return true;
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

fn lengths(sink: &mut Sink<'_>, old: &Schema, new: &Schema, budget: &mut Budget) -> bool {
    let mut before = old.limits.length;
    let after = new.limits.length;
    let mut both = after;
    both.merge(before);
    if both != before {
        // Patterns and formats ask for a length as well.
        for pattern in old.limits.patterns.iter().take(MAX_TOGETHER) {
            before.merge(length::of(pattern, budget));
        }
        for format in known_formats(sink, &old.limits) {
            before.merge(format::length(format));
        }
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
    if old.patterns == new.patterns {
        return false;
    }
    let mut tightened = false;
    let known: Vec<&str> = old.patterns.iter().map(String::as_str).collect();
    let before = known.join(" and ");
    for pattern in new.patterns.difference(&old.patterns) {
        let answer = match covered(&known, pattern, old.length, budget) {
            Inclusion::No(example)
                if known_formats(sink, old).any(|format| !format::matches(format, &example)) =>
            {
                Inclusion::Unknown(BESIDE_A_FORMAT)
            }
            answer => answer,
        };
        if answer == Inclusion::Yes {
            continue;
        }
        tightened = true;
        if known.is_empty() {
            sink.add(Kind::PatternAdded, "any text", pattern.as_str());
        } else {
            sink.add(Kind::PatternChanged, before.as_str(), pattern.as_str());
        }
        match answer {
            Inclusion::No(example) => sink.note(&format!("For example {example:?}.")),
            Inclusion::Unknown(reason) if !(known.is_empty() && old.formats.is_empty()) => {
                sink.undecidable(reason);
            }
            _ => {}
        }
    }
    tightened
}

/// Whether all text of this length that meets the old patterns matches the new one.
pub fn covered(known: &[&str], new: &str, length: Count, budget: &mut Budget) -> Inclusion {
    let one = match known {
        [] => None,
        [one] => Some(*one),
        // An example against one may be ruled out by another.
        all => {
            let mut few = all.iter().take(if budget.is_spent() { 0 } else { MAX_TOGETHER });
            let any = few.any(|one| covered(&[one], new, length, budget) == Inclusion::Yes);
            return if any {
                Inclusion::Yes
            } else {
                Inclusion::Unknown("several patterns hold together")
            };
        }
    };
    match pattern::includes(one, new, Count::default(), budget) {
        // Counting takes longer, and is seldom needed.
        Inclusion::No(example) if !length.admits(example.chars().count() as u64) => {
            pattern::includes(one, new, length, budget)
        }
        answer => answer,
    }
}

/// The formats that the server is sure to have checked.
fn known_formats<'l>(sink: &Sink<'_>, limits: &'l Limits) -> impl Iterator<Item = &'l str> {
    let formats = limits.formats.iter().map(String::as_str);
    formats.filter(|format| sink.is_sure_to_check(format))
}

fn formats(sink: &mut Sink<'_>, old: &Limits, new: &Limits, types: Types) -> bool {
    let mut tightened = false;
    for format in new.formats.difference(&old.formats) {
        let (kind, matters) = match format.as_str() {
            "int32" => (
                Kind::NumberFormatAdded,
                types.has(Types::INTEGER) && !within_int32(old),
            ),
            "float" => (Kind::NumberFormatAdded, types.has(Types::FRACTION)),
            _ => (Kind::FormatAdded, types.has(Types::STRING)),
        };
        let matters = matters && sink.may_be(|server| server.checks_format(format));
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
            sink.add(kind, before, format.as_str());
            tightened = true;
        }
    }
    tightened
}

/// A bound, or the one that the format `int32` is by itself where the server checks it.
fn within_format(
    int32: bool,
    known: Option<Bound>,
    edge: i32,
    is_tighter: fn(Bound, Bound) -> bool,
) -> Option<Bound> {
    if !int32 {
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

/// Values in words: a few by name, the others by number and a hash, so that two long lists are not taken for one. Their
/// order says nothing, and so the first of all are named in any.
pub fn list(values: &[Value]) -> String {
    let mut named: Vec<String> = Vec::with_capacity(NAMED_VALUES + 1);
    let (mut written, mut sum) = (String::new(), 0_u64);
    for value in values {
        written.clear();
        write_canonical(value, &mut written);
        if values.len() > NAMED_VALUES {
            sum = sum.wrapping_add(print::of_text(&written));
        }
        let place = named.partition_point(|known| *known < written);
        if place < NAMED_VALUES {
            named.insert(place, written.clone());
            named.truncate(NAMED_VALUES);
        }
    }
    let mut text = named.join(", ");
    if let Some(others @ 1..) = values.len().checked_sub(named.len()) {
        let first = print::of_all(named.iter().map(|known| print::of_text(known)));
        let _ = write!(
            text,
            " and {others} more (#{:06x})",
            sum.wrapping_sub(first) >> 40
        );
    }
    if text.is_empty() {
        text.push_str("nothing");
    }
    text
}
