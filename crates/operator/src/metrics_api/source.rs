//! Where values come from: the proxies beside the models, asked when somebody asks us and never else.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::Request;
use http_body_util::{BodyExt as _, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams, client::Body};
use tokio::time::Instant;

use super::{
    exposition::{self, Sample},
    fresh::Fresh,
    metric::label_value,
    path::{Refusal, Values},
    render::PodValue,
};
use crate::settings::Reach;

/// The container that counts.
pub const CONTAINER: &str = "model-proxy";
/// Its port, unless the container has one of this name.
const PORT: u16 = 9114;
const PORT_NAME: &str = "metrics";

/// An autoscaler asks for several metrics in a row; all of them see the same moment.
const LIFE: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(3);
/// For all of them: whoever asked does not wait much longer.
const WHOLE: Duration = Duration::from_secs(8);
const LATE: &str = "no answer in time";
const MOST_BYTES: usize = 1 << 20;
const MOST_PODS: usize = 1000;
const AT_ONCE: usize = 32;

pub struct Source {
    client: Client,
    /// For the pods' own addresses; none when they are reached through the API server.
    plain: Option<Client>,
    pods: Fresh<Chosen, Result<Vec<Target>, Problem>>,
    samples: Fresh<Target, Result<Vec<Sample>, String>>,
}

/// A proxy that can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    namespace: String,
    pod: String,
    uid: String,
    address: String,
    port: u16,
}

/// Namespace, name and selector of pods.
type Chosen = (String, Option<String>, String);

/// As `Refusal`, but it can be kept.
type Problem = (u16, String);

impl Source {
    pub fn new(client: Client, reach: Reach) -> Self {
        let plain = (reach == Reach::Direct).then(|| {
            let mut connector = HttpConnector::new();
            connector.set_connect_timeout(Some(Duration::from_secs(1)));
            let executor = hyper_util::rt::TokioExecutor::new();
            let plain = hyper_util::client::legacy::Client::builder(executor)
                .pool_idle_timeout(Duration::from_secs(30))
                .pool_timer(hyper_util::rt::TokioTimer::new())
                .build::<_, Body>(connector);
            Client::new(plain, "default")
        });
        Self {
            client,
            plain,
            pods: Fresh::new(LIFE, 256),
            samples: Fresh::new(LIFE, 4096),
        }
    }

    /// What the selected pods say. A pod that does not answer is left out, as autoscalers expect it.
    pub async fn values(&self, wanted: &Values) -> Result<Vec<PodValue>, Refusal> {
        let key = (
            wanted.namespace.clone(),
            wanted.pod.clone(),
            wanted.pods.to_string(),
        );
        let targets = self
            .pods
            .get(key, self.list(wanted))
            .await
            .map_err(|(code, message)| Refusal::new(code, reason(code), message))?;
        let end = Instant::now() + WHOLE;
        let asked: Vec<(Target, Result<Vec<Sample>, String>)> = stream::iter(targets)
            .map(|target| async move {
                let asking = self.samples.get(target.clone(), self.scrape(target.clone()));
                let samples = tokio::time::timeout_at(end, asking).await;
                (target, samples.unwrap_or_else(|_| Err(LATE.to_owned())))
            })
            .buffered(AT_ONCE)
            .collect()
            .await;
        let mut silent = asked
            .iter()
            .filter_map(|(target, answer)| answer.as_ref().err().map(|why| (&target.pod, why)));
        if let Some((pod, why)) = silent.next() {
            tracing::warn!(
                namespace = wanted.namespace,
                pod,
                why,
                others = silent.count(),
                "a model's proxy does not answer"
            );
            // Nothing known is not the same as nothing to do: an autoscaler must not act on it.
            if asked.iter().all(|(_, answer)| answer.is_err()) {
                return Err(Refusal::new(
                    503,
                    "ServiceUnavailable",
                    format!("none of {} proxies answers; {pod}: {why}", asked.len()),
                ));
            }
        }
        Ok(values(wanted, asked))
    }

