//! What goes on by itself. A task takes no input: it looks at what is there and does what is due, so that after a
//! restart, or on another replica, the same path is taken.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::SignedDuration;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::{Fleet, accesses, clusters, deployer, health, marks, renewal, repositories, retention};
use crate::{
    Error,
    infrastructure::{
        keys::LocalKeys,
        store::{Terms, clusters as cluster_store, operators as operator_store},
        tokens::KeySource,
    },
};

/// How long a chart repository belongs to who visits it, and how long the visit may take.
const VISIT: SignedDuration = SignedDuration::from_mins(10);
const VISIT_PATIENCE: Duration = Duration::from_mins(9);

/// How often is looked for work that is due.
const TICK: Duration = Duration::from_millis(500);
/// How often keys of tokens are read.
const KEY_FILES: Duration = Duration::from_secs(10);
const KEY_SETS: Duration = Duration::from_mins(5);
/// Clusters, and repositories, that one replica is at.
const LOOKS: usize = 32;
const VISITS: usize = 4;
/// More than there may be: those that cannot be opened stay, and must not keep the others from their turn.
const MOST_REWRAPPED: i64 = 1000;

type Task = fn(Arc<Fleet>) -> BoxFuture<'static, Result<(), Error>>;

const TASKS: [(&str, u64, Task); 6] = [
    ("key rotation", 10, |fleet| {
        Box::pin(async move { rewrap(&fleet).await })
    }),
    ("overdue deployers", 20, |fleet| {
        Box::pin(async move { deployer::sweep(&fleet).await })
    }),
    ("hours of accesses", 60, |fleet| {
        Box::pin(async move { accesses::close_hours(&fleet).await })
    }),
    ("renewal of schemas", 60, |fleet| {
        Box::pin(async move { renewal::renew(&fleet).await })
    }),
    ("numbers", 15, |fleet| {
        Box::pin(async move { numbers(&fleet).await })
    }),
    // Looks at clocks too, and two of them that agree are needed: not only once in an hour.
    ("retention", 900, |fleet| {
        Box::pin(async move { retention::look(&fleet).await })
    }),
];

/// Starts them all; they end with the token.
pub fn start(fleet: &Arc<Fleet>, key_file: Option<PathBuf>, stop: &CancellationToken, tracker: &TaskTracker) {
    for (name, seconds, task) in TASKS {
        let fleet = fleet.clone();
        let again = move || task(fleet.clone());
        spawn(name, Duration::from_secs(seconds), stop, tracker, again);
    }
    // The other half of the connections is for what people ask.
    let looks = (fleet.connections.slots.most() / 2).clamp(1, LOOKS);
    let clusters = Arc::new(Shared::new(fleet, stop, tracker, looks));
    spawn("cluster health", TICK, stop, tracker, move || {
        let clusters = clusters.clone();
        Box::pin(async move { clusters.look_at_clusters().await })
    });
    let repositories = Arc::new(Shared::new(fleet, stop, tracker, VISITS));
    spawn("chart repositories", TICK, stop, tracker, move || {
        let repositories = repositories.clone();
        Box::pin(async move { repositories.visit_repositories().await })
    });
    for (place, source) in fleet.verifier.sources().enumerate() {
        let usual = match source {
            KeySource::Secret(_) | KeySource::PublicKey(_) => KEY_FILES,
            KeySource::Jwks(_) => KEY_SETS,
        };
        let (fleet, stop) = (fleet.clone(), stop.clone());
        tracker.spawn(async move {
            stop.run_until_cancelled(keep_token_keys(&fleet, place, usual))
                .await;
        });
    }
    if let Some(path) = key_file {
        let (fleet, stop) = (fleet.clone(), stop.clone());
        tracker.spawn(async move {
            stop.run_until_cancelled(watch_keys(&fleet, path)).await;
        });
    }
}

fn spawn(
    name: &'static str,
    pause: Duration,
    stop: &CancellationToken,
    tracker: &TaskTracker,
    task: impl Fn() -> BoxFuture<'static, Result<(), Error>> + Send + Sync + 'static,
) {
    let stop = stop.clone();
    tracker.spawn(async move {
        stop.run_until_cancelled(repeat(name, pause, task)).await;
    });
}

async fn repeat(
    name: &'static str,
    pause: Duration,
    task: impl Fn() -> BoxFuture<'static, Result<(), Error>>,
) {
    let mut failing = false;
    loop {
        match task().await {
            Ok(()) => failing = false,
            Err(error) => {
                // Once, when it begins: an outage is no reason to fill the log.
                if !failing {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(task = name, error, "a task failed; it is tried again");
                }
                failing = true;
            }
        }
        // By chance a quarter sooner or later: of replicas that started together none is always the first at the work.
        let chance = f64::from(Uuid::new_v4().as_bytes()[0]) / 255.0;
        tokio::time::sleep(pause.mul_f64(0.75 + chance / 2.0)).await;
    }
}

/// Work that is shared out between replicas, a few pieces at a time, each by itself: one that hangs delays no other.
struct Shared {
    fleet: Arc<Fleet>,
    stop: CancellationToken,
    tracker: TaskTracker,
    turns: Arc<Semaphore>,
}

impl Shared {
    fn new(fleet: &Arc<Fleet>, stop: &CancellationToken, tracker: &TaskTracker, at_once: usize) -> Self {
        Self {
            fleet: fleet.clone(),
            stop: stop.clone(),
            tracker: tracker.clone(),
            turns: Arc::new(Semaphore::new(at_once)),
        }
    }

    fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (stop, turns) = (self.stop.clone(), self.turns.clone());
        self.tracker.spawn(async move {
            let Ok(_turn) = turns.acquire_owned().await else {
                return;
            };
            stop.run_until_cancelled(work).await;
        });
    }

    async fn look_at_clusters(&self) -> Result<(), Error> {
        for (claim, row) in health::claim(&self.fleet, self.turns.available_permits()).await? {
            let fleet = self.fleet.clone();
            self.begin(async move {
                if let Err(error) = health::visit(&fleet, claim, &row).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        cluster = row.name,
                        error,
                        "what was seen of a cluster could not be written"
                    );
                }
            });
        }
        Ok(())
    }

    async fn visit_repositories(&self) -> Result<(), Error> {
        let fleet = &self.fleet;
        let most = i64::try_from(self.turns.available_permits()).unwrap_or(1);
        let terms = Terms {
            lease: VISIT,
            farthest: fleet.refresh_interval + VISIT + VISIT,
        };
        for (until, row) in operator_store::claim(&fleet.pool, fleet.holder, terms, most).await? {
            let fleet = fleet.clone();
            self.begin(async move {
                let after = match repositories::visit(&fleet, &row, VISIT_PATIENCE).await {
                    Ok(next) => next,
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            operator = row.name,
                            error,
                            "a chart repository could not be visited"
                        );
                        SignedDuration::from_mins(1)
                    }
                };
                // If that fails, it comes back when the claim ends.
                let _ = operator_store::release(&fleet.pool, row.id, fleet.holder, until, after).await;
            });
        }
        Ok(())
    }
}

/// Brings everything under the key that wraps now.
async fn rewrap(fleet: &Fleet) -> Result<(), Error> {
    let current = fleet
        .keys
        .current()
        .await
        .map_err(|error| Error::internal("failed to find out which key wraps now", error))?;
    let mut failure = None;
    for (id, sealed) in cluster_store::wrapped_by_others(&fleet.pool, &current, MOST_REWRAPPED).await? {
        let rewrapped = match fleet.keys.rewrap(clusters::place(id), &sealed).await {
            Ok(rewrapped) => rewrapped,
            // Under a key that is gone, perhaps. The others are not.
            Err(error) => {
                failure = Some(error);
                continue;
            }
        };
        if cluster_store::rewrap(&fleet.pool, id, &sealed, &rewrapped).await? {
            tracing::info!(cluster = %id, key = current.id, "credentials are under the new key");
        }
    }
    for (id, sealed) in operator_store::wrapped_by_others(&fleet.pool, &current, MOST_REWRAPPED).await? {
        let rewrapped = match fleet.keys.rewrap(repositories::place(id), &sealed).await {
            Ok(rewrapped) => rewrapped,
            Err(error) => {
                failure = Some(error);
                continue;
            }
        };
        if operator_store::rewrap(&fleet.pool, id, &sealed, &rewrapped).await? {
            tracing::info!(operator = %id, key = current.id, "credentials are under the new key");
        }
    }
    marks::rewrap(fleet, &current).await?;
    match failure {
        Some(error) => Err(Error::internal("failed to rewrap some credentials", error)),
        None => Ok(()),
    }
}

/// What there is, for those who watch.
pub async fn numbers(fleet: &Fleet) -> Result<(), Error> {
    let (operators, clusters) = cluster_store::counts(&fleet.pool).await?;
    fleet.metrics.operators.set(operators);
    fleet.metrics.clusters.set(clusters);
    fleet
        .metrics
        .database_connections
        .set(i64::from(fleet.pool.size()));
    let taken = fleet.connections.slots.taken();
    fleet
        .metrics
        .cluster_connections
        .set(i64::try_from(taken).unwrap_or(i64::MAX));
    Ok(())
}

/// Reads the keys of one source again and again. A secret that leaked and was replaced must not count for long, so files
/// are looked at often; an identity provider that is away is asked soon again, and then less and less often.
async fn keep_token_keys(fleet: &Fleet, place: usize, usual: Duration) {
    // At the start it was told already.
    let mut failures = u32::from(!fleet.verifier.has_keys(place));
    loop {
        tokio::time::sleep(after_failures(failures, usual)).await;
        failures = match fleet.verifier.reload_one(place).await {
            Ok(()) => 0,
            Err(error) => {
                if failures == 0 {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "token keys could not be read; those from before stay");
                }
                failures + 1
            }
        };
    }
}

fn after_failures(failures: u32, usual: Duration) -> Duration {
    match failures {
        0 => usual,
        some => Duration::from_secs(1 << some.min(9)).min(usual),
    }
}

/// Takes keys over when the file has others than those in use, from the first look on: they may have been changed while the
/// server waited for its database. A file that cannot be read changes nothing.
async fn watch_keys(fleet: &Fleet, path: PathBuf) {
    let mut before = String::new();
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let Ok(text) = tokio::fs::read_to_string(&path).await else {
            continue;
        };
        if text == before {
            continue;
        }
        match LocalKeys::parse(&text) {
            Ok(keys) if fleet.keys.holds(&keys) => {}
            Ok(keys) => {
                let current = keys.name().to_owned();
                fleet.keys.replace(keys);
                tracing::info!(current, "the key file changed; its keys are in use");
            }
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "the key file changed and is not usable; the keys from before stay");
            }
        }
        before = text;
    }
}
