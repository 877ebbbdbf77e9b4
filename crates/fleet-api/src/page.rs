//! Lists and problems: the shapes that every part of the API shares.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The part of a list that was asked for. The list itself stands beside it under its own name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// How many there are in all that match the filters.
    pub total: u64,
    pub limit: u32,
    pub offset: u64,
    pub has_more: bool,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
}

impl Page {
    pub fn new(total: u64, limit: u32, offset: u64, shown: usize) -> Self {
        let end = offset + shown as u64;
        let has_more = shown > 0 && end < total;
        Self {
            total,
            limit,
            offset,
            has_more,
            next_offset: has_more.then_some(end),
        }
    }
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    pub error: ProblemBody,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProblemBody {
    /// One word for programs, such as `VALIDATION_ERROR`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    pub details: Vec<Detail>,
    /// The W3C trace id of the request, the same as in the server's log.
    pub trace_id: String,
    pub timestamp: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detail {
    /// The field that it is about; empty when it is about no single one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
    pub message: String,
}

/// What `/health` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerHealth {
    /// `Healthy`, or `Unhealthy` when the database does not answer.
    pub status: String,
    pub version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_has_no_next() {
        assert_eq!(Page::new(25, 20, 0, 20).next_offset, Some(20));
        assert!(!Page::new(25, 20, 20, 5).has_more);
        assert!(!Page::new(25, 20, 100, 0).has_more);
    }
}
