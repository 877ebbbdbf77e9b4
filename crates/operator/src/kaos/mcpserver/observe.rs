//! Every read: the runtime registry and what the pods refer to before, the workload and its tools after the apply.

use std::{collections::BTreeSet, sync::Arc};

use gantry_crds::kaos::MCPServer;
use gantry_kit::{
    Applied, Context, Controller, ObjectKey, Progress, Result,
    error::Error,
    pods::PodSummary,
    probe::Answer,
    references::{Reference, Source},
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::Resource;

use super::{
    McpServers,
    registry::{self, Registry},
    tools::Tools,
    validate::{self, Valid},
};
use crate::{
    Settings,
    workload::{refs, rollout, route},
};

/// What is known before anything is decided.
pub struct Observed {
    pub registry: Registry,
    pub known: refs::Known,
    pub has_gateway_api: bool,
    /// The workload from before.
    pub running: Option<Deployment>,
}

pub async fn observe(server: &MCPServer, settings: &Settings, context: &Context) -> Result<Observed> {
    let key = ObjectKey::of(server.meta());
    let catalogue = Reference {
        source: Source::ConfigMap,
        key: ObjectKey::new(settings.namespace.clone(), registry::CONFIG_MAP),
    };
    // The registry decides what the pod looks like, and with it what the pod refers to: so it is read first.
    let found = context
        .references
        .find(McpServers::NAME, &key, &catalogue)
        .await?;
    let registry = Registry::parse(found.as_deref());
    let uses = validate::pod(server, settings, &registry).map(|pod| refs::uses(&key.namespace, &pod));
    let mut wanted = BTreeSet::from([catalogue]);
    wanted.extend(uses.unwrap_or_default().into_iter().map(|used| used.reference));
    let known = context.references.resolve(McpServers::NAME, &key, wanted).await?;
    let child = ObjectKey::new(&*key.namespace, validate::child_name(&key.name));
    Ok(Observed {
        registry,
        known,
        has_gateway_api: context.apis.has(route::CRD),
        running: rollout::known(context, &child)?,
    })
}

/// What the cluster shows once the wish is applied.
pub struct Seen {
    pub deployment: Deployment,
    pub pods: Vec<Arc<PodSummary>>,
    /// At least one pod is ready.
    pub serves: bool,
    pub tools: Option<Answer<Tools>>,
}

pub fn look_again(
    controller: &McpServers,
    server: &MCPServer,
    valid: &Valid,
    applied: &Applied,
    context: &Context,
) -> Result<Seen> {
    let key = ObjectKey::of(server.meta());
    let lost = |what: &str| Error::Decode {
        what: format!("{what} that was just applied"),
        source: serde::de::Error::custom("it is not there"),
    };
    let deployment: Deployment = applied
        .get("Deployment", &valid.child)?
        .ok_or_else(|| lost("Deployment"))?;
    let service: Service = applied
        .get("Service", &valid.child)?
        .ok_or_else(|| lost("Service"))?;
    let pods = context.pods_of(McpServers::NAME, &key);
    let serves = deployment
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0)
        > 0;
    // Only once the rollout is over: before that, the Service may still lead to a pod of the old kind.
    let (_, progress) = rollout::verdict(&deployment, &pods);
    let tools = (serves && progress == Progress::Done)
        .then(|| {
            let uid = deployment.metadata.uid.clone().unwrap_or_default();
            let generation = deployment.metadata.generation.unwrap_or(0);
            // Asked again when the pods of before have left: the Service may lead to them for a moment longer.
            let leaving = pods.iter().any(|pod| pod.is_being_deleted());
            let subject = format!("{uid}/{generation}/{leaving}");
            let address = service.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default();
            controller.probes.look(&key, &subject, &context.queue, || {
                controller.asker.tools(&key.namespace, &valid.child, &address)
            })
        })
        .flatten();
    Ok(Seen {
        deployment,
        pods,
        serves,
        tools,
    })
}
