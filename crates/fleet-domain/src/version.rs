//! Versions of operators: semantic versions, with a leading `v` or without.

use std::{cmp::Ordering, fmt, str::FromStr};

/// As it was written, and as it is compared. `v1.2.3` and `1.2.3` are one version.
#[derive(Clone, Debug)]
pub struct OperatorVersion {
    text: String,
    parsed: semver::Version,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a semantic version such as 1.14.0 or v1.14.0")]
pub struct NotAVersion(String);

impl FromStr for OperatorVersion {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > 128 {
            return Err(NotAVersion(text.chars().take(80).collect()));
        }
        let parsed = semver::Version::parse(text.strip_prefix('v').unwrap_or(text))
            .map_err(|_| NotAVersion(text.to_owned()))?;
        Ok(Self {
            text: text.to_owned(),
            parsed,
        })
    }
}

impl OperatorVersion {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Without the `v`: what two spellings have in common.
    pub fn canonical(&self) -> String {
        self.parsed.to_string()
    }

    pub fn is_prerelease(&self) -> bool {
        !self.parsed.pre.is_empty()
    }
}

impl fmt::Display for OperatorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for OperatorVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OperatorVersion {}

impl PartialOrd for OperatorVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OperatorVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parsed.cmp(&other.parsed)
    }
}

/// The newest one that is meant for everybody; a pre-release only where there is nothing else.
pub fn latest<'v>(versions: impl IntoIterator<Item = &'v OperatorVersion>) -> Option<&'v OperatorVersion> {
    versions
        .into_iter()
        .max_by_key(|version| (!version.is_prerelease(), (*version).clone()))
}

/// Whether there is something newer than what is current, by order and not by spelling.
pub fn has_update(current: Option<&str>, latest: Option<&str>) -> bool {
    let parse = |text: Option<&str>| text.and_then(|text| text.parse::<OperatorVersion>().ok());
    match (parse(current), parse(latest)) {
        (Some(current), Some(latest)) => current < latest,
        _ => false,
    }
}

/// Whether a version is kept: one of the newest, of which there are `most`, or one that is needed (the current one, the
/// latest release), however old it is. `place` counts from the newest.
pub fn is_kept(place: usize, version: &str, most: usize, needed: &[&str]) -> bool {
    let parse = |text: &str| text.parse::<OperatorVersion>().ok();
    place < most
        || parse(version).is_some_and(|version| {
            let mut needed = needed.iter().filter_map(|text| parse(text));
            needed.any(|needed| needed == version)
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Some("v1.9.0"), Some("1.10.0"), true)]
    #[case(Some("1.10.0"), Some("v1.10.0"), false)]
    #[case(Some("2.0.0"), Some("1.10.0"), false)]
    #[case(None, Some("1.0.0"), false)]
    #[case(Some("nightly"), Some("1.0.0"), false)]
    fn updates(#[case] current: Option<&str>, #[case] latest: Option<&str>, #[case] expected: bool) {
        assert_eq!(has_update(current, latest), expected);
    }

    #[rstest]
    #[case(0, "3.0.0", &[], true)]
    #[case(1, "2.0.0", &["1.0.0"], true)]
    #[case(2, "1.0.0", &[], false)]
    #[case(2, "1.0.0", &["2.0.0", "v1.0.0"], true)]
    #[case(3, "0.9.0", &["1.0.0"], false)]
    #[case(3, "0.9.0", &["nightly"], false)]
    fn what_is_kept(
        #[case] place: usize,
        #[case] version: &str,
        #[case] needed: &[&str],
        #[case] expected: bool,
    ) {
        assert_eq!(is_kept(place, version, 2, needed), expected);
    }

    #[test]
    fn a_release_is_offered_before_a_newer_pre_release() {
        let parse = |text: &str| text.parse::<OperatorVersion>().unwrap();
        let all = [parse("1.2.0"), parse("v2.0.0-rc.1"), parse("1.10.0")];
        assert_eq!(latest(&all).unwrap().as_str(), "1.10.0");
        assert_eq!(latest(&all[1..2]).unwrap().as_str(), "v2.0.0-rc.1");
        assert!("1.2".parse::<OperatorVersion>().is_err());
    }
}
