//! One visit of one object: everything around `reconcile` that is the same for all kinds.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DeserializeGuard, DynamicObject},
};
use serde_json::{Value, json};
use tracing::Instrument;

use gantry_crds::conditions::reasons::{CONFLICT, DELETED, INVALID_SPEC, NOT_LEADER, PANICKED, TERMINATING};

use crate::{
    PAUSED,
    backoff::Backoff,
    conditions::{self, Progress, READY, Verdict},
    controller::{Context, Controller, Outcome},
    error::{Error, Result, Retry},
    events::{self, News, Severity},
    metrics::Metrics,
    store::{ObjectKey, Store, trim},
};

pub struct Driver<C: Controller> {
    pub controller: C,
    pub context: Context,
    pub store: Arc<Store<DeserializeGuard<C::Kind>>>,
    pub backoff: Backoff,
    /// The replica that this is, as events name it.
    pub instance: String,
    pub metrics: Metrics,
    pub resync: Duration,
    /// The uid of every object that was visited: what the event about its end refers to.
    pub known: Mutex<HashMap<ObjectKey, Box<str>>>,
}

impl<C: Controller> Driver<C> {
    /// Never fails: what goes wrong is told in status, events and metrics, and tried again.
    pub async fn visit(&self, key: &ObjectKey) {
        let started = std::time::Instant::now();
        // A bug in one object's path must not take the worker, and with it all other objects, down.
        let span = tracing::info_span!("reconcile", kind = C::NAME, object = %key);
        let result = AssertUnwindSafe(self.visit_once(key).instrument(span))
            .catch_unwind()
            .await;
        let (again, error) = match result {
            Ok(Ok(again)) => {
                self.backoff.succeeded(key);
                (again, None)
            }
            Ok(Err(error)) => {
                tracing::warn!(kind = C::NAME, object = %key, reason = error.reason(), error = error.report(), "visit failed");
                // On top of what we would wait anyhow, which is spread: all were asked to wait equally long.
                let asked = error.retry_after();
                if !asked.is_zero() {
                    self.context.queue.hold(key.clone(), asked);
                }
                let wait = asked + self.backoff.failed(key, error.retry());
                (Some(wait), Some(error.reason()))
            }
            Err(_) => {
                tracing::error!(kind = C::NAME, object = %key, "visit panicked");
                (Some(self.backoff.failed(key, Retry::PASSING)), Some(PANICKED))
            }
        };
        self.metrics.reconciled(C::NAME, error, started.elapsed());
        if let Some(again) = again {
            self.context.queue.add_after(key.clone(), again);
        }
    }

    /// Every object that was visited and not yet found to be gone.
    pub fn visited(&self) -> Vec<ObjectKey> {
        self.known().keys().cloned().collect()
    }

