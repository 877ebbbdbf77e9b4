//! The right to deploy to a cluster, lent to one deployment at a time. It is written down before it is given and after it
//! was taken back, so that whoever finds it overdue, on whatever replica, can take it back.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Fleet, Record, SYSTEM, Work, clusters, reach};
use crate::{
    Error,
    infrastructure::{
        kubernetes::{self, Unreachable, deployer},
        store::deployers as store,
    },
};

const BOUND: &str = "cluster.deployer-bound";
/// For setting it up, and for taking it away.
const PATIENCE: Duration = Duration::from_secs(20);
/// Clusters that are swept at once.
const SWEEPS: usize = 4;
/// Nobody has it for longer without a renewal.
const LONGEST: SignedDuration = SignedDuration::from_hours(1);
/// What is noted for later than this was noted by a clock that was put back. Another server of the database may take over,
/// with a clock that differs by a little.
const FARTHEST: SignedDuration = SignedDuration::from_mins(61);

/// Credentials of a deployer.
pub struct Lent {
    /// A kubeconfig with a token of its own; a secret.
    pub kubeconfig: Value,
    /// Lend again before this.
    pub renew_at: Timestamp,
}

/// Binds the deployer of a cluster for a deployment, or gives it another token. Without a renewal it is taken back after
/// `longest`, an hour at most. A renewal that fails takes nothing from a deployment that runs.
pub async fn lend(
    fleet: &Fleet,
    cluster: Uuid,
    deployment: Uuid,
    longest: SignedDuration,
) -> Result<Lent, Error> {
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    let taken = store::take(work.db(), cluster, deployment, longest.min(LONGEST)).await?;
    let refused = |message: String| Error::Conflict {
        code: "DEPLOYMENT_IN_PROGRESS",
        message,
    };
    if taken.deployment_id != deployment {
        let holder = taken.deployment_id;
        return Err(refused(format!("deployment {holder} is at work on this cluster")));
    }
    if taken.is_going {
        return Err(refused(
            "the right to deploy was not renewed in time and is being taken back; ask again in a moment"
                .to_owned(),
        ));
    }
    record(
        &mut work, cluster, deployment, BOUND, // Not more is known yet.
        "Begun",
    )
    .await?;
    work.commit().await?;
    let (client, bound) = bind(fleet, cluster, deployment).await;
    // Whoever took it back meanwhile may have come before it was there, and the cluster may be removed by now.
    if let Some(client) = client
        && !store::is_lent(&fleet.pool, cluster, deployment).await?
    {
        if let Err(why) = unbind(&client, deployment).await {
            tracing::warn!(cluster = %cluster, reason = why.reason, "a deployer that was taken back while it was bound may be left");
        }
        record_failure(fleet, cluster, deployment).await?;
        return Err(refused(
            "the right to deploy was taken back while it was given".to_owned(),
        ));
    }
    match bound {
        Ok(lent) => Ok(lent),
        Err(why) => {
            if let Err(error) = record_failure(fleet, cluster, deployment).await {
                tracing::warn!(cluster = %cluster, error = &error as &dyn std::error::Error, "a deployer was not bound, and the audit log does not say so");
            }
            // What half-way came to be is taken away, now or by the sweep. What was there before is in use.
            if taken.is_new
                && let Err(error) = take_back(fleet, cluster, deployment).await
            {
                tracing::warn!(cluster = %cluster, error = &error as &dyn std::error::Error, "a deployer may be left; it is taken back later");
            }
            Err(unavailable(&why))
        }
    }
}

/// What was lent; and with what it can be taken away again, whatever came of it.
async fn bind(fleet: &Fleet, cluster: Uuid, deployment: Uuid) -> (Option<Client>, Result<Lent, Unreachable>) {
    let reach::Owner {
        client,
        document,
        attempt,
    } = match reach::owner(fleet, cluster, "deployment", false).await {
        Ok(owner) => owner,
        Err(why) => return (None, Err(why)),
    };
    let binding = deployer::bind(&client, deployment, &fleet.deployer_role, fleet.now());
    let bound = tokio::time::timeout(PATIENCE, binding)
        .await
        .unwrap_or_else(|_| Err(Unreachable::timeout(PATIENCE)));
    let bound = attempt.ended(fleet, bound).await;
    let lent = bound.map(|(token, renew_at)| Lent {
        kubeconfig: kubernetes::with_token(&document, &token),
        renew_at,
    });
    (Some(client), lent)
}

async fn unbind(client: &Client, deployment: Uuid) -> Result<(), Unreachable> {
    tokio::time::timeout(PATIENCE, deployer::unbind(client, deployment))
        .await
        .unwrap_or_else(|_| Err(Unreachable::timeout(PATIENCE)))
}

/// Unbinds it. Does nothing when the deployment does not have it.
pub async fn take_back(fleet: &Fleet, cluster: Uuid, deployment: Uuid) -> Result<(), Error> {
    try_to_take_back(fleet, cluster, deployment, false).await
}

async fn try_to_take_back(
    fleet: &Fleet,
    cluster: Uuid,
    deployment: Uuid,
    is_again: bool,
) -> Result<(), Error> {
    let mut connection = fleet.pool.acquire().await?;
    let holder = store::holder(&mut connection, cluster).await?;
    drop(connection);
    if holder != Some(deployment) {
        return Ok(());
    }
    let removal = async {
        let owner = reach::owner(fleet, cluster, "end of deployment", is_again).await?;
        let unbound = unbind(&owner.client, deployment).await;
        owner.attempt.ended(fleet, unbound).await
    };
    removal.await.map_err(|why| unavailable(&why))?;
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    if store::release(work.db(), cluster, deployment).await? {
        record(
            &mut work,
            cluster,
            deployment,
            "cluster.deployer-unbound",
            "Succeeded",
        )
        .await?;
    }
    work.commit().await
}

/// Takes back what nobody renewed. Replicas share that out, and what cannot be reached is tried ever more seldom.
pub async fn sweep(fleet: &Fleet) -> Result<(), Error> {
    // One that cannot be reached must not keep the others waiting for their turn.
    let swept = (0..SWEEPS).map(|_| async {
        while let Some(row) = store::claim_overdue(&fleet.pool, FARTHEST).await? {
            let taken = try_to_take_back(fleet, row.cluster_id, row.deployment_id, row.tries > 1).await;
            if let Err(error) = taken {
                tracing::warn!(
                    cluster = %row.cluster_id, tries = row.tries, error = &error as &dyn std::error::Error,
                    "an overdue deployer could not be taken back; it is tried again"
                );
            }
        }
        Ok(())
    });
    futures::future::try_join_all(swept).await.map(drop)
}

async fn record_failure(fleet: &Fleet, cluster: Uuid, deployment: Uuid) -> Result<(), Error> {
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    record(&mut work, cluster, deployment, BOUND, "Failed").await?;
    work.commit().await
}

async fn record(
    work: &mut Work<'_>,
    cluster: Uuid,
    deployment: Uuid,
    action: &str,
    outcome: &str,
) -> Result<(), Error> {
    work.record(Record {
        action,
        outcome,
        target_kind: clusters::KIND,
        target_id: &cluster.to_string(),
        details: json!({"deployment": deployment}),
    })
    .await
}

fn unavailable(why: &Unreachable) -> Error {
    Error::Unavailable {
        code: "CLUSTER_UNREACHABLE",
        message: format!("the cluster cannot be used: {}", why.message),
    }
}
