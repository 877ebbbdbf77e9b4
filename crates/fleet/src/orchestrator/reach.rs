//! How clusters are reached: with a token that does not last, or with what was uploaded to make one. No way leads to a
//! cluster that is not written down first.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Fleet,
    accesses::{self, Attempt, UPLOADED},
    clusters,
};
use crate::{
    Error,
    infrastructure::{
        keys::{KeyError, Sealed},
        kubernetes::{self, NO_DATABASE, NO_KEY, Unreachable, reader as account, slots::Slots},
        store::{accesses::Key, clusters as store},
    },
};

/// For setting up the reader.
const PREPARE: Duration = Duration::from_secs(10);
/// Whose objects a reader may read; a role has to stay small enough to be stored.
const MAX_DEFINITIONS: i64 = 1000;
/// Connections with uploaded credentials are made anew after this, and no token is used for longer.
const KEPT: SignedDuration = SignedDuration::from_mins(30);
/// Under which identity a cluster is looked at.
const READER: &str = "reader";
const NOT_REGISTERED: &str = "the cluster is not registered any more";
/// What looks are for, which go on by themselves.
pub const HEALTH: &str = "health";

/// Clients that are in use, so that credentials are opened rarely and connections are kept while there is room for them.
#[derive(Clone)]
pub struct Connections {
    all: Arc<Mutex<HashMap<Uuid, Connection>>>,
    /// Clusters whose uploaded credentials were opened for a look, while no look at them has succeeded since.
    opened: Arc<Mutex<HashSet<Uuid>>>,
    pub slots: Slots,
}

#[derive(Clone)]
struct Connection {
    /// Of the credentials that it was made from.
    sealed: Vec<u8>,
    /// What the client is made from: a secret.
    document: Arc<Value>,
    /// Gone when its connections were needed for others.
    client: Option<Client>,
    identity: &'static str,
    renew_at: Timestamp,
}

