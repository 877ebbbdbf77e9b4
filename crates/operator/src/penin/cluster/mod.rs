//! PeninOmegaCluster: Deployments and Services for the four services of PENIN-Ω, their cache and their ledger.

mod build;
mod dashboards;
mod env;
mod keeper;
mod ledger;
mod measure;
mod metrics;
mod network;
mod observe;
mod plan;
mod redis;
mod scores;
mod services;
mod status;
#[cfg(test)]
mod tests;
mod validate;

pub use measure::Measure;

use std::time::Duration;

use gantry_crds::penin::{PeninOmegaCluster, PeninOmegaClusterStatus};
use gantry_kit::{
    Common, Context, Controller, ObjectKey, Outcome, Result, admin::Gate, metrics::Metrics, probe::Probes,
};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, core::ApiResource};

use crate::{
    Settings,
    rbac::{OWN, READ, Rule},
};

/// What this controller does in the cluster, beside what the kit does for all.
pub const RBAC: &[Rule] = &[
    Rule {
        group: "penin.ai",
        resources: &["peninaomegaclusters"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        group: "penin.ai",
        resources: &["peninaomegaclusters/status"],
        verbs: &["patch"],
    },
    // The garbage collector's admission check asks for this before an owner reference may block deletion.
    Rule {
        group: "penin.ai",
        resources: &["peninaomegaclusters/finalizers"],
        verbs: &["update"],
    },
    Rule {
        group: "apps",
        resources: &["deployments"],
        verbs: OWN,
    },
    Rule {
        group: "",
        resources: &[
            "services",
            "persistentvolumeclaims",
            "configmaps",
            "serviceaccounts",
        ],
        verbs: OWN,
    },
    // The Role of a ledger's keeper gives nothing that the operator does not have: reading ConfigMaps.
    Rule {
        group: "rbac.authorization.k8s.io",
        resources: &["roles", "rolebindings"],
        verbs: OWN,
    },
    // The password of Redis is made once; nothing of ours ever changes or deletes a Secret.
    Rule {
        group: "",
        resources: &["secrets"],
        verbs: &["create"],
    },
    Rule {
        group: "autoscaling",
        resources: &["horizontalpodautoscalers"],
        verbs: OWN,
    },
    Rule {
        group: "policy",
        resources: &["poddisruptionbudgets"],
        verbs: OWN,
    },
    Rule {
        group: "networking.k8s.io",
        resources: &["networkpolicies"],
        verbs: OWN,
    },
    Rule {
        group: "monitoring.coreos.com",
        resources: &["servicemonitors"],
        verbs: OWN,
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: READ,
    },
];

/// The seed's safety net: what watching missed is seen after this long.
const AGAIN: Duration = Duration::from_secs(30);

/// Kinds whose version depends on the server.
#[derive(Clone, Debug)]
pub struct Kinds {
    pub autoscaler: ApiResource,
    pub budget: ApiResource,
}

impl Kinds {
    /// PodDisruptionBudgets in the newest version that the server has; the fields are the same in all of them.
    pub async fn budget(client: &Client, gate: &Gate) -> ApiResource {
        let (kind, plural) = ("PodDisruptionBudget", "poddisruptionbudgets");
        gantry_kit::apis::newest(client, "policy", &["v1", "v1beta1"], kind, plural, gate).await
    }
}

/// Of clusters with ServiceMonitors, where that kind is installed.
pub fn service_monitors() -> ApiResource {
    dashboards::monitor_resource()
}

/// A dashboard for Grafana that shows any cluster.
pub fn dashboard() -> serde_json::Value {
    dashboards::of_any()
}

pub struct Clusters {
    settings: Settings,
    kinds: Kinds,
    probes: Probes<metrics::Reading>,
    asker: metrics::Asker,
    scores: scores::Scores,
}

impl Clusters {
    pub fn new(client: Client, settings: Settings, kinds: Kinds, metrics: &Metrics) -> Self {
        Self {
            scores: scores::Scores::new(metrics),
            asker: metrics::Asker::new(client, settings.reach),
            probes: Probes::new(AGAIN),
            settings,
            kinds,
        }
    }

    /// Everything that is read. A password that is missing is made first: the pods must not be built without it.
    async fn observe(&self, cluster: &PeninOmegaCluster, context: &Context) -> Result<observe::Observed> {
        let observed = observe::observe(cluster, &self.settings, context).await?;
        let plan = plan::Plan::new(cluster, &self.settings);
        if !observed.lacks_password(&plan) {
            return Ok(observed);
        }
        let secret = redis::password_secret(&plan, redis::new_password()?);
        context.create_secret_once(cluster, secret).await?;
        observe::observe(cluster, &self.settings, context).await
    }
}

impl Controller for Clusters {
    type Kind = PeninOmegaCluster;
    type Status = PeninOmegaClusterStatus;

    const NAME: &'static str = "peninomegacluster";
    /// What the original's framework put on every object.
    const OBSOLETE_FINALIZERS: &'static [&'static str] = &["kopf.zalando.org/KopfFinalizerMarker"];

    fn status(object: &PeninOmegaCluster) -> Option<&PeninOmegaClusterStatus> {
        object.status.as_ref()
    }

    fn common(status: &mut PeninOmegaClusterStatus) -> Common<'_> {
        Common {
            conditions: status.conditions.get_or_insert_default(),
            observed_generation: &mut status.observed_generation,
        }
    }

    fn summarize(status: &mut PeninOmegaClusterStatus) {
        status::summarize(status);
    }

    async fn reconcile(
        &self,
        cluster: &PeninOmegaCluster,
        context: &Context,
    ) -> Result<Outcome<PeninOmegaClusterStatus>> {
        let observed = self.observe(cluster, context).await?;
        let key = ObjectKey::of(&cluster.metadata);
        let mut outcome = match validate::validate(cluster, &self.settings, &observed) {
            Ok(valid) => {
                let wish = build::build(&valid, &self.kinds);
                let applied = context.apply(cluster, wish).await?;
                let seen = observe::look_again(self, cluster, &valid, &observed, &applied, context)?;
                let reading = seen.reading.as_ref().and_then(|answer| answer.as_ref().ok());
                self.scores.tell(&key, reading);
                status::from_applied(&valid, cluster, &seen, Timestamp::now())
            }
            Err(blocked) => {
                self.scores.tell(&key, None);
                status::blocked(cluster, blocked)
            }
        };
        outcome.again = Some(AGAIN);
        Ok(outcome)
    }

    fn forget(&self, key: &ObjectKey) {
        self.probes.forget(key);
        self.scores.tell(key, None);
    }
}
