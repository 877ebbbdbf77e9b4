//! A HorizontalPodAutoscaler in the newest version that the server has; the fields are the same in all of them.

use gantry_crds::common::{Autoscaling, AutoscalingMetric, MetricType};
use gantry_kit::admin::Gate;
use kube::{Client, core::ApiResource};
use serde_json::{Value, json};

/// `gate` is told what is waited for.
pub async fn resource(client: &Client, gate: &Gate) -> ApiResource {
    let kind = "HorizontalPodAutoscaler";
    gantry_kit::apis::newest(
        client,
        "autoscaling",
        &["v2", "v2beta2"],
        kind,
        "horizontalpodautoscalers",
        gate,
    )
    .await
}

/// Scales the Deployment of the same name.
pub fn build(autoscaling: &Autoscaling, labels: &Value, name: &str) -> Value {
    let utilization = |resource: &str, percent: i32| {
        json!({"type": "Resource", "resource": {
            "name": resource, "target": {"type": "Utilization", "averageUtilization": percent},
        }})
    };
    let mut metrics: Vec<Value> = Vec::new();
    metrics.extend(
        autoscaling
            .target_memory
            .map(|percent| utilization("memory", percent)),
    );
    metrics.extend(autoscaling.metrics.iter().flatten().map(custom));
    // Last, where old servers put it, whatever was sent: in another place it would look changed for ever.
    metrics.extend(
        autoscaling
            .target_cpu()
            .map(|percent| utilization("cpu", percent)),
    );
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": autoscaling.min_replicas(),
            "maxReplicas": autoscaling.max_replicas(),
            "metrics": metrics,
            "behavior": autoscaling.behavior,
        },
    })
}

fn custom(metric: &AutoscalingMetric) -> Value {
    let target = match (&metric.average_value, &metric.value) {
        (Some(average), _) => json!({"type": "AverageValue", "averageValue": average}),
        (None, value) => json!({"type": "Value", "value": value}),
    };
    let mut named = json!({"name": metric.name});
    if let Some(labels) = &metric.match_labels {
        named["selector"] = json!({"matchLabels": labels});
    }
    match metric.metric_type() {
        MetricType::Pods => json!({"type": "Pods", "pods": {"metric": named, "target": target}}),
        MetricType::External => json!({"type": "External", "external": {"metric": named, "target": target}}),
    }
}
