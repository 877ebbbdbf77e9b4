//! What a change does, and to whom: the class of a finding, which may depend on the server.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{
    Class, Crd, Impact, Kind, Options, Prover, Report, ServerVersion, compare,
};
use rstest::rstest;
use serde_json::{Value, json};

fn whole(root: Value) -> Crd {
    Crd::parse(&json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": root}}],
        },
    }))
    .unwrap()
}

fn field(schema: &Value) -> Crd {
    whole(
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": schema, "b": {"type": "string"}}}}}),
    )
}

fn forward(old: &Crd, new: &Crd, server: &str) -> Report {
    let options = Options {
        forward: true,
        server: server.parse::<ServerVersion>().ok(),
        ..Options::default()
    };
    compare(std::slice::from_ref(old), std::slice::from_ref(new), &options)
}

type Said<'a> = (Kind, Class, &'a str);

/// What matters of a report.
fn said(report: &Report) -> Vec<Said<'_>> {
    let matters = report
        .findings
        .iter()
        .filter(|finding| finding.impact < Impact::Warning);
    matters
        .map(|finding| (finding.kind, finding.class, finding.path.as_str()))
        .collect()
}

fn open() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn open_with(name: &str, value: Value) -> Value {
    let mut schema = open();
    schema[name] = value;
    schema
}

