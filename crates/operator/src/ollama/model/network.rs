//! Pure: how a Model is reached.

use gantry_crds::ollama::{ModelIngress, PORT};
use serde_json::{Value, json};

use super::validate::Valid;
use crate::{
    settings::Gateway,
    workload::route::{self, Backend},
};

pub fn service(model: &Valid, labels: &Value) -> Value {
    let service = model.spec.service.clone().unwrap_or_default();
    json!({
        "metadata": {"name": model.service, "labels": labels, "annotations": service.annotations},
        "spec": {
            "type": service.service_type().as_str(),
            "selector": model.selector,
            "loadBalancerClass": service.load_balancer_class,
            "ports": [{
                "name": "ollama", "port": service.port(), "targetPort": PORT, "nodePort": service.node_port,
                "protocol": "TCP",
            }],
        },
    })
}

pub fn ingress(model: &Valid, ingress: &ModelIngress, labels: &Value) -> Value {
    let port = model.spec.service.clone().unwrap_or_default().port();
    let tls = ingress.tls.as_ref().map(|tls| {
        let host: Vec<String> = ingress.host.iter().cloned().collect();
        let hosts = tls
            .hosts
            .clone()
            .filter(|hosts| !hosts.is_empty())
            .unwrap_or(host);
        json!([{"hosts": hosts, "secretName": tls.secret_name}])
    });
    json!({
        "metadata": {"name": model.workload, "labels": labels, "annotations": ingress.annotations},
        "spec": {
            "ingressClassName": ingress.class_name,
            "tls": tls,
            "rules": [{
                "host": ingress.host,
                "http": {"paths": [{
                    "path": ingress.path(),
                    "pathType": ingress.path_type().as_str(),
                    "backend": {"service": {"name": model.service, "port": {"number": port}}},
                }]},
            }],
        },
    })
}

pub fn route(model: &Valid, gateway: &Gateway, labels: &Value) -> Value {
    let to = Backend {
        route_name: &model.workload,
        path: &model.path(),
        service: &model.service,
        port: model.spec.service.clone().unwrap_or_default().port(),
        timeout: &gateway.modelapi_timeout,
    };
    route::build(gateway, model.spec.gateway_route.as_ref(), labels, &to)
}

/// Where the Model is reached inside the cluster.
pub fn endpoint(model: &Valid) -> String {
    let port = model.spec.service.clone().unwrap_or_default().port();
    format!(
        "http://{}.{}.svc.cluster.local:{port}",
        model.service, model.namespace
    )
}
