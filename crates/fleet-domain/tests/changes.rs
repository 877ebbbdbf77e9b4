//! One row per change of a schema: which finding it is, and how bad.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{
    Class, Crd, Impact, Kind, Options, Report, ServerVersion, Verdict, compare,
};
use rstest::rstest;
use serde_json::{Value, json};

fn crd(spec: &Value) -> Crd {
    definition(json!({
        "versions": [{
            "name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
        }],
    }))
}

fn definition(spec: Value) -> Crd {
    let mut whole = json!({
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
    });
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    Crd::parse(&json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": whole,
    }))
    .unwrap()
}

fn forward(old: &Crd, new: &Crd, server: Option<&str>) -> Report {
    let options = Options {
        forward: true,
        server: server.map(|version| version.parse::<ServerVersion>().unwrap()),
        ..Options::default()
    };
    compare(std::slice::from_ref(old), std::slice::from_ref(new), &options)
}

/// The findings that matter, as kind and place.
fn findings(report: &Report) -> Vec<(Kind, &str)> {
    report
        .findings
        .iter()
        .filter(|finding| finding.impact != Impact::Info)
        .map(|finding| (finding.kind, finding.path.as_str()))
        .collect()
}

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

#[rstest]
#[case::description(json!({"a": {"type": "string", "description": "x"}}), json!({"a": {"type": "string"}}))]
#[case::new_field(json!({}), json!({"a": {"type": "string", "enum": ["x"]}}))]
#[case::wider_type(json!({"a": {"type": "integer"}}), json!({"a": {"type": "number"}}))]
#[case::int_or_string(json!({"a": {"type": "string"}}), json!({"a": {"x-kubernetes-int-or-string": true}}))]
#[case::enum_dropped(json!({"a": {"type": "string", "enum": ["x"]}}), json!({"a": {"type": "string"}}))]
#[case::enum_to_pattern(json!({"a": {"type": "string", "enum": ["x", "y"]}}), json!({"a": {"type": "string", "pattern": "^[x-z]$"}}))]
#[case::wider_bound(json!({"a": {"type": "integer", "minimum": 1}}), json!({"a": {"type": "integer", "minimum": 0, "exclusiveMinimum": true}}))]
#[case::wider_pattern(json!({"a": {"type": "string", "pattern": "^[a-z]+$"}}), json!({"a": {"type": "string", "pattern": "^[a-z0-9]+$"}}))]
#[case::empty_pattern(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "pattern": ".*"}}))]
#[case::pattern_implies_length(json!({"a": {"type": "string", "pattern": "^x+$"}}), json!({"a": {"type": "string", "pattern": "^x+$", "minLength": 1}}))]
#[case::pattern_implies_lengths(json!({"a": {"type": "string", "pattern": "^[a-z]{3,10}$"}}), json!({"a": {"type": "string", "pattern": "^[a-z]{3,10}$", "minLength": 3, "maxLength": 10}}))]
#[case::format_implies_text(json!({"a": {"type": "string", "format": "date-time"}}), json!({"a": {"type": "string", "format": "date-time", "minLength": 1}}))]
#[case::format_implies_lengths(json!({"a": {"type": "string", "format": "uuid"}}), json!({"a": {"type": "string", "format": "uuid", "minLength": 32, "maxLength": 36}}))]
#[case::narrower_format_implies_lengths(json!({"a": {"type": "string", "format": "uuid4"}}), json!({"a": {"type": "string", "maxLength": 36}}))]
#[case::date_implies_lengths(json!({"a": {"type": "string", "format": "date"}}), json!({"a": {"type": "string", "format": "date", "minLength": 10, "maxLength": 10}}))]
#[case::time_implies_length(json!({"a": {"type": "string", "format": "date-time"}}), json!({"a": {"type": "string", "format": "date-time", "minLength": 20}}))]
#[case::length_rules_out_the_long(json!({"a": {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}}), json!({"a": {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}}))]
#[case::length_rules_out_the_empty(json!({"a": {"type": "string", "minLength": 1, "pattern": "^[a-z]*$"}}), json!({"a": {"type": "string", "minLength": 1, "pattern": "^[a-z]+$"}}))]
#[case::length_becomes_a_pattern(json!({"a": {"type": "string", "minLength": 2, "maxLength": 3}}), json!({"a": {"type": "string", "pattern": "^(?s:.{2,3})$"}}))]
#[case::nullable(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "nullable": true}}))]
#[case::pattern_to_enum(json!({"a": {"type": "string", "pattern": "^(A|B)$"}}), json!({"a": {"type": "string", "enum": ["B", "A"]}}))]
#[case::pattern_to_wider_enum(json!({"a": {"type": "string", "pattern": "^[ab]?$", "minLength": 1}}), json!({"a": {"type": "string", "enum": ["a", "b", "c"]}}))]
#[case::pattern_of_signs_to_enum(json!({"a": {"type": "string", "pattern": "^(a\\.b|\\$\\(x\\)|é\n)$"}}), json!({"a": {"type": "string", "enum": ["a.b", "$(x)", "é\n"]}}))]
#[case::length_to_enum(json!({"a": {"type": "string", "maxLength": 0}}), json!({"a": {"type": "string", "enum": [""]}}))]
#[case::bounds_to_enum(json!({"a": {"type": "integer", "minimum": 0, "maximum": 1}}), json!({"a": {"type": "integer", "enum": [0, 1]}}))]
#[case::broken_bounds_to_enum(json!({"a": {"type": "integer", "minimum": -0.5, "maximum": 3, "exclusiveMaximum": true, "multipleOf": 2}}), json!({"a": {"type": "integer", "enum": [2.0, 0.0, 7]}}))]
#[case::bounds_and_pattern_to_enum(json!({"a": {"x-kubernetes-int-or-string": true, "minimum": 1, "maximum": 1, "pattern": "^x$"}}), json!({"a": {"x-kubernetes-int-or-string": true, "enum": ["x", 1]}}))]
#[case::atomic_by_default(json!({"a": {"type": "array", "items": {"type": "string"}}}), json!({"a": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}}}))]
#[case::any_of_grows(
    json!({"a": {"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^x"}]}}),
    json!({"a": {"type": "string", "anyOf": [{"minLength": 2}, {"pattern": "^x"}, {"pattern": "^y"}]}}))]
