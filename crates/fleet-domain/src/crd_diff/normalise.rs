//! One form for schemas that mean the same, so that a rewrite is not taken for a change.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    number::{Bound, Number},
    schema::{Count, Enumeration, Limits, Rare, Schema, Types},
};

/// What a schema says of fields that it does not name itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It tells what is kept: a field that only a branch names is pruned, and then there is nothing to check.
    Structure,
    /// It only checks: as a part of `allOf`, `anyOf`, `oneOf` or `not`.
    Check,
}

/// Folds one branch of `allOf` into the schema that holds it: both have to be met.
pub fn fold(schema: &mut Schema, mut branch: Schema, role: Role) {
    // A null is not put to it.
    if let Some(listed) = branch
        .limits
        .given()
        .and_then(|limits| limits.enumeration.as_mut())
    {
        listed.spare_null(true);
    }
    let others = [&mut branch.additional, &mut branch.items];
    let children = others.into_iter().flatten().map(|child| &mut **child);
    for child in branch.properties.values_mut().chain(children) {
        child.hold();
    }
    merge(schema, branch, role);
}

/// What two schemas say of one place.
fn merge(schema: &mut Schema, mut branch: Schema, role: Role) {
    schema.forget();
    schema.types = schema.types.and(branch.types);
    unite(&mut schema.required, branch.required);
    if let Some(limits) = branch.limits.given() {
        merge_limits(&mut schema.limits, std::mem::take(limits));
        if let Some(listed) = &mut schema.limits.enumeration
            && !schema.types.has(Types::NULL)
        {
            listed.spare_null(false);
        }
    }
    if let Some(choices) = branch.choices.given() {
        schema.choices.any.append(&mut choices.any);
        schema.choices.one.append(&mut choices.one);
        schema.choices.not.append(&mut choices.not);
    }
    schema.rules.append(&mut branch.rules);
    schema.atomic_map |= branch.atomic_map;
    schema.held = match (schema.held, branch.held) {
        (Some(own), Some(more)) => Some(own.wrapping_add(more)),
        (own, more) => own.or(more),
    };
    schema.unread = schema.unread.take().or(branch.unread);
    merge_properties(schema, branch.properties, role);
    merge_child(&mut schema.items, branch.items, role);
    merge_child(&mut schema.additional, branch.additional, role);
}

fn merge_properties(schema: &mut Schema, mut more: BTreeMap<String, Schema>, role: Role) {
    if role == Role::Check {
        if schema.properties.is_empty() {
            schema.properties = more;
            return;
        }
        for (name, property) in more {
            match schema.properties.get_mut(&name) {
                Some(known) => merge(known, property, role),
                None => {
                    schema.properties.insert(name, property);
                }
            }
        }
        return;
    }
    let keeps = schema.preserve || schema.additional.is_some();
    let mark = |property: &mut Schema| {
        property.forget();
        property.unstructured = true;
    };
    if keeps && schema.properties.is_empty() {
        more.values_mut().for_each(mark);
        schema.properties = more;
        return;
    }
    for (name, mut property) in more {
        match schema.properties.get_mut(&name) {
            Some(known) => merge(known, property, role),
            None if !keeps => {}
            None => {
                mark(&mut property);
                schema.properties.insert(name, property);
            }
        }
    }
}

/// The smaller goes into the larger: what comes up through many levels of `allOf` is not copied at each.
fn unite(known: &mut BTreeSet<String>, mut more: BTreeSet<String>) {
    if known.len() < more.len() {
        std::mem::swap(known, &mut more);
    }
    known.extend(more);
}

fn merge_child(child: &mut Option<Box<Schema>>, branch: Option<Box<Schema>>, role: Role) {
    match (child, branch) {
        (Some(child), Some(branch)) => merge(child, *branch, role),
        (child @ None, branch) if role == Role::Check => *child = branch,
        _ => {}
    }
}

