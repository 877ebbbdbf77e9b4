//! Readings in the background: one series for each change that needs one, kept in memory. A new process starts anew.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gantry_crds::penin::{PeninOmegaCluster, Verdict};
use gantry_kit::{ObjectKey, apply::Children, probe::Answer, queue::Queue};
use http::Request;
use http_body_util::{BodyExt, Limited};
use kube::{Client, Config, client::Body};
use serde_json::Value;
use tokio::{task::AbortHandle, time::Instant};

use super::{decide::Measured, verdict};
use crate::{
    Settings,
    penin::cluster::Measure,
    settings::Reach,
    workload::reach::{self, innermost},
};

/// One question must not take longer.
const DEADLINE: Duration = Duration::from_secs(10);
/// More than any window needs; the oldest go first.
const MOST_READINGS: usize = 10_000;
const MOST_BYTES: usize = 1 << 20;

/// The series of all changes.
#[derive(Default)]
pub struct Sampler {
    series: Mutex<HashMap<ObjectKey, Series>>,
}

struct Series {
    /// What is measured, and for which part of the change: another one starts anew.
    subject: String,
    started: Instant,
    taken: Arc<Mutex<Taken>>,
    task: AbortHandle,
}

#[derive(Default)]
struct Taken {
    values: Vec<f64>,
    silent: Option<String>,
}

impl Drop for Series {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sampler {
    /// What was read so far; starts reading when nobody does.
    pub fn look<F>(
        &self,
        key: &ObjectKey,
        subject: &str,
        interval: Duration,
        queue: &Arc<Queue>,
        ask: impl Fn() -> F + Send + 'static,
    ) -> Measured
    where
        F: Future<Output = Answer<f64>> + Send + 'static,
    {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if series.get(key).is_none_or(|known| known.subject != subject) {
            let taken = Arc::<Mutex<Taken>>::default();
            let task = tokio::spawn(read(key.clone(), taken.clone(), interval, queue.clone(), ask));
            series.insert(
                key.clone(),
                Series {
                    subject: subject.to_owned(),
                    started: Instant::now(),
                    taken,
                    task: task.abort_handle(),
                },
            );
        }
        let Some(known) = series.get(key) else {
            return Measured::default();
        };
        let taken = known.taken.lock().unwrap_or_else(PoisonError::into_inner);
        Measured {
            readings: verdict::summary(&taken.values),
            since: known.started.elapsed(),
            silent: taken.silent.clone(),
        }
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.series
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

async fn read<F>(
    key: ObjectKey,
    taken: Arc<Mutex<Taken>>,
    interval: Duration,
    queue: Arc<Queue>,
    ask: impl Fn() -> F + Send,
) where
    F: Future<Output = Answer<f64>> + Send,
{
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = tokio::time::timeout(DEADLINE, ask())
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", DEADLINE.as_secs())));
        {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(value) => {
                    if taken.values.len() >= MOST_READINGS {
                        taken.values.remove(0);
                    }
                    taken.values.push(value);
                    taken.silent = None;
                }
                Err(why) => taken.silent = Some(why),
            }
        }
        queue.add(key.clone());
    }
}

/// Where a metric comes from.
#[derive(Clone)]
pub struct Sources {
    services: Measure,
    plain: Client,
    /// Asked when the policy names none.
    prometheus: String,
}

impl Sources {
    pub fn new(client: Client, settings: &Settings) -> Self {
        Self {
            services: Measure::new(client.clone(), settings.clone()),
            plain: reach::client(client, Reach::Direct),
            prometheus: settings.prometheus_url.clone(),
        }
    }

    /// The number that a policy judges by, now.
    pub async fn ask(
        &self,
        cluster: &PeninOmegaCluster,
        children: Arc<Children>,
        rule: &Verdict,
    ) -> Answer<f64> {
        if let Some(metric) = rule.metric.as_deref().filter(|metric| !metric.is_empty()) {
            return self.services.metric(cluster, children, metric).await;
        }
        let base = rule
            .prometheus_url
            .as_deref()
            .filter(|url| !url.is_empty())
            .unwrap_or(&self.prometheus);
        if base.is_empty() {
            return Err("no Prometheus is known: set verdict.prometheusUrl, or the operator's".to_owned());
        }
        self.query(base, rule.query.as_deref().unwrap_or_default()).await
    }