    async fn visit_once(&self, key: &ObjectKey) -> Result<Option<Duration>> {
        let Some(cached) = self.store.get(key) else {
            self.controller.forget(key);
            self.context.references.forget(C::NAME, key);
            self.context.links.forget(C::NAME, key);
            let gone = self.known().remove(key);
            if let Some(uid) = gone {
                let note = "it is gone, and what it owned goes with it".to_owned();
                let about = events::about::<C::Kind>(key, &uid);
                self.publish(about, Severity::Normal, DELETED.to_owned(), note)
                    .await;
            }
            return Ok(None);
        };
        let object = match &cached.0 {
            Ok(object) => object,
            Err(invalid) => {
                let meta = &invalid.metadata;
                if meta.deletion_timestamp.is_some() {
                    // What cannot be read tells nothing that could be cleaned up, and nothing may keep it for ever.
                    self.keep_finalizers(meta, &others_finalizers::<C>(meta, true))
                        .await?;
                } else {
                    self.report_undecodable(meta, &invalid.error).await?;
                }
                return Ok(None);
            }
        };
        self.known()
            .insert(key.clone(), object.uid().unwrap_or_default().into());
        if object.meta().deletion_timestamp.is_some() {
            return self.let_go(object).await;
        }
        if object
            .annotations()
            .get(PAUSED)
            .is_some_and(|paused| paused == "true")
        {
            return Ok(None);
        }
        if let Some(finalizer) = C::FINALIZER
            && !object.finalizers().iter().any(|held| held == finalizer)
        {
            // Held before anything is made; what this write returns comes by the watch and is visited then.
            let held = object.finalizers().iter().map(String::as_str).chain([finalizer]);
            self.write_finalizers(object.meta(), &held.collect::<Vec<_>>())
                .await?;
            return Ok(None);
        }
        // What a visit that was cut off has left.
        self.context.take_refused(key);
        let mut outcome = self.controller.reconcile(object, &self.context).await;
        let refused = self.context.take_refused(key);
        let warnings = outcome
            .as_mut()
            .map(|outcome| std::mem::take(&mut outcome.warnings))
            .unwrap_or_default();
        let now = Timestamp::now();
        let previous = C::status(object);
        let (status, result) = match outcome {
            Ok(mut outcome) => {
                refused.tell_in(&mut outcome);
                let again = outcome.again.unwrap_or(self.resync).min(self.resync);
                let result = refused.into_error().map_or(Ok(Some(again)), Err);
                if result.is_err() {
                    self.context.queue.add_after(key.clone(), again);
                }
                (
                    settle::<C>(previous, outcome, object.meta().generation, now),
                    result,
                )
            }
            // Another replica acts now, or another write came first: the next visit sees more than we know.
            Err(error) if matches!(error.reason(), NOT_LEADER | CONFLICT) => return Err(error),
            Err(error) => (fail::<C>(previous, &error, now), Err(error)),
        };
        if previous != Some(&status) {
            tracing::debug!(kind = C::NAME, object = %key, before = %json!(previous), after = %json!(status), "status changes");
            match (self.write_status(object, &status).await, &result) {
                // Only what is told in the status is announced: else it would be again at every try.
                (Ok(()), _) => self.announce(object, previous.cloned(), status, warnings).await,
                (Err(error), Ok(_)) => return Err(error),
                // The first fault is the one to tell, and to wait for.
                (Err(error), Err(_)) => tracing::warn!(error = error.report(), "status lost"),
            }
        }
        result
    }

    async fn write_status(&self, object: &C::Kind, status: &C::Status) -> Result<()> {
        let name = object.name_any();
        let api = Api::<C::Kind>::namespaced(
            self.context.caller.client(),
            &object.namespace().unwrap_or_default(),
        );
        let ours = without(json!(status), C::OTHERS_WRITE);
        // Servers before 1.21 make a whole block that an apply drops null, and then refuse that null.
        let found = without(json!(C::status(object)), C::OTHERS_WRITE);
        if let Some(blocks) = surplus(&found, &ours, Value::is_object) {
            self.clear_status(&api, object, blocks).await?;
        }
        let patch = Patch::Apply(status_patch::<C::Kind>(object.meta(), ours.clone()));
        let params = PatchParams::apply(&format!("{}-status", self.context.field_manager)).force();
        let action = format!("write the status of {} {name}", C::Kind::kind(&()));
        let call = api.patch_status(&name, &params, &patch);
        let mut written = self.context.caller.write(action, call).await?;
        // What an original operator wrote, and on old servers what `kubectl replace` made nobody's.
        let found = without(json!(C::status(&written)), C::OTHERS_WRITE);
        if let Some(rest) = surplus(&found, &ours, |_| true) {
            written = self.clear_status(&api, &written, rest).await?;
        }
        let written = trim(written);
        // So that the next visit compares with what we wrote, also when the watch is slower.
        let key = ObjectKey::of(written.meta());
        let is_ours_alone = is_same_but_for_ours::<C>(object, &written);
        if self.store.put(DeserializeGuard(Ok(written))) {
            // Somebody changed it while we looked at it, which the watch will not tell of any more either.
            if !is_ours_alone {
                self.context.queue.add(key.clone());
            }
            // The watch finds nothing new in it then, so those who look at this object are told here.
            self.context.links.changed(C::NAME, key);
        }
        Ok(())
    }

    /// Takes fields out of the status of exactly this version of the object.
    async fn clear_status(&self, api: &Api<C::Kind>, object: &C::Kind, fields: Value) -> Result<C::Kind> {
        let name = object.name_any();
        let patch = Patch::Merge(json!({
            "metadata": {"uid": object.uid(), "resourceVersion": object.resource_version()}, "status": fields,
        }));
        let params = PatchParams::default();
        let action = format!("clear the status of {} {name}", C::Kind::kind(&()));
        self.context
            .caller
            .write(action, api.patch_status(&name, &params, &patch))
            .await
    }

