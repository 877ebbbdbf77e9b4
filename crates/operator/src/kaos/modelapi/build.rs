//! Pure: the complete wished-for objects of a valid endpoint.

use gantry_crds::kaos::ModelAPIMode;
use gantry_kit::Wish;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, PersistentVolumeClaim, Service},
};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{hosted, proxy, validate::Valid};
use crate::workload::{
    autoscaler,
    deployment::Identity,
    names,
    route::{self, Backend, Route},
};

pub fn build(api: &Valid, autoscaler_resource: &ApiResource) -> Wish {
    let selector = selector(api);
    let identity = Identity {
        child: &api.child,
        controller: "modelapi",
        root: &api.name,
        component: "model-api",
        part_of: "kaos",
        selector: &selector,
    };
    let labels = identity.labels();
    let mut wish = Wish::default();
    if let Some(config) = &api.config {
        let map = json!({
            "metadata": {"name": proxy::config_map_name(&api.name), "labels": labels},
            "data": {proxy::CONFIG: config},
        });
        wish.add_json(ApiResource::erase::<ConfigMap>(&()), map);
    }
    if let Some(claim) = &api.claim
        && let Some(spec) = &claim.spec
    {
        let body = json!({"metadata": {"name": claim.name, "labels": labels}, "spec": spec});
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        if claim.is_retained {
            wish.add_retained(resource, body);
        } else {
            wish.add_json(resource, body);
        }
    }
    let service = identity.service(&[("http", api.port, api.port)]);
    wish.add_json(ApiResource::erase::<Service>(&()), service);
    wish.add_json(ApiResource::erase::<Deployment>(&()), deployment(api, &identity));
    if let Some(autoscaling) = api.spec.autoscaling() {
        let hpa = autoscaler::build(autoscaling, &labels, &api.child);
        wish.add_json(autoscaler_resource.clone(), hpa);
    }
    if let Route::Wanted(gateway) = &api.route {
        let to = Backend {
            route_name: &api.child,
            path: &api.path(),
            service: &api.child,
            port: api.port,
            timeout: &gateway.modelapi_timeout,
        };
        let route = route::build(gateway, api.spec.gateway_route.as_ref(), &labels, &to);
        wish.add_json(route::resource(), route);
    }
    wish
}

fn deployment(api: &Valid, identity: &Identity<'_>) -> Value {
    let replicas = api.spec.autoscaling().is_none().then(|| api.spec.replicas());
    let mut deployment = identity.deployment(&api.pod, replicas, api.fingerprint.as_deref());
    if api.is_recreated() {
        deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    }
    if let Some(hosted) = api
        .spec
        .hosted()
        .filter(|_| api.spec.mode == Some(ModelAPIMode::Hosted))
    {
        deployment["spec"]["progressDeadlineSeconds"] = json!(hosted::deadline(hosted));
    }
    deployment
}

/// The original's selector: it cannot change on a live Deployment.
pub fn selector(api: &Valid) -> Value {
    json!({"app": "modelapi", "modelapi": names::label_value(&api.name)})
}
