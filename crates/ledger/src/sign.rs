//! Heads with a signature (Ed25519), so that a copy of the record can be checked by those who trust a key.

use crate::canonical;
use crate::entry::Head;
use crate::hash::Hash;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::fmt;

const HEAD_TAG: &str = "gantry-ledger/head/v1";
const KEY_TAG: &str = "gantry-ledger/key/v1";
const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";
/// What stands before the 32 bytes of an Ed25519 key in its X.509 form (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A head with a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedHead {
    /// Name of the ledger.
    pub ledger: String,
    /// Number of its newest entry.
    pub seq: u64,
    /// Hash of that entry.
    pub hash: Hash,
    /// Which key signed it; see [`PublicKey::id`].
    pub key: String,
    /// The signature, in base64.
    pub signature: String,
}

/// A key that signs. It is never shown; [`Signer::to_pem`] is for the Secret that keeps it.
pub struct Signer(Ed25519KeyPair);

/// A key that checks signatures.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

/// Text that is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// Not PEM of the right kind.
    #[error("not a PEM block of \"{0}\"")]
    Pem(&'static str),
    /// PEM, but the key inside is not Ed25519.
    #[error("not an Ed25519 key: make one with `openssl genpkey -algorithm ed25519`")]
    NotEd25519,
    /// The system gave no randomness.
    #[error("failed to make a key")]
    Generate,
}

/// A signed head that proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    /// It is about another ledger.
    #[error("it is the head of ledger \"{found}\", not of \"{expected}\"")]
    OtherLedger {
        /// The ledger that was asked about.
        expected: String,
        /// The ledger that the head is about.
        found: String,
    },
    /// Another key signed it.
    #[error("key {found} signed it, not {expected}")]
    OtherKey {
        /// The key that was asked about.
        expected: String,
        /// The key that is named in the head.
        found: String,
    },
    /// The signature is not one of this key over this head.
    #[error("the signature does not fit: the head was altered, or another key signed it")]
    DoesNotFit,
}

impl Signer {
    /// A new key.
    pub fn generate() -> Result<Self, BadKey> {
        Ed25519KeyPair::generate().map(Self).map_err(|_| BadKey::Generate)
    }

    /// Reads a key from PEM (PKCS #8).
    pub fn from_pem(text: &str) -> Result<Self, BadKey> {
        let der = pem_body(text, PRIVATE)?;
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der)
            .map(Self)
            .map_err(|_| BadKey::NotEd25519)
    }

    /// The key as PEM (PKCS #8), for the place that keeps it.
    pub fn to_pem(&self) -> Result<String, BadKey> {
        let der = self.0.to_pkcs8v1().map_err(|_| BadKey::Generate)?;
        Ok(pem(PRIVATE, der.as_ref()))
    }

    /// The key that checks what this one signs.
    pub fn public_key(&self) -> PublicKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }

    /// The head with a signature.
    pub fn sign(&self, ledger: &str, head: &Head) -> SignedHead {
        SignedHead {
            ledger: ledger.to_owned(),
            seq: head.seq,
            hash: head.hash,
            key: self.public_key().id(),
            signature: STANDARD.encode(self.0.sign(message(ledger, head).as_bytes())),
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.public_key().id())
    }
}

impl PublicKey {
    /// Reads a key from PEM (X.509 SubjectPublicKeyInfo).
    pub fn from_pem(text: &str) -> Result<Self, BadKey> {
        let der = pem_body(text, PUBLIC)?;
        let bytes = der
            .strip_prefix(&SPKI_PREFIX[..])
            .and_then(|key| <[u8; 32]>::try_from(key).ok())
            .ok_or(BadKey::NotEd25519)?;
        Ok(Self(bytes))
    }

    /// The key as PEM (X.509 SubjectPublicKeyInfo), as `openssl pkey -pubout` writes it.
    pub fn to_pem(&self) -> String {
        let mut der = SPKI_PREFIX.to_vec();
        der.extend_from_slice(&self.0);
        pem(PUBLIC, &der)
    }

    /// A short name of the key: the start of its hash.
    pub fn id(&self) -> String {
        let mut id = Hash::of(KEY_TAG, &self.0).to_string();
        id.truncate(16);
        id
    }

    /// The head, when this key signed it for this ledger.
    pub fn check(&self, ledger: &str, head: &SignedHead) -> Result<Head, BadSignature> {
        if head.ledger != ledger {
            return Err(BadSignature::OtherLedger {
                expected: ledger.to_owned(),
                found: head.ledger.clone(),
            });
        }
        if head.key != self.id() {
            return Err(BadSignature::OtherKey {
                expected: self.id(),
                found: head.key.clone(),
            });
        }
        let plain = Head {
            seq: head.seq,
            hash: head.hash,
        };
        let signature = STANDARD
            .decode(&head.signature)
            .map_err(|_| BadSignature::DoesNotFit)?;
        UnparsedPublicKey::new(&ED25519, &self.0)
            .verify(message(ledger, &plain).as_bytes(), &signature)
            .map_err(|_| BadSignature::DoesNotFit)?;
        Ok(plain)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.id())
    }
}

