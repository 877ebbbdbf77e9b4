//! `external.metrics.k8s.io` and `custom.metrics.k8s.io`, served by the operator itself, so that a plain
//! HorizontalPodAutoscaler can scale by what the counting proxies beside models see, with no adapter in between.
//!
//! Every replica serves, leader or not: it keeps no state. A value is asked of the proxies when somebody asks for it.
//! Only the API server may ask, with its front proxy's certificate, and only for users who may see it.

mod access;
mod exposition;
mod fresh;
mod front;
mod identity;
mod metric;
mod path;
mod register;
mod render;
mod selector;
mod serve;
mod source;

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt as _;
use gantry_kit::admin::Gate;
use jiff::Timestamp;
use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::PolicyRule};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use tokio::{net::TcpListener, sync::watch};

use self::{
    access::Access,
    front::FrontProxy,
    identity::Identity,
    metric::Metric,
    path::Version,
    register::Registration,
    serve::{Answers, Terms},
    source::Source,
};
use crate::settings::Reach;

/// How often the bundles are looked at.
const LOOK: Duration = Duration::from_secs(60);
/// After a failure.
const AGAIN: Duration = Duration::from_secs(5);
/// After so many failures the process counts as ready without.
const PATIENCE: u32 = 6;
/// API servers need a moment to hear of a new authority before they meet its certificate.
const SPREAD: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Options {
    pub listen: SocketAddr,
    /// The Service in front of all replicas, which the APIServices name.
    pub service: String,
    pub namespace: String,
    pub reach: Reach,
}

/// Serves until it is dropped. `gate` is opened when the API server has been told whom to trust: no request should meet
/// a certificate that it does not know yet.
pub async fn run(client: Client, options: Options, gate: Gate) -> std::io::Result<()> {
    let listener = TcpListener::bind(options.listen).await?;
    tracing::info!(address = %listener.local_addr()?, "metrics API open");
    let (identities, identity) = watch::channel(None);
    let (fronts, front) = watch::channel(None);
    let (terms, accepted) = watch::channel(None);
    let answers = Arc::new(Answers {
        source: Source::new(client.clone(), options.reach),
        access: Access::new(client.clone()),
    });
    let registration = Registration {
        client: client.clone(),
        service: options.service,
        namespace: options.namespace,
    };
    tokio::join!(
        follow_front_proxy(client, fronts),
        keep_identity(registration, identities, gate),
        agree(identity, front, terms),
        serve::serve(listener, accepted, answers),
    );
    Ok(())
}

/// The rights beyond those of the controllers.
pub fn rules() -> Vec<PolicyRule> {
    let rule = |group: &str, resource: &str, verbs: &[&str], names: Option<Vec<String>>| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: names,
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let services = Version::ALL.into_iter().map(Version::api_service).collect();
    vec![
        rule(
            "apiregistration.k8s.io",
            "apiservices",
            &["get", "patch"],
            Some(services),
        ),
        rule("authorization.k8s.io", "subjectaccessreviews", &["create"], None),
    ]
}

/// For those who read: autoscalers, and people who may look at a namespace.
pub fn reader_rules() -> Vec<PolicyRule> {
    let rule = |group: &str, prefix: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(
            Metric::ALL
                .into_iter()
                .map(|metric| format!("{prefix}{}", metric.name()))
                .collect(),
        ),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    // One of an external metric is a list to Kubernetes, and one of a pod is not.
    vec![
        rule(path::CUSTOM, "pods/", &["get"]),
        rule(path::EXTERNAL, "", &["get", "list"]),
    ]
}

/// How the API server shows itself, whenever that changes.
async fn follow_front_proxy(client: Client, fronts: watch::Sender<Option<Arc<FrontProxy>>>) {
    let api: Api<ConfigMap> = Api::namespaced(client, front::NAMESPACE);
    let mut events = pin!(watch_object(api, front::CONFIG_MAP).backoff(gantry_kit::watch::retries()));
    while let Some(event) = events.next().await {
        let read = match event {
            Ok(Some(map)) => FrontProxy::read(&map.data.unwrap_or_default()),
            Ok(None) => Err("it does not exist".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        match read {
            Ok(front) => {
                fronts.send_if_modified(|known| {
                    let new = known.as_deref() != Some(&front);
                    *known = Some(Arc::new(front));
                    new
                });
            }
            // The last that was known stays good, and watches are cut now and then.
            Err(error) if fronts.borrow().is_some() => {
                tracing::debug!(%error, "the front proxy's terms are not seen");
            }
            Err(error) => tracing::warn!(
                %error,
                "failed to read ConfigMap {}/{}, without which nobody can be trusted",
                front::NAMESPACE,
                front::CONFIG_MAP
            ),
        }
    }
}

/// Makes a certificate, has it trusted, and makes the next one in good time.
async fn keep_identity(
    registration: Registration,
    identities: watch::Sender<Option<Arc<Identity>>>,
    gate: Gate,
) {
    let mut failures = 0;
    loop {
        let made = Timestamp::now();
        let host = format!("{}.{}.svc", registration.service, registration.namespace);
        let names = vec![host.clone(), format!("{host}.cluster.local")];
        let identity = match Identity::generate(names, made) {
            Ok(identity) => Arc::new(identity),
            Err(error) => {
                tracing::error!(%error, "cannot serve metrics");
                tokio::time::sleep(LOOK).await;
                continue;
            }
        };
        if identities.borrow().is_none() {
            identities.send_replace(Some(identity.clone()));
        }
        let mut trusted = false;
        while Timestamp::now().duration_since(made).as_hours() < identity::DAYS * 12 {
            let pause = match registration.publish(&identity.authority).await {
                Ok(()) if trusted => LOOK,
                Ok(()) => {
                    trusted = true;
                    gate.open();
                    tokio::time::sleep(SPREAD).await;
                    identities.send_replace(Some(identity.clone()));
                    LOOK
                }
                Err(error) => {
                    tracing::warn!("{error}");
                    failures += 1;
                    if failures == PATIENCE {
                        // The controllers do not need it, and a chart that waits for us should not fail for it.
                        gate.open();
                    }
                    gate.wait_for(error);
                    AGAIN
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

/// New connections are accepted on the newest terms; those that are open keep theirs.
async fn agree(
    mut identity: watch::Receiver<Option<Arc<Identity>>>,
    mut front: watch::Receiver<Option<Arc<FrontProxy>>>,
    terms: watch::Sender<Option<Terms>>,
) {
    loop {
        let (ours, theirs) = (
            identity.borrow_and_update().clone(),
            front.borrow_and_update().clone(),
        );
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            match ours.server_config(&theirs) {
                Ok(config) => {
                    terms.send_replace(Some(Terms {
                        config: Arc::new(config),
                        front: theirs,
                    }));
                }
                Err(error) => tracing::error!(%error, "cannot serve metrics"),
            }
        }
        let changed = tokio::select! {
            changed = identity.changed() => changed,
            changed = front.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