/// Under a parent that keeps everything, a schema for a field refuses what has another shape, and prunes what is inside.
#[rstest]
#[case::text(
    open_with("properties", json!({"x": {"type": "string"}})), "",
    &[(Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.x")])]
#[case::open_object(
    open_with("properties", json!({"x": open()})), "",
    &[(Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.x")])]
#[case::object(
    open_with("properties", json!({"x": {"type": "object", "properties": {"y": {"type": "string"}}}})), "",
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.x"), (Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.x")])]
#[case::object_on_a_server_that_ratchets(
    open_with("properties", json!({"x": {"type": "object"}})), "1.33",
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.x"), (Kind::FreeFieldTyped, Class::Clients, ".spec.a.x")])]
#[case::list_of_objects(
    open_with("properties", json!({"x": {"type": "array", "items": {"type": "object"}}})), "",
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.x"), (Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.x")])]
#[case::list_of_texts(
    open_with("properties", json!({"x": {"type": "array", "items": {"type": "string"}}})), "",
    &[(Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.x")])]
#[case::inside_an_open_object(
    open_with("properties", json!({"x": open_with("properties", json!({"y": {"type": "object"}}))})), "",
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.x"), (Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.x")])]
#[case::map_of_objects(
    json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"y": {"type": "string"}}}}), "",
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.*"), (Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.*")])]
#[case::map_of_anything(
    json!({"type": "object", "additionalProperties": true}), "",
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.*")])]
#[case::map_of_open_objects(
    json!({"type": "object", "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true}}), "", &[])]
fn typing_what_was_free(#[case] new: Value, #[case] server: &str, #[case] findings: &[Said<'_>]) {
    let report = forward(&field(&open()), &field(&new), server);
    assert_eq!(said(&report), findings);
}

/// A value whose schema names nothing of what is in it is emptied before it is refused, which no server spares.
#[rstest]
#[case::object_to_text(json!({"type": "object", "properties": {"x": {"type": "string"}}}), json!({"type": "string"}), Kind::ShapeChanged, Class::DataLoss)]
#[case::map_to_list(json!({"type": "object", "additionalProperties": {"type": "string"}}), json!({"type": "array", "items": {"type": "string"}}), Kind::ShapeChanged, Class::DataLoss)]
#[case::list_to_map(json!({"type": "array", "items": {"type": "object", "properties": {"x": {"type": "string"}}}}), json!({"type": "object", "additionalProperties": {"type": "string"}}), Kind::ShapeChanged, Class::DataLoss)]
#[case::list_of_texts(json!({"type": "array", "items": {"type": "string"}}), json!({"type": "object", "additionalProperties": {"type": "string"}}), Kind::TypeChanged, Class::Clients)]
#[case::nothing_in_it(json!({"type": "object"}), json!({"type": "string"}), Kind::TypeChanged, Class::Clients)]
#[case::kept(open(), json!({"type": "string", "x-kubernetes-preserve-unknown-fields": true}), Kind::TypeChanged, Class::Clients)]
#[case::text(json!({"type": "string"}), json!({"type": "object", "properties": {"x": {"type": "string"}}}), Kind::TypeChanged, Class::Clients)]
fn another_shape(#[case] old: Value, #[case] new: Value, #[case] kind: Kind, #[case] class: Class) {
    let report = forward(&field(&old), &field(&new), "1.33");
    assert_eq!(said(&report), [(kind, class, ".spec.a")]);
}

/// `additionalProperties: true` keeps keys, and nothing of the objects below them.
#[test]
fn a_map_of_anything_empties_objects() {
    let (old, new) = (
        field(&open()),
        field(&json!({"type": "object", "additionalProperties": true})),
    );
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    prover.put(
        &json!({"metadata": {"name": "n"}, "spec": {"a": {"k": 1, "l": [{"p": 1}], "m": {"n": {"o": 1}}}}}),
    );
    let proof = prover.finish();
    assert_eq!((proof.rejected, proof.pruned), (0, 1));
    assert_eq!(
        proof.objects[0].reasons,
        [".spec.a.l[0].p is pruned", ".spec.a.m.n is pruned"]
    );
}

/// A list that has equal entries passes on every server: old and new ones let what was there before be.
#[rstest]
#[case::set("", json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}), json!(["p", "p"]))]
#[case::set_on_an_old_server("1.20", json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}), json!(["p", "p"]))]
#[case::set_on_a_new_server("1.36", json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}), json!(["p", "p"]))]
#[case::map("1.20",
    json!({"type": "array", "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
    json!([{"k": "p"}, {"k": "p"}]))]
fn lists_whose_entries_have_to_differ(#[case] server: &str, #[case] new: Value, #[case] list: Value) {
    let mut old = new.clone();
    old.as_object_mut()
        .unwrap()
        .retain(|word, _| !word.starts_with("x-kubernetes-list"));
    let (old, new) = (field(&old), field(&new));
    assert_eq!(
        said(&forward(&old, &new, server)),
        [(Kind::ListTightened, Class::Clients, ".spec.a")]
    );
    let mut prover = Prover::new("here", Some(&old), &new, "v1", server.parse().ok()).unwrap();
    prover.put(&json!({"metadata": {"name": "n"}, "spec": {"a": list}}));
    let proof = prover.finish();
    assert_eq!((proof.rejected, proof.rejected_when_changed), (0, 1));
}

/// Servers that ratchet let pass what is left alone. The whole object never is.
#[rstest]
#[case::limit("1.33", json!({"properties": {"spec": {"maxProperties": 1}}}), Kind::LimitTightened, Class::Clients, ".spec")]
#[case::required("1.33", json!({"properties": {"spec": {"required": ["c"]}}}), Kind::RequiredAdded, Class::Clients, ".spec.c")]
#[case::required_at_the_root("1.33", json!({"required": ["status"]}), Kind::RequiredAdded, Class::RejectsObjects, ".status")]
#[case::rule_at_the_root("1.33", json!({"x-kubernetes-validations": [{"rule": "self.metadata.name.size() < 1"}]}), Kind::RuleAdded, Class::RejectsObjects, ".")]
#[case::choice("1.33", json!({"properties": {"spec": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}}), Kind::ChoiceAdded, Class::Clients, ".spec")]
#[case::choice_on_an_old_server("1.29", json!({"properties": {"spec": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}}), Kind::ChoiceAdded, Class::RejectsObjects, ".spec")]
#[case::choice_at_the_root("1.33", json!({"not": {"required": ["spec"]}}), Kind::ChoiceAdded, Class::RejectsObjects, ".")]
#[case::all_of_at_the_root("1.33", json!({"allOf": [{"properties": {"spec": {"properties": {"a": {"maxLength": 0}}}}}]}), Kind::LimitTightened, Class::RejectsObjects, ".spec.a")]
#[case::one_branch_at_the_root("1.33", json!({"anyOf": [{"properties": {"spec": {"properties": {"a": {"maxLength": 0}}}}}]}), Kind::LimitTightened, Class::RejectsObjects, ".spec.a")]
#[case::required_in_all_of_at_the_root("1.33", json!({"allOf": [{"properties": {"spec": {"required": ["c"]}}}]}), Kind::RequiredAdded, Class::RejectsObjects, ".spec.c")]
#[case::all_of_around("1.33", json!({"properties": {"spec": {"allOf": [{"properties": {"a": {"maxLength": 0}}}]}}}), Kind::LimitTightened, Class::Clients, ".spec.a")]
#[case::all_of_itself("1.33", json!({"properties": {"spec": {"properties": {"a": {"allOf": [{"maxLength": 0}]}}}}}), Kind::LimitTightened, Class::Clients, ".spec.a")]
#[case::embedded("1.33", json!({"properties": {"spec": {"properties": {"e": {"x-kubernetes-embedded-resource": true}}}}}), Kind::EmbeddedAdded, Class::RejectsObjects, ".spec.e")]
#[case::name("1.33", json!({"properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 1}}}}}), Kind::LimitTightened, Class::Clients, ".metadata.name")]
fn what_is_never_left_alone(
    #[case] server: &str,
    #[case] change: Value,
    #[case] kind: Kind,
    #[case] class: Class,
    #[case] path: &str,
) {
    let text = json!({"type": "string"});
    let old = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"a": text, "b": text, "c": text, "e": open()}},
        "status": {"type": "object"},
    }});
    let mut new = old.clone();
    extend(&mut new, &change);
    let (old, new) = (whole(old), whole(new));
    assert_eq!(said(&forward(&old, &new, server)), [(kind, class, path)]);
    let mut prover = Prover::new("here", Some(&old), &new, "v1", server.parse().ok()).unwrap();
    prover.put(&json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "name"}, "spec": {"a": "x", "b": "y", "e": {"x": 1}}}));
    let proof = prover.finish();
    let rejected = usize::from(class == Class::RejectsObjects) as u64;
    assert_eq!(
        (proof.rejected, proof.rejected_when_changed),
        (rejected, 1 - rejected)
    );
}

