//! SHA-256 with a tag, so that a hash made for one purpose is never one of another.

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A SHA-256 hash, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash([u8; 32]);

/// Text that is not a hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is 64 hexadecimal digits in lower case")]
pub struct HashFormat;

impl Hash {
    /// The hash of some bytes for one purpose. The tag ends with a zero byte, so no tag is the start of another.
    pub(crate) fn of(tag: &str, bytes: &[u8]) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(tag.as_bytes());
        context.update(&[0]);
        context.update(bytes);
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        Self(hash)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hash {
    type Err = HashFormat;

    fn from_str(text: &str) -> Result<Self, HashFormat> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(HashFormat);
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(hash))
    }
}

/// One digit; upper case is not one, so that a hash has one spelling.
fn nibble(digit: u8) -> Result<u8, HashFormat> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(HashFormat),
    }
}

impl TryFrom<String> for Hash {
    type Error = HashFormat;

    fn try_from(text: String) -> Result<Self, HashFormat> {
        text.parse()
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}
