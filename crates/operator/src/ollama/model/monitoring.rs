//! Pure: what is made for Prometheus, where the kinds of its operator are installed.

use gantry_crds::{conditions::reasons, ollama::ModelMonitoring};
use gantry_kit::{Verdict, Wish};
use k8s_openapi::api::core::v1::Service;
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{
    proxy::{METRICS, METRICS_PORT},
    validate::Valid,
};
use crate::workload::names;

const GROUP: &str = "monitoring.coreos.com";
/// Kind and plural of what can be wanted.
const KINDS: [(&str, &str); 3] = [
    ("ServiceMonitor", "servicemonitors"),
    ("PodMonitor", "podmonitors"),
    ("PrometheusRule", "prometheusrules"),
];

pub fn resources() -> Vec<ApiResource> {
    KINDS
        .iter()
        .map(|(kind, plural)| resource(kind, plural))
        .collect()
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{GROUP}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Which kinds this cluster knows, in the order of [`KINDS`].
pub fn known(has: impl Fn(&str) -> bool) -> [bool; 3] {
    KINDS.map(|(_, plural)| has(&format!("{plural}.{GROUP}")))
}

fn wanted(monitoring: &ModelMonitoring) -> [bool; 3] {
    let said = [
        monitoring.service_monitor,
        monitoring.pod_monitor,
        monitoring.prometheus_rule,
    ];
    said.map(|said| said.unwrap_or(false))
}

/// No Model's own Service can have this name: those begin with `ollama-model-`, whatever the Model is called.
pub fn service_name(model: &str) -> String {
    names::child("ollama-metrics", model)
}

/// What is to be made, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    make: [bool; 3],
    missing: Vec<&'static str>,
    is_wanted: bool,
}

impl Plan {
    pub fn decide(monitoring: Option<&ModelMonitoring>, known: [bool; 3]) -> Self {
        let wanted = monitoring.map(wanted).unwrap_or_default();
        let mut plan = Self {
            is_wanted: wanted.contains(&true),
            ..Self::default()
        };
        for (index, (kind, _)) in KINDS.iter().enumerate() {
            plan.make[index] = wanted[index] && known[index];
            if wanted[index] && !known[index] {
                plan.missing.push(kind);
            }
        }
        plan
    }

    pub fn verdict(&self) -> Verdict {
        if !self.is_wanted {
            return Verdict::no(reasons::NOT_REQUESTED, "");
        }
        if self.missing.is_empty() {
            return Verdict::yes(reasons::SUCCEEDED, "");
        }
        let message = format!(
            "this cluster does not know {}: install the CRDs of the Prometheus operator, or remove it from monitoring",
            self.missing.join(", ")
        );
        Verdict::no(reasons::MONITORING_API_MISSING, message)
    }

    pub fn add_to(&self, model: &Valid, labels: &Value, wish: &mut Wish) {
        let monitoring = model.spec.monitoring.clone().unwrap_or_default();
        let [service, pods, rule] = self.make;
        let mut found_by = labels.clone();
        for (name, value) in monitoring.labels.iter().flatten() {
            found_by[name] = json!(value);
        }
        let metadata = json!({"name": model.workload, "labels": found_by});
        let mut endpoint = json!({"port": METRICS, "path": "/metrics"});
        if let Some(interval) = &monitoring.interval {
            endpoint["interval"] = json!(interval);
        }
        let [service_monitor, pod_monitor, prometheus_rule] =
            KINDS.map(|(kind, plural)| resource(kind, plural));
        if service {
            // Not a port of the Model's own Service: that one may be open to the world.
            let mut labels = labels.clone();
            labels["app.kubernetes.io/component"] = json!(METRICS);
            let name = service_name(&model.name);
            wish.add_json(
                ApiResource::erase::<Service>(&()),
                json!({
                    "metadata": {"name": name, "labels": labels},
                    "spec": {
                        "clusterIP": "None",
                        "selector": model.selector,
                        "ports": [{"name": METRICS, "port": METRICS_PORT, "targetPort": METRICS_PORT, "protocol": "TCP"}],
                    },
                }),
            );
            let by = ["name", "instance", "component"].map(|name| format!("app.kubernetes.io/{name}"));
            let selector: Value = by
                .iter()
                .map(|name| (name.clone(), labels[name].clone()))
                .collect();
            wish.add_json(
                service_monitor,
                json!({
                    "metadata": metadata,
                    "spec": {"selector": {"matchLabels": selector}, "endpoints": [endpoint]},
                }),
            );
        }
        if pods {
            wish.add_json(
                pod_monitor,
                json!({
                    "metadata": metadata,
                    "spec": {"selector": {"matchLabels": model.selector}, "podMetricsEndpoints": [endpoint]},
                }),
            );
        }
        if rule {
            let only = Only {
                namespace: &model.namespace,
                workload: &model.workload,
                may_be_away: model.spec.replicas() == 0
                    || model
                        .spec
                        .autoscaling()
                        .is_some_and(|scaled| scaled.min_replicas() == 0),
            };
            wish.add_json(
                prometheus_rule,
                json!({"metadata": metadata, "spec": groups(Some(&only))}),
            );
        }
    }
}