#[case::one_of_to_any_of(
    json!({"a": {"type": "string", "oneOf": [{"minLength": 3}, {"pattern": "^x"}]}}),
    json!({"a": {"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^x"}]}}))]
#[case::unknown_format(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "format": "quantity"}}))]
#[case::integer_or_text_by_any_of(
    json!({"a": {"x-kubernetes-int-or-string": true}}),
    json!({"a": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}))]
#[case::wide_enough_by_itself(
    json!({"a": {"type": "string", "minLength": 4}}),
    json!({"a": {"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^x"}]}}))]
#[case::untyped(json!({"a": {"type": "string", "minLength": 3}}), json!({"a": {"x-kubernetes-preserve-unknown-fields": true}}))]
fn harmless(#[case] old: Value, #[case] new: Value) {
    let report = forward(&crd(&object(old)), &crd(&object(new)), None);
    assert_eq!(findings(&report), []);
    assert_eq!(report.forward, Some(Verdict::Safe));
}

#[rstest]
#[case::removed(json!({"a": {"type": "object", "required": ["b"], "properties": {"b": {"type": "string", "enum": ["x"], "default": "x"}}}}), json!({}), Kind::FieldRemoved)]
#[case::type_changed(json!({"a": {"type": "string"}}), json!({"a": {"type": "integer"}}), Kind::TypeChanged)]
#[case::narrower_type(json!({"a": {"type": "number"}}), json!({"a": {"type": "integer"}}), Kind::TypeChanged)]
#[case::enum_value(json!({"a": {"type": "string", "enum": ["x", "y"]}}), json!({"a": {"type": "string", "enum": ["x"]}}), Kind::EnumNarrowed)]
#[case::enum_added(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "enum": ["x"]}}), Kind::EnumAdded)]
#[case::pattern_to_enum(json!({"a": {"type": "string", "pattern": "^(A|B)$"}}), json!({"a": {"type": "string", "enum": ["A"]}}), Kind::EnumAdded)]
#[case::unanchored_pattern_to_enum(json!({"a": {"type": "string", "pattern": "A|B"}}), json!({"a": {"type": "string", "enum": ["A", "B"]}}), Kind::EnumAdded)]
#[case::pattern_of_lines_to_enum(json!({"a": {"type": "string", "pattern": "(?m)^(A|B)$"}}), json!({"a": {"type": "string", "enum": ["A", "B"]}}), Kind::EnumAdded)]
#[case::pattern_of_either_case_to_enum(json!({"a": {"type": "string", "pattern": "(?i)^k$"}}), json!({"a": {"type": "string", "enum": ["k", "K"]}}), Kind::EnumAdded)]
#[case::pattern_with_a_dot_to_enum(json!({"a": {"type": "string", "pattern": "^a.b$"}}), json!({"a": {"type": "string", "enum": ["a.b"]}}), Kind::EnumAdded)]
#[case::bounds_to_enum(json!({"a": {"type": "integer", "minimum": 0, "maximum": 2}}), json!({"a": {"type": "integer", "enum": [0, 1]}}), Kind::EnumAdded)]
#[case::numbers_to_enum(json!({"a": {"type": "number", "minimum": 0, "maximum": 1}}), json!({"a": {"type": "number", "enum": [0, 1]}}), Kind::EnumAdded)]
#[case::one_bound_to_enum(json!({"a": {"type": "integer", "minimum": 0}}), json!({"a": {"type": "integer", "enum": [0, 1]}}), Kind::EnumAdded)]
#[case::bounds_of_one_kind_to_enum(json!({"a": {"x-kubernetes-int-or-string": true, "minimum": 1, "maximum": 1}}), json!({"a": {"x-kubernetes-int-or-string": true, "enum": ["x", 1]}}), Kind::EnumAdded)]
#[case::bounds_to_text(json!({"a": {"type": "integer", "minimum": 1, "maximum": 1}}), json!({"a": {"type": "integer", "enum": ["1"]}}), Kind::EnumAdded)]
#[case::null_to_enum(json!({"a": {"type": "string", "nullable": true, "pattern": "^A$"}}), json!({"a": {"type": "string", "nullable": true, "enum": ["A"]}}), Kind::NullRejected)]
#[case::minimum(json!({"a": {"type": "integer"}}), json!({"a": {"type": "integer", "minimum": 1}}), Kind::LimitTightened)]
#[case::maximum(json!({"a": {"type": "number", "maximum": 3}}), json!({"a": {"type": "number", "maximum": 3, "exclusiveMaximum": true}}), Kind::LimitTightened)]
#[case::multiple(json!({"a": {"type": "integer", "multipleOf": 2}}), json!({"a": {"type": "integer", "multipleOf": 3}}), Kind::LimitTightened)]
#[case::length(json!({"a": {"type": "string", "maxLength": 9}}), json!({"a": {"type": "string", "maxLength": 8}}), Kind::LimitTightened)]
#[case::items(json!({"a": {"type": "array", "items": {"type": "string"}}}), json!({"a": {"type": "array", "items": {"type": "string"}, "maxItems": 3}}), Kind::LimitTightened)]
#[case::fields(json!({"a": {"type": "object", "additionalProperties": {"type": "string"}}}), json!({"a": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}}), Kind::LimitTightened)]
#[case::pattern(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "pattern": "^x"}}), Kind::PatternAdded)]
#[case::pattern_changed(json!({"a": {"type": "string", "pattern": "^[a-z0-9]+$"}}), json!({"a": {"type": "string", "pattern": "^[a-z]+$"}}), Kind::PatternChanged)]
#[case::pattern_within_length(json!({"a": {"type": "string", "minLength": 1, "pattern": "^[a-z]*$"}}), json!({"a": {"type": "string", "minLength": 1, "pattern": "^[a-y]+$"}}), Kind::PatternChanged)]
#[case::longer_than_the_pattern(json!({"a": {"type": "string", "pattern": "^[a-z]{3,10}$"}}), json!({"a": {"type": "string", "pattern": "^[a-z]{3,10}$", "maxLength": 9}}), Kind::LimitTightened)]
#[case::shorter_than_the_format(json!({"a": {"type": "string", "format": "uuid"}}), json!({"a": {"type": "string", "format": "uuid", "maxLength": 35}}), Kind::LimitTightened)]
#[case::longer_than_the_format(json!({"a": {"type": "string", "format": "uuid"}}), json!({"a": {"type": "string", "format": "uuid", "minLength": 33}}), Kind::LimitTightened)]
#[case::time_has_no_longest(json!({"a": {"type": "string", "format": "date-time"}}), json!({"a": {"type": "string", "format": "date-time", "maxLength": 64}}), Kind::LimitTightened)]
#[case::address_in_words_of_another(json!({"a": {"type": "string", "format": "ipv4"}}), json!({"a": {"type": "string", "format": "ipv4", "maxLength": 15}}), Kind::LimitTightened)]
#[case::format_that_is_not_checked(json!({"a": {"type": "string", "format": "UUID"}}), json!({"a": {"type": "string", "format": "UUID", "maxLength": 36}}), Kind::LimitTightened)]
#[case::format_that_not_all_check(json!({"a": {"type": "string", "format": "k8s-short-name"}}), json!({"a": {"type": "string", "format": "k8s-short-name", "maxLength": 63}}), Kind::LimitTightened)]
#[case::pattern_for_a_format(json!({"a": {"type": "string", "format": "ipv4"}}), json!({"a": {"type": "string", "format": "ipv4", "pattern": "^[0-9.]+$"}}), Kind::PatternAdded)]
#[case::format(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "format": "ipv4"}}), Kind::FormatAdded)]
#[case::int32(json!({"a": {"type": "integer", "format": "int64"}}), json!({"a": {"type": "integer", "format": "int32"}}), Kind::NumberFormatAdded)]
#[case::set(json!({"a": {"type": "array", "items": {"type": "string"}}}), json!({"a": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}}), Kind::ListTightened)]
#[case::rule(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'x'"}]}}), Kind::RuleAdded)]
#[case::immutable(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}), Kind::TransitionRuleAdded)]
#[case::rule_changed(
    json!({"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'x'"}]}}),
    json!({"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'y'"}]}}), Kind::RuleChanged)]
