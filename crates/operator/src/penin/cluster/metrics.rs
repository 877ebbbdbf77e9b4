//! The numbers of the status: read from the services' Prometheus endpoints, or from SR-Ω∞ itself where those are not
//! served.

use std::fmt::Write as _;

use futures::future::join_all;
use gantry_crds::penin::{ClusterMetrics, Service};
use gantry_kit::probe::Answer;
use http::{Request, header};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, client::Body};
use serde_json::Value;

use crate::{
    settings::Reach,
    workload::reach::{self, innermost},
};

/// More than any page of metrics needs; a service cannot fill our memory.
const MOST_BYTES: usize = 4 << 20;

/// Two sets of names: that of the documentation, and that of the library.
const ALPHA: &[&str] = &["penin_alpha"];
const DELTA_LINF: &[&str] = &["penin_delta_linf"];
const CAOS_PLUS: &[&str] = &["penin_caos_plus", "penin_caos_plus_score"];
const SR_SCORE: &[&str] = &["penin_sr_score", "penin_sr_omega_score"];

/// Where SR-Ω∞ tells its score over REST, and under which key: the last one, else the mean of the last ones.
const SR_REST: &[(&str, &str)] = &[("/sr/score", "sr_score"), ("/sr/average", "sr_avg")];

/// The axes of SR-Ω∞: what we call them, and what it does.
pub const AXES: [(&str, &str); 4] = [
    ("sr_awareness", "awareness"),
    ("sr_ethics", "ethics_ok"),
    ("sr_autocorrection", "autocorrection"),
    ("sr_metacognition", "metacognition"),
];

/// In the order of [`AXES`].
pub type Axes = [Option<f64>; 4];

/// What was found, and why the rest was not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    pub metrics: ClusterMetrics,
    pub axes: Option<Axes>,
    /// Which service said what instead of metrics.
    pub silent: Vec<(Service, String)>,
}

/// One service to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub service: Service,
    pub child: String,
    pub address: String,
    pub port: i32,
    pub path: String,
}

#[derive(Clone)]
pub struct Asker {
    /// Of the API server: reads the token that guards the metrics.
    api: Client,
    client: Client,
    reach: Reach,
}

impl Asker {
    pub fn new(api: Client, reach: Reach) -> Self {
        let client = reach::client(api.clone(), reach);
        Self { api, client, reach }
    }

    /// Asks all services at once. Not being told anything is an answer as well.
    pub fn read(
        &self,
        namespace: &str,
        subjects: Vec<Subject>,
        token: Option<(String, String)>,
    ) -> impl Future<Output = Answer<Reading>> + Send + 'static {
        let (asker, namespace) = (self.clone(), namespace.to_owned());
        async move {
            let answers = asker.fetch(&namespace, &subjects, token).await?;
            let mut reading = Reading::default();
            let mut pages = Vec::new();
            let mut sr = None;
            for (service, base, page) in answers {
                if service == Service::SrOmegaInfinity {
                    sr = Some(base);
                }
                match page {
                    Ok(page) => pages.push((service, page)),
                    Err(why) => reading.silent.push((service, why)),
                }
            }
            reading.metrics = from_pages(&pages);
            if let Some(base) = sr
                && let Some((score, axes)) = asker.score(&base).await
            {
                reading.metrics.sr_score = reading.metrics.sr_score.or(Some(score));
                reading.axes = Some(axes);
            }
            Ok(reading)
        }
    }

    /// One metric: one of the status by its name there, or any by its name on the pages.
    pub async fn metric(
        &self,
        namespace: &str,
        subjects: Vec<Subject>,
        token: Option<(String, String)>,
        name: &str,
    ) -> Answer<f64> {
        if subjects.is_empty() {
            return Err("no service is there to be asked".to_owned());
        }
        let of_status: Option<fn(&ClusterMetrics) -> Option<f64>> = match name {
            "alpha" => Some(|metrics| metrics.alpha),
            "deltaLinf" => Some(|metrics| metrics.delta_linf),
            "caosPlus" => Some(|metrics| metrics.caos_plus),
            "srScore" => Some(|metrics| metrics.sr_score),
            _ => None,
        };
        if let Some(pick) = of_status {
            let reading = self.read(namespace, subjects, token).await?;
            return pick(&reading.metrics).ok_or_else(|| silence(&reading));
        }
        let mut why = format!("no service serves {name}");
        for (service, _, page) in self.fetch(namespace, &subjects, token).await? {
            match page {
                Ok(page) => {
                    if let Some(value) = mean(&page, name) {
                        return Ok(value);
                    }
                }
                Err(error) => {
                    let _ = write!(why, "; {}: {error}", service.name());
                }
            }
        }
        Err(why)
    }

    /// The page of each service, and what its paths begin with.
    async fn fetch(
        &self,
        namespace: &str,
        subjects: &[Subject],
        token: Option<(String, String)>,
    ) -> Answer<Vec<(Service, String, Answer<String>)>> {
        let token = match token {
            Some((name, key)) => Some(self.token(namespace, &name, &key).await?),
            None => None,
        };
        let token = token.as_deref();
        let pages = subjects.iter().map(|subject| {
            let Subject {
                service,
                child,
                address,
                port,
                path,
            } = subject;
            let base = reach::base(self.reach, namespace, child, address, *port);
            async move {
                let page = self.get(&format!("{base}{path}"), token).await;
                (*service, base, page)
            }
        });
        Ok(join_all(pages).await)
    }

    /// What SR-Ω∞ says of itself over REST.
    async fn score(&self, base: &str) -> Option<(f64, Axes)> {
        for (path, key) in SR_REST {
            if let Ok(page) = self.get(&format!("{base}{path}"), None).await {
                let answer = serde_json::from_str(&page).ok()?;
                return Some((score_in(&answer, key)?, axes_in(&answer)));
            }
        }
        None
    }

    async fn token(&self, namespace: &str, name: &str, key: &str) -> Result<String, String> {
        let api = Api::<Secret>::namespaced(self.api.clone(), namespace);
        let secret = api.get(name).await.map_err(|error| innermost(&error))?;
        let value = secret.data.and_then(|mut data| data.remove(key));
        value
            .and_then(|value| String::from_utf8(value.0).ok())
            .ok_or_else(|| format!("Secret {name} has no text under {key:?}"))
    }

    async fn get(&self, uri: &str, token: Option<&str>) -> Result<String, String> {
        let mut request = Request::get(uri).header(header::ACCEPT, "text/plain, application/json");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| innermost(&error))?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let bytes = body.map_err(|error| error.to_string())?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The first page that has a metric gives it; of the score, that of SR-Ω∞ itself.
