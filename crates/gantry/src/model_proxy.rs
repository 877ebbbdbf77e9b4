//! `gantry model-proxy`.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use gantry_kit::telemetry;
use gantry_model_proxy::{Options, Server};

use crate::process::{LogFormat, stop_signal};

#[derive(Args)]
pub struct Arguments {
    /// Where clients come in.
    #[arg(
        long,
        env = "GANTRY_PROXY_LISTEN",
        default_value = "0.0.0.0:11434",
        value_name = "IP:PORT"
    )]
    listen: SocketAddr,
    /// Where Ollama is.
    #[arg(
        long,
        env = "GANTRY_PROXY_UPSTREAM",
        default_value = "http://127.0.0.1:11435",
        value_name = "URL"
    )]
    upstream: String,
    /// A model that is counted by its name; repeat for more. Requests for any other are counted as `other`.
    #[arg(
        long = "model",
        env = "GANTRY_PROXY_MODELS",
        value_delimiter = ',',
        value_name = "NAME",
        required = true
    )]
    models: Vec<String>,
    /// Where `/metrics`, `/healthz` and `/idle` are served.
    #[arg(
        long,
        env = "GANTRY_PROXY_METRICS",
        default_value = "0.0.0.0:9114",
        value_name = "IP:PORT"
    )]
    metrics: SocketAddr,
    /// Requests for one model that Ollama works on at the same time; those beyond count as waiting.
    #[arg(long, env = "OLLAMA_NUM_PARALLEL", default_value = "1", value_parser = parallel, value_name = "COUNT")]
    parallel: u16,
    /// Hold waiting requests here instead of in Ollama, at most this many for one model; more are answered 503.
    #[arg(long, env = "GANTRY_PROXY_QUEUE", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(..=100_000))]
    queue: Option<u32>,
    /// How long to go on accepting after a request to stop, in seconds: others need a moment to hear of it.
    #[arg(
        long,
        env = "GANTRY_PROXY_LINGER",
        default_value_t = 3,
        value_name = "SECONDS"
    )]
    linger: u16,
    /// How long streams may then go on, in seconds.
    #[arg(
        long,
        env = "GANTRY_PROXY_GRACE",
        default_value_t = 600,
        value_name = "SECONDS"
    )]
    grace: u16,
    /// trace, debug, info, warn or error; `RUST_LOG` wins.
    #[arg(long, env = "GANTRY_LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// Log lines for people or for machines.
    #[arg(long, env = "GANTRY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    log_format: LogFormat,
}

/// The variable is Ollama's own, to which empty and 0 mean that it chooses by itself; that is 1 in most cases.
fn parallel(text: &str) -> Result<u16, std::num::ParseIntError> {
    match text.trim() {
        "" => Ok(1),
        text => text.parse().map(|count: u16| count.max(1)),
    }
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let _telemetry = telemetry::init(
        "gantry-model-proxy",
        &arguments.log_level,
        arguments.log_format.into(),
        None,
    );
    let options = Options {
        listen: arguments.listen,
        metrics: arguments.metrics,
        upstream: arguments.upstream,
        models: arguments.models,
        parallel: usize::from(arguments.parallel),
        queue: arguments.queue.map(|count| count as usize),
        linger: Duration::from_secs(u64::from(arguments.linger)),
        grace: Duration::from_secs(u64::from(arguments.grace)),
    };
    let server = Server::bind(&options).await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = %options.listen,
        metrics = %options.metrics,
        upstream = options.upstream,
        models = ?options.models,
        parallel = options.parallel,
        queue = ?options.queue,
        "serving"
    );
    server.run(stop_signal()).await;
    tracing::info!("stopped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    #[rstest]
    #[case("4", Some(4))]
    #[case("0", Some(1))]
    #[case(" ", Some(1))]
    #[case("many", None)]
    fn ollamas_variable_is_read_as_ollama_does(#[case] text: &str, #[case] expected: Option<u16>) {
        assert_eq!(super::parallel(text).ok(), expected);
    }
}