fn merge_limits(limits: &mut Limits, other: Limits) {
    limits.enumeration = match (limits.enumeration.take(), other.enumeration) {
        (Some(a), Some(b)) => {
            let both = a.values.into_iter().filter(|value| b.contains(value));
            Some(Box::new(Enumeration::new(both.collect())))
        }
        (a, b) => a.or(b),
    };
    limits.minimum = match (limits.minimum, other.minimum) {
        (Some(a), Some(b)) => Some(if b.is_tighter_lower(a) { b } else { a }),
        (a, b) => a.or(b),
    };
    limits.maximum = match (limits.maximum, other.maximum) {
        (Some(a), Some(b)) => Some(if b.is_tighter_upper(a) { b } else { a }),
        (a, b) => a.or(b),
    };
    limits.multiples.extend(other.multiples);
    limits.length.merge(other.length);
    limits.items.merge(other.items);
    limits.fields.merge(other.fields);
    unite(&mut limits.patterns, other.patterns);
    unite(&mut limits.formats, other.formats);
    limits.unique |= other.unique;
}

/// Takes out what constrains nothing.
pub fn tidy(schema: &mut Schema, role: Role) {
    schema.forget();
    let types = schema.types;
    if !types.has(Types::OBJECT) {
        schema.required.clear();
    }
    if let Some(limits) = schema.limits.given() {
        tidy_limits(limits, types, schema.required.len());
        if limits.is_empty() {
            schema.limits = Rare::default();
        }
    }
    if !schema.choices.is_empty() {
        tidy_choices(schema, role);
    }
}

fn tidy_limits(limits: &mut Limits, types: Types, required: usize) {
    if types.has(Types::NUMBER) {
        if !types.has(Types::FRACTION) {
            limits.minimum = limits.minimum.map(Bound::lower_for_integers);
            limits.maximum = limits.maximum.map(Bound::upper_for_integers);
            limits.multiples.retain(|step| *step != Number::Whole(1));
        }
        limits.multiples.sort_by(|one, other| one.compare(*other));
        limits.multiples.dedup();
    } else {
        limits.minimum = None;
        limits.maximum = None;
        limits.multiples.clear();
    }
    if !types.has(Types::STRING) {
        limits.length = Count::default();
        limits.patterns.clear();
    }
    if !types.has(Types::ARRAY) {
        limits.items = Count::default();
        limits.unique = false;
    }
    if !types.has(Types::OBJECT) {
        limits.fields = Count::default();
    } else if limits.fields.min <= required as u64 {
        // So many fields are there anyway.
        limits.fields.min = 0;
    }
    limits.formats.retain(|format| format_matters(format, types));
    let both = [true.into(), false.into()];
    if types.without(Types::NULL) == Types::BOOLEAN
        && limits.enumeration.as_ref().is_some_and(|all| {
            both.iter().all(|value| all.contains(value))
                && (!types.has(Types::NULL) || all.contains(&serde_json::Value::Null))
        })
    {
        limits.enumeration = None;
    }
}

fn tidy_choices(schema: &mut Schema, role: Role) {
    let mut single = Vec::new();
    let choices = &mut *schema.choices;
    for groups in [&mut choices.any, &mut choices.one] {
        groups.retain_mut(|group| {
            if group.len() == 1 {
                single.append(group);
                return false;
            }
            true
        });
    }
    // A branch that takes everything makes `anyOf` take everything.
    choices
        .any
        .retain(|group| !group.is_empty() && !group.iter().any(Schema::is_vacuous));
    choices.one.retain(|group| !group.is_empty());
    for group in &mut choices.any {
        drop_equals(group);
    }
    if !single.is_empty() {
        for branch in single {
            fold(schema, branch, role);
        }
        tidy(schema, role);
    }
}

