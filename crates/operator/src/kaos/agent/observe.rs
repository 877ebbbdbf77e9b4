//! Every read: dependencies and what the pods refer to before, the workload after the apply.

use std::{collections::BTreeSet, sync::Arc};

use gantry_crds::kaos::Agent;
use gantry_kit::{
    Applied, Context, Controller, ObjectKey, Result,
    dependents::Target,
    error::Error,
    pods::PodSummary,
    references::{Reference, Source},
    store::NamespaceFacts,
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Resource;

use super::{
    Agents,
    dependencies::{self, Dependencies, Needed, Role, State},
    harness, peers, validate,
};
use crate::workload::{refs, rollout, route};

/// What is known before anything is decided.
#[derive(Default)]
pub struct Observed {
    pub dependencies: Dependencies,
    pub harnesses: harness::Registry,
    pub known: refs::Known,
    pub has_gateway_api: bool,
    /// What was built before.
    pub running: Option<Deployment>,
}

pub async fn observe(controller: &Agents, agent: &Agent, context: &Context) -> Result<Observed> {
    let key = ObjectKey::of(agent.meta());
    let mut wanted = BTreeSet::new();
    let mut harnesses = harness::Registry::default();
    if agent.spec.harness.is_some() {
        let catalogue = Reference {
            source: Source::ConfigMap,
            key: ObjectKey::new(controller.settings.namespace.clone(), harness::CONFIG_MAP),
        };
        let found = context.references.find(Agents::NAME, &key, &catalogue).await?;
        harnesses = harness::Registry::parse(found.as_deref());
        wanted.insert(catalogue);
    }
    let child = ObjectKey::new(&*key.namespace, validate::child_name(&key.name));
    let mut observed = Observed {
        dependencies: depend(controller, agent, &key, context),
        harnesses,
        known: refs::Known::new(),
        has_gateway_api: context.apis.has(route::CRD),
        running: rollout::known(context, &child)?,
    };
    let pod = validate::pod(agent, &controller.settings, &observed);
    let uses = pod
        .map(|pod| refs::uses(&key.namespace, &pod))
        .unwrap_or_default();
    wanted.extend(uses.into_iter().map(|used| used.reference));
    observed.known = context.references.resolve(Agents::NAME, &key, wanted).await?;
    Ok(observed)
}

/// Looks up everything that the agent needs, and is woken by it from now on.
fn depend(controller: &Agents, agent: &Agent, key: &ObjectKey, context: &Context) -> Dependencies {
    let needed = dependencies::needed(agent);
    context
        .links
        .set(Agents::NAME, key, &targets(&needed, controller.sees_namespaces));
    let caches = controller.caches();
    let before = agent.status.as_ref();
    let all: Vec<_> = needed
        .iter()
        .map(|needed| {
            let mut found = caches.find(needed, before);
            let namespace = ObjectKey::new("", needed.key.namespace.clone());
            let target = context.namespaces.get(&namespace);
            if let Some(why) = dependencies::refusal(needed, controller.sees_namespaces, target.as_deref()) {
                found.state = State::Refused(why);
            } else if needed.role == Role::Peer && needed.key == *key {
                // Nobody has to wait for itself.
                found.state = State::Ready;
            }
            found
        })
        .collect();
    let waits_for: Vec<ObjectKey> = all
        .iter()
        .filter(|one| one.needed.role == Role::Peer && !one.linked && one.state != State::Ready)
        .map(|one| one.needed.key.clone())
        .collect();
    let model = all.iter().find(|one| one.needed.role == Role::Model);
    Dependencies {
        served: model
            .filter(|model| !matches!(model.state, State::Refused(_)))
            .and_then(|model| caches.served(&model.needed)),
        model_before: before.and_then(|status| status.model.clone()),
        circle: peers::may_start(key, &waits_for, |peer| caches.as_peer(peer)),
        all,
    }
}

fn targets(needed: &[Needed], sees_namespaces: bool) -> BTreeSet<Target> {
    let objects = needed.iter().map(|needed| Target {
        kind: needed.role.controller(),
        key: needed.key.clone(),
    });
    let elsewhere = needed
        .iter()
        .filter(|needed| needed.is_elsewhere() && sees_namespaces);
    let namespaces = elsewhere.map(|needed| Target {
        kind: NamespaceFacts::KIND,
        key: ObjectKey::new("", needed.key.namespace.clone()),
    });
    objects.chain(namespaces).collect()
}

/// What the cluster shows once the wish is applied.
pub struct Seen {
    pub deployment: Deployment,
    pub pods: Vec<Arc<PodSummary>>,
}

pub fn look_again(agent: &Agent, child: &str, applied: &Applied, context: &Context) -> Result<Seen> {
    let deployment = applied.get("Deployment", child)?.ok_or_else(|| Error::Decode {
        what: "Deployment that was just applied".to_owned(),
        source: serde::de::Error::custom("it is not there"),
    })?;
    Ok(Seen {
        deployment,
        pods: context.pods_of(Agents::NAME, &ObjectKey::of(agent.meta())),
    })
}
