//! What is not schema: the set, versions, names, conversion, subresources; both directions, waivers, proofs.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use gantry_fleet_domain::crd_diff::{
    Class, Crd, Harm, Impact, Kind, Options, Prover, Report, Verdict, Waiver, compare, render,
};
use rstest::rstest;
use serde_json::{Value, json};

fn crd(change: impl FnOnce(&mut Value)) -> Crd {
    let mut document = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.a", "statusReplicasPath": ".status.a"}},
                 "selectableFields": [{"jsonPath": ".spec.a"}],
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "integer"}}}}}}},
                {"name": "v1beta1", "served": true, "storage": false,
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"b": {"type": "integer"}}}}}}},
            ],
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {"name": "x"}, "caBundle": "AAAA"}, "conversionReviewVersions": ["v1"]}},
        },
    });
    change(&mut document);
    Crd::parse(&document).unwrap()
}

fn both(old: &[Crd], new: &[Crd]) -> Report {
    let options = Options {
        forward: true,
        backward: true,
        ..Options::default()
    };
    compare(old, new, &options)
}

fn forward(old: &[Crd], new: &[Crd]) -> Report {
    let options = Options {
        forward: true,
        ..Options::default()
    };
    compare(old, new, &options)
}

#[rstest]
#[case::scope(|d: &mut Value| d["spec"]["scope"] = "Cluster".into(), Kind::ScopeChanged, Impact::Breaking)]
#[case::kind(|d: &mut Value| { d["spec"]["names"]["kind"] = "Thingy".into(); d["spec"]["names"]["listKind"] = "ThingList".into(); d["spec"]["names"]["singular"] = "thing".into(); }, Kind::KindChanged, Impact::Breaking)]
#[case::short_name(|d: &mut Value| d["spec"]["names"]["shortNames"] = json!([]), Kind::NamesChanged, Impact::Warning)]
#[case::version_removed(|d: &mut Value| { d["spec"]["versions"].as_array_mut().unwrap().pop(); }, Kind::VersionRemoved, Impact::Breaking)]
#[case::unserved(|d: &mut Value| d["spec"]["versions"][1]["served"] = false.into(), Kind::VersionUnserved, Impact::Breaking)]
#[case::deprecated(|d: &mut Value| d["spec"]["versions"][1]["deprecated"] = true.into(), Kind::VersionDeprecated, Impact::Warning)]
#[case::status(|d: &mut Value| { d["spec"]["versions"][0]["subresources"].as_object_mut().unwrap().remove("status"); }, Kind::StatusRemoved, Impact::Breaking)]
#[case::scale(|d: &mut Value| { d["spec"]["versions"][0]["subresources"].as_object_mut().unwrap().remove("scale"); }, Kind::ScaleRemoved, Impact::Breaking)]
#[case::scale_path(|d: &mut Value| d["spec"]["versions"][0]["subresources"]["scale"]["specReplicasPath"] = ".spec.b".into(), Kind::ScaleChanged, Impact::Warning)]
#[case::selectable(|d: &mut Value| d["spec"]["versions"][0]["selectableFields"] = json!([]), Kind::SelectableRemoved, Impact::Breaking)]
#[case::columns(|d: &mut Value| d["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "A", "jsonPath": ".spec.a"}]), Kind::ColumnsChanged, Impact::Info)]
#[case::conversion_dropped(|d: &mut Value| d["spec"]["conversion"] = json!({"strategy": "None"}), Kind::ConversionDropped, Impact::Breaking)]
#[case::webhook_moved(|d: &mut Value| d["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["name"] = "y".into(), Kind::ConversionChanged, Impact::Warning)]
#[case::webhook_on_another_port(|d: &mut Value| d["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] = 8443.into(), Kind::ConversionChanged, Impact::Warning)]
#[case::webhook_on_another_path(|d: &mut Value| d["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["path"] = "/convert".into(), Kind::ConversionChanged, Impact::Warning)]
#[case::storage(|d: &mut Value| { d["spec"]["versions"][0]["storage"] = false.into(); d["spec"]["versions"][1]["storage"] = true.into(); }, Kind::StorageMoved, Impact::Warning)]
fn changes(#[case] change: fn(&mut Value), #[case] kind: Kind, #[case] impact: Impact) {
    let report = forward(&[crd(|_| {})], &[crd(change)]);
    let found: Vec<_> = report.findings.iter().map(|f| (f.kind, f.impact)).collect();
    assert!(found.contains(&(kind, impact)), "{found:?}");
    assert_eq!(found.len(), 1, "{found:?}");
}

