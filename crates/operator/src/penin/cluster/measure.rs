//! One metric of a cluster's services, for those who judge changes by it.

use std::sync::Arc;

use gantry_crds::penin::{PeninOmegaCluster, Service};
use gantry_kit::{ObjectKey, apply::Children, probe::Answer};
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::{Client, core::ApiResource};

use super::{
    dashboards, env,
    metrics::{Asker, Subject},
    plan::Plan,
};
use crate::Settings;

/// Asks the services of a cluster for a metric.
#[derive(Clone)]
pub struct Measure {
    asker: Asker,
    settings: Settings,
}

impl Measure {
    pub fn new(client: Client, settings: Settings) -> Self {
        let asker = Asker::new(client, settings.reach);
        Self { asker, settings }
    }

    /// The metric now, or why there is none.
    pub async fn metric(
        &self,
        cluster: &PeninOmegaCluster,
        children: Arc<Children>,
        name: &str,
    ) -> Answer<f64> {
        let plan = Plan::new(cluster, &self.settings);
        let subjects = Service::ALL
            .into_iter()
            .filter_map(|service| {
                let child = plan.child(service.name());
                let key = ObjectKey::new(&plan.namespace, &child);
                let resource = ApiResource::erase::<KubeService>(&());
                let object: KubeService = children.cached(&resource, &key)?.parse().ok()?;
                Some(Subject {
                    service,
                    address: object.spec?.cluster_ip?,
                    port: plan.spec.port(service),
                    path: dashboards::path(&plan, service),
                    child,
                })
            })
            .collect();
        let token = env::metrics_token(&plan);
        self.asker.metric(&plan.namespace, subjects, token, name).await
    }
}
