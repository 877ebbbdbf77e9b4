//! Every read: what the pods refer to and the claim of the weights before, the workload after the apply.

use std::sync::Arc;

use gantry_crds::kaos::ModelAPI;
use gantry_kit::{Applied, Context, Controller, ObjectKey, Result, error::Error, pods::PodSummary};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PersistentVolumeClaim};
use kube::Resource;

use super::{
    ModelApis, hosted, proxy,
    validate::{self, Valid},
};
use crate::{
    Settings,
    workload::{claim, refs, rollout, route},
};

/// What is known before anything is decided.
pub struct Observed {
    pub known: refs::Known,
    pub claim: claim::Known,
    pub has_gateway_api: bool,
    /// What was built before.
    pub running: Option<Deployment>,
}

pub async fn observe(api: &ModelAPI, settings: &Settings, context: &Context) -> Result<Observed> {
    let key = ObjectKey::of(api.meta());
    let uses = validate::pod(api, settings, None).map(|pod| refs::uses(&key.namespace, &pod));
    // The configuration that we write ourselves is part of the wish, not something to wait for.
    let own = proxy::own_config(&key);
    let wanted = uses
        .unwrap_or_default()
        .into_iter()
        .map(|used| used.reference)
        .filter(|reference| *reference != own)
        .collect();
    let known = context.references.resolve(ModelApis::NAME, &key, wanted).await?;
    let child = ObjectKey::new(&*key.namespace, validate::child_name(&key.name));
    let running = rollout::known(context, &child)?;
    let claim = match hosted::storage(&api.spec) {
        Some(storage) => {
            let own = ObjectKey::new(key.namespace, hosted::claim_name(&key.name));
            claim::look(storage, own, context).await?
        }
        None => claim::Known::default(),
    };
    Ok(Observed {
        known,
        claim,
        has_gateway_api: context.apis.has(route::CRD),
        running,
    })
}

/// What the cluster shows once the wish is applied.
pub struct Seen {
    pub deployment: Deployment,
    pub claim: Option<PersistentVolumeClaim>,
    pub pods: Vec<Arc<PodSummary>>,
}

pub fn look_again(
    api: &ModelAPI,
    valid: &Valid,
    observed: &Observed,
    applied: &Applied,
    context: &Context,
) -> Result<Seen> {
    let key = ObjectKey::of(api.meta());
    let deployment = applied
        .get("Deployment", &valid.child)?
        .ok_or_else(|| Error::Decode {
            what: "Deployment that was just applied".to_owned(),
            source: serde::de::Error::custom("it is not there"),
        })?;
    let claim = match &valid.claim {
        Some(claim) if claim.spec.is_some() => applied.get("PersistentVolumeClaim", &claim.name)?,
        Some(_) => observed.claim.live.clone(),
        None => None,
    };
    Ok(Seen {
        deployment,
        claim,
        pods: context.pods_of(ModelApis::NAME, &key),
    })
}
