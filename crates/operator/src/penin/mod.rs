//! Controllers of `penin.ai/v1alpha1`.

pub mod cluster;
