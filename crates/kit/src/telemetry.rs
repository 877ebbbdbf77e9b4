//! Logs and traces: JSON lines, or readable text on a terminal; spans to an OTLP collector when one is named.

use std::{io::IsTerminal, time::Duration};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

/// Flushes what is left when dropped, for a moment at most.
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Auto,
    Json,
    Text,
}

/// Call once, inside the runtime. `RUST_LOG` wins over `level`.
pub fn init(service: &'static str, level: &str, format: Format, otlp_endpoint: Option<&str>) -> Telemetry {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let text = match format {
        Format::Auto => std::io::stderr().is_terminal(),
        Format::Json => false,
        Format::Text => true,
    };
    let lines = if text {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_target(false)
            .boxed()
    } else {
        tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(std::io::stderr)
            .boxed()
    };
    let exporter = otlp_endpoint.map(|endpoint| {
        opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(Duration::from_secs(5))
            .build()
    });
    let (provider, fault) = match exporter {
        Some(Ok(exporter)) => {
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(Resource::builder().with_service_name(service).build())
                .build();
            (Some(provider), None)
        }
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let spans = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer(service)));
    // A second call (in tests) keeps the first subscriber.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .with(spans)
        .try_init();
    if let Some(error) = fault {
        tracing::warn!(%error, "traces are off: the OTLP exporter could not be built");
    }
    Telemetry { provider }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = &self.provider
            && let Err(error) = provider.shutdown_with_timeout(Duration::from_secs(2))
        {
            tracing::debug!(%error, "some spans were not delivered");
        }
    }
}
