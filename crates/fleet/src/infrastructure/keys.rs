//! Kubeconfigs at rest: envelope encryption. Each row has a random key of its own (AES-256-GCM), which is wrapped by a
//! key that is not in the database: from a file or variable, or by Vault's transit engine, which never shows it.
//!
//! What was sealed for one row opens for no other: table, column and row are part of what is authenticated.
//!
//! One source wraps. Others beside it may still unwrap, until everything is under the one that wraps: so keys move from a
//! file to Vault, from one key of Vault to another, and back.

use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::vault::{Vault, VaultError};

const KEY_LEN: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(
        "a key file has one key on a line, each 32 random bytes in base64 (make one: openssl rand -base64 32); line {line} is none"
    )]
    Format { line: usize },
    #[error("there is no key in it")]
    Empty,
    #[error(
        "key {0} is not known any more: give it again beside the new one (below it in the key file; a key of Vault with --vault-old-key) until everything is rewrapped"
    )]
    Unknown(String),
    #[error("the data does not open with this key: it was altered, or belongs to another row")]
    DoesNotOpen,
    #[error(
        "Vault does not open the data: it was altered, or belongs to another row, or the key or this version of it is gone"
    )]
    VaultDoesNotOpen,
    #[error("failed to make random bytes")]
    Random,
    #[error(transparent)]
    Vault(VaultError),
}

impl From<VaultError> for KeyError {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::DoesNotOpen => Self::VaultDoesNotOpen,
            other => Self::Vault(other),
        }
    }
}

impl KeyError {
    /// Whether it says nothing of what is sealed: Vault is away, or another replica has a new key and this one not yet.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Vault(_) | Self::Unknown(_) | Self::Random => true,
            Self::DoesNotOpen | Self::VaultDoesNotOpen | Self::Format { .. } | Self::Empty => false,
        }
    }
}

/// What is stored of a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    pub ciphertext: Vec<u8>,
    pub wrapped_key: Vec<u8>,
    pub key_id: String,
}

/// The key that wraps now, and what everything begins with that it has wrapped. A name alone does not tell a key of Vault:
/// it is the same for all of its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    pub id: String,
    pub prefix: Vec<u8>,
}

/// Keys in memory: the first one wraps, all of them unwrap.
#[derive(Clone, PartialEq, Eq)]
pub struct LocalKeys(Vec<(String, [u8; KEY_LEN])>);

impl LocalKeys {
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key: [u8; KEY_LEN] = STANDARD
                .decode(line)
                .ok()
                .and_then(|bytes| bytes.try_into().ok())
                .ok_or(KeyError::Format { line: number })?;
            keys.push((name_of(&key), key));
        }
        if keys.is_empty() {
            Err(KeyError::Empty)
        } else {
            Ok(Self(keys))
        }
    }

    /// A new key, as a file has it.
    pub fn generate() -> Result<String, KeyError> {
        Ok(STANDARD.encode(random()?))
    }

    /// The name of the one that wraps.
    pub fn name(&self) -> &str {
        &self.current().0
    }

    fn current(&self) -> &(String, [u8; KEY_LEN]) {
        &self.0[0]
    }

    fn find(&self, id: &str) -> Option<&[u8; KEY_LEN]> {
        self.0.iter().find(|(name, _)| name == id).map(|(_, key)| key)
    }
}

/// A key is named after its own hash, so that nobody has to invent names.
fn name_of(key: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"gantry-fleet/key-id\0");
    hash.update(key);
    gantry_fleet_domain::hex(&hash.finalize()[..6])
}

/// Which row and column a secret belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub table: &'static str,
    pub column: &'static str,
    pub row: Uuid,
}

impl Place {
    fn text(&self) -> String {
        format!("gantry-fleet/v1\0{}\0{}\0{}", self.table, self.column, self.row)
    }
}

enum Source {
    Local(RwLock<Arc<LocalKeys>>),
    Vault(Vault),
}

impl Source {
    /// Whether it has a key of this name.
    fn knows(&self, id: &str) -> bool {
        match self {
            Self::Local(keys) => local(keys).find(id).is_some(),
            Self::Vault(vault) => vault.name() == id,
        }
    }

    async fn unwrap(&self, place: Place, sealed: &Sealed) -> Result<Vec<u8>, KeyError> {
        let id = &sealed.key_id;
        match self {
            Self::Local(keys) => {
                let keys = local(keys);
                let wrapping = keys.find(id).ok_or_else(|| KeyError::Unknown(id.clone()))?;
                decrypt(wrapping, &wrap_context(place, id), &sealed.wrapped_key)
            }
            Self::Vault(vault) => Ok(vault.decrypt(&place.text(), &sealed.wrapped_key).await?),
        }
    }
}

