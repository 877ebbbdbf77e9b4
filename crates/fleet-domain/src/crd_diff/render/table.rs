//! For a terminal.

use std::fmt::Write as _;

use super::{place, remarks};
use crate::crd_diff::{
    finding::{Direction, Finding, Impact},
    report::Report,
};

/// Findings in blocks, worst first; those without effect only where `all` is set.
pub fn table(report: &Report, all: bool) -> String {
    let mut out = String::new();
    for (direction, verdict, title) in [
        (Direction::Forward, report.forward, "Upgrade"),
        (Direction::Backward, report.backward, "Rollback"),
    ] {
        let Some(verdict) = verdict else { continue };
        let findings: Vec<&Finding> = report
            .findings
            .iter()
            .filter(|finding| finding.direction == direction)
            .collect();
        let count = |impact: Impact| findings.iter().filter(|f| f.is_open(impact)).count();
        let waived = findings.iter().filter(|finding| finding.waiver.is_some()).count();
        let _ = writeln!(
            out,
            "{title}: {} ({} breaking, {} undecidable, {} warnings, {waived} waived; {} definitions compared)",
            verdict.words().to_uppercase(),
            count(Impact::Breaking),
            count(Impact::Undecidable),
            count(Impact::Warning),
            report.definitions,
        );
        let shown = |finding: &&&Finding| all || finding.impact != Impact::Info;
        for finding in findings.iter().filter(shown) {
            block(&mut out, finding);
        }
        let hidden = findings.iter().filter(|finding| !shown(finding)).count();
        if hidden > 0 {
            let _ = writeln!(
                out,
                "\n{hidden} changes without effect are not shown; --all shows them"
            );
        }
        out.push('\n');
    }
    points(&mut out, report);
    proofs(&mut out, report);
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn block(out: &mut String, finding: &Finding) {
    let _ = writeln!(
        out,
        "\n{:<12} {}  [{}, {}]",
        finding.impact.words().to_uppercase(),
        place(finding),
        finding.kind.id(),
        finding.class.words(),
    );
    let mut row = |label: &str, text: &str| {
        if !text.is_empty() {
            let _ = writeln!(out, "  {label:<12} {text}");
        }
    };
    row("before", &finding.before);
    row("after", &finding.after);
    row("why", &finding.why);
    row("to whom", finding.affects);
    row("what to do", finding.action);
    for remark in remarks(finding) {
        row("note", &remark);
    }
    row("fingerprint", &finding.fingerprint);
}

fn points(out: &mut String, report: &Report) {
    if report.backward.is_none() {
        return;
    }
    if report.points_of_no_return.is_empty() {
        let _ = writeln!(
            out,
            "Point of no return: none, the old definitions take it all back"
        );
    }
    for point in &report.points_of_no_return {
        let _ = writeln!(
            out,
            "Point of no return of {}: {} ({})",
            point.crd, point.when, point.because
        );
    }
    out.push('\n');
}

fn proofs(out: &mut String, report: &Report) {
    for proof in &report.proofs {
        let _ = writeln!(
            out,
            "Objects of {}/{} in {}: {} checked, {} rejected, {} rejected when changed, {} pruned",
            proof.crd,
            proof.version,
            proof.place,
            proof.checked,
            proof.rejected,
            proof.rejected_when_changed,
            proof.pruned
        );
        for object in &proof.objects {
            let namespace = object
                .namespace
                .as_deref()
                .map(|n| format!("{n}/"))
                .unwrap_or_default();
            let _ = writeln!(out, "  {namespace}{}: {}", object.name, object.reasons.join("; "));
        }
        for note in &proof.notes {
            let _ = writeln!(out, "  note: {note}");
        }
    }
}
