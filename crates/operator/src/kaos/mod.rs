//! Controllers of `kaos.tools/v1alpha1`.

pub mod mcpserver;