#[case::not(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "not": {"pattern": "^x"}}}), Kind::ChoiceAdded)]
#[case::one_of(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "oneOf": [{"pattern": "^x"}, {"minLength": 4}]}}), Kind::ChoiceAdded)]
#[case::any_of_types(json!({"a": {"x-kubernetes-preserve-unknown-fields": true}}), json!({"a": {"x-kubernetes-preserve-unknown-fields": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}}), Kind::ChoiceAdded)]
#[case::branch_gone(
    json!({"a": {"type": "string", "anyOf": [{"pattern": "^x"}, {"minLength": 4}, {"maxLength": 2}]}}),
    json!({"a": {"type": "string", "anyOf": [{"pattern": "^x"}, {"minLength": 4}]}}), Kind::ChoiceAdded)]
#[case::typed_under_preserving_parent(
    json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}),
    json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"b": {"type": "string"}}}}), Kind::FreeFieldTyped)]
#[case::no_longer_preserved(
    json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}),
    json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}}}), Kind::UnknownPruned)]
#[case::map_closed(
    json!({"a": {"type": "object", "additionalProperties": {"type": "string"}}}),
    json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}}}), Kind::UnknownPruned)]
#[case::embedded(
    json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}),
    json!({"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-embedded-resource": true}}), Kind::EmbeddedAdded)]
