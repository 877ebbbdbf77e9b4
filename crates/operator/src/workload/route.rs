//! An HTTPRoute of the Gateway API, where that is installed and asked for.

use gantry_crds::common::{GatewayRoute, text};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::settings::Gateway;

/// Name of the CRD that must be there.
pub const CRD: &str = "httproutes.gateway.networking.k8s.io";

pub fn resource() -> ApiResource {
    ApiResource {
        group: "gateway.networking.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "gateway.networking.k8s.io/v1".to_owned(),
        kind: "HTTPRoute".to_owned(),
        plural: "httproutes".to_owned(),
    }
}

/// Whether the object wants a route: its own word first, then the operator's.
pub fn wanted(route: Option<&GatewayRoute>, gateway: Option<&Gateway>) -> bool {
    route.and_then(|route| route.enabled).unwrap_or(gateway.is_some())
}

/// `/<namespace>/<what>/<name>` on the gateway leads to `service`, with the path cut off.
pub fn build(
    gateway: &Gateway,
    route: Option<&GatewayRoute>,
    labels: &Value,
    route_name: &str,
    path: &str,
    service: &str,
    port: i32,
) -> Value {
    let timeout = route
        .and_then(|route| text(route.timeout.as_ref()))
        .unwrap_or(gateway.mcp_timeout.as_str());
    let mut rule = json!({
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "filters": [{
            "type": "URLRewrite",
            "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
        }],
        "backendRefs": [{"name": service, "port": port}],
    });
    if timeout != "0s" {
        rule["timeouts"] = json!({"request": timeout});
    }
    if let Some(retries) = route.and_then(|route| route.retries) {
        rule["retry"] = json!({"attempts": retries});
    }
    json!({
        "metadata": {"name": route_name, "labels": labels},
        "spec": {
            "parentRefs": [{"name": gateway.name, "namespace": gateway.namespace}],
            "rules": [rule],
        },
    })
}