/// What an `allOf` said before is not new; what is, is told with what has to be left alone.
#[rstest]
#[case::own_limit(json!({"allOf": [{"properties": {"spec": {"properties": {"a": {"maxLength": 9}}}}}]}), json!({"properties": {"spec": {"properties": {"a": {"maxLength": 3}}}}}), "this value is left alone")]
#[case::around(json!({}), json!({"properties": {"spec": {"allOf": [{"properties": {"a": {"maxLength": 3}}}]}}}), "all of .spec is left alone")]
fn what_has_to_be_left_alone(#[case] before: Value, #[case] after: Value, #[case] words: &str) {
    let mut old = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}});
    extend(&mut old, &before);
    let mut new = old.clone();
    extend(&mut new, &after);
    let report = forward(&whole(old), &whole(new), "1.33");
    assert_eq!(said(&report), [(Kind::LimitTightened, Class::Clients, ".spec.a")]);
    assert!(
        report.findings[0].why.contains(words),
        "{}",
        report.findings[0].why
    );
}

/// Puts the words of one schema into another, however deep.
fn extend(schema: &mut Value, more: &Value) {
    match more.as_object() {
        Some(words) => words
            .iter()
            .for_each(|(word, value)| extend(&mut schema[word], value)),
        None => *schema = more.clone(),
    }
}

