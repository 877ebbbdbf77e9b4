//! `gantry penin ledger keep`: a copy of a cluster's ledger on its volume.
//!
//! It looks at the ConfigMaps whenever one changes, proves the chain and the copy, and appends what is missing. Whatever
//! goes wrong with either ends the process, with its last words in the status of the pod, where the operator finds them;
//! the kubelet starts it again, later and later. So there is one way in, whether after a fault or a crash: read both, and
//! go on where the copy ends.

pub mod copy;
pub mod volume;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use futures::StreamExt as _;
use gantry_kit::{
    ObjectKey,
    admin::{self, Gate, Readiness},
    metrics::Metrics,
    watch,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};

use self::{copy::Disagreement, volume::Volume};
use super::change::{LEDGER_LABEL, Segment, ledger_label, ledger_name};

/// Codes that the process ends with, by which the operator tells one cause from another.
pub const DISAGREES: u8 = 3;
pub const NOT_WRITABLE: u8 = 4;

/// Also without news both are looked at: somebody may have edited the copy.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// After a question that the server did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(5);

pub struct Options {
    pub cluster: ObjectKey,
    pub folder: PathBuf,
    /// Where `/healthz` and `/readyz` are served.
    pub admin: SocketAddr,
}

/// Why the process ends, in one line: it becomes the message of a condition.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    #[error("{what}; nothing is copied until that is settled: {cure}")]
    Disagrees { what: Disagreement, cure: String },
    #[error("cannot write to {}: {words}", folder.display())]
    NotWritable { folder: PathBuf, words: String },
    #[error("cannot serve on {address}: {error}")]
    Admin {
        address: SocketAddr,
        error: std::io::Error,
    },
}

impl Stop {
    pub fn code(&self) -> u8 {
        match self {
            Self::Disagrees { .. } => DISAGREES,
            Self::NotWritable { .. } => NOT_WRITABLE,
            Self::Admin { .. } => 1,
        }
    }
}

/// Runs until something is wrong.
pub async fn keep(client: Client, options: Options) -> Result<(), Stop> {
    let readiness = Readiness::default();
    let gate = readiness.gate("the copy of the ledger");
    let served = async {
        let ended = admin::serve(options.admin, readiness, Metrics::default()).await;
        ended.map_err(|error| Stop::Admin {
            address: options.admin,
            error,
        })
    };
    tokio::select! {
        ended = served => ended,
        ended = follow(client, &options, &gate) => ended,
    }
}

async fn follow(client: Client, options: &Options, gate: &Gate) -> Result<(), Stop> {
    let Options { cluster, folder, .. } = options;
    let not_writable = |error: std::io::Error| Stop::NotWritable {
        folder: folder.clone(),
        words: volume::words(&error),
    };
    let mut volume = Volume::open(folder).map_err(not_writable)?;
    let api = Api::<ConfigMap>::namespaced(client, &cluster.namespace);
    let selector = format!("{LEDGER_LABEL}={}", ledger_label(&cluster.name));
    let config = watcher::Config::default().labels(&selector);
    let mut events = pin!(watcher(api.clone(), config).backoff(watch::retries()));
    let name = ledger_name(cluster);
    loop {
        // The watch tells when; what is there is asked for, so that it is never a part of it.
        let wait = match api.list(&ListParams::default().labels(&selector)).await {
            Ok(found) => {
                let mut segments: Vec<Segment> = found.items.iter().map(Segment::new).collect();
                segments.sort_by_key(|segment| segment.number);
                let copied = tokio::task::block_in_place(|| step(&name, folder, &mut volume, &segments))?;
                if copied > 0 {
                    tracing::info!(copied, folder = %folder.display(), "copied entries");
                }
                gate.open();
                LOOK_AGAIN
            }
            Err(error) => {
                tracing::warn!(%error, "the ledger cannot be read; trying again");
                gate.close(format!("the server does not tell the ledger: {error}"));
                ASK_AGAIN
            }
        };
        // Errors of the watch are those of the list, too; it goes on by itself.
        let news = async {
            while let Some(event) = events.next().await {
                use watcher::Event::{Apply, Delete, InitDone};
                if matches!(event, Ok(Apply(_) | Delete(_) | InitDone)) {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(wait, news).await;
    }
}

/// Brings the copy up to the chain, and tells how many lines were begun.
fn step(name: &str, folder: &Path, volume: &mut Volume, segments: &[Segment]) -> Result<usize, Stop> {
    let not_writable = |error: std::io::Error| Stop::NotWritable {
        folder: folder.to_owned(),
        words: volume::words(&error),
    };
    let copy = volume.read().map_err(not_writable)?;
    let due = copy::due(name, &copy, segments).map_err(|what| Stop::Disagrees {
        cure: what.cure(&folder.display().to_string()),
        what,
    })?;
    if !due.is_empty() {
        volume.append(&due).map_err(not_writable)?;
    }
    Ok(copy::ends(&due.entries))
}