/// Long lists are left as they are from somewhere on: looking for equals would be quadratic.
fn drop_equals(group: &mut Vec<Schema>) {
    let (mut kept, mut twice): (Vec<&Schema>, Vec<usize>) = (Vec::new(), Vec::new());
    for (place, branch) in group.iter().enumerate() {
        if kept.len() > 32 {
            break;
        }
        if kept.contains(&branch) {
            twice.push(place);
        } else {
            kept.push(branch);
        }
    }
    if !twice.is_empty() {
        let mut places = 0..;
        group.retain(|_| {
            places
                .next()
                .is_none_or(|place| twice.binary_search(&place).is_err())
        });
    }
}

/// `anyOf: [{type: integer}, {type: string}]` beside `x-kubernetes-int-or-string` says the same again.
pub fn without_int_or_string(any: Vec<Schema>) -> Vec<Schema> {
    let says_only = |branch: &Schema, types: Types| branch.types == types && branch.is_bare();
    let is_pair = any.len() == 2
        && any.iter().any(|branch| says_only(branch, Types::INTEGER))
        && any.iter().any(|branch| says_only(branch, Types::STRING));
    if is_pair { Vec::new() } else { any }
}

/// The formats that a server checks. Unknown ones are ignored by it, and so by us.
const FORMATS: &[&str] = &[
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "date",
    "duration",
    "date-time",
    "k8s-short-name",
    "k8s-long-name",
];

/// A format in one spelling: a server does not look at the dashes of its name.
pub fn format_name(format: &str) -> &str {
    let without = |name: &'_ str| name.bytes().filter(|byte| *byte != b'-').collect::<Vec<u8>>();
    let wanted = without(format);
    let mut known = FORMATS.iter();
    let known = known.find(|known| **known == format || without(known) == wanted);
    known.copied().unwrap_or(format)
}

/// Whether a server checks this format of such values.
pub fn format_matters(format: &str, types: Types) -> bool {
    match format {
        // Integers have 64 bits without being told. Beside another type, or none, the server looks at neither.
        "int32" => types.without(Types::NULL) == Types::INTEGER,
        "float" => types.without(Types::NULL) == Types::NUMBER,
        text => types.has(Types::STRING) && FORMATS.contains(&text),
    }
}

/// A CEL expression without its comments and with its white space evened out; inside quotes it stays as it is.
pub fn expression(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut gap = false;
    while let Some(c) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.find('\n').map_or("", |end| &comment[end..]);
            gap = true;
            continue;
        }
        if c.is_whitespace() {
            rest = &rest[c.len_utf8()..];
            gap = true;
            continue;
        }
        if gap && !out.is_empty() {
            out.push(' ');
        }
        gap = false;
        let length = match c {
            '"' | '\'' => quoted(rest, last_word(&out)),
            c => c.len_utf8(),
        };
        let (taken, after) = rest.split_at(length);
        out.push_str(taken);
        rest = after;
    }
    out
}

fn is_of_a_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// What a text ends with, as far as it is one word.
fn last_word(text: &str) -> &str {
    let other = text.rfind(|c| !is_of_a_word(c));
    let start = other.map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    &text[start..]
}

