//! Is a new set of custom resource definitions safe for the objects and clients of the old one?
//!
//! [`Crd::parse`] reads definitions, [`compare`] answers for the upgrade, the rollback or both, [`Prover`] puts existing
//! objects to the new schemas, [`render`] puts it all into words. Schemas are brought into one form first
//! ([`schema`]), then walked side by side once. Hostile input is bounded everywhere: depth, findings, patterns (never run
//! by a backtracking engine), combinations.

mod candidates;
mod choices;
mod crd;
mod definition;
mod enumeration;
mod few;
mod filled;
mod finding;
mod kind;
mod length;
mod limits;
mod meaning;
mod normalise;
mod number;
pub mod object;
mod parse;
mod pattern;
mod presence;
mod print;
mod proof;
mod reads;
pub mod render;
mod report;
mod restated;
mod rules;
mod said;
mod scalars;
pub mod schema;
mod server;
mod sink;
mod types;
mod waiver;
mod walk;
mod witness;
mod words;

pub use crd::{Conversion, Crd, Scale, Unreadable, Version, is_definition};
pub use finding::{Class, Direction, Finding, Hurt, Impact};
pub use kind::{Kind, Meaning};
pub use parse::parse as parse_schema;
pub use proof::{Harm, HurtObject, Proof, Prover};
pub use report::{Options, PointOfNoReturn, Report, Verdict, compare};
pub use server::{NotAVersion, Ratcheting, ServerVersion};
pub use waiver::{Waiver, Waivers};
