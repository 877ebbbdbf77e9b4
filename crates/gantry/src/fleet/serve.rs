//! `gantry fleet serve`.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use gantry_fleet::{
    infrastructure::{
        http,
        keys::LocalKeys,
        tokens::{self, KeySource},
    },
    settings::{Limits, PROVE_WITHIN, Rates, Retention, Settings, TlsFiles},
};
use gantry_fleet_domain::{kubeconfig::Allow, origin::Network};
use gantry_kit::telemetry;
use gantry_ledger::Signer;
use jiff::SignedDuration;
use url::Url;

use super::{
    sealing::{self, Sealing},
    state::{Database, secret},
};
use crate::process::{LogFormat, stop_signal};

#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    database: Database,
    /// Connections to the database; all replicas together must stay below what it allows.
    #[arg(long, env = "GANTRY_FLEET_DATABASE_CONNECTIONS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..50))]
    database_connections: u32,
    /// Connections to all clusters together.
    #[arg(long, env = "GANTRY_FLEET_CLUSTER_CONNECTIONS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(2..100))]
    cluster_connections: u32,
    /// Where the API is served [default: 0.0.0.0:8443 with a certificate, 127.0.0.1:8080 without].
    #[arg(long, env = "GANTRY_FLEET_ADDRESS")]
    address: Option<SocketAddr>,
    /// Where `/healthz`, `/readyz` and `/metrics` are served.
    #[arg(long, env = "GANTRY_ADMIN_ADDRESS", default_value = "127.0.0.1:8081")]
    admin_address: SocketAddr,
    /// Certificate chain (PEM); read again when it changes.
    #[arg(
        long,
        env = "GANTRY_FLEET_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(
        long,
        env = "GANTRY_FLEET_TLS_KEY",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
    /// Clients must show a certificate of this authority (PEM).
    #[arg(
        long,
        env = "GANTRY_FLEET_TLS_CLIENT_CA",
        value_name = "FILE",
        requires = "tls_cert"
    )]
    tls_client_ca: Option<PathBuf>,
    /// Serve without TLS on an address that others can reach; for use behind something that adds TLS.
    #[arg(long, env = "GANTRY_FLEET_INSECURE_HTTP")]
    insecure_http: bool,
    /// Networks of the proxies before the server, such as 10.0.0.0/8; repeat for more. Logins are counted by the address that
    /// they add to X-Forwarded-For; without them by the address that connects.
    #[arg(
        long,
        env = "GANTRY_FLEET_TRUSTED_PROXIES",
        value_name = "CIDR",
        value_delimiter = ','
    )]
    trusted_proxy: Vec<Network>,
    /// Secret of at least 32 bytes that tokens are signed with (HS256); local users need it.
    #[arg(long, env = "GANTRY_FLEET_JWT_SECRET_FILE", value_name = "FILE")]
    jwt_secret_file: Option<PathBuf>,
    /// Public key (PEM) that tokens are checked with: RS256 or ES256; repeat for more.
    #[arg(
        long,
        env = "GANTRY_FLEET_JWT_PUBLIC_KEY_FILE",
        value_name = "FILE",
        value_delimiter = ','
    )]
    jwt_public_key_file: Vec<PathBuf>,
    /// Key set that tokens are checked with (RS256, ES256), fetched again regularly; repeat for more.
    #[arg(
        long,
        env = "GANTRY_FLEET_JWKS_URL",
        value_name = "URL",
        value_delimiter = ','
    )]
    jwks_url: Vec<Url>,
    /// What tokens must have as issuer.
    #[arg(long, env = "GANTRY_FLEET_JWT_ISSUER", default_value = tokens::ISSUER)]
    jwt_issuer: String,
    /// What tokens must have as audience.
    #[arg(long, env = "GANTRY_FLEET_JWT_AUDIENCE", default_value = tokens::AUDIENCE)]
    jwt_audience: String,
    /// How long tokens of local users are valid.
    #[arg(long, env = "GANTRY_FLEET_TOKEN_HOURS", default_value_t = 8, value_parser = clap::value_parser!(i64).range(1..=168))]
    token_hours: i64,
    #[command(flatten)]
    sealing: Sealing,
    /// Ed25519 key (PEM) that signs heads of the audit log.
    #[arg(long, env = "GANTRY_FLEET_AUDIT_KEY_FILE", value_name = "FILE")]
    audit_key_file: Option<PathBuf>,
    /// Days that the erasable part of audit entries is kept; for ever when absent.
    #[arg(long, env = "GANTRY_FLEET_AUDIT_DETAILS_DAYS", value_name = "DAYS", value_parser = clap::value_parser!(i64).range(1..=36500))]
    audit_details_days: Option<i64>,
    /// Hours that answers to requests with an Idempotency-Key are kept.
    #[arg(long, env = "GANTRY_FLEET_ANSWERS_HOURS", value_name = "HOURS", default_value_t = Retention::default().answers.as_hours(), value_parser = clap::value_parser!(i64).range(1..=720))]
    answers_hours: i64,
    /// Days that waivers are kept after their last one; 0 is for ever.
    #[arg(long, env = "GANTRY_FLEET_WAIVERS_DAYS", value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(i64).range(0..=36500))]
    waivers_days: i64,
    /// Days that schemas of old versions are kept which nothing needs any more; for ever when absent.
    #[arg(long, env = "GANTRY_FLEET_SCHEMAS_DAYS", value_name = "DAYS", value_parser = clap::value_parser!(i64).range(1..=36500))]
    schemas_days: Option<i64>,
    /// Days after which the names of people are erased who did nothing more and are no local users; never when absent.
    #[arg(long, env = "GANTRY_FLEET_PEOPLE_DAYS", value_name = "DAYS", value_parser = clap::value_parser!(i64).range(1..=36500))]
    people_days: Option<i64>,
    /// Cluster role that our deployer has in a cluster while a deployment runs.
    #[arg(long, env = "GANTRY_FLEET_DEPLOYER_ROLE", default_value = "cluster-admin")]
    deployer_role: String,
    /// Take kubeconfigs that skip the check of the server's certificate, or use plain http.
    #[arg(long, env = "GANTRY_FLEET_ALLOW_INSECURE_CLUSTERS")]
    allow_insecure_clusters: bool,
    #[arg(long, env = "GANTRY_FLEET_MAX_OPERATORS", default_value_t = Limits::default().operators)]
    max_operators: u32,
    #[arg(long, env = "GANTRY_FLEET_MAX_CLUSTERS", default_value_t = Limits::default().clusters)]
    max_clusters: u32,
    #[arg(long, env = "GANTRY_FLEET_MAX_CRDS_PER_OPERATOR", default_value_t = Limits::default().crds_per_operator)]
    max_crds_per_operator: u32,
    /// Reading requests per minute, user and operation.
    #[arg(long, env = "GANTRY_FLEET_RATE_READ", default_value_t = Rates::default().read)]
    rate_read: u32,
    /// Writing requests per minute, user and operation.
    #[arg(long, env = "GANTRY_FLEET_RATE_WRITE", default_value_t = Rates::default().write)]
    rate_write: u32,
    /// Registrations of clusters per minute and user.
    #[arg(long, env = "GANTRY_FLEET_RATE_REGISTER_CLUSTER", default_value_t = Rates::default().register_cluster)]
    rate_register_cluster: u32,
    /// Logins per minute and address.
    #[arg(long, env = "GANTRY_FLEET_RATE_LOGIN", default_value_t = Rates::default().login)]
    rate_login: u32,
    /// Seconds between two looks at a cluster.
    #[arg(long, env = "GANTRY_FLEET_HEALTH_SECONDS", default_value_t = 60, value_parser = clap::value_parser!(i64).range(1..=3600))]
    health_seconds: i64,
    /// Minutes between two visits of a chart repository.
    #[arg(long, env = "GANTRY_FLEET_REFRESH_MINUTES", default_value_t = 60, value_parser = clap::value_parser!(i64).range(1..=10080))]
    refresh_minutes: i64,
    /// Helm 3 or 4, for definitions in templates [default: helm of PATH].
    #[arg(long, env = "GANTRY_HELM", value_name = "FILE")]
    helm: Option<PathBuf>,
    /// trace, debug, info, warn or error; `RUST_LOG` wins.
    #[arg(long, env = "GANTRY_LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// Log lines for people or for machines.
    #[arg(long, env = "GANTRY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Auto)]
    log_format: LogFormat,
    /// OTLP collector (gRPC) for traces.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
}

