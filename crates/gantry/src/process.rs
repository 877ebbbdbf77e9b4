//! What every long-running command needs: how it logs, and when it stops.

use clap::ValueEnum;
use gantry_kit::telemetry::Format;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Clone, Copy, ValueEnum)]
pub enum LogFormat {
    /// text on a terminal, json elsewhere
    Auto,
    Json,
    Text,
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Auto => Self::Auto,
            LogFormat::Json => Self::Json,
            LogFormat::Text => Self::Text,
        }
    }
}

/// Resolves when the process is asked to stop.
pub async fn stop_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("asked to stop");
}
