//! Controllers of `penin.ai/v1alpha1`.

pub mod change;
pub mod cluster;
pub mod keeper;
