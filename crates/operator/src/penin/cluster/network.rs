//! Pure: NetworkPolicies. The services talk to each other and to their cache, everybody asks for names, the operator reads
//! the metrics, and where it takes requests for changes they may ask it; anything else has to be listed in the spec.

use gantry_crds::{
    common::Fragment,
    penin::{SelfArchitecting, Service},
};
use serde_json::{Value, json};

use super::{
    keeper,
    plan::{Plan, REDIS, REDIS_PORT},
};

pub fn policies(plan: &Plan<'_>, labels: impl Fn(&str) -> Value) -> Vec<Value> {
    let Some(policy) = plan
        .spec
        .network_policy
        .as_ref()
        .filter(|policy| policy.enabled())
    else {
        return Vec::new();
    };
    let family = json!({"podSelector": {"matchLabels": plan.everything()}});
    let names = Service::ALL.map(Service::name);
    let ports: Vec<Value> = Service::ALL
        .map(|service| json!({"port": plan.spec.port(service), "protocol": "TCP"}))
        .into();
    let mut ingress = vec![json!({"from": [family]})];
    let home = json!({"kubernetes.io/metadata.name": plan.settings.namespace});
    if plan.spec.observability().metrics() {
        ingress.push(json!({"from": [{"namespaceSelector": {"matchLabels": home}}], "ports": ports}));
    }
    ingress.extend(own(policy.ingress.as_ref()));
    let names_of_hosts = json!({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]});
    let mut egress = vec![json!({"to": [family]}), names_of_hosts];
    let changes = plan.spec.self_architecting.as_ref();
    if let Some(address) = plan.settings.changes_address
        && changes.is_some_and(SelfArchitecting::enabled)
    {
        let port = json!([{"port": address.port(), "protocol": "TCP"}]);
        egress.push(json!({"to": [{"namespaceSelector": {"matchLabels": home}}], "ports": port}));
    }
    egress.extend(own(policy.egress.as_ref()));
    let mut selector = json!({"matchLabels": plan.everything()});
    selector["matchExpressions"] = json!([{"key": "service", "operator": "In", "values": names}]);
    let mut policies = vec![json!({
        "metadata": {"name": plan.child("services"), "labels": labels("services")},
        "spec": {
            "podSelector": selector, "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress, "egress": egress,
        },
    })];
    if plan.spec.storage().wants_redis() {
        policies.push(json!({
            "metadata": {"name": plan.child(REDIS), "labels": labels(REDIS)},
            "spec": {
                "podSelector": {"matchLabels": plan.selector(REDIS)},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [family], "ports": [{"port": REDIS_PORT, "protocol": "TCP"}]}],
                "egress": [],
            },
        }));
    }
    if keeper::off(plan).is_none() {
        // Nobody has to ask it anything; where the API server is, which it asks, only the cluster's network knows.
        policies.push(json!({
            "metadata": {"name": plan.child(keeper::COMPONENT), "labels": labels(keeper::COMPONENT)},
            "spec": {
                "podSelector": {"matchLabels": plan.selector(keeper::COMPONENT)},
                "policyTypes": ["Ingress"],
                "ingress": [],
            },
        }));
    }
    policies
}

fn own(rules: Option<&Vec<Fragment>>) -> impl Iterator<Item = Value> {
    rules
        .into_iter()
        .flatten()
        .map(|rule| Value::Object(rule.0.clone()))
}
