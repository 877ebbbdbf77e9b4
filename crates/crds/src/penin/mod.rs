//! `penin.ai/v1alpha1`: clusters of the PENIN-Ω services, and the changes that they ask for.

mod autoscaling;
mod change;
mod change_status;
mod cluster;
mod config;
mod evolution;
mod services;
mod status;
mod volumes;

pub use autoscaling::*;
pub use change::*;
pub use change_status::*;
pub use cluster::*;
pub use config::*;
pub use evolution::*;
pub use services::*;
pub use status::*;
pub use volumes::*;

/// API group of the kinds.
pub const GROUP: &str = "penin.ai";
/// API version of the kinds.
pub const VERSION: &str = "v1alpha1";
