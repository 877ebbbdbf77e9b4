//! Objects that are put to the new schemas: what is hurt is never said to be unhurt.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use gantry_fleet_domain::crd_diff::{Crd, Impact, Kind, Options, Prover, Report, Verdict, compare};
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

/// The report on these schemas with these objects.
fn proven(old: &Value, new: &Value, specs: &[Value]) -> Report {
    let (old, new) = (crd(old), crd(new));
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    for spec in specs {
        prover.put(&json!({"metadata": {"name": "n"}, "spec": spec}));
    }
    let options = Options {
        forward: true,
        ..Options::default()
    };
    let mut report = compare(std::slice::from_ref(&old), std::slice::from_ref(&new), &options);
    report.prove(vec![prover.finish()], &BTreeSet::new());
    report
}

fn texts(a: Value, more: &Value) -> Value {
    let mut schema = json!({"type": "object", "properties": {"a": a, "b": {"type": "string"}}});
    for (word, value) in more.as_object().unwrap() {
        schema[word] = value.clone();
    }
    schema
}

/// What a default breaks is told at the field, and shows around it.
#[rstest]
#[case::one_of(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"b": "1"}), 1)]
#[case::count(json!({"maxProperties": 1}), json!({"b": "1"}), 1)]
#[case::nobody(json!({"maxProperties": 1}), json!({"a": "1"}), 0)]
fn a_default_that_hurts(#[case] more: Value, #[case] spec: Value, #[case] hurt: u64) {
    let text = json!({"type": "string"});
    let new = json!({"type": "string", "default": "x"});
    let report = proven(&texts(text, &more), &texts(new, &more), &[spec]);
    let finding = &report.findings[0];
    assert_eq!(finding.kind, Kind::DefaultUnderChoice);
    assert_eq!(finding.hurt.map(|hurt| hurt.objects), Some(hurt));
    assert_eq!(report.verdict_by_harm() == Verdict::Safe, hurt == 0);
    assert_eq!(report.findings.len(), 1);
}

/// A rule that was not decided is not known to hurt nobody, whether it is new or was there before.
#[test]
fn a_kept_rule_that_is_not_decided() {
    let rule = json!({"x-kubernetes-validations": [{"rule": "!has(self.a) || isSemver(self.a)"}]});
    let side = |a: Value| texts(a, &rule);
    let report = proven(
        &side(json!({"type": "string"})),
        &side(json!({"type": "string", "default": "x"})),
        &[json!({"b": "1"})],
    );
    let finding = report
        .findings
        .iter()
        .find(|f| f.kind == Kind::DefaultUnderChoice);
    assert_eq!(finding.unwrap().hurt, None);
    assert_eq!(report.verdict_by_harm(), Verdict::Undecidable);
}

/// A value of a map and a field of that name are one place.
#[rstest]
#[case::map_now(
    json!({"type": "object", "properties": {"a": {"type": "string"}}}),
    json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": 1}}))]
#[case::map_before(
    json!({"type": "object", "additionalProperties": {"type": "string"}}),
    json!({"type": "object", "additionalProperties": {"type": "string"}, "properties": {"a": {"type": "string", "maxLength": 1}}}))]
fn values_of_maps(#[case] old: Value, #[case] new: Value) {
    let report = proven(&old, &new, &[json!({"a": "long"})]);
    assert!(!report.findings.iter().any(|f| f.kind == Kind::ObjectsHurt));
    assert_eq!(report.findings[0].kind, Kind::LimitTightened);
    assert_eq!(report.findings[0].hurt.map(|hurt| hurt.objects), Some(1));
}

/// Whatever was found in the schemas: what hurts an object counts.
#[test]
fn harm_that_no_finding_explains() {
    let (old, new) = (
        crd(&texts(json!({"type": "string"}), &json!({}))),
        crd(&texts(json!({"type": "string", "maxLength": 1}), &json!({}))),
    );
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    prover.put(&json!({"metadata": {"name": "n"}, "spec": {"a": "long"}}));
    let options = Options {
        forward: true,
        ..Options::default()
    };
    // As if the comparison had not seen the change.
    let mut report = compare(std::slice::from_ref(&old), std::slice::from_ref(&old), &options);
    assert_eq!(report.forward, Some(Verdict::Safe));
    report.prove(vec![prover.finish()], &BTreeSet::new());
    let finding = &report.findings[0];
    assert_eq!(
        (finding.kind, finding.impact, finding.path.as_str()),
        (Kind::ObjectsHurt, Impact::Breaking, ".spec.a")
    );
    assert_eq!(finding.hurt.map(|hurt| hurt.objects), Some(1));
    assert_eq!(
        (report.verdict(), report.verdict_by_harm()),
        (Verdict::Breaking, Verdict::Breaking)
    );
}

