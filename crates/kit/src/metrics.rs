//! Prometheus metrics of the controllers. Labels come from closed sets: kinds, reasons, verbs and status codes.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::queue::Queue;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByKind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByResult {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByReason {
    kind: String,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCall {
    method: String,
    code: String,
}

/// The queue of each kind, asked for its depth when somebody looks.
type Queues = Vec<(&'static str, Arc<Queue>)>;

/// Cheap to clone; every clone counts into the same registry.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    reconciles: Family<ByResult, Counter>,
    errors: Family<ByReason, Counter>,
    durations: Family<ByKind, Histogram, fn() -> Histogram>,
    queue_depth: Family<ByKind, Gauge>,
    queues: Arc<Mutex<Queues>>,
    api_requests: Family<ByCall, Counter>,
    watch_errors: Family<ByReason, Counter>,
    leader: Gauge,
    lease_changes: Counter<u64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let durations = Family::new_with_constructor(
            (|| Histogram::new(exponential_buckets(0.000_5, 2.0, 16))) as fn() -> Histogram,
        );
        let metrics = Self {
            reconciles: Family::default(),
            errors: Family::default(),
            durations,
            queue_depth: Family::default(),
            queues: Arc::default(),
            api_requests: Family::default(),
            watch_errors: Family::default(),
            leader: Gauge::default(),
            lease_changes: Counter::default(),
            registry: Arc::default(),
        };
        registry.register(
            "gantry_reconciles",
            "Visits of an object, by kind and result",
            metrics.reconciles.clone(),
        );
        registry.register(
            "gantry_reconcile_errors",
            "Failed visits, by kind and reason",
            metrics.errors.clone(),
        );
        registry.register(
            "gantry_reconcile_duration_seconds",
            "Time of one visit",
            metrics.durations.clone(),
        );
        registry.register(
            "gantry_queue_depth",
            "Objects waiting for a visit",
            metrics.queue_depth.clone(),
        );
        registry.register(
            "gantry_api_requests",
            "Requests to the API server",
            metrics.api_requests.clone(),
        );
        registry.register(
            "gantry_watch_errors",
            "Watches that failed and are retried",
            metrics.watch_errors.clone(),
        );
        registry.register(
            "gantry_leader",
            "1 while this process acts: it holds the lease, or needs none",
            metrics.leader.clone(),
        );
        registry.register(
            "gantry_lease_transitions",
            "Times this process gained or lost the lease",
            metrics.lease_changes.clone(),
        );
        *metrics.registry.lock().unwrap_or_else(PoisonError::into_inner) = registry;
        metrics
    }
}

impl Metrics {
    /// For metrics of one kind's own; names start with `gantry_` or are the seeds' names.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn reconciled(&self, kind: &'static str, error: Option<&str>, took: Duration) {
        let result = if error.is_some() { "error" } else { "ok" };
        self.reconciles.get_or_create(&ByResult { kind, result }).inc();
        self.durations
            .get_or_create(&ByKind { kind })
            .observe(took.as_secs_f64());
        if let Some(reason) = error {
            self.errors
                .get_or_create(&ByReason {
                    kind: kind.to_owned(),
                    reason: reason.to_owned(),
                })
                .inc();
        }
    }

    /// A queue whose depth is told.
    pub fn queue(&self, kind: &'static str, queue: Arc<Queue>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.push((kind, queue));
    }

    /// Looked at when somebody asks: a queue that grows because no worker takes from it is the one to hear of.
    fn measure_queues(&self) {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for (kind, queue) in queues.iter() {
            self.queue_depth
                .get_or_create(&ByKind { kind })
                .set(i64::try_from(queue.depth()).unwrap_or(i64::MAX));
        }
    }

    pub fn api_request(&self, method: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        self.api_requests
            .get_or_create(&ByCall {
                method: method.to_owned(),
                code,
            })
            .inc();
    }

    pub fn watch_failed(&self, kind: &str, reason: &str) {
        self.watch_errors
            .get_or_create(&ByReason {
                kind: kind.to_owned(),
                reason: reason.to_owned(),
            })
            .inc();
    }

    /// There is no lease, and nobody else.
    pub fn leads_alone(&self) {
        self.leader.set(1);
    }

    pub fn leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
        self.lease_changes.inc();
    }

    pub fn render(&self) -> String {
        self.measure_queues();
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = encode(&mut text, &registry) {
            let _ = write!(text, "# {error}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_rendered() {
        let metrics = Metrics::default();
        metrics
            .clone()
            .reconciled("mcpserver", Some("Conflict"), Duration::from_millis(3));
        metrics.api_request("PATCH", Some(409));
        metrics.leader(true);
        let text = metrics.render();
        for line in [
            "gantry_reconciles_total{kind=\"mcpserver\",result=\"error\"} 1",
            "gantry_reconcile_errors_total{kind=\"mcpserver\",reason=\"Conflict\"} 1",
            "gantry_api_requests_total{method=\"PATCH\",code=\"409\"} 1",
            "gantry_leader 1",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }

    #[test]
    fn a_queue_that_nobody_takes_from_is_seen_to_grow() {
        let (metrics, queue) = (Metrics::default(), Arc::new(Queue::default()));
        metrics.queue("mcpserver", queue.clone());
        for depth in 0..3 {
            let line = format!("gantry_queue_depth{{kind=\"mcpserver\"}} {depth}");
            let text = metrics.render();
            assert!(text.contains(&line), "{line} not in\n{text}");
            queue.add(crate::ObjectKey::new("ns", depth.to_string()));
        }
    }
}
