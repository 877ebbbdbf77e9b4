//! A client for unit tests whose API server is a function.

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower::BoxError;

pub enum Answer {
    Says(u16, Value),
    /// These events, then silence.
    Watch(Vec<Value>),
    /// Nobody is there.
    Refused,
    /// The answer never comes.
    Silence,
}

impl Answer {
    pub fn refusal(code: u16) -> Self {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Stub", "message": "stub",
        });
        Self::Says(code, status)
    }
}

/// `answer` gets the method and the path with its query.
pub fn client(answer: impl Fn(&Method, &str) -> Answer + Clone + Send + 'static) -> Client {
    reader(move |method, path, _| answer(method, path))
}

/// The same with the body, which is null where there is none.
pub fn reader(answer: impl Fn(&Method, &str, Value) -> Answer + Clone + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path_and_query().map(ToString::to_string);
            let body = body.collect().await?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let answer = answer(&parts.method, &path.unwrap_or_default(), body);
            let (code, lines, goes_on) = match answer {
                Answer::Says(code, body) => (code, vec![body], false),
                Answer::Watch(events) => (200, events, true),
                Answer::Refused => return Err(BoxError::from("connection refused")),
                Answer::Silence => std::future::pending().await,
            };
            let lines = lines.into_iter().map(|line| Bytes::from(format!("{line}\n")));
            let frames = futures::stream::iter(lines.map(|line| Ok::<_, BoxError>(Frame::data(line))));
            let frames = if goes_on {
                frames.chain(futures::stream::pending()).boxed()
            } else {
                frames.boxed()
            };
            let response = Response::builder().status(code);
            Ok(response.body(BodyExt::boxed_unsync(StreamBody::new(frames)))?)
        }
    });
    Client::new(service, "default")
}
