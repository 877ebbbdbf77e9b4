//! A client that goes wrong on purpose, for sweeping controllers with every fault an API server and a network can show.
//!
//! Requests pass through a list of rules. The first that matches decides what happens; a rule is used up after the
//! number of times it was made for. Every write is logged, so that tests can say "no writes at rest" or "stop after the
//! third one". Around the faults is what the operator has around the network: requests are counted, what a busy server asks
//! for is understood, and silence is not borne for ever.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture};
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, Config, client::Body};
use serde_json::json;
use tokio::sync::watch;
use tower::{BoxError, Layer, Service};

use crate::{client, error::Result, metrics::Metrics};

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server answers with this status and does nothing.
    Answer(u16),
    /// The server is too busy, and asks in a header to be left alone for so many seconds.
    Busy(u32),
    /// The server is slow.
    Delay(Duration),
    /// The request never arrives.
    Drop,
    /// The request is carried out, but its answer is lost.
    LoseReply,
    /// The answer never comes; nor does an error.
    Hang,
    /// A list or read shows what it showed when it was first asked for since [`Faults::remember`]. What was not asked for
    /// then is let through, and the fault waits for what was.
    Stale,
    /// A watch is answered, and then tells nothing, nor does it end.
    MuteWatch,
    /// A watch ends after this many events.
    CutWatch(usize),
    /// A watch ends after this many events with "too old": what happened meanwhile is seen only as its outcome.
    ExpireWatch(usize),
    /// Every event of a watch comes this much later.
    LateWatch(Duration),
}

/// Which requests, and how many of them.
#[derive(Clone, Debug)]
pub struct Rule {
    pub fault: Fault,
    pub method: Option<Method>,
    /// Part of the path and query.
    pub path: String,
    /// Matching requests that pass before the fault strikes.
    pub skip: usize,
    pub times: usize,
}

impl Rule {
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            method: None,
            path: String::new(),
            skip: 0,
            times: 1,
        }
    }

    #[must_use]
    pub fn on(mut self, method: Method, path: &str) -> Self {
        self.method = Some(method);
        path.clone_into(&mut self.path);
        self
    }

    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    #[must_use]
    pub fn skip(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }
}

/// A write that reached the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub method: Method,
    pub path: String,
    pub status: u16,
    /// When it was answered.
    pub at: Instant,
}

/// A request that a fault struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struck {
    pub fault: Fault,
    pub method: Method,
    pub path: String,
    pub at: Instant,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    struck: Vec<Struck>,
    writes: Vec<Write>,
    /// Writes that may still happen before the process counts as dead.
    writes_left: Option<usize>,
    dead: bool,
    remembering: bool,
    memory: HashMap<String, Bytes>,
}

/// Shared by the client and the test.
#[derive(Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    blind: Arc<watch::Sender<bool>>,
    silence: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            blind: Arc::default(),
            silence: client::SILENCE,
        }
    }
}

impl Faults {
    /// With a client that bears less silence than the operator's.
    #[must_use]
    pub fn with_silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// The operator's client, whose requests pass through these rules before they reach the network.
    pub fn client(&self, config: Config, metrics: &Metrics) -> Result<Client> {
        let layer = FaultLayer { faults: self.clone() };
        client::build_above(&layer, config, metrics, self.silence)
    }

    pub fn inject(&self, rule: Rule) {
        self.lock().rules.push(rule);
    }

    /// Lets `count` more writes through; after the last one is answered, nothing of this process gets out any more.
    pub fn die_after(&self, count: usize) {
        let mut state = self.lock();
        state.writes_left = Some(count);
        state.dead = count == 0;
    }

    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// From now on keeps the first answer to each list and read, for [`Fault::Stale`].
    pub fn remember(&self) {
        let mut state = self.lock();
        state.remembering = true;
        state.memory.clear();
    }

    /// Whether a list or read of this path can be shown again.
    pub fn remembers(&self, path: &str) -> bool {
        self.lock().memory.keys().any(|known| known.ends_with(path))
    }

