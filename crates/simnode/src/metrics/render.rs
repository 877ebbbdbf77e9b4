//! The JSON of `metrics.k8s.io/v1beta1`. No IO.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::usage::{Sample, Usage};
use crate::{
    quantity::{format_cpu, format_memory},
    text::go_duration,
};

pub const GROUP: &str = "metrics.k8s.io";
pub const GROUP_VERSION: &str = "metrics.k8s.io/v1beta1";

pub fn pod_metrics(meta: &ObjectMeta, sample: &Sample) -> Value {
    let containers: Vec<Value> = sample
        .usage
        .iter()
        .map(|(name, used)| json!({"name": name, "usage": usage(*used)}))
        .collect();
    let mut object = head("PodMetrics", meta, sample);
    object["containers"] = json!(containers);
    object
}

pub fn node_metrics(meta: &ObjectMeta, sample: &Sample) -> Value {
    let total = sample
        .usage
        .iter()
        .fold(Usage::default(), |sum, (_, used)| sum + *used);
    let mut object = head("NodeMetrics", meta, sample);
    object["usage"] = usage(total);
    object
}

/// `kind` of the items; they come without kind and version, as in every list.
pub fn list(kind: &str, mut items: Vec<Value>) -> Value {
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.remove("kind");
        item.remove("apiVersion");
    }
    json!({"kind": format!("{kind}List"), "apiVersion": GROUP_VERSION, "metadata": {}, "items": items})
}

fn head(kind: &str, meta: &ObjectMeta, sample: &Sample) -> Value {
    let mut metadata = json!({
        "name": meta.name,
        "creationTimestamp": meta.creation_timestamp,
        "labels": meta.labels.clone().unwrap_or_default(),
    });
    if let Some(namespace) = &meta.namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({
        "kind": kind,
        "apiVersion": GROUP_VERSION,
        "metadata": metadata,
        "timestamp": seconds(sample.timestamp),
        "window": go_duration(sample.window),
    })
}

fn usage(usage: Usage) -> Value {
    json!({"cpu": format_cpu(usage.cpu_nano), "memory": format_memory(usage.memory_bytes)})
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub fn group() -> Value {
    let version = json!({"groupVersion": GROUP_VERSION, "version": "v1beta1"});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version})
}

pub fn group_list() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]})
}

pub fn resources() -> Value {
    let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]});
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)],
    })
}

/// A `Status` for what went wrong.
pub fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}
