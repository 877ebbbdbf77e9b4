//! `ollama.ayaka.io/v1`: models served by Ollama.

mod autoscaling;
mod claim;
mod model;
mod network;
mod store;

pub use autoscaling::ModelAutoscaling;
pub use claim::{Claim, ClaimError};
pub use model::*;
pub use network::*;
pub use store::*;

/// API group of the kind.
pub const GROUP: &str = "ollama.ayaka.io";
/// API version of the kind.
pub const VERSION: &str = "v1";
