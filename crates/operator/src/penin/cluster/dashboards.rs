//! Pure: what Prometheus and Grafana are told: ServiceMonitors, and a dashboard, in a ConfigMap for Grafana's sidecar or as
//! a file with variables. `deploy/monitoring/dashboards/penin.json` is made from it.

use gantry_crds::penin::Service;
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{
    env, keeper,
    plan::{Plan, REDIS},
    scores,
};

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

/// The dashboard of one cluster.
pub fn config_map(plan: &Plan<'_>, labels: &Value) -> Value {
    let mut labels = labels.clone();
    // What the sidecar of Grafana's chart looks for.
    labels["grafana_dashboard"] = json!("1");
    let mut dashboard = of_cluster(&plan.namespace, &plan.name, &workloads(|part| plan.child(part)));
    dashboard["title"] = json!(format!("PENIN-Ω {}/{}", plan.namespace, plan.name));
    // Serialising what we just built cannot fail.
    let text = serde_json::to_string_pretty(&dashboard).unwrap_or_default();
    json!({
        "metadata": {"name": plan.child("dashboards"), "labels": labels},
        "data": {format!("penin-{}-{}.json", plan.namespace, plan.name): text},
    })
}

/// The dashboard of any cluster: which one is chosen in Grafana.
pub fn of_any() -> Value {
    let variable = |name: &str, label: &str, query: String| {
        json!({
            "type": "query", "name": name, "label": label, "refresh": 2, "sort": 1, "includeAll": false,
            "datasource": SOURCE, "query": {"query": query, "refId": name},
        })
    };
    let score = scores::NAME;
    let workloads = workloads(|part| format!("$cluster-{part}"));
    let mut dashboard = of_cluster("$namespace", "$cluster", &workloads);
    dashboard["title"] = json!("PENIN-Ω");
    dashboard["uid"] = json!("gantry-penin");
    dashboard["templating"] = json!({"list": [
        {"type": "datasource", "name": "source", "label": "Prometheus", "query": "prometheus"},
        variable("namespace", "Namespace", format!("label_values({score}, penin_namespace)")),
        variable("cluster", "Cluster", format!("label_values({score}{{penin_namespace=\"$namespace\"}}, penin_cluster)")),
    ]});
    for panel in dashboard["panels"].as_array_mut().into_iter().flatten() {
        panel["datasource"] = json!(SOURCE);
    }
    dashboard
}

const SOURCE: &str = "${source}";