    /// While this holds, no watch tells anything. What was missed is told by none later: those watches end with "too old".
    pub fn be_blind(&self, blind: bool) {
        self.blind.send_replace(blind);
    }

    pub fn writes(&self) -> Vec<Write> {
        self.lock().writes.clone()
    }

    /// The requests that did not go as they would have, in their order.
    pub fn struck(&self) -> Vec<Struck> {
        self.lock().struck.clone()
    }

    /// Rules that were never, or not often enough, met: a test that injects a fault can check that it struck.
    pub fn unspent(&self) -> usize {
        self.lock().rules.iter().filter(|rule| rule.times > 0).count()
    }

    /// Back to a faultless world; the log starts anew.
    pub fn reset(&self) {
        *self.lock() = State::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, method: &Method, path: &str) -> Option<Fault> {
        let mut state = self.lock();
        if state.dead {
            return Some(Fault::Hang);
        }
        let State {
            rules,
            struck,
            memory,
            ..
        } = &mut *state;
        let rule = rules.iter_mut().find(|rule| {
            rule.times > 0
                && rule.method.as_ref().is_none_or(|wanted| wanted == method)
                && path.contains(&rule.path)
                && (rule.fault != Fault::Stale || memory.contains_key(&subject(path)))
        })?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        struck.push(Struck {
            fault: rule.fault.clone(),
            method: method.clone(),
            path: path.to_owned(),
            at: Instant::now(),
        });
        Some(rule.fault.clone())
    }

    fn log(&self, method: Method, path: String, status: u16) {
        // The lease is housekeeping and events are announcements: neither is what a controller decides.
        if method == Method::GET || path.contains("/leases") || path.contains("/events") {
            return;
        }
        let mut state = self.lock();
        state.writes.push(Write {
            method,
            path,
            status,
            at: Instant::now(),
        });
        if let Some(left) = &mut state.writes_left {
            *left = left.saturating_sub(1);
            state.dead = *left == 0;
        }
    }
}

#[derive(Clone)]
struct FaultLayer {
    faults: Faults,
}

impl<S> Layer<S> for FaultLayer {
    type Service = FaultService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FaultService {
            inner,
            faults: self.faults.clone(),
        }
    }
}

struct FaultService<S> {
    inner: S,
    faults: Faults,
}

type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

impl<S, B> Service<Request<Body>> for FaultService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    type Response = Response<AnyBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        let path = request
            .uri()
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default();
        let fault = self.faults.decide(&method, &path);
        let faults = self.faults.clone();
        match &fault {
            Some(Fault::Answer(code)) => {
                let code = *code;
                return Box::pin(async move { Ok(answer(code)) });
            }
            Some(Fault::Busy(seconds)) => {
                let seconds = *seconds;
                return Box::pin(async move { Ok(busy(seconds)) });
            }
            Some(Fault::Drop) => return Box::pin(async { Err("connection refused (injected)".into()) }),
            Some(Fault::Hang) => return Box::pin(std::future::pending()),
            Some(Fault::Stale) => {
                let key = subject(&path);
                if let Some(known) = faults.lock().memory.get(&key).cloned() {
                    return Box::pin(async move { Ok(Response::new(whole(known))) });
                }
            }
            _ => {}
        }
        let reply = self.inner.call(request);
        Box::pin(async move {
            if let Some(Fault::Delay(delay)) = fault {
                tokio::time::sleep(delay).await;
            }
            let response = reply.await?;
            faults.log(method.clone(), path.clone(), response.status().as_u16());
            if fault == Some(Fault::LoseReply) {
                return Err("connection reset (injected)".into());
            }
            let response = response.map(BodyExt::boxed_unsync);
            let is_watch = path.contains("watch=true");
            match fault {
                Some(Fault::CutWatch(after)) if is_watch => Ok(response.map(|body| cut(body, after, None))),
                Some(Fault::ExpireWatch(after)) if is_watch => {
                    Ok(response.map(|body| cut(body, after, Some(expired()))))
                }
                Some(Fault::MuteWatch) if is_watch => Ok(response.map(|_| mute())),
                Some(Fault::LateWatch(lag)) if is_watch => Ok(response.map(|body| late(body, lag))),
                _ if is_watch => Ok(response.map(|body| hidden(body, faults.blind.subscribe()))),
                _ if method == Method::GET => remembered(&faults, &path, response).await,
                _ => Ok(response),
            }
        })
    }
}

