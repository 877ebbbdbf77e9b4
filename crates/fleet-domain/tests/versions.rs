//! Versions beside each other: what is lost between them where only their name is changed.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use gantry_fleet_domain::crd_diff::{Class, Crd, Impact, Kind, Options, Prover, Report, Verdict, compare};
use rstest::rstest;
use serde_json::{Value, json};

fn crd(versions: &Value) -> Crd {
    stored(versions, &json!(null))
}

fn stored(versions: &Value, stored: &Value) -> Crd {
    Crd::parse(&json!({
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "names": {"plural": "things", "kind": "Thing"}, "versions": versions},
        "status": {"storedVersions": stored},
    }))
    .unwrap()
}

/// `sS`: served and stored.
fn version(name: &str, is: &str, fields: &Value) -> Value {
    json!({
        "name": name, "served": is.contains('s'), "storage": is.contains('S'),
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}},
    })
}

fn forward(old: Crd, new: Crd) -> Report {
    let options = Options {
        forward: true,
        ..Options::default()
    };
    compare(&[old], &[new], &options)
}

fn kinds(report: &Report) -> Vec<(Kind, Impact)> {
    let matters = report.findings.iter().filter(|f| f.impact < Impact::Warning);
    matters.map(|finding| (finding.kind, finding.impact)).collect()
}

/// Stored objects get the name of another version, and their fields stay as they are.
#[rstest]
#[case::another_type(json!({"src": {"type": "string"}}), Some(".spec.src"))]
#[case::gone(json!({}), Some(".spec.src"))]
#[case::tighter(json!({"src": {"type": "object", "maxProperties": 2, "properties": {"url": {"type": "string", "maxLength": 3}}}}), None)]
fn storage_that_moves(#[case] fields: Value, #[case] lost: Option<&str>) {
    let src = json!({"src": {"type": "object", "properties": {"url": {"type": "string"}}}});
    let old = crd(&json!([version("v1a", "sS", &src)]));
    let new = crd(&json!([version("v1a", "s", &src), version("v1", "sS", &fields)]));
    let report = forward(old, new);
    let found = report.findings.iter().find(|f| f.kind == Kind::StorageLoses);
    assert_eq!(found.is_some(), lost.is_some(), "{:?}", report.findings);
    if let (Some(found), Some(lost)) = (found, lost) {
        assert!(found.before.contains(lost), "{}", found.before);
        assert_eq!(report.forward, Some(Verdict::Breaking));
    }
}

/// Objects that are stored in a version are read by its schema, whether anybody is served by it or not.
#[rstest]
#[case::stored(json!(["v1a", "v1"]), json!({}), Impact::Breaking)]
#[case::unknown(json!(null), json!({}), Impact::Undecidable)]
#[case::not_stored(json!(["v1"]), json!({}), Impact::Info)]
// What is only checked is checked where it is written, and nobody writes here.
#[case::refused(json!(["v1a", "v1"]), json!({"x": {"type": "string", "maxLength": 3}}), Impact::Info)]
fn a_version_that_nobody_is_served(#[case] names: Value, #[case] left: Value, #[case] impact: Impact) {
    let x = json!({"x": {"type": "string"}});
    let side = |fields: &Value, names: &Value| {
        stored(
            &json!([version("v1a", "", fields), version("v1", "sS", &x)]),
            names,
        )
    };
    let report = forward(side(&x, &names), side(&left, &json!(null)));
    let found: Vec<Impact> = report.findings.iter().map(|finding| finding.impact).collect();
    assert_eq!(found, [impact], "{:?}", report.findings);
    assert_eq!(
        report.findings[0].undecidable.is_some(),
        impact == Impact::Undecidable
    );
}

