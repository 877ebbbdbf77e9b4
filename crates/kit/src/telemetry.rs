//! Logs and traces: JSON lines, or readable text on a terminal; spans to an OTLP collector when one is named.

use std::{io::IsTerminal, time::Duration};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{
        FmtContext, FormatEvent, FormattedFields, MakeWriter,
        format::{self, JsonFields, Writer},
    },
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// Fields of spans that every line within them has as its own, so that lines of one request are found by them.
const EVERYWHERE: [&str; 6] = ["trace_id", "user", "operator", "cluster", "crd", "version"];

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
        json_lines(std::io::stderr).boxed()
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

/// One JSON object a line.
pub fn json_lines<S, W>(writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: for<'w> MakeWriter<'w> + 'static,
{
    tracing_subscriber::fmt::layer()
        .fmt_fields(JsonFields::new())
        .event_format(Lines(format::format().json().flatten_event(true)))
        .with_writer(writer)
}

/// JSON lines as they come with the library, with some fields of their spans beside their own.
struct Lines(format::Format<format::Json>);

impl<S> FormatEvent<S, JsonFields> for Lines
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        let Some(open) = line.trim_end().strip_suffix('}') else {
            return writer.write_str(&line);
        };
        writer.write_str(open)?;
        let own = event.metadata().fields();
        for name in EVERYWHERE.iter().filter(|name| own.field(**name).is_none()) {
            if let Some(value) = of_spans(context, name) {
                write!(writer, ",\"{name}\":{value}")?;
            }
        }
        writer.write_str("}\n")
    }
}

/// The field of the innermost span that has it, as JSON.
fn of_spans<S>(context: &FmtContext<'_, S, JsonFields>, name: &str) -> Option<serde_json::Value>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    context.event_scope()?.find_map(|span| {
        let extensions = span.extensions();
        let fields = &extensions.get::<FormattedFields<JsonFields>>()?.fields;
        let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(fields).ok()?;
        fields.remove(name)
    })
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

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex, PoisonError},
    };

    use serde_json::Value;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_a_request_have_its_trace_and_its_user_as_their_own() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::registry().with(json_lines(move || writer.clone()));
        tracing::subscriber::with_default(lines, || {
            tracing::info!("outside");
            let request = tracing::info_span!("request", trace_id = "abc", user = tracing::field::Empty);
            let _inside = request.enter();
            tracing::info!(cluster = "c", "before it is known who asks");
            request.record("user", "jo \"the\" admin");
            let _deeper = tracing::info_span!("cluster.connect", cluster = "c").entered();
            tracing::info!("inside");
            tracing::info!(trace_id = "own", "with its own");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of = |line: usize, name: &str| lines[line][name].as_str();
        assert_eq!(
            (of(0, "message"), of(0, "trace_id"), of(0, "user")),
            (Some("outside"), None, None)
        );
        assert_eq!(
            (of(1, "trace_id"), of(1, "user"), of(1, "cluster")),
            (Some("abc"), None, Some("c"))
        );
        assert_eq!(
            (of(2, "trace_id"), of(2, "user")),
            (Some("abc"), Some("jo \"the\" admin"))
        );
        assert_eq!(of(3, "trace_id"), Some("own"));
        assert_eq!(text.matches("\"own\"").count(), 1, "once");
    }
}
