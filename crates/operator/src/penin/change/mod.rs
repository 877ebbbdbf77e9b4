//! InfrastructureChange: a change of a PeninOmegaCluster that the cluster itself (or anybody else) asks for. It is checked
//! against the cluster's policy, applied, watched, and kept or rolled back; every step is recorded in the cluster's ledger
//! before it is made.
//!
//! What makes it one apply and at most one roll back, whatever crashes when: the plan stands in the status and the
//! intent in the ledger before the cluster is written, the write carries a mark that says afterwards whether it was
//! made, and a decision stands in the ledger before it is carried out. Each visit looks at these and goes on from there.

mod belief;
mod book;
mod build;
mod decide;
mod endpoint;
mod fields;
mod identity;
mod limits;
mod measure;
mod observe;
mod owners;
mod policy;
mod record;
mod retention;
mod status;
mod steps;
mod validate;
mod verdict;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use gantry_crds::{
    conditions::reasons,
    penin::{ChangePhase, InfrastructureChange, InfrastructureChangeStatus, PeninOmegaCluster, Readings},
};
use gantry_kit::{Common, Context, Controller, ObjectKey, Outcome, Result, manager::Roots};
use kube::{Client, ResourceExt};

use belief::Belief;
use book::Page;
pub use book::{
    Books, KEY_SECRET, LABEL as LEDGER_LABEL, Segment, audit, label as ledger_label, ledger_name,
};
pub use endpoint::Endpoint;
use steps::Visit;

use crate::{Settings, rbac::Rule};

/// What this controller does in the cluster, beside what the kit does for all.
pub const RBAC: &[Rule] = &[
    Rule {
        group: "penin.ai",
        resources: &["infrastructurechanges"],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
    },
    Rule {
        group: "penin.ai",
        resources: &["infrastructurechanges/status"],
        verbs: &["patch"],
    },
    Rule {
        group: "penin.ai",
        resources: &["peninaomegaclusters"],
        verbs: &["get", "list", "watch", "patch"],
    },
    // The ledger.
    Rule {
        group: "",
        resources: &["configmaps"],
        verbs: &["get", "list", "create", "patch"],
    },
];

/// Cluster-wide: what somebody may do.
pub const CLUSTER_RBAC: &[Rule] = &[Rule {
    group: "authorization.k8s.io",
    resources: &["subjectaccessreviews"],
    verbs: &["create"],
}];

/// Cluster-wide, where changes can be asked for by HTTP: whose token it is.
pub const ENDPOINT_RBAC: &[Rule] = &[Rule {
    group: "authentication.k8s.io",
    resources: &["tokenreviews"],
    verbs: &["create"],
}];

/// In the operator's own namespace: the key of the ledgers, made once.
pub const HOME_RBAC: &[Rule] = &[Rule {
    group: "",
    resources: &["secrets"],
    verbs: &["get", "create"],
}];

pub struct Changes {
    clusters: Arc<Roots<PeninOmegaCluster>>,
    known: Arc<Roots<InfrastructureChange>>,
    /// Changes of a cluster that stay after their end.
    kept: usize,
    books: Arc<Books>,
    sources: measure::Sources,
    sampler: measure::Sampler,
    baselines: Baselines,
}

impl Changes {
    pub fn new(
        client: Client,
        settings: &Settings,
        clusters: Arc<Roots<PeninOmegaCluster>>,
        known: Arc<Roots<InfrastructureChange>>,
        books: Arc<Books>,
    ) -> Self {
        Self {
            clusters,
            known,
            kept: settings.kept_changes,
            books,
            sources: measure::Sources::new(client, settings),
            sampler: measure::Sampler::default(),
            baselines: Baselines::default(),
        }
    }

