//! Every read: what the pods refer to and the claims as they are before, the workloads and their metrics after the
//! apply.

use std::{collections::BTreeMap, time::Duration};

use gantry_crds::penin::PeninOmegaCluster;
use gantry_kit::{
    Applied, Context, Controller, ObjectKey, Progress, Result, Verdict,
    error::Error,
    probe::Answer,
    references::{Reference, Source},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{PersistentVolumeClaim, Service as KubeService},
};
use kube::Resource;

use super::{
    Clusters, dashboards, env, keeper,
    metrics::{Reading, Subject},
    plan::Plan,
    redis,
    validate::{self, Part, Valid},
};
use crate::{
    Settings,
    workload::{claim, refs, rollout},
};

/// What is known before anything is decided.
#[derive(Default)]
pub struct Observed {
    pub known: refs::Known,
    /// What is known of claims, by the name that ours would have.
    pub claims: BTreeMap<String, claim::Known>,
    pub has_service_monitors: bool,
}

impl Observed {
    /// Whether the password of Redis is ours to make, and is not there.
    pub fn lacks_password(&self, plan: &Plan<'_>) -> bool {
        let reference = Reference {
            source: Source::Secret,
            key: ObjectKey::new(&plan.namespace, plan.password_secret()),
        };
        redis::makes_password(plan) && self.known.get(&reference).is_some_and(Option::is_none)
    }
}

pub async fn observe(
    cluster: &PeninOmegaCluster,
    settings: &Settings,
    context: &Context,
) -> Result<Observed> {
    let key = ObjectKey::of(cluster.meta());
    let plan = Plan::new(cluster, settings);
    let wanted = validate::uses(&plan).into_iter().map(|used| used.reference);
    let known = context
        .references
        .resolve(Clusters::NAME, &key, wanted.collect())
        .await?;
    let mut claims = BTreeMap::new();
    for (own, storage) in validate::claims(&plan) {
        let own_key = ObjectKey::new(&key.namespace, &own);
        claims.insert(own, claim::look(&storage, own_key, context).await?);
    }
    Ok(Observed {
        known,
        claims,
        has_service_monitors: context.apis.has(dashboards::CRD),
    })
}

/// What the cluster shows once the wish is applied.
pub struct Seen {
    pub parts: Vec<SeenPart>,
    /// What the copy of the record of changes is like; nothing where there is none.
    pub keeper: Option<Verdict>,
    /// The ledger's claim, ours or theirs.
    pub ledger: Option<PersistentVolumeClaim>,
    /// Nothing while it is not known, also not whether there is something to be known.
    pub reading: Option<Answer<Reading>>,
}

pub struct SeenPart {
    pub service: Option<gantry_crds::penin::Service>,
    pub component: &'static str,
    pub replicas: i32,
    pub ready_replicas: i32,
    pub available: i32,
    pub ready: Verdict,
    pub progress: Progress,
}

pub fn look_again(
    controller: &Clusters,
    cluster: &PeninOmegaCluster,
    valid: &Valid<'_>,
    observed: &Observed,
    applied: &Applied,
    context: &Context,
) -> Result<Seen> {
    let key = ObjectKey::of(cluster.meta());
    let pods = context.pods_of(Clusters::NAME, &key);
    let mut parts = Vec::new();
    let mut subjects = Vec::new();
    for part in &valid.parts {
        let deployment: Deployment = found(applied, "Deployment", &part.child)?;
        let own = pods.iter().filter(|pod| pod.component == part.component);
        let seen = seen(part, &deployment, &own.cloned().collect::<Vec<_>>());
        if let Some(service) = part.service
            && seen.ready_replicas > 0
        {
            let object: KubeService = found(applied, "Service", &part.child)?;
            subjects.push(Subject {
                service,
                child: part.child.clone(),
                address: object.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default(),
                port: valid.plan.spec.port(service),
                path: dashboards::path(&valid.plan, service),
            });
        }
        parts.push(seen);
    }
    let keeper = match &valid.keeper {
        Some(_) => {
            let child = valid.plan.child(keeper::COMPONENT);
            let deployment: Deployment = found(applied, "Deployment", &child)?;
            let own = pods.iter().filter(|pod| pod.component == keeper::COMPONENT);
            let own: Vec<_> = own.cloned().collect();
            Some(keeper::verdict(&valid.plan, &deployment, &own))
        }
        None => None,
    };
    let seen = valid.plan.spec.observability();
    let reading = (seen.metrics() && !subjects.is_empty())
        .then(|| {
            let seconds = u64::try_from(seen.metrics_interval_seconds()).unwrap_or(30);
            let token = env::metrics_token(&valid.plan);
            // Not the generation: a rollout makes no number untrue.
            let subject = cluster.metadata.uid.clone().unwrap_or_default();
            let fresh_for = Duration::from_secs(seconds);
            controller
                .probes
                .look_every(fresh_for, &key, &subject, &context.queue, || {
                    controller.asker.read(&key.namespace, subjects, token)
                })
        })
        .flatten();
    let own = valid.plan.ledger_claim();
    // Where it is somebody else's, it is as it was before.
    let ledger = match applied.get("PersistentVolumeClaim", &own)? {
        Some(claim) => Some(claim),
        None => observed.claims.get(&own).and_then(|known| known.live.clone()),
    };
    Ok(Seen {
        parts,
        keeper,
        ledger,
        reading,
    })
}

fn found<K: serde::de::DeserializeOwned>(applied: &Applied, kind: &str, name: &str) -> Result<K> {
    applied.get(kind, name)?.ok_or_else(|| Error::Decode {
        what: format!("{kind} {name} that was just applied"),
        source: serde::de::Error::custom("it is not there"),
    })
}

fn seen(
    part: &Part,
    deployment: &Deployment,
    pods: &[std::sync::Arc<gantry_kit::pods::PodSummary>],
) -> SeenPart {
    let (ready, progress) = rollout::verdict(deployment, pods);
    let report = rollout::report(deployment);
    SeenPart {
        service: part.service,
        component: part.component,
        replicas: report.replicas.unwrap_or(0),
        ready_replicas: report.ready_replicas.unwrap_or(0),
        available: report.available_replicas.unwrap_or(0),
        ready,
        progress,
    }
}