/// Opened credentials are in memory: no crash may write that to a disk. The limit also holds for the programs that we start.
fn without_core_dumps() -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        setrlimit(Resource::Core, none).context("failed to switch core dumps off")?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable).context("failed to switch core dumps off")?;
    }
    Ok(())
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    without_core_dumps()?;
    let endpoint = arguments
        .otlp_endpoint
        .as_deref()
        .filter(|endpoint| !endpoint.is_empty());
    let _telemetry = telemetry::init(
        "gantry-fleet",
        &arguments.log_level,
        arguments.log_format.into(),
        endpoint,
    );
    let (keys, key_file) = sealing::keys(&arguments.sealing, &arguments.database)?;
    let (sources, login_secret) = token_keys(&arguments)?;
    let audit_key = audit_key(&arguments)?;
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => Some(TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authority: arguments.tls_client_ca.clone(),
        }),
        _ => None,
    };
    let usual = if tls.is_some() {
        ([0, 0, 0, 0], 8443)
    } else {
        ([127, 0, 0, 1], 8080)
    };
    let (database_url, mut postgres) = arguments.database.keep().await?;
    let settings = Settings {
        address: arguments.address.unwrap_or_else(|| usual.into()),
        admin_address: Some(arguments.admin_address),
        tls,
        insecure_http: arguments.insecure_http,
        trusted_proxies: arguments.trusted_proxy,
        database_url,
        database_connections: arguments.database_connections,
        cluster_connections: arguments.cluster_connections,
        keys,
        key_file,
        tokens: sources,
        token_issuer: arguments.jwt_issuer,
        token_audience: arguments.jwt_audience,
        login_secret,
        token_lifetime: SignedDuration::from_hours(arguments.token_hours),
        audit_key,
        allow: Allow {
            insecure: arguments.allow_insecure_clusters,
        },
        limits: Limits {
            operators: arguments.max_operators,
            clusters: arguments.max_clusters,
            crds_per_operator: arguments.max_crds_per_operator,
        },
        rates: Rates {
            read: arguments.rate_read,
            write: arguments.rate_write,
            register_cluster: arguments.rate_register_cluster,
            login: arguments.rate_login,
        },
        health_interval: SignedDuration::from_secs(arguments.health_seconds),
        refresh_interval: SignedDuration::from_mins(arguments.refresh_minutes),
        prove_within: PROVE_WITHIN,
        deployer_role: arguments.deployer_role.clone(),
        clock: std::sync::Arc::new(jiff::Timestamp::now),
        retention: Retention {
            audit_details: arguments.audit_details_days.map(days),
            answers: SignedDuration::from_hours(arguments.answers_hours),
            waivers: (arguments.waivers_days > 0).then(|| days(arguments.waivers_days)),
            schemas: arguments.schemas_days.map(days),
            people: arguments.people_days.map(days),
        },
        helm: arguments.helm.or_else(helm_of_path),
    };
    let keep = async {
        match &mut postgres {
            Some(postgres) => postgres.keep().await,
            None => std::future::pending().await,
        }
    };
    let served = tokio::select! {
        served = gantry_fleet::run(settings, stop_signal()) => served,
        () = keep => Ok(()),
    };
    if let Some(postgres) = postgres {
        postgres.stop().await;
    }
    served?;
    tracing::info!("stopped");
    Ok(())
}

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