/// Formats of numbers are checked from 1.36 on, and by servers that let stored values be.
#[rstest]
#[case::integer("", json!({"type": "integer"}), json!({"type": "integer", "format": "int32"}), &[(Kind::NumberFormatAdded, Class::Clients, ".spec.a")])]
#[case::not_checked("1.35", json!({"type": "integer"}), json!({"type": "integer", "format": "int32"}), &[])]
#[case::checked("1.36", json!({"type": "integer"}), json!({"type": "integer", "format": "int32"}), &[(Kind::NumberFormatAdded, Class::Clients, ".spec.a")])]
#[case::float("", json!({"type": "number"}), json!({"type": "number", "format": "float"}), &[(Kind::NumberFormatAdded, Class::Clients, ".spec.a")])]
#[case::float_not_checked("1.28", json!({"type": "number"}), json!({"type": "number", "format": "float"}), &[])]
#[case::number("1.36", json!({"type": "number"}), json!({"type": "number", "format": "int32"}), &[])]
#[case::int_or_string("", json!({"x-kubernetes-int-or-string": true}), json!({"x-kubernetes-int-or-string": true, "format": "int32"}), &[])]
#[case::within_bounds("", json!({"type": "integer", "minimum": 0, "maximum": 9}), json!({"type": "integer", "minimum": 0, "maximum": 9, "format": "int32"}), &[])]
#[case::bounds_that_no_server_checked("", json!({"type": "integer", "format": "int32"}), json!({"type": "integer", "format": "int32", "maximum": 2_147_483_647}), &[(Kind::LimitTightened, Class::RejectsObjects, ".spec.a")])]
#[case::bounds_that_were_checked("1.36", json!({"type": "integer", "format": "int32"}), json!({"type": "integer", "format": "int32", "maximum": 2_147_483_647}), &[])]
#[case::names("1.33", json!({"type": "string"}), json!({"type": "string", "format": "k8s-short-name"}), &[])]
#[case::names_checked("1.34", json!({"type": "string"}), json!({"type": "string", "format": "k8s-short-name"}), &[(Kind::FormatAdded, Class::Clients, ".spec.a")])]
#[case::names_anywhere("", json!({"type": "string"}), json!({"type": "string", "format": "k8s-short-name"}), &[(Kind::FormatAdded, Class::RejectsObjects, ".spec.a")])]
#[case::length_of_names("1.33", json!({"type": "string", "format": "k8s-short-name"}), json!({"type": "string", "format": "k8s-short-name", "maxLength": 63}), &[(Kind::LimitTightened, Class::Clients, ".spec.a")])]
#[case::length_of_names_checked("1.34", json!({"type": "string", "format": "k8s-short-name"}), json!({"type": "string", "format": "k8s-short-name", "maxLength": 63}), &[])]
#[case::rules_before_rules("1.24", json!({"type": "string"}), json!({"type": "string", "x-kubernetes-validations": [{"rule": "self != 'x'"}]}), &[])]
// No server counts so far: 1.20 refuses every number under this maximum, and so does 1.36.
#[case::largest_of_64_bits("", json!({"type": "integer"}), json!({"type": "integer", "maximum": 9_223_372_036_854_775_807_i64}), &[(Kind::LimitTightened, Class::RejectsObjects, ".spec.a")])]
fn by_what_a_server_checks(
    #[case] server: &str,
    #[case] old: Value,
    #[case] new: Value,
    #[case] findings: &[Said<'_>],
) {
    assert_eq!(said(&forward(&field(&old), &field(&new), server)), findings);
}

#[rstest]
#[case::unknown("", (0, 1))]
#[case::not_checked("1.35", (0, 0))]
#[case::checked("1.36", (0, 1))]
fn objects_with_large_numbers(#[case] server: &str, #[case] rejected: (u64, u64)) {
    let (old, new) = (
        field(&json!({"type": "integer"})),
        field(&json!({"type": "integer", "format": "int32"})),
    );
    let mut prover = Prover::new("here", Some(&old), &new, "v1", server.parse().ok()).unwrap();
    prover.put(&json!({"metadata": {"name": "n"}, "spec": {"a": 3_000_000_000_i64}}));
    let proof = prover.finish();
    assert_eq!((proof.rejected, proof.rejected_when_changed), rejected);
}

#[rstest]
#[case::null_as_default(
    json!({"type": "object", "properties": {"x": {"type": "string"}}}),
    json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string", "default": null}}}),
    &[(Kind::RequiredAdded, Class::RejectsObjects, ".spec.a.x")])]
