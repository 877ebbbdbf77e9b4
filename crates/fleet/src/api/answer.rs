//! What every answer has: a trace id, a problem body when something went wrong, and headers that keep browsers in line.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use gantry_fleet_api::{Problem, ProblemBody};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use tracing::Instrument as _;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use uuid::Uuid;

use super::App;
use crate::{Error, infrastructure::trace, orchestrator::Reply};

/// The trace that a request belongs to: that of the caller, if it came with one.
#[derive(Clone, Debug)]
pub struct Trace {
    pub id: String,
    span: String,
    flags: TraceFlags,
    /// What the caller's tracing systems keep in it; passed on as it is.
    state: TraceState,
    /// It is the caller's, and not one of our own.
    is_given: bool,
}

impl Trace {
    /// From a W3C `traceparent` and `tracestate`, or a new one.
    fn of(headers: &HeaderMap) -> Self {
        let text = headers.get(trace::PARENT).and_then(|value| value.to_str().ok());
        text.and_then(|text| Self::from_parent(text, headers))
            .unwrap_or_else(|| Self {
                id: Uuid::new_v4().simple().to_string(),
                span: Uuid::new_v4().simple().to_string()[..16].to_owned(),
                flags: TraceFlags::SAMPLED,
                state: TraceState::NONE,
                is_given: false,
            })
    }

    fn from_parent(text: &str, headers: &HeaderMap) -> Option<Self> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        // Versions to come may have more parts; `ff` is none.
        let (id, span, flags) = match parts[..] {
            ["00", id, span, flags] => (id, span, flags),
            ["00" | "ff", ..] => return None,
            [version, id, span, flags, ..] if is_hex(version, 2) => (id, span, flags),
            _ => return None,
        };
        if !is_hex(id, 32) || !is_hex(span, 16) || !(is_hex(flags, 2) || flags == "00") {
            return None;
        }
        let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
        Some(Self {
            id: id.to_owned(),
            span: span.to_owned(),
            flags: flags & TraceFlags::SAMPLED,
            state: state(headers),
            is_given: true,
        })
    }

    /// What our spans hang under, so that they have this id wherever they are sent.
    fn context(&self) -> SpanContext {
        SpanContext::new(
            TraceId::from_hex(&self.id).unwrap_or(TraceId::INVALID),
            SpanId::from_hex(&self.span).unwrap_or(SpanId::INVALID),
            self.flags,
            true,
            self.state.clone(),
        )
    }
}

/// It may come in several headers, which are one list. One that is not as it should be is left out as a whole; the trace goes
/// on without it.
fn state(headers: &HeaderMap) -> TraceState {
    let lines: Option<Vec<&str>> = headers
        .get_all(trace::STATE)
        .iter()
        .map(|value| value.to_str().ok())
        .collect();
    let members = lines.unwrap_or_default().join(",");
    let members: Vec<(&str, &str)> = members
        .split(',')
        .map(str::trim)
        .filter(|member| !member.is_empty())
        // A value with an equals sign is none: what has no value is refused like it.
        .map(|member| member.split_once('=').unwrap_or((member, "=")))
        .collect();
    TraceState::from_key_value(members).unwrap_or_default()
}

/// Digits of this number that are not all zero.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        && text.bytes().any(|byte| byte != b'0')
}

pub async fn traced(mut request: Request, next: Next) -> Response {
    let given = Trace::of(request.headers());
    let span = tracing::info_span!(
        "request",
        trace_id = given.id,
        method = %request.method(),
        path = request.uri().path(),
        user = tracing::field::Empty,
        operator = tracing::field::Empty,
        cluster = tracing::field::Empty,
        crd = tracing::field::Empty,
        version = tracing::field::Empty,
    );
    let context = given.context();
    let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(context.clone()));
    if given.is_given {
        trace::remember(&span, context);
    }
    request.extensions_mut().insert(given);
    next.run(request).instrument(span).await
}

/// What of a request's subject is written into its lines: whoever asks chooses it.
const LONGEST_SUBJECT: usize = 128;

/// Notes what a request is about in its span and in its lines of the log: `operator`, `cluster`, `crd` or `version`.
pub fn about(what: &'static str, name: &str) {
    let short: String = name.chars().take(LONGEST_SUBJECT).collect();
    tracing::Span::current().record(what, short);
}

