//! Limits that let only few values through, such as `^(A|B)$` or a whole number from 0 to 3: as good as a list of them.

use serde_json::Value;

use super::{
    limits,
    number::{Bound, Number},
    pattern::{Budget, Inclusion},
    schema::{Enumeration, Limits, Schema, Types},
};

/// Whole numbers further apart are not looked at one by one.
const MAX_APART: i128 = 1_000;

/// Whether all values of these kinds that meet the limits are among the listed ones. One that is not is named if it is
/// text; of all else it is only said that it may be so.
pub fn among(old: &Schema, kinds: Types, listed: &Enumeration, patterns: &mut Budget) -> Inclusion {
    let others = Types::FRACTION.or(Types::ARRAY).or(Types::OBJECT);
    let either = [Value::Bool(true), Value::Bool(false)];
    let known = !kinds.has(others)
        && (!kinds.has(Types::BOOLEAN) || either.iter().all(|value| listed.contains(value)))
        && (!kinds.has(Types::INTEGER) || whole_numbers(&old.limits, listed));
    if !known {
        return Inclusion::Unknown("there are other values than the listed ones");
    }
    if kinds.has(Types::STRING) {
        texts(&old.limits, listed, patterns)
    } else {
        Inclusion::Yes
    }
}

fn whole_numbers(limits: &Limits, listed: &Enumeration) -> bool {
    let ends = (
        limits.minimum.map(Bound::lower_for_integers),
        limits.maximum.map(Bound::upper_for_integers),
    );
    let (Some(least), Some(most)) = ends else {
        return false;
    };
    let (Number::Whole(least), Number::Whole(most)) = (least.value, most.value) else {
        return false;
    };
    // The server knows whole numbers of 64 bits.
    let ends = (i64::try_from(least), i64::try_from(most));
    let (Ok(least), Ok(most)) = ends else { return false };
    let is_step = |number: i64| {
        let mut whole = limits
            .multiples
            .iter()
            .filter(|step| matches!(step, Number::Whole(_)));
        whole.all(|step| Number::Whole(number.into()).is_multiple_of(*step))
    };
    i128::from(most) - i128::from(least) <= MAX_APART
        && (least..=most)
            .filter(|number| is_step(*number))
            .all(|number| listed.contains(&number.into()))
}

/// The listed texts are a pattern too.
fn texts(limits: &Limits, listed: &Enumeration, patterns: &mut Budget) -> Inclusion {
    if limits.patterns.is_empty() && limits.length.max != Some(0) {
        return Inclusion::Unknown("any text may be there");
    }
    let texts = listed.values.iter().filter_map(Value::as_str);
    let texts: Vec<String> = texts.map(regex_syntax::escape).collect();
    if texts.is_empty() {
        return Inclusion::Unknown("no text is listed");
    }
    let known: Vec<&str> = limits.patterns.iter().map(String::as_str).collect();
    limits::covered(
        &known,
        &format!(r"\A(?:{})\z", texts.join("|")),
        limits.length,
        patterns,
    )
}
