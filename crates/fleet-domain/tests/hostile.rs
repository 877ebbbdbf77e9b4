//! The time that a comparison takes grows with the size of the pair and not with its square, whatever the pair says; and
//! no flood of findings hides the one that matters.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod pairs;

use std::time::Duration;

use gantry_fleet_domain::crd_diff::{Kind, Verdict, Waiver};
use pairs::{HOSTILE, Pair, diff, document, on_cpu, size, template};
use serde_json::{Map, Value, json};

/// Four times as much may take four times as long, and some more; with the square of it, it would be sixteen times.
const GROWTH: u32 = 9;
/// Far more than any takes, without optimisation and beside other tests.
const AT_MOST: Duration = Duration::from_secs(20);

fn time(pair: &Pair) -> Duration {
    let start = on_cpu();
    std::hint::black_box(diff(pair));
    on_cpu().saturating_sub(start)
}

fn is_linear(name: &str, one: &Pair, four: &Pair) {
    // What takes next to no time is not judged by its growth.
    let allowed = |short: Duration| (short * GROWTH).max(Duration::from_millis(100)).min(AT_MOST);
    let (mut short, mut long) = (time(one), time(four));
    // Whatever disturbs a run makes it longer, so a few more are tried, and the best counts.
    for _ in 0..4 {
        if long < allowed(short) {
            break;
        }
        short = short.min(time(one));
        long = long.min(time(four));
    }
    println!(
        "{name}: {} kB {short:.1?}, {} kB {long:.1?}",
        size(one) / 1000,
        size(four) / 1000
    );
    assert!(long < allowed(short), "{name}: {long:?} after {short:?}");
}

#[test]
fn ordinary_pairs_take_linear_time() {
    // 3, 12, 48 and so on of the innermost levels.
    let pair = |depth: usize| (template(10, depth, 0), template(10, depth, 20));
    is_linear("template", &pair(2), &pair(3));
    is_linear("template", &pair(3), &pair(4));
}

#[test]
fn hostile_pairs_take_linear_time() {
    for hostile in HOSTILE {
        let pair = |part: usize| (hostile.make)(hostile.full / part);
        is_linear(hostile.name, &pair(32), &pair(8));
    }
}

#[test]
fn a_flood_does_not_hide_a_break() {
    let side = |harmless: &str, kind: &str| -> Value {
        let mut fields: Map<String, Value> = (0..6_000)
            .map(|i| (format!("{harmless}{i}"), json!({"type": "string"})))
            .collect();
        // Last in the order of the walk.
        fields.insert("z".to_owned(), json!({"type": kind}));
        document(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": fields}),
        )
    };
    let report = diff(&(side("a", "string"), side("b", "integer")));
    assert!(report.findings.len() > 5_000 && report.findings.len() < 20_006);
    assert_eq!(report.forward, Some(Verdict::Breaking));
    let open = document(json!({"type": "object", "properties": {"z": {"type": "string"}}}));
    let mut more: Value = side("b", "integer");
    more["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] =
        false.into();
    let report = diff(&(open, more));
    assert_eq!(
        report.forward,
        Some(Verdict::Breaking),
        "fields that are new come first"
    );
}

/// What is not written down is said to be there, and nobody can waive it.
#[test]
fn findings_that_are_cut() {
    let side = |kind: &str| {
        let fields: Map<String, Value> = (0..6_000)
            .map(|i| (format!("f{i}"), json!({"type": kind})))
            .collect();
        document(json!({"type": "object", "properties": fields}))
    };
    let mut report = diff(&(side("string"), side("integer")));
    let told = report
        .findings
        .iter()
        .find(|finding| finding.kind == Kind::TooMany)
        .unwrap();
    assert_eq!(told.after, "1000 more are not written down");
    let waivers: Vec<Waiver> = report
        .findings
        .iter()
        .map(|finding| Waiver {
            fingerprint: finding.fingerprint.clone(),
            approver: "ada".to_owned(),
            reason: "all looked at".to_owned(),
            expires: "2026-12-31".parse().unwrap(),
        })
        .collect();
    report.waive(&waivers, "2026-01-01".parse().unwrap());
    assert_eq!(report.forward, Some(Verdict::Breaking));
}
