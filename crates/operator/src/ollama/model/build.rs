//! Pure: the complete wished-for objects of a valid Model.

use gantry_kit::Wish;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Service, ServiceAccount},
    networking::v1::Ingress,
    rbac::v1::{Role, RoleBinding},
};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{
    network, proxy,
    validate::{METADATA, Valid},
};
use crate::workload::{autoscaler, deployment::Identity, route, route::Route};

pub fn build(model: &Valid, autoscaler_resource: &ApiResource) -> Wish {
    let identity = Identity {
        child: &model.workload,
        controller: "model",
        root: &model.name,
        component: "model",
        part_of: "ollama",
        selector: &model.selector,
    };
    let labels = identity.labels();
    let metadata = json!({"name": model.workload, "labels": labels});
    let mut wish = Wish::default();
    // Serialising a plain struct to memory cannot fail.
    let info = serde_json::to_string_pretty(&model.info).unwrap_or_default();
    wish.add_json(
        ApiResource::erase::<ConfigMap>(&()),
        json!({"metadata": metadata, "data": {METADATA: info}}),
    );
    if model
        .spec
        .service_account_name
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        account(model, &metadata, &mut wish);
    }
    if model.store_waits.is_none() {
        model.store.add_to(&mut wish);
    }
    wish.add_json(
        ApiResource::erase::<Service>(&()),
        network::service(model, &labels),
    );
    if model.serves {
        wish.add_json(
            ApiResource::erase::<Deployment>(&()),
            deployment(model, &identity),
        );
        if let Some(autoscaling) = model.spec.autoscaling() {
            let mut common = autoscaling.common();
            common.target_cpu = autoscaling.target_cpu();
            let counted = proxy::metrics(autoscaling, &model.selector);
            if !counted.is_empty() {
                common.metrics.get_or_insert_default().extend(counted);
            }
            let hpa = autoscaler::build(&common, &labels, &model.workload);
            wish.add_json(autoscaler_resource.clone(), hpa);
        }
    }
    if let Some(ingress) = model.spec.ingress.as_ref().filter(|ingress| ingress.enabled()) {
        let ingress = network::ingress(model, ingress, &labels);
        wish.add_json(ApiResource::erase::<Ingress>(&()), ingress);
    }
    model.monitoring.add_to(model, &labels, &mut wish);
    if let Route::Wanted(gateway) = &model.route {
        wish.add_json(route::resource(), network::route(model, gateway, &labels));
    }
    wish
}

fn deployment(model: &Valid, identity: &Identity<'_>) -> Value {
    let replicas = model.spec.autoscaling().is_none().then(|| model.spec.replicas());
    let fingerprint = model.fingerprint.as_deref();
    let mut deployment = identity.deployment(&model.template["spec"], replicas, fingerprint);
    // Pods of another model may wait for a long download; that is told by us, with how far it is.
    deployment["spec"]["progressDeadlineSeconds"] = json!(3600);
    let metadata = &mut deployment["spec"]["template"]["metadata"];
    let ours = metadata.clone();
    crate::workload::merge::strategic(metadata, &model.template["metadata"]);
    // Without these the pods would not be found.
    crate::workload::merge::strategic(metadata, &ours);
    deployment
}

/// The pods' own name in the cluster: it may read what the spec names, and nothing else.
fn account(model: &Valid, metadata: &Value, wish: &mut Wish) {
    let mut rules = vec![];
    let mut config_maps = model.reads.config_maps.clone();
    config_maps.insert(0, model.workload.clone());
    rules.push(json!({
        "apiGroups": [""], "resources": ["configmaps"], "resourceNames": config_maps, "verbs": ["get"],
    }));
    if !model.reads.secrets.is_empty() {
        rules.push(json!({
            "apiGroups": [""], "resources": ["secrets"], "resourceNames": model.reads.secrets, "verbs": ["get"],
        }));
    }
    wish.add_json(
        ApiResource::erase::<ServiceAccount>(&()),
        json!({"metadata": metadata, "automountServiceAccountToken": false}),
    );
    wish.add_json(
        ApiResource::erase::<Role>(&()),
        json!({"metadata": metadata, "rules": rules}),
    );
    wish.add_json(
        ApiResource::erase::<RoleBinding>(&()),
        json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": model.workload},
            "subjects": [{"kind": "ServiceAccount", "name": model.workload, "namespace": model.namespace}],
        }),
    );
}
