//! The leader lease: of several replicas one acts, and when it dies or is cut off another takes over.
//!
//! Safety rests on time measured at both ends with monotonic clocks. The holder considers its lease over a margin
//! *before* the duration ends, counted from when it *sent* the last renewal that succeeded; a candidate waits for the
//! full duration, counted from when it *saw* the last renewal. Writes check the [`Fence`], and those under way are
//! dropped when it closes.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::watch, time::Instant};

use crate::{
    error::{Error, Result, code},
    metrics::Metrics,
};

#[derive(Clone, Debug)]
pub struct LeaseOptions {
    pub namespace: String,
    pub name: String,
    /// Unique to this process.
    pub identity: String,
    pub duration: Duration,
}

impl LeaseOptions {
    fn renew_every(&self) -> Duration {
        self.duration / 3
    }

    /// A candidate looks this often, so that it takes over soon after the lease has run out.
    fn look_every(&self) -> Duration {
        self.duration / 8
    }

    fn margin(&self) -> Duration {
        self.duration / 5
    }
}

/// Says whether this process may write.
#[derive(Clone)]
pub struct Fence {
    until: Option<watch::Receiver<Option<Instant>>>,
}

impl Fence {
    /// For a process that needs no lease.
    pub fn open() -> Self {
        Self { until: None }
    }

    pub fn holds(&self) -> bool {
        match &self.until {
            None => true,
            Some(until) => until.borrow().is_some_and(|until| Instant::now() < until),
        }
    }

