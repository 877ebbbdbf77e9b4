//! `kaos.tools/v1alpha1`: agents, the models they ask and the tools they use.
//!
//! Two shapes are in circulation, the one of the seed (generation 0) and today's. Both are accepted; the doc comment
//! of each field says which one is preferred.

mod agent;
mod agent_config;
mod mcpserver;
mod modelapi;

pub use agent::*;
pub use agent_config::*;
pub use mcpserver::*;
pub use modelapi::*;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// API group of the three kinds.
pub const GROUP: &str = "kaos.tools";
/// API version of the three kinds.
pub const VERSION: &str = "v1alpha1";

/// The one word that says how an object of this group is doing; derived from the conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum Phase {
    /// Accepted; its pods are not up yet.
    #[default]
    Pending,
    /// Something that it needs is missing or not ready.
    Waiting,
    /// Everything that it needs is ready, and its pods run.
    Ready,
    /// It cannot work until somebody acts; the message says why.
    Failed,
}

impl Phase {
    /// The word as it stands in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Waiting => "Waiting",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
        }
    }
}
