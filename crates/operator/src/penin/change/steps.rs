//! The steps of a change: each reads what is so, decides, records, and only then acts.

use std::{sync::Arc, time::Duration};

use gantry_crds::{
    conditions::reasons,
    penin::{
        ChangePhase, ChangePlan, Decision as Approved, InfrastructureChange, InfrastructureChangeStatus,
        PeninOmegaCluster, SelfArchitecting, Verdict,
    },
};
use gantry_kit::{Context, Outcome, Result, client::Caller};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    Changes, belief,
    build::{self, Mark},
    decide::{self, Decision, Watched},
    observe::{self, Observed},
    owners,
    policy::Denied,
    record::{self, Body, Step},
    status,
    validate::{self, Proposal},
    verdict,
};

/// One look at one change: what it needs at hand.
pub struct Visit<'a> {
    pub controller: &'a Changes,
    pub change: &'a InfrastructureChange,
    pub context: &'a Context,
    pub observed: Observed,
}

type Told = Outcome<InfrastructureChangeStatus>;

impl Visit<'_> {
    /// Requested: is it allowed?
    pub async fn consider(&self, mut status: InfrastructureChangeStatus) -> Result<Told> {
        let page = &self.observed.page;
        if let Some(fault) = &page.fault {
            return Ok(broken(status, fault));
        }
        status.requested_by = self.observed.requested_by.clone();
        let spec = &self.change.spec;
        let detail = json!({
            "cluster": spec.cluster, "reason": spec.reason, "patch": spec.patch, "requestedBy": status.requested_by,
        });
        self.record(&mut status, Step::Requested, detail).await?;
        let Some(live) = self.live().await? else {
            let message = format!("there is no PeninOmegaCluster {} here", spec.cluster());
            return Ok(status::waiting(
                status,
                reasons::WAITING_FOR_CLUSTER,
                message,
                None,
            ));
        };
        let proposal = match self.propose(&live) {
            Ok(proposal) => proposal,
            Err(denied) => return self.reject(status, denied).await,
        };
        if validate::policy_of(&live).verdict.is_none() {
            let denied = Denied {
                rule: "verdict",
                message: "the policy does not say how to judge: set spec.selfArchitecting.verdict".to_owned(),
            };
            return self.reject(status, denied).await;
        }
        self.plan(status, proposal, &live).await
    }

    fn propose(&self, live: &DynamicObject) -> std::result::Result<Proposal, Denied> {
        let Observed {
            page,
            uid,
            requested_by,
            ..
        } = &self.observed;
        let now = Timestamp::now();
        let history = page.memory.history(uid, now);
        validate::propose(self.change, live, requested_by.as_deref(), &history, now)
    }

    /// Asks the server what it would store, and remembers that with the values from before.
    async fn plan(
        &self,
        mut status: InfrastructureChangeStatus,
        proposal: Proposal,
        live: &DynamicObject,
    ) -> Result<Told> {
        let stored = match self.apply(&proposal, live, true).await {
            Ok(stored) => stored,
            Err(error) if error.reason() == "Rejected" => {
                let denied = Denied {
                    rule: "server",
                    message: error.report(),
                };
                return self.reject(status, denied).await;
            }
            Err(error) => return Err(error),
        };
        let plan = proposal.with_answer(&stored);
        let detail = json!({"fields": plan.fields});
        status.plan = Some(plan);
        self.record(&mut status, Step::Validated, detail).await?;
        Ok(status::advanced(
            status,
            ChangePhase::Validated,
            "the policy allows it",
        ))
    }

    /// Validated, or approved at last: change the cluster.
    pub async fn carry_out(&self, mut status: InfrastructureChangeStatus) -> Result<Told> {
        let Observed { page, uid, .. } = &self.observed;
        let Some(plan) = status.plan.clone() else {
            return Ok(status::advanced(
                status,
                ChangePhase::Requested,
                "there is no plan",
            ));
        };
        let Some(live) = self
            .live()
            .await?
            .filter(|live| live.metadata.uid == plan.cluster_uid)
        else {
            let denied = Denied {
                rule: "cluster",
                message: "the cluster that it was planned for was deleted".to_owned(),
            };
            return self.reject(status, denied).await;
        };
        if page.memory.intended(uid).is_some() {
            let made = || belief::as_intended(status.clone(), &page.memory, uid);
            match build::mark(&live, uid) {
                // It was made, and the status was lost.
                Mark::Applied => return self.applied(made(), &live).await,
                Mark::RolledBack => return self.watch(made()).await,
                Mark::None => {}
            }
        }
        status.requested_by.clone_from(&self.observed.requested_by);
        if let Some(fault) = &page.fault {
            return Ok(broken(status, fault));
        }
        if plan.request_digest.as_deref() != Some(validate::request_digest(self.change).as_str()) {
            let denied = Denied {
                rule: "immutable",
                message: "the request was edited: make a new InfrastructureChange".to_owned(),
            };
            return self.reject(status, denied).await;
        }
        let proposal = match self.propose(&live) {
            Ok(proposal) => proposal,
            Err(denied) => return self.reject(status, denied).await,
        };
        if validate::policy_of(&live).require_approval() {
            match self.approval(&mut status).await? {
                Approval::Given => {}
                Approval::Denied(denied) => return self.reject(status, denied).await,
                Approval::Wanted(outcome) => return Ok(*outcome),
            }
        }
        if !proposal.still_holds(&plan) {
            // Somebody edited beside it: the values from before are others now.
            return self.plan(status, proposal, &live).await;
        }
        // At the last moment: an approval may have taken days.
        if let Some(outcome) = self.baseline(&mut status, &live).await? {
            return Ok(outcome);
        }
        let intent = json!({
            "fields": plan.fields, "before": plan.before, "after": plan.after, "baseline": status.baseline,
        });
        let intent = record::with_exact(intent, &record::planned(&status));
        self.record(&mut status, Step::Intent, intent).await?;
        let stored = self.apply(&proposal, &live, false).await?;
        self.applied(status, &stored).await
    }

    /// Measures how things are before the change. Nothing when that is done, and stands in the status.
    async fn baseline(
        &self,
        status: &mut InfrastructureChangeStatus,
        live: &DynamicObject,
    ) -> Result<Option<Told>> {
        let Observed { key, uid, .. } = &self.observed;
        let baselines = &self.controller.baselines;
        if let Some(known) = baselines.get(key, uid) {
            if status
                .baseline
                .as_ref()
                .is_some_and(|told| verdict::same(told, &known))
            {
                return Ok(None);
            }
            // The status with it was lost, or is that of an earlier process.
            status.baseline = Some(known);
            return Ok(Some(status::advanced(
                status.clone(),
                ChangePhase::Validated,
                MEASURED,
            )));
        }
        let policy = validate::policy_of(live);
        let needed = policy.verdict.as_ref().map_or(1, Verdict::min_samples);
        let measured = self.measure("before", &policy, live).unwrap_or_default();
        if measured.readings.samples.unwrap_or(0) >= needed {
            self.controller.sampler.forget(&self.observed.key);
            baselines.keep(key, uid, measured.readings.clone());
            status.baseline = Some(measured.readings);
            return Ok(Some(status::advanced(
                status.clone(),
                ChangePhase::Validated,
                MEASURED,
            )));
        }
        if measured.since < decide::window(&policy) {
            let mut status = status.clone();
            status.phase = Some(ChangePhase::Validated);
            let again = Some(decide::window(&policy).saturating_sub(measured.since));
            return Ok(Some(status::waiting(
                status,
                reasons::MEASURING,
                MEASURING,
                again,
            )));
        }
        let why = measured.silent.unwrap_or_else(|| "too few readings".to_owned());
        let denied = Denied {
            rule: "verdict",
            message: format!("what decides cannot be measured: {why}"),
        };
        self.reject(status.clone(), denied).await.map(Some)
    }

    /// What an approver said, if it counts.
    async fn approval(&self, status: &mut InfrastructureChangeStatus) -> Result<Approval> {
        let said = status.approval.clone().unwrap_or_default();
        let detail = json!({"by": said.by, "note": said.note});
        match said.decision {
            None => {
                self.record(status, Step::AwaitingApproval, json!({})).await?;
                let message = "somebody must approve it: `gantry penin approve`";
                let mut waiting = status.clone();
                waiting.phase = Some(ChangePhase::AwaitingApproval);
                Ok(Approval::Wanted(Box::new(status::waiting(
                    waiting,
                    reasons::AWAITING_APPROVAL,
                    message,
                    None,
                ))))
            }
            Some(Approved::Denied) => Ok(Approval::Denied(Denied {
                rule: "approval",
                message: format!(
                    "{} said no{}",
                    said.by.as_deref().unwrap_or("an approver"),
                    said.note.map(|note| format!(": {note}")).unwrap_or_default()
                ),
            })),
            Some(Approved::Approved) => {
                if let Some(user) = &status.requested_by
                    && observe::may_approve(user, &self.observed.key, &self.context.caller).await?
                {
                    let message = format!(
                        "{user} asked for it and could have approved it too: take away its right to write \
                         infrastructurechanges/status"
                    );
                    let mut refused = status.clone();
                    refused.phase = Some(ChangePhase::AwaitingApproval);
                    let mut outcome = status::stuck(refused, reasons::SELF_APPROVAL, message);
                    // Nobody tells when rights change.
                    outcome.again = Some(LOOK_AGAIN);
                    return Ok(Approval::Wanted(Box::new(outcome)));
                }
                self.record(status, Step::Approved, detail).await?;
                Ok(Approval::Given)
            }
        }
    }

    /// The cluster is changed.
    async fn applied(&self, mut status: InfrastructureChangeStatus, stored: &DynamicObject) -> Result<Told> {
        status.applied_at = Some(Time(Timestamp::now()));
        status.applied_generation = stored.metadata.generation;
        let detail = json!({"generation": stored.metadata.generation});
        self.record(&mut status, Step::Applied, detail).await?;
        Ok(status::advanced(
            status,
            ChangePhase::Applied,
            "the cluster is changed; its services follow",
        ))
    }

    /// Applied or observing: is it time to judge, and how?
    pub async fn watch(&self, mut status: InfrastructureChangeStatus) -> Result<Told> {
        let Some(plan) = status.plan.clone() else {
            return Ok(status::advanced(
                status,
                ChangePhase::Requested,
                "there is no plan",
            ));
        };
        if let Some(decision) = self.observed.page.memory.decided(&self.observed.uid).cloned() {
            return self.finish(status, &plan, decision).await;
        }
        let Some(live) = self.live().await? else {
            let gone = decide::interrupted(
                &Watched {
                    gone: true,
                    ..Watched::default()
                },
                &SelfArchitecting::default(),
            );
            return match gone {
                Some(decision) => self.finish(status, &plan, decision).await,
                None => Ok(status::ended(status)),
            };
        };
        let policy = validate::policy_of(&live);
        let applied = status
            .applied_at
            .as_ref()
            .map(|at| at.0)
            .zip(status.applied_generation);
        let watched = observe::watched(Some(&live), &plan, applied, Timestamp::now());
        if let Some(decision) = decide::interrupted(&watched, &policy) {
            return self.finish(status, &plan, decision).await;
        }
        if status.phase != Some(ChangePhase::Observing) {
            if let Some(decision) = decide::never_ready(&watched, &policy) {
                return self.finish(status, &plan, decision).await;
            }
            if !watched.ready {
                let left = decide::patience(&policy).saturating_sub(watched.since_applied);
                let message = "the cluster is changed; its services follow";
                let again = Some(left.max(Duration::from_secs(1)));
                return Ok(status::waiting(status, "Applied", message, again));
            }
            self.record(&mut status, Step::Observing, json!({})).await?;
            return Ok(status::advanced(status, ChangePhase::Observing, OBSERVING));
        }
        let window = decide::window(&policy);
        let Some(measured) = self.measure("after", &policy, &live) else {
            return Ok(status::waiting(
                status,
                reasons::OBSERVING,
                OBSERVING,
                Some(window),
            ));
        };
        let before = status.baseline.clone().unwrap_or_default();
        if let Some(decision) = decide::judged(&policy, &before, &measured) {
            return self.finish(status, &plan, decision).await;
        }
        let left = window.saturating_sub(measured.since);
        Ok(status::waiting(status, reasons::OBSERVING, OBSERVING, Some(left)))
    }

    /// Records a decision, carries it out, and records the end.
    async fn finish(
        &self,
        mut status: InfrastructureChangeStatus,
        plan: &ChangePlan,
        mut decision: Decision,
    ) -> Result<Told> {
        let detail =
            json!({"phase": decision.phase, "rollBack": decision.roll_back, "message": decision.message});
        let detail = record::with_exact(detail, &decision);
        self.record(&mut status, Step::Decided, detail).await?;
        if decision.roll_back
            && let Some(superseded) = self.roll_back(plan).await?
        {
            decision = superseded;
        }
        self.end(status, &decision, None).await
    }

    /// Makes the spec what it was, unless that was done already. Gives another decision when somebody edited meanwhile.
    async fn roll_back(&self, plan: &ChangePlan) -> Result<Option<Decision>> {
        let uid = &self.observed.uid;
        let live = self.live().await?;
        if let Some(live) = &live
            && build::mark(live, uid) == Mark::RolledBack
        {
            return Ok(None);
        }
        let watched = observe::watched(live.as_ref(), plan, None, Timestamp::now());
        let enabled = SelfArchitecting {
            enabled: Some(true),
            ..SelfArchitecting::default()
        };
        if let Some(superseded) = decide::interrupted(&watched, &enabled) {
            return Ok(Some(superseded));
        }
        let Some(live) = live else {
            return Ok(None);
        };
        let body = build::way_back(&live, plan, uid);
        let params = PatchParams {
            field_manager: Some(owners::manager(uid)),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(body);
        let name = &self.observed.cluster_key.name;
        let api = self.clusters();
        let call = api.patch(name, &params, &patch);
        let action = format!("roll PeninOmegaCluster {name} back");
        self.context.caller.write(action, call).await?;
        Ok(None)
    }

    async fn reject(&self, status: InfrastructureChangeStatus, denied: Denied) -> Result<Told> {
        let decision = Decision {
            phase: ChangePhase::Rejected,
            roll_back: false,
            message: denied.message,
            outcome: None,
            gain: None,
        };
        self.end(status, &decision, Some(denied.rule)).await
    }

    async fn end(
        &self,
        status: InfrastructureChangeStatus,
        decision: &Decision,
        rule: Option<&str>,
    ) -> Result<Told> {
        let mut status = status::at_end(status, decision, rule, Timestamp::now());
        let mut exact = status.clone();
        exact.approval = None;
        let detail = json!({"phase": decision.phase, "rule": rule, "message": decision.message});
        self.record(&mut status, Step::Ended, record::with_exact(detail, &exact))
            .await?;
        self.controller.sampler.forget(&self.observed.key);
        self.controller.baselines.forget(&self.observed.key);
        let mut outcome = status::ended(status);
        // One more look, at what is left to put away: our own write wakes nobody.
        outcome.again = Some(status::NEXT);
        Ok(outcome)
    }

    async fn record(&self, status: &mut InfrastructureChangeStatus, step: Step, detail: Value) -> Result<()> {
        let Observed { uid, cluster_key, .. } = &self.observed;
        let body = Body::new(&self.change.name_any(), uid, step, detail);
        let head = self
            .controller
            .books
            .append(cluster_key, &body, &self.context.caller)
            .await?;
        status.ledger_head = Some(head.to_string());
        Ok(())
    }

    /// Readings before or after the change. Nothing when the cluster does not decode, which its own status tells.
    fn measure(
        &self,
        part: &str,
        policy: &SelfArchitecting,
        live: &DynamicObject,
    ) -> Option<decide::Measured> {
        let rule = policy.verdict.clone()?;
        let cluster: PeninOmegaCluster = serde_json::from_value(json!(live)).ok()?;
        let cluster = Arc::new(cluster);
        let (sources, children) = (self.controller.sources.clone(), self.context.children.clone());
        let subject = format!("{part}/{}/{}", self.observed.uid, json!(rule));
        let interval = decide::interval(policy, &rule);
        let ask = move || {
            let (sources, children) = (sources.clone(), children.clone());
            let (cluster, rule) = (cluster.clone(), rule.clone());
            async move { sources.ask(&cluster, children, &rule).await }
        };
        Some(
            self.controller
                .sampler
                .look(&self.observed.key, &subject, interval, &self.context.queue, ask),
        )
    }

    async fn live(&self) -> Result<Option<DynamicObject>> {
        observe::live(&self.observed.cluster_key, &self.context.caller).await
    }

    fn clusters(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<PeninOmegaCluster>(&());
        let namespace = &self.observed.cluster_key.namespace;
        Api::namespaced_with(self.context.caller.client(), namespace, &resource)
    }

    /// Server-side apply of the proposed fields, with this change's own field manager. Whose fields they are was checked
    /// on the very version that this holds for.
    async fn apply(&self, proposal: &Proposal, live: &DynamicObject, dry_run: bool) -> Result<DynamicObject> {
        let uid = &self.observed.uid;
        let mut params = PatchParams::apply(&owners::manager(uid)).force();
        params.dry_run = dry_run;
        let patch = Patch::Apply(build::change(live, &proposal.patch, uid));
        let name = &self.observed.cluster_key.name;
        let api = self.clusters();
        let call = api.patch(name, &params, &patch);
        let caller: &Caller = &self.context.caller;
        if dry_run {
            caller
                .read(format!("try the change on PeninOmegaCluster {name}"), call)
                .await
        } else {
            caller
                .write(format!("change PeninOmegaCluster {name}"), call)
                .await
        }
    }
}

enum Approval {
    Given,
    Denied(Denied),
    Wanted(Box<Told>),
}

/// At what nothing wakes us for.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
const MEASURING: &str = "measuring how things are before the change";
const MEASURED: &str = "how things are before the change is known";
const OBSERVING: &str = "measuring the effect";

pub fn broken(status: InfrastructureChangeStatus, fault: &str) -> Told {
    let message = format!(
        "the ledger cannot be trusted: {fault}; see `gantry penin ledger verify`, then move its ConfigMaps away"
    );
    let mut outcome = status::stuck(status, reasons::LEDGER_BROKEN, message);
    outcome.again = Some(LOOK_AGAIN);
    outcome
}
