//! Pure: what Prometheus and Grafana are told: ServiceMonitors, and a ConfigMap with a dashboard for the sidecar.

use gantry_crds::penin::Service;
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{env, plan::Plan};

/// Name of the CRD that must be there before a ServiceMonitor can be made.
pub const CRD: &str = "servicemonitors.monitoring.coreos.com";

pub fn monitor_resource() -> ApiResource {
    ApiResource {
        group: "monitoring.coreos.com".to_owned(),
        version: "v1".to_owned(),
        api_version: "monitoring.coreos.com/v1".to_owned(),
        kind: "ServiceMonitor".to_owned(),
        plural: "servicemonitors".to_owned(),
    }
}

/// Path of a service's metrics.
pub fn path(plan: &Plan<'_>, service: Service) -> String {
    let own = plan.spec.service(service).metrics_path;
    own.filter(|path| !path.is_empty())
        .unwrap_or_else(|| "/metrics".to_owned())
}

pub fn monitor(plan: &Plan<'_>, service: Service, labels: &Value) -> Value {
    let seconds = plan.spec.observability().metrics_interval_seconds();
    let mut endpoint =
        json!({"port": "http", "path": path(plan, service), "interval": format!("{seconds}s")});
    if let Some((name, key)) = env::metrics_token(plan) {
        endpoint["authorization"] = json!({"credentials": {"name": name, "key": key}});
    }
    json!({
        "metadata": {"name": plan.child(service.name()), "labels": labels},
        "spec": {"selector": {"matchLabels": plan.selector(service.name())}, "endpoints": [endpoint]},
    })
}

pub fn dashboards(plan: &Plan<'_>, labels: &Value) -> Value {
    let mut labels = labels.clone();
    // What the sidecar of Grafana's chart looks for.
    labels["grafana_dashboard"] = json!("1");
    // Serialising what we just built cannot fail.
    let text = serde_json::to_string_pretty(&dashboard(plan)).unwrap_or_default();
    json!({
        "metadata": {"name": plan.child("dashboards"), "labels": labels},
        "data": {format!("penin-{}-{}.json", plan.namespace, plan.name): text},
    })
}

fn dashboard(plan: &Plan<'_>) -> Value {
    let of = format!("{{namespace=\"{}\",pod=~\"{}-.*\"}}", plan.namespace, plan.name);
    let either = |one: &str, other: &str| format!("{one}{of} or {other}{of}");
    let panels = [
        (
            "L∞ over time",
            "timeseries",
            vec![format!("penin_delta_linf{of}"), format!("penin_linf_score{of}")],
        ),
        (
            "CAOS+",
            "timeseries",
            vec![either("penin_caos_plus", "penin_caos_plus_score")],
        ),
        (
            "SR-Ω∞",
            "gauge",
            vec![either("penin_sr_score", "penin_sr_omega_score")],
        ),
        ("Step size α", "timeseries", vec![format!("penin_alpha{of}")]),
        (
            "Gates",
            "timeseries",
            vec![
                format!("rate(penin_gate_fail_total{of}[5m])"),
                format!("sum by (action) (rate(penin_sigma_guard_decisions_total{of}[5m]))"),
                format!("penin_gate_pass_rate{of}"),
            ],
        ),
        (
            "CPU",
            "timeseries",
            vec![format!(
                "sum by (pod) (rate(container_cpu_usage_seconds_total{of}[5m]))"
            )],
        ),
        (
            "Memory",
            "timeseries",
            vec![format!("sum by (pod) (container_memory_working_set_bytes{of})")],
        ),
        (
            "Budget in USD",
            "timeseries",
            vec![
                format!("penin_budget_used_usd{of}"),
                format!("penin_budget_remaining_usd{of}"),
            ],
        ),
    ];
    let panels: Vec<Value> = panels
        .into_iter()
        .enumerate()
        .map(|(index, (title, kind, expressions))| {
            let targets: Vec<Value> = expressions
                .iter()
                .zip('A'..)
                .map(|(expression, id)| json!({"refId": id.to_string(), "expr": expression}))
                .collect();
            json!({
                "id": index + 1, "title": title, "type": kind, "targets": targets,
                "gridPos": {"x": index % 2 * 12, "y": index / 2 * 8, "w": 12, "h": 8},
            })
        })
        .collect();
    json!({
        "title": format!("PENIN-Ω {}/{}", plan.namespace, plan.name),
        "schemaVersion": 39, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
        "tags": ["penin"], "panels": panels,
    })
}