/// One picture: title, how it is drawn, unit, and what of the cluster is in it with its legend.
struct Panel {
    title: &'static str,
    kind: &'static str,
    unit: &'static str,
    shows: Vec<(String, &'static str)>,
}

/// What matches the Deployments of one cluster, and not those of another whose name begins alike.
fn workloads(child: impl Fn(&str) -> String) -> String {
    let parts = Service::ALL.iter().map(|service| service.name());
    let parts = parts.chain([REDIS, keeper::COMPONENT]).map(child);
    format!("({})", parts.collect::<Vec<_>>().join("|"))
}

fn of_cluster(namespace: &str, cluster: &str, workloads: &str) -> Value {
    let panels: Vec<Value> = panels(namespace, cluster, workloads)
        .into_iter()
        .enumerate()
        .map(|(index, panel)| {
            let targets: Vec<Value> = panel
                .shows
                .iter()
                .zip('A'..)
                .map(|((expression, legend), id)| {
                    json!({"refId": id.to_string(), "expr": expression, "legendFormat": legend})
                })
                .collect();
            json!({
                "id": index + 1, "title": panel.title, "type": panel.kind, "targets": targets,
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "gridPos": {"x": index % 2 * 12, "y": index / 2 * 8, "w": 12, "h": 8},
            })
        })
        .collect();
    json!({
        "schemaVersion": 39, "refresh": "30s", "time": {"from": "now-6h", "to": "now"}, "tags": ["penin"],
        "panels": panels,
    })
}

/// Both sets of names that PENIN-Ω has, and what the operator read where neither is served.
fn panels(namespace: &str, cluster: &str, workloads: &str) -> Vec<Panel> {
    let of = format!("{{namespace=\"{namespace}\",pod=~\"{workloads}-.*\"}}");
    let container = format!("{{namespace=\"{namespace}\",pod=~\"{workloads}-.*\",container!=\"\"}}");
    let read = |score: &str| {
        format!(
            "{}{{penin_namespace=\"{namespace}\",penin_cluster=\"{cluster}\",score=~\"{score}\"}}",
            scores::NAME
        )
    };
    let deployment = format!("{{namespace=\"{namespace}\",deployment=~\"{workloads}\"}}");
    let gauge = |name: &str| format!("avg({name}{of})");
    vec![
        Panel {
            title: "L∞ over time",
            kind: "timeseries",
            unit: "short",
            shows: vec![
                (gauge("penin_linf_score"), "L∞"),
                (
                    format!("avg(penin_delta_linf{of}) or {}", read("delta_linf")),
                    "ΔL∞",
                ),
            ],
        },
        Panel {
            title: "CAOS+ and step size",
            kind: "timeseries",
            unit: "short",
            shows: vec![
                (
                    format!(
                        "avg(penin_caos_plus{of}) or avg(penin_caos_plus_score{of}) or {}",
                        read("caos_plus")
                    ),
                    "CAOS+",
                ),
                (format!("avg(penin_alpha{of}) or {}", read("alpha")), "α"),
            ],
        },
        Panel {
            title: "SR-Ω∞: the four axes",
            kind: "bargauge",
            unit: "percentunit",
            shows: vec![(
                read("sr_awareness|sr_ethics|sr_autocorrection|sr_metacognition"),
                "{{score}}",
            )],
        },
        Panel {
            title: "SR-Ω∞ over time",
            kind: "timeseries",
            unit: "percentunit",
            shows: vec![(
                format!(
                    "avg(penin_sr_score{of}) or avg(penin_sr_omega_score{of}) or {}",
                    read("sr_score")
                ),
                "SR-Ω∞",
            )],
        },
        Panel {
            title: "Gates: passed and failed",
            kind: "timeseries",
            unit: "ops",
            shows: vec![
                (
                    format!("sum by (action) (rate(penin_sigma_guard_decisions_total{of}[5m]))"),
                    "{{action}}",
                ),
                (
                    format!("sum by (gate) (rate(penin_gate_fail_total{of}[5m]))"),
                    "failed at {{gate}}",
                ),
            ],
        },
        Panel {
            title: "Gates: share that passes",
            kind: "timeseries",
            unit: "percentunit",
            shows: vec![(
                format!("avg by (gate_name) (penin_gate_pass_rate{of})"),
                "{{gate_name}}",
            )],
        },
        Panel {
            title: "CPU",
            kind: "timeseries",
            unit: "short",
            shows: vec![(
                format!("sum by (pod) (rate(container_cpu_usage_seconds_total{container}[5m]))"),
                "{{pod}}",
            )],
        },
        Panel {
            title: "Memory",
            kind: "timeseries",
            unit: "bytes",
            shows: vec![(
                format!("sum by (pod) (container_memory_working_set_bytes{container})"),
                "{{pod}}",
            )],
        },
        Panel {
            title: "Pods that are available",
            kind: "timeseries",
            unit: "short",
            shows: vec![(
                format!("kube_deployment_status_replicas_available{deployment}"),
                "{{deployment}}",
            )],
        },
        Panel {
            title: "Budget of the day",
            kind: "timeseries",
            unit: "currencyUSD",
            shows: vec![
                (gauge("penin_budget_used_usd"), "used"),
                (gauge("penin_budget_remaining_usd"), "left"),
            ],
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every name that there is: of PENIN-Ω's documentation, of its library, of its own alerts; of cAdvisor, of
    /// kube-state-metrics and the kubelet; and ours.
    const KNOWN: &[&str] = &[
        "penin_alpha",
        "penin_delta_linf",
        "penin_caos_plus",
        "penin_sr_score",
        "penin_gate_fail_total",
        "penin_cycle_duration_seconds_bucket",
        "penin_linf_score",
        "penin_caos_plus_score",
        "penin_sr_omega_score",
        "penin_omega_sea_score",
        "penin_sigma_guard_decisions_total",
        "penin_gate_pass_rate",
        "penin_ethics_violations_total",
        "penin_budget_used_usd",
        "penin_budget_remaining_usd",
        "penin_rho",
        "penin_ece",
        "penin_rho_bias",
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_spec_memory_limit_bytes",
        "kube_deployment_status_replicas_available",
        "kube_deployment_spec_replicas",
        "kubelet_volume_stats_used_bytes",
        "kubelet_volume_stats_capacity_bytes",
        scores::NAME,
    ];

    /// Words of an expression that name a series: those before a `{`, and in alerts also bare ones.
    fn series(expression: &str) -> BTreeSet<&str> {
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names = [
            "penin_",
            "container_",
            "kube_",
            "kubelet_",
            "gantry_",
            "redis_",
            "node_",
            "process_",
        ];
        let labels = ["penin_namespace", "penin_cluster"];
        words
            .filter(|word| names.iter().any(|start| word.starts_with(start)))
            .filter(|word| !labels.contains(word))
            .collect()
    }

    fn check(what: &str, expression: &str) {
        let named = series(expression);
        assert!(!named.is_empty(), "{what} shows nothing: {expression}");
        let unknown: Vec<_> = named.iter().filter(|name| !KNOWN.contains(name)).collect();
        assert!(unknown.is_empty(), "{what} shows what nobody serves: {unknown:?}");
    }

    #[test]
    fn a_dashboard_shows_what_somebody_serves() {
        for panel in panels("ns", "demo", "(demo-redis)") {
            assert!(panel.shows.len() <= 26);
            for (expression, _) in &panel.shows {
                check(panel.title, expression);
            }
        }
    }

    #[test]
    fn clusters_whose_names_begin_alike_are_not_mixed() {
        let found = workloads(|part| format!("demo-{part}"));
        assert!(
            found.starts_with("(demo-") && found.contains("|demo-sigma-guard|"),
            "{found}"
        );
        let text = of_cluster("ns", "demo", &found).to_string();
        assert!(!text.contains("demo-.*"), "{text}");
    }

    #[test]
    fn alerts_watch_what_somebody_serves_and_have_a_runbook() {
        let text = include_str!("../../../../../deploy/monitoring/penin-alerts.yaml");
        let rules: Value = serde_saphyr::from_str(text).expect("YAML");
        let runbook = include_str!("../../../../../docs/runbooks/penin.md");
        let groups = rules["groups"].as_array().into_iter().flatten();
        let alerts: Vec<&Value> = groups
            .flat_map(|group| group["rules"].as_array().into_iter().flatten())
            .collect();
        assert!(alerts.len() >= 10);
        for alert in alerts {
            let name = alert["alert"].as_str().expect("a name");
            check(name, alert["expr"].as_str().expect("an expression"));
            assert!(
                runbook.contains(&format!("\n## {name}\n")),
                "{name} has no runbook"
            );
            let link = alert["annotations"]["runbook"].as_str().expect("a runbook");
            assert_eq!(link, format!("docs/runbooks/penin.md#{}", name.to_lowercase()));
        }
    }
}