/// A server fills in what a chart leaves out, and its answer names everything.
#[rstest]
#[case::port(|d: &mut Value| d["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] = 443.into())]
#[case::path(|d: &mut Value| d["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["path"] = "".into())]
#[case::no_address(|d: &mut Value| d["spec"]["conversion"]["webhook"]["clientConfig"]["url"] = Value::Null)]
fn what_a_server_fills_in_for_a_webhook(#[case] change: fn(&mut Value)) {
    let (old, new) = ([crd(|_| {})], [crd(change)]);
    let report = both(&old, &new);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// An old definition need not say which reviews its webhook knows.
#[test]
fn what_a_server_fills_in_for_an_old_definition() {
    let old = crd(|d| {
        d["apiVersion"] = "apiextensions.k8s.io/v1beta1".into();
        d["spec"]["preserveUnknownFields"] = false.into();
        d["spec"]["conversion"] =
            json!({"strategy": "Webhook", "webhookClientConfig": {"service": {"name": "x"}}});
    });
    let new = crd(|d| d["spec"]["conversion"]["webhook"]["conversionReviewVersions"] = json!(["v1beta1"]));
    let report = both(&[old], &[new]);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn a_certificate_that_changes_by_itself_is_no_change() {
    let new = crd(|d| d["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = "BBBB".into());
    assert!(forward(&[crd(|_| {})], &[new]).findings.is_empty());
}

#[test]
fn storage_without_a_webhook_loses_what_the_other_version_does_not_know() {
    let none = |d: &mut Value| d["spec"]["conversion"] = json!({"strategy": "None"});
    let new = crd(|d| {
        none(d);
        d["spec"]["versions"][0]["storage"] = false.into();
        d["spec"]["versions"][1]["storage"] = true.into();
    });
    let report = forward(&[crd(none)], &[new]);
    assert!(
        report
            .findings
            .iter()
            .any(|f| f.kind == Kind::StorageLoses && f.before.contains(".spec.a"))
    );
}

#[rstest]
#[case::unknown(None, false, Kind::VersionRemoved)]
#[case::stored(Some(json!(["v1", "v1beta1"])), false, Kind::VersionRemoved)]
#[case::never_stored(Some(json!(["v1"])), false, Kind::VersionNeverStored)]
#[case::served(Some(json!(["v1"])), true, Kind::VersionUnserved)]
fn stored_versions_of_a_cluster_decide(
    #[case] stored: Option<Value>,
    #[case] served: bool,
    #[case] kind: Kind,
) {
    let old = crd(|d| {
        d["spec"]["versions"][1]["served"] = served.into();
        if let Some(stored) = stored {
            d["status"]["storedVersions"] = stored;
        }
    });
    let new = crd(|d| {
        d["spec"]["versions"].as_array_mut().unwrap().pop();
    });
    let report = forward(&[old], &[new]);
    assert_eq!(report.findings[0].kind, kind);
}

/// Who used the version is refused, and nothing is lost: nothing stands in the way of a rollback.
#[test]
fn a_version_that_goes_and_was_never_stored() {
    let old = crd(|d| d["status"]["storedVersions"] = json!(["v1"]));
    let new = crd(|d| {
        d["spec"]["versions"].as_array_mut().unwrap().pop();
    });
    let report = both(&[old], &[new]);
    assert_eq!(
        (report.findings[0].class, report.forward),
        (Class::Clients, Some(Verdict::Breaking))
    );
    assert_eq!(report.points_of_no_return, []);
}

#[rstest]
#[case::priority(json!({"priority": 1}), true)]
#[case::type_(json!({"type": "date"}), true)]
#[case::format(json!({"format": "int32"}), true)]
#[case::description(json!({"description": "what it is"}), false)]
fn printer_columns(#[case] more: Value, #[case] changed: bool) {
    let side = |more: &Value| {
        let mut column = json!({"name": "A", "jsonPath": ".spec.a", "type": "integer"});
        for (word, value) in more.as_object().unwrap() {
            column[word] = value.clone();
        }
        crd(|d| d["spec"]["versions"][0]["additionalPrinterColumns"] = json!([column]))
    };
    let report = forward(&[side(&json!({}))], &[side(&more)]);
    assert_eq!(
        report.findings.iter().any(|f| f.kind == Kind::ColumnsChanged),
        changed
    );
}

#[test]
fn a_definition_that_is_gone_or_renamed() {
    let other = crd(|d| {
        d["metadata"]["name"] = "things.other.example.com".into();
        d["spec"]["group"] = "other.example.com".into();
    });
    let report = forward(&[crd(|_| {})], std::slice::from_ref(&other));
    let gone = &report.findings[0];
    assert_eq!(gone.kind, Kind::CrdRemoved);
    assert!(
        gone.why.contains("renamed to things.other.example.com"),
        "{}",
        gone.why
    );
    assert_eq!(report.forward, Some(Verdict::Breaking));
    // A cluster has definitions of others as well.
    let options = Options {
        forward: true,
        old_is_cluster: true,
        ..Options::default()
    };
    assert_eq!(
        compare(&[crd(|_| {})], &[other], &options).forward,
        Some(Verdict::Safe)
    );
}

#[test]
fn the_way_back_names_its_point_of_no_return() {
    let grown = crd(|d| {
        d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["c"] =
            json!({"type": "string"});
    });
    let report = both(&[crd(|_| {})], &[grown]);
    assert_eq!(
        (report.forward, report.backward),
        (Some(Verdict::Safe), Some(Verdict::Breaking))
    );
    assert_eq!(report.verdict(), Verdict::Safe);
    assert_eq!(
        report.points_of_no_return[0].when,
        "at the first object that uses .spec.c"
    );

    let v2 = crd(|d| {
        let mut version = d["spec"]["versions"][0].clone();
        version["name"] = "v2".into();
        d["spec"]["versions"][0]["storage"] = false.into();
        d["spec"]["versions"].as_array_mut().unwrap().push(version);
    });
    let report = both(&[crd(|_| {})], &[v2]);
    assert_eq!(
        report.points_of_no_return[0].when,
        "when the new definition is applied"
    );
}

#[test]
fn waivers_count_one_by_one_and_not_for_ever() {
    let new = crd(|d| {
        d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["a"]["minimum"] =
            1.into();
    });
    let mut report = forward(&[crd(|_| {})], &[new]);
    let waiver = |expires: &str, approver: &str| Waiver {
        fingerprint: report.findings[0].fingerprint.clone(),
        approver: approver.to_owned(),
        reason: "checked by hand".to_owned(),
        expires: expires.parse().unwrap(),
    };
    let (good, late, nobody) = (
        waiver("2026-06-30", "ada"),
        waiver("2026-06-29", "ada"),
        waiver("2026-06-30", " "),
    );
    let unused = Waiver {
        fingerprint: "0000".to_owned(),
        ..good.clone()
    };
    let today = "2026-06-30".parse().unwrap();
    report.waive(&[late, nobody, unused], today);
    assert_eq!(report.forward, Some(Verdict::Breaking));
    assert_eq!(report.notes.len(), 3);
    report.waive(&[good], today);
    assert_eq!(report.forward, Some(Verdict::Safe));
}

#[test]
fn fingerprints_do_not_depend_on_what_else_changes() {
    let tighten = |d: &mut Value| {
        d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["a"]["minimum"] =
            1.into();
    };
    let more = |d: &mut Value| {
        tighten(d);
        d["spec"]["scope"] = "Cluster".into();
    };
    let print = |new: Crd| {
        let report = forward(&[crd(|_| {})], &[new]);
        let finding = report.findings.iter().find(|f| f.kind == Kind::LimitTightened);
        finding.unwrap().fingerprint.clone()
    };
    assert_eq!(print(crd(tighten)), print(crd(more)));
}

#[test]
fn objects_tell_a_break_that_hurts_from_one_that_does_not() {
    let old = crd(|_| {});
    let new = crd(|d| {
        let spec = &mut d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["properties"]["a"]["minimum"] = 3.into();
        spec["properties"]["b"] = json!({"type": "string"});
        spec["required"] = json!(["b"]);
    });
    let object = |name: &str, spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name, "labels": {"x": "y"}}, "spec": spec});
    let prove = |objects: &[Value], server: Option<&str>| {
        let server = server.map(|s| s.parse().unwrap());
        let mut prover = Prover::new("here", Some(&old), &new, "v1", server).unwrap();
        for object in objects {
            prover.put(object);
        }
        prover.finish()
    };
    let objects = [
        object("good", json!({"a": 3, "b": "x"})),
        object("low", json!({"a": 1, "b": "x"})),
        object("extra", json!({"a": 4, "b": "x", "zzz": 1})),
    ];
    let proof = prove(&objects, None);
    // What the old schema pruned already is no loss.
    assert_eq!((proof.checked, proof.rejected, proof.pruned), (3, 1, 0));
    assert_eq!(proof.objects[0].name, "low");
    let ratcheted = prove(&objects, Some("1.33"));
    assert_eq!((ratcheted.rejected, ratcheted.rejected_when_changed), (0, 1));
    assert_eq!(ratcheted.objects[0].harm, Harm::RejectedWhenChanged);

    let mut report = forward(&[crd(|_| {})], std::slice::from_ref(&new));
    report.prove(vec![proof], &BTreeSet::new());
    let hurt = |kind: Kind| {
        report
            .findings
            .iter()
            .find(|f| f.kind == kind)
            .unwrap()
            .hurt
            .unwrap()
            .objects
    };
    assert_eq!((hurt(Kind::LimitTightened), hurt(Kind::RequiredAdded)), (1, 0));
    assert_eq!(report.verdict_by_harm(), Verdict::Breaking);
}

#[test]
fn every_form_tells_the_same() {
    let new = crd(|d| d["spec"]["scope"] = "Cluster|<b>".into());
    let report = forward(&[crd(|_| {})], &[new]);
    let print = &report.findings[0].fingerprint;
    let table = render::table(&report, false);
    assert!(
        table.contains("BREAKING") && table.contains(print) && table.contains("what to do"),
        "{table}"
    );
    let markdown = render::markdown(&report);
    assert!(
        markdown.contains("Cluster\\|&lt;b>") && markdown.contains(print),
        "{markdown}"
    );
    let sarif = render::sarif(&report, "1", &|_| Some("crds/x.yaml".to_owned()));
    assert_eq!(sarif["runs"][0]["results"][0]["level"], "error");
    assert_eq!(
        sarif["runs"][0]["results"][0]["partialFingerprints"]["gantry/v1"],
        print.as_str()
    );
    assert_eq!(render::json(&report)["findings"][0]["kind"], "scope-changed");
}

#[test]
fn beta_definitions_are_read_as_the_server_reads_them() {
    let beta = Crd::parse(&json!({
        "apiVersion": "apiextensions.k8s.io/v1beta1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "version": "v1", "names": {"plural": "things", "kind": "Thing"},
            "subresources": {"status": {}},
            "validation": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "string"}}}},
        },
    }))
    .unwrap();
    assert!(beta.preserves_unknown && beta.versions[0].status && beta.versions[0].storage);
    assert_eq!(beta.versions[0].schema.properties.len(), 1);
}

