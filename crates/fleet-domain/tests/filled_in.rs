//! Fields that are filled in, and no longer: what a combination, a count or a rule makes of it, here or around.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{
    Crd, Impact, Kind, Options, Report, Verdict, compare,
    object::{Checker, fill_in, filled_in},
    parse_schema,
};
use rstest::rstest;
use serde_json::{Value, json};

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

/// The findings that matter.
fn found(report: &Report) -> Vec<(Kind, Impact, &str)> {
    let matters = report
        .findings
        .iter()
        .filter(|finding| finding.impact < Impact::Warning || finding.kind == Kind::NullKept);
    matters
        .map(|finding| (finding.kind, finding.impact, finding.path.as_str()))
        .collect()
}

/// An object with these fields, and what else is said of it.
fn with(properties: Value, more: &Value) -> Value {
    let mut schema = json!({"type": "object", "properties": properties});
    for (word, value) in more.as_object().unwrap() {
        schema[word] = value.clone();
    }
    schema
}

/// A combination may speak of what is filled in several levels below it.
#[rstest]
#[case::added(json!({}), json!({"default": "On"}), json!({"anyOf": [{"properties": {"tls": {"properties": {"mode": {"enum": ["Off"]}}}}}, {"required": ["cert"]}]}), true)]
#[case::changed(json!({"default": "Off"}), json!({"default": "On"}), json!({"anyOf": [{"properties": {"tls": {"properties": {"mode": {"enum": ["Off"]}}}}}, {"required": ["cert"]}]}), true)]
#[case::one_of(json!({}), json!({"default": "On"}), json!({"oneOf": [{"properties": {"tls": {"required": ["mode"]}}, "required": ["tls"]}, {"required": ["cert"]}]}), true)]
#[case::not(json!({}), json!({"default": "On"}), json!({"not": {"properties": {"tls": {"required": ["mode"]}}, "required": ["tls", "cert"]}}), true)]
#[case::nested(json!({}), json!({"default": "On"}), json!({"anyOf": [{"required": ["cert"]}, {"anyOf": [{"properties": {"tls": {"properties": {"mode": {"pattern": "f$"}}}}}]}]}), true)]
#[case::asks_for_it(json!({}), json!({"default": "On"}), json!({"anyOf": [{"properties": {"tls": {"required": ["mode"]}}}, {"required": ["cert"]}]}), false)]
#[case::of_another(json!({}), json!({"default": "On"}), json!({"anyOf": [{"properties": {"tls": {"properties": {"other": {"enum": ["Off"]}}}}}, {"required": ["cert"]}]}), false)]
fn filled_in_below_a_combination(
    #[case] old: Value,
    #[case] new: Value,
    #[case] combination: Value,
    #[case] minds: bool,
) {
    let side = |mut mode: Value| {
        mode["type"] = "string".into();
        let tls = json!({"type": "object", "properties": {"mode": mode, "other": {"type": "string"}}});
        with(json!({"tls": tls, "cert": {"type": "string"}}), &combination)
    };
    let report = report(&side(old), &side(new));
    let expected: &[_] = &[(Kind::DefaultUnderChoice, Impact::Undecidable, ".spec.tls.mode")];
    assert_eq!(found(&report), &expected[..usize::from(minds)]);
}

/// The same for a field that comes with its default, and in the entries of a list.
#[test]
fn a_new_field_below_a_combination() {
    let side = |field: &str| {
        let entry = json!({"type": "object", "properties": {field: {"type": "string", "default": "x"}}});
        with(
            json!({"l": {"type": "array", "items": entry}}),
            &json!({"not": {"properties": {"l": {"items": {"required": ["b"]}}}}}),
        )
    };
    let mut old = side("b");
    old["properties"]["l"]["items"]["properties"] = json!({});
    assert_eq!(
        found(&report(&old, &side("b"))),
        [(Kind::DefaultUnderChoice, Impact::Undecidable, ".spec.l[*].b")]
    );
}

/// What met a combination or a count only because it was filled in.
#[rstest]
#[case::any_of(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), Some(Impact::Breaking))]
#[case::one_of(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), Some(Impact::Breaking))]
#[case::count(json!({"minProperties": 1}), Some(Impact::Breaking))]
#[case::unsure(json!({"required": ["c"], "anyOf": [{"properties": {"c": {"enum": ["other"]}}}, {"required": ["a"]}]}), Some(Impact::Undecidable))]
#[case::only_limited(json!({"anyOf": [{"properties": {"a": {"enum": ["x"]}}}, {"required": ["b"]}]}), None)]
#[case::of_another(json!({"anyOf": [{"required": ["c"]}, {"required": ["b"]}]}), None)]
fn no_longer_filled_in(#[case] more: Value, #[case] impact: Option<Impact>) {
    let side = |a: Value| {
        with(
            json!({"a": a, "b": {"type": "string"}, "c": {"type": "string", "pattern": "^(a|b)*[c-z]?"}}),
            &more,
        )
    };
    let report = report(
        &side(json!({"type": "string", "default": "x"})),
        &side(json!({"type": "string"})),
    );
    let expected = impact.map(|impact| (Kind::DefaultMissed, impact, ".spec.a"));
    assert_eq!(found(&report), Vec::from_iter(expected));
}

