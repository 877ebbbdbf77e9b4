//! The server on a real PostgreSQL, asked over HTTP. One program for all of it: linking a server takes longer than most of
//! these tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails should end its test"
)]

mod access;
mod accesses;
mod audit;
mod chaos;
mod clusters;
mod crds;
mod database;
mod decisions;
mod deployer;
mod discovery;
mod erasure;
mod guide;
mod headers;
mod limits;
mod log;
mod metrics;
mod operators;
mod people;
mod registry;
mod requests;
mod retention;
mod spellings;
mod support;
mod tls;
mod unfolding;
mod usage;
mod vault;
