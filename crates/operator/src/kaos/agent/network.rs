//! A NetworkPolicy, only when asked for: an agent reaches its model, its tools, its peers and DNS, and nothing else.

use gantry_crds::{conditions::reasons, kaos::AgentNetworkPolicy};
use k8s_openapi::api::networking::v1::NetworkPolicySpec;
use serde_json::{Value, json};

use super::dependencies::{Dependencies, Dependency};
use crate::workload::{names, verdicts::Blocked};

/// Where DNS servers listen: everywhere, and in pods that may not listen on 53.
const DNS_PORTS: [i32; 2] = [53, 5353];

/// The `spec` of the policy; nothing when none is wanted.
pub fn policy(
    wanted: Option<&AgentNetworkPolicy>,
    selector: &Value,
    dependencies: &Dependencies,
    port: i32,
) -> Result<Option<Value>, Blocked> {
    let Some(wanted) = wanted.filter(|wanted| wanted.enabled()) else {
        return Ok(None);
    };
    let mut egress = vec![dns()];
    egress.extend(dependencies.all.iter().map(towards));
    egress.extend(wanted.egress.iter().flatten().map(|rule| json!(rule.0)));
    let mut spec = json!({
        "podSelector": {"matchLabels": selector},
        "policyTypes": ["Egress"],
        "egress": egress,
    });
    // Who may come in is left open until somebody says who; then agents beside this one may still delegate to it.
    if let Some(more) = &wanted.ingress {
        let mut ingress = vec![json!({
            "from": [{"podSelector": {"matchLabels": {"app": "agent"}}}],
            "ports": [{"protocol": "TCP", "port": port}],
        })];
        ingress.extend(more.iter().map(|rule| json!(rule.0)));
        spec["policyTypes"] = json!(["Egress", "Ingress"]);
        spec["ingress"] = json!(ingress);
    }
    serde_json::from_value::<NetworkPolicySpec>(spec.clone()).map_err(|error| {
        let message = format!("networkPolicy.egress and ingress do not give a valid policy: {error}");
        Blocked::stuck(reasons::INVALID_OVERRIDE, message)
    })?;
    Ok(Some(spec))
}

/// Any DNS server inside the cluster; where they are differs from one to the next.
fn dns() -> Value {
    let ports: Vec<Value> = DNS_PORTS
        .iter()
        .flat_map(|port| ["UDP", "TCP"].map(|protocol| json!({"protocol": protocol, "port": port})))
        .collect();
    json!({"to": [{"namespaceSelector": {}}], "ports": ports})
}

/// The pods behind a dependency: traffic to a Service is judged by where it ends.
fn towards(dependency: &Dependency) -> Value {
    let needed = &dependency.needed;
    let app = needed.role.controller();
    let mut peer =
        json!({"podSelector": {"matchLabels": {"app": app, app: names::label_value(&needed.key.name)}}});
    if needed.is_elsewhere() {
        peer["namespaceSelector"] =
            json!({"matchLabels": {"kubernetes.io/metadata.name": needed.key.namespace}});
    }
    json!({"to": [peer], "ports": [{"protocol": "TCP", "port": dependency.port()}]})
}