/// An error travels as itself until the trace id is known.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = StatusCode::from_u16(self.status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            .into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = if self.body.is_empty() {
            status.into_response()
        } else {
            (status, [(header::CONTENT_TYPE, "application/json")], self.body).into_response()
        };
        if let Some(revision) = self.revision {
            put(&mut response, header::ETAG, &etag(revision));
        }
        if self.replayed {
            put(
                &mut response,
                HeaderName::from_static("idempotency-replayed"),
                "true",
            );
        }
        response
    }
}

pub fn etag(revision: i64) -> String {
    format!("\"{revision}\"")
}

pub fn put(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

pub async fn finish(State(app): State<App>, request: Request, next: Next) -> Response {
    let trace = request
        .extensions()
        .get::<Trace>()
        .cloned()
        .unwrap_or_else(|| Trace::of(&HeaderMap::new()));
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<Arc<Error>>() {
        let headers = std::mem::take(response.headers_mut());
        response = problem(&app, &error, &trace);
        for (name, value) in &headers {
            if name != header::CONTENT_LENGTH && name != header::CONTENT_TYPE {
                response.headers_mut().insert(name.clone(), value.clone());
            }
        }
    }
    let headers = response.headers_mut();
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        (
            "content-security-policy",
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
        ("cache-control", "no-store"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if app.secure {
        headers.insert(
            header::STRICT_TRANSPORT_SECURITY,
            HeaderValue::from_static("max-age=31536000; includeSubDomains"),
        );
    }
    put(&mut response, HeaderName::from_static("x-trace-id"), &trace.id);
    response
}

fn problem(app: &App, error: &Error, trace: &Trace) -> Response {
    if error.status() >= 500 {
        // The chain is for the log; callers get the first sentence.
        tracing::error!(
            trace_id = trace.id,
            error = error as &dyn std::error::Error,
            "a request failed"
        );
    }
    let details = match error {
        Error::Invalid(details) | Error::Refused { details, .. } => details.clone(),
        _ => Vec::new(),
    };
    let body = Problem {
        error: ProblemBody {
            code: error.code(),
            message: error.to_string(),
            details,
            trace_id: trace.id.clone(),
            timestamp: app.fleet.now(),
        },
    };
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(body)).into_response();
    match error {
        Error::Unauthorized(_) => put(&mut response, header::WWW_AUTHENTICATE, "Bearer"),
        Error::TooMany { retry_after } => put(&mut response, header::RETRY_AFTER, &retry_after.to_string()),
        Error::Database(_) if error.status() == 503 => put(&mut response, header::RETRY_AFTER, "2"),
        _ => {}
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[(&'static str, &'static str)]) -> Trace {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        Trace::of(&headers)
    }

    #[test]
    fn a_trace_is_taken_over_only_when_it_is_one() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for good in [
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes-later",
        ] {
            assert_eq!(of(&[("traceparent", good)]).id, id);
        }
        for bad in [
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "x",
            "00-<script>-1-1",
            "",
        ] {
            let made = of(&[("traceparent", bad), ("tracestate", "a=b")]);
            assert_eq!(made.id.len(), 32, "{bad}");
            assert!(made.id != id && made.id != "0".repeat(32), "{bad}");
            assert_eq!(made.state.header(), "", "of another trace");
        }
    }

    #[test]
    fn what_the_caller_decided_and_keeps_in_the_trace_is_kept() {
        let parent = |text| ("traceparent", text);
        let yes = parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let no = parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
        assert!(of(&[yes]).flags.is_sampled());
        assert!(!of(&[no]).flags.is_sampled());
        assert!(of(&[]).flags.is_sampled(), "ours to decide");
        let kept = of(&[
            yes,
            ("tracestate", "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE"),
            ("tracestate", "x@y=1"),
        ]);
        assert_eq!(
            kept.state.header(),
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE,x@y=1"
        );
        let broken = of(&[yes, ("tracestate", "NOT A KEY=1")]);
        assert_eq!(
            (broken.state.header().as_str(), broken.flags.is_sampled()),
            ("", true)
        );
    }
}
