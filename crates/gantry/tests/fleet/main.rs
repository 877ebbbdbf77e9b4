//! `gantry fleet serve` as a process, on a real PostgreSQL: what it leaves behind when it is killed, and what it says.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails should end its test"
)]

#[path = "../../../kit/tests/support/collector.rs"]
mod collector;
mod killed;
mod private;
mod process;
mod secrets;
#[allow(dead_code, reason = "the tests of the library use the rest of it")]
#[path = "../../../fleet/tests/server/support/mod.rs"]
mod support;
mod verify;
