//! Pure: the complete wished-for objects of a valid agent.

use gantry_kit::Wish;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service, networking::v1::NetworkPolicy};
use kube::core::ApiResource;
use serde_json::json;

use super::validate::{PORT, Valid, selector};
use crate::workload::{
    autoscaler,
    deployment::Identity,
    route::{self, Backend, Route},
};

pub fn build(agent: &Valid, autoscaler_resource: &ApiResource) -> Wish {
    let selector = selector(&agent.name);
    let identity = Identity {
        child: &agent.child,
        controller: "agent",
        root: &agent.name,
        component: "agent",
        part_of: "kaos",
        selector: &selector,
    };
    let labels = identity.labels();
    let mut wish = Wish::default();
    // Before the pods: there is no moment in which they may talk to everybody.
    if let Some(policy) = &agent.policy {
        let policy = json!({"metadata": {"name": agent.child, "labels": labels}, "spec": policy});
        wish.add_json(ApiResource::erase::<NetworkPolicy>(&()), policy);
    }
    if agent.spec.expose() {
        // Port 80 as the seed has it, 8000 as today's clients expect it.
        let service = identity.service(&[("http", 80, PORT), ("agent", PORT, PORT)]);
        wish.add_json(ApiResource::erase::<Service>(&()), service);
    }
    let autoscaling = agent.spec.autoscaling();
    let replicas = autoscaling.is_none().then(|| agent.spec.replicas());
    let deployment = identity.deployment(&agent.pod, replicas, agent.fingerprint.as_deref());
    wish.add_json(ApiResource::erase::<Deployment>(&()), deployment);
    if let Some(autoscaling) = autoscaling {
        let hpa = autoscaler::build(autoscaling, &labels, &agent.child);
        wish.add_json(autoscaler_resource.clone(), hpa);
    }
    if let Route::Wanted(gateway) = &agent.route {
        let own = agent.spec.gateway_route.as_ref();
        let to = Backend {
            route_name: &agent.child,
            path: &agent.path(),
            service: &agent.child,
            port: PORT,
            timeout: &gateway.agent_timeout,
        };
        wish.add_json(route::resource(), route::build(gateway, own, &labels, &to));
    }
    wish
}
