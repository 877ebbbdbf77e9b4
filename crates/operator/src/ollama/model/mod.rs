//! Model: weights in a store that Models share, and an Ollama server for each Model that serves them.

mod api;
mod build;
mod finalize;
mod heard;
pub mod monitoring;
mod name;
mod network;
mod observe;
mod proxy;
mod pull;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod validate;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gantry_crds::ollama::{Model, ModelStatus};
use gantry_kit::{
    Common, Context, Controller, Error, ObjectKey, Outcome, Progress, Result, error::code, manager::Roots,
    probe::Probes,
};
use kube::{Client, Resource, core::ApiResource};

use crate::{
    Settings,
    rbac::{OWN, READ, Rule},
    workload::reach,
};

/// What this controller does in the cluster, beside what the kit does for all.
pub const RBAC: &[Rule] = &[
    Rule {
        group: "ollama.ayaka.io",
        resources: &["models"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        group: "ollama.ayaka.io",
        resources: &["models/status"],
        verbs: &["patch"],
    },
    // The garbage collector's admission check asks for this before an owner reference may block deletion.
    Rule {
        group: "ollama.ayaka.io",
        resources: &["models/finalizers"],
        verbs: &["update"],
    },
    Rule {
        group: "apps",
        resources: &["deployments", "statefulsets"],
        verbs: OWN,
    },
    Rule {
        group: "",
        resources: &[
            "configmaps",
            "persistentvolumeclaims",
            "serviceaccounts",
            "services",
        ],
        verbs: OWN,
    },
    // A Model's Role gives nothing that the operator does not have: reading the ConfigMaps and Secrets of its spec.
    Rule {
        group: "rbac.authorization.k8s.io",
        resources: &["roles", "rolebindings"],
        verbs: OWN,
    },
    Rule {
        group: "networking.k8s.io",
        resources: &["ingresses"],
        verbs: OWN,
    },
    Rule {
        group: "autoscaling",
        resources: &["horizontalpodautoscalers"],
        verbs: OWN,
    },
    Rule {
        group: "gateway.networking.k8s.io",
        resources: &["httproutes"],
        verbs: OWN,
    },
    Rule {
        group: "monitoring.coreos.com",
        resources: &["podmonitors", "prometheusrules", "servicemonitors"],
        verbs: OWN,
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: READ,
    },
];

pub struct Models {
    settings: Settings,
    autoscaler: ApiResource,
    /// All Models: those of a namespace share a store.
    all: Arc<Roots<Model>>,
    /// For the servers of stores.
    client: Client,
    pulls: pull::Pulls,
    erasures: Probes<()>,
    refused: finalize::Refused,
    heard: heard::Heard,
}

impl Models {
    pub fn new(client: Client, settings: Settings, autoscaler: ApiResource, all: Arc<Roots<Model>>) -> Self {
        Self {
            client: reach::client(client, settings.reach),
            settings,
            autoscaler,
            all,
            pulls: pull::Pulls::default(),
            erasures: Probes::new(Duration::from_secs(600)),
            refused: finalize::Refused::default(),
            heard: heard::Heard::default(),
        }
    }
}

impl Controller for Models {
    type Kind = Model;
    type Status = ModelStatus;

    const NAME: &'static str = "model";
    const FINALIZER: Option<&'static str> = Some("gantry.dev/weights");

    fn status(object: &Model) -> Option<&ModelStatus> {
        object.status.as_ref()
    }

    fn common(status: &mut ModelStatus) -> Common<'_> {
        Common {
            conditions: status.conditions.get_or_insert_default(),
            observed_generation: &mut status.observed_generation,
        }
    }

    fn summarize(status: &mut ModelStatus) {
        status::summarize(status);
    }

    async fn reconcile(&self, model: &Model, context: &Context) -> Result<Outcome<ModelStatus>> {
        let before = model.status.as_ref();
        let told = before.and_then(|status| status.observed_generation);
        // A new Model is the youngest and changes nothing for the others. After a restart, what one said before is not
        // known.
        let has_changed = || told.is_some() && told != model.meta().generation;
        if self.heard.is_news(model).unwrap_or_else(has_changed) {
            finalize::wake_others(self, model, context);
        }
        let mut observed = observe::observe(self, model, context).await?;
        let mut valid = match validate::validate(model, &self.settings, &observed) {
            Ok(valid) => valid,
            Err(blocked) => return Ok(status::blocked(model, observed.running().as_ref(), blocked)),
        };
        let mut applied = context.apply(model, build::build(&valid, &self.autoscaler)).await;
        if let Err(error) = &applied
            && valid.store.grows
            && is_refused_claim(error)
        {
            let size = valid.store.size().to_owned();
            let claim = ObjectKey::new(valid.namespace.clone(), valid.store.id.claim.clone());
            self.refused.insert(claim, size.clone(), Instant::now());
            observed.refused_size = Some(size);
            valid = match validate::validate(model, &self.settings, &observed) {
                Ok(valid) => valid,
                Err(blocked) => return Ok(status::blocked(model, observed.running().as_ref(), blocked)),
            };
            applied = context.apply(model, build::build(&valid, &self.autoscaler)).await;
        }
        let applied = applied?;
        let removed = finalize::remove_unused_stores(self, model, context).await;
        let seen = observe::look_again(model, &valid, observed.store, &applied, context)?;
        let mut outcome = status::from_applied(&valid, model, &seen);
        let mut replaced = finalize::replaced(before, observed.served_before.as_deref(), &valid.model);
        if valid.store.read_only {
            replaced.clear();
        } else if !replaced.is_empty() && outcome.progress == Progress::Done {
            // Only now no pod needs the old weights.
            replaced = finalize::erase_replaced(self, model, replaced, seen.store.service.as_ref(), context);
        }
        outcome.status.replaced = Some(replaced).filter(|replaced| !replaced.is_empty());
        if let Err(error) = removed {
            // A store that nobody uses is not this Model's trouble.
            tracing::warn!(error = error.report(), "a store that no Model uses stays for now");
            outcome.again = Some(Duration::from_secs(60));
        }
        Ok(outcome)
    }

    async fn finalize(&self, model: &Model, context: &Context) -> Result<Option<Duration>> {
        self.pulls.forget(&ObjectKey::of(model.meta()));
        finalize::finalize(self, model, context).await
    }

    fn forget(&self, key: &ObjectKey) {
        self.pulls.forget(key);
        self.erasures.forget(key);
        self.heard.forget(key);
    }
}

/// The server does not let a volume grow whose class does not allow it.
fn is_refused_claim(error: &Error) -> bool {
    matches!(error, Error::Api { action, source }
        if action.contains("PersistentVolumeClaim") && matches!(code(source), Some(403 | 422)))
}
