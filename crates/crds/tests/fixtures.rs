//! The fixtures against the types and the rules.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

mod support;

use gantry_crds::{KINDS, Kind, kaos, nimbusguard, ollama, penin, validate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;
use support::{fixtures, nodes, root};

fn through<T: DeserializeOwned + Serialize>(document: &Value) -> Value {
    let typed: T = serde_json::from_value(document.clone()).expect("decodes");
    serde_json::to_value(typed).unwrap()
}

fn round_trip(kind: Kind, document: &Value) -> Value {
    match kind {
        Kind::Agent => through::<kaos::Agent>(document),
        Kind::ModelAPI => through::<kaos::ModelAPI>(document),
        Kind::MCPServer => through::<kaos::MCPServer>(document),
        Kind::Model => through::<ollama::Model>(document),
        Kind::ScalingPolicy => through::<nimbusguard::ScalingPolicy>(document),
        Kind::PeninOmegaCluster => through::<penin::PeninOmegaCluster>(document),
        Kind::InfrastructureChange => through::<penin::InfrastructureChange>(document),
    }
}

/// Makes equal what means the same: whole floats and integers, quantities as numbers and as strings, and conditions
/// that the original wrote without all the standard's fields.
fn normalised(path: &str, value: &Value) -> Value {
    let quantity = path.contains(".limits.")
        || path.contains(".requests.")
        || ["averageValue", "value", "cpu", "min", "max", "targetQueueDepth"]
            .iter()
            .any(|k| path.ends_with(&format!(".{k}")));
    match value {
        Value::Number(n) if quantity => Value::String(n.to_string()),
        Value::Number(n) => Value::from(n.as_f64().unwrap()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(i, v)| normalised(&format!("{path}[{i}]"), v))
            .collect(),
        Value::Object(fields) => {
            let mut fields: serde_json::Map<String, Value> = fields
                .iter()
                .map(|(name, v)| (name.clone(), normalised(&format!("{path}.{name}"), v)))
                .collect();
            if path.contains("conditions[") {
                fields.entry("reason").or_insert("".into());
                fields.entry("message").or_insert("".into());
                fields
                    .entry("lastTransitionTime")
                    .or_insert("1970-01-01T00:00:00Z".into());
            }
            // The empty word says nothing.
            fields.retain(|name, v| name != "imagePullPolicy" || v != "");
            Value::Object(fields)
        }
        other => other.clone(),
    }
}

#[test]
fn good_fixtures_lose_nothing() {
    for fixture in fixtures("good") {
        let back = round_trip(fixture.kind.id, &fixture.document);
        assert_eq!(
            normalised("", &back),
            normalised("", &fixture.document),
            "{}",
            fixture.name
        );
    }
}

#[test]
fn good_fixtures_have_no_problems() {
    for fixture in fixtures("good") {
        let problems = validate::document_problems(&fixture.document).expect("one of our kinds");
        assert!(problems.is_empty(), "{}: {problems:?}", fixture.name);
    }
}

#[test]
fn good_fixtures_fit_the_whole_schema() {
    for fixture in fixtures("good") {
        let mut problems = Vec::new();
        validate::check(&root(&fixture.kind), &fixture.document, "", &mut problems);
        assert!(problems.is_empty(), "{}: {problems:?}", fixture.name);
    }
}

#[test]
fn bad_fixtures_are_reported() {
    for fixture in fixtures("bad").into_iter().chain(fixtures("bad-in-code")) {
        let expect = fixture.expect.expect("a first line with # expect:");
        let problems = validate::document_problems(&fixture.document).expect("one of our kinds");
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(
            said.iter().any(|s| s.contains(&expect)),
            "{}: {expect:?} is not in {said:#?}",
            fixture.name
        );
    }
}

/// A rule without a bad example could rot in CEL and in Rust alike.
#[test]
fn every_rule_has_a_bad_fixture() {
    let expected: Vec<(Kind, String)> = fixtures("bad")
        .into_iter()
        .filter_map(|f| Some((f.kind.id, f.expect?)))
        .collect();
    // A rule of a shared block needs an example in one kind only.
    let mut uncovered = BTreeSet::new();
    let mut all = 0;
    for kind in KINDS {
        let schema = root(kind);
        let mut found = Vec::new();
        nodes("", &schema, false, &mut found);
        for node in found {
            for rule in node.schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                all += 1;
                // A rule about edits: no single document can break it.
                if rule["rule"].as_str().unwrap().contains("oldSelf") {
                    continue;
                }
                let message = rule["message"].as_str().unwrap();
                if !expected.iter().any(|(_, e)| message.contains(e.as_str())) {
                    uncovered.insert(message.to_owned());
                }
            }
        }
    }
    assert!(all > 20, "only {all} rules were found");
    assert!(uncovered.is_empty(), "no bad fixture for {uncovered:#?}");
}

