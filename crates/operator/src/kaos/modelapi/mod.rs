//! ModelAPI: a Deployment and a Service for a LiteLLM proxy with its configuration, or for Ollama with a model.

mod build;
mod hosted;
mod observe;
mod proxy;
mod status;
#[cfg(test)]
mod tests;
mod validate;

use gantry_crds::kaos::{ModelAPI, ModelAPIStatus};
use gantry_kit::{Common, Context, Controller, Outcome, Result};
use kube::core::ApiResource;

use crate::{
    Settings,
    rbac::{OWN, READ, Rule},
};

/// What this controller does in the cluster, beside what the kit does for all.
pub const RBAC: &[Rule] = &[
    Rule {
        group: "kaos.tools",
        resources: &["modelapis"],
        verbs: &["get", "list", "watch", "patch"],
    },
    Rule {
        group: "kaos.tools",
        resources: &["modelapis/status"],
        verbs: &["patch"],
    },
    // The garbage collector's admission check asks for this before an owner reference may block deletion.
    Rule {
        group: "kaos.tools",
        resources: &["modelapis/finalizers"],
        verbs: &["update"],
    },
    Rule {
        group: "apps",
        resources: &["deployments"],
        verbs: OWN,
    },
    Rule {
        group: "",
        resources: &["configmaps", "persistentvolumeclaims", "services"],
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
        group: "",
        resources: &["pods"],
        verbs: READ,
    },
];

pub struct ModelApis {
    settings: Settings,
    autoscaler: ApiResource,
}

impl ModelApis {
    pub fn new(settings: Settings, autoscaler: ApiResource) -> Self {
        Self { settings, autoscaler }
    }
}

impl Controller for ModelApis {
    type Kind = ModelAPI;
    type Status = ModelAPIStatus;

    const NAME: &'static str = "modelapi";
    const OBSOLETE_FINALIZERS: &'static [&'static str] = &["kaos.tools/modelapi-finalizer"];

    fn status(object: &ModelAPI) -> Option<&ModelAPIStatus> {
        object.status.as_ref()
    }

    fn common(status: &mut ModelAPIStatus) -> Common<'_> {
        Common {
            conditions: status.conditions.get_or_insert_default(),
            observed_generation: &mut status.observed_generation,
        }
    }

    fn summarize(status: &mut ModelAPIStatus) {
        status::summarize(status);
    }

    async fn reconcile(&self, api: &ModelAPI, context: &Context) -> Result<Outcome<ModelAPIStatus>> {
        let observed = observe::observe(api, &self.settings, context).await?;
        let valid = match validate::validate(api, &self.settings, &observed) {
            Ok(valid) => valid,
            Err(blocked) => return Ok(status::blocked(api, observed.running.as_ref(), blocked)),
        };
        let wish = build::build(&valid, &self.autoscaler);
        let applied = context.apply(api, wish).await?;
        let seen = observe::look_again(api, &valid, &observed, &applied, context)?;
        Ok(status::from_applied(&valid, &seen))
    }
}