/// Who reads and writes through another version writes back what that version knows.
#[rstest]
#[case::knows_less("s", json!({"x": {"type": "string"}}), "None", true)]
#[case::knows_it_otherwise("s", json!({"x": {"type": "string"}, "y": {"type": "integer"}}), "None", true)]
#[case::knows_all("s", json!({"x": {"type": "string"}, "y": {"type": "string"}}), "None", false)]
#[case::not_served("", json!({}), "None", false)]
#[case::converted("s", json!({}), "Webhook", false)]
fn a_version_beside_the_stored_one(
    #[case] is: &str,
    #[case] fields: Value,
    #[case] strategy: &str,
    #[case] loses: bool,
) {
    let known = json!({"x": {"type": "string"}, "y": {"type": "string"}});
    let side = |versions: Value| {
        Crd::parse(&json!({
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "names": {"plural": "things", "kind": "Thing"}, "versions": versions,
                "conversion": {"strategy": strategy},
            },
        }))
        .unwrap()
    };
    let old = json!([version("v1", "sS", &known)]);
    let with = |is: &str| json!([version("v1", "sS", &known), version("v2", is, &fields)]);
    for old in [old, with("")] {
        let report = forward(side(old), side(with(is)));
        let expected: &[_] = &[(Kind::VersionLoses, Impact::Breaking)];
        assert_eq!(kinds(&report), &expected[..usize::from(loses)]);
        let lost = report.findings.iter().find(|f| f.kind == Kind::VersionLoses);
        assert!(lost.is_none_or(|lost| lost.class == Class::DataLoss && lost.after.contains(".spec.y")));
    }
}

/// What was anything in the stored version loses what is in it where another version has a type for it.
#[rstest]
#[case::text(json!({"type": "string"}), true)]
#[case::list(json!({"type": "array", "items": {"type": "string"}}), true)]
#[case::anything(json!({"x-kubernetes-preserve-unknown-fields": true}), false)]
#[case::any_object(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), false)]
fn a_version_that_types_what_was_free(#[case] field: Value, #[case] loses: bool) {
    let side = |more: &[Value]| {
        let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version = |name: &str, stored: bool, spec: &Value| json!({"name": name, "served": true, "storage": stored, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}});
        let mut versions = vec![version("v1", true, &free)];
        versions.extend(more.iter().map(|spec| version("v2", false, spec)));
        Crd::parse(&json!({
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "names": {"plural": "things", "kind": "Thing"}, "versions": versions},
        }))
        .unwrap()
    };
    let typed =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"d": field}});
    let report = forward(side(&[]), side(&[typed]));
    let expected: &[_] = &[(Kind::VersionLoses, Impact::Breaking)];
    assert_eq!(kinds(&report), &expected[..usize::from(loses)]);
}

/// What is stored by another name alone has to meet what that version asks for.
#[rstest]
#[case::fits("", "", json!({"a": {"type": "string"}, "b": {"type": "string"}}), json!([]), None)]
#[case::required("", "", json!({"a": {"type": "string"}, "b": {"type": "string"}}), json!(["b"]), Some((Class::RejectsObjects, Impact::Breaking)))]
#[case::filled_in("", "", json!({"a": {"type": "string"}, "b": {"type": "string", "default": "x"}}), json!(["b"]), None)]
#[case::listed("", "", json!({"a": {"type": "string", "enum": ["x"]}}), json!([]), Some((Class::RejectsObjects, Impact::Breaking)))]
#[case::spared("1.33", "", json!({"a": {"type": "string", "enum": ["x"]}}), json!([]), Some((Class::Clients, Impact::Breaking)))]
#[case::served_before("", "s", json!({"a": {"type": "string", "enum": ["x"]}}), json!([]), Some((Class::RejectsObjects, Impact::Undecidable)))]
#[case::not_served_before("", " ", json!({"a": {"type": "string", "enum": ["x"]}}), json!([]), Some((Class::RejectsObjects, Impact::Breaking)))]
fn storage_that_moves_to_a_tighter_version(
    #[case] server: &str,
    #[case] known: &str,
    #[case] fields: Value,
    #[case] required: Value,
    #[case] expected: Option<(Class, Impact)>,
) {
    let a = json!({"a": {"type": "string"}});
    let tight = |is: &str| {
        let mut version = version("v1", is, &fields);
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["required"] = required.clone();
        version
    };
    let mut before = vec![version("v1beta1", "sS", &a)];
    before.extend((!known.is_empty()).then(|| tight(known)));
    let old = crd(&before.into());
    let new = crd(&json!([version("v1beta1", "s", &a), tight("sS")]));
    let options = Options {
        forward: true,
        server: server.parse().ok(),
        ..Options::default()
    };
    let mut report = compare(std::slice::from_ref(&old), std::slice::from_ref(&new), &options);
    let found = |report: &Report| {
        let mut findings = report.findings.iter();
        findings
            .find(|finding| finding.kind == Kind::StorageRejects)
            .cloned()
    };
    let finding = found(&report);
    assert_eq!(finding.map(|finding| (finding.class, finding.impact)), expected);
    assert_eq!(report.forward == Some(Verdict::Safe), expected.is_none());

    // Objects of the old version tell whom it hurts.
    let mut prover = Prover::new("here", Some(&old), &new, "v1beta1", options.server).unwrap();
    for a in ["x", "y"] {
        prover.put(&json!({"metadata": {"name": a}, "spec": {"a": a}}));
    }
    let proof = prover.finish();
    let hurt = if required == json!(["b"]) { 2 } else { 1 };
    assert_eq!(
        proof.rejected + proof.rejected_when_changed,
        if expected.is_some() { hurt } else { 0 }
    );
    report.prove(vec![proof], &BTreeSet::new());
    let told = found(&report)
        .and_then(|finding| finding.hurt)
        .map(|hurt| hurt.objects);
    assert_eq!(told, expected.map(|_| hurt));
    assert_eq!(report.verdict_by_harm() == Verdict::Safe, expected.is_none());
}

