//! `gantry-simnode dns`: a small authoritative resolver for the cluster domain, fed by Services and Endpoints.

mod answer;
mod server;
#[cfg(test)]
mod tests;
mod zone;

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use self::{
    answer::Authority,
    server::Resolver,
    zone::{Key, ServiceEntry, Zone, endpoints_of},
};

/// Serve the cluster's DNS names.
///
/// Answers A, SRV, PTR and CNAME for Services (cluster IP, headless, ExternalName) and for the pods of headless
/// Services, with negative answers for every other name of the domain. Names outside the domain go to --upstream, or are
/// refused.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(flatten)]
    client: crate::client::ClientArgs,
    /// Address to serve on, UDP and TCP; repeatable.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:53")]
    listen: Vec<SocketAddr>,
    /// The cluster's domain.
    #[arg(long, default_value = "cluster.local")]
    domain: String,
    /// Server for names outside the domain.
    #[arg(long, value_name = "IP:PORT")]
    upstream: Option<SocketAddr>,
}

type Shared = Arc<RwLock<Zone>>;

pub async fn run(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    let zone = Shared::default();
    let resolver = Arc::new(Resolver {
        authority: Authority::new(&args.domain, args.upstream.is_some()).context("bad --domain")?,
        zone: zone.clone(),
        upstream: args.upstream,
        forwards: Semaphore::new(256),
    });
    let mut servers = tokio::task::JoinSet::new();
    for address in &args.listen {
        let busy = || format!("failed to listen on {address}");
        servers.spawn(server::serve_udp(
            resolver.clone(),
            UdpSocket::bind(address).await.with_context(busy)?,
        ));
        servers.spawn(server::serve_tcp(
            resolver.clone(),
            TcpListener::bind(address).await.with_context(busy)?,
        ));
    }
    let client = args.client.connect().await?;
    tracing::info!(listen = ?args.listen, domain = args.domain, "serving dns");
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = feed(client, zone) => anyhow::bail!("a watch ended"),
        Some(ended) = servers.join_next() => ended?,
    }
}

/// Keeps the zone up to date. Both lists must be complete before the first answer; after that, a broken watch leaves
/// the last known answers in place.
async fn feed(client: Client, zone: Shared) {
    let services: Api<Service> = Api::all(client.clone());
    let endpoints: Api<Endpoints> = Api::all(client);
    let mut services = watcher(services, watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut endpoints = watcher(endpoints, watcher::Config::default())
        .default_backoff()
        .boxed();
    let (mut services_seen, mut endpoints_seen) = (Listing::default(), Listing::default());
    loop {
        tokio::select! {
            Some(event) = services.next() => match event {
                Ok(event) => apply_service(&mut lock(&zone), &mut services_seen, event),
                Err(error) => tracing::warn!(%error, "watch of services"),
            },
            Some(event) = endpoints.next() => match event {
                Ok(event) => apply_endpoints(&mut lock(&zone), &mut endpoints_seen, event),
                Err(error) => tracing::warn!(%error, "watch of endpoints"),
            },
            else => return,
        }
        if services_seen.complete && endpoints_seen.complete {
            let mut zone = lock(&zone);
            if !zone.ready {
                zone.ready = true;
                tracing::info!(services = zone.len(), "dns ready");
            }
        }
    }
}

fn lock(zone: &Shared) -> std::sync::RwLockWriteGuard<'_, Zone> {
    zone.write().unwrap_or_else(PoisonError::into_inner)
}

/// What the list in progress has named so far, and whether one was ever complete.
#[derive(Debug, Default)]
struct Listing {
    seen: HashSet<Key>,
    complete: bool,
}

fn apply_service(zone: &mut Zone, listing: &mut Listing, event: watcher::Event<Service>) {
    match event {
        watcher::Event::Init => listing.seen.clear(),
        watcher::Event::InitApply(service) => {
            let key = key_of(&service);
            listing.seen.insert(key.clone());
            zone.set_service(key, ServiceEntry::from(&service));
        }
        watcher::Event::InitDone => {
            zone.retain_services(&std::mem::take(&mut listing.seen));
            listing.complete = true;
        }
        watcher::Event::Apply(service) => zone.set_service(key_of(&service), ServiceEntry::from(&service)),
        watcher::Event::Delete(service) => zone.remove_service(&key_of(&service)),
    }
}

fn apply_endpoints(zone: &mut Zone, listing: &mut Listing, event: watcher::Event<Endpoints>) {
    match event {
        watcher::Event::Init => listing.seen.clear(),
        watcher::Event::InitApply(object) => {
            let key = key_of(&object);
            listing.seen.insert(key.clone());
            zone.set_endpoints(key, endpoints_of(&object));
        }
        watcher::Event::InitDone => {
            zone.retain_endpoints(&std::mem::take(&mut listing.seen));
            listing.complete = true;
        }
        watcher::Event::Apply(object) => zone.set_endpoints(key_of(&object), endpoints_of(&object)),
        watcher::Event::Delete(object) => zone.set_endpoints(key_of(&object), Vec::new()),
    }
}

fn key_of(object: &impl kube::ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}
