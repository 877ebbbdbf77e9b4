//! A report as text: for terminals, pull requests, code scanning and programs.

mod markdown;
mod sarif;
mod table;

pub use markdown::markdown;
pub use sarif::sarif;
pub use table::table;

use super::{finding::Finding, report::Report};

/// The report as it is, for programs.
pub fn json(report: &Report) -> serde_json::Value {
    serde_json::to_value(report).unwrap_or_default()
}

/// Definition, version and path in one.
fn place(finding: &Finding) -> String {
    let mut place = finding.crd.clone();
    if let Some(version) = &finding.version {
        place.push('/');
        place.push_str(version);
    }
    if !finding.path.is_empty() {
        place.push(' ');
        place.push_str(&finding.path);
    }
    place
}

/// Why a finding does not count, or how much it does.
fn remarks(finding: &Finding) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(hurt) = finding.hurt {
        remarks.push(if hurt.objects == 0 {
            format!("hurts none of {} objects that were checked", hurt.checked)
        } else {
            format!(
                "hurts {} of {} objects that were checked",
                hurt.objects, hurt.checked
            )
        });
    }
    if let Some(reason) = &finding.undecidable {
        remarks.push(format!("cannot be decided: {reason}"));
    }
    if let Some(waiver) = &finding.waiver {
        remarks.push(format!(
            "waived by {} until {}: {}",
            waiver.approver, waiver.expires, waiver.reason
        ));
    }
    remarks
}