#[case::null_in_list(
    json!({"a": {"type": "array", "items": {"type": "string", "nullable": true}}}),
    json!({"a": {"type": "array", "items": {"type": "string"}}}), Kind::NullRejected)]
fn harmful(#[case] old: Value, #[case] new: Value, #[case] kind: Kind) {
    let report = forward(&crd(&object(old)), &crd(&object(new)), None);
    let kinds: Vec<Kind> = findings(&report).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [kind]);
    assert_ne!(report.forward, Some(Verdict::Safe));
}

#[rstest]
#[case::enum_grown(json!({"a": {"type": "string", "enum": ["x"]}}), json!({"a": {"type": "string", "enum": ["x", "y"]}}), Kind::EnumGrown)]
#[case::default_changed(json!({"a": {"type": "string", "default": "x"}}), json!({"a": {"type": "string", "default": "y"}}), Kind::DefaultChanged)]
#[case::default_added(json!({"a": {"type": "string"}}), json!({"a": {"type": "string", "default": "y"}}), Kind::DefaultAdded)]
#[case::default_removed(json!({"a": {"type": "string", "default": "x"}}), json!({"a": {"type": "string"}}), Kind::DefaultRemoved)]
#[case::null(json!({"a": {"type": "string", "nullable": true}}), json!({"a": {"type": "string"}}), Kind::NullDropped)]
#[case::list_of_one(json!({"a": {"type": "array", "maxItems": 1, "items": {"type": "string"}}}), json!({"a": {"type": "array", "maxItems": 1, "items": {"type": "string"}, "x-kubernetes-list-type": "set"}}), Kind::ListLoosened)]
#[case::map_type(json!({"a": {"type": "object"}}), json!({"a": {"type": "object", "x-kubernetes-map-type": "atomic"}}), Kind::MapTypeChanged)]
fn surprising(#[case] old: Value, #[case] new: Value, #[case] kind: Kind) {
    let report = forward(&crd(&object(old)), &crd(&object(new)), None);
    assert_eq!(findings(&report), [(kind, ".spec.a")]);
    assert_eq!(report.forward, Some(Verdict::Safe));
    assert_eq!(report.findings[0].class, Class::Clients);
}

