//! An HTTPRoute of the Gateway API, where that is installed and asked for.

use gantry_crds::{
    common::{GatewayRoute, text},
    conditions::reasons,
};
use gantry_kit::Verdict;
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

/// What is to be done about the Gateway API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    NotWanted,
    /// Wanted, but impossible for this reason.
    Impossible(String),
    Wanted(Gateway),
}

impl Route {
    /// The object's own word first, then the operator's.
    pub fn decide(route: Option<&GatewayRoute>, gateway: Option<&Gateway>, has_gateway_api: bool) -> Self {
        if !route.and_then(|route| route.enabled).unwrap_or(gateway.is_some()) {
            return Self::NotWanted;
        }
        match gateway {
            None => Self::Impossible(
                "the operator has no gateway: set GATEWAY_API_ENABLED and GATEWAY_NAME".to_owned(),
            ),
            Some(_) if !has_gateway_api => {
                Self::Impossible("the Gateway API is not installed: install its CRDs".to_owned())
            }
            Some(gateway) => Self::Wanted(gateway.clone()),
        }
    }

    pub fn verdict(&self, path: &str) -> Verdict {
        match self {
            Self::NotWanted => Verdict::no(reasons::NOT_REQUESTED, ""),
            Self::Impossible(why) => Verdict::no(reasons::GATEWAY_API_MISSING, why.clone()),
            Self::Wanted(gateway) => Verdict::yes(
                reasons::ROUTE_CREATED,
                format!("{path} on gateway {}", gateway.name),
            ),
        }
    }
}

/// What a route leads to.
pub struct Backend<'a> {
    pub route_name: &'a str,
    /// `/<namespace>/<what>/<name>`, cut off before the request goes on.
    pub path: &'a str,
    pub service: &'a str,
    pub port: i32,
    /// Unless the object has its own.
    pub timeout: &'a str,
}

pub fn build(gateway: &Gateway, route: Option<&GatewayRoute>, labels: &Value, to: &Backend<'_>) -> Value {
    let timeout = route
        .and_then(|route| text(route.timeout.as_ref()))
        .unwrap_or(to.timeout);
    let mut rule = json!({
        "matches": [{"path": {"type": "PathPrefix", "value": to.path}}],
        "filters": [{
            "type": "URLRewrite",
            "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
        }],
        "backendRefs": [{"name": to.service, "port": to.port}],
    });
    if timeout != "0s" {
        rule["timeouts"] = json!({"request": timeout});
    }
    if let Some(retries) = route.and_then(|route| route.retries) {
        rule["retry"] = json!({"attempts": retries});
    }
    json!({
        "metadata": {"name": to.route_name, "labels": labels},
        "spec": {
            "parentRefs": [{"name": gateway.name, "namespace": gateway.namespace}],
            "rules": [rule],
        },
    })
}