fn local(keys: &RwLock<Arc<LocalKeys>>) -> Arc<LocalKeys> {
    keys.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Where keys come from: the first wraps, all of them unwrap.
#[derive(Clone)]
pub struct Keys {
    first: Arc<Source>,
    older: Vec<Arc<Source>>,
}

impl Keys {
    pub fn local(keys: LocalKeys) -> Self {
        Self::of(Source::Local(RwLock::new(Arc::new(keys))))
    }

    pub fn vault(vault: Vault) -> Self {
        Self::of(Source::Vault(vault))
    }

    fn of(source: Source) -> Self {
        Self {
            first: Arc::new(source),
            older: Vec::new(),
        }
    }

    /// These unwrap as well.
    #[must_use]
    pub fn and_opens(mut self, others: Self) -> Self {
        self.older.push(others.first);
        self.older.extend(others.older);
        self
    }

    fn sources(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(&self.first)
            .chain(&self.older)
            .map(|source| &**source)
    }

    /// Whether these are those in use where they are local.
    pub fn holds(&self, keys: &LocalKeys) -> bool {
        self.sources().all(|source| match source {
            Source::Local(current) => *local(current) == *keys,
            Source::Vault(_) => true,
        })
    }

    /// Takes other keys from now on where they are local; what waits for the old ones still has them.
    pub fn replace(&self, keys: LocalKeys) {
        let keys = Arc::new(keys);
        for source in self.sources() {
            if let Source::Local(current) = source {
                *current.write().unwrap_or_else(PoisonError::into_inner) = keys.clone();
            }
        }
    }

    /// The key that wraps now. Vault is asked: it can have been rotated at any time.
    pub async fn current(&self) -> Result<Current, KeyError> {
        match &*self.first {
            Source::Local(keys) => Ok(Current {
                id: local(keys).name().to_owned(),
                prefix: Vec::new(),
            }),
            Source::Vault(vault) => Ok(Current {
                id: vault.name(),
                prefix: vault.version().await?.into_bytes(),
            }),
        }
    }

    pub async fn seal(&self, place: Place, secret: &[u8]) -> Result<Sealed, KeyError> {
        let key = random()?;
        let ciphertext = encrypt(&key, &place.text(), secret)?;
        let (wrapped_key, key_id) = self.wrap(place, &key).await?;
        Ok(Sealed {
            ciphertext,
            wrapped_key,
            key_id,
        })
    }

    pub async fn open(&self, place: Place, sealed: &Sealed) -> Result<Vec<u8>, KeyError> {
        let key = self.unwrap(place, sealed).await?;
        decrypt(&key, &place.text(), &sealed.ciphertext)
    }

    /// The same secret under the key that wraps now; the secret itself is not opened.
    pub async fn rewrap(&self, place: Place, sealed: &Sealed) -> Result<Sealed, KeyError> {
        let key = self.unwrap(place, sealed).await?;
        let (wrapped_key, key_id) = self.wrap(place, &key).await?;
        Ok(Sealed {
            ciphertext: sealed.ciphertext.clone(),
            wrapped_key,
            key_id,
        })
    }

    async fn wrap(&self, place: Place, key: &[u8; KEY_LEN]) -> Result<(Vec<u8>, String), KeyError> {
        match &*self.first {
            Source::Local(keys) => {
                let keys = local(keys);
                let (id, wrapping) = keys.current();
                Ok((encrypt(wrapping, &wrap_context(place, id), key)?, id.clone()))
            }
            Source::Vault(vault) => Ok((vault.encrypt(&place.text(), key).await?, vault.name())),
        }
    }

    async fn unwrap(&self, place: Place, sealed: &Sealed) -> Result<[u8; KEY_LEN], KeyError> {
        let id = &sealed.key_id;
        let source = self
            .sources()
            .find(|source| source.knows(id))
            .ok_or_else(|| KeyError::Unknown(id.clone()))?;
        let bytes = source.unwrap(place, sealed).await?;
        bytes.try_into().map_err(|_| KeyError::DoesNotOpen)
    }
}

fn wrap_context(place: Place, key_id: &str) -> String {
    format!("{}\0wrapped by {key_id}", place.text())
}

fn random() -> Result<[u8; KEY_LEN], KeyError> {
    let mut bytes = [0; KEY_LEN];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| KeyError::Random)?;
    Ok(bytes)
}

/// Nonce, then ciphertext with its tag.
fn encrypt(key: &[u8; KEY_LEN], context: &str, plain: &[u8]) -> Result<Vec<u8>, KeyError> {
    let key = RandomizedNonceKey::new(&AES_256_GCM, key).map_err(|_| KeyError::Random)?;
    let mut sealed = plain.to_vec();
    let nonce = key
        .seal_in_place_append_tag(Aad::from(context.as_bytes()), &mut sealed)
        .map_err(|_| KeyError::Random)?;
    Ok([nonce.as_ref().as_slice(), &sealed].concat())
}