fn beta(root: Value, preserve: bool) -> Crd {
    let mut version = json!({"name": "v1", "served": true, "storage": true});
    if !root.is_null() {
        version["schema"] = json!({"openAPIV3Schema": root});
    }
    crd(|d| {
        d["spec"]["preserveUnknownFields"] = preserve.into();
        d["spec"]["versions"] = json!([version]);
        d["spec"]["conversion"] = json!(null);
    })
}

/// Where nothing is pruned, every field may hold anything until it gets a schema.
#[rstest]
#[case::first_schema(json!(null), json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}), true, &[(Kind::FreeFieldTyped, ".spec")])]
#[case::field_typed(
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}}),
    true, &[(Kind::FreeFieldTyped, ".spec.b")])]
#[case::field_dropped(
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
    json!({"type": "object", "properties": {"spec": {"type": "object"}}}), true, &[])]
#[case::choice(
    json!({"type": "object", "properties": {"spec": {"type": "object"}}}),
    json!({"type": "object", "properties": {"spec": {"type": "object", "oneOf": [{"required": ["b"]}, {"not": {"required": ["b"]}, "required": ["c"]}]}}}),
    true, &[(Kind::ChoiceAdded, ".spec")])]
#[case::open_root(json!(null), json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), false, &[])]
#[case::pruning(
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}),
    false, &[(Kind::PruningTurnedOn, "spec.preserveUnknownFields")])]
