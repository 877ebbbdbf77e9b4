//! Pure: spec and reads in, a [`Valid`] endpoint or the reason why not out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gantry_crds::{
    conditions::reasons,
    kaos::{ModelAPI, ModelAPIMode, ModelAPISpec},
    storage::AccessMode,
};
use gantry_kit::{ObjectKey, references::Resolved, wish::digest_bytes};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::{hosted, observe::Observed, proxy};
use crate::{
    Settings,
    workload::{claim::Claim, merge::strategic, names, pod as pods, refs, route::Route, verdicts::Blocked},
};

pub const CONTAINER: &str = "model-api";

/// An endpoint that can be built: every choice made, every name known.
pub struct Valid {
    pub name: String,
    pub namespace: String,
    /// Name of the children.
    pub child: String,
    pub spec: ModelAPISpec,
    pub port: i32,
    pub pod: Value,
    pub fingerprint: Option<String>,
    /// LiteLLM's configuration, when it is ours to write.
    pub config: Option<String>,
    /// Volume of the weights, when one is asked for.
    pub claim: Option<Claim>,
    pub route: Route,
}

impl Valid {
    /// Where a gateway serves it.
    pub fn path(&self) -> String {
        format!("/{}/modelapi/{}", self.namespace, self.name)
    }

    /// Most pods that there may be.
    pub fn most_pods(&self) -> i32 {
        let scaled = self
            .spec
            .autoscaling()
            .map(gantry_crds::common::Autoscaling::max_replicas);
        scaled.unwrap_or(self.spec.replicas())
    }

    /// Two pods of one rollout would wait for each other's volume.
    pub fn is_recreated(&self) -> bool {
        self.claim
            .as_ref()
            .is_some_and(|claim| !claim.access_mode.is_shared())
    }
}

pub fn child_name(name: &str) -> String {
    names::child("modelapi", name)
}

pub fn validate(api: &ModelAPI, settings: &Settings, observed: &Observed) -> Result<Valid, Blocked> {
    let spec = &api.spec;
    Blocked::on_problems(&spec.problems())?;
    let name = api.name_any();
    let namespace = api.namespace().unwrap_or_default();
    let claim = claim(spec, &name, observed)?;
    let pod = pod(api, settings, claim.as_ref())?;
    let (port, config) = match spec.mode {
        Some(ModelAPIMode::Hosted) => (hosted::PORT, None),
        _ => (proxy::PORT, proxy::config(api, settings)),
    };
    let mut known = observed.known.clone();
    if let Some(config) = &config {
        // As if it were there already: so its text is part of the fingerprint, and a change rolls the pods.
        let digests = BTreeMap::from([(proxy::CONFIG.to_owned(), digest_bytes(config.as_bytes()))]);
        let resolved = Resolved {
            digests,
            ..Resolved::default()
        };
        known.insert(
            proxy::own_config(&ObjectKey::of(api.meta())),
            Some(Arc::new(resolved)),
        );
    }
    let uses = refs::uses(&namespace, &pod);
    Blocked::on_missing(refs::missing(&uses, &known))?;
    Ok(Valid {
        child: child_name(&name),
        fingerprint: refs::fingerprint(&uses, &known),
        route: Route::decide(
            spec.gateway_route.as_ref(),
            settings.gateway.as_ref(),
            observed.has_gateway_api,
        ),
        spec: spec.clone(),
        name,
        namespace,
        port,
        pod,
        config,
        claim,
    })
}

fn claim(spec: &ModelAPISpec, name: &str, observed: &Observed) -> Result<Option<Claim>, Blocked> {
    let Some(storage) = hosted::storage(spec) else {
        return Ok(None);
    };
    if storage.existing_claim().is_none() && storage.access_mode() == AccessMode::ReadOnlyMany {
        let message = "a new claim that can only be read stays empty: set storage.accessMode to ReadWriteMany, or name \
                       a filled one in storage.existingClaim";
        return Err(Blocked::stuck(reasons::INVALID_SPEC, message));
    }
    Ok(Some(Claim::decide(
        storage,
        hosted::claim_name(name),
        &observed.claim,
    )))
}

/// The complete pod. What it refers to does not depend on the claim.
pub fn pod(api: &ModelAPI, settings: &Settings, claim: Option<&Claim>) -> Result<Value, Blocked> {
    let spec = &api.spec;
    let (mut wished, env) = match (spec.mode, spec.hosted()) {
        (Some(ModelAPIMode::Hosted), Some(hosted)) => {
            let (server, pull, volumes) = hosted::parts(api, hosted, settings, claim);
            (
                pods::secure(vec![server], vec![pull], volumes),
                hosted.env.as_ref(),
            )
        }
        (Some(ModelAPIMode::Proxy), _) => {
            let (server, volumes) = proxy::parts(api, settings);
            let env = spec.proxy_config.as_ref().and_then(|proxy| proxy.env.as_ref());
            (pods::secure(vec![server], vec![], volumes), env)
        }
        _ => {
            let message = "set mode to Proxy with proxyConfig, or to Hosted with hostedConfig";
            return Err(Blocked::stuck(reasons::INVALID_SPEC, message));
        }
    };
    let container_env = spec
        .container
        .as_ref()
        .and_then(|container| container.env.as_ref());
    for env in [env, container_env].into_iter().flatten() {
        // The init container gets them too: the way to the registry of models is configured by environment.
        for list in ["containers", "initContainers"] {
            for container in wished[list].as_array_mut().into_iter().flatten() {
                strategic(container, &json!({"env": env}));
            }
        }
    }
    if let Some(resources) = &spec.resources {
        let patch = json!({"containers": [{"name": CONTAINER, "resources": resources}]});
        strategic(&mut wished, &patch);
    }
    pods::run_as(
        &mut wished,
        spec.service_account_name.as_ref(),
        &pull_secrets(spec, settings),
    );
    pods::with_overrides(
        wished,
        CONTAINER,
        spec.container.as_deref(),
        spec.pod_spec.as_ref(),
    )
    .map_err(|message| Blocked::stuck(reasons::INVALID_OVERRIDE, message))
}

/// Its own, then the operator's.
fn pull_secrets(spec: &ModelAPISpec, settings: &Settings) -> Vec<String> {
    let own = spec
        .image_pull_secrets
        .iter()
        .flatten()
        .map(|secret| &secret.name);
    let mut seen = BTreeSet::new();
    own.chain(&settings.image_pull_secrets)
        .filter(|name| !name.is_empty() && seen.insert(name.as_str()))
        .cloned()
        .collect()
}