    async fn query(&self, base: &str, query: &str) -> Answer<f64> {
        let uri = format!(
            "{}/api/v1/query?query={}",
            base.trim_end_matches('/'),
            encoded(query)
        );
        let client = if base.starts_with("https:") {
            let address: http::Uri = base
                .parse()
                .map_err(|error: http::uri::InvalidUri| format!("{base:?} is no address: {error}"))?;
            Client::try_from(Config::new(address)).map_err(|error| innermost(&error))?
        } else {
            self.plain.clone()
        };
        let request = Request::get(uri)
            .body(Body::empty())
            .map_err(|error| error.to_string())?;
        let response = client.send(request).await.map_err(|error| innermost(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        let bytes = body.map_err(|error| error.to_string())?.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes)
            .map_err(|_| format!("Prometheus answered {} and no JSON", status.as_u16()))?;
        number(&answer)
    }
}

/// The one number of an answer.
fn number(answer: &Value) -> Answer<f64> {
    if answer["status"] != "success" {
        let error = answer["error"].as_str().unwrap_or("without saying why");
        return Err(format!("Prometheus refused the query: {error}"));
    }
    let data = &answer["data"];
    let pair = match data["resultType"].as_str() {
        Some("scalar") => &data["result"],
        Some("vector") => match data["result"].as_array().map(Vec::as_slice) {
            Some([one]) => &one["value"],
            Some([]) => return Err("the query gives no number yet".to_owned()),
            _ => {
                return Err(
                    "the query gives several numbers: aggregate them, for example with avg()".to_owned(),
                );
            }
        },
        _ => return Err("the query gives neither a scalar nor a vector".to_owned()),
    };
    pair[1]
        .as_str()
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|value| value.is_finite())
        .ok_or_else(|| "the query gives no finite number".to_owned())
}

fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::vector(json!({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1.5, "0.75"]}]}}), Ok(0.75))]
    #[case::scalar(json!({"status": "success", "data": {"resultType": "scalar", "result": [1.5, "2"]}}), Ok(2.0))]
    #[case::none(json!({"status": "success", "data": {"resultType": "vector", "result": []}}), Err("no number yet"))]
    #[case::several(json!({"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "1"]}, {"value": [1, "2"]}]}}), Err("several numbers"))]
    #[case::not_finite(json!({"status": "success", "data": {"resultType": "scalar", "result": [1, "NaN"]}}), Err("finite"))]
    #[case::matrix(json!({"status": "success", "data": {"resultType": "matrix", "result": []}}), Err("neither"))]
    #[case::refused(json!({"status": "error", "error": "parse error"}), Err("parse error"))]
    fn answers_of_prometheus(#[case] answer: Value, #[case] expected: Result<f64, &str>) {
        match (number(&answer), expected) {
            (Ok(found), Ok(expected)) => assert!((found - expected).abs() < f64::EPSILON),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encoded("avg(a{b=\"c d\"})"), "avg%28a%7Bb%3D%22c%20d%22%7D%29");
    }

    #[tokio::test(start_paused = true)]
    async fn readings_come_by_themselves_and_a_new_subject_starts_anew() {
        let (sampler, queue) = (Sampler::default(), Arc::new(Queue::default()));
        let key = ObjectKey::new("ns", "a");
        let look = |subject: &str| {
            sampler.look(&key, subject, Duration::from_secs(1), &queue, || async {
                Ok(2.0)
            })
        };
        assert_eq!(look("before").readings.samples, Some(0));
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let found = look("before");
        assert_eq!(
            (found.readings.samples, found.readings.median),
            (Some(3), Some(2.0))
        );
        assert_eq!(queue.next().await, key, "each reading wakes the change");
        assert_eq!(look("after").readings.samples, Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_told_and_does_not_count() {
        let (sampler, queue) = (Sampler::default(), Arc::new(Queue::default()));
        let key = ObjectKey::new("ns", "a");
        let look = || {
            sampler.look(&key, "x", Duration::from_secs(1), &queue, || async {
                Err::<f64, _>("refused".to_owned())
            })
        };
        look();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let found = look();
        assert_eq!(
            (found.readings.samples, found.silent.as_deref()),
            (Some(0), Some("refused"))
        );
    }
}
