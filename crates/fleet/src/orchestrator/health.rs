//! Looking at clusters. Who looks at which is shared out by the database: a claimed cluster is passed over by other
//! replicas, and comes back by itself when its holder dies.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use gantry_fleet_domain::cluster::{Health, verdict};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Fleet, Record, SYSTEM, Work, clusters};
use crate::{
    Error,
    infrastructure::{
        keys::Sealed,
        kubernetes::{self, Look, Unreachable, reader},
        store::{
            clusters::{self as store, ClusterRow, Seen},
            time,
        },
    },
};

/// Longer than a look can take; a holder that needs more has died.
const LEASE: SignedDuration = SignedDuration::from_secs(30);
/// For setting up the reader.
const PREPARE: Duration = Duration::from_secs(10);
/// Whose objects a reader may read; a role has to stay small enough to be stored.
const MAX_DEFINITIONS: i64 = 1000;
/// Connections with uploaded credentials are made anew after this.
const KEPT: SignedDuration = SignedDuration::from_mins(30);

/// Clients that are in use, so that credentials are opened rarely and connections are kept.
#[derive(Default)]
pub struct Connections(Mutex<HashMap<Uuid, Connection>>);

struct Connection {
    /// Of the credentials that it was made from.
    sealed: Vec<u8>,
    client: Client,
    renew_at: Timestamp,
}

