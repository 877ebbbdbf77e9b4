//! What is counted, as Prometheus metrics. Labels come from closed sets: the models that were named at the start and
//! `other`, the routes, classes of codes. What a client writes never becomes a label.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::sync::watch;

use crate::{
    lane::Lane,
    rate::Rate,
    route::{Route, full_name},
    usage::Usage,
};

/// The label of everything that was not named at the start.
pub const OTHER: &str = "other";

/// From a word of a small model on a large machine to an essay of a large one on a small machine.
const SECONDS: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByModel {
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByResult {
    model: String,
    route: &'static str,
    code: &'static str,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Answered(http::StatusCode),
    /// The client went away first.
    Cancelled,
    /// Ollama stopped in the middle of its answer.
    Broken,
}

impl Ending {
    fn label(self) -> &'static str {
        match self {
            Self::Answered(status) => match status.as_u16() / 100 {
                1 => "1xx",
                2 => "2xx",
                3 => "3xx",
                4 => "4xx",
                _ => "5xx",
            },
            Self::Cancelled => "cancelled",
            Self::Broken => "broken",
        }
    }
}

pub struct Metrics {
    registry: Registry,
    requests: Family<ByResult, Counter>,
    in_flight: Family<ByModel, Gauge>,
    queue_depth: Family<ByModel, Gauge>,
    per_second: Family<ByModel, Gauge<f64, AtomicU64>>,
    /// The models in the order they were given, then the rest.
    models: Vec<Arc<Model>>,
}

/// One model: its lane and its counters.
pub struct Model {
    label: String,
    full_name: String,
    pub lane: Arc<Lane>,
    started: Instant,
    rate: Mutex<Rate>,
    received: Counter,
    rejected: Counter,
    prompt_tokens: Counter,
    completion_tokens: Counter,
    queue_time: Histogram,
    first_token: Histogram,
    duration: Histogram,
    requests: Family<ByResult, Counter>,
}

impl Metrics {
    pub fn new(names: &[String], parallel: usize, queue: Option<usize>, left: &watch::Sender<()>) -> Self {
        let mut registry = Registry::default();
        let histogram = || Histogram::new(SECONDS);
        let requests = Family::<ByResult, Counter>::default();
        let in_flight = Family::<ByModel, Gauge>::default();
        let queue_depth = Family::<ByModel, Gauge>::default();
        let per_second = Family::<ByModel, Gauge<f64, AtomicU64>>::default();
        let received = Family::<ByModel, Counter>::default();
        let rejected = Family::<ByModel, Counter>::default();
        let prompt = Family::<ByModel, Counter>::default();
        let completion = Family::<ByModel, Counter>::default();
        let queue_time = Family::<ByModel, Histogram, _>::new_with_constructor(histogram);
        let first_token = Family::<ByModel, Histogram, _>::new_with_constructor(histogram);
        let duration = Family::<ByModel, Histogram, _>::new_with_constructor(histogram);
        for (name, help, family) in [
            ("gantry_model_in_flight", "Requests being worked on", &in_flight),
            (
                "gantry_model_queue_depth",
                "Requests that wait for their turn",
                &queue_depth,
            ),
        ] {
            registry.register(name, help, family.clone());
        }
        registry.register(
            "gantry_model_requests_per_second",
            "Requests that came in, per second of the last half minute",
            per_second.clone(),
        );
        for (name, help, family) in [
            (
                "gantry_model_requests_received",
                "Requests that came in",
                &received,
            ),
            (
                "gantry_model_requests_rejected",
                "Requests turned away because the queue was full",
                &rejected,
            ),
            (
                "gantry_model_prompt_tokens",
                "Tokens of prompts, as the answers say",
                &prompt,
            ),
            (
                "gantry_model_completion_tokens",
                "Tokens of answers, as the answers say",
                &completion,
            ),
        ] {
            registry.register(name, help, family.clone());
        }
        registry.register(
            "gantry_model_requests",
            "Requests that ended, by route and class of code",
            requests.clone(),
        );
        for (name, help, family) in [
            (
                "gantry_model_queue",
                "Time spent waiting in this proxy",
                &queue_time,
            ),
            (
                "gantry_model_time_to_first_token",
                "Time until the first piece of a streamed answer, waiting included",
                &first_token,
            ),
            (
                "gantry_model_request_duration",
                "Time of a whole request, waiting included",
                &duration,
            ),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        }
        let mut labels: Vec<String> = Vec::new();
        for name in names {
            if name != OTHER && !labels.contains(name) {
                labels.push(name.clone());
            }
        }
        labels.push(OTHER.to_owned());
        let models = labels
            .into_iter()
            .map(|label| {
                let by = ByModel { model: label.clone() };
                Arc::new(Model {
                    started: Instant::now(),
                    rate: Mutex::default(),
                    full_name: full_name(&label),
                    lane: Arc::new(Lane::new(parallel, queue, left.clone())),
                    received: received.get_or_create_owned(&by),
                    rejected: rejected.get_or_create_owned(&by),
                    prompt_tokens: prompt.get_or_create_owned(&by),
                    completion_tokens: completion.get_or_create_owned(&by),
                    queue_time: queue_time.get_or_create_owned(&by),
                    first_token: first_token.get_or_create_owned(&by),
                    duration: duration.get_or_create_owned(&by),
                    requests: requests.clone(),
                    label,
                })
            })
            .collect();
        Self {
            registry,
            requests,
            in_flight,
            queue_depth,
            per_second,
            models,
        }
    }

