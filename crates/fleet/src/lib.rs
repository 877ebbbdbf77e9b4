//! The fleet server: a REST API on PostgreSQL that knows operators, clusters and definitions.
//!
//! Three layers over `fleet-domain`, which decides: `api` extracts, authorises and answers; `orchestrator` has the use cases
//! and background tasks; `infrastructure` talks to PostgreSQL, clusters and chart repositories. Arrows point down only.

pub mod api;
mod error;
pub mod infrastructure;
pub mod metrics;
pub mod orchestrator;
mod serve;
pub mod settings;

pub use error::Error;
pub use serve::{Server, run};
