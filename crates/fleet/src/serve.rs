//! The server itself: puts everything together, listens, and ends in order.

mod listen;
mod tls;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use gantry_kit::{
    admin::{self, Readiness},
    metrics::Metrics as Registry,
};
use gantry_ledger::Signer;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use crate::{
    Error,
    api::{self, App},
    infrastructure::{
        charts::Charts,
        database::{self, DatabaseError},
        http, memory,
        passwords::Passwords,
        tokens::{FileIssuer, TokenError, Verifier},
    },
    metrics::Metrics,
    orchestrator::{Fleet, Marks, reach::Connections, tasks},
    settings::Settings,
};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("no key is given that tokens are checked with")]
    NoTokenKeys,
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    #[error(
        "{0} can be reached by others: serve with a certificate, or listen on 127.0.0.1, or say that plain HTTP is meant (--insecure-http)"
    )]
    Plain(SocketAddr),
    #[error("failed to listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("the audit key is not an Ed25519 private key in PEM")]
    AuditKey,
    #[error(transparent)]
    Start(#[from] Error),
    #[error("failed to build the HTTP client")]
    Http(#[source] reqwest::Error),
}

/// A server that runs.
pub struct Server {
    pub address: SocketAddr,
    pub admin_address: Option<SocketAddr>,
    pub fleet: Arc<Fleet>,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Server {
    pub async fn start(settings: Settings) -> Result<Self, ServeError> {
        // Two crypto providers in one process would panic at the first handshake; name ours before anything connects.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        if settings.tls.is_none() && !settings.insecure_http && !settings.address.ip().is_loopback() {
            return Err(ServeError::Plain(settings.address));
        }
        let readiness = Readiness::default();
        let gate = readiness.gate("database and API");
        let registry = Registry::default();
        let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
        let admin_address = match settings.admin_address {
            Some(address) => Some(open_admin(address, readiness, registry.clone(), &stop, &tracker).await?),
            None => None,
        };
        let tls = match &settings.tls {
            Some(files) => Some(tls::Reloading::load(files.clone())?),
            None => None,
        };
        let fleet = Arc::new(fleet(&settings, &registry).await?);
        let listener = tokio::net::TcpListener::bind(settings.address)
            .await
            .map_err(|error| ServeError::Listen(settings.address, error))?;
        let address = listener
            .local_addr()
            .map_err(|error| ServeError::Listen(settings.address, error))?;
        let proxies: Arc<[_]> = settings.trusted_proxies.into();
        let router = api::router(App::new(fleet.clone(), tls.is_some(), proxies.clone()));
        tasks::start(&fleet, settings.key_file, &stop, &tracker);
        if let Some(tls) = &tls {
            let (tls, stop) = (tls.clone(), stop.clone());
            tracker.spawn(async move {
                stop.run_until_cancelled(tls.watch()).await;
            });
        }
        let secure = tls.is_some();
        let bounds = listen::Bounds::default();
        tracker.spawn(listen::serve(
            listener,
            tls,
            router,
            bounds,
            proxies,
            stop.clone(),
        ));
        tracker.close();
        // From now on this replica answers, also while its database is away: then it says so.
        gate.open();
        tracing::info!(%address, tls = secure, replica = %fleet.holder, "the fleet API is served");
        Ok(Self {
            address,
            admin_address,
            fleet,
            stop,
            tracker,
        })
    }

    /// Ends: no new requests, those at work are finished, then the tasks and the pool.
    pub async fn stop(self) {
        self.stop.cancel();
        let patience = Duration::from_secs(25);
        if tokio::time::timeout(patience, self.tracker.wait()).await.is_err() {
            tracing::warn!("some work did not end in time and is given up");
        }
        let _ = tokio::time::timeout(Duration::from_secs(5), self.fleet.pool.close()).await;
    }
}

async fn fleet(settings: &Settings, registry: &Registry) -> Result<Fleet, ServeError> {
    if settings.tokens.is_empty() {
        return Err(ServeError::NoTokenKeys);
    }
    let http = http::client().map_err(ServeError::Http)?;
    let (issuer, audience) = (settings.token_issuer.as_str(), settings.token_audience.as_str());
    let verifier = Verifier::load(settings.tokens.clone(), issuer, audience, http.clone()).await?;
    let signer = match &settings.audit_key {
        Some(pem) => Some(Signer::from_pem(pem).map_err(|_| ServeError::AuditKey)?),
        None => None,
    };
    let options = database::options(&settings.database_url)?;
    let pool = database::open(options, settings.database_connections, database::PATIENCE).await?;
    Ok(Fleet {
        pool,
        keys: settings.keys.clone(),
        verifier,
        issuer: settings
            .login_secret
            .clone()
            .map(|file| FileIssuer::open(file, issuer, audience))
            .transpose()?,
        passwords: Passwords::new()?,
        charts: Charts::new(http, settings.helm.clone(), memory::limit()),
        signer,
        clock: settings.clock.clone(),
        metrics: Metrics::new(registry),
        limits: settings.limits,
        rates: settings.rates,
        allow: settings.allow,
        token_lifetime: settings.token_lifetime,
        health_interval: settings.health_interval,
        refresh_interval: settings.refresh_interval,
        prove_within: settings.prove_within,
        retention: settings.retention,
        deployer_role: settings.deployer_role.clone(),
        holder: Uuid::new_v4(),
        connections: Connections::new(settings.cluster_connections as usize),
        marks: Marks::default(),
        started: Instant::now(),
        last_look: Mutex::default(),
    })
}

async fn open_admin(
    address: SocketAddr,
    readiness: Readiness,
    registry: Registry,
    stop: &CancellationToken,
    tracker: &TaskTracker,
) -> Result<SocketAddr, ServeError> {
    // Bound here, so that a taken port is an error at start.
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(|error| ServeError::Listen(address, error))?;
    let address = listener
        .local_addr()
        .map_err(|error| ServeError::Listen(address, error))?;
    let stop = stop.clone();
    tracker.spawn(async move {
        stop.run_until_cancelled(admin::serve_on(listener, readiness, registry))
            .await;
    });
    Ok(address)
}

/// Serves until told to stop.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
    let server = Server::start(settings).await?;
    stop.await;
    server.stop().await;
    Ok(())
}