    /// The model that a request names. One that names none, or only after a long prompt, is taken for the first, which
    /// is the one this process was started for.
    pub fn model(&self, name: Option<&str>) -> Option<&Arc<Model>> {
        let Some(name) = name else {
            return self.models.first();
        };
        let wanted = full_name(name);
        let (rest, named) = self.models.split_last()?;
        named
            .iter()
            .find(|model| model.full_name == wanted)
            .or(Some(rest))
    }

    /// Nobody is served and nobody waits.
    pub fn idle(&self) -> bool {
        self.models.iter().all(|model| model.lane.is_empty())
    }

    /// A request that is no work for a model.
    pub fn passed(&self, ending: Ending) {
        count(&self.requests, OTHER, Route::Other, ending);
    }

    pub fn render(&self) -> String {
        for model in &self.models {
            let by = ByModel {
                model: model.label.clone(),
            };
            let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            self.in_flight
                .get_or_create(&by)
                .set(number(model.lane.in_flight()));
            self.queue_depth
                .get_or_create(&by)
                .set(number(model.lane.queued()));
            self.per_second.get_or_create(&by).set(model.per_second());
        }
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            let _ = write!(text, "# {error}");
        }
        text
    }
}

impl Model {
    pub fn received(&self) {
        self.received.inc();
        self.rate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(self.started.elapsed());
    }

    fn per_second(&self) -> f64 {
        self.rate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .per_second(self.started.elapsed())
    }

    pub fn rejected(&self, route: Route) {
        self.rejected.inc();
        count(
            &self.requests,
            &self.label,
            route,
            Ending::Answered(http::StatusCode::SERVICE_UNAVAILABLE),
        );
    }

    pub fn waited(&self, time: Duration) {
        self.queue_time.observe(time.as_secs_f64());
    }

    pub fn first_token(&self, time: Duration) {
        self.first_token.observe(time.as_secs_f64());
    }

    pub fn ended(&self, route: Route, ending: Ending, took: Duration, usage: Usage) {
        count(&self.requests, &self.label, route, ending);
        self.duration.observe(took.as_secs_f64());
        self.lane.finished(took);
        self.prompt_tokens.inc_by(usage.prompt.unwrap_or(0));
        self.completion_tokens.inc_by(usage.completion.unwrap_or(0));
    }
}

fn count(requests: &Family<ByResult, Counter>, model: &str, route: Route, ending: Ending) {
    requests
        .get_or_create(&ByResult {
            model: model.to_owned(),
            route: route.label(),
            code: ending.label(),
        })
        .inc();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        let names = ["phi:3b".to_owned(), "phi:3b".to_owned(), "llama".to_owned()];
        Metrics::new(&names, 1, None, &watch::Sender::new(()))
    }

    #[test]
    fn only_known_models_become_labels() {
        let metrics = metrics();
        let label = |name: Option<&str>| metrics.model(name).unwrap().label.clone();
        assert_eq!(label(Some("PHI:3b")), "phi:3b");
        assert_eq!(label(Some("llama:latest")), "llama");
        assert_eq!(label(None), "phi:3b");
        for hostile in ["", "other", "phi:3b\"} 1\n", "x".repeat(9999).as_str()] {
            assert_eq!(label(Some(hostile)), OTHER);
        }
    }

    #[test]
    fn what_is_counted_is_rendered() {
        let metrics = metrics();
        let model = metrics.model(Some("llama")).unwrap();
        model.received();
        let usage = Usage {
            prompt: Some(3),
            completion: Some(40),
        };
        let ok = Ending::Answered(http::StatusCode::OK);
        model.ended(Route::Chat, ok, Duration::from_millis(300), usage);
        model.rejected(Route::Chat);
        metrics.passed(ok);
        let text = metrics.render();
        for line in [
            "gantry_model_in_flight{model=\"phi:3b\"} 0",
            "gantry_model_queue_depth{model=\"other\"} 0",
            "gantry_model_requests_received_total{model=\"llama\"} 1",
            "gantry_model_requests_per_second{model=\"llama\"} 0.2",
            "gantry_model_requests_rejected_total{model=\"llama\"} 1",
            "gantry_model_requests_total{model=\"llama\",route=\"/api/chat\",code=\"2xx\"} 1",
            "gantry_model_requests_total{model=\"llama\",route=\"/api/chat\",code=\"5xx\"} 1",
            "gantry_model_requests_total{model=\"other\",route=\"other\",code=\"2xx\"} 1",
            "gantry_model_prompt_tokens_total{model=\"llama\"} 3",
            "gantry_model_completion_tokens_total{model=\"llama\"} 40",
            "gantry_model_request_duration_seconds_bucket{le=\"0.5\",model=\"llama\"} 1",
            "gantry_model_time_to_first_token_seconds_count{model=\"llama\"} 0",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}
