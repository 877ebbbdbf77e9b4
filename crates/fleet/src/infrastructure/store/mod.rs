//! SQL, one file per noun. Rows in and out; no decisions.

pub mod accesses;
pub mod audit;
pub mod clusters;
pub mod crd_schemas;
pub mod crds;
pub mod deployers;
pub mod idempotency;
pub mod operators;
pub mod people;
pub mod rates;
pub mod secrets;
pub mod waivers;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// Times cross into SQL and back in this shape.
pub type Time = jiff_sqlx::Timestamp;

pub fn time(at: Timestamp) -> Time {
    // What PostgreSQL keeps: a comparison with what was read back must not fail for nanoseconds.
    at.round(jiff::Unit::Microsecond).unwrap_or(at).into()
}

pub fn labels(value: &Value) -> BTreeMap<String, String> {
    value
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// How long what is claimed belongs to its holder, and how far ahead a next time can be at most.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub lease: SignedDuration,
    pub farthest: SignedDuration,
}

/// Which part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub limit: u32,
    pub offset: u64,
}

impl Window {
    pub const ALL: Self = Self {
        limit: u32::MAX,
        offset: 0,
    };

    pub fn limit(self) -> i64 {
        i64::from(self.limit)
    }

    pub fn offset(self) -> i64 {
        i64::try_from(self.offset).unwrap_or(i64::MAX)
    }
}
