//! The JSON of the two APIs. Pure.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    metric::{Metric, quantity},
    path::{CUSTOM, EXTERNAL, MODEL, POD, Refusal, Version},
};

/// One value of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodValue {
    pub namespace: String,
    pub pod: String,
    /// As a label; the models of one pod are told apart by the external API only.
    pub model: String,
    pub value: f64,
}

pub fn external(metric: Metric, values: &[PodValue], now: Timestamp) -> Value {
    let items: Vec<Value> = values
        .iter()
        .map(|value| {
            let mut item = json!({
                "metricName": metric.name(),
                "metricLabels": {POD: value.pod, MODEL: value.model},
                "timestamp": seconds(now),
                "value": quantity(value.value),
            });
            insert(&mut item, "window", metric.window());
            item
        })
        .collect();
    list(Version::External1, "ExternalMetricValueList", items)
}

/// One item for each pod, with the sum over its models.
pub fn custom(version: Version, metric: Metric, values: &[PodValue], now: Timestamp) -> Value {
    let mut items: Vec<(String, String, f64)> = Vec::new();
    for value in values {
        match items
            .iter_mut()
            .find(|item| (&item.0, &item.1) == (&value.namespace, &value.pod))
        {
            Some(item) => item.2 += value.value,
            None => items.push((value.namespace.clone(), value.pod.clone(), value.value)),
        }
    }
    let items = items.into_iter().map(|(namespace, pod, value)| {
        let mut item = json!({
            "describedObject": {"kind": "Pod", "namespace": namespace, "name": pod, "apiVersion": "v1"},
            "timestamp": seconds(now),
            "value": quantity(value),
        });
        if version == Version::Custom1 {
            insert(&mut item, "metricName", Some(metric.name()));
            insert(&mut item, "window", metric.window());
        } else {
            insert(&mut item, "metric", Some(json!({"name": metric.name()})));
            insert(&mut item, "windowSeconds", metric.window());
        }
        item
    });
    list(version, "MetricValueList", items.collect())
}

fn insert(item: &mut Value, name: &str, value: Option<impl Into<Value>>) {
    if let (Some(item), Some(value)) = (item.as_object_mut(), value) {
        item.insert(name.to_owned(), value.into());
    }
}

fn list(version: Version, kind: &str, items: Vec<Value>) -> Value {
    json!({"kind": kind, "apiVersion": group_version(version), "metadata": {}, "items": items})
}

fn group_version(version: Version) -> String {
    format!("{}/{}", version.group(), version.version())
}

pub fn groups() -> Value {
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group(EXTERNAL), group(CUSTOM)]})
}

pub fn group(name: &str) -> Value {
    let versions: Vec<Value> = Version::ALL
        .into_iter()
        .rev()
        .filter(|version| version.group() == name)
        .map(|version| json!({"groupVersion": group_version(version), "version": version.version()}))
        .collect();
    let preferred = versions.first().cloned();
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": preferred,
    })
}

pub fn resources(version: Version) -> Value {
    let (prefix, kind) = match version {
        Version::External1 => ("", "ExternalMetricValueList"),
        Version::Custom1 | Version::Custom2 => ("pods/", "MetricValueList"),
    };
    let resources: Vec<Value> = Metric::ALL
        .into_iter()
        .map(|metric| {
            json!({
                "name": format!("{prefix}{}", metric.name()),
                "singularName": "",
                "namespaced": true,
                "kind": kind,
                "verbs": ["get"],
            })
        })
        .collect();
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(version),
        "resources": resources,
    })
}

/// The API server collects these documents from everybody, and complains where there is none.
pub fn open_api_2() -> Value {
    json!({"swagger": "2.0", "info": {"title": "Gantry metrics", "version": "v1beta1"}, "paths": {}})
}

pub fn open_api_3() -> Value {
    json!({"paths": {}})
}

pub fn refusal(refusal: &Refusal) -> Value {
    let mut status = Map::new();
    status.insert("kind".into(), "Status".into());
    status.insert("apiVersion".into(), "v1".into());
    status.insert("metadata".into(), json!({}));
    status.insert("status".into(), "Failure".into());
    status.insert("message".into(), refusal.message.clone().into());
    status.insert("reason".into(), refusal.reason.into());
    status.insert("code".into(), refusal.code.into());
    Value::Object(status)
}

fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<PodValue> {
        [
            ("phi-1", "phi", 2.0),
            ("phi-1", "other", 0.5),
            ("phi-2", "phi", 1.0),
        ]
        .into_iter()
        .map(|(pod, model, value)| PodValue {
            namespace: "team".into(),
            pod: pod.into(),
            model: model.into(),
            value,
        })
        .collect()
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05.6Z".parse().unwrap()
    }

    #[test]
    fn external_values_are_told_apart_by_pod_and_model() {
        let told = external(Metric::RequestsPerSecond, &values(), now());
        assert_eq!(told["kind"], "ExternalMetricValueList");
        assert_eq!(
            told["items"][1],
            json!({
                "metricName": "gantry_model_requests_per_second",
                "metricLabels": {"pod": "phi-1", "model": "other"},
                "timestamp": "2026-01-02T03:04:05Z",
                "window": 30,
                "value": "500m",
            })
        );
    }

    #[test]
    fn a_pod_has_one_value() {
        let told = custom(Version::Custom2, Metric::QueueDepth, &values(), now());
        assert_eq!(told["apiVersion"], "custom.metrics.k8s.io/v1beta2");
        assert_eq!(told["items"].as_array().unwrap().len(), 2);
        assert_eq!(
            told["items"][0],
            json!({
                "describedObject": {"kind": "Pod", "namespace": "team", "name": "phi-1", "apiVersion": "v1"},
                "metric": {"name": "gantry_model_queue_depth"},
                "timestamp": "2026-01-02T03:04:05Z",
                "value": "2500m",
            })
        );
        let older = custom(Version::Custom1, Metric::RequestsPerSecond, &values(), now());
        assert_eq!(
            older["items"][1]["metricName"],
            "gantry_model_requests_per_second"
        );
        assert_eq!(older["items"][1]["window"], 30);
    }

    #[test]
    fn the_newest_version_is_preferred() {
        assert_eq!(group(CUSTOM)["preferredVersion"]["version"], "v1beta2");
        assert_eq!(group(EXTERNAL)["versions"].as_array().unwrap().len(), 1);
        assert_eq!(
            resources(Version::Custom1)["resources"][0]["name"],
            "pods/gantry_model_requests_per_second"
        );
    }
}
