//! What every Gantry controller needs and none should write again.
//!
//! A controller supplies one function, `reconcile`, made of two steps that do IO and three that are pure (see
//! `ARCHITECTURE.md`). This crate supplies the rest: watching, queueing, retrying, applying a whole wish and pruning
//! what is no longer wished for, conditions, events, the leader lease, telemetry and the admin port.
//!
//! Nothing in here knows a kind. What is specific to one belongs to the operator crate.

pub mod admin;
pub mod apis;
pub mod apply;
pub mod backoff;
pub mod child;
pub mod client;
pub mod conditions;
pub mod controller;
pub mod dependents;
pub mod driver;
pub mod error;
pub mod events;
mod heals;
pub mod leader;
pub mod manager;
pub mod metrics;
pub mod names;
mod optional;
pub mod pods;
pub mod probe;
pub mod project;
pub mod queue;
pub mod references;
pub mod refused;
mod silence;
pub mod store;
#[cfg(test)]
mod stub;
pub mod takeover;
mod team;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod visit_tests;
pub mod watch;
pub mod wish;

pub use apply::Applied;
pub use conditions::{Progress, Truth, Verdict};
pub use controller::{Common, Context, Controller, Outcome};
pub use error::{Error, Result};
pub use manager::{Manager, Options};
pub use store::ObjectKey;
pub use wish::Wish;

/// Prefix of every label and annotation that is ours.
pub const PREFIX: &str = "gantry.dev/";
/// Value of `app.kubernetes.io/managed-by` on every child; the children's watches select on it.
pub const MANAGED_BY: &str = "gantry";
/// Annotation on a root object: `"true"` leaves its children alone until it is removed.
pub const PAUSED: &str = "gantry.dev/paused";
/// Annotation on a foreign object that allows one of our roots (`namespace/name` or `name`) to take it over.
pub const ADOPT: &str = "gantry.dev/adopt";
/// Annotation on a workload: the replicas that its root asks for, or `auto`. While that does not change, whoever scales
/// the workload is left alone.
pub const REPLICAS: &str = "gantry.dev/replicas";
/// Annotation on a workload that an original operator made: digest of the pod template that we would give it. While
/// that does not change, its pods are left as they are.
pub const KEPT_TEMPLATE: &str = "gantry.dev/kept-template";
/// Annotation on a child: digest of the wish that was last applied to it.
pub const WISH: &str = "gantry.dev/wish";