    /// Events mark transitions of `Ready` and warnings about a new spec, never repetitions.
    async fn announce(
        &self,
        object: &C::Kind,
        mut previous: Option<C::Status>,
        mut status: C::Status,
        warnings: Vec<(&'static str, String)>,
    ) {
        let about =
            || events::about::<C::Kind>(&ObjectKey::of(object.meta()), &object.uid().unwrap_or_default());
        let before = previous
            .as_mut()
            .and_then(|status| *C::common(status).observed_generation);
        if before != object.meta().generation {
            for (reason, note) in warnings {
                self.publish(about(), Severity::Warning, reason.to_owned(), note)
                    .await;
            }
        }
        let before = previous
            .and_then(|mut status| conditions::find(C::common(&mut status).conditions, READY).cloned());
        let Some(now) = conditions::find(C::common(&mut status).conditions, READY).cloned() else {
            return;
        };
        if before.is_some_and(|before| before.status == now.status && before.reason == now.reason) {
            return;
        }
        let stalled = conditions::is_true(C::common(&mut status).conditions, conditions::STALLED);
        let severity = if stalled {
            Severity::Warning
        } else {
            Severity::Normal
        };
        self.publish(about(), severity, now.reason, now.message).await;
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Box<str>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(&self, about: ObjectReference, severity: Severity, reason: String, note: String) {
        let namespace = about.namespace.clone().unwrap_or_default();
        let news = News {
            severity,
            reason,
            note,
        };
        let event = events::event(about, news, &self.instance, Timestamp::now());
        let api = Api::<Event>::namespaced(self.context.caller.client(), &namespace);
        let params = PostParams::default();
        let publish = api.create(&params, &event);
        if let Err(error) = self
            .context
            .caller
            .write("publish an event".to_owned(), publish)
            .await
        {
            tracing::debug!(error = error.report(), "event lost");
        }
    }

    /// The stored object does not have the shape of its kind. Its status may not either, so it is read as it comes.
    async fn report_undecodable(&self, meta: &ObjectMeta, why: &str) -> Result<()> {
        let name = meta.name.clone().unwrap_or_default();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let resource = ApiResource::erase::<C::Kind>(&());
        let api = Api::<DynamicObject>::namespaced_with(self.context.caller.client(), &namespace, &resource);
        let what = format!("{} {name}", resource.kind);
        let Some(live) = self
            .context
            .caller
            .read(format!("get {what}"), api.get_opt(&name))
            .await?
        else {
            return Ok(());
        };
        let known: Vec<Condition> =
            serde_json::from_value(live.data["status"]["conditions"].clone()).unwrap_or_default();
        let mut status = C::Status::default();
        let ready = Verdict::no(INVALID_SPEC, format!("this object cannot be read: {why}"));
        let generation = live.metadata.generation;
        *C::common(&mut status).conditions = conditions::merge(
            &known,
            all_verdicts(&ready, Progress::Stuck, Vec::new()),
            generation,
            Timestamp::now(),
        );
        *C::common(&mut status).observed_generation = generation;
        C::summarize(&mut status);
        if known == *C::common(&mut status).conditions {
            return Ok(());
        }
        let patch = status_patch::<C::Kind>(&live.metadata, json!(status));
        let params = PatchParams::apply(&format!("{}-status", self.context.field_manager)).force();
        let patch = Patch::Apply(patch);
        let call = api.patch_status(&name, &params, &patch);
        self.context
            .caller
            .write(format!("write the status of {what}"), call)
            .await?;
        Ok(())
    }

    /// Cleans up and takes our finalizer away, and those of an original operator, which would otherwise stay for ever.
    async fn let_go(&self, object: &C::Kind) -> Result<Option<Duration>> {
        let mut again = None;
        if C::FINALIZER.is_some_and(|ours| object.finalizers().iter().any(|held| held == ours)) {
            again = self.controller.finalize(object, &self.context).await?;
        }
        let kept = others_finalizers::<C>(object.meta(), again.is_none());
        if !kept.is_empty() {
            self.tell_the_end(object).await;
        }
        self.keep_finalizers(object.meta(), &kept).await?;
        Ok(again)
    }

    /// While somebody still holds the object, its status says that it is on its way out. That never holds it up.
    async fn tell_the_end(&self, object: &C::Kind) {
        let previous = C::status(object);
        let status = ending::<C>(previous, Timestamp::now());
        if previous == Some(&status) {
            return;
        }
        match self.write_status(object, &status).await {
            Ok(()) => {
                self.announce(object, previous.cloned(), status, Vec::new()).await;
            }
            Err(error) => tracing::debug!(error = error.report(), "last status lost"),
        }
    }

    /// Takes away all finalizers but these. An object that is gone meanwhile holds none.
    async fn keep_finalizers(&self, meta: &ObjectMeta, kept: &[&str]) -> Result<()> {
        if kept.len() == meta.finalizers.as_deref().unwrap_or_default().len() {
            return Ok(());
        }
        match self.write_finalizers(meta, kept).await {
            Err(error) if error.is_not_found() => Ok(()),
            answer => answer,
        }
    }

    /// The answer is not looked into: it may not have the shape of its kind.
    async fn write_finalizers(&self, meta: &ObjectMeta, finalizers: &[&str]) -> Result<()> {
        let name = meta.name.as_deref().unwrap_or_default();
        let resource = ApiResource::erase::<C::Kind>(&());
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let api = Api::<DynamicObject>::namespaced_with(self.context.caller.client(), namespace, &resource);
        let patch = Patch::Merge(json!({"metadata": {
            "finalizers": finalizers, "resourceVersion": meta.resource_version, "uid": meta.uid,
        }}));
        let params = PatchParams::default();
        let call = api.patch(name, &params, &patch);
        let action = format!("change the finalizers of {} {name}", resource.kind);
        self.context.caller.write(action, call).await.map(|_| ())
    }
}

/// The finalizers that stay on an object that goes: neither those of the original operator nor, once it is `done`, ours.
fn others_finalizers<C: Controller>(meta: &ObjectMeta, done: bool) -> Vec<&str> {
    let held = meta.finalizers.iter().flatten().map(String::as_str);
    held.filter(|name| {
        let ours = C::FINALIZER == Some(*name) && done;
        !ours && !C::OBSOLETE_FINALIZERS.contains(name)
    })
    .collect()
}

fn all_verdicts(
    ready: &Verdict,
    progress: Progress,
    also: Vec<(&'static str, Verdict)>,
) -> Vec<(&'static str, Verdict)> {
    let mut verdicts = vec![(READY, ready.clone())];
    verdicts.extend(progress.verdicts(ready));
    verdicts.extend(also);
    verdicts
}

/// The status after a visit that came to a conclusion about `generation`.
pub fn settle<C: Controller>(
    previous: Option<&C::Status>,
    outcome: Outcome<C::Status>,
    generation: Option<i64>,
    now: Timestamp,
) -> C::Status {
    let known = previous
        .cloned()
        .map(|mut status| C::common(&mut status).conditions.clone())
        .unwrap_or_default();
    let mut status = outcome.status;
    let verdicts = all_verdicts(&outcome.ready, outcome.progress, outcome.also);
    let common = C::common(&mut status);
    *common.conditions = conditions::merge(&known, verdicts, generation, now);
    *common.observed_generation = generation;
    C::summarize(&mut status);
    status
}

/// The status after a visit that failed: what was known stays, the fault is told, the generation is not claimed.
pub fn fail<C: Controller>(previous: Option<&C::Status>, error: &Error, now: Timestamp) -> C::Status {
    let mut status = previous.cloned().unwrap_or_default();
    let generation = *C::common(&mut status).observed_generation;
    let known = C::common(&mut status).conditions.clone();
    let fault = Verdict::no(error.reason(), error.report());
    let (ready, progress) = if error.is_lasting() {
        (fault, Progress::Stuck)
    } else {
        // A passing fault says nothing about what already runs.
        let ready = conditions::find(&known, READY).map(as_verdict);
        (
            ready.unwrap_or_else(|| Verdict::unknown(error.reason(), error.report())),
            Progress::Working,
        )
    };
    let mut verdicts = all_verdicts(&ready, progress, Vec::new());
    if progress == Progress::Working
        && let Some((_, reconciling)) = verdicts
            .iter_mut()
            .find(|(type_, _)| *type_ == conditions::RECONCILING)
    {
        *reconciling = Verdict::yes(error.reason(), error.report());
    }
    *C::common(&mut status).conditions = with_others(known, verdicts, generation, now);
    C::summarize(&mut status);
    status
}

/// The status of an object that is being deleted: what was known stays, the end is told.
pub fn ending<C: Controller>(previous: Option<&C::Status>, now: Timestamp) -> C::Status {
    let mut status = previous.cloned().unwrap_or_default();
    let generation = *C::common(&mut status).observed_generation;
    let known = C::common(&mut status).conditions.clone();
    let ready = Verdict::no(TERMINATING, "it is being deleted");
    let verdicts = all_verdicts(&ready, Progress::Working, Vec::new());
    *C::common(&mut status).conditions = with_others(known, verdicts, generation, now);
    C::summarize(&mut status);
    status
}

/// These verdicts, and all other conditions as they were.
fn with_others(
    known: Vec<Condition>,
    verdicts: Vec<(&'static str, Verdict)>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut merged = conditions::merge(&known, verdicts, generation, now);
    for other in known {
        if conditions::find(&merged, &other.type_).is_none() {
            merged.push(other);
        }
    }
    merged
}

fn as_verdict(condition: &Condition) -> Verdict {
    let truth = match condition.status.as_str() {
        "True" => conditions::Truth::True,
        "False" => conditions::Truth::False,
        _ => conditions::Truth::Unknown,
    };
    Verdict::new(truth, condition.reason.clone(), condition.message.clone())
}

/// Whether all that changed is what we write ourselves.
fn is_same_but_for_ours<C: Controller>(before: &C::Kind, after: &C::Kind) -> bool {
    let others = |object: &C::Kind| {
        let mut meta = object.meta().clone();
        (meta.resource_version, meta.managed_fields) = (None, None);
        let status = json!(C::status(object));
        let fields = C::OTHERS_WRITE.iter().map(|name| status[*name].clone());
        (meta, fields.collect::<Vec<_>>())
    };
    // The generation stands for the spec.
    others(before) == others(after)
}

/// A status without the fields that others write.
fn without(mut status: Value, fields: &[&str]) -> Value {
    if let Some(status) = status.as_object_mut() {
        status.retain(|name, _| !fields.contains(&name.as_str()));
    }
    status
}

/// A merge patch that removes what a status still has and should not, where `which` holds for it. Lists are left alone.
fn surplus(found: &Value, wanted: &Value, which: fn(&Value) -> bool) -> Option<Value> {
    let (Value::Object(found), Value::Object(wanted)) = (found, wanted) else {
        return None;
    };
    let rest = found.iter().filter_map(|(name, value)| {
        let rest = match wanted.get(name) {
            None => which(value).then_some(Value::Null),
            Some(wanted) => surplus(value, wanted, which),
        };
        rest.map(|rest| (name.clone(), rest))
    });
    let rest: serde_json::Map<String, Value> = rest.collect();
    (!rest.is_empty()).then_some(Value::Object(rest))
}

/// The uid makes the server refuse when the object was replaced by a namesake meanwhile.
fn status_patch<K: Resource<DynamicType = ()>>(meta: &ObjectMeta, status: Value) -> Value {
    json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "status": status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_wanted_any_more_is_cleared() {
        let found = json!({
            "endpoint": "x", "phase": "Ready", "links": {"a": "1", "b": "2"}, "list": [1, 2], "cache": {"ready": true},
        });
        let wanted = json!({"phase": "Failed", "links": {"a": "3"}, "list": [1], "new": true});
        let rest = json!({"endpoint": null, "links": {"b": null}, "cache": null});
        assert_eq!(surplus(&found, &wanted, |_| true), Some(rest));
        assert_eq!(
            surplus(&found, &wanted, Value::is_object),
            Some(json!({"cache": null}))
        );
        assert_eq!(surplus(&wanted, &wanted, |_| true), None);
    }
}