/// A rule that a default has met asks nobody to set the field.
#[rstest]
#[case::required(json!({"required": ["mode"]}), Kind::RequiredAdded, ".spec.mode")]
#[case::counted(json!({"minProperties": 1}), Kind::LimitTightened, ".spec")]
fn a_rule_that_a_default_has_met(#[case] more: Value, #[case] kind: Kind, #[case] path: &str) {
    let old = with(
        json!({"mode": {"type": "string", "default": "A"}}),
        &json!({"x-kubernetes-validations": [{"rule": "self.mode != 'Legacy'"}]}),
    );
    let new = with(json!({"mode": {"type": "string"}}), &more);
    assert_eq!(found(&report(&old, &new)), [(kind, Impact::Breaking, path)]);
}

/// A null is dropped where it may not be one, and then the field is missing.
#[rstest]
#[case::any_of(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), Some(Impact::Breaking))]
#[case::required(json!({"required": ["a"]}), Some(Impact::Breaking))]
#[case::count(json!({"minProperties": 1}), Some(Impact::Breaking))]
#[case::of_another(json!({"anyOf": [{"required": ["c"]}, {"required": ["b"]}]}), None)]
fn a_null_that_is_dropped(#[case] more: Value, #[case] impact: Option<Impact>) {
    let side = |nullable: bool| {
        with(
            json!({"a": {"type": "string", "nullable": nullable}, "b": {"type": "string"}, "c": {"type": "string"}}),
            &more,
        )
    };
    let expected = impact.map(|impact| (Kind::NullRejected, impact, ".spec.a"));
    assert_eq!(
        found(&report(&side(true), &side(false))),
        Vec::from_iter(expected)
    );
}

/// A null that was dropped stays where the field becomes nullable, and then counts.
#[rstest]
#[case::not_listed(json!({"enum": ["x"]}), json!({}), Some((Kind::NullKept, Impact::Warning, ".spec.a")))]
#[case::listed(json!({"enum": ["x", null]}), json!({}), Some((Kind::NullKept, Impact::Warning, ".spec.a")))]
#[case::listed_in_a_combination(json!({"allOf": [{"enum": ["x"]}]}), json!({}), None)]
#[case::with_a_default(json!({"enum": ["x"], "default": "x"}), json!({}), Some((Kind::NullKept, Impact::Warning, ".spec.a")))]
#[case::was_missed(json!({"enum": ["x"]}), json!({"required": ["a"]}), None)]
#[case::was_filled_in(json!({"enum": ["x"], "default": "x"}), json!({"required": ["a"]}), Some((Kind::NullKept, Impact::Warning, ".spec.a")))]
#[case::other_limits(json!({"minLength": 3, "pattern": "^x", "not": {"maxLength": 9}}), json!({}), None)]
#[case::one_of(json!({}), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), Some((Kind::NullKept, Impact::Warning, ".spec.a")))]
#[case::any_of(json!({}), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), None)]
#[case::branch(json!({}), json!({"anyOf": [{"properties": {"a": {"enum": ["x"]}}}, {"required": ["b"]}]}), Some((Kind::NullKept, Impact::Warning, ".spec.a")))]
#[case::branch_of_text(json!({}), json!({"anyOf": [{"properties": {"a": {"minLength": 3}}}, {"required": ["b"]}]}), None)]
#[case::counted(json!({}), json!({"maxProperties": 1}), Some((Kind::NullKept, Impact::Warning, ".spec.a")))]
#[case::filled_in_for_a_rule(json!({"default": "x"}), json!({"x-kubernetes-validations": [{"rule": "has(self.a)"}]}), Some((Kind::DefaultUnderChoice, Impact::Undecidable, ".spec")))]
#[case::absent_to_a_rule(json!({}), json!({"x-kubernetes-validations": [{"rule": "has(self.b)"}, {"rule": "!has(self.a) || self.a == 'x'"}]}), None)]
fn a_null_that_stays(
    #[case] field: Value,
    #[case] more: Value,
    #[case] expected: Option<(Kind, Impact, &str)>,
) {
    let side = |nullable: bool| {
        let mut a = field.clone();
        (a["type"], a["nullable"]) = ("string".into(), nullable.into());
        with(json!({"a": a, "b": {"type": "string"}}), &more)
    };
    let report = report(&side(false), &side(true));
    // What is stored is neither refused nor lost.
    let is_warning = expected.is_none_or(|(_, impact, _)| impact == Impact::Warning);
    assert_eq!(report.forward == Some(Verdict::Safe), is_warning);
    assert_eq!(found(&report), Vec::from_iter(expected));
}

