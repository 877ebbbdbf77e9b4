//! One request from its arrival to the last byte of its answer, and what is counted of it at the end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, StatusCode, header};

use crate::{
    lane::Ticket,
    metrics::{Ending, Metrics, Model},
    route::Route,
    usage::{Framing, Reader, Usage},
};

/// Counted when it is dropped, which happens however the request ends.
pub struct Exchange {
    metrics: Arc<Metrics>,
    work: Option<Work>,
    status: Option<StatusCode>,
    ending: Option<Ending>,
}

/// Of a request that a model answers.
pub struct Work {
    pub model: Arc<Model>,
    pub route: Route,
    pub arrived: Instant,
    reader: Option<Reader>,
    waits_for_first: bool,
    /// Held until the end, and given back after it was counted.
    _ticket: Ticket,
}

impl Work {
    pub fn new(model: Arc<Model>, route: Route, arrived: Instant, ticket: Ticket) -> Self {
        Self {
            model,
            route,
            arrived,
            reader: None,
            waits_for_first: false,
            _ticket: ticket,
        }
    }
}

impl Exchange {
    pub fn new(metrics: Arc<Metrics>, work: Option<Work>) -> Self {
        Self {
            metrics,
            work,
            status: None,
            ending: None,
        }
    }

    /// The answer begins.
    pub fn head(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let plain =
            text(header::CONTENT_ENCODING).is_none_or(|coding| coding.eq_ignore_ascii_case("identity"));
        if let Some(work) = &mut self.work
            && status.is_success()
            && plain
            && let Some(framing) = text(header::CONTENT_TYPE).and_then(Framing::of)
        {
            work.reader = Some(Reader::new(framing));
            work.waits_for_first = framing.streams();
        }
    }

    /// A piece of the answer passes by.
    pub fn data(&mut self, bytes: &[u8]) {
        let Some(work) = &mut self.work else { return };
        if std::mem::take(&mut work.waits_for_first) {
            work.model.first_token(work.arrived.elapsed());
        }
        if let Some(reader) = &mut work.reader {
            reader.feed(bytes);
        }
    }

    /// The answer is complete.
    pub fn complete(&mut self) {
        if let Some(status) = self.status {
            self.ending.get_or_insert(Ending::Answered(status));
        }
    }

    /// The answer stopped in the middle.
    pub fn broken(&mut self) {
        self.ending.get_or_insert(Ending::Broken);
    }

    /// Answered by this process itself.
    pub fn answered(mut self, status: StatusCode) {
        self.status = Some(status);
        self.complete();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let ending = self.ending.unwrap_or(Ending::Cancelled);
        let Some(work) = &mut self.work else {
            self.metrics.passed(ending);
            return;
        };
        let took: Duration = work.arrived.elapsed();
        let usage = work.reader.as_mut().map_or_else(Usage::default, Reader::finish);
        work.model.ended(work.route, ending, took, usage);
    }
}
