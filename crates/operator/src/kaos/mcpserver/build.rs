//! Pure: the complete wished-for objects of a valid server.

use gantry_kit::Wish;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::validate::{PORT, Valid};
use crate::workload::{
    autoscaler,
    deployment::Identity,
    names,
    route::{self, Backend, Route},
};

pub fn build(server: &Valid, autoscaler_resource: &ApiResource) -> Wish {
    let selector = selector(server);
    let identity = Identity {
        child: &server.child,
        controller: "mcpserver",
        root: &server.name,
        component: "mcp-server",
        part_of: "kaos",
        selector: &selector,
    };
    let labels = identity.labels();
    // Port 80 as the seed has it, 8000 as today's clients expect it.
    let service = identity.service(&[("http", 80, PORT), ("mcp", PORT, PORT)]);
    let autoscaling = server.spec.autoscaling();
    let replicas = autoscaling.is_none().then(|| server.spec.replicas());
    let deployment = identity.deployment(&server.pod, replicas, server.fingerprint.as_deref());
    let mut wish = Wish::default();
    wish.add_json(ApiResource::erase::<Service>(&()), service);
    wish.add_json(ApiResource::erase::<Deployment>(&()), deployment);
    if let Some(autoscaling) = autoscaling {
        let hpa = autoscaler::build(autoscaling, &labels, &server.child);
        wish.add_json(autoscaler_resource.clone(), hpa);
    }
    if let Route::Wanted(gateway) = &server.route {
        let own = server.spec.gateway_route.as_ref();
        let to = Backend {
            route_name: &names::child("mcp", &server.name),
            path: &server.path(),
            service: &server.child,
            port: PORT,
            timeout: &gateway.mcp_timeout,
        };
        let route = route::build(gateway, own, &labels, &to);
        wish.add_json(route::resource(), route);
    }
    wish
}

/// The original's selector: it cannot change on a live Deployment.
pub fn selector(server: &Valid) -> Value {
    json!({"app": "mcpserver", "mcpserver": names::label_value(&server.name)})
}
