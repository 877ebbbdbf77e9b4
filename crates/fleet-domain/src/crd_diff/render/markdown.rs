//! For a pull request.

use std::fmt::Write as _;

use super::{place, remarks};
use crate::crd_diff::{
    finding::{Direction, Finding, Impact},
    report::{Report, Verdict},
};

pub fn markdown(report: &Report) -> String {
    let mut out = String::from("## Custom resource definitions\n");
    for (direction, verdict, title) in [
        (Direction::Forward, report.forward, "Upgrade"),
        (Direction::Backward, report.backward, "Rollback"),
    ] {
        let Some(verdict) = verdict else { continue };
        let sign = match verdict {
            Verdict::Breaking => "❌",
            Verdict::Undecidable => "❓",
            Verdict::Safe => "✅",
        };
        let _ = writeln!(out, "\n### {sign} {title}: {}\n", verdict.words());
        let findings: Vec<&Finding> = report
            .findings
            .iter()
            .filter(|finding| finding.direction == direction)
            .collect();
        let (shown, quiet): (Vec<&Finding>, Vec<&Finding>) = findings
            .into_iter()
            .partition(|finding| finding.impact != Impact::Info);
        if !shown.is_empty() {
            out.push_str(
                "| | where | before | after | why, to whom, what to do |\n| --- | --- | --- | --- | --- |\n",
            );
        }
        for finding in shown {
            row(&mut out, finding);
        }
        if !quiet.is_empty() {
            let _ = writeln!(
                out,
                "\n<details><summary>{} changes without effect</summary>\n",
                quiet.len()
            );
            for finding in quiet {
                let _ = writeln!(
                    out,
                    "- {} `{}`: {}",
                    finding.kind.id(),
                    cell(&place(finding)),
                    cell(&finding.after)
                );
            }
            out.push_str("\n</details>\n");
        }
    }
    for point in &report.points_of_no_return {
        let _ = writeln!(
            out,
            "\n**Point of no return** of `{}`: {} ({}).",
            point.crd,
            cell(&point.when),
            cell(&point.because)
        );
    }
    for proof in &report.proofs {
        let _ = writeln!(
            out,
            "\n**Objects** of `{}/{}` in {}: {} checked, {} rejected, {} rejected when changed, {} pruned.",
            proof.crd,
            proof.version,
            cell(&proof.place),
            proof.checked,
            proof.rejected,
            proof.rejected_when_changed,
            proof.pruned
        );
        for object in &proof.objects {
            let namespace = object.namespace.as_deref().unwrap_or("-");
            let _ = writeln!(
                out,
                "- `{namespace}/{}`: {}",
                cell(&object.name),
                cell(&object.reasons.join("; "))
            );
        }
        for note in &proof.notes {
            let _ = writeln!(out, "- {note}");
        }
    }
    for note in &report.notes {
        let _ = writeln!(out, "\n> {}", cell(note));
    }
    out
}

fn row(out: &mut String, finding: &Finding) {
    let mut words = format!(
        "**{}.** {} *{}.* {}",
        finding.class.words(),
        finding.why,
        finding.affects,
        finding.action
    );
    for remark in remarks(finding) {
        let _ = write!(words, " **{remark}.**");
    }
    let _ = write!(words, " `{}`", finding.fingerprint);
    let _ = writeln!(
        out,
        "| {} | `{}` | {} | {} | {} |",
        finding.impact.words(),
        cell(&place(finding)),
        cell(&finding.before),
        cell(&finding.after),
        cell(&words)
    );
}

/// Text that stays inside its cell, whatever a definition holds.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace(['\n', '\r'], " ")
        .replace('<', "&lt;")
}
