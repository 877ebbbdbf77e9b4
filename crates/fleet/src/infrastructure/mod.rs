//! What talks to the world: PostgreSQL, clusters, chart repositories, keys. Decides nothing.

pub mod charts;
pub mod database;
pub mod http;
pub mod keys;
pub mod kubernetes;
pub mod lean;
pub mod memory;
pub mod passwords;
pub mod private_postgres;
pub mod store;
pub mod tokens;
pub mod trace;
pub mod vault;
pub mod yaml;
