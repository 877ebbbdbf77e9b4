//! Black-box tests against real API servers: what they share.
//!
//! Each test has a namespace of its own and runs operators that look after that namespace only, as the ServiceAccount
//! that the chart would give them. Clusters are named by environment variables (see `dev/test`); a test whose cluster
//! is not there fails, except for the current CRD server, which cannot be built everywhere.

pub mod cluster;
pub mod fixtures;
pub mod fleet;
pub mod measured;
pub mod operator;
pub mod optional;
pub mod process;
pub mod snapshot;

pub use cluster::{Cluster, eventually, eventually_for};
pub use operator::Running;
