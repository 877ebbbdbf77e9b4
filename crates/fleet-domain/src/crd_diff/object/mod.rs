//! What an API server does with one object: drop what the schema does not name, fill in defaults, validate. In that
//! order, as the server does it, so that stored objects can be put to a schema which no server has yet.
//!
//! CEL rules are evaluated as far as they are understood; [`Checker`] says which were not.

pub(super) mod cel;
mod defaults;
pub(super) mod format;
mod place;
mod prune;
mod validate;

use serde_json::Value;

pub use cel::Undecided;
pub use defaults::{fill_in, filled_in};
pub use prune::{Pruned, keeps_all, prune};
pub use validate::{Checker, Violation};

use super::schema::Schema;

/// What would become of one object.
#[derive(Debug, Default)]
pub struct Outcome {
    pub pruned: Vec<Pruned>,
    pub violations: Vec<Violation>,
}

impl Outcome {
    pub fn is_fine(&self) -> bool {
        self.pruned.is_empty() && self.violations.is_empty()
    }
}

/// Puts a whole object to a schema, as a server would on its next write.
pub fn put_to(checker: &mut Checker, schema: &Schema, object: &Value) -> Outcome {
    let mut object = object.clone();
    let pruned = prune(schema, &mut object, true);
    fill_in(schema, &mut object);
    Outcome {
        pruned,
        violations: checker.check(schema, &object),
    }
}
