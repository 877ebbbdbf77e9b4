//! Whose a definition is that a cluster has and the new set has not.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{Class, Crd, Kind, Options, Verdict, compare};
use rstest::rstest;
use serde_json::{Value, json};

fn crd(name: &str, group: &str, metadata: Value) -> Crd {
    let mut document = json!({
        "metadata": metadata,
        "spec": {
            "group": group, "names": {"plural": name, "kind": name},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    document["metadata"]["name"] = format!("{name}.{group}").into();
    Crd::parse(&document).unwrap()
}

fn of_release(name: &str) -> Value {
    json!({
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": "apps"},
    })
}

fn kept() -> Value {
    let mut metadata = of_release("one");
    metadata["annotations"]["helm.sh/resource-policy"] = "keep".into();
    metadata
}

/// Helm deletes what its release had and the chart has no more; everything else stays.
#[rstest]
#[case::same_release("example.com", of_release("one"), of_release("one"), Some(Kind::CrdRemoved))]
#[case::of_another_group("other.com", of_release("one"), of_release("one"), Some(Kind::CrdRemoved))]
#[case::another_release("example.com", of_release("one"), of_release("two"), Some(Kind::CrdLeftOut))]
#[case::another_group_and_release("other.com", of_release("one"), of_release("two"), None)]
#[case::nothing_known("example.com", of_release("one"), json!({}), Some(Kind::CrdRemoved))]
#[case::nothing_known_of_another_group("other.com", of_release("one"), json!({}), None)]
#[case::to_be_kept("example.com", kept(), of_release("one"), Some(Kind::CrdLeftOut))]
#[case::nobodys("example.com", json!({}), of_release("one"), Some(Kind::CrdLeftOut))]
#[case::of_others("example.com", json!({"labels": {"app.kubernetes.io/managed-by": "argo"}}), json!({}), Some(Kind::CrdLeftOut))]
fn a_definition_that_the_set_leaves_out(
    #[case] group: &str,
    #[case] gone: Value,
    #[case] stays: Value,
    #[case] kind: Option<Kind>,
) {
    let cluster = [crd("gone", group, gone), crd("stays", "example.com", stays)];
    let options = Options {
        forward: true,
        old_is_cluster: true,
        ..Options::default()
    };
    let report = compare(&cluster, &[crd("stays", "example.com", json!({}))], &options);
    let found = report.findings.first();
    assert_eq!(found.map(|finding| finding.kind), kind);
    let removed = kind == Some(Kind::CrdRemoved);
    assert_eq!(report.forward == Some(Verdict::Breaking), removed);
    if removed {
        let finding = found.unwrap();
        assert_eq!(finding.class, Class::DataLoss);
        assert!(finding.why.contains("apps/one"), "{}", finding.why);
    }
}
