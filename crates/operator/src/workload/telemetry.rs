//! OpenTelemetry settings as environment variables.

use gantry_crds::common::{Telemetry, text};
use serde_json::{Value, json};

use crate::Settings;

/// The variables of one workload; none when telemetry is off.
pub fn env(telemetry: Option<&Telemetry>, settings: &Settings, namespace: &str, name: &str) -> Vec<Value> {
    let enabled = telemetry
        .and_then(|telemetry| telemetry.enabled)
        .unwrap_or(settings.telemetry_enabled);
    if !enabled {
        return Vec::new();
    }
    let endpoint = telemetry
        .and_then(|telemetry| text(telemetry.endpoint.as_ref()))
        .unwrap_or(settings.telemetry_endpoint.as_str());
    let mut env = vec![
        json!({"name": "OTEL_SDK_DISABLED", "value": "false"}),
        json!({"name": "OTEL_SERVICE_NAME", "value": name}),
        json!({"name": "OTEL_RESOURCE_ATTRIBUTES",
               "value": format!("service.namespace={namespace},kaos.resource.name={name}")}),
        json!({"name": "OTEL_PYTHON_FASTAPI_EXCLUDED_URLS", "value": "/health,/ready"}),
    ];
    if !endpoint.is_empty() {
        env.push(json!({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": endpoint}));
    }
    env
}