async fn remembered(
    faults: &Faults,
    path: &str,
    response: Response<AnyBody>,
) -> Result<Response<AnyBody>, BoxError> {
    if !faults.lock().remembering {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await?.to_bytes();
    if parts.status.is_success() {
        faults
            .lock()
            .memory
            .entry(subject(path))
            .or_insert_with(|| bytes.clone());
    }
    Ok(Response::from_parts(parts, whole(bytes)))
}

/// What was asked for, without paging and versions.
fn subject(path: &str) -> String {
    path.split('?').next().unwrap_or(path).to_owned()
}

fn whole(bytes: Bytes) -> AnyBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn answer(code: u16) -> Response<AnyBody> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Injected",
        "message": format!("injected {code}"),
    });
    let mut response = Response::new(whole(Bytes::from(body.to_string())));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// As a server says it that sheds load.
fn busy(seconds: u32) -> Response<AnyBody> {
    let prose = Bytes::from_static(b"Too many requests, please try again later.\n");
    let mut response = Response::new(whole(prose));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(RETRY_AFTER, seconds.into());
    response
}

fn mute() -> AnyBody {
    let nothing = futures::stream::pending::<Result<Frame<Bytes>, BoxError>>();
    BodyExt::boxed_unsync(StreamBody::new(nothing))
}

fn expired() -> Bytes {
    let event = json!({"type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version (injected)",
    }});
    Bytes::from(format!("{event}\n"))
}

/// Lets `after` events of a watch through, then perhaps `last`, then ends it. Events are lines.
fn cut(body: AnyBody, after: usize, last: Option<Bytes>) -> AnyBody {
    let start = (BodyStream::new(body), after, last, false);
    let frames = futures::stream::unfold(start, |(mut frames, mut left, mut last, mut over)| async move {
        if over {
            return None;
        }
        let frame = match frames.next().await? {
            Ok(frame) => frame,
            Err(error) => return Some((Err(error), (frames, left, last, over))),
        };
        let data = frame.into_data().unwrap_or_default();
        let mut kept = Vec::new();
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            if left == 0 {
                over = true;
                kept.extend(last.take().unwrap_or_default());
                break;
            }
            kept.extend_from_slice(line);
            if line.ends_with(b"\n") && !line.windows(8).any(|part| part == b"BOOKMARK") {
                left -= 1;
            }
        }
        Some((Ok(Frame::data(Bytes::from(kept))), (frames, left, last, over)))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames.boxed()))
}

/// Events that come while `blind` holds are lost, and afterwards the watch has expired.
fn hidden(body: AnyBody, blind: watch::Receiver<bool>) -> AnyBody {
    let start = (BodyStream::new(body), blind, false, false);
    let frames = futures::stream::unfold(start, |(mut frames, mut blind, mut missed, over)| async move {
        if over {
            return None;
        }
        loop {
            tokio::select! {
                Ok(()) = blind.changed() => {}
                frame = frames.next() => {
                    if !*blind.borrow() {
                        return Some((frame?, (frames, blind, missed, false)));
                    }
                    missed = true;
                }
            }
            if missed && !*blind.borrow() {
                return Some((Ok(Frame::data(expired())), (frames, blind, missed, true)));
            }
        }
    });
    BodyExt::boxed_unsync(StreamBody::new(frames.boxed()))
}

/// What comes is told `lag` later, in order.
fn late(body: AnyBody, lag: Duration) -> AnyBody {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut frames = BodyStream::new(body);
        while let Some(frame) = frames.next().await {
            if sender.send((tokio::time::Instant::now() + lag, frame)).is_err() {
                break;
            }
        }
    });
    let frames = futures::stream::unfold(receiver, |mut receiver| async move {
        let (due, frame) = receiver.recv().await?;
        tokio::time::sleep_until(due).await;
        Some((frame, receiver))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames.boxed()))
}