/// Every described property of every kind stands in some good fixture, so that the round trip above proves its type.
#[test]
fn good_fixtures_cover_every_field() {
    for kind in KINDS {
        let mut given = BTreeSet::new();
        for fixture in fixtures("good").into_iter().filter(|f| f.kind.id == kind.id) {
            paths("", &fixture.document, &mut given);
        }
        let schema = root(kind);
        let mut found = Vec::new();
        nodes("", &schema, false, &mut found);
        let missing: Vec<String> = found
            .iter()
            .filter(|n| {
                !n.embedded && !n.path.is_empty() && !n.path.ends_with("[]") && !n.path.ends_with("{}")
            })
            .filter(|n| !given.contains(&n.path) && !shared(&n.path))
            .map(|n| n.path.clone())
            .collect();
        assert!(
            missing.is_empty(),
            "{}: no good fixture sets {missing:#?}",
            kind.kind
        );
    }
}

/// Fields of blocks that several kinds (or services) share are proven once.
fn shared(path: &str) -> bool {
    let proven = |block: &str| path.contains(block);
    path.starts_with(".spec.services.")
        || proven(".conditions[].")
        || (proven(".autoscaling.") && !path.ends_with("targetQueueDepth"))
        || proven(".container.")
        || proven(".deployment.")
        || proven(".gatewayRoute.")
        || proven(".telemetry.")
        || proven(".serverConfig.")
        || proven(".cache.storage.")
        || proven(".autoScaling.services.")
        // Blocks of a PeninOmegaCluster.
        || proven(".spec.patch.")
}

fn paths(path: &str, value: &Value, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, child) in fields {
                let path = format!("{path}.{name}");
                out.insert(path.clone());
                paths(&path, child, out);
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| paths(&format!("{path}[]"), item, out)),
        _ => {}
    }
}

#[test]
fn examples_have_no_problems() {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut ours = 0;
    for file in support::sorted(&examples)
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "yaml"))
    {
        let text = std::fs::read_to_string(&file).unwrap();
        for document in text.split("\n---").filter(|d| !d.trim().is_empty()) {
            if let Some(problems) = validate::document_problems(&support::yaml(document)) {
                assert!(problems.is_empty(), "{}: {problems:?}", file.display());
                ours += 1;
            }
        }
    }
    assert!(ours >= 4, "only {ours} examples were found");
}

#[test]
fn other_documents_are_not_ours() {
    let document = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "spec": {}});
    assert_eq!(validate::document_problems(&document), None);
}

#[test]
fn a_document_without_a_spec_is_reported() {
    let document = serde_json::json!({"apiVersion": "kaos.tools/v1alpha1", "kind": "Agent"});
    let problems = validate::document_problems(&document).unwrap();
    assert_eq!(problems[0].to_string(), "spec: Required value");
}

/// Objects that carry fields of a later version still decode.
#[test]
fn unknown_fields_are_passed_over() {
    for mut fixture in fixtures("good") {
        fixture.document["spec"]["fieldOfTheFuture"] = true.into();
        let back = round_trip(fixture.kind.id, &fixture.document);
        assert!(back["spec"].get("fieldOfTheFuture").is_none());
    }
}

/// An explicit null is the same as nothing.
#[test]
fn nulls_are_nothing() {
    let document = serde_json::json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer", "metadata": {"name": "x"},
        "spec": {"runtime": "kubernetes", "config": null, "replicas": null, "podSpec": null},
        "status": {"conditions": null},
    });
    let server: kaos::MCPServer = serde_json::from_value(document).unwrap();
    assert_eq!(server.spec.replicas(), 1);
    assert_eq!(server.spec.config, None);
    assert_eq!(server.status.unwrap().conditions, None);
}
