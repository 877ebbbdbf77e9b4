//! Pure: the container of mode Proxy, and LiteLLM's configuration.

use gantry_crds::{
    common::text,
    kaos::{ModelAPI, ProxyConfig},
};
use gantry_kit::{
    ObjectKey,
    references::{Reference, Source},
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::validate::CONTAINER;
use crate::{
    Settings,
    workload::{names, telemetry},
};

pub const PORT: i32 = 8000;
/// Key of the ConfigMap, and name of the file.
pub const CONFIG: &str = "config.yaml";
const FOLDER: &str = "/etc/litellm";
/// Provider of models that are named without one and live at an address of the user's: that is what most servers speak.
const COMMON_PROVIDER: &str = "openai";

pub fn config_map_name(root: &str) -> String {
    names::child("litellm-config", root)
}

/// The ConfigMap that we write, as the pod refers to it.
pub fn own_config(root: &ObjectKey) -> Reference {
    Reference {
        source: Source::ConfigMap,
        key: ObjectKey::new(root.namespace.clone(), config_map_name(&root.name)),
    }
}

/// What goes into our ConfigMap; nothing when the configuration is in a Secret, from which the pod reads it itself.
pub fn config(api: &ModelAPI, settings: &Settings) -> Option<String> {
    let proxy = api.spec.proxy_config.clone().unwrap_or_default();
    let own = proxy.config_yaml.clone().unwrap_or_default();
    if own.from_secret_key_ref.is_some() {
        return None;
    }
    let own = text(own.from_string.as_ref()).map(ToOwned::to_owned);
    Some(own.unwrap_or_else(|| {
        generated(
            &proxy,
            &api.spec.supported_models(),
            !otel(api, settings).is_empty(),
        )
    }))
}

fn generated(proxy: &ProxyConfig, models: &[String], with_telemetry: bool) -> String {
    let provider = text(proxy.provider.as_ref()).map(|provider| provider.trim_end_matches('/'));
    let has_base = text(proxy.api_base.as_ref()).is_some();
    let entry = |model: &String| {
        let mut params = json!({"model": upstream(model, provider, has_base)});
        if has_base {
            params["api_base"] = json!("os.environ/PROXY_API_BASE");
        }
        if proxy.api_key().is_some() {
            params["api_key"] = json!("os.environ/PROXY_API_KEY");
        }
        json!({"model_name": model, "litellm_params": params})
    };
    // Agents send what the one or the other model does not know; that is no reason to refuse the question.
    let mut settings = json!({"drop_params": true});
    if with_telemetry {
        settings["callbacks"] = json!(["otel"]);
    }
    let config = json!({
        "model_list": models.iter().map(entry).collect::<Vec<_>>(),
        "litellm_settings": settings,
    });
    // Maps, lists and strings in memory: this cannot fail.
    serde_saphyr::to_string(&config).unwrap_or_default()
}

/// What LiteLLM calls a model: provider first.
fn upstream(model: &str, provider: Option<&str>, has_base: bool) -> String {
    let default = (has_base && !model.contains('/')).then_some(COMMON_PROVIDER);
    match provider.or(default) {
        Some(provider) if !model.starts_with(&format!("{provider}/")) => format!("{provider}/{model}"),
        _ => model.to_owned(),
    }
}

/// Container and volumes.
pub fn parts(api: &ModelAPI, settings: &Settings) -> (Value, Vec<Value>) {
    let volume = volume(api);
    let container = json!({
        "name": CONTAINER,
        "image": settings.litellm_image,
        "args": ["--config", format!("{FOLDER}/{CONFIG}"), "--port", PORT.to_string()],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": env(api, settings),
        "volumeMounts": [{"name": volume["name"], "mountPath": FOLDER, "readOnly": true}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"cpu": "2", "memory": "2Gi"},
        },
        // Only importing it takes LiteLLM tens of seconds on a slow core.
        "startupProbe": probe("/health/liveliness", 5, 72),
        "readinessProbe": probe("/health/readiness", 5, 3),
        "livenessProbe": probe("/health/liveliness", 10, 6),
    });
    (container, vec![volume])
}

fn probe(path: &str, period: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": path, "port": PORT, "scheme": "HTTP"},
        "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures,
    })
}

