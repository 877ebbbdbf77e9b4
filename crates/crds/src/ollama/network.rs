//! How a Model is reached: its Service and its Ingress.

use crate::common::{Problem, given, text};
use crate::schema::{self, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The Service in front of a Model's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[NODE_PORT_NEEDS_TYPE])))]
pub struct ModelService {
    /// ClusterIP (the default), NodePort or LoadBalancer.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<ServiceType>,

    /// Port of the Service, 11434 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i32>,

    /// Port on every node, for NodePort and LoadBalancer; the cluster chooses one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub node_port: Option<i32>,

    /// Class of the load balancer, where the cluster has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub load_balancer_class: Option<String>,

    /// Annotations of the Service, which many load balancers are configured by.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::string_map")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Kind of Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum ServiceType {
    /// Reached inside the cluster.
    #[default]
    ClusterIP,
    /// Reached at a port of every node.
    NodePort,
    /// Reached through a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The word that Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

const NODE_PORT_NEEDS_TYPE: Rule = Rule {
    rule: "!has(self.nodePort) || (has(self.type) && self.type != 'ClusterIP')",
    message: "nodePort is for Services of type NodePort or LoadBalancer: set type, or remove nodePort",
};

impl ModelService {
    /// Kind of Service, ClusterIP when absent.
    pub fn service_type(&self) -> ServiceType {
        self.type_.unwrap_or_default()
    }

    /// Port of the Service, 11434 when absent.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(super::PORT)
    }

    pub(super) fn problems(&self, field: &str) -> Vec<Problem> {
        if self.node_port.is_some() && self.service_type() == ServiceType::ClusterIP {
            vec![Problem::new(field, NODE_PORT_NEEDS_TYPE.message)]
        } else {
            Vec::new()
        }
    }
}

/// An Ingress in front of the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[TLS_NEEDS_HOST])))]
pub struct ModelIngress {
    /// Switches the Ingress off without removing its settings. On when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// IngressClass; the cluster's default one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub class_name: Option<String>,

    /// Host name that is answered; every host when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub host: Option<String>,

    /// Path that is answered, `/` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = schema::PATH_PATTERN))]
    pub path: Option<String>,

    /// How the path is compared, Prefix when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_type: Option<PathType>,

    /// Certificate of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<ModelIngressTls>,

    /// Annotations of the Ingress, which many controllers are configured by.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::string_map")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// How a path is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum PathType {
    /// By its leading elements.
    #[default]
    Prefix,
    /// As a whole.
    Exact,
    /// As the controller likes.
    ImplementationSpecific,
}

impl PathType {
    /// The word that Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "Prefix",
            Self::Exact => "Exact",
            Self::ImplementationSpecific => "ImplementationSpecific",
        }
    }
}

/// Certificate of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelIngressTls {
    /// Secret with the certificate and its key; the controller's default certificate when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub secret_name: Option<String>,

    /// Hosts that the certificate is for; `host` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), inner(length(max = 253)))]
    pub hosts: Option<Vec<String>>,
}

const TLS_NEEDS_HOST: Rule = Rule {
    rule: "!has(self.tls) || (has(self.host) && self.host != '') || \
           (has(self.tls.hosts) && size(self.tls.hosts) > 0)",
    message: "TLS is for a host: set host, or tls.hosts",
};

impl ModelIngress {
    /// Whether the Ingress is wanted.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Path that is answered, `/` when absent.
    pub fn path(&self) -> &str {
        text(self.path.as_ref()).unwrap_or("/")
    }

    /// How the path is compared, Prefix when absent.
    pub fn path_type(&self) -> PathType {
        self.path_type.unwrap_or_default()
    }

    pub(super) fn problems(&self, field: &str) -> Vec<Problem> {
        let named = |tls: &ModelIngressTls| {
            given(self.host.as_ref()) || tls.hosts.as_ref().is_some_and(|h| !h.is_empty())
        };
        if self.tls.as_ref().is_some_and(|tls| !named(tls)) {
            vec![Problem::new(field, TLS_NEEDS_HOST.message)]
        } else {
            Vec::new()
        }
    }
}
