//! Findings that somebody has taken responsibility for, one by one.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::{finding::Finding, kind::Kind};

/// One accepted finding. It holds until the end of the day that it names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiver {
    pub fingerprint: String,
    pub approver: String,
    pub reason: String,
    pub expires: Date,
}

/// What a file of waivers holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waivers {
    pub waivers: Vec<Waiver>,
}

/// Marks the findings that are waived, and says in words which waivers did nothing.
pub fn apply(findings: &mut [Finding], waivers: &[Waiver], today: Date) -> Vec<String> {
    let mut notes = Vec::new();
    for waiver in waivers {
        let print = &waiver.fingerprint;
        if waiver.approver.trim().is_empty() || waiver.reason.trim().is_empty() {
            notes.push(format!(
                "waiver {print} is ignored: it needs an approver and a reason"
            ));
            continue;
        }
        if waiver.expires < today {
            notes.push(format!(
                "waiver {print} of {} is ignored: it expired on {}",
                waiver.approver, waiver.expires
            ));
            continue;
        }
        let mut used = false;
        for finding in findings
            .iter_mut()
            .filter(|f| f.fingerprint == *print && f.kind != Kind::TooMany)
        {
            finding.waiver = Some(waiver.clone());
            used = true;
        }
        if !used {
            notes.push(format!(
                "waiver {print} matches nothing here and can be removed from the file"
            ));
        }
    }
    notes
}