#[rstest]
#[case::added(json!({"type": "object", "properties": {"a": {"type": "string"}}}), json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}), Verdict::Breaking)]
#[case::with_default(json!({"type": "object", "properties": {"a": {"type": "string"}}}), json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "default": "x"}}}), Verdict::Safe)]
#[case::default_gone(json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "default": "x"}}}), json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}), Verdict::Breaking)]
#[case::new_optional_parent(json!({"type": "object"}), json!({"type": "object", "properties": {"a": {"type": "object", "required": ["b"], "properties": {"b": {"type": "string"}}}}}), Verdict::Safe)]
#[case::optional_now(json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}), json!({"type": "object", "properties": {"a": {"type": "string"}}}), Verdict::Safe)]
fn required(#[case] old: Value, #[case] new: Value, #[case] verdict: Verdict) {
    assert_eq!(forward(&crd(&old), &crd(&new), None).forward, Some(verdict));
}

/// A field that the server fills in is looked at only where a combination speaks of it.
#[rstest]
#[case::of_another(json!({"oneOf": [{"properties": {"b": {"pattern": "^x"}}}, {"properties": {"b": {"pattern": "^y"}}}]}), Kind::DefaultAdded)]
#[case::of_it(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), Kind::DefaultUnderChoice)]
#[case::asks_for_it(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), Kind::DefaultAdded)]
#[case::narrows_it(json!({"anyOf": [{"properties": {"a": {"maxLength": 3}}}, {"required": ["b"]}]}), Kind::DefaultUnderChoice)]
fn filled_in_under_a_combination(#[case] combination: Value, #[case] kind: Kind) {
    let with = |field: Value| {
        let mut schema = combination.clone();
        schema["type"] = "object".into();
        schema["properties"] = json!({"a": field, "b": {"type": "string"}});
        crd(&schema)
    };
    let (old, new) = (
        with(json!({"type": "string"})),
        with(json!({"type": "string", "default": "long"})),
    );
    assert_eq!(findings(&forward(&old, &new, None)), [(kind, ".spec.a")]);
}

/// A custom resource is an object; a version that gets a schema only loses what that does not keep.
/// Where everything is kept a null is kept too, until its field is named.
#[rstest]
#[case::counted(json!({"minProperties": 1}), json!({}), &[(Kind::NullRejected, ".spec.a")])]
#[case::required(json!({"required": ["a"]}), json!({}), &[(Kind::NullRejected, ".spec.a")])]
#[case::may_be_null(json!({"minProperties": 1}), json!({"nullable": true}), &[])]
#[case::nobody_minds(json!({}), json!({}), &[])]
fn a_null_that_was_kept(#[case] more: Value, #[case] field: Value, #[case] found: &[(Kind, &str)]) {
    let side = |properties: Value| {
        let mut spec = object(properties);
        spec["x-kubernetes-preserve-unknown-fields"] = true.into();
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        crd(&spec)
    };
    let mut free = field;
    free["x-kubernetes-preserve-unknown-fields"] = true.into();
    assert_eq!(
        findings(&forward(&side(json!({})), &side(json!({"a": free})), None)),
        found
    );
}

#[test]
fn a_first_schema() {
    let versions = |schema: Value| {
        definition(json!({"versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}))
    };
    let old = versions(json!(null));
    let open = versions(
        json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}),
    );
    assert_eq!(findings(&forward(&old, &open, None)), []);
    let closed =
        versions(json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}));
    assert_eq!(
        findings(&forward(&old, &closed, None)),
        [(Kind::UnknownPruned, ".")]
    );
}

