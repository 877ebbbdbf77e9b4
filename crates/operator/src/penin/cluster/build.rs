//! Pure: the complete wished-for objects of a valid cluster.

use gantry_crds::{common::Autoscaling, penin::Service};
use gantry_kit::Wish;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, PersistentVolumeClaim, Service as KubeService},
    networking::v1::NetworkPolicy,
};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::{
    Kinds, dashboards, keeper, network,
    plan::{REDIS, REDIS_PORT},
    validate::{Part, Valid},
};
use crate::workload::{autoscaler, deployment::Identity};

/// What others mount or need in order to start comes first, so Redis is before the services.
pub fn build(cluster: &Valid<'_>, kinds: &Kinds) -> Wish {
    let plan = &cluster.plan;
    let mut wish = Wish::default();
    for claim in &cluster.claims {
        let Some(spec) = &claim.spec else { continue };
        let body = json!({
            "metadata": {"name": claim.name, "labels": labels(cluster, "storage")}, "spec": spec,
        });
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        if claim.is_retained {
            wish.add_retained(resource, body);
        } else {
            wish.add_json(resource, body);
        }
    }
    for policy in network::policies(plan, |component| labels(cluster, component)) {
        wish.add_json(ApiResource::erase::<NetworkPolicy>(&()), policy);
    }
    for part in &cluster.parts {
        workload(&mut wish, cluster, part);
    }
    if let Some(pod) = &cluster.keeper {
        let (child, selector) = (plan.child(keeper::COMPONENT), plan.selector(keeper::COMPONENT));
        let identity = identity(cluster, keeper::COMPONENT, &child, &selector);
        keeper::add_to(&mut wish, plan, &identity, pod);
    }
    for service in Service::ALL {
        scaling(&mut wish, cluster, kinds, service);
        let wanted = plan.spec.observability().service_monitor.unwrap_or(false);
        if wanted && cluster.has_service_monitors {
            let monitor = dashboards::monitor(plan, service, &labels(cluster, service.name()));
            wish.add_json(dashboards::monitor_resource(), monitor);
        }
    }
    if plan.spec.observability().dashboards.unwrap_or(false) {
        let dashboards = dashboards::config_map(plan, &labels(cluster, "dashboards"));
        wish.add_json(ApiResource::erase::<ConfigMap>(&()), dashboards);
    }
    wish
}

fn workload(wish: &mut Wish, cluster: &Valid<'_>, part: &Part) {
    let plan = &cluster.plan;
    let selector = plan.selector(part.component);
    let identity = identity(cluster, part.component, &part.child, &selector);
    let (port_name, port, replicas) = match part.service {
        Some(service) => {
            let fixed = plan.spec.auto_scaling(service).is_none();
            let replicas = fixed.then(|| plan.spec.replicas(service));
            ("http", plan.spec.port(service), replicas)
        }
        None => (REDIS, REDIS_PORT, Some(1)),
    };
    let service = identity.service(&[(port_name, port, port)]);
    let mut deployment = identity.deployment(&part.pod, replicas, part.fingerprint.as_deref());
    deployment["spec"]["strategy"] = part.strategy.clone();
    if let Some(service) = part.service
        && plan.spec.observability().metrics()
    {
        let annotations = &mut deployment["spec"]["template"]["metadata"]["annotations"];
        annotations["prometheus.io/scrape"] = json!("true");
        annotations["prometheus.io/port"] = json!(port.to_string());
        annotations["prometheus.io/path"] = json!(dashboards::path(plan, service));
    }
    wish.add_json(ApiResource::erase::<KubeService>(&()), service);
    let resource = ApiResource::erase::<Deployment>(&());
    if part.service.is_some() {
        wish.add_json(resource, deployment);
    } else {
        // The original's Redis wants no password, and refuses clients that have one.
        wish.add_renewed(resource, deployment);
    }
}

/// The autoscaler of a service, and the budget that keeps it up while nodes are drained.
fn scaling(wish: &mut Wish, cluster: &Valid<'_>, kinds: &Kinds, service: Service) {
    let plan = &cluster.plan;
    let (child, labels) = (plan.child(service.name()), labels(cluster, service.name()));
    if let Some(scaling) = plan.spec.auto_scaling(service) {
        let scaling = Autoscaling {
            min_replicas: Some(scaling.min_replicas),
            max_replicas: Some(scaling.max_replicas),
            target_cpu: Some(scaling.target_cpu),
            target_memory: Some(scaling.target_memory),
            metrics: Some(scaling.metrics),
            ..Autoscaling::default()
        };
        let hpa = autoscaler::build(&scaling, &labels, &child);
        wish.add_json(kinds.autoscaler.clone(), hpa);
    }
    let availability = plan.spec.availability.clone().unwrap_or_default();
    if availability.pod_disruption_budget() && plan.fewest_pods(service) >= 2 {
        let budget = json!({
            "metadata": {"name": child, "labels": labels},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": plan.selector(service.name())}},
        });
        wish.add_json(kinds.budget.clone(), budget);
    }
}

fn identity<'a>(
    cluster: &'a Valid<'_>,
    component: &'a str,
    child: &'a str,
    selector: &'a Value,
) -> Identity<'a> {
    Identity {
        child,
        controller: "peninomegacluster",
        root: &cluster.plan.name,
        component,
        part_of: "penin-omega",
        selector,
    }
}

fn labels(cluster: &Valid<'_>, component: &str) -> Value {
    identity(cluster, component, "", &cluster.plan.selector(component)).labels()
}
