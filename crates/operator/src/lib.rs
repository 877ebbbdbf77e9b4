//! The controllers. Each kind is a folder of five files with the same names: see `ARCHITECTURE.md`.

pub mod kaos;
pub mod metrics_api;
pub mod ollama;
pub mod penin;
pub mod rbac;
pub mod settings;
#[cfg(test)]
mod specs;
pub mod workload;

use std::sync::Arc;

use gantry_kit::{Manager, Options, admin::Readiness, manager::ChildResource, metrics::Metrics};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Service, ServiceAccount},
    networking::v1::{Ingress, NetworkPolicy},
    rbac::v1::{Role, RoleBinding},
};
use kube::Client;

pub use settings::Settings;

/// A manager with every controller in it, ready to run. Waits until the API server has said what it offers.
pub async fn manager(
    client: Client,
    options: Options,
    metrics: Metrics,
    readiness: Readiness,
    settings: Settings,
) -> Manager {
    let known = readiness.gate("versions of built-in kinds");
    let autoscaler = workload::autoscaler::resource(&client, &known).await;
    let budget = penin::cluster::Kinds::budget(&client, &known).await;
    known.open();
    let mut children = vec![
        ChildResource::of::<Deployment>(),
        ChildResource::of::<Service>(),
        ChildResource::of::<StatefulSet>(),
        ChildResource::of::<ConfigMap>(),
        ChildResource::of::<PersistentVolumeClaim>(),
        ChildResource::of::<NetworkPolicy>(),
        ChildResource::of::<ServiceAccount>(),
        ChildResource::of::<Role>(),
        ChildResource::of::<RoleBinding>(),
        ChildResource::of::<Ingress>(),
        ChildResource {
            resource: autoscaler.clone(),
            needs_crd: None,
        },
        ChildResource {
            resource: budget.clone(),
            needs_crd: None,
        },
        ChildResource::optional(workload::route::resource()),
    ];
    children.extend(
        ollama::model::monitoring::resources()
            .into_iter()
            .map(ChildResource::optional),
    );
    let sees_namespaces = options.namespaces.is_empty();
    let mut manager = Manager::new(client.clone(), options, metrics, readiness, children);
    let agents = kaos::agent::Agents {
        settings: settings.clone(),
        autoscaler: autoscaler.clone(),
        sees_namespaces,
        model_apis: manager.roots(),
        mcp_servers: manager.roots(),
        agents: manager.roots(),
    };
    manager.add(agents);
    let models = manager.roots();
    manager.add(ollama::model::Models::new(
        client.clone(),
        settings.clone(),
        autoscaler.clone(),
        models,
    ));
    manager.add(kaos::mcpserver::McpServers::new(
        client.clone(),
        settings.clone(),
        autoscaler.clone(),
    ));
    manager.add(kaos::modelapi::ModelApis::new(
        settings.clone(),
        autoscaler.clone(),
    ));
    let kinds = penin::cluster::Kinds { autoscaler, budget };
    let books = Arc::new(penin::change::Books::new(settings.namespace.clone()));
    let (clusters, changes) = (manager.roots(), manager.roots());
    manager.add(penin::change::Changes::new(
        client.clone(),
        &settings,
        clusters,
        changes,
        books.clone(),
    ));
    if let Some(address) = settings.changes_address {
        let endpoint =
            penin::change::Endpoint::new(manager.caller(), books, settings.changes_audience.clone());
        manager.beside(endpoint.serve(address));
    }
    let clusters = penin::cluster::Clusters::new(client, settings, kinds, &manager.metrics());
    manager.add(clusters);
    manager
}
