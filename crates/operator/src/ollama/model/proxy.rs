//! Pure: the counting proxy beside Ollama, and what the autoscaler asks it.

use std::collections::BTreeMap;

use gantry_crds::{
    common::{AutoscalingMetric, MetricType, text},
    ollama::{ModelAutoscaling, ModelSpec, PORT},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::name::ModelName;
use crate::Settings;

pub const CONTAINER: &str = "model-proxy";
/// Where Ollama listens when the proxy stands before it.
pub const BEHIND: i32 = 11435;
/// Where the proxy tells what it counted.
pub const METRICS_PORT: i32 = 9114;
/// Name of that port, by which Prometheus finds it.
pub const METRICS: &str = "metrics";
/// As the operator serves them to autoscalers, per pod.
pub const REQUEST_RATE: &str = "gantry_model_requests_per_second";
pub const QUEUE_DEPTH: &str = "gantry_model_queue_depth";
/// Requests that may wait in the proxy; as many as Ollama itself lets wait.
const QUEUE: i32 = 512;

/// Takes Ollama's port; clients notice nothing.
pub fn container(spec: &ModelSpec, settings: &Settings, model: &ModelName) -> Value {
    let server = spec.server.clone().unwrap_or_default();
    let proxy = server.proxy.unwrap_or_default();
    let mut arguments = vec![
        "model-proxy".to_owned(),
        "--listen".to_owned(),
        format!("0.0.0.0:{PORT}"),
        "--upstream".to_owned(),
        format!("http://127.0.0.1:{BEHIND}"),
        "--model".to_owned(),
        model.short(),
        "--metrics".to_owned(),
        format!("0.0.0.0:{METRICS_PORT}"),
    ];
    if let Some(most) = proxy.max_concurrency {
        // What is beyond that waits here, where it is counted, and not in Ollama.
        arguments.extend(["--parallel".to_owned(), most.to_string()]);
        arguments.extend(["--queue".to_owned(), QUEUE.to_string()]);
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": text(proxy.image.as_ref()).unwrap_or(&settings.gantry_image),
        "args": arguments,
        "ports": [
            {"name": "ollama", "containerPort": PORT, "protocol": "TCP"},
            {"name": METRICS, "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": METRICS_PORT}, "periodSeconds": 5},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": METRICS_PORT}, "periodSeconds": 10, "failureThreshold": 6,
        },
    });
    // Without a word of its own, the proxy counts as waiting what Ollama lets wait.
    let parallel = spec
        .extra_env
        .iter()
        .flatten()
        .find(|env| env.name == "OLLAMA_NUM_PARALLEL");
    if let (None, Some(parallel)) = (proxy.max_concurrency, parallel) {
        container["env"] = json!([parallel]);
    }
    if let Some(resources) = &proxy.resources {
        crate::workload::merge::strategic(&mut container["resources"], &json!(resources));
    }
    container
}

/// What the server asks for before it stops. A pod that goes gets no new requests; Ollama, which cuts its answers off when
/// it is told to stop, is told only when none is under way. Without the proxy nobody knows, and the question is an empty one: a
/// handler that is there once cannot be taken away by server-side apply, since what is left of it would be refused.
pub fn before_stop(counted: bool) -> Value {
    if counted {
        json!({"path": "/idle", "port": METRICS_PORT})
    } else {
        json!({"path": "/", "port": PORT})
    }
}

/// What the autoscaler asks for beside CPU and memory. `pods` are labels of the Model's pods.
pub fn metrics(autoscaling: &ModelAutoscaling, pods: &Value) -> Vec<AutoscalingMetric> {
    // The server takes no minimum of 0 with metrics that pods have.
    let (kind, labels) = if autoscaling.min_replicas() == 0 {
        let labels: BTreeMap<String, String> = serde_json::from_value(pods.clone()).unwrap_or_default();
        (MetricType::External, Some(labels))
    } else {
        (MetricType::Pods, None)
    };
    let counted = |name: &str, target: &Option<Quantity>| {
        target.clone().map(|target| AutoscalingMetric {
            name: name.to_owned(),
            type_: Some(kind),
            match_labels: labels.clone(),
            average_value: Some(target),
            ..AutoscalingMetric::default()
        })
    };
    let rate = counted(REQUEST_RATE, &autoscaling.target_request_rate);
    let depth = counted(QUEUE_DEPTH, &autoscaling.target_queue_depth);
    rate.into_iter().chain(depth).collect()
}