/// The same in a map, and in a field of that name.
#[rstest]
#[case::map(json!({"additionalProperties": {"type": "string"}}), json!({"additionalProperties": {"type": "string", "nullable": true, "enum": ["x"]}}), ".spec.m.*")]
#[case::named(json!({"additionalProperties": {"type": "string", "enum": ["x"]}}), json!({"properties": {"k": {"type": "string", "nullable": true, "enum": ["x"]}}, "additionalProperties": {"type": "string", "enum": ["x"]}}), ".spec.m.k")]
fn a_null_that_stays_in_a_map(#[case] old: Value, #[case] new: Value, #[case] path: &str) {
    let side = |mut map: Value| {
        map["type"] = "object".into();
        with(json!({"m": map}), &json!({}))
    };
    let report = report(&side(old), &side(new));
    assert!(
        found(&report).contains(&(Kind::NullKept, Impact::Warning, path)),
        "{:?}",
        report.findings
    );
}

/// Entries are told apart by what is filled in.
#[rstest]
#[case::changed(json!({"default": "TCP"}), json!({"default": "UDP"}), true)]
#[case::another_field(json!({"default": "TCP"}), json!({"default": "TCP"}), false)]
fn the_key_of_a_list(#[case] old: Value, #[case] new: Value, #[case] tightens: bool) {
    let side = |mut protocol: Value, note: &str| {
        protocol["type"] = "string".into();
        with(
            json!({"ports": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": protocol, "note": {"type": "string", "default": note},
                }},
            }}),
            &json!({}),
        )
    };
    let expected: &[_] = &[(Kind::ListTightened, Impact::Breaking, ".spec.ports")];
    let report = report(&side(old, "a"), &side(new, "b"));
    assert_eq!(found(&report), &expected[..usize::from(tightens)]);
}

/// A null that may not be one gets the default, in lists and maps as in fields.
#[rstest]
#[case::list(json!({"type": "array", "items": {"type": "string", "nullable": true}}), json!({"type": "array", "items": {"type": "string", "default": "d"}}), json!(["a", null]), json!(["a", "d"]), ".spec.a[*]")]
#[case::map(json!({"type": "object", "additionalProperties": {"type": "string", "nullable": true}}), json!({"type": "object", "additionalProperties": {"type": "string", "default": "d"}}), json!({"k": null}), json!({"k": "d"}), ".spec.a.*")]
#[case::counted_map(json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "nullable": true}}), json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": "string", "default": "d"}}), json!({"k": null}), json!({"k": "d"}), ".spec.a.*")]
#[case::objects(json!({"type": "array", "items": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}}}), json!({"type": "array", "items": {"type": "object", "default": {}, "properties": {"x": {"type": "string", "default": "y"}}}}), json!([null]), json!([{"x": "y"}]), ".spec.a[*]")]
fn a_null_that_gives_way(
    #[case] old: Value,
    #[case] new: Value,
    #[case] stored: Value,
    #[case] filled: Value,
    #[case] path: &str,
) {
    let mut value = stored;
    let schema = parse_schema(&new);
    assert_eq!(*filled_in(&schema, &value), filled);
    fill_in(&schema, &mut value);
    assert_eq!(value, filled);
    let side = |a: Value| with(json!({"a": a}), &json!({}));
    let report = report(&side(old), &side(new));
    assert_eq!(report.forward, Some(Verdict::Safe), "{:#?}", report.findings);
    assert!(
        report
            .findings
            .iter()
            .any(|f| f.kind == Kind::NullDropped && f.path == path)
    );
}

/// A null is put to the listed values of its own schema, which take none even if they name one, and to no other list.
#[rstest]
#[case::own(json!({"enum": ["x"]}), true)]
#[case::own_with_null(json!({"enum": ["x", null]}), true)]
#[case::all_of(json!({"allOf": [{"enum": ["x"]}]}), false)]
#[case::one_any_of(json!({"anyOf": [{"enum": ["x"]}]}), false)]
#[case::one_one_of(json!({"oneOf": [{"allOf": [{"enum": ["x"]}]}]}), false)]
#[case::any_of(json!({"anyOf": [{"enum": ["x"]}, {"enum": ["y"]}]}), false)]
#[case::both(json!({"enum": ["x", null], "allOf": [{"enum": ["x", "y"]}]}), true)]
#[case::length(json!({"minLength": 2}), false)]
fn a_null_and_listed_values(#[case] more: Value, #[case] refused: bool) {
    let mut before = json!({"type": "string", "nullable": true});
    let old = with(json!({"a": before.clone()}), &json!({}));
    before
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let new = with(json!({"a": before}), &json!({}));
    let accepts = Checker::default().accepts(&parse_schema(&new), &json!({"a": null}));
    assert_eq!(accepts, !refused);
    let report = report(&old, &new);
    assert_eq!(
        report.findings.iter().any(|f| f.kind == Kind::NullRejected),
        refused,
        "{:#?}",
        report.findings
    );
    // A list of a schema around speaks of the field as its own does.
    let around = with(
        json!({"a": {"type": "string", "nullable": true}}),
        &json!({"allOf": [{"properties": {"a": {"enum": ["x"]}}}]}),
    );
    assert!(!Checker::default().accepts(&parse_schema(&around), &json!({"a": null})));
}