/// How long the quoted text is with which this starts. Behind a word with an R in it, a backslash is one.
fn quoted(text: &str, prefix: &str) -> usize {
    let raw = prefix.len() <= 2 && prefix.contains(['r', 'R']);
    let ends = ["\"\"\"", "'''", "\"", "'"];
    let end = ends.into_iter().find(|end| text.starts_with(end)).unwrap_or("'");
    let mut at = end.len();
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(end) {
            return at + end.len();
        }
        at += c.len_utf8();
        if c == '\\' && !raw {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    text.len()
}

/// Whether an expression without comments uses this name; not as a part of another, and not inside quotes.
pub fn mentions(expression: &str, name: &str) -> bool {
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        let length = if is_of_a_word(c) {
            let word = rest.split(|c| !is_of_a_word(c)).next().unwrap_or_default();
            if word == name {
                return true;
            }
            word.len()
        } else if c == '"' || c == '\'' {
            quoted(rest, last_word(&expression[..expression.len() - rest.len()]))
        } else {
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    false
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::crd_diff::parse::parse;

    #[rstest]
    #[case::all_of_enums(json!({"type": "string", "allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "a"]}]}), json!({"type": "string", "enum": ["a", "b"]}))]
    #[case::all_of_map_type(
        json!({"type": "object", "properties": {"key": {"type": "string"}}, "allOf": [{"x-kubernetes-map-type": "atomic", "required": ["key"]}, {"x-kubernetes-map-type": "atomic"}]}),
        json!({"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"], "x-kubernetes-map-type": "atomic"}))]
    #[case::list_type(json!({"type": "array", "x-kubernetes-list-type": "atomic"}), json!({"type": "array"}))]
    #[case::map_type(json!({"type": "object", "x-kubernetes-map-type": "granular"}), json!({"type": "object"}))]
    #[case::zero(json!({"type": "string", "minLength": 0}), json!({"type": "string"}))]
    #[case::other_kind(json!({"type": "string", "minimum": 3, "maxItems": 2}), json!({"type": "string"}))]
    #[case::numbers(json!({"type": "integer", "minimum": 1.0}), json!({"type": "integer", "minimum": 1}))]
    #[case::exclusive(json!({"type": "integer", "minimum": 0, "exclusiveMinimum": true}), json!({"type": "integer", "minimum": 1}))]
    #[case::int_or_string(
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        json!({"x-kubernetes-int-or-string": true}))]
    #[case::int_or_string_in_all_of(
        json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}]}),
        json!({"x-kubernetes-int-or-string": true}))]
    #[case::single(json!({"type": "string", "oneOf": [{"minLength": 2}]}), json!({"type": "string", "minLength": 2}))]
    #[case::any_of_all(json!({"type": "string", "anyOf": [{"minLength": 2}, {}]}), json!({"type": "string"}))]
    #[case::formats(json!({"type": "integer", "format": "int64"}), json!({"type": "integer"}))]
    #[case::unknown_format(json!({"type": "string", "format": "quantity"}), json!({"type": "string"}))]
    #[case::counted_by_required(json!({"type": "object", "required": ["a"], "minProperties": 1}), json!({"type": "object", "required": ["a"]}))]
    #[case::all_of_in_a_branch(
        json!({"type": "object", "not": {"allOf": [{"properties": {"a": {"maxLength": 3}}}, {"items": {"minLength": 1}}]}}),
        json!({"type": "object", "not": {"properties": {"a": {"maxLength": 3}}, "items": {"minLength": 1}}}))]
    #[case::all_of_in_all_of(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [{"anyOf": [{"properties": {"a": {"maxLength": 3}}}]}]}),
        json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}))]
    #[case::words(json!({"type": "string", "description": "a", "title": "b", "example": 1}), json!({"type": "string"}))]
    fn means_the_same(#[case] one: Value, #[case] other: Value) {
        assert_eq!(parse(&one), parse(&other));
    }

    #[rstest]
    #[case("self.a  ==\n 'x  y'", "self.a == 'x  y'")]
    #[case(" a ", "a")]
    #[case("a // it's\n== b", "a == b")]
    #[case("'a // b'  == c//", "'a // b' == c")]
    #[case(r"r'\'  == b // 'c'", r"r'\' == b")]
    #[case(r"'\'  ' == b", r"'\'  ' == b")]
    #[case("'''it's  a'''  == b", "'''it's  a''' == b")]
    #[case("'no end  ", "'no end  ")]
    fn white_space(#[case] text: &str, #[case] even: &str) {
        assert_eq!(expression(text), even);
    }

    #[rstest]
    #[case("self == oldSelf", true)]
    #[case("self.myoldSelf == 1", false)]
    #[case("self != 'oldSelf'", false)]
    #[case(r"self != r'\' && self == oldSelf", true)]
    #[case("self == oldSelf.é", true)]
    fn transition_rules(#[case] text: &str, #[case] yes: bool) {
        assert_eq!(mentions(text, "oldSelf"), yes);
    }
}