impl Connections {
    fn get(&self, id: Uuid, sealed: &[u8], now: Timestamp) -> Option<Client> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&id)
            .filter(|connection| connection.sealed == sealed && connection.renew_at > now)
            .map(|connection| connection.client.clone())
    }

    fn keep(&self, id: Uuid, connection: Connection) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, connection);
    }

    pub fn forget(&self, id: Uuid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

/// A client that may look at a cluster, with a token that does not last. Opening the uploaded credentials for one is
/// recorded.
pub async fn client(fleet: &Fleet, id: Uuid, purpose: &str) -> Result<Client, Unreachable> {
    client_for(fleet, id, purpose, None).await
}

/// The same; a new one may also read the objects of this definition.
pub async fn client_for(
    fleet: &Fleet,
    id: Uuid,
    purpose: &str,
    definition: Option<&str>,
) -> Result<Client, Unreachable> {
    let sealed = store::sealed(&fleet.pool, id)
        .await
        .map_err(|_| gone("the credentials could not be read from the database"))?
        .ok_or_else(|| gone("the cluster is not registered any more"))?;
    let now = fleet.now();
    if let Some(client) = fleet.connections.get(id, &sealed.ciphertext, now) {
        return Ok(client);
    }
    let document = opened(fleet, id, &sealed, purpose).await?;
    let uploaded = kubernetes::connect(&document).await?;
    let mut definitions = store::known_crds(&fleet.pool, id, MAX_DEFINITIONS)
        .await
        .map_err(|_| gone("what the cluster runs could not be read from the database"))?;
    definitions.extend(definition.map(str::to_owned));
    let reader = tokio::time::timeout(PREPARE, reader::open(&uploaded, id, &definitions, now));
    let (client, renew_at) = match reader
        .await
        .unwrap_or_else(|_| Err(Unreachable::timeout(PREPARE)))
    {
        Ok((token, renew_at)) => {
            let client = kubernetes::connect(&kubernetes::with_token(&document, &token)).await?;
            kubernetes::settle(&client).await;
            (client, renew_at)
        }
        // Those who upload credentials that may only look need no others.
        Err(why) if reader::is_refused(&why) => (uploaded, now + KEPT),
        Err(why) => return Err(why),
    };
    let connection = Connection {
        sealed: sealed.ciphertext,
        client: client.clone(),
        renew_at,
    };
    fleet.connections.keep(id, connection);
    Ok(client)
}

/// A client with what was uploaded itself, to set up and take away what is ours, and the credentials it is made from.
pub async fn owner(fleet: &Fleet, id: Uuid, purpose: &str) -> Result<(Client, Value), Unreachable> {
    let sealed = store::sealed(&fleet.pool, id)
        .await
        .map_err(|_| gone("the credentials could not be read from the database"))?
        .ok_or_else(|| gone("the cluster is not registered any more"))?;
    let document = opened(fleet, id, &sealed, purpose).await?;
    Ok((kubernetes::connect(&document).await?, document))
}

fn gone(message: &str) -> Unreachable {
    Unreachable {
        reason: "CredentialsUnavailable",
        message: message.to_owned(),
    }
}

async fn opened(fleet: &Fleet, id: Uuid, sealed: &Sealed, purpose: &str) -> Result<Value, Unreachable> {
    let plain = fleet
        .keys
        .open(clusters::place(id), sealed)
        .await
        .map_err(|error| gone(&format!("the credentials cannot be opened: {error}")))?;
    let document =
        serde_json::from_slice(&plain).map_err(|_| gone("the credentials are not what was stored"))?;
    if let Err(error) = record_access(fleet, id, purpose).await {
        tracing::warn!(%error, "an access to a cluster could not be recorded");
        return Err(gone("the access could not be recorded, so it did not take place"));
    }
    Ok(document)
}

async fn record_access(fleet: &Fleet, id: Uuid, purpose: &str) -> Result<(), Error> {
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    work.record(Record {
        action: "cluster.accessed",
        outcome: "Succeeded",
        target_kind: clusters::KIND,
        target_id: &id.to_string(),
        details: json!({"purpose": purpose, "replica": fleet.holder}),
    })
    .await?;
    work.commit().await
}

/// Takes clusters whose time has come; other replicas look past them.
pub async fn claim(fleet: &Fleet, most: usize) -> Result<Vec<ClusterRow>, Error> {
    let now = fleet.now();
    let most = i64::try_from(most).unwrap_or(1);
    let latest = now + fleet.health_interval + LEASE + LEASE;
    Ok(store::claim(
        &fleet.pool,
        fleet.holder,
        time(now),
        time(now + LEASE),
        time(latest),
        most,
    )
    .await?)
}

/// Looks at one that was taken.
#[tracing::instrument(name = "cluster.connect", skip_all, fields(cluster = row.name))]
pub async fn visit(fleet: &Fleet, row: &ClusterRow) -> Result<(), Error> {
    let begin = Instant::now();
    let found = match client(fleet, row.id, "health").await {
        Ok(client) => kubernetes::look(&client).await,
        Err(why) => Err(why),
    };
    if found.is_err() {
        // The next look begins with a new connection: what was refused may have been the old one.
        fleet.connections.forget(row.id);
    }
    let verdict = verdict(&Look::sight(&found));
    fleet.metrics.looked(verdict.health.name(), begin.elapsed());
    let look = found.as_ref().ok();
    let seen = Seen {
        kubernetes_version: look.map(|look| look.version.clone()),
        nodes: look.map(|look| (look.ready as i32, look.not_ready as i32)),
        latency_ms: look.and_then(|look| i32::try_from(look.latency.as_millis()).ok()),
        health: verdict.health.name(),
        reason: verdict.reason,
        message: verdict.message,
    };
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    let (now, next) = (
        time(work.now),
        time(work.now + spread(fleet.health_interval, row.id)),
    );
    if !store::seen(work.db(), row.id, fleet.holder, &seen, now, next).await? {
        // Somebody else has it by now: theirs counts.
        return Ok(());
    }
    if let Some(crds) = look.and_then(|look| look.crds.as_ref()) {
        store::set_crds(work.db(), row.id, crds, now).await?;
    }
    let changed = row.health != seen.health || row.health_reason != seen.reason;
    if changed {
        tracing::info!(
            cluster = row.name,
            health = seen.health,
            reason = seen.reason,
            "the health of a cluster changed"
        );
        work.record(Record {
            action: "cluster.health-changed",
            outcome: if verdict.health == Health::Unhealthy {
                "Failed"
            } else {
                "Succeeded"
            },
            target_kind: clusters::KIND,
            target_id: &row.id.to_string(),
            details: json!({"from": row.health, "to": seen.health, "reason": seen.reason}),
        })
        .await?;
    }
    work.commit().await
}

/// Up to a tenth earlier, by the id: clusters that were registered together are not looked at together for ever.
fn spread(interval: SignedDuration, id: Uuid) -> SignedDuration {
    let part = i32::from(id.as_bytes()[0]);
    interval - interval / 2560 * part
}