/// However many fields objects have that no schema ever named: they are one place.
#[test]
fn objects_with_fields_of_any_name() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"b": {"type": "object", "properties": {"c": {"type": "string"}}}}});
    let new = json!({"type": "object", "properties": {"b": {"type": "object", "properties": {"d": {"type": "string"}}}}});
    let (old, new) = (crd(&open), crd(&new));
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    for object in 0..3 {
        // Looked up one by one in a list, these would take minutes.
        let mut spec: serde_json::Map<String, Value> = (0..40_000)
            .map(|i| (format!("f{object}-{i}"), json!(1)))
            .collect();
        spec.insert("b".to_owned(), json!({"c": "x"}));
        let started = std::time::Instant::now();
        prover.put(&json!({"metadata": {"name": "n"}, "spec": spec}));
        assert!(started.elapsed() < std::time::Duration::from_secs(10));
    }
    let proof = prover.finish();
    assert_eq!(proof.pruned, 3);
    assert_eq!(
        proof.places().collect::<Vec<_>>(),
        [(".spec", 3), (".spec.b.c", 3)]
    );
    let options = Options {
        forward: true,
        ..Options::default()
    };
    let mut report = compare(std::slice::from_ref(&old), std::slice::from_ref(&new), &options);
    report.prove(vec![proof], &BTreeSet::new());
    let hurt: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.impact == Impact::Breaking)
        .map(|finding| (finding.path.as_str(), finding.hurt.map(|hurt| hurt.objects)))
        .collect();
    assert_eq!(hurt, [(".spec", Some(3)), (".spec.b.c", Some(3))]);
}

/// What was pruned before is no loss, and is found among many as fast as among few.
#[test]
fn objects_with_many_fields_that_were_pruned_already() {
    let side = |fields: Value| crd(&json!({"type": "object", "properties": fields}));
    let (old, new) = (side(json!({"a": {"type": "string"}})), side(json!({})));
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    let mut spec: serde_json::Map<String, Value> = (0..60_000).map(|i| (format!("f{i}"), json!(1))).collect();
    spec.insert("a".to_owned(), json!("x"));
    let started = std::time::Instant::now();
    prover.put(&json!({"metadata": {"name": "n"}, "spec": spec}));
    assert!(started.elapsed() < std::time::Duration::from_secs(10));
    let proof = prover.finish();
    assert_eq!(proof.objects[0].reasons, [".spec.a is pruned"]);
}

/// Objects of a server come with the old default, and do not tell which are stored without it.
#[rstest]
#[case::required(json!({"required": ["a"]}), json!({"uid": "1"}), None)]
#[case::required_in_a_file(json!({"required": ["a"]}), json!({}), Some(0))]
#[case::missed(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"uid": "1"}), None)]
#[case::missed_in_a_file(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({}), Some(0))]
#[case::counted(json!({"minProperties": 1}), json!({"uid": "1"}), None)]
fn a_default_that_went(#[case] more: Value, #[case] metadata: Value, #[case] hurt: Option<u64>) {
    let old = crd(&texts(json!({"type": "string", "default": "A"}), &more));
    let new = crd(&texts(json!({"type": "string"}), &more));
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    prover.put(&json!({"metadata": metadata, "spec": {"a": "A"}}));
    let options = Options {
        forward: true,
        ..Options::default()
    };
    let mut report = compare(std::slice::from_ref(&old), std::slice::from_ref(&new), &options);
    report.prove(vec![prover.finish()], &BTreeSet::new());
    let finding = report.findings.iter().find(|f| f.impact <= Impact::Undecidable);
    assert_eq!(finding.unwrap().hurt.map(|hurt| hurt.objects), hurt);
    assert_eq!(report.verdict_by_harm() == Verdict::Safe, hurt.is_some());
    assert_eq!(finding.unwrap().why.contains("from the API"), hurt.is_none());
}
