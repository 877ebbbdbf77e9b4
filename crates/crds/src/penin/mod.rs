//! `penin.ai/v1alpha1`: clusters of the PENIN-Ω services.

mod autoscaling;
mod cluster;
mod config;
mod evolution;
mod services;
mod status;
mod volumes;

pub use autoscaling::*;
pub use cluster::*;
pub use config::*;
pub use evolution::*;
pub use services::*;
pub use status::*;
pub use volumes::*;

/// API group of the kind.
pub const GROUP: &str = "penin.ai";
/// API version of the kind.
pub const VERSION: &str = "v1alpha1";
