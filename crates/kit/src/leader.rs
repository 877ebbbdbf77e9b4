//! The leader lease: of several replicas one acts, and when it dies or is cut off another takes over.
//!
//! Safety rests on time measured at both ends with monotonic clocks. The holder considers its lease over a margin
//! *before* the duration ends, counted from when it *sent* the last renewal that succeeded; a candidate waits for the
//! duration less the time between two looks, counted from when it *saw* the last renewal, or that the lease was deleted.
//! It saw that after it was sent, so half of the margin is between the two at least, for clocks that run differently and
//! writes that are under way; and it saw it one look after it was made at most, so it takes over within the duration.
//! Writes check the [`Fence`], and those under way are dropped when it closes.

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

    /// A candidate looks this often. Half of the margin: what is left of it keeps the two apart.
    fn look_every(&self) -> Duration {
        self.duration / 10
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

/// What a candidate knows of others who held the lease.
#[derive(Debug, Default)]
struct Others {
    seen: Option<Seen>,
    /// When the lease may be taken unless it moves, as the last look found.
    due: Option<Instant>,
}

#[derive(Debug)]
struct Seen {
    /// Nothing when the lease was deleted under its holder, who need not know that yet.
    version: Option<String>,
    /// Since when it has not moved.
    since: Instant,
    /// How long it holds.
    lasts: Duration,
}

impl Others {
    /// Whether none of them can believe any more that the lease is theirs. `holds`: it was ours a moment ago.
    fn are_done(&mut self, lease: Option<&Lease>, holds: bool, now: Instant, options: &LeaseOptions) -> bool {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let holder = holder.filter(|holder| !holder.is_empty());
        let version = lease.and_then(|lease| lease.metadata.resource_version.clone());
        let lasts = match (lease, &self.seen) {
            (None, Some(seen)) => seen.lasts,
            _ => spec
                .and_then(|spec| spec.lease_duration_seconds)
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(Duration::from_secs(15), Duration::from_secs)
                .max(options.duration),
        };
        let since = match &self.seen {
            Some(seen) if seen.version == version => seen.since,
            _ => now,
        };
        let is_free = match lease {
            Some(_) => holder.is_none_or(|holder| holder == options.identity),
            // It was not there as long as we have looked, or it was ours.
            None => holds || self.seen.is_none(),
        };
        // Ours as well: when we have lost it, another may have had it without our seeing that.
        self.seen = (holder.is_some() || !is_free).then_some(Seen {
            version,
            since,
            lasts,
        });
        let due = since + lasts - options.look_every();
        self.due = (!is_free && now < due).then_some(due);
        self.due.is_none()
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
        let mut others = Others::default();
        loop {
            let started = Instant::now();
            let deadline = *self.until.borrow();
            let attempt = self.attempt(&mut others);
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
                // Not a moment later than it may be taken, and often enough to see when it is given back.
                None => others.due.map_or(self.options.look_every(), |due| {
                    due.saturating_duration_since(Instant::now())
                        .min(self.options.look_every())
                }),
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
    async fn attempt(&self, others: &mut Others) -> Result<bool> {
        let name = &self.options.name;
        let wait = self.options.renew_every();
        others.due = None;
        let current = bounded(wait, "get the lease", self.api.get_opt(name)).await?;
        let holds = self.until.borrow().is_some_and(|until| Instant::now() < until);
        if !others.are_done(current.as_ref(), holds, Instant::now(), &self.options) {
            return Ok(false);
        }
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
        let ours = spec.holder_identity.as_deref() == Some(&self.options.identity);
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
    use rstest::rstest;

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

    /// Who is seen to hold the lease and at which version, or that it is not there.
    type Look = Option<(&'static str, &'static str)>;

    fn lease((holder, version): (&str, &str)) -> Lease {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "l", "resourceVersion": version},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 10},
        }))
        .unwrap()
    }

    #[rstest]
    #[case::nobody_was_there(&[None], true)]
    #[case::given_back(&[Some(("a", "1")), Some(("", "2"))], true)]
    #[case::given_back_and_deleted(&[Some(("a", "1")), Some(("", "2")), None], true)]
    #[case::ours(&[Some(("us", "1"))], true)]
    #[case::held(&[Some(("a", "1")), Some(("a", "1"))], false)]
    #[case::run_out(&[Some(("a", "1")), Some(("a", "1")), Some(("a", "1"))], true)]
    #[case::renewed(&[Some(("a", "1")), Some(("a", "1")), Some(("a", "2"))], false)]
    // The holder may have renewed it after we looked, and before it was deleted.
    #[case::deleted(&[Some(("a", "1")), None], false)]
    #[case::deleted_long_ago(&[Some(("a", "1")), None, None], false)]
    #[case::deleted_longer_ago(&[Some(("a", "1")), None, None, None], true)]
    #[case::deleted_and_made_again(&[Some(("a", "1")), None, None, Some(("a", "2"))], false)]
    #[case::ours_until_we_lost_it(&[Some(("us", "1")), None], false)]
    fn others_may_believe_that_they_hold_it(#[case] looks: &[Look], #[case] expected: bool) {
        let options = LeaseOptions {
            namespace: "ns".to_owned(),
            name: "l".to_owned(),
            identity: "us".to_owned(),
            duration: Duration::from_secs(4),
        };
        let (mut others, start) = (Others::default(), Instant::now());
        let mut done = false;
        // Each look comes after half the time that the lease holds.
        for (n, look) in (0_u32..).zip(looks) {
            let now = start + Duration::from_secs(5) * n;
            done = others.are_done(look.map(lease).as_ref(), false, now, &options);
            assert!(others.due.is_none_or(|due| due > now));
        }
        assert_eq!(done, expected);
        assert_eq!(others.due.is_none(), expected);
        let held = Others::default().are_done(None, true, start, &options);
        assert!(held, "whose own it was may make it again at once");
    }

    /// The holder's right ends four fifths of the duration after it sent a renewal. The candidate sees that after it was
    /// sent, be it at once or one look later.
    #[rstest]
    fn another_takes_over_within_the_duration_and_after_the_holder_has_stopped(
        #[values(3, 4, 15, 300)] seconds: u64,
        #[values(0, 5, 10)] tenths_of_a_look: u32,
    ) {
        let options = LeaseOptions {
            namespace: "ns".to_owned(),
            name: "l".to_owned(),
            identity: "us".to_owned(),
            duration: Duration::from_secs(seconds),
        };
        let sent = Instant::now();
        let stops = sent + options.duration - options.margin();
        let spec = serde_json::json!({"holderIdentity": "a", "leaseDurationSeconds": seconds});
        let lease = serde_json::json!({"metadata": {"name": "l", "resourceVersion": "1"}, "spec": spec});
        let lease: Lease = serde_json::from_value(lease).unwrap();
        let mut others = Others::default();
        let seen = sent + options.look_every() * tenths_of_a_look / 10;
        assert!(!others.are_done(Some(&lease), false, seen, &options));
        let due = others.due.unwrap();
        assert!(due <= sent + options.duration);
        assert!(due >= stops + options.margin() / 2);
        assert!(others.are_done(Some(&lease), false, due, &options));
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
