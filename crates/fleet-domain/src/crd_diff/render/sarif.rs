//! SARIF 2.1.0, for code scanning.

use std::fmt::Write as _;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{place, remarks};
use crate::crd_diff::{
    finding::{Finding, Impact},
    kind::Kind,
    report::Report,
};

/// `locate` names the file that a definition was read from, where there is one.
pub fn sarif(report: &Report, version: &str, locate: &dyn Fn(&str) -> Option<String>) -> Value {
    let used: BTreeSet<&str> = report.findings.iter().map(|finding| finding.kind.id()).collect();
    let rules: Vec<Value> = Kind::ALL
        .iter()
        .map(|kind| kind.meaning())
        .filter(|meaning| used.contains(meaning.id))
        .map(|meaning| {
            json!({
                "id": meaning.id,
                "shortDescription": {"text": meaning.id.replace('-', " ")},
                "fullDescription": {"text": meaning.why},
                "help": {"text": meaning.action},
                "defaultConfiguration": {"level": level(meaning.impact)},
            })
        })
        .collect();
    let results: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| result(finding, locate))
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "gantry crds diff", "version": version, "rules": rules}},
            "results": results,
        }],
    })
}

fn result(finding: &Finding, locate: &dyn Fn(&str) -> Option<String>) -> Value {
    let mut text = format!(
        "{}: {} → {}. {} To whom: {}. What to do: {}",
        place(finding),
        finding.before,
        finding.after,
        finding.why,
        finding.affects,
        finding.action
    );
    for remark in remarks(finding) {
        let _ = write!(text, " ({remark})");
    }
    let mut location = json!({
        "logicalLocations": [{"fullyQualifiedName": place(finding), "kind": "type"}],
    });
    if let Some(file) = locate(&finding.crd) {
        location["physicalLocation"] = json!({"artifactLocation": {"uri": file}});
    }
    let mut result = json!({
        "ruleId": finding.kind.id(),
        "level": level(finding.impact),
        "message": {"text": text},
        "locations": [location],
        "partialFingerprints": {"gantry/v1": finding.fingerprint},
        "properties": {
            "class": finding.class,
            "direction": finding.direction,
            "impact": finding.impact,
        },
    });
    if let Some(waiver) = &finding.waiver {
        result["suppressions"] = json!([{
            "kind": "external",
            "status": "accepted",
            "justification": format!("{} (until {}): {}", waiver.approver, waiver.expires, waiver.reason),
        }]);
    }
    result
}

fn level(impact: Impact) -> &'static str {
    match impact {
        Impact::Breaking => "error",
        Impact::Undecidable | Impact::Warning => "warning",
        Impact::Info => "note",
    }
}
