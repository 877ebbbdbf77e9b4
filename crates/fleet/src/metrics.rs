//! The fleet's own numbers, with the seed's names where it has them (dots become underscores).

use std::time::Duration;

use gantry_kit::metrics::Metrics as Registry;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByOperation {
    operation: &'static str,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfOperation {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByHealth {
    health: &'static str,
}

/// Cheap to clone; every clone counts into the same families.
#[derive(Clone)]
pub struct Metrics {
    requests: Family<ByOperation, Counter>,
    durations: Family<OfOperation, Histogram, fn() -> Histogram>,
    cluster_checks: Family<ByHealth, Counter>,
    cluster_check_duration: Histogram,
    pub clusters_registered: Counter,
    pub crds_validated: Counter,
    pub operators: Gauge,
    pub clusters: Gauge,
    pub database_connections: Gauge,
    pub cluster_connections: Gauge,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let latency = || Histogram::new(exponential_buckets(0.000_5, 2.0, 16));
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(latency as fn() -> Histogram),
            cluster_checks: Family::default(),
            cluster_check_duration: latency(),
            clusters_registered: Counter::default(),
            crds_validated: Counter::default(),
            operators: Gauge::default(),
            clusters: Gauge::default(),
            database_connections: Gauge::default(),
            cluster_connections: Gauge::default(),
        };
        registry.register(|registry| {
            registry.register(
                "gantry_fleet_requests",
                "Requests, by operation and status",
                metrics.requests.clone(),
            );
            registry.register(
                "gantry_fleet_request_duration_seconds",
                "Time to answer a request",
                metrics.durations.clone(),
            );
            registry.register(
                "gantry_fleet_cluster_checks",
                "Looks at clusters, by what was found",
                metrics.cluster_checks.clone(),
            );
            registry.register(
                "gantry_fleet_cluster_check_duration_seconds",
                "Time of one look at a cluster",
                metrics.cluster_check_duration.clone(),
            );
            registry.register(
                "clusters_registered",
                "Clusters that were registered",
                metrics.clusters_registered.clone(),
            );
            registry.register(
                "crds_validated",
                "Schemas that were compared on request",
                metrics.crds_validated.clone(),
            );
            registry.register("operators_count", "Operators", metrics.operators.clone());
            registry.register("clusters_count", "Clusters", metrics.clusters.clone());
            registry.register(
                "gantry_fleet_database_connections",
                "Open connections to the database",
                metrics.database_connections.clone(),
            );
            registry.register(
                "gantry_fleet_cluster_connections",
                "Open connections to clusters",
                metrics.cluster_connections.clone(),
            );
        });
        metrics
    }

    pub fn answered(&self, operation: &'static str, code: u16, took: Duration) {
        self.requests
            .get_or_create(&ByOperation { operation, code })
            .inc();
        self.durations
            .get_or_create(&OfOperation { operation })
            .observe(took.as_secs_f64());
    }

    pub fn looked(&self, health: &'static str, took: Duration) {
        self.cluster_checks.get_or_create(&ByHealth { health }).inc();
        self.cluster_check_duration.observe(took.as_secs_f64());
    }
}
