//! `gantry-simnode nodes`: simulated nodes. Registers them, keeps their leases, and plays the kubelet for their pods.

mod events;
mod ipam;
mod keeper;
mod objects;
mod runner;
mod write;

use std::{collections::HashMap, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

pub use self::objects::SIMULATED;
use self::{
    ipam::{Cidr, Ipam},
    keeper::Keeper,
    objects::NodeShape,
    runner::Runner,
};
use crate::{
    pods::behaviour::Defaults,
    text::{parse_duration, parse_pair, parse_taint},
};

/// Register simulated nodes and play the kubelet for their pods.
///
/// Pods become Ready after a delay, Jobs complete, deleted pods go away. Annotations on the POD (so: in the pod template)
/// choose what else happens; they may be changed on a live pod.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = ANNOTATIONS)]
pub struct Args {
    #[command(flatten)]
    client: crate::client::ClientArgs,
    /// How many nodes.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Names are this and a number from 0.
    #[arg(long, default_value = "sim-")]
    name_prefix: String,
    /// From bound to Ready, for pods without the annotation.
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    ready_delay: Duration,
    /// From deletion to gone, unless the grace period is shorter.
    #[arg(long, default_value = "200ms", value_parser = parse_duration)]
    terminate_for: Duration,
    /// First back-off of crashing containers and failing pulls; it doubles up to --crash-backoff-max.
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    crash_backoff: Duration,
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    crash_backoff_max: Duration,
    /// Addresses of the pods, and (from its end) of the nodes.
    #[arg(long, default_value = "10.233.0.0/16")]
    pod_cidr: Cidr,
    /// CPUs of each node.
    #[arg(long, default_value = "256")]
    cpu: String,
    /// Memory of each node.
    #[arg(long, default_value = "1Ti")]
    memory: String,
    /// How many pods fit on each node.
    #[arg(long, default_value_t = 1000)]
    pods: u32,
    /// Further label of each node, KEY=VALUE; repeatable.
    #[arg(long, value_parser = parse_pair, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
    /// Taint of each node; repeatable.
    #[arg(long, value_parser = parse_taint, value_name = "KEY[=VALUE]:EFFECT")]
    taint: Vec<crate::text::Taint>,
    /// Write the kubelet's warnings about failing pods as Events.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    events: bool,
    /// How many writes may be under way at once.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
}

const ANNOTATIONS: &str = "\
Pod annotations, all under simnode.gantry.dev/:
  ready-delay: 2s           from bound to Ready
  init-run-for: 100ms       how long each init container runs
  run-for: 1s               how long a pod with restartPolicy Never or OnFailure runs
  terminate-for: 200ms      from deletion to gone
  fail: crash-loop          rising restarts, CrashLoopBackOff, exit code 1
        oom                 the same with OOMKilled, exit code 137
        init-crash-loop     the same in an init container
        image-pull          ErrImagePull and ImagePullBackOff
        never-ready         Running, never Ready
  fail-container: NAME      which container fails; default: the first
  fail-message: TEXT        its termination message, or the reason of the failed pull
  crash-backoff: 1s         first back-off; doubles up to crash-backoff-max
  crash-after: 0s           how long a failing container is seen running before it fails
  cpu: 250m, memory: 128Mi  usage per container, for `gantry-simnode metrics`";

pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.count > 0 && args.count < args.pod_cidr.size() / 2,
        "--count does not fit --pod-cidr"
    );
    let (client, version) = args.client.connect_and_wait().await?;
    let shape = NodeShape {
        cpu: args.cpu,
        memory: args.memory,
        pods: args.pods,
        version,
        labels: args.label,
        taints: args.taint,
    };
    let nodes: HashMap<String, Ipv4Addr> = (0..args.count)
        .map(|i| (format!("{}{i}", args.name_prefix), args.pod_cidr.nth_last(i)))
        .collect();
    let nodes = Arc::new(nodes);
    let defaults = Defaults {
        ready_delay: args.ready_delay,
        terminate_for: args.terminate_for,
        crash_backoff: args.crash_backoff,
        crash_backoff_max: args.crash_backoff_max,
    };
    let keeper = Keeper::new(client.clone(), nodes.clone(), shape);
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = keeper.register() => (),
    }
    let ipam = Ipam::new(args.pod_cidr, args.count);
    let runner = Runner::new(
        client,
        nodes,
        defaults,
        ipam,
        args.concurrency.max(1),
        args.events,
    );
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = keeper.keep() => anyhow::bail!("the leases are no longer kept"),
        () = runner.run() => anyhow::bail!("the watch of pods ended"),
    }
}