/// With status as a subresource, new objects have none when they are validated, whatever is written or filled in.
#[rstest]
#[case::default_required(true, json!({"type": "object"}), json!(["spec"]), json!({"type": "object", "default": {}}), json!(["spec", "status"]), true)]
#[case::optional(true, json!({"type": "object"}), json!(["spec"]), json!({"type": "object", "default": {}}), json!(["spec"]), false)]
#[case::subresource_added(false, json!({"type": "object"}), json!(["spec", "status"]), json!({"type": "object"}), json!(["spec", "status"]), true)]
#[case::as_before(true, json!({"type": "object"}), json!(["status"]), json!({"type": "object"}), json!(["status"]), false)]
fn a_status_that_new_objects_lack(
    #[case] subresource: bool,
    #[case] before: Value,
    #[case] asked: Value,
    #[case] after: Value,
    #[case] asks: Value,
    #[case] told: bool,
) {
    let side = |is_apart: bool, status: &Value, required: &Value| {
        let mut version = version("v1", "sS", &json!({}));
        let root = &mut version["schema"]["openAPIV3Schema"];
        root["properties"]["status"] = status.clone();
        root["required"] = required.clone();
        if is_apart {
            version["subresources"]["status"] = json!({});
        }
        crd(&json!([version]))
    };
    let report = forward(side(subresource, &before, &asked), side(true, &after, &asks));
    let expected: &[_] = &[(Kind::StatusRequired, Impact::Breaking)];
    assert_eq!(kinds(&report), &expected[..usize::from(told)]);
    let harmless = report.findings.iter().any(|f| f.kind == Kind::RequiredDefaulted);
    assert!(!harmless, "{:?}", report.findings);
}

/// The same for rules: every stored object has a status, and what is made anew has none.
#[rstest]
#[case::subresource(true, &[(Kind::RuleAdded, Impact::Breaking)])]
#[case::ordinary_field(false, &[])]
fn a_rule_about_a_status_that_new_objects_lack(
    #[case] subresource: bool,
    #[case] expected: &[(Kind, Impact)],
) {
    let side = |rules: Value| {
        let mut version = version("v1", "sS", &json!({}));
        let root = &mut version["schema"]["openAPIV3Schema"];
        root["properties"]["status"] = json!({"type": "object", "default": {}});
        root["x-kubernetes-validations"] = rules;
        if subresource {
            version["subresources"]["status"] = json!({});
        }
        crd(&json!([version]))
    };
    let report = forward(side(json!([])), side(json!([{"rule": "has(self.status)"}])));
    assert_eq!(kinds(&report), expected);
    assert!(report.findings.iter().all(|f| f.class >= Class::Clients));
}
