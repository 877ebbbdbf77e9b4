//! How the operator is configured: defaults for all objects. The names of the original operator's environment are kept.

use std::{net::SocketAddr, str::FromStr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The operator's own namespace; the runtime registry lives here.
    pub namespace: String,
    /// Runtime of agents.
    pub agent_image: String,
    /// Proxy of ModelAPIs in mode Proxy.
    pub litellm_image: String,
    /// Server of ModelAPIs in mode Hosted.
    pub ollama_image: String,
    /// This program, which also runs beside models, as a proxy that counts.
    pub gantry_image: String,
    /// Python image that installs and runs packages.
    pub python_image: String,
    /// Cache of PeninOmegaClusters.
    pub redis_image: String,
    /// Node image that installs and runs packages.
    pub node_image: String,
    /// Image with git, which clones the workspace of a coding harness.
    pub git_image: String,
    /// Bridges a package that speaks stdio to HTTP.
    pub bridge_package: String,
    /// Package index for packages that name none; the public one when empty.
    pub package_index: String,
    /// Pull secrets that every generated pod gets.
    pub image_pull_secrets: Vec<String>,
    pub log_level: String,
    pub telemetry_enabled: bool,
    pub telemetry_endpoint: String,
    pub gateway: Option<Gateway>,
    pub reach: Reach,
    /// Asked by policies of clusters that name no Prometheus.
    pub prometheus_url: String,
    /// Where requests for changes are taken; nowhere when absent.
    pub changes_address: Option<SocketAddr>,
    /// The audience that tokens of requests must be made for.
    pub changes_audience: String,
    /// Changes of a cluster that stay after they have ended, the newest; the ledger knows them all.
    pub kept_changes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    pub name: String,
    pub namespace: String,
    /// How long a request through the gateway may take, by kind.
    pub agent_timeout: String,
    pub modelapi_timeout: String,
    pub mcp_timeout: String,
}

/// How workloads are asked something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By their cluster address: from inside the cluster.
    Direct,
    /// Through the API server's service proxy: from anywhere.
    Proxy,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: "default".to_owned(),
            agent_image: "docker.io/axsauze/kaos-agent:latest".to_owned(),
            litellm_image: "ghcr.io/berriai/litellm:main-stable".to_owned(),
            ollama_image: "docker.io/ollama/ollama:latest".to_owned(),
            gantry_image: concat!("gantry:", env!("CARGO_PKG_VERSION")).to_owned(),
            python_image: "docker.io/library/python:3.12-slim".to_owned(),
            node_image: "docker.io/library/node:22-slim".to_owned(),
            redis_image: "docker.io/library/redis:7-alpine".to_owned(),
            git_image: "docker.io/alpine/git:2.49.1".to_owned(),
            bridge_package: "mcp-proxy==0.13.0".to_owned(),
            package_index: String::new(),
            image_pull_secrets: Vec::new(),
            log_level: "INFO".to_owned(),
            telemetry_enabled: false,
            telemetry_endpoint: String::new(),
            gateway: None,
            reach: Reach::Proxy,
            prometheus_url: String::new(),
            changes_address: None,
            changes_audience: "gantry-changes".to_owned(),
            kept_changes: 100,
        }
    }
}

impl Settings {
    /// Reads the environment through `get`, so that tests can supply their own.
    pub fn from_env(
        namespace: String,
        reach: Reach,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let text = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let or = |name: &str, default: String| text(name).unwrap_or(default);
        let defaults = Self::default();
        let gateway = flag("GATEWAY_API_ENABLED", text("GATEWAY_API_ENABLED"))?.then(|| Gateway {
            name: or("GATEWAY_NAME", "kaos-gateway".to_owned()),
            namespace: or("GATEWAY_NAMESPACE", namespace.clone()),
            agent_timeout: or("GATEWAY_DEFAULT_AGENT_TIMEOUT", "300s".to_owned()),
            modelapi_timeout: or("GATEWAY_DEFAULT_MODELAPI_TIMEOUT", "120s".to_owned()),
            mcp_timeout: or("GATEWAY_DEFAULT_MCP_TIMEOUT", "60s".to_owned()),
        });
        Ok(Self {
            agent_image: or("DEFAULT_AGENT_IMAGE", defaults.agent_image),
            litellm_image: or("DEFAULT_LITELLM_IMAGE", defaults.litellm_image),
            ollama_image: or("DEFAULT_OLLAMA_IMAGE", defaults.ollama_image),
            gantry_image: or("GANTRY_IMAGE", defaults.gantry_image),
            python_image: or("DEFAULT_MCP_SERVER_IMAGE", defaults.python_image),
            node_image: or("DEFAULT_NODE_IMAGE", defaults.node_image),
            redis_image: or("DEFAULT_REDIS_IMAGE", defaults.redis_image),
            git_image: or("DEFAULT_GIT_IMAGE", defaults.git_image),
            bridge_package: or("GANTRY_MCP_BRIDGE_PACKAGE", defaults.bridge_package),
            package_index: or("GANTRY_DEFAULT_PACKAGE_INDEX", String::new()),
            image_pull_secrets: or("GANTRY_IMAGE_PULL_SECRETS", String::new())
                .split(',')
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty())
                .collect(),
            log_level: or("DEFAULT_LOG_LEVEL", defaults.log_level),
            telemetry_enabled: flag("DEFAULT_TELEMETRY_ENABLED", text("DEFAULT_TELEMETRY_ENABLED"))?,
            telemetry_endpoint: or("DEFAULT_TELEMETRY_ENDPOINT", String::new()),
            prometheus_url: or("GANTRY_PROMETHEUS_URL", String::new()),
            changes_address: text("GANTRY_CHANGES_ADDRESS")
                .map(|address| {
                    address.parse().map_err(|_| {
                        format!("GANTRY_CHANGES_ADDRESS must be an address and a port, not {address:?}")
                    })
                })
                .transpose()?,
            changes_audience: or("GANTRY_CHANGES_AUDIENCE", defaults.changes_audience),
            kept_changes: defaults.kept_changes,
            gateway,
            namespace,
            reach,
        })
    }
}

fn flag(name: &str, value: Option<String>) -> Result<bool, String> {
    let Some(value) = value else { return Ok(false) };
    bool::from_str(&value.to_ascii_lowercase())
        .map_err(|_| format!("{name} must be true or false, not {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let pairs: Vec<(String, String)> = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Settings::from_env("sys".into(), Reach::Proxy, move |name| {
            pairs
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        let settings = read(&[("DEFAULT_LOG_LEVEL", "")]).unwrap();
        assert_eq!(
            settings,
            Settings {
                namespace: "sys".into(),
                ..Settings::default()
            }
        );
    }

    #[test]
    fn the_gateway_is_on_when_asked_for() {
        let settings = read(&[("GATEWAY_API_ENABLED", "True"), ("GATEWAY_NAME", "gw")]).unwrap();
        let gateway = settings.gateway.unwrap();
        assert_eq!((gateway.name.as_str(), gateway.namespace.as_str()), ("gw", "sys"));
    }

    #[test]
    fn rubbish_is_named() {
        let error = read(&[("GATEWAY_API_ENABLED", "yes please")]).unwrap_err();
        assert!(error.contains("GATEWAY_API_ENABLED"), "{error}");
    }
}
