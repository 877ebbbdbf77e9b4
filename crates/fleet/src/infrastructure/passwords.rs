//! Passwords of local users: argon2id. Each takes 19 MiB and some tens of milliseconds, so only a few at a time. Nobody waits
//! for their turn without end, and those who cannot get in anyway take few turns from those who can.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use gantry_fleet_domain::rate::Bucket;
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::Error;

const AT_ONCE: usize = 2;
/// For a turn.
const PATIENCE: Duration = Duration::from_secs(3);
/// Checks a minute that cannot succeed, from wherever they come. It does not have to be enough for anybody: who is over it
/// cannot see that nothing is checked.
const HOPELESS: u32 = 30;

pub struct Passwords {
    turns: Semaphore,
    /// Of nobody's password: an unknown user takes as long as a known one.
    decoy: String,
    hopeless: Mutex<Hopeless>,
}

struct Hopeless {
    left: Bucket,
    /// How the last real check went.
    last: Check,
}

/// How long it took, with the wait for the turn, and whether there was none.
#[derive(Clone, Copy)]
struct Check {
    took: Duration,
    found_turn: bool,
}

impl Passwords {
    pub fn new() -> Result<Self, Error> {
        let begin = Instant::now();
        let decoy = hash(b"nobody's password")?;
        Ok(Self {
            turns: Semaphore::new(AT_ONCE),
            decoy,
            hopeless: Mutex::new(Hopeless {
                left: Bucket::full(HOPELESS, Timestamp::UNIX_EPOCH),
                last: Check {
                    took: begin.elapsed(),
                    found_turn: true,
                },
            }),
        })
    }

    fn hopeless(&self) -> MutexGuard<'_, Hopeless> {
        self.hopeless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        let turn = tokio::time::timeout(PATIENCE, self.turns.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(busy)
    }

    pub async fn hash(&self, password: String) -> Result<String, Error> {
        let _turn = self.turn().await?;
        tokio::task::spawn_blocking(move || hash(password.as_bytes()))
            .await
            .map_err(|error| Error::internal("failed to hash a password", error))?
    }

    /// Whether the password is the one of this hash; never, and as slowly, where there is no hash. Of those that have none
    /// few are really checked: the others wait for as long as the last check took, and hear what would be heard then.
    pub async fn matches(
        &self,
        password: String,
        stored: Option<String>,
        now: Timestamp,
    ) -> Result<bool, Error> {
        if stored.is_none()
            && let Some(last) = self.pretence(now)
        {
            tokio::time::sleep(last.took).await;
            return if last.found_turn { Ok(false) } else { Err(busy()) };
        }
        let begin = Instant::now();
        let checked = self.check(password, stored).await;
        self.hopeless().last = Check {
            took: begin.elapsed(),
            found_turn: checked.is_ok(),
        };
        checked
    }

    /// How the last check went, where there were too many that could not succeed.
    fn pretence(&self, now: Timestamp) -> Option<Check> {
        let mut hopeless = self.hopeless();
        let is_checked = hopeless.left.take(HOPELESS, now).allowed;
        (!is_checked).then_some(hopeless.last)
    }

    async fn check(&self, password: String, stored: Option<String>) -> Result<bool, Error> {
        let _turn = self.turn().await?;
        let known = stored.is_some();
        let stored = stored.unwrap_or_else(|| self.decoy.clone());
        tokio::task::spawn_blocking(move || {
            let parsed = PasswordHash::new(&stored).ok();
            let fits = parsed.is_some_and(|hash| {
                Argon2::default()
                    .verify_password(password.as_bytes(), &hash)
                    .is_ok()
            });
            fits && known
        })
        .await
        .map_err(|error| Error::internal("failed to check a password", error))
    }
}

/// Of everybody who found no turn, whoever they are.
fn busy() -> Error {
    Error::TooMany {
        retry_after: PATIENCE.as_secs().cast_signed(),
    }
}

fn hash(password: &[u8]) -> Result<String, Error> {
    let mut salt = [0; 16];
    aws_lc_rs::rand::fill(&mut salt).map_err(|error| Error::internal("failed to make a salt", error))?;
    let hash: PasswordHash = Argon2::default()
        .hash_password_with_salt(password, &salt)
        .map_err(|error| Error::internal("failed to hash a password", error))?;
    Ok(hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_right_password_matches() {
        let passwords = Passwords::new().unwrap();
        let stored = passwords.hash("correct horse".to_owned()).await.unwrap();
        assert!(stored.starts_with("$argon2id$"), "{stored}");
        let matches = |password: &str, stored: Option<&String>| {
            passwords.matches(password.to_owned(), stored.cloned(), Timestamp::now())
        };
        assert!(matches("correct horse", Some(&stored)).await.unwrap());
        assert!(!matches("correct hors", Some(&stored)).await.unwrap());
        assert!(!matches("nobody's password", None).await.unwrap());
        assert!(!matches("x", Some(&"no hash".to_owned())).await.unwrap());
    }

    #[tokio::test]
    async fn those_who_cannot_get_in_keep_nobody_out() {
        let passwords = Passwords::new().unwrap();
        let (stored, now) = (
            passwords.hash("right".to_owned()).await.unwrap(),
            Timestamp::now(),
        );
        let matches = |password: &str, stored: Option<&String>| {
            passwords.matches(password.to_owned(), stored.cloned(), now)
        };
        for _ in 0..HOPELESS {
            assert!(!matches("x", None).await.unwrap());
        }
        // As long as it took the last time.
        assert!(!matches("wrong", Some(&stored)).await.unwrap());
        let took = passwords.hopeless().last.took;
        let turns = passwords.turns.acquire_many(2).await.unwrap();
        let begin = Instant::now();
        assert!(!matches("x", None).await.unwrap());
        assert!(
            (took..PATIENCE).contains(&begin.elapsed()),
            "{:?}",
            begin.elapsed()
        );
        // Who waits for a turn does not do so for ever, and the others are told the same then.
        for stored in [Some(&stored), None] {
            let begin = Instant::now();
            let refused = matches("right", stored).await.unwrap_err();
            assert!(matches!(refused, Error::TooMany { retry_after: 3 }), "{refused}");
            assert!(begin.elapsed() >= PATIENCE);
        }
        let refused = passwords.hash("another".to_owned()).await.unwrap_err();
        assert_eq!(refused.status(), 429);
        drop(turns);
        assert!(matches("right", Some(&stored)).await.unwrap());
        assert!(!matches("x", None).await.unwrap());
    }
}