#[case::list_that_kept_what_is_in_its_entries(
    json!({"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
    json!({"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a[*]")])]
#[case::lists_in_such_a_list(
    json!({"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "array", "items": {"type": "object"}}}),
    json!({"type": "array", "items": {"type": "array", "items": {"type": "object"}}}),
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a[*][*]")])]
#[case::fields_of_entries_were_never_kept(
    json!({"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"x-kubernetes-preserve-unknown-fields": true, "type": "object", "properties": {"k": {"type": "object"}}}}),
    json!({"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true, "type": "object", "properties": {"k": {"type": "object"}}}}),
    &[])]
#[case::null_among_choices(
    json!({"type": "object", "nullable": true, "properties": {"x": {"type": "string"}, "y": {"type": "string"}}, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]}),
    json!({"type": "object", "nullable": true, "properties": {"x": {"type": "string"}, "y": {"type": "string"}, "z": {"type": "string"}}, "oneOf": [{"required": ["x"]}, {"required": ["y"]}, {"required": ["z"]}]}),
    &[])]
fn small_words(#[case] old: Value, #[case] new: Value, #[case] findings: &[Said<'_>]) {
    assert_eq!(said(&forward(&field(&old), &field(&new), "")), findings);
}

/// `metadata` is there with or without a schema, which may limit the name in it.
#[rstest]
#[case::limited(json!({"type": "object"}), json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}), &[(Kind::LimitTightened, Class::RejectsObjects, ".metadata.name")])]
#[case::limited_where_nothing_was(json!(null), json!({"type": "object", "properties": {"name": {"type": "string", "pattern": "^x"}}}), &[(Kind::PatternAdded, Class::RejectsObjects, ".metadata.name")])]
#[case::limited_more(json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}), json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}}), &[(Kind::LimitTightened, Class::RejectsObjects, ".metadata.name")])]
#[case::limited_as_all_names_are(json!({"type": "object"}), json!({"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 253}}}), &[])]
#[case::freed(json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}), json!({"type": "object"}), &[])]
#[case::gone(json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}), json!(null), &[])]
fn names_of_objects(#[case] old: Value, #[case] new: Value, #[case] findings: &[Said<'_>]) {
    let with = |metadata: Value| {
        let mut properties = json!({"spec": {"type": "object"}});
        if !metadata.is_null() {
            properties["metadata"] = metadata;
        }
        whole(json!({"type": "object", "properties": properties}))
    };
    assert_eq!(said(&forward(&with(old), &with(new), "")), findings);
}

fn embedded(properties: Value, more: &Value) -> Value {
    let mut schema =
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": properties});
    extend(&mut schema, more);
    schema
}

/// `metadata` of an embedded object is kept by the mark alone. What its schema says counts when the mark goes.
#[rstest]
#[case::named(
    embedded(json!({"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}), &json!({})),
    json!({"type": "object", "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}}),
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.metadata")])]
#[case::open(
    embedded(json!({}), &json!({"x-kubernetes-preserve-unknown-fields": true})),
    open_with("properties", json!({"metadata": {"type": "object"}})),
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.metadata")])]
#[case::map(
    embedded(json!({}), &json!({})),
    json!({"type": "object", "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true, "properties": {"b": {"type": "object"}}}}),
    &[(Kind::UnknownPruned, Class::DataLoss, ".spec.a.metadata.b"), (Kind::FreeFieldTyped, Class::RejectsObjects, ".spec.a.metadata.b")])]
#[case::kept(
    embedded(json!({"metadata": {"type": "object"}}), &json!({"x-kubernetes-preserve-unknown-fields": true})),
    open_with("properties", json!({"metadata": open()})), &[])]
#[case::limited(
    embedded(json!({}), &json!({"x-kubernetes-preserve-unknown-fields": true})),
    embedded(json!({"kind": {"type": "string", "enum": ["Pod"]}}), &json!({"x-kubernetes-preserve-unknown-fields": true})),
    &[(Kind::EnumAdded, Class::RejectsObjects, ".spec.a.kind")])]
#[case::said_again(
    embedded(json!({}), &json!({"x-kubernetes-preserve-unknown-fields": true})),
    open_with("properties", json!({"kind": {"type": "string", "minLength": 1}, "apiVersion": {"type": "string"}})), &[])]