fn from_pages(pages: &[(Service, String)]) -> ClusterMetrics {
    let find = |names: &[&str], first: Service| {
        let own = pages.iter().filter(|(service, _)| *service == first);
        let others = pages.iter().filter(|(service, _)| *service != first);
        own.chain(others)
            .find_map(|(_, page)| names.iter().find_map(|name| mean(page, name)))
    };
    ClusterMetrics {
        alpha: find(ALPHA, Service::OmegaMeta),
        delta_linf: find(DELTA_LINF, Service::OmegaMeta),
        caos_plus: find(CAOS_PLUS, Service::OmegaMeta),
        sr_score: find(SR_SCORE, Service::SrOmegaInfinity),
    }
}

/// The mean of all series of a metric on a page; what is no finite number does not count.
fn mean(page: &str, name: &str) -> Option<f64> {
    let values: Vec<f64> = page.lines().filter_map(|line| sample(line, name)).collect();
    #[allow(clippy::cast_precision_loss)]
    let count = values.len() as f64;
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / count)
}

/// `name{labels} value [time]`, with or without labels.
fn sample(line: &str, name: &str) -> Option<f64> {
    let rest = line.trim_start().strip_prefix(name)?;
    let rest = match rest.strip_prefix('{') {
        Some(labelled) => labelled.rsplit_once('}')?.1,
        None => rest.strip_prefix([' ', '\t'])?,
    };
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// Before anything was scored, SR-Ω∞ tells an error beside a score of 0.
fn score_in(answer: &Value, key: &str) -> Option<f64> {
    let value = answer.get(key).filter(|_| answer.get("error").is_none())?;
    value.as_f64().filter(|value| value.is_finite())
}

fn axes_in(answer: &Value) -> Axes {
    AXES.map(|(_, key)| match &answer[key] {
        Value::Bool(holds) => Some(f64::from(u8::from(*holds))),
        value => value.as_f64().filter(|value| value.is_finite()),
    })
}

/// What is written: the new numbers when one of them moved enough to matter, else those that are there already. So a
/// number that trembles is no stream of writes, and one that drifts is still told in the end.
pub fn steady(before: Option<&ClusterMetrics>, now: &ClusterMetrics) -> ClusterMetrics {
    let Some(before) = before else {
        return rounded(now);
    };
    let matters = |before: Option<f64>, now: Option<f64>| match (before, now) {
        (Some(before), Some(now)) => (before - now).abs() > (before.abs() * 0.01).max(0.001),
        (before, now) => before.is_some() != now.is_some(),
    };
    let moved = matters(before.alpha, now.alpha)
        || matters(before.delta_linf, now.delta_linf)
        || matters(before.caos_plus, now.caos_plus)
        || matters(before.sr_score, now.sr_score);
    if moved { rounded(now) } else { before.clone() }
}

fn rounded(metrics: &ClusterMetrics) -> ClusterMetrics {
    let round = |value: Option<f64>| value.map(|value| (value * 10_000.0).round() / 10_000.0);
    ClusterMetrics {
        alpha: round(metrics.alpha),
        delta_linf: round(metrics.delta_linf),
        caos_plus: round(metrics.caos_plus),
        sr_score: round(metrics.sr_score),
    }
}

pub fn is_empty(metrics: &ClusterMetrics) -> bool {
    *metrics == ClusterMetrics::default()
}

/// Why there are no numbers, in the order of the services.
pub fn silence(reading: &Reading) -> String {
    let mut text = "no service serves a metric that is known".to_owned();
    for (service, why) in &reading.silent {
        let _ = write!(text, "; {}: {why}", service.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::plain("penin_alpha 0.78", Some(0.78))]
    #[case::with_time("penin_alpha 0.5 1700000000000", Some(0.5))]
    #[case::labels("penin_alpha{pod=\"a}b\"} 2e-1", Some(0.2))]
    #[case::mean_of_series("penin_alpha{p=\"a\"} 1\npenin_alpha{p=\"b\"} 3", Some(2.0))]
    #[case::longer_name("penin_alpha_total 4", None)]
    #[case::help("# HELP penin_alpha Step size", None)]
    #[case::no_number("penin_alpha NaN\npenin_alpha +Inf", None)]
    #[case::rubbish("penin_alpha{ 5", None)]
    fn samples_are_read(#[case] page: &str, #[case] expected: Option<f64>) {
        assert_eq!(mean(page, "penin_alpha"), expected);
    }

    #[test]
    fn both_sets_of_names_are_known_and_sr_speaks_for_itself() {
        let pages = [
            (
                Service::OmegaMeta,
                "penin_caos_plus_score 1.5\npenin_sr_score 0.1".to_owned(),
            ),
            (Service::SrOmegaInfinity, "penin_sr_omega_score 0.9".to_owned()),
        ];
        let found = from_pages(&pages);
        assert_eq!((found.caos_plus, found.sr_score), (Some(1.5), Some(0.9)));
        assert_eq!((found.alpha, found.delta_linf), (None, None));
    }

    #[rstest]
    #[case(json!({"sr_score": 0.8, "awareness": 0.9}), Some(0.8))]
    #[case(json!({"error": "No scores available", "sr_score": 0.0}), None)]
    #[case(json!({"detail": "Not Found"}), None)]
    #[case(json!(0.25), None)]
    fn a_score_is_found_in_an_answer(#[case] answer: Value, #[case] expected: Option<f64>) {
        assert_eq!(score_in(&answer, "sr_score"), expected);
    }

    #[test]
    fn axes_may_be_numbers_or_verdicts() {
        let answer = json!({"awareness": 0.9, "ethics_ok": true, "autocorrection": "?", "sr_score": 0.8});
        assert_eq!(axes_in(&answer), [Some(0.9), Some(1.0), None, None]);
    }

    #[rstest]
    #[case::trembles(0.7828, 0.7829, 0.7828)]
    #[case::moves(0.78, 0.80, 0.80)]
    #[case::near_zero(0.0001, 0.0005, 0.0001)]
    #[case::large(100.0, 100.9, 100.0)]
    fn only_what_matters_is_told(#[case] before: f64, #[case] now: f64, #[case] told: f64) {
        let of = |alpha| ClusterMetrics {
            alpha: Some(alpha),
            ..ClusterMetrics::default()
        };
        assert_eq!(steady(Some(&of(before)), &of(now)), of(told));
    }

    #[test]
    fn a_drift_is_told_in_the_end_and_a_loss_at_once() {
        let of = |alpha: Option<f64>| ClusterMetrics {
            alpha,
            ..ClusterMetrics::default()
        };
        let mut told = of(Some(1.0));
        for step in 1..=10 {
            told = steady(Some(&told), &of(Some(1.0 + f64::from(step) * 0.004)));
        }
        assert!(told.alpha > Some(1.02), "{told:?}");
        assert_eq!(steady(Some(&told), &of(None)), of(None));
    }
}