#[test]
fn metadata_is_always_there() {
    let versions = |root: Value| {
        definition(
            json!({"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": root}}]}),
        )
    };
    let old = versions(json!({"type": "object", "properties": {"metadata": {"type": "object"}}}));
    let new = versions(json!({"type": "object", "required": ["metadata"]}));
    assert_eq!(findings(&forward(&old, &new, None)), []);
}

#[rstest]
#[case::new_field_among_one_of(
    json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
    json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]}), &[])]
#[case::at_most_one_of_new(
    json!({}),
    json!({"oneOf": [{"required": ["c"]}, {"not": {"anyOf": [{"required": ["c"]}]}}]}), &[])]
#[case::at_most_one_of_old(
    json!({}),
    json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), &[Kind::ChoiceAdded])]
#[case::rule_about_new_field(
    json!({}),
    json!({"x-kubernetes-validations": [{"rule": "!has(self.c) || has(self.a)"}]}), &[])]
#[case::rule_about_both(
    json!({}),
    json!({"x-kubernetes-validations": [{"rule": "!(has(self.a) && has(self.c) && self.c.size() > 1)"}]}), &[])]
#[case::rule_that_asks_for_a_new_field(
    json!({}),
    json!({"x-kubernetes-validations": [{"rule": "has(self.c) || has(self.a)"}]}), &[Kind::RuleAdded])]
#[case::rule_about_a_new_value(
    json!({"required": ["k"], "properties": {"k": {"type": "string", "enum": ["x"]}}}),
    json!({"required": ["k"], "properties": {"k": {"type": "string", "enum": ["x", "z"]}}, "x-kubernetes-validations": [{"rule": "self.k == 'z' ? has(self.c) : !has(self.c)"}]}),
    &[Kind::EnumGrown])]
#[case::rule_about_an_old_value(
    json!({"required": ["k"], "properties": {"k": {"type": "string", "enum": ["x", "z"]}}}),
    json!({"required": ["k"], "properties": {"k": {"type": "string", "enum": ["x", "z"]}}, "x-kubernetes-validations": [{"rule": "self.k == 'z' ? has(self.c) : !has(self.c)"}]}),
    &[Kind::RuleAdded])]
#[case::wider_rule(
    json!({"x-kubernetes-validations": [{"rule": "has(self.a) || has(self.b)"}]}),
    json!({"x-kubernetes-validations": [{"rule": "has(self.a) || has(self.b) || has(self.c)"}]}), &[])]
#[case::narrower_rule(
    json!({"x-kubernetes-validations": [{"rule": "has(self.a) || has(self.b)"}]}),
    json!({"x-kubernetes-validations": [{"rule": "has(self.a)"}]}), &[Kind::RuleChanged])]
#[case::other_quotes(
    json!({"x-kubernetes-validations": [{"rule": "self.a != 'x'"}]}),
    json!({"x-kubernetes-validations": [{"rule": "self.a != \"x\""}]}), &[])]
#[case::rule_about_old_field(
    json!({}),
    json!({"x-kubernetes-validations": [{"rule": "!has(self.a) || has(self.b)"}]}), &[Kind::RuleAdded])]
fn what_old_objects_cannot_have(#[case] old: Value, #[case] new: Value, #[case] kinds: &[Kind]) {
    let with = |extra: Value, fields: &[&str]| {
        let mut schema = extra;
        schema["type"] = "object".into();
        for field in fields {
            schema["properties"][*field] = json!({"type": "string"});
        }
        crd(&schema)
    };
    let report = forward(&with(old, &["a", "b"]), &with(new, &["a", "b", "c"]), None);
    let found: Vec<Kind> = findings(&report).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(found, kinds);
}

#[rstest]
#[case(None, Class::RejectsObjects, false)]
#[case(Some("1.29"), Class::RejectsObjects, false)]
#[case(Some("1.31"), Class::Clients, true)]
#[case(Some("1.33"), Class::Clients, true)]
fn ratcheting_spares_stored_objects(
    #[case] server: Option<&str>,
    #[case] class: Class,
    #[case] ratcheted: bool,
) {
    let old = crd(&object(json!({"a": {"type": "string"}})));
    let new = crd(&object(json!({"a": {"type": "string", "maxLength": 3}})));
    let report = forward(&old, &new, server);
    assert_eq!(
        (report.findings[0].class, report.findings[0].ratcheted),
        (class, ratcheted)
    );
    assert_eq!(report.forward, Some(Verdict::Breaking));
}

