//! The trace goes on where we ask others: API servers and chart repositories are told which span they are asked from.

use http::{HeaderMap, HeaderValue, Request};
use opentelemetry::trace::{SpanContext, TraceContextExt as _};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Registry, registry::LookupSpan as _};

pub const PARENT: &str = "traceparent";
pub const STATE: &str = "tracestate";

/// The caller's place in its trace, beside the span of the request.
struct Caller(SpanContext);

/// Keeps with a span where its caller is: where spans are sent nowhere, that is all there is to pass on.
pub fn remember(span: &tracing::Span, caller: SpanContext) {
    span.with_subscriber(|(id, dispatch)| {
        if let Some(span) = dispatch
            .downcast_ref::<Registry>()
            .and_then(|registry| registry.span(id))
        {
            span.extensions_mut().replace(Caller(caller));
        }
    });
}

/// Of the request that the span we are in belongs to.
fn caller() -> Option<SpanContext> {
    let found = tracing::Span::current().with_subscriber(|(id, dispatch)| {
        let span = dispatch.downcast_ref::<Registry>()?.span(id)?;
        span.scope()
            .find_map(|span| Some(span.extensions().get::<Caller>()?.0.clone()))
    });
    found.flatten()
}

/// W3C trace context of the span that we are in, with what others keep in it. While spans are not sent anywhere, that of our
/// caller as it came; nothing where there was none.
pub fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    let context = tracing::Span::current().context();
    let ours = Some(context.span().span_context().clone()).filter(SpanContext::is_valid);
    let Some(span) = ours.or_else(caller) else {
        return headers;
    };
    let flags = span.trace_flags().to_u8();
    let parent = format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id());
    for (name, text) in [(PARENT, parent), (STATE, span.trace_state().header())] {
        if let Ok(value) = HeaderValue::from_str(&text)
            && !text.is_empty()
        {
            headers.insert(name, value);
        }
    }
    headers
}

/// Puts it on a request.
pub fn put_on<B>(mut request: Request<B>) -> Request<B> {
    request.headers_mut().extend(headers());
    request
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState, TracerProvider as _};
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn what_is_asked_of_others_belongs_to_the_trace_that_asked_us() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let remote = SpanContext::new(
            TraceId::from_hex(id).unwrap(),
            SpanId::from_hex("00f067aa0ba902b7").unwrap(),
            TraceFlags::SAMPLED,
            true,
            TraceState::from_key_value([("rojo", "1"), ("congo", "2")]).unwrap(),
        );
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::info_span!("request");
            let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(remote));
            let asked = span.in_scope(|| put_on(Request::new(())));
            let parent = asked.headers()[PARENT].to_str().unwrap();
            assert!(parent.starts_with(&format!("00-{id}-")), "{parent}");
            assert!(
                !parent.contains("00f067aa0ba902b7"),
                "the span is our own: {parent}"
            );
            assert!(parent.ends_with("-01"), "{parent}");
            assert_eq!(asked.headers()[STATE], "rojo=1,congo=2");
        });
        assert!(
            put_on(Request::new(())).headers().is_empty(),
            "no trace, no header"
        );
    }
    #[test]
    fn without_a_collector_the_callers_trace_is_passed_on_as_it_came() {
        let remote = SpanContext::new(
            TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap(),
            SpanId::from_hex("00f067aa0ba902b7").unwrap(),
            TraceFlags::SAMPLED,
            true,
            TraceState::from_key_value([("rojo", "1")]).unwrap(),
        );
        tracing::subscriber::with_default(tracing_subscriber::registry(), || {
            let span = tracing::info_span!("request");
            remember(&span, remote);
            let asked = span.in_scope(|| tracing::info_span!("inner").in_scope(|| put_on(Request::new(()))));
            assert_eq!(
                asked.headers()[PARENT],
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            );
            assert_eq!(asked.headers()[STATE], "rojo=1");
            let other = tracing::info_span!("another request");
            let asked = other.in_scope(|| put_on(Request::new(())));
            assert!(asked.headers().is_empty(), "it came without a trace");
        });
    }
}
