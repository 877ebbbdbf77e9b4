//! One entry of a ledger, and the head that it makes.

use crate::canonical;
use crate::hash::{Hash, HashFormat};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;

const ENTRY_TAG: &str = "gantry-ledger/entry/v1";
const GENESIS_TAG: &str = "gantry-ledger/genesis/v1";

/// One entry: what was recorded, when, and after which entry.
///
/// The fields are public for reading. An entry that was not made by [`Entry::next`] is found by [`crate::verify`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Number of the entry; the first is 1.
    pub seq: u64,
    /// When it was recorded, in RFC 3339. The ledger does not read it: order is told by `seq` alone.
    pub at: String,
    /// Hash of the entry before, or of the ledger's name for the first.
    pub previous: Hash,
    /// What was recorded.
    pub body: Value,
    /// Hash of all of the above.
    pub hash: Hash,
}

/// The newest entry of a ledger, in two words: whoever knows it can tell later whether the record still holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Head {
    /// Number of the entry; 0 for a ledger without entries.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

/// A line that is not an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// Not JSON, or not an entry.
    #[error("not an entry: {0}")]
    Unreadable(String),
    /// An entry, but not the way entries are written.
    #[error("an entry, but not written as a ledger writes it: somebody edited it")]
    NotCanonical,
}

impl Head {
    /// The head of a ledger that has no entries yet. Two ledgers with different names share no entry.
    pub fn genesis(name: &str) -> Self {
        Self {
            seq: 0,
            hash: Hash::of(GENESIS_TAG, name.as_bytes()),
        }
    }
}

impl Entry {
    /// The entry that follows a head. Numbers in the body that are not integers are kept as text.
    #[must_use]
    pub fn next(head: &Head, at: impl Into<String>, body: Value) -> Self {
        let mut entry = Self {
            seq: head.seq + 1,
            at: at.into(),
            previous: head.hash,
            body: canonical::settle(body),
            hash: head.hash,
        };
        entry.hash = entry.computed_hash();
        entry
    }

    /// The head that this entry makes.
    pub fn head(&self) -> Head {
        Head {
            seq: self.seq,
            hash: self.hash,
        }
    }

    /// The hash that the entry should have.
    pub fn computed_hash(&self) -> Hash {
        let mut text = String::new();
        self.write_content(&mut text);
        text.push('}');
        Hash::of(ENTRY_TAG, text.as_bytes())
    }

    /// The one line that an entry is written as: canonical JSON, without the end of the line.
    pub fn to_line(&self) -> String {
        let mut line = String::new();
        self.write_content(&mut line);
        line.push_str(",\"hash\":\"");
        line.push_str(&self.hash.to_string());
        line.push_str("\"}");
        line
    }

    /// Reads a line, and takes it only as [`Entry::to_line`] writes it.
    pub fn from_line(line: &str) -> Result<Self, LineFault> {
        let entry: Self =
            serde_json::from_str(line).map_err(|error| LineFault::Unreadable(error.to_string()))?;
        if entry.to_line() == line {
            Ok(entry)
        } else {
            Err(LineFault::NotCanonical)
        }
    }

    /// Everything but the hash, without the closing brace.
    fn write_content(&self, out: &mut String) {
        out.push_str("{\"seq\":");
        out.push_str(&self.seq.to_string());
        out.push_str(",\"at\":");
        canonical::text(&self.at, out);
        out.push_str(",\"previous\":\"");
        out.push_str(&self.previous.to_string());
        out.push_str("\",\"body\":");
        canonical::write(&self.body, out);
    }
}

/// Text that is not a head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a head is written NUMBER:HASH, for example 12:9f86d0…")]
pub struct HeadFormat;

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl FromStr for Head {
    type Err = HeadFormat;

    fn from_str(text: &str) -> Result<Self, HeadFormat> {
        let (seq, hash) = text.split_once(':').ok_or(HeadFormat)?;
        Ok(Self {
            seq: seq.parse().map_err(|_| HeadFormat)?,
            hash: hash.parse().map_err(|HashFormat| HeadFormat)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn an_entry_is_what_it_always_was() {
        // Changing what is hashed makes every record that exists unprovable: this test says so.
        let entry = Entry::next(
            &Head::genesis("demo"),
            "2026-01-02T03:04:05Z",
            json!({"b": 1, "a": [0.5]}),
        );
        assert_eq!(
            entry.to_line(),
            concat!(
                r#"{"seq":1,"at":"2026-01-02T03:04:05Z","#,
                r#""previous":"50c080514e7d0166c678187f3ddbf299035fdc95ce475c049bfa4c1932c48135","#,
                r#""body":{"a":["0.5"],"b":1},"#,
                r#""hash":"37946faec5974e219a4d6025c4953a4b05f42987c2f165de236b70ed37cc533d"}"#
            )
        );
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let entry = Entry::next(
            &Head::genesis("demo"),
            "now",
            json!({"x": ["é", null, -3, {"y": 1.5}]}),
        );
        assert_eq!(Entry::from_line(&entry.to_line()).unwrap(), entry);
        assert_eq!(
            serde_json::from_value::<Entry>(serde_json::to_value(&entry).unwrap()).unwrap(),
            entry
        );
    }

    #[rstest]
    #[case::a_space(|l: String| l.replacen(':', ": ", 1))]
    #[case::another_order(|l: String| l.replacen(r#""a":1,"b":2"#, r#""b":2,"a":1"#, 1))]
    #[case::said_twice(|l: String| l.replacen(r#""a":1"#, r#""a":2,"a":1"#, 1))]
    #[case::escaped(|l: String| l.replacen("now", "n\\u006fw", 1))]
    #[case::an_end_of_line(|l: String| l + "\n")]
    fn the_same_entry_written_otherwise_is_no_line(#[case] edit: fn(String) -> String) {
        let line = Entry::next(&Head::genesis("demo"), "now", json!({"a": 1, "b": 2})).to_line();
        let edited = edit(line.clone());
        assert_ne!(edited, line);
        assert_eq!(Entry::from_line(&edited), Err(LineFault::NotCanonical));
    }

    #[rstest]
    #[case("")]
    #[case("12")]
    #[case("x:00")]
    #[case("1:00")]
    #[case("1:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855")]
    fn what_is_no_head(#[case] text: &str) {
        assert_eq!(text.parse::<Head>(), Err(HeadFormat));
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = Entry::next(&Head::genesis("demo"), "now", json!(null)).head();
        assert_eq!(head.to_string().parse(), Ok(head));
        assert_ne!(Head::genesis("demo"), Head::genesis("other"));
    }
}
