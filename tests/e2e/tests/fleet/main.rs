//! The fleet server against real API servers, real Helm and a real registry.

mod charts;
mod clusters;
mod door;
mod identities;
mod objects;
mod registry;
