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