    /// Nothing more will happen: nothing is remembered, nobody has to wake it, and older ones may go.
    async fn over(
        &self,
        change: &InfrastructureChange,
        context: &Context,
        page: &Page,
        end: InfrastructureChangeStatus,
    ) -> Result<Outcome<InfrastructureChangeStatus>> {
        let key = ObjectKey::of(&change.metadata);
        let cluster = ObjectKey::new(key.namespace.clone(), change.spec.cluster());
        // Nothing is removed on the word of a ledger that is broken.
        if page.fault.is_none() {
            retention::sweep(&self.known, &cluster, self.kept, &page.memory, context).await?;
        }
        self.sampler.forget(&key);
        self.baselines.forget(&key);
        context.links.forget(Self::NAME, &key);
        Ok(status::ended(end))
    }
}

/// What this process measured before changes that are about to be made, with their uid: names may be used again.
#[derive(Default)]
struct Baselines(Mutex<HashMap<ObjectKey, (String, Readings)>>);

impl Baselines {
    fn get(&self, key: &ObjectKey, uid: &str) -> Option<Readings> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, readings) = known.get(key)?;
        (of == uid).then(|| readings.clone())
    }

    fn keep(&self, key: &ObjectKey, uid: &str, readings: Readings) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key.clone(), (uid.to_owned(), readings));
    }

    fn forget(&self, key: &ObjectKey) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(key);
    }
}

impl Controller for Changes {
    type Kind = InfrastructureChange;
    type Status = InfrastructureChangeStatus;

    const NAME: &'static str = "infrastructurechange";
    const LOOKS_AT: &'static [&'static str] = &["peninomegacluster"];
    const OTHERS_WRITE: &'static [&'static str] = &["approval"];

    fn status(object: &InfrastructureChange) -> Option<&InfrastructureChangeStatus> {
        object.status.as_ref()
    }

    fn common(status: &mut InfrastructureChangeStatus) -> Common<'_> {
        Common {
            conditions: status.conditions.get_or_insert_default(),
            observed_generation: &mut status.observed_generation,
        }
    }

    fn summarize(status: &mut InfrastructureChangeStatus) {
        status::summarize(status);
    }

    async fn reconcile(
        &self,
        change: &InfrastructureChange,
        context: &Context,
    ) -> Result<Outcome<InfrastructureChangeStatus>> {
        let known = change.status.clone().unwrap_or_default();
        if known.phase.is_some_and(ChangePhase::is_end) {
            let page = observe::page(self, change, context).await?;
            let uid = change.uid().unwrap_or_default();
            if let Belief::Ended(end) = belief::believe(known.clone(), &page, &uid) {
                return self.over(change, context, &page, *end).await;
            }
        }
        let Some(observed) = observe::observe(self, change, context).await? else {
            let message = format!("there is no PeninOmegaCluster {} here", change.spec.cluster());
            return Ok(status::waiting(
                known,
                reasons::WAITING_FOR_CLUSTER,
                message,
                None,
            ));
        };
        let visit = Visit {
            controller: self,
            change,
            context,
            observed,
        };
        let known = match belief::believe(known.clone(), &visit.observed.page, &visit.observed.uid) {
            Belief::Ended(end) => return self.over(change, context, &visit.observed.page, *end).await,
            Belief::Doubt(fault) => return Ok(steps::broken(known, &fault)),
            Belief::Going(going) => *going,
        };
        match known.phase.unwrap_or_default() {
            ChangePhase::Requested => visit.consider(known).await,
            ChangePhase::Validated | ChangePhase::AwaitingApproval => visit.carry_out(known).await,
            _ => visit.watch(known).await,
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.sampler.forget(key);
        self.baselines.forget(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_of_one_object_and_goes_with_it() {
        let baselines = Baselines::default();
        let key = ObjectKey::new("ns", "more");
        baselines.keep(&key, "u-1", verdict::summary(&[0.5]));
        assert!(baselines.get(&key, "u-1").is_some());
        assert!(baselines.get(&key, "u-2").is_none(), "another of the same name");
        baselines.forget(&key);
        assert!(baselines.get(&key, "u-1").is_none());
    }
}