    async fn list(&self, wanted: &Values) -> Result<Vec<Target>, Problem> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &wanted.namespace);
        let params = ListParams {
            label_selector: Some(wanted.pods.to_string()).filter(|text| !text.is_empty()),
            field_selector: wanted.pod.as_ref().map(|pod| format!("metadata.name={pod}")),
            ..ListParams::default()
        }
        .match_any();
        let pods = match tokio::time::timeout(DEADLINE, api.list(&params)).await {
            Ok(Ok(pods)) => pods.items,
            Ok(Err(kube::Error::Api(status))) => return Err((status.code, status.message)),
            Ok(Err(error)) => return Err((503, format!("failed to list pods: {error}"))),
            Err(_) => return Err((503, "failed to list pods: no answer in time".to_owned())),
        };
        let targets: Vec<Target> = pods.into_iter().filter_map(target).collect();
        if targets.len() > MOST_PODS {
            return Err((
                400,
                format!(
                    "{} pods are selected, and at most {MOST_PODS} are asked at once: narrow the selector",
                    targets.len()
                ),
            ));
        }
        Ok(targets)
    }

    async fn scrape(&self, target: Target) -> Result<Vec<Sample>, String> {
        let Target {
            namespace,
            pod,
            address,
            port,
            ..
        } = &target;
        let (client, uri) = match &self.plain {
            Some(plain) => (plain, format!("http://{address}:{port}/metrics")),
            None => (
                &self.client,
                format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics"),
            ),
        };
        let request = Request::get(uri)
            .body(Body::empty())
            .map_err(|error| error.to_string())?;
        let read = async {
            let answer = client.send(request).await.map_err(|error| error.to_string())?;
            if !answer.status().is_success() {
                return Err(format!("it answers with status {}", answer.status()));
            }
            let body = Limited::new(answer.into_body(), MOST_BYTES);
            let bytes = body
                .collect()
                .await
                .map_err(|error| error.to_string())?
                .to_bytes();
            Ok(exposition::samples(&String::from_utf8_lossy(&bytes)))
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .unwrap_or_else(|_| Err(LATE.to_owned()))
    }
}

fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        403 => "Forbidden",
        404 => "NotFound",
        _ => "ServiceUnavailable",
    }
}

/// A pod that runs, with a proxy in it.
fn target(pod: Pod) -> Option<Target> {
    let status = pod.status?;
    if pod.metadata.deletion_timestamp.is_some() || status.phase.as_deref() != Some("Running") {
        return None;
    }
    let spec = pod.spec?;
    // An init container that keeps running is a sidecar, too.
    let container = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .find(|container| container.name == CONTAINER)?;
    let port = container
        .ports
        .iter()
        .flatten()
        .find(|port| port.name.as_deref() == Some(PORT_NAME))
        .and_then(|port| u16::try_from(port.container_port).ok())
        .unwrap_or(PORT);
    let ip: std::net::IpAddr = status.pod_ip?.parse().ok()?;
    let address = if ip.is_ipv6() {
        format!("[{ip}]")
    } else {
        ip.to_string()
    };
    Some(Target {
        namespace: pod.metadata.namespace?,
        pod: pod.metadata.name?,
        uid: pod.metadata.uid?,
        address,
        port,
    })
}

