//! The admin port: `/healthz`, `/readyz` and `/metrics`.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::sync::Notify;

use crate::metrics::Metrics;

/// Begins the names of gates that only readiness waits for: a port that is not served yet keeps no controller from work.
pub const SERVING: &str = "serving ";

/// Ready when every gate is open. Who is still waiting, and for what, is told by `/readyz`.
#[derive(Clone, Default)]
pub struct Readiness {
    gates: Arc<Mutex<BTreeMap<String, Option<String>>>>,
    opened: Arc<Notify>,
}

/// Held by whoever must have started before the process is ready.
#[derive(Clone)]
pub struct Gate {
    name: String,
    readiness: Readiness,
}

impl Readiness {
    /// A closed gate.
    pub fn gate(&self, name: impl Into<String>) -> Gate {
        let gate = Gate {
            name: name.into(),
            readiness: self.clone(),
        };
        gate.set(Some("starting".to_owned()));
        gate
    }

    /// Resolves when none of the gates whose name `concerns` picks is closed.
    pub async fn until_open(&self, concerns: impl Fn(&str) -> bool) {
        loop {
            let opened = self.opened.notified();
            {
                let gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
                if gates.iter().all(|(name, why)| why.is_none() || !concerns(name)) {
                    return;
                }
            }
            opened.await;
        }
    }

    /// What is still waited for; empty when ready.
    pub fn waiting(&self) -> Vec<String> {
        let gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates
            .iter()
            .filter_map(|(name, why)| why.as_ref().map(|why| format!("{name}: {why}")))
            .collect()
    }
}

impl Gate {
    pub fn open(&self) {
        self.set(None);
        self.readiness.opened.notify_waiters();
    }

    /// For work without which the process is of no use, also after it was ready.
    pub fn close(&self, why: String) {
        self.set(Some(why));
    }

    /// Says what is waited for. A gate that was open stays open: a passing fault of one watch must not take a working
    /// operator out of service.
    pub fn wait_for(&self, what: String) {
        let mut gates = self
            .readiness
            .gates
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(why)) = gates.get_mut(&self.name) {
            *why = what;
        }
    }

    fn set(&self, why: Option<String>) {
        self.readiness
            .gates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(self.name.clone(), why);
    }
}

/// Serves until the process ends.
pub async fn serve(address: SocketAddr, readiness: Readiness, metrics: Metrics) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    serve_on(listener, readiness, metrics).await
}

/// The same on a port that is open already.
pub async fn serve_on(
    listener: tokio::net::TcpListener,
    readiness: Readiness,
    metrics: Metrics,
) -> std::io::Result<()> {
    tracing::info!(address = %listener.local_addr()?, "admin port open");
    axum::serve(listener, router(readiness, metrics)).await
}

fn router(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(|State(readiness): State<Readiness>| async move {
                let waiting = readiness.waiting();
                if waiting.is_empty() {
                    (StatusCode::OK, "ok\n".to_owned())
                } else {
                    (
                        StatusCode::SERVICE_UNAVAILABLE,
                        format!("waiting for:\n{}\n", waiting.join("\n")),
                    )
                }
            }),
        )
        .with_state(readiness)
        .route(
            "/metrics",
            get(|State(metrics): State<Metrics>| async move {
                let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                ([("content-type", kind)], metrics.render())
            })
            .with_state(metrics),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_gate_is_open_and_stays_so() {
        let readiness = Readiness::default();
        let first = readiness.gate("mcpserver");
        let second = readiness.gate("deployments");
        first.wait_for("CRD".into());
        assert_eq!(readiness.waiting(), ["deployments: starting", "mcpserver: CRD"]);
        first.open();
        second.open();
        first.wait_for("a passing fault".into());
        assert!(readiness.waiting().is_empty());
    }
}