fn decrypt(key: &[u8; KEY_LEN], context: &str, sealed: &[u8]) -> Result<Vec<u8>, KeyError> {
    let key = RandomizedNonceKey::new(&AES_256_GCM, key).map_err(|_| KeyError::DoesNotOpen)?;
    let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN).ok_or(KeyError::DoesNotOpen)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| KeyError::DoesNotOpen)?;
    let mut bytes = sealed.to_vec();
    let plain = key
        .open_in_place(nonce, Aad::from(context.as_bytes()), &mut bytes)
        .map_err(|_| KeyError::DoesNotOpen)?;
    Ok(plain.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(row: u128) -> Place {
        Place {
            table: "clusters",
            column: "kubeconfig",
            row: Uuid::from_u128(row),
        }
    }

    fn keys(lines: &[&str]) -> Keys {
        Keys::local(LocalKeys::parse(&lines.join("\n")).unwrap())
    }

    #[tokio::test]
    async fn what_is_sealed_opens_again_and_for_that_row_only() {
        let line = LocalKeys::generate().unwrap();
        let keys = keys(&[&line]);
        let sealed = keys.seal(place(1), b"secret kubeconfig").await.unwrap();
        assert!(!sealed.ciphertext.windows(6).any(|window| window == b"secret"));
        assert_eq!(keys.open(place(1), &sealed).await.unwrap(), b"secret kubeconfig");
        assert!(keys.open(place(2), &sealed).await.is_err());
        for part in [0, 20] {
            let mut altered = sealed.clone();
            altered.ciphertext[part] ^= 1;
            assert!(matches!(
                keys.open(place(1), &altered).await,
                Err(KeyError::DoesNotOpen)
            ));
            let mut altered = sealed.clone();
            altered.wrapped_key[part] ^= 1;
            assert!(matches!(
                keys.open(place(1), &altered).await,
                Err(KeyError::DoesNotOpen)
            ));
        }
        let again = keys.seal(place(1), b"secret kubeconfig").await.unwrap();
        assert_ne!(
            again.ciphertext, sealed.ciphertext,
            "a key and a nonce of its own"
        );
    }

    #[tokio::test]
    async fn a_key_is_rotated_without_a_moment_of_closed_doors() {
        let (old, new) = (LocalKeys::generate().unwrap(), LocalKeys::generate().unwrap());
        let ring = keys(&[&old]);
        let sealed = ring.seal(place(1), b"secret").await.unwrap();
        ring.replace(LocalKeys::parse(&format!("# new one first\n{new}\n{old}\n")).unwrap());
        assert_eq!(ring.open(place(1), &sealed).await.unwrap(), b"secret");
        let rewrapped = ring.rewrap(place(1), &sealed).await.unwrap();
        assert_eq!(rewrapped.key_id, ring.current().await.unwrap().id);
        assert_eq!(rewrapped.ciphertext, sealed.ciphertext);
        ring.replace(LocalKeys::parse(&new).unwrap());
        assert_eq!(ring.open(place(1), &rewrapped).await.unwrap(), b"secret");
        assert!(matches!(
            ring.open(place(1), &sealed).await,
            Err(KeyError::Unknown(_))
        ));
    }

    #[tokio::test]
    async fn what_another_source_wrapped_moves_to_the_one_that_wraps() {
        let (old, new) = (LocalKeys::generate().unwrap(), LocalKeys::generate().unwrap());
        let before = keys(&[&old]);
        let sealed = before.seal(place(1), b"secret").await.unwrap();
        let both = keys(&[&new]).and_opens(before);
        assert_eq!(both.open(place(1), &sealed).await.unwrap(), b"secret");
        let moved = both.rewrap(place(1), &sealed).await.unwrap();
        assert_eq!(moved.key_id, both.current().await.unwrap().id);
        assert_eq!(
            keys(&[&new]).open(place(1), &moved).await.unwrap(),
            b"secret",
            "the old one may go"
        );
        assert!(matches!(
            keys(&[&new]).open(place(1), &sealed).await,
            Err(KeyError::Unknown(_))
        ));
    }

    #[test]
    fn files_that_hold_no_keys_are_refused() {
        assert!(matches!(LocalKeys::parse("# nothing\n"), Err(KeyError::Empty)));
        assert!(matches!(
            LocalKeys::parse("\nc2hvcnQ="),
            Err(KeyError::Format { line: 2 })
        ));
    }
}
