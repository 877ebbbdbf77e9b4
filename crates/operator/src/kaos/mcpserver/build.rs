//! Pure: the complete wished-for objects of a valid server.

use gantry_kit::{
    Wish,
    pods::{INSTANCE_LABEL, NAME_LABEL},
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::validate::{PORT, Route, Valid};
use crate::workload::{autoscaler, names, route};

pub fn build(server: &Valid, autoscaler_resource: &ApiResource) -> Wish {
    let mut wish = Wish::default();
    wish.add_json(ApiResource::erase::<Service>(&()), service(server));
    wish.add_json(ApiResource::erase::<Deployment>(&()), deployment(server));
    if let Some(autoscaling) = server.spec.autoscaling() {
        let hpa = autoscaler::build(autoscaling, &labels(server), &server.child);
        wish.add_json(autoscaler_resource.clone(), hpa);
    }
    if let Route::Wanted(gateway) = &server.route {
        let path = format!("/{}/mcp/{}", server.namespace, server.name);
        let own = server.spec.gateway_route.as_ref();
        let name = names::child("mcp", &server.name);
        let route = route::build(gateway, own, &labels(server), &name, &path, &server.child, PORT);
        wish.add_json(route::resource(), route);
    }
    wish
}

/// The original's selector: it cannot change on a live Deployment.
pub fn selector(server: &Valid) -> Value {
    json!({"app": "mcpserver", "mcpserver": names::label_value(&server.name)})
}

fn labels(server: &Valid) -> Value {
    let mut labels = selector(server);
    labels[NAME_LABEL] = json!("mcpserver");
    labels[INSTANCE_LABEL] = json!(names::label_value(&server.name));
    labels["app.kubernetes.io/component"] = json!("mcp-server");
    labels["app.kubernetes.io/part-of"] = json!("kaos");
    labels["app.kubernetes.io/managed-by"] = json!(gantry_kit::MANAGED_BY);
    labels
}

/// Port 80 as the seed has it, 8000 as today's clients expect it.
fn service(server: &Valid) -> Value {
    let port =
        |name: &str, port: i32| json!({"name": name, "port": port, "targetPort": PORT, "protocol": "TCP"});
    json!({
        "metadata": {"name": server.child, "labels": labels(server)},
        "spec": {
            "type": "ClusterIP",
            "selector": selector(server),
            "ports": [port("http", 80), port("mcp", PORT)],
        },
    })
}

fn deployment(server: &Valid) -> Value {
    let mut annotations = json!({});
    if let Some(fingerprint) = &server.fingerprint {
        annotations["gantry.dev/references"] = json!(fingerprint);
    }
    let mut spec = json!({
        "selector": {"matchLabels": selector(server)},
        "revisionHistoryLimit": 3,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {
            "metadata": {"labels": labels(server), "annotations": annotations},
            "spec": server.pod,
        },
    });
    // Left out when an autoscaler decides.
    if server.spec.autoscaling().is_none() {
        spec["replicas"] = json!(server.spec.replicas());
    }
    json!({"metadata": {"name": server.child, "labels": labels(server)}, "spec": spec})
}
