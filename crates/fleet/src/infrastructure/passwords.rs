//! Passwords of local users: argon2id. Each takes 19 MiB and some tens of milliseconds, so only a few at a time.

use argon2::{
    Argon2,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use tokio::sync::Semaphore;

use crate::Error;

pub struct Passwords {
    turns: Semaphore,
    /// Of nobody's password: an unknown user takes as long as a known one.
    decoy: String,
}

impl Passwords {
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            turns: Semaphore::new(2),
            decoy: hash(b"nobody's password")?,
        })
    }

    pub async fn hash(&self, password: String) -> Result<String, Error> {
        let _turn = self.turns.acquire().await;
        tokio::task::spawn_blocking(move || hash(password.as_bytes()))
            .await
            .map_err(|error| Error::internal("failed to hash a password", error))?
    }

    /// Whether the password is the one of this hash; never, and as slowly, where there is no hash.
    pub async fn matches(&self, password: String, stored: Option<String>) -> Result<bool, Error> {
        let _turn = self.turns.acquire().await;
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
        let matches =
            |password: &str, stored: Option<&String>| passwords.matches(password.to_owned(), stored.cloned());
        assert!(matches("correct horse", Some(&stored)).await.unwrap());
        assert!(!matches("correct hors", Some(&stored)).await.unwrap());
        assert!(!matches("nobody's password", None).await.unwrap());
        assert!(!matches("x", Some(&"no hash".to_owned())).await.unwrap());
    }
}
