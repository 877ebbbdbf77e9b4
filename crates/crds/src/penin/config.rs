//! What the services are told and what is seen of them: `config` and `observability`.

use crate::common::text;
use crate::schema;
use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, SecretKeySelector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of the services, passed to the pods as `PENIN_*` variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninConfig {
    /// Dollars per day that may be spent on providers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = 5.0))]
    pub budget_daily_usd: Option<f64>,

    /// Settings of CAOS+.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caos_plus: Option<CaosPlus>,

    /// Thresholds of the gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma_guard: Option<SigmaGuardConfig>,

    /// Settings of evolution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evolution: Option<Evolution>,

    /// Providers that are asked at once, 3 in the image when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_parallel_providers: Option<i32>,

    /// Tokens per round, 30000 in the image when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_tokens_per_round: Option<i32>,

    /// Further environment variables of all four services.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env")]
    pub env: Option<Vec<EnvVar>>,
}

/// Settings of CAOS+.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CaosPlus {
    /// Most boost, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 0.05))]
    pub max_boost: Option<f64>,

    /// Gain κ.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0), extend("default" = 20.0))]
    pub kappa: Option<f64>,
}

/// Thresholds of the gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SigmaGuardConfig {
    /// Most calibration error, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), extend("default" = 0.01))]
    pub ece_threshold: Option<f64>,

    /// Most bias ratio, 1 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0), extend("default" = 1.05))]
    pub bias_threshold: Option<f64>,
}

/// Settings of evolution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Evolution {
    /// Seed of the random numbers, so that a run can be repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 12345))]
    pub seed: Option<i64>,
}

impl PeninConfig {
    /// Dollars per day, 5 when absent.
    pub fn budget_daily_usd(&self) -> f64 {
        self.budget_daily_usd.unwrap_or(5.0)
    }

    /// Most boost, 0.05 when absent.
    pub fn max_boost(&self) -> f64 {
        self.caos_plus.as_ref().and_then(|c| c.max_boost).unwrap_or(0.05)
    }

    /// Gain κ, 20 when absent.
    pub fn kappa(&self) -> f64 {
        self.caos_plus.as_ref().and_then(|c| c.kappa).unwrap_or(20.0)
    }

    /// Most calibration error, 0.01 when absent.
    pub fn ece_threshold(&self) -> f64 {
        self.sigma_guard
            .as_ref()
            .and_then(|g| g.ece_threshold)
            .unwrap_or(0.01)
    }

    /// Most bias ratio, 1.05 when absent.
    pub fn bias_threshold(&self) -> f64 {
        self.sigma_guard
            .as_ref()
            .and_then(|g| g.bias_threshold)
            .unwrap_or(1.05)
    }

    /// Seed of the random numbers, 12345 when absent.
    pub fn seed(&self) -> i64 {
        self.evolution.as_ref().and_then(|e| e.seed).unwrap_or(12345)
    }
}

/// What is seen of the services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Observability {
    /// Whether pods are marked for scraping and their metrics are read into the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub metrics: Option<bool>,

    /// Whether the services send traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub tracing: Option<bool>,

    /// OTLP endpoint that traces go to; the operator's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub tracing_endpoint: Option<String>,

    /// Logs of the services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logging: Option<PeninLogging>,

    /// Makes a ServiceMonitor, where that kind is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_monitor: Option<bool>,

    /// Makes a ConfigMap with the Grafana dashboards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dashboards: Option<bool>,

    /// Seconds between two readings of the metrics into the status, 30 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 5, max = 3600))]
    pub metrics_interval_seconds: Option<i32>,
}

/// Logs of the services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninLogging {
    /// How much is logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "INFO"))]
    pub level: Option<LogLevel>,

    /// `json` (the default) or `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(description = "")]
pub enum LogLevel {
    Debug,
    #[default]
    Info,
    Warning,
    Error,
}

impl LogLevel {
    /// The word as the services take it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(description = "")]
pub enum LogFormat {
    #[default]
    Json,
    Text,
}

impl Observability {
    /// Whether metrics are read, true when absent.
    pub fn metrics(&self) -> bool {
        self.metrics.unwrap_or(true)
    }

    /// Whether traces are sent, true when absent.
    pub fn tracing(&self) -> bool {
        self.tracing.unwrap_or(true)
    }

    /// How much is logged, INFO when absent.
    pub fn log_level(&self) -> LogLevel {
        self.logging.as_ref().and_then(|l| l.level).unwrap_or_default()
    }

    /// How a log line looks, JSON when absent.
    pub fn log_format(&self) -> LogFormat {
        self.logging.as_ref().and_then(|l| l.format).unwrap_or_default()
    }

    /// Where traces go, if the spec says so.
    pub fn tracing_endpoint(&self) -> Option<&str> {
        text(self.tracing_endpoint.as_ref())
    }

    /// Seconds between two readings, 30 when absent.
    pub fn metrics_interval_seconds(&self) -> i32 {
        self.metrics_interval_seconds.unwrap_or(30)
    }
}

/// Secrets of the services, by reference only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeninSecrets {
    /// Secrets whose keys all become environment variables, for the keys of providers such as `OPENAI_API_KEY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::local_references")]
    pub provider_keys: Option<Vec<LocalObjectReference>>,

    /// A key of a Secret that signs what is in the cache. Passed on as `PENIN_CACHE_HMAC_KEY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub cache_hmac_key: Option<SecretKeySelector>,

    /// A key of a Secret that guards the metrics. Passed on as `PENIN_METRICS_TOKEN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::secret_key")]
    pub metrics_token: Option<SecretKeySelector>,
}
