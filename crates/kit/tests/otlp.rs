//! Spans reach a collector over the real protocol, and a collector that is not there holds nothing up.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use gantry_kit::telemetry::{self, Format};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use tonic::{Request, Response, Status};

#[derive(Clone, Default)]
struct Collector {
    received: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_a_collector_that_comes_late() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let endpoint = format!("http://{address}");
    let telemetry = telemetry::init("gantry-test", "info", Format::Json, Some(&endpoint));

    let started = Instant::now();
    tracing::info_span!("reconcile", kind = "mcpserver", object = "ns/a").in_scope(|| {});
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "nobody waits for a collector"
    );

    let collector = Collector::default();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(collector.clone()))
            .serve(address),
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Flushes, also what was recorded before the collector came.
    tokio::task::spawn_blocking(move || drop(telemetry))
        .await
        .expect("flushed");

    let received = collector.received.lock().expect("no panic");
    let spans: Vec<_> = received
        .iter()
        .flat_map(|request| &request.resource_spans)
        .collect();
    let services: Vec<String> = spans
        .iter()
        .filter_map(|spans| spans.resource.as_ref())
        .flat_map(|resource| &resource.attributes)
        .filter(|attribute| attribute.key == "service.name")
        .map(|attribute| format!("{:?}", attribute.value))
        .collect();
    assert!(
        services.iter().any(|service| service.contains("gantry-test")),
        "{services:?}"
    );
    let span = spans
        .iter()
        .flat_map(|spans| &spans.scope_spans)
        .flat_map(|scope| &scope.spans)
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