/// A flood of branches is not walked, and never called safe.
#[test]
fn too_many_branches_are_undecidable() {
    fn nest(depth: usize, least: usize) -> Value {
        if depth == 0 {
            return json!({"minLength": least});
        }
        json!({"anyOf": [nest(depth - 1, least), nest(depth - 1, least + 1)], "maxLength": 100 + depth})
    }
    let with = |least: usize| {
        let mut field = nest(12, least);
        field["type"] = "string".into();
        crd(&object(json!({"a": field})))
    };
    let report = forward(&with(0), &with(1), None);
    assert_eq!(findings(&report), [(Kind::ChoiceChanged, ".spec.a")]);
    assert_eq!(report.forward, Some(Verdict::Undecidable));
    assert_eq!(forward(&with(0), &with(0), None).forward, Some(Verdict::Safe));
}

/// What releases of operators have done to their users, and what only looked like it. (Versions that go: `definitions`.)
#[rstest]
#[case::status_condition_required(
    json!({"status": {"type": "object", "properties": {"conditions": {"type": "array", "items": {"type": "string"}}}}}),
    json!({"status": {"type": "object", "required": ["conditions"], "properties": {"conditions": {"type": "array", "items": {"type": "string"}}}}}),
    &[(Kind::RequiredAdded, ".status.conditions")])]
#[case::list_required(
    json!({"spec": {"type": "object", "properties": {"ports": {"type": "array", "items": {"type": "string"}}}}}),
    json!({"spec": {"type": "object", "required": ["ports"], "properties": {"ports": {"type": "array", "items": {"type": "string"}}}}}),
    &[(Kind::RequiredAdded, ".spec.ports")])]
#[case::one_of_many_values_gone(
    json!({"spec": {"type": "object", "properties": {"target": {"type": "object", "properties": {"kind": {"type": "string", "enum": ["Log", "Backup", "Restic"]}}}}}}),
    json!({"spec": {"type": "object", "properties": {"target": {"type": "object", "properties": {"kind": {"type": "string", "enum": ["Log", "Backup", "Item"]}}}}}}),
    &[(Kind::EnumNarrowed, ".spec.target.kind"), (Kind::EnumGrown, ".spec.target.kind")])]
#[case::letter_case(
    json!({"spec": {"type": "object", "properties": {"http": {"type": "object", "properties": {"URI": {"type": "string"}, "verify": {"type": "boolean"}}}}}}),
    json!({"spec": {"type": "object", "properties": {"http": {"type": "object", "properties": {"uri": {"type": "string"}, "verify": {"type": "boolean"}}}}}}),
    &[(Kind::FieldRemoved, ".spec.http.URI")])]
#[case::number_to_integer_with_a_minimum(
    json!({"spec": {"type": "object", "properties": {"weight": {"type": "number"}}}}),
    json!({"spec": {"type": "object", "properties": {"weight": {"type": "integer", "minimum": 0}}}}),
    &[(Kind::LimitTightened, ".spec.weight"), (Kind::TypeChanged, ".spec.weight")])]
#[case::looser_in_two_ways(
    json!({"spec": {"type": "object", "properties": {"mode": {"type": "string", "enum": ["none", "some"]}, "quota": {"type": "integer"}}}}),
    json!({"spec": {"type": "object", "properties": {"mode": {"type": "string"}, "quota": {"type": "integer", "nullable": true}}}}),
    &[])]
#[case::all_of_written_otherwise(
    json!({"spec": {"type": "object", "properties": {"size": {"x-kubernetes-int-or-string": true, "allOf": [
        {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"anyOf": [{"type": "integer"}, {"type": "string"}]}], "pattern": "^[0-9]+$"}}}}),
    json!({"spec": {"type": "object", "properties": {"size": {"x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+$"}}}}),
    &[])]
fn as_operators_do_it(#[case] old: Value, #[case] new: Value, #[case] found: &[(Kind, &str)]) {
    let whole = |properties: Value| {
        definition(json!({"versions": [{
            "name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        }]}))
    };
    let report = forward(&whole(old), &whole(new), None);
    assert_eq!(findings(&report), found);
    let verdict = if found.is_empty() {
        Verdict::Safe
    } else {
        Verdict::Breaking
    };
    assert_eq!(report.forward, Some(verdict));
}