impl Connections {
    pub fn new(most: usize) -> Self {
        Self {
            all: Arc::default(),
            opened: Arc::default(),
            slots: Slots::new(most),
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Uuid, Connection>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: Uuid, sealed: &[u8], now: Timestamp) -> Option<Connection> {
        let found = self.all().get(&id).cloned();
        // What is to be renewed later than anything can be was made before a clock was put back: its token may have ended.
        let lasts = |at: Timestamp| at > now && at <= now + KEPT;
        found.filter(|connection| connection.sealed == sealed && lasts(connection.renew_at))
    }

    fn keep(&self, id: Uuid, connection: Connection) {
        self.all().insert(id, connection);
    }

    pub fn forget(&self, id: Uuid) {
        self.all().remove(&id);
        self.opened().remove(&id);
    }

    /// After a look that succeeded.
    pub fn worked(&self, id: Uuid) {
        self.opened().remove(&id);
    }

    /// After a look that came to nothing. The next one begins with a new connection: what failed may have been the old one.
    /// What was refused is made anew as well; for a cluster that is away nothing has to be opened.
    pub fn failed(&self, id: Uuid, why: &Unreachable) {
        let mut all = self.all();
        let Some(connection) = all.get_mut(&id) else {
            return;
        };
        // A reader that may not look has lost its rights; who uploaded credentials that may not has to give them more.
        let is_refused = ["Unauthorized", "CertificateInvalid"].contains(&why.reason)
            || (account::is_refused(why) && connection.identity == READER);
        let client = connection.client.take();
        if is_refused {
            all.remove(&id);
        }
        // Closed after the lock is given back.
        drop(all);
        drop(client);
    }

    /// Closes what is idle to a cluster, unless there is room for it.
    fn let_go(&self, id: Uuid) {
        if self.slots.has_room() {
            return;
        }
        // Closed after the lock is given back.
        let _client = self
            .all()
            .get_mut(&id)
            .and_then(|connection| connection.client.take());
    }
}

/// A client that may look at a cluster, and where its use is counted.
pub struct Access {
    pub client: Client,
    pub counted: Key,
    connections: Connections,
}

impl Drop for Access {
    fn drop(&mut self) {
        self.connections.let_go(self.counted.cluster);
    }
}

/// A client with a token that does not last. Opening the uploaded credentials for a new one is an entry of the audit log
/// each time, but for looks that came to nothing the last time as well; every use is counted, before it takes place. A new one
/// may also read the objects of `definition`.
pub async fn reader(
    fleet: &Fleet,
    id: Uuid,
    purpose: &'static str,
    definition: Option<&str>,
) -> Result<Access, Unreachable> {
    let (client, identity) = client(fleet, id, purpose, definition).await?;
    match accesses::count(fleet, id, identity, purpose).await {
        Ok(counted) => Ok(Access {
            client,
            counted,
            connections: fleet.connections.clone(),
        }),
        Err(error) => Err(unrecorded(&error)),
    }
}

async fn client(
    fleet: &Fleet,
    id: Uuid,
    purpose: &'static str,
    definition: Option<&str>,
) -> Result<(Client, &'static str), Unreachable> {
    let sealed = store::sealed(&fleet.pool, id)
        .await
        .map_err(|error| {
            no_database(
                &error.into(),
                "the credentials could not be read from the database",
            )
        })?
        .ok_or_else(|| gone(NOT_REGISTERED))?;
    let now = fleet.now();
    let slots = &fleet.connections.slots;
    if let Some(mut found) = fleet.connections.get(id, &sealed.ciphertext, now) {
        if let Some(client) = found.client {
            return Ok((client, found.identity));
        }
        let client = kubernetes::connect(&found.document, slots).await?;
        let identity = found.identity;
        found.client = Some(client.clone());
        fleet.connections.keep(id, found);
        return Ok((client, identity));
    }
    let mut definitions = store::known_crds(&fleet.pool, id, MAX_DEFINITIONS)
        .await
        .map_err(|error| {
            no_database(
                &error.into(),
                "what the cluster runs could not be read from the database",
            )
        })?;
    definitions.extend(definition.map(str::to_owned));
    let is_look = purpose == HEALTH;
    let is_again = is_look && fleet.connections.opened().contains(&id);
    let (document, attempt) = opened(fleet, id, &sealed, purpose, is_again).await?;
    if is_look {
        fleet.connections.opened().insert(id);
    }
    let made = new_reader(fleet, id, document, &definitions).await;
    let made = attempt.ended(fleet, made).await?;
    let connection = Connection {
        sealed: sealed.ciphertext,
        document: Arc::new(made.document),
        client: Some(made.client.clone()),
        identity: made.identity,
        renew_at: made.renew_at,
    };
    fleet.connections.keep(id, connection);
    Ok((made.client, made.identity))
}

struct Made {
    document: Value,
    client: Client,
    identity: &'static str,
    renew_at: Timestamp,
}

async fn new_reader(
    fleet: &Fleet,
    id: Uuid,
    document: Value,
    definitions: &[String],
) -> Result<Made, Unreachable> {
    let (now, slots) = (fleet.now(), &fleet.connections.slots);
    let uploaded = kubernetes::connect(&document, slots).await?;
    let reader = tokio::time::timeout(PREPARE, account::open(&uploaded, id, definitions, now)).await;
    // Who removed the cluster meanwhile may have looked for our account before all of it was there.
    if let Ok(None) = store::sealed(&fleet.pool, id).await {
        let _ = tokio::time::timeout(PREPARE, account::remove(&uploaded, id)).await;
        return Err(gone(NOT_REGISTERED));
    }
    match reader.unwrap_or_else(|_| Err(Unreachable::timeout(PREPARE))) {
        Ok((token, renew_at)) => {
            // Its connection is not needed any more.
            drop(uploaded);
            let document = kubernetes::with_token(&document, &token);
            let client = kubernetes::connect(&document, slots).await?;
            kubernetes::settle(&client).await;
            Ok(Made {
                document,
                client,
                identity: READER,
                renew_at,
            })
        }
        // Those who upload credentials that may only look need no others.
        Err(why) if account::is_refused(&why) => Ok(Made {
            document,
            client: uploaded,
            identity: UPLOADED,
            renew_at: now + KEPT,
        }),
        Err(why) => Err(why),
    }
}

/// A client with what was uploaded itself, to set up and take away what is ours.
pub struct Owner {
    pub client: Client,
    /// The credentials that it is made from.
    pub document: Value,
    /// Has to be told what came of it.
    pub attempt: Attempt<'static>,
}

/// It is an entry of the audit log, or counted where the same was tried in vain before.
pub async fn owner(
    fleet: &Fleet,
    id: Uuid,
    purpose: &'static str,
    is_again: bool,
) -> Result<Owner, Unreachable> {
    let sealed = store::sealed(&fleet.pool, id)
        .await
        .map_err(|error| {
            no_database(
                &error.into(),
                "the credentials could not be read from the database",
            )
        })?
        .ok_or_else(|| gone(NOT_REGISTERED))?;
    let (document, attempt) = opened(fleet, id, &sealed, purpose, is_again).await?;
    match kubernetes::connect(&document, &fleet.connections.slots).await {
        Ok(client) => Ok(Owner {
            client,
            document,
            attempt,
        }),
        Err(why) => attempt.ended(fleet, Err(why)).await,
    }
}

fn gone(message: &str) -> Unreachable {
    Unreachable {
        reason: "CredentialsUnavailable",
        message: message.to_owned(),
    }
}

fn unopened(error: &KeyError) -> Unreachable {
    let message = format!("the credentials cannot be opened: {error}");
    if error.is_passing() {
        Unreachable {
            reason: NO_KEY,
            message,
        }
    } else {
        gone(&message)
    }
}

/// The credentials, and what says that they are about to be used.
async fn opened(
    fleet: &Fleet,
    id: Uuid,
    sealed: &Sealed,
    purpose: &'static str,
    is_again: bool,
) -> Result<(Value, Attempt<'static>), Unreachable> {
    let plain = fleet
        .keys
        .open(clusters::place(id), sealed)
        .await
        .map_err(|error| unopened(&error))?;
    let document =
        serde_json::from_slice(&plain).map_err(|_| gone("the credentials are not what was stored"))?;
    let attempt = if is_again {
        Attempt::again(fleet, id, purpose).await
    } else {
        let details = json!({"purpose": purpose, "replica": fleet.holder});
        Attempt::begin(fleet, None, id, details).await
    };
    match attempt {
        Ok(attempt) => Ok((document, attempt)),
        Err(error) => Err(unrecorded(&error)),
    }
}

fn unrecorded(error: &Error) -> Unreachable {
    no_database(
        error,
        "the access could not be recorded, so it did not take place",
    )
}

fn no_database(error: &Error, message: &str) -> Unreachable {
    tracing::warn!(
        error = error as &dyn std::error::Error,
        "a cluster was not reached: {message}"
    );
    Unreachable {
        reason: NO_DATABASE,
        message: message.to_owned(),
    }
}