    /// Resolves when the right to write is gone.
    pub async fn lost(&self) {
        let Some(until) = &self.until else {
            return std::future::pending().await;
        };
        let mut until = until.clone();
        loop {
            let deadline = *until.borrow_and_update();
            let Some(deadline) = deadline.filter(|deadline| Instant::now() < *deadline) else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => {}
                changed = until.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Resolves when the right to write is there.
    pub async fn gained(&self) {
        let Some(until) = &self.until else { return };
        let mut until = until.clone();
        loop {
            if until
                .borrow_and_update()
                .is_some_and(|until| Instant::now() < until)
            {
                return;
            }
            if until.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Competes for the lease until dropped.
pub struct Elector {
    api: Api<Lease>,
    options: LeaseOptions,
    until: watch::Sender<Option<Instant>>,
    metrics: Metrics,
}

impl Elector {
    pub fn new(client: Client, options: LeaseOptions, metrics: Metrics) -> (Self, Fence) {
        let (until, receiver) = watch::channel(None);
        let api = Api::namespaced(client, &options.namespace);
        (
            Self {
                api,
                options,
                until,
                metrics,
            },
            Fence {
                until: Some(receiver),
            },
        )
    }

    /// Runs until `shutdown` resolves, then gives the lease back so that a successor need not wait.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        tokio::select! {
            () = self.compete() => {}
            () = &mut shutdown => {
                if self.until.borrow().is_some() {
                    self.until.send_replace(None);
                    if let Err(error) = self.release().await {
                        tracing::warn!(error = error.report(), "could not give the lease back");
                    }
                }
            }
        }
    }

    async fn compete(&self) {
        // What we last saw of another's lease, and since when it has not moved.
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            let started = Instant::now();
            let deadline = *self.until.borrow();
            let attempt = self.attempt(&mut seen);
            let outcome = match deadline {
                // No answer may keep us believing for longer than the lease holds.
                Some(deadline) => tokio::time::timeout_at(deadline, attempt)
                    .await
                    .unwrap_or_else(|_| {
                        Err(Error::Timeout {
                            action: "renew the lease".to_owned(),
                            after: started.elapsed(),
                        })
                    }),
                None => attempt.await,
            };
            match outcome {
                Ok(true) => self.hold(started + self.options.duration - self.options.margin()),
                Ok(false) => self.yield_up("another replica holds it"),
                Err(error) => {
                    // Keep what we hold until its time is over; a passing fault is no reason to stop.
                    tracing::warn!(error = error.report(), "failed to renew or take the lease");
                    if self.until.borrow().is_some_and(|until| Instant::now() >= until) {
                        self.yield_up("it could not be renewed in time");
                    }
                }
            }
            let pause = match *self.until.borrow() {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.options
                        .renew_every()
                        .min(left / 2)
                        .max(Duration::from_millis(100))
                }
                None => self.options.look_every(),
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn hold(&self, until: Instant) {
        let before = self.until.send_replace(Some(until));
        if before.is_none() {
            tracing::info!(lease = %self.options.name, identity = %self.options.identity, "leading");
            self.metrics.leader(true);
        }
    }

    fn yield_up(&self, why: &str) {
        if self.until.send_replace(None).is_some() {
            tracing::warn!(lease = %self.options.name, why, "no longer leading");
            self.metrics.leader(false);
        }
    }

    /// One look at the lease: true when it is ours afterwards.
    async fn attempt(&self, seen: &mut Option<(Option<String>, Instant)>) -> Result<bool> {
        let name = &self.options.name;
        let wait = self.options.renew_every();
        let current = bounded(wait, "get the lease", self.api.get_opt(name)).await?;
        let now = Timestamp::now();
        let Some(mut lease) = current else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(now, now, 0)),
            };
            let created = bounded(
                wait,
                "create the lease",
                self.api.create(&PostParams::default(), &lease),
            )
            .await;
            return won(created);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let ours = holder == self.options.identity;
        if !ours && !holder.is_empty() {
            let version = lease.metadata.resource_version.clone();
            let unmoved_since = match seen {
                Some((known, since)) if *known == version => *since,
                _ => seen.insert((version, Instant::now())).1,
            };
            let theirs = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or(15);
            if unmoved_since.elapsed() < Duration::from_secs(theirs).max(self.options.duration) {
                return Ok(false);
            }
        }
        let transitions = spec.lease_transitions.unwrap_or(0);
        lease.spec = Some(match spec.acquire_time.filter(|_| ours) {
            Some(since) => self.spec(since.0, now, transitions),
            None => self.spec(now, now, transitions + 1),
        });
        // The version in `lease` makes this fail when somebody else was faster.
        let replaced = bounded(
            wait,
            "renew the lease",
            self.api.replace(name, &PostParams::default(), &lease),
        )
        .await;
        won(replaced)
    }

    fn spec(&self, acquired: Timestamp, renewed: Timestamp, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.options.identity.clone()),
            lease_duration_seconds: Some(self.options.duration.as_secs() as i32),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(renewed)),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    async fn release(&self) -> Result<()> {
        let wait = Duration::from_secs(2);
        let lease = bounded(wait, "get the lease", self.api.get(&self.options.name)).await?;
        if lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref())
            != Some(&self.options.identity)
        {
            return Ok(());
        }
        let mut released = lease;
        if let Some(spec) = &mut released.spec {
            spec.holder_identity = Some(String::new());
        }
        let params = PostParams::default();
        let replace = self.api.replace(&self.options.name, &params, &released);
        bounded(wait, "release the lease", replace).await?;
        tracing::info!(lease = %self.options.name, "lease given back");
        self.metrics.leader(false);
        Ok(())
    }
}

/// Losing a race is an answer, not a fault.
fn won(answer: Result<Lease>) -> Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(Error::Api { source, .. }) if code(&source) == Some(409) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn bounded<T>(
    wait: Duration,
    action: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T> {
    match tokio::time::timeout(wait, call).await {
        Ok(answer) => answer.map_err(|source| Error::api(action, source)),
        Err(_) => Err(Error::Timeout {
            action: action.to_owned(),
            after: wait,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_fence_closes_by_itself_when_nobody_renews() {
        let (sender, receiver) = watch::channel(Some(Instant::now() + Duration::from_secs(12)));
        let fence = Fence {
            until: Some(receiver),
        };
        assert!(fence.holds());
        let start = Instant::now();
        fence.lost().await;
        assert_eq!(start.elapsed().as_secs(), 12);
        assert!(!fence.holds());
        drop(sender);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_keeps_it_open() {
        let (sender, receiver) = watch::channel(Some(Instant::now() + Duration::from_secs(5)));
        let fence = Fence {
            until: Some(receiver),
        };
        let start = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            sender.send_replace(Some(Instant::now() + Duration::from_secs(5)));
            tokio::time::sleep(Duration::from_secs(60)).await;
        });
        fence.lost().await;
        assert_eq!(start.elapsed().as_secs(), 8);
    }
}