fn embedded_objects(#[case] old: Value, #[case] new: Value, #[case] findings: &[Said<'_>]) {
    assert_eq!(said(&forward(&field(&old), &field(&new), "")), findings);
}

/// More fields than an object can have are no limit.
#[rstest]
#[case::all(json!({}), json!({"maxProperties": 2}), &[])]
#[case::fewer(json!({}), json!({"maxProperties": 1}), &[(Kind::LimitTightened, Class::RejectsObjects, ".spec.a")])]
#[case::one_is_filled_in(json!({}), json!({"maxProperties": 2, "properties": {"c": {"type": "string", "default": "x"}}}), &[(Kind::LimitTightened, Class::RejectsObjects, ".spec.a"), (Kind::DefaultUnderChoice, Class::RejectsObjects, ".spec.a.c")])]
#[case::open(json!({"x-kubernetes-preserve-unknown-fields": true}), json!({"maxProperties": 2}), &[(Kind::LimitTightened, Class::RejectsObjects, ".spec.a")])]
fn more_fields_than_there_are(#[case] before: Value, #[case] after: Value, #[case] findings: &[Said<'_>]) {
    let mut old =
        json!({"type": "object", "properties": {"aws": {"type": "string"}, "gcp": {"type": "string"}}});
    extend(&mut old, &before);
    let mut new = old.clone();
    extend(&mut new, &after);
    assert_eq!(said(&forward(&field(&old), &field(&new), "")), findings);
}

/// The same where there are more of them than sets of them are looked at, and no rule says anything.
#[test]
fn more_fields_than_there_are_of_many() {
    let side = |more: Value| {
        let fields: serde_json::Map<String, Value> = (0..20)
            .map(|i| (format!("f{i}"), json!({"type": "string"})))
            .collect();
        let mut schema = json!({"type": "object", "properties": fields});
        extend(&mut schema, &more);
        field(&schema)
    };
    let old = side(json!({}));
    assert_eq!(said(&forward(&old, &side(json!({"maxProperties": 20})), "")), []);
    assert_eq!(
        said(&forward(&old, &side(json!({"maxProperties": 19})), "")).len(),
        1
    );
}

/// A server knows a format with dashes anywhere in its name.
#[rstest]
#[case::color("hex-color", "#ff00ff", "red", true)]
#[case::time("date-time", "2024-02-29T00:00:00Z", "now", true)]
#[case::number("i-p-v4", "10.0.0.1", "here", true)]
#[case::unknown("hex_color", "#ff00ff", "red", false)]
fn formats_with_dashes(#[case] format: &str, #[case] good: &str, #[case] bad: &str, #[case] checked: bool) {
    let old = field(&json!({"type": "string"}));
    let new = field(&json!({"type": "string", "format": format}));
    let expected: &[Said<'_>] = &[(Kind::FormatAdded, Class::RejectsObjects, ".spec.a")];
    assert_eq!(said(&forward(&old, &new, "")), &expected[..usize::from(checked)]);
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    for text in [good, bad] {
        prover.put(&json!({"metadata": {"name": "n"}, "spec": {"a": text}}));
    }
    assert_eq!(prover.finish().rejected, u64::from(checked));
}

/// The same format in other words is the same, and some formats are parts of others.
#[rstest]
#[case::dashes("hexcolor", "hex-color")]
#[case::no_dashes("date-time", "datetime")]
#[case::wider("isbn-13", "isbn")]
#[case::wider_names("k8sshortname", "k8s-long-name")]
fn formats_that_were_there(#[case] before: &str, #[case] after: &str) {
    let side = |format: &str| field(&json!({"type": "string", "format": format}));
    assert_eq!(said(&forward(&side(before), &side(after), "1.36")), []);
}
