//! The controller of `ollama.ayaka.io/v1`.

pub mod model;
