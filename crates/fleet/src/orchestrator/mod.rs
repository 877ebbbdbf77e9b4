//! Use cases, one file per noun, and the background tasks. Reads through `infrastructure`, decides with `fleet-domain`,
//! writes in one transaction together with the audit entry and the answer to a repeated request.

pub mod accesses;
pub mod audit;
pub mod clusters;
mod comparisons;
pub mod crds;
mod credentials;
pub mod deployer;
pub mod health;
mod marks;
pub mod operators;
pub mod people;
pub mod proof;
pub mod reach;
pub mod renewal;
pub mod repositories;
pub mod retention;
pub mod schemas;
mod sets;
pub mod tasks;
mod usage;
pub mod waivers;
mod work;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use gantry_fleet_domain::steady::Look;
use gantry_ledger::Signer;
use jiff::{SignedDuration, Timestamp};
use sqlx::PgPool;
use uuid::Uuid;

pub use marks::Marks;
pub use work::{Ask, Begun, Record, Reply, Work};

use crate::{
    infrastructure::{
        charts::Charts,
        keys::Keys,
        passwords::Passwords,
        tokens::{FileIssuer, Verifier},
    },
    metrics::Metrics,
    settings::{Limits, Rates, Retention},
};

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What background work is recorded under.
pub const SYSTEM: &str = "system:fleet";

/// Everything that use cases work with.
pub struct Fleet {
    pub pool: PgPool,
    pub keys: Keys,
    pub verifier: Verifier,
    pub issuer: Option<FileIssuer>,
    pub passwords: Passwords,
    pub charts: Charts,
    pub signer: Option<Signer>,
    pub clock: Clock,
    pub metrics: Metrics,
    pub limits: Limits,
    pub rates: Rates,
    pub allow: gantry_fleet_domain::kubeconfig::Allow,
    pub token_lifetime: SignedDuration,
    pub health_interval: SignedDuration,
    pub refresh_interval: SignedDuration,
    pub prove_within: Duration,
    pub retention: Retention,
    /// The cluster role that a deployer is bound to while a deployment runs.
    pub deployer_role: String,
    /// This process, in leases.
    pub holder: Uuid,
    pub connections: reach::Connections,
    pub marks: marks::Marks,
    /// A clock that nobody can set, and the last look at all of them.
    pub started: Instant,
    pub last_look: Mutex<Option<Look>>,
}

impl Fleet {
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }
}
