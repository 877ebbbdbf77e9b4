//! Controllers of `kaos.tools/v1alpha1`.

pub mod agent;
pub mod mcpserver;
pub mod modelapi;

use gantry_crds::{conditions::reasons, kaos::Phase};

use crate::workload::verdicts::Summary;

/// The seed's word for it, from the conditions and nothing else.
fn phase(summary: &Summary<'_>) -> Phase {
    if summary.is_ready || summary.reason == reasons::SCALED_TO_ZERO {
        Phase::Ready
    } else if summary.is_stalled {
        Phase::Failed
    } else if summary.reason.starts_with("WaitingFor") {
        Phase::Waiting
    } else {
        Phase::Pending
    }
}
