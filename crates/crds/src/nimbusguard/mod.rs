//! `nimbusguard.io/v1`: scaling by a learner that is kept within bounds.

mod policy;
mod status;

pub use policy::*;
pub use status::*;

/// API group of the kind.
pub const GROUP: &str = "nimbusguard.io";
/// API version of the kind.
pub const VERSION: &str = "v1";