/// Two names, because a volume of one name cannot become one of another type: server-side apply leaves the old type in.
fn volume(api: &ModelAPI) -> Value {
    let yaml = api
        .spec
        .proxy_config
        .as_ref()
        .and_then(|proxy| proxy.config_yaml.as_ref());
    match yaml.and_then(|yaml| yaml.from_secret_key_ref.as_ref()) {
        Some(secret) => json!({"name": "secret-config", "secret": {
            "secretName": secret.name,
            "items": [{"key": secret.key, "path": CONFIG}],
            "optional": secret.optional,
        }}),
        None => json!({"name": "config", "configMap": {
            "name": config_map_name(&api.name_any()),
            "items": [{"key": CONFIG, "path": CONFIG}],
        }}),
    }
}

fn env(api: &ModelAPI, settings: &Settings) -> Vec<Value> {
    let set = |name: &str, value: &str| json!({"name": name, "value": value});
    let proxy = api.spec.proxy_config.clone().unwrap_or_default();
    let mut env = vec![
        set("LITELLM_LOG", &settings.log_level.to_uppercase()),
        // Starts without the Internet: prices and sizes of models come from the package.
        set("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
        // Today's LiteLLM does not start without a key of its own unless told so. As in the original, who may ask is
        // decided by the network; whoever sets LITELLM_MASTER_KEY has one.
        set("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true"),
        set("LITELLM_MODE", "PRODUCTION"),
        set("XDG_CACHE_HOME", "/tmp"),
        set("PYTHONUNBUFFERED", "1"),
        set("PYTHONDONTWRITEBYTECODE", "1"),
    ];
    let base = text(proxy.api_base.as_ref());
    env.extend(base.map(|base| set("PROXY_API_BASE", base)));
    match proxy.api_key() {
        Some(key) => env.push(match (text(key.value.as_ref()), &key.value_from) {
            (None, Some(from)) => json!({"name": "PROXY_API_KEY", "valueFrom": from}),
            (value, _) => set("PROXY_API_KEY", value.unwrap_or_default()),
        }),
        // The client of LiteLLM wants some key also for a server that wants none. Whole Secrets come before this.
        None if base.is_some() && !has_env_from(api) => env.push(set("OPENAI_API_KEY", "none")),
        None => {}
    }
    env.extend(otel(api, settings));
    env
}

fn has_env_from(api: &ModelAPI) -> bool {
    let container = api.spec.container.as_ref();
    container.is_some_and(|container| container.env_from.is_some())
}

fn otel(api: &ModelAPI, settings: &Settings) -> Vec<Value> {
    let namespace = api.namespace().unwrap_or_default();
    let mut env = telemetry::env(api.spec.telemetry.as_ref(), settings, &namespace, &api.name_any());
    if !env.is_empty() {
        let is_http = env.iter().any(|variable| {
            let value = variable["value"].as_str().unwrap_or_default();
            variable["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT" && value.contains(":4318")
        });
        let exporter = if is_http { "otlp_http" } else { "otlp_grpc" };
        env.push(json!({"name": "OTEL_EXPORTER", "value": exporter}));
    }
    env
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("gpt-4o", None, false, "gpt-4o")]
    #[case("gpt-4o", Some("openai"), false, "openai/gpt-4o")]
    #[case("openai/gpt-4o", Some("openai"), false, "openai/gpt-4o")]
    #[case("stub", None, true, "openai/stub")]
    #[case("ollama/smollm2", None, true, "ollama/smollm2")]
    #[case("meta/llama", Some("nvidia_nim"), true, "nvidia_nim/meta/llama")]
    #[case("*", None, false, "*")]
    #[case("*", None, true, "openai/*")]
    #[case("*", Some("gemini"), false, "gemini/*")]
    #[case("openai/*", None, false, "openai/*")]
    fn models_are_called_by_provider(
        #[case] model: &str,
        #[case] provider: Option<&str>,
        #[case] has_base: bool,
        #[case] expected: &str,
    ) {
        assert_eq!(upstream(model, provider, has_base), expected);
    }

    /// A user's text must not become structure.
    #[test]
    fn the_configuration_is_read_back_as_it_was_meant() {
        let models = [
            "*",
            "a: b",
            "- x",
            "\"",
            "{}",
            "# no",
            "yes",
            "1.0",
            "a\nb",
            "os.environ/X",
        ]
        .map(ToOwned::to_owned);
        let text = generated(&ProxyConfig::default(), &models, true);
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        let names: Vec<&str> = read["model_list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["model_name"].as_str().unwrap())
            .collect();
        assert_eq!(names, models);
        assert_eq!(
            read["litellm_settings"],
            json!({"drop_params": true, "callbacks": ["otel"]})
        );
    }
}
