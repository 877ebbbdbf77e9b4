//! What the fleet decides, without touching anything: no client, no files, no clock. Those who do IO hand in what they
//! read and act on what they get back.

pub mod access;
pub mod cluster;
pub mod crd_diff;
pub mod crd_digest;
pub mod crd_policy;
pub mod crd_use;
pub mod fields;
mod hex;
pub mod kubeconfig;
pub mod lockout;
pub mod operator;
pub mod origin;
pub mod rate;
pub mod steady;
pub mod version;

pub use hex::hex;
