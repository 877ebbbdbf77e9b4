//! Spans reach a collector over the real protocol, and a collector that is not there holds nothing up.

#[path = "support/collector.rs"]
mod collector;

use std::time::{Duration, Instant};

use collector::Collector;
use gantry_kit::telemetry::{self, Format};

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_a_collector_that_comes_late() {
    let address = collector::free().expect("a port");
    let endpoint = format!("http://{address}");
    // How few lines somebody wants says nothing of traces.
    let telemetry = telemetry::init("gantry-test", "error", Format::Json, Some(&endpoint));

    let started = Instant::now();
    tracing::info_span!("reconcile", kind = "mcpserver", object = "ns/a").in_scope(|| {});
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "nobody waits for a collector"
    );

    let collector = Collector::default();
    collector.serve(address);
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Flushes, also what was recorded before the collector came.
    tokio::task::spawn_blocking(move || drop(telemetry))
        .await
        .expect("flushed");

    let received = collector.received.lock().expect("no panic").clone();
    let services: Vec<String> = received
        .iter()
        .flat_map(|request| &request.resource_spans)
        .filter_map(|spans| spans.resource.as_ref())
        .flat_map(|resource| &resource.attributes)
        .filter(|attribute| attribute.key == "service.name")
        .map(|attribute| format!("{:?}", attribute.value))
        .collect();
    assert!(
        services.iter().any(|service| service.contains("gantry-test")),
        "{services:?}"
    );
    let spans = collector.spans();
    let span = spans
        .iter()
        .find(|span| span.name == "reconcile")
        .expect("the span");
    assert!(
        span.attributes
            .iter()
            .any(|attribute| attribute.key == "object" && format!("{:?}", attribute.value).contains("ns/a")),
        "{:?}",
        span.attributes
    );
}
