//! What a request is recognised by when it is repeated. It may have held a password, so what is kept must be of no use for
//! guessing one: a hash under a key of the server's own. All replicas have the same key, from the database, where it is
//! sealed like a kubeconfig; it outlives restarts and rotations of the key that seals.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::hmac;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::{Fleet, clusters::locked};
use crate::{
    Error,
    infrastructure::{
        keys::{Current, KeyError, Place},
        store::secrets as store,
    },
};

const NAME: &str = "requests";
/// Another replica may make, or replace, the key at the same time.
const TRIES: usize = 3;
/// How long another replica may have a key that this one has not: longer than a new file takes to reach all of them.
const LAG: SignedDuration = SignedDuration::from_mins(10);

#[derive(Default)]
pub struct Marks(Mutex<State>);

#[derive(Default)]
struct State {
    /// The key as it was opened last, and the row that it came from.
    opened: Option<(Uuid, hmac::Key)>,
    /// A row whose key we have not, and since when that is known.
    locked: Option<(Uuid, Timestamp)>,
}

impl Marks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self, id: Uuid) -> Option<hmac::Key> {
        let state = self.state();
        let opened = state.opened.as_ref().filter(|(of, _)| *of == id);
        opened.map(|(_, key)| key.clone())
    }

    fn keep(&self, id: Uuid, key: &hmac::Key) {
        *self.state() = State {
            opened: Some((id, key.clone())),
            locked: None,
        };
    }

    /// Whether nobody can be waited for any more who has the key of this row.
    fn is_lost(&self, id: Uuid, now: Timestamp) -> bool {
        let mut state = self.state();
        match state.locked {
            Some((of, since)) if of == id => now.duration_since(since) >= LAG,
            _ => {
                state.locked = Some((id, now));
                false
            }
        }
    }
}

fn place(id: Uuid) -> Place {
    Place {
        table: "server_secrets",
        column: "secret",
        row: id,
    }
}

/// What is kept of a request with this digest.
pub async fn mark(fleet: &Fleet, digest: &[u8; 32]) -> Result<Vec<u8>, Error> {
    Ok(hmac::sign(&key(fleet).await?, digest).as_ref().to_vec())
}

async fn key(fleet: &Fleet) -> Result<hmac::Key, Error> {
    for _ in 0..TRIES {
        let Some((id, sealed)) = store::get(&fleet.pool, NAME).await? else {
            make(fleet).await?;
            continue;
        };
        if let Some(key) = fleet.marks.kept(id) {
            return Ok(key);
        }
        match fleet.keys.open(place(id), &sealed).await {
            Ok(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
                fleet.marks.keep(id, &key);
                return Ok(key);
            }
            // Another replica has a new key before us, perhaps, or this one asks the wrong Vault: what others can open must
            // stay.
            Err(error @ (KeyError::Unknown(_) | KeyError::VaultDoesNotOpen))
                if !fleet.marks.is_lost(id, fleet.now()) =>
            {
                return Err(Error::Unavailable {
                    code: "KEY_UNAVAILABLE",
                    message: format!(
                        "requests with an Idempotency-Key cannot be recognised by this replica yet: {error}"
                    ),
                });
            }
            // What sealed it is gone for good. Requests of the last day are not recognised any more, which is told to those
            // who repeat them; new ones are.
            Err(error @ (KeyError::Unknown(_) | KeyError::VaultDoesNotOpen | KeyError::DoesNotOpen)) => {
                tracing::warn!(%error, "the key that repeated requests are recognised by is replaced");
                store::remove(&fleet.pool, NAME, id).await?;
            }
            Err(error) => return Err(locked(error)),
        }
    }
    Err(Error::Unavailable {
        code: "KEY_UNAVAILABLE",
        message: "the key that repeated requests are recognised by keeps changing: do all replicas have the same --key-file?"
            .to_owned(),
    })
}

async fn make(fleet: &Fleet) -> Result<(), Error> {
    let mut secret = [0; 32];
    aws_lc_rs::rand::fill(&mut secret).map_err(|error| Error::internal("failed to make a key", error))?;
    let id = Uuid::new_v4();
    let sealed = fleet.keys.seal(place(id), &secret).await.map_err(locked)?;
    store::insert(&fleet.pool, NAME, id, &sealed).await?;
    Ok(())
}

/// Brings it under the key that wraps now.
pub async fn rewrap(fleet: &Fleet, current: &Current) -> Result<(), Error> {
    let Some((id, sealed)) = store::get(&fleet.pool, NAME).await? else {
        return Ok(());
    };
    if sealed.key_id == current.id && sealed.wrapped_key.starts_with(&current.prefix) {
        return Ok(());
    }
    let rewrapped = fleet
        .keys
        .rewrap(place(id), &sealed)
        .await
        .map_err(|error| Error::internal("failed to rewrap the server's own key", error))?;
    store::rewrap(&fleet.pool, id, &sealed, &rewrapped).await?;
    Ok(())
}