fn token_keys(arguments: &Arguments) -> anyhow::Result<(Vec<KeySource>, Option<PathBuf>)> {
    let mut sources: Vec<KeySource> = arguments
        .jwt_public_key_file
        .iter()
        .cloned()
        .map(KeySource::PublicKey)
        .collect();
    for url in &arguments.jwks_url {
        check_key_set(url)?;
        sources.push(KeySource::Jwks(url.clone()));
    }
    let file = match &arguments.jwt_secret_file {
        Some(file) => Some(file.clone()),
        None if sources.is_empty() && arguments.database.is_private() => {
            let folder = arguments.database.folder()?;
            Some(secret(&folder, "token.key", || Ok(LocalKeys::generate()?))?)
        }
        None if sources.is_empty() => {
            bail!("tokens need a key: --jwt-secret-file, --jwt-public-key-file or --jwks-url")
        }
        None => None,
    };
    sources.extend(file.clone().map(KeySource::Secret));
    Ok((sources, file))
}

/// Whoever can change the answer on its way can sign tokens.
fn check_key_set(url: &Url) -> anyhow::Result<()> {
    if http::is_private(url) {
        return Ok(());
    }
    bail!(
        "--jwks-url {url}: a key set has to come over https, or anybody on the way could put keys of their own into it; \
         plain http is only for this machine itself"
    )
}

fn audit_key(arguments: &Arguments) -> anyhow::Result<Option<String>> {
    let file = match &arguments.audit_key_file {
        Some(file) => file.clone(),
        None if arguments.database.is_private() => {
            secret(&arguments.database.folder()?, "audit.key", || {
                Ok(Signer::generate()?.to_pem()?)
            })?
        }
        None => return Ok(None),
    };
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    Ok(Some(text))
}

fn helm_of_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .flat_map(|folder| ["helm", "helm4", "helm3"].map(|name| folder.join(name)))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://id.example.com/keys", true)]
    #[case("http://id.example.com/keys", false)]
    #[case("http://127.0.0.1:8080/keys", true)]
    #[case("http://[::1]/keys", true)]
    #[case("http://localhost/keys", true)]
    #[case("http://localhost.example.com/keys", false)]
    #[case("file:///etc/keys", false)]
    fn key_sets_come_over_https(#[case] url: &str, #[case] is_taken: bool) {
        let checked = check_key_set(&url.parse().unwrap());
        assert_eq!(checked.is_ok(), is_taken);
        if let Err(error) = checked {
            assert!(error.to_string().contains("https"), "{error}");
        }
    }
}
