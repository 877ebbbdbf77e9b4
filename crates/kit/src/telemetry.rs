//! Logs and traces: JSON lines, or readable text on a terminal; spans to an OTLP collector when one is named.

use std::{io::IsTerminal, time::Duration};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::{
    Event, Level, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::Interest,
};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{
        FmtContext, FormatEvent, FormattedFields, MakeWriter,
        format::{self, JsonFields, Writer},
    },
    layer::{Context, SubscriberExt},
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

/// Call once, inside the runtime. `RUST_LOG` wins over `level`; both are about lines, and spans are there with any.
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
        .with(AndSpans(filter))
        .with(lines)
        .with(spans)
        .try_init();
    if let Some(error) = fault {
        tracing::warn!(%error, "traces are off: the OTLP exporter could not be built");
    }
    Telemetry { provider }
}

/// Lets through of events what a filter does, and of spans also those that are always of use, however few lines somebody
/// wants: they are what a collector gets, what is passed on to others, and who and what the few lines are about.
///
/// It is one filter for everything and not one of each layer's own: those lose lines that follow a question whether
/// something would be logged (`tracing::enabled!`).
struct AndSpans(EnvFilter);

impl AndSpans {
    fn is_of_use(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && *metadata.level() <= Level::INFO
    }
}

impl<S: Subscriber> Layer<S> for AndSpans {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // It has to know of each, for what it lets through within some spans only.
        let interest = Layer::<S>::register_callsite(&self.0, metadata);
        if Self::is_of_use(metadata) {
            Interest::always()
        } else {
            interest
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        Self::is_of_use(metadata) || Layer::<S>::enabled(&self.0, metadata, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let most = Layer::<S>::max_level_hint(&self.0)?;
        Some(most.max(LevelFilter::INFO))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        Layer::<S>::on_new_span(&self.0, attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        Layer::<S>::on_record(&self.0, id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        Layer::<S>::on_enter(&self.0, id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        Layer::<S>::on_exit(&self.0, id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        Layer::<S>::on_close(&self.0, id, context);
    }
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

    impl Written {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }

        fn lines(&self) -> Vec<Value> {
            let text = self.text();
            text.lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        }
    }

    /// What is written, of a span and of events of all levels in it.
    fn said(filter: impl Layer<tracing_subscriber::Registry> + Send + Sync, has_spans: bool) -> Vec<Value> {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::registry()
            .with(filter)
            .with(json_lines(move || writer.clone()));
        tracing::subscriber::with_default(lines, || {
            let request = tracing::info_span!("request", trace_id = "abc", user = "jo");
            assert!(!has_spans || !request.is_disabled());
            let _inside = request.entered();
            // Asked by some before they take the trouble; it must not change what comes after.
            assert!(!tracing::enabled!(Level::TRACE));
            tracing::error!("error");
            tracing::warn!("warn");
            tracing::info!("info");
            tracing::debug!("debug");
        });
        written.lines()
    }

    #[test]
    fn who_wants_few_lines_has_all_spans() {
        for filter in [
            "error",
            "warn",
            "info",
            "debug",
            "off",
            "warn,gantry_kit=info",
            "off,[request{user=jo}]=debug",
        ] {
            let plain = said(EnvFilter::new(filter), false);
            let ours = said(AndSpans(EnvFilter::new(filter)), true);
            let texts = |lines: &[Value]| -> Vec<Value> {
                lines.iter().map(|line| line["message"].clone()).collect()
            };
            assert_eq!(texts(&ours), texts(&plain), "{filter}");
            for line in &ours {
                assert_eq!((&line["trace_id"], &line["user"]), (&"abc".into(), &"jo".into()));
            }
        }
        let few = said(AndSpans(EnvFilter::new("warn")), true);
        assert_eq!(few.len(), 2, "{few:?}");
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
        let (text, lines) = (written.text(), written.lines());
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
