//! `gantry model-proxy`: a small reverse proxy in front of Ollama that counts.
//!
//! Ollama has no metrics. This process stands before it, in the same pod, and says how many requests are being worked
//! on, how many wait, how long they take and how many tokens they cost. Bodies pass through as they come, piece by
//! piece; what is read from them is read in passing, with a fixed amount of memory per request.
//!
//! It knows HTTP and Ollama's routes. It must not know Kubernetes.

mod admin;
mod body;
mod exchange;
mod forward;
mod headers;
mod lane;
mod metrics;
mod peek;
mod rate;
mod route;
mod scan;
mod server;
mod usage;

use std::{net::SocketAddr, time::Duration};

pub use server::{Error, Server};

/// How the proxy is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where clients come in.
    pub listen: SocketAddr,
    /// Where metrics and health are served.
    pub metrics: SocketAddr,
    /// Ollama: `http://host:port`.
    pub upstream: String,
    /// The models that are counted by name; requests for any other are counted as `other`.
    pub models: Vec<String>,
    /// Requests for one model that Ollama works on at the same time (its `OLLAMA_NUM_PARALLEL`).
    pub parallel: usize,
    /// Hold the requests beyond `parallel` here, at most this many for one model. Without it they are passed on, wait in
    /// Ollama's own queue, and are only counted as waiting.
    pub queue: Option<usize>,
    /// After the request to stop, go on accepting for this long: others need a moment to hear of it.
    pub linger: Duration,
    /// After that, streams may go on for this long.
    pub grace: Duration,
}
