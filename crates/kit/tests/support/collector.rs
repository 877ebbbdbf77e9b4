//! Something that takes spans over the real protocol, and keeps them.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    trace::v1::Span,
};
use tonic::{Request, Response, Status};

#[derive(Clone, Default)]
pub struct Collector {
    pub received: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
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

impl Collector {
    /// Takes what is sent from now on.
    pub fn serve(&self, address: SocketAddr) {
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(TraceServiceServer::new(self.clone()))
                .serve(address),
        );
    }

    pub fn spans(&self) -> Vec<Span> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received
            .iter()
            .flat_map(|request| &request.resource_spans)
            .flat_map(|spans| &spans.scope_spans)
            .flat_map(|scope| scope.spans.clone())
            .collect()
    }
}

/// An address that nobody has.
pub fn free() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}