fn where_nothing_was_pruned(
    #[case] old: Value,
    #[case] new: Value,
    #[case] preserve: bool,
    #[case] findings: &[(Kind, &str)],
) {
    let report = forward(&[beta(old, true)], &[beta(new, preserve)]);
    let harm = report
        .findings
        .iter()
        .filter(|finding| finding.impact < Impact::Warning);
    let found: Vec<_> = harm
        .map(|finding| (finding.kind, finding.path.as_str()))
        .collect();
    assert_eq!(found, findings);
}

/// Without a webhook a version keeps what it knows; limits lose nothing.
#[rstest]
#[case::limits(json!({"a": {"type": "integer", "maximum": 3}}), Kind::ConversionChanged, Impact::Warning)]
#[case::more_fields(json!({"a": {"type": "integer"}, "b": {"type": "integer"}}), Kind::ConversionDropped, Impact::Breaking)]
#[case::fewer_fields(json!({}), Kind::ConversionDropped, Impact::Breaking)]
#[case::another_type(json!({"a": {"type": "string"}}), Kind::ConversionDropped, Impact::Breaking)]
fn a_webhook_that_goes(#[case] other: Value, #[case] kind: Kind, #[case] impact: Impact) {
    let with = |conversion: bool| {
        crd(|d| {
            d["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
                other.clone();
            if !conversion {
                d["spec"]["conversion"] = json!({"strategy": "None"});
            }
        })
    };
    let report = forward(&[with(true)], &[with(false)]);
    let found: Vec<_> = report.findings.iter().map(|f| (f.kind, f.impact)).collect();
    assert_eq!(found, [(kind, impact)]);
}

#[test]
fn objects_tell_what_a_new_rule_hurts() {
    let ruled = |rule: &str| {
        crd(|d| {
            let spec = &mut d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["a"]["x-kubernetes-validations"] =
                json!([{"rule": rule, "message": "too low"}]);
        })
    };
    let object = |a: i64| json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": format!("a{a}")}, "spec": {"a": a}});
    let prove = |rule: &str, server: Option<&str>| {
        let (old, new) = (crd(|_| {}), ruled(rule));
        let server = server.map(|s| s.parse().unwrap());
        let mut prover = Prover::new("here", Some(&old), &new, "v1", server).unwrap();
        for a in [1, 5, 9] {
            prover.put(&object(a));
        }
        let mut report = forward(std::slice::from_ref(&old), std::slice::from_ref(&new));
        let proof = prover.finish();
        report.prove(vec![proof.clone()], &BTreeSet::new());
        (proof, report)
    };

    let (proof, report) = prove("self > 3", None);
    assert_eq!((proof.rejected, proof.notes.len()), (1, 0));
    assert_eq!(proof.objects[0].reasons, [".spec.a breaks a rule: too low"]);
    assert_eq!(report.findings[0].kind, Kind::RuleAdded);
    assert_eq!(report.findings[0].hurt.map(|hurt| hurt.objects), Some(1));
    assert_eq!(prove("self > 3", Some("1.36")).0.rejected_when_changed, 1);
    assert_eq!(prove("self > 3", Some("1.24")).0.rejected, 0);

    let (_, report) = prove("self > 0", None);
    assert_eq!(report.findings[0].hurt.map(|hurt| hurt.objects), Some(0));
    assert_eq!(report.verdict_by_harm(), Verdict::Safe);

    // What is not known is neither harm nor the absence of it.
    let (proof, report) = prove("isSemver(string(self))", None);
    assert_eq!(proof.rejected, 0);
    assert!(
        proof.notes[0].contains("isSemver()") && proof.notes[0].contains(".spec.a"),
        "{:?}",
        proof.notes
    );
    assert_eq!(report.findings[0].hurt, None);
    assert_eq!(report.verdict_by_harm(), Verdict::Breaking);
}

/// No harm is claimed only where all was looked at, and harm from anywhere counts.
#[test]
fn objects_of_several_places() {
    let limited = |limit: Value| {
        crd(|d| {
            let spec = &mut d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["a"] = limit;
        })
    };
    let old = limited(json!({"type": "integer", "maximum": 100}));
    let new = limited(json!({"type": "integer", "maximum": 100, "minimum": 3}));
    let prove = |new: &Crd, place: &str, all: &[i64]| {
        let mut prover = Prover::new(place, Some(&old), new, "v1", None).unwrap();
        for a in all {
            prover.put(&json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {"a": a}}));
        }
        prover.finish()
    };
    let proven = |proofs, unseen: &[&str]| {
        let mut report = forward(std::slice::from_ref(&old), std::slice::from_ref(&new));
        report.prove(proofs, &unseen.iter().map(ToString::to_string).collect());
        let hurt = report.findings[0].hurt.map(|hurt| (hurt.objects, hurt.checked));
        (hurt, report.verdict_by_harm())
    };
    let (bad, good) = (|| prove(&new, "far", &[1, 5]), || prove(&new, "near", &[4]));
    assert_eq!(
        proven(vec![bad(), good()], &[]),
        (Some((1, 3)), Verdict::Breaking)
    );
    assert_eq!(proven(vec![good()], &[]), (Some((0, 1)), Verdict::Safe));
    assert_eq!(
        proven(vec![good()], &["things.example.com"]),
        (None, Verdict::Breaking)
    );
    assert_eq!(
        proven(vec![bad()], &["things.example.com"]),
        (Some((1, 2)), Verdict::Breaking)
    );
    assert_eq!(
        proven(vec![good()], &["others.example.com"]),
        (Some((0, 1)), Verdict::Safe)
    );
    // What the old schema refused already is not refused by the new one.
    let proof = prove(&new, "here", &[101, 4]);
    assert_eq!((proof.rejected, proof.checked), (0, 2));
}

/// A pattern that is not understood is not known to refuse nobody.
#[test]
fn objects_under_a_pattern_that_is_not_understood() {
    let named = |pattern: Value| {
        crd(|d| {
            let spec = &mut d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
            spec["properties"]["name"] = pattern;
        })
    };
    let old = named(json!({"type": "string"}));
    let new = named(json!({"type": "string", "pattern": format!("^(?:{}){{1000}}$", "a{1000}")}));
    let mut prover = Prover::new("here", Some(&old), &new, "v1", None).unwrap();
    prover.put(&json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {"name": "b"}}));
    let mut report = forward(std::slice::from_ref(&old), std::slice::from_ref(&new));
    report.prove(vec![prover.finish()], &BTreeSet::new());
    assert_eq!(report.findings[0].hurt, None);
    assert_ne!(report.verdict_by_harm(), Verdict::Safe);
}
