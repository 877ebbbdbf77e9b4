//! Pure: spec and reads in, a [`Valid`] cluster or the reason why not out.

use std::collections::BTreeSet;

use gantry_crds::{
    conditions::reasons,
    penin::{PeninOmegaCluster, Service},
    storage::ClaimStorage,
};
use serde_json::Value;

use super::{
    keeper, ledger,
    observe::Observed,
    plan::{Plan, REDIS},
    redis, services,
};
use crate::{
    Settings,
    workload::{claim::Claim, refs, verdicts::Blocked},
};

/// A cluster that can be built: every choice made, every name known.
pub struct Valid<'a> {
    pub plan: Plan<'a>,
    /// The four services, and Redis where there is one.
    pub parts: Vec<Part>,
    /// The pod that copies the record of changes to the ledger's volume, where there are both.
    pub keeper: Option<Value>,
    /// Claims that the pods mount, ours and those of others.
    pub claims: Vec<Claim>,
    /// Whether ServiceMonitors can be made.
    pub has_service_monitors: bool,
    pub warnings: Vec<(&'static str, String)>,
}

/// One Deployment with its Service.
pub struct Part {
    /// Redis has none.
    pub service: Option<Service>,
    pub component: &'static str,
    pub child: String,
    pub pod: Value,
    pub strategy: Value,
    pub fingerprint: Option<String>,
}

pub fn validate<'a>(
    cluster: &'a PeninOmegaCluster,
    settings: &'a Settings,
    observed: &Observed,
) -> Result<Valid<'a>, Blocked> {
    Blocked::on_problems(&cluster.spec.problems())?;
    let plan = Plan::new(cluster, settings);
    ledger::check(&plan)?;
    let mut parts = parts(&plan)?;
    for part in &mut parts {
        let uses = refs::uses(&plan.namespace, &part.pod);
        Blocked::on_missing(refs::missing(&uses, &observed.known))?;
        part.fingerprint = refs::fingerprint(&uses, &observed.known);
    }
    let claims: Vec<Claim> = claims(&plan)
        .into_iter()
        .map(|(own, storage)| {
            let known = observed.claims.get(&own).cloned().unwrap_or_default();
            Claim::decide(&storage, own, &known)
        })
        .collect();
    let faults = claims.iter().filter_map(|claim| claim.fault.as_ref());
    let mut warnings: Vec<(&'static str, String)> = faults
        .map(|fault| (reasons::INVALID_CLAIM, fault.message.clone()))
        .collect();
    warnings.extend(ledger::warning(&plan));
    let keeper = keeper(&plan, &parts);
    warnings.extend(monitor_warning(&plan, observed.has_service_monitors));
    Ok(Valid {
        plan,
        parts,
        keeper,
        claims,
        has_service_monitors: observed.has_service_monitors,
        warnings,
    })
}

/// Everything that runs pods. Needs no reads, so that what the pods refer to can be looked up.
pub fn parts(plan: &Plan<'_>) -> Result<Vec<Part>, Blocked> {
    let part = |service, component, pod, strategy| Part {
        service,
        component,
        child: plan.child(component),
        pod,
        strategy,
        fingerprint: None,
    };
    let mut parts = Vec::new();
    if plan.spec.storage().wants_redis() {
        parts.push(part(None, REDIS, redis::pod(plan)?, redis::strategy(plan)));
    }
    for service in Service::ALL {
        let (pod, strategy) = (services::pod(plan, service)?, services::strategy(plan, service));
        parts.push(part(Some(service), service.name(), pod, strategy));
    }
    Ok(parts)
}

fn keeper(plan: &Plan<'_>, parts: &[Part]) -> Option<Value> {
    if keeper::off(plan).is_some() {
        return None;
    }
    let storage = ledger::storage(plan)?;
    let writer = parts
        .iter()
        .find(|part| part.service == Some(Service::OmegaMeta))?;
    Some(keeper::pod(plan, &storage, &writer.pod))
}

/// Every Secret and ConfigMap that the pods read.
pub fn uses(plan: &Plan<'_>) -> BTreeSet<refs::Use> {
    let parts = parts(plan).unwrap_or_default();
    parts
        .iter()
        .flat_map(|part| refs::uses(&plan.namespace, &part.pod))
        .collect()
}

/// What is asked of volumes, with the names of the claims that are made for it.
pub fn claims(plan: &Plan<'_>) -> Vec<(String, ClaimStorage)> {
    let ledger = ledger::storage(plan).map(|storage| (plan.ledger_claim(), storage));
    let redis = redis::storage(plan).map(|storage| (plan.child(REDIS), storage));
    ledger.into_iter().chain(redis).collect()
}

fn monitor_warning(plan: &Plan<'_>, has_service_monitors: bool) -> Option<(&'static str, String)> {
    let wanted = plan.spec.observability().service_monitor.unwrap_or(false);
    (wanted && !has_service_monitors).then(|| {
        let message = "ServiceMonitors are not installed: install the Prometheus operator's CRDs".to_owned();
        (reasons::SERVICE_MONITOR_MISSING, message)
    })
}
