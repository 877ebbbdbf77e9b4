//! What a waiver is for: one change, and no other that the same words would do for.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{Crd, Kind, Options, Report, compare};
use rstest::rstest;
use serde_json::{Map, Value, json};

fn crd(spec: &Value) -> Crd {
    Crd::parse(&json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec},
            }}}],
        },
    }))
    .unwrap()
}

fn report(old: &Value, new: &Value) -> Report {
    let options = Options {
        forward: true,
        ..Options::default()
    };
    compare(&[crd(old)], &[crd(new)], &options)
}

/// The fingerprint of the one finding of this kind.
fn print(old: &Value, new: &Value, kind: Kind) -> String {
    let report = report(old, new);
    let all: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.kind == kind)
        .collect();
    assert_eq!(all.len(), 1, "{:#?}", report.findings);
    all[0].fingerprint.clone()
}

fn with(base: &Value, more: &Value) -> Value {
    let mut schema = base.clone();
    for (word, value) in more.as_object().unwrap() {
        schema[word] = value.clone();
    }
    schema
}

fn texts() -> Value {
    let text = json!({"type": "string"});
    json!({"type": "object", "properties": {"a": text, "b": text, "c": text, "d": text}})
}

fn open() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Eight fields or more, of which not all are named.
fn many(last: &str) -> Value {
    let mut fields: Map<String, Value> = (0..7)
        .map(|i| (format!("f{i}"), json!({"type": "string"})))
        .collect();
    fields.insert(last.to_owned(), json!({"type": "string"}));
    fields.into()
}

/// Two changes at one place that only count what they are about, or do not name all of it.
#[rstest]
#[case::one_of(texts(), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"oneOf": [{"required": ["c"]}, {"required": ["d"]}]}), Kind::ChoiceAdded)]
#[case::any_of(texts(), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"anyOf": [{"required": ["a"]}, {"properties": {"b": {"enum": ["x"]}}}]}), Kind::ChoiceAdded)]
#[case::not(texts(), json!({"not": {"required": ["a"]}}), json!({"not": {"required": ["b"]}}), Kind::ChoiceAdded)]
#[case::changed(
    with(&texts(), &json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]})),
    json!({"oneOf": [{"required": ["a"]}, {"required": ["c"]}]}), json!({"oneOf": [{"required": ["a"]}, {"required": ["d"]}]}), Kind::ChoiceChanged)]
#[case::typed(open(), json!({"properties": {"a": {"type": "string", "enum": ["x"]}}}), json!({"properties": {"a": {"type": "string", "enum": ["y"]}}}), Kind::FreeFieldTyped)]
#[case::typed_inside(open(), json!({"properties": {"a": {"type": "array", "items": {"type": "string"}}}}), json!({"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}), Kind::FreeFieldTyped)]
#[case::closed(open(), json!({"x-kubernetes-preserve-unknown-fields": false, "properties": many("x")}), json!({"x-kubernetes-preserve-unknown-fields": false, "properties": many("y")}), Kind::UnknownPruned)]
#[case::closed_inside(
    open(),
    json!({"x-kubernetes-preserve-unknown-fields": false, "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}),
    json!({"x-kubernetes-preserve-unknown-fields": false, "properties": {"a": {"type": "object"}}}), Kind::UnknownPruned)]
#[case::not_comparable(json!({"type": "object", "$ref": "#/a"}), json!({"$ref": "#/b"}), json!({"$ref": "#/c"}), Kind::NotComparable)]
fn another_change_is_another_finding(
    #[case] old: Value,
    #[case] one: Value,
    #[case] other: Value,
    #[case] kind: Kind,
) {
    let (one, other) = (with(&old, &one), with(&old, &other));
    assert_ne!(print(&old, &one, kind), print(&old, &other, kind));
}

/// What has no order has none in a fingerprint.
#[rstest]
#[case::list(json!({"enum": ["m", "s", "l"]}), json!({"enum": ["l", "m", "s"]}), Kind::EnumAdded)]
#[case::long_list(
    json!({"enum": (0..40).map(|n| format!("v{n}")).collect::<Vec<_>>()}),
    json!({"enum": (0..40).rev().map(|n| format!("v{n}")).collect::<Vec<_>>()}), Kind::EnumAdded)]
#[case::branches(json!({"oneOf": [{"minLength": 1}, {"pattern": "^a$"}]}), json!({"oneOf": [{"pattern": "^a$"}, {"minLength": 1}]}), Kind::ChoiceAdded)]
#[case::lists_in_branches(json!({"oneOf": [{"enum": ["a", "b"]}, {"minLength": 1}]}), json!({"oneOf": [{"enum": ["b", "a"]}, {"minLength": 1}]}), Kind::ChoiceAdded)]
fn the_same_change_in_another_order(#[case] one: Value, #[case] other: Value, #[case] kind: Kind) {
    let old = json!({"type": "string"});
    let side = |more: &Value| with(&old, more);
    assert_eq!(print(&old, &side(&one), kind), print(&old, &side(&other), kind));
}

/// Values that are not named are told apart by a hash.
#[test]
fn long_lists_are_told_apart() {
    let side = |last: &str| {
        let mut values: Vec<String> = (0..40).map(|n| format!("v{n}")).collect();
        values.push(last.to_owned());
        json!({"type": "string", "enum": values})
    };
    let old = json!({"type": "string"});
    assert_ne!(
        print(&old, &side("x"), Kind::EnumAdded),
        print(&old, &side("y"), Kind::EnumAdded)
    );
}

/// Of versions that know less, not all places are named.
#[test]
fn a_version_that_loses_other_fields() {
    let side = |moved: bool, last: &str| {
        let version = |name: &str, stored: bool, fields: Value| {
            json!({"name": name, "served": true, "storage": stored, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": fields,
            }}})
        };
        Crd::parse(&json!({
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "names": {"plural": "things", "kind": "Thing"}, "versions": [
                version("v1", !moved, with(&many("x"), &many("y"))),
                version("v2", moved, json!({last: {"type": "string"}})),
            ]},
        }))
        .unwrap()
    };
    let print = |last: &str| {
        let options = Options {
            forward: true,
            ..Options::default()
        };
        let report = compare(&[side(false, last)], &[side(true, last)], &options);
        let finding = report
            .findings
            .iter()
            .find(|finding| finding.kind == Kind::StorageLoses);
        finding.unwrap().fingerprint.clone()
    };
    assert_ne!(print("x"), print("y"));
}
