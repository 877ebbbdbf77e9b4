//! The custom resources that Gantry serves: their types, defaults, rules, condition and reason names.
//!
//! No client and no runtime: everything here is data, so that the controllers, the command line and the tests can
//! share it. The CRDs themselves come from [`all`]; use those rather than a type's own `crd()`, which lacks the passes
//! of [`schema`].

#![allow(
    clippy::duplicated_attributes,
    reason = "the printer columns of a kind repeat their types"
)]

pub mod common;
pub mod conditions;
pub mod kaos;
mod kind;
pub mod nimbusguard;
mod old_servers;
pub mod ollama;
mod patterns;
pub mod penin;
pub mod schema;
pub mod storage;
pub mod validate;

pub use common::Problem;
pub use kind::{KINDS, Kind, KindInfo, all, crd};
pub use old_servers::strip_for_old_servers;