/// The series that are asked for, of the pods that answered.
fn values(wanted: &Values, asked: Vec<(Target, Result<Vec<Sample>, String>)>) -> Vec<PodValue> {
    let mut values = Vec::new();
    for (target, samples) in asked {
        for sample in samples.into_iter().flatten() {
            let model = label_value(&sample.model);
            if sample.metric == wanted.metric && wanted.wants(&target.pod, &model) {
                values.push(PodValue {
                    namespace: target.namespace.clone(),
                    pod: target.pod.clone(),
                    model,
                    value: sample.value,
                });
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metrics_api::{
        metric::Metric,
        path::{Question, question},
    };

    fn pod(change: serde_json::Value) -> Option<Target> {
        let mut pod = json!({
            "metadata": {"name": "phi-1", "namespace": "team", "uid": "u"},
            "spec": {"containers": [{"name": "server"}, {"name": "model-proxy"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.7"},
        });
        json_patch(&mut pod, change);
        target(serde_json::from_value(pod).unwrap())
    }

    fn json_patch(into: &mut serde_json::Value, change: serde_json::Value) {
        match (into, change) {
            (serde_json::Value::Object(into), serde_json::Value::Object(change)) => {
                for (key, value) in change {
                    json_patch(into.entry(key).or_insert(serde_json::Value::Null), value);
                }
            }
            (into, change) => *into = change,
        }
    }

    #[test]
    fn running_pods_with_a_proxy_are_asked() {
        let plain = pod(json!({})).unwrap();
        assert_eq!((plain.address.as_str(), plain.port), ("10.0.0.7", 9114));
        let six = pod(json!({"status": {"podIP": "fd00::7"}})).unwrap();
        assert_eq!(six.address, "[fd00::7]");
        let port = json!([{"name": "model-proxy", "ports": [{"name": "metrics", "containerPort": 1234}]}]);
        assert_eq!(pod(json!({"spec": {"containers": port}})).unwrap().port, 1234);
        let sidecar = json!({"spec": {"containers": [], "initContainers": [{"name": "model-proxy"}]}});
        assert!(pod(sidecar).is_some());
    }

    #[test]
    fn others_are_not() {
        for change in [
            json!({"status": {"phase": "Pending"}}),
            json!({"status": {"podIP": null}}),
            json!({"status": {"podIP": "evil.example/"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"spec": {"containers": [{"name": "server"}]}}),
        ] {
            assert!(pod(change.clone()).is_none(), "{change}");
        }
    }

    /// An API server with this many pods, none of which ever answers.
    fn cluster(pods: usize) -> Client {
        let items: Vec<serde_json::Value> = (0..pods)
            .map(|number| {
                json!({
                    "metadata": {"name": format!("phi-{number}"), "namespace": "team", "uid": number.to_string()},
                    "spec": {"containers": [{"name": "model-proxy"}]},
                    "status": {"phase": "Running", "podIP": "10.0.0.7"},
                })
            })
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}).to_string();
        let service = tower::service_fn(move |request: Request<Body>| {
            let list = list.clone();
            async move {
                if request.uri().path().ends_with("/metrics") {
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(list.into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_told_as_such_and_soon() {
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/team/gantry_model_queue_depth";
        let Ok(Question::Values(wanted)) = question(path, None) else {
            panic!("it is one")
        };
        let begin = Instant::now();
        let refusal = Source::new(cluster(500), Reach::Proxy)
            .values(&wanted)
            .await
            .unwrap_err();
        assert_eq!(refusal.code, 503);
        assert!(refusal.message.contains("none of 500"), "{}", refusal.message);
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        let nobody = Source::new(cluster(0), Reach::Proxy).values(&wanted).await;
        assert_eq!(nobody, Ok(vec![]));
        let crowd = Source::new(cluster(MOST_PODS + 1), Reach::Proxy)
            .values(&wanted)
            .await;
        assert_eq!(crowd.unwrap_err().code, 400);
    }

    #[test]
    fn series_are_chosen_by_model() {
        let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/team/gantry_model_queue_depth";
        let sample = |metric, model: &str, value| Sample {
            metric,
            model: model.into(),
            value,
        };
        for (query, expected) in [
            (None, vec![("phi-3b", 4.0), ("other", 1.0)]),
            (Some("labelSelector=model%3Dphi-3b"), vec![("phi-3b", 4.0)]),
            (Some("labelSelector=pod%3Dphi-2"), vec![]),
        ] {
            let Ok(Question::Values(wanted)) = question(path, query) else {
                panic!("it is one")
            };
            let samples = vec![
                sample(Metric::QueueDepth, "phi:3b", 4.0),
                sample(Metric::QueueDepth, "other", 1.0),
                sample(Metric::InFlight, "phi:3b", 9.0),
            ];
            let asked = vec![(pod(json!({})).unwrap(), Ok(samples))];
            let told = values(&wanted, asked);
            let told: Vec<(&str, f64)> = told.iter().map(|v| (v.model.as_str(), v.value)).collect();
            assert_eq!(told, expected);
        }
    }
}
