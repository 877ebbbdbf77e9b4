//! What depends on the API server's own version.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

/// Major and minor version of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    pub major: u32,
    pub minor: u32,
}

/// Whether a server lets an update pass that leaves a value alone which a newer schema forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ratcheting {
    No,
    /// On unless switched off: 1.30 to 1.32.
    ByDefault,
    Always,
}

impl ServerVersion {
    pub fn ratcheting(self) -> Ratcheting {
        match (self.major, self.minor) {
            (1, ..30) | (0, _) => Ratcheting::No,
            (1, 30..33) => Ratcheting::ByDefault,
            _ => Ratcheting::Always,
        }
    }

    /// Formats that came later than the others: an older server takes all values.
    pub fn checks_format(self, format: &str) -> bool {
        let since = match format {
            "int32" | "float" => 36,
            "k8s-short-name" | "k8s-long-name" => 34,
            _ => 0,
        };
        (self.major, self.minor) >= (1, since)
    }

    /// CEL rules came on by default with 1.25.
    pub fn evaluates_rules(self) -> bool {
        (self.major, self.minor) >= (1, 25)
    }
}

/// A version that is not written as `1.33` or `v1.33.2`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a server version; write it as 1.33")]
pub struct NotAVersion(String);

impl FromStr for ServerVersion {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.trim().trim_start_matches('v').split(['.', '+', '-']);
        let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
        match (number(), number()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(NotAVersion(text.to_owned())),
        }
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Serialize for ServerVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1.27", Ratcheting::No)]
    #[case("v1.30.4+k3s1", Ratcheting::ByDefault)]
    #[case("1.32", Ratcheting::ByDefault)]
    #[case("1.33", Ratcheting::Always)]
    #[case("1.37.0-alpha.1", Ratcheting::Always)]
    fn by_version(#[case] text: &str, #[case] ratcheting: Ratcheting) {
        assert_eq!(text.parse::<ServerVersion>().unwrap().ratcheting(), ratcheting);
    }

    #[rstest]
    #[case("1.35", "int32", false)]
    #[case("1.36", "int32", true)]
    #[case("1.33", "k8s-short-name", false)]
    #[case("1.20", "date-time", true)]
    #[case("2.0", "float", true)]
    fn formats(#[case] version: &str, #[case] format: &str, #[case] checks: bool) {
        assert_eq!(
            version.parse::<ServerVersion>().unwrap().checks_format(format),
            checks
        );
    }

    #[rstest]
    #[case("")]
    #[case("1")]
    #[case("latest")]
    fn not_a_version(#[case] text: &str) {
        assert!(text.parse::<ServerVersion>().is_err());
    }
}
