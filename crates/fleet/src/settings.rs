//! What the server is told at start.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use gantry_fleet_domain::{kubeconfig::Allow, origin::Network};
use jiff::SignedDuration;

use crate::{
    infrastructure::{keys::Keys, tokens::KeySource},
    orchestrator::Clock,
};

/// Below the deadline that every request has.
pub const PROVE_WITHIN: Duration = Duration::from_secs(80);

pub struct Settings {
    pub address: SocketAddr,
    /// Where `/healthz`, `/readyz` and `/metrics` are.
    pub admin_address: Option<SocketAddr>,
    pub tls: Option<TlsFiles>,
    /// Whose word counts for whom they pass on.
    pub trusted_proxies: Vec<Network>,
    /// Serve without TLS on an address that others can reach.
    pub insecure_http: bool,
    pub database_url: String,
    pub database_connections: u32,
    /// To all clusters together.
    pub cluster_connections: u32,
    pub keys: Keys,
    /// Read again when it changes.
    pub key_file: Option<PathBuf>,
    pub tokens: Vec<KeySource>,
    pub token_issuer: String,
    pub token_audience: String,
    /// Signs the tokens of local users; there are none without it.
    pub login_secret: Option<PathBuf>,
    pub token_lifetime: SignedDuration,
    /// Signs heads of the audit log (PEM).
    pub audit_key: Option<String>,
    pub allow: Allow,
    pub limits: Limits,
    pub rates: Rates,
    pub health_interval: SignedDuration,
    pub refresh_interval: SignedDuration,
    /// What is not known of clusters by then is missing in a proof.
    pub prove_within: Duration,
    pub retention: Retention,
    /// The cluster role that a deployer is bound to while a deployment runs.
    pub deployer_role: String,
    pub clock: Clock,
    /// The Helm program that renders templates; without it only plain definitions of a chart are found.
    pub helm: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients must show a certificate of this authority.
    pub client_authority: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub operators: u32,
    pub clusters: u32,
    pub crds_per_operator: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            operators: 500,
            clusters: 100,
            crds_per_operator: 50,
        }
    }
}

/// How long what grows by itself is kept; for ever where it says nothing. Lines of the audit log are always kept: they are
/// the chain. Buckets of requests go when they are full again, hours of accesses when they are entries of the log.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// The erasable part of audit entries.
    pub audit_details: Option<SignedDuration>,
    /// Answers to requests with an `Idempotency-Key`.
    pub answers: SignedDuration,
    /// Waivers, after their last day.
    pub waivers: Option<SignedDuration>,
    /// Schemas of old versions of definitions, unless something still needs them.
    pub schemas: Option<SignedDuration>,
    /// Names of people who are no local users, after the last thing they did.
    pub people: Option<SignedDuration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            audit_details: None,
            answers: SignedDuration::from_hours(24),
            waivers: Some(SignedDuration::from_hours(24 * 90)),
            schemas: None,
            people: None,
        }
    }
}

/// Requests per minute and user, by class of operation.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub read: u32,
    pub write: u32,
    pub register_cluster: u32,
    /// By address (of IPv6 its first half), not by user.
    pub login: u32,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            read: 60,
            write: 30,
            register_cluster: 5,
            login: 10,
        }
    }
}