/// What is signed: a tag and the head, in one spelling.
fn message(ledger: &str, head: &Head) -> String {
    let mut text = format!("{HEAD_TAG}\0{{\"ledger\":");
    canonical::text(ledger, &mut text);
    text + &format!(",\"seq\":{},\"hash\":\"{}\"}}", head.seq, head.hash)
}

fn pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let body = STANDARD.encode(der);
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text + &format!("-----END {label}-----\n")
}

fn pem_body(text: &str, label: &'static str) -> Result<Vec<u8>, BadKey> {
    let bad = || BadKey::Pem(label);
    let body = text
        .trim()
        .strip_prefix(&format!("-----BEGIN {label}-----"))
        .and_then(|rest| rest.strip_suffix(&format!("-----END {label}-----")))
        .ok_or_else(bad)?;
    let joined: String = body.split_whitespace().collect();
    STANDARD.decode(joined).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn signer() -> Signer {
        Signer::generate().unwrap()
    }

    #[test]
    fn the_key_that_signed_proves_the_head_and_no_other_does() {
        let (signer, other) = (signer(), signer());
        let head = Head::genesis("demo");
        let signed = signer.sign("demo", &head);
        assert_eq!(signer.public_key().check("demo", &signed), Ok(head));
        assert!(matches!(
            other.public_key().check("demo", &signed),
            Err(BadSignature::OtherKey { .. })
        ));
        let mut passed_off = signed.clone();
        passed_off.key = other.public_key().id();
        assert_eq!(
            other.public_key().check("demo", &passed_off),
            Err(BadSignature::DoesNotFit)
        );
    }

    #[rstest]
    #[case::number(|h: &mut SignedHead| h.seq += 1)]
    #[case::hash(|h: &mut SignedHead| h.hash = Head::genesis("x").hash)]
    #[case::signature(|h: &mut SignedHead| h.signature = h.signature.replacen(|c: char| c.is_ascii_lowercase(), "A", 1))]
    #[case::no_signature(|h: &mut SignedHead| h.signature = String::new())]
    #[case::not_base64(|h: &mut SignedHead| h.signature = "?".into())]
    fn an_altered_head_proves_nothing(#[case] edit: fn(&mut SignedHead)) {
        let signer = signer();
        let mut signed = signer.sign("demo", &Head::genesis("demo"));
        edit(&mut signed);
        assert_eq!(
            signer.public_key().check("demo", &signed),
            Err(BadSignature::DoesNotFit)
        );
    }

    #[test]
    fn the_head_of_another_ledger_proves_nothing_even_under_this_name() {
        let signer = signer();
        let mut signed = signer.sign("other", &Head::genesis("other"));
        assert!(matches!(
            signer.public_key().check("demo", &signed),
            Err(BadSignature::OtherLedger { .. })
        ));
        signed.ledger = "demo".into();
        assert_eq!(
            signer.public_key().check("demo", &signed),
            Err(BadSignature::DoesNotFit)
        );
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let signer = signer();
        let again = Signer::from_pem(&signer.to_pem().unwrap()).unwrap();
        assert_eq!(again.public_key(), signer.public_key());
        let public = signer.public_key();
        assert_eq!(PublicKey::from_pem(&public.to_pem()), Ok(public));
        assert!(!format!("{signer:?}").contains("BEGIN"));
    }

    /// Made with `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout`.
    #[test]
    fn keys_of_openssl_are_read() {
        let private = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIFxukK0/04d0zO8HJihDC9UAInTPEvXqUnPu8fqPlkHf\n-----END PRIVATE KEY-----\n";
        let public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA/ji5DEUub33acmeVI3H3L0IqkIaAw7md9TyIp8hUwu0=\n-----END PUBLIC KEY-----\n";
        let signer = Signer::from_pem(private).unwrap();
        assert_eq!(signer.public_key().to_pem(), public);
        assert_eq!(signer.to_pem().unwrap(), private);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::the_wrong_half("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")]
    #[case::not_base64("-----BEGIN PRIVATE KEY-----\n?\n-----END PRIVATE KEY-----\n")]
    fn what_is_no_key(#[case] text: &str) {
        assert_eq!(Signer::from_pem(text).err(), Some(BadKey::Pem(PRIVATE)));
    }

    #[test]
    fn another_kind_of_key_is_refused() {
        let text = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(Signer::from_pem(text).err(), Some(BadKey::NotEd25519));
        let text = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
        assert_eq!(PublicKey::from_pem(text), Err(BadKey::NotEd25519));
    }
}