/// One Model, for rules that are about it alone.
pub struct Only<'a> {
    pub namespace: &'a str,
    pub workload: &'a str,
    /// No pod at all is no trouble.
    pub may_be_away: bool,
}

impl Only<'_> {
    fn matchers(&self) -> String {
        // Two more words: the ReplicaSet's and the pod's. A Model whose name only begins the same has three.
        let workload = self.workload.replace('.', "\\\\.");
        format!(
            "namespace=\"{}\",pod=~\"{workload}-[a-z0-9]+-[a-z0-9]+\"",
            self.namespace
        )
    }
}

/// Rules about one Model, or about all of them: `deploy/monitoring` has the latter.
pub fn groups(only: Option<&Only<'_>>) -> Value {
    let these = only.map(Only::matchers).unwrap_or_default();
    let of = |metric: &str, more: &str| {
        let matchers: Vec<&str> = [more, these.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect();
        format!("{metric}{{{}}}", matchers.join(","))
    };
    let by = "sum by (namespace, model)";
    let mut rules = vec![
        alert(
            "GantryModelErrors",
            "10m",
            "warning",
            &format!(
                "{by} (rate({}[5m])) / {by} (rate({}[5m])) > 0.05",
                of("gantry_model_requests_total", "code=~\"5xx|broken\""),
                of("gantry_model_requests_total", "")
            ),
            "More than 5 % of the requests to {{ $labels.model }} fail",
            "{{ $value | humanizePercentage }} failed. Look at the logs of container server of the Model's pods.",
        ),
        alert(
            "GantryModelQueue",
            "5m",
            "warning",
            &format!(
                "{by} (min_over_time({}[10m])) > 0",
                of("gantry_model_queue_depth", "")
            ),
            "Requests to {{ $labels.model }} wait all the time",
            "Nobody was served at once for ten minutes. Raise replicas, or maxReplicas of the autoscaler.",
        ),
        alert(
            "GantryModelRejects",
            "1m",
            "critical",
            &format!(
                "{by} (increase({}[5m])) > 0",
                of("gantry_model_requests_rejected_total", "")
            ),
            "Requests to {{ $labels.model }} are turned away",
            "The queue was full for {{ $value | humanize }} requests of the last five minutes. Raise replicas.",
        ),
        alert(
            "GantryModelSlow",
            "10m",
            "warning",
            &format!(
                "histogram_quantile(0.95, sum by (namespace, model, le) (rate({}[10m]))) > 10",
                of("gantry_model_time_to_first_token_seconds_bucket", "")
            ),
            "{{ $labels.model }} takes long to begin its answers",
            "One of twenty answers begins after {{ $value | humanizeDuration }} or later.",
        ),
        alert(
            "GantryModelHangs",
            "1m",
            "critical",
            &format!(
                "{by} (min_over_time({}[15m])) > 0 unless {by} (increase({}[15m])) > 0",
                of("gantry_model_in_flight", ""),
                of("gantry_model_requests_total", "")
            ),
            "{{ $labels.model }} works and never ends",
            "Requests are under way, and none ended for fifteen minutes. Delete the Model's pods one by one.",
        ),
    ];
    if let Some(only) = only.filter(|only| !only.may_be_away) {
        let expression = format!("absent({} == 1)", of("up", ""));
        let mut down = alert(
            "GantryModelDown",
            "5m",
            "critical",
            &expression,
            &format!("No pod of {} answers Prometheus", only.workload),
            "Look at the conditions of the Model: kubectl describe model.",
        );
        // What is absent has no labels of its own.
        down["labels"]["namespace"] = json!(only.namespace);
        rules.push(down);
    }
    let name = only.map_or_else(|| "gantry-models".to_owned(), |only| only.workload.to_owned());
    json!({"groups": [{"name": name, "rules": rules}]})
}

fn alert(
    name: &str,
    lasting: &str,
    severity: &str,
    expression: &str,
    summary: &str,
    description: &str,
) -> Value {
    json!({
        "alert": name, "expr": expression, "for": lasting, "labels": {"severity": severity},
        "annotations": {
            "summary": summary, "description": description,
            "runbook": format!("docs/runbooks/models.md#{}", name.to_lowercase()),
        },
    })
}
