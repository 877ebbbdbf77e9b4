//! Pure: what each service is told. A service gets what it uses and nothing else, so that a change of a setting rolls
//! the services that it is for and leaves the others alone.

use gantry_crds::{
    common::text,
    penin::{CacheType, LogFormat, Service},
};
use serde_json::{Value, json};

use super::{
    plan::{Plan, REDIS, REDIS_PORT},
    redis,
};

/// Where the image writes its ledger and, below its home, the database of Ω-META.
pub const DATA: &str = "/data";
pub const LOGS: &str = "/var/log/penin";

pub fn env(plan: &Plan<'_>, service: Service) -> Vec<Value> {
    let mut env = vec![
        var("PENIN_CLUSTER", &plan.name),
        var("PENIN_DATA_DIR", DATA),
        var("PENIN_LOG_DIR", LOGS),
        var("HOME", DATA),
        var("PYTHONUNBUFFERED", "1"),
    ];
    env.extend(observability(plan, service));
    env.extend(peers(plan, service));
    env.extend(cache(plan));
    env.extend(settings(plan, service));
    env
}

/// Secrets whose keys all become variables: the keys of providers, for those who ask providers.
pub fn env_from(plan: &Plan<'_>, service: Service) -> Vec<Value> {
    if !asks_providers(service) {
        return Vec::new();
    }
    let keys = plan
        .spec
        .secrets
        .iter()
        .flat_map(|s| s.provider_keys.iter().flatten());
    keys.map(|secret| json!({"secretRef": {"name": secret.name}}))
        .collect()
}

fn asks_providers(service: Service) -> bool {
    matches!(service, Service::OmegaMeta | Service::AcfaLeague)
}

fn observability(plan: &Plan<'_>, service: Service) -> Vec<Value> {
    let seen = plan.spec.observability();
    let format = match seen.log_format() {
        LogFormat::Json => "json",
        LogFormat::Text => "text",
    };
    let endpoint = seen
        .tracing_endpoint()
        .unwrap_or(plan.settings.telemetry_endpoint.as_str());
    let mut env = vec![
        var("PENIN_LOG_LEVEL", seen.log_level().as_str()),
        var("PENIN_LOG_FORMAT", format),
        var("PENIN_METRICS_ENABLED", seen.metrics()),
        var("PENIN_METRICS_BIND_HOST", "0.0.0.0"),
        var("PENIN_METRICS_PORT", plan.spec.port(service)),
        var("PENIN_TRACING_ENABLED", seen.tracing()),
        // Without an endpoint the SDK would try its own pod, and log that nobody is there.
        var("OTEL_SDK_DISABLED", !seen.tracing() || endpoint.is_empty()),
    ];
    if seen.tracing() && !endpoint.is_empty() {
        let attributes = format!("service.namespace={},penin.cluster={}", plan.namespace, plan.name);
        env.push(var("OTEL_SERVICE_NAME", plan.child(service.name())));
        env.push(var("OTEL_RESOURCE_ATTRIBUTES", attributes));
        env.push(var("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint));
    }
    let token = plan.spec.secrets.as_ref().and_then(|s| s.metrics_token.as_ref());
    env.extend(token.map(|key| secret("PENIN_METRICS_TOKEN", json!(key))));
    env
}

/// Where the other services are.
fn peers(plan: &Plan<'_>, service: Service) -> impl Iterator<Item = Value> {
    let others = Service::ALL.into_iter().filter(move |other| *other != service);
    others.map(|other| {
        let name = match other {
            Service::OmegaMeta => "PENIN_META_URL",
            Service::SigmaGuard => "PENIN_GUARD_URL",
            Service::SrOmegaInfinity => "PENIN_SR_URL",
            Service::AcfaLeague => "PENIN_LEAGUE_URL",
        };
        var(name, plan.url(other))
    })
}

fn cache(plan: &Plan<'_>) -> Vec<Value> {
    let storage = plan.spec.storage();
    let kind = match (storage.cache().enabled(), storage.cache().cache_type()) {
        (false, _) => "none",
        (true, CacheType::Memory) => "memory",
        (true, CacheType::Redis) => "redis",
    };
    let mut env = vec![var("PENIN_CACHE_TYPE", kind)];
    if storage.wants_redis() {
        let host = plan.child(REDIS);
        // A variable that is used in another one has to come before it.
        env.push(secret("REDIS_PASSWORD", redis::password(plan)));
        env.push(var("PENIN_REDIS_HOST", &host));
        env.push(var("PENIN_REDIS_PORT", REDIS_PORT));
        let url = format!("redis://:$(REDIS_PASSWORD)@{host}:{REDIS_PORT}/0");
        env.push(var("PENIN_REDIS_URL", &url));
        env.push(var("REDIS_URL", &url));
    }
    let key = plan.spec.secrets.as_ref().and_then(|s| s.cache_hmac_key.as_ref());
    env.extend(key.map(|key| secret("PENIN_CACHE_HMAC_KEY", json!(key))));
    env
}

/// The settings of `config` that this service goes by.
fn settings(plan: &Plan<'_>, service: Service) -> Vec<Value> {
    let config = plan.spec.config();
    let mut env = Vec::new();
    if asks_providers(service) {
        env.push(number("PENIN_BUDGET_DAILY_USD", config.budget_daily_usd()));
        let parallel = config.max_parallel_providers;
        env.extend(parallel.map(|most| var("PENIN_MAX_PARALLEL_PROVIDERS", most)));
        let tokens = config.max_tokens_per_round;
        env.extend(tokens.map(|most| var("PENIN_MAX_TOKENS_PER_ROUND", most)));
        env.push(var("PENIN_EVOLUTION__SEED", config.seed()));
    }
    if matches!(service, Service::OmegaMeta | Service::SrOmegaInfinity) {
        env.push(number("PENIN_CAOS_PLUS__MAX_BOOST", config.max_boost()));
        env.push(number("PENIN_CAOS_PLUS__KAPPA", config.kappa()));
    }
    if service == Service::SigmaGuard {
        env.push(number("PENIN_SIGMA_GUARD__ECE_THRESHOLD", config.ece_threshold()));
        env.push(number(
            "PENIN_SIGMA_GUARD__BIAS_THRESHOLD",
            config.bias_threshold(),
        ));
    }
    env
}

fn var(name: &str, value: impl ToString) -> Value {
    json!({"name": name, "value": value.to_string()})
}

/// With a point, as Python writes it: so the original's pods have it.
fn number(name: &str, value: f64) -> Value {
    var(name, format!("{value:?}"))
}

/// One key of a Secret as a variable.
pub fn secret(name: &str, key: Value) -> Value {
    json!({"name": name, "valueFrom": {"secretKeyRef": key}})
}

/// The name of a Secret's key that guards the metrics, for whoever reads them.
pub fn metrics_token(plan: &Plan<'_>) -> Option<(String, String)> {
    let selector = plan.spec.secrets.as_ref()?.metrics_token.as_ref()?;
    Some((text(Some(&selector.name))?.to_owned(), selector.key.clone()))
}
