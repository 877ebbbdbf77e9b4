//! The four services of a cluster: their fixed facts, replicas, resources and overrides.

use crate::common::{ContainerOverride, Fragment};
use crate::schema;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// One of the four services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// Ω-META, the orchestrator.
    OmegaMeta,
    /// Σ-Guard, the gate.
    SigmaGuard,
    /// SR-Ω∞, self-reflection.
    SrOmegaInfinity,
    /// ACFA League, champion and challenger.
    AcfaLeague,
}

impl Service {
    /// All four, in the order in which they are made.
    pub const ALL: [Self; 4] = [
        Self::OmegaMeta,
        Self::SigmaGuard,
        Self::SrOmegaInfinity,
        Self::AcfaLeague,
    ];

    /// The key in spec and status.
    pub fn key(self) -> &'static str {
        match self {
            Self::OmegaMeta => "omegaMeta",
            Self::SigmaGuard => "sigmaGuard",
            Self::SrOmegaInfinity => "srOmegaInfinity",
            Self::AcfaLeague => "acfaLeague",
        }
    }

    /// The name in labels and, behind the cluster's, of its objects.
    pub fn name(self) -> &'static str {
        match self {
            Self::OmegaMeta => "omega-meta",
            Self::SigmaGuard => "sigma-guard",
            Self::SrOmegaInfinity => "sr-omega-infinity",
            Self::AcfaLeague => "acfa-league",
        }
    }

    /// The port that it listens on.
    pub fn port(self) -> i32 {
        match self {
            Self::OmegaMeta => 8010,
            Self::SigmaGuard => 8011,
            Self::SrOmegaInfinity => 8012,
            Self::AcfaLeague => 8013,
        }
    }

    /// The word after `penin` that starts it.
    pub fn command(self) -> &'static str {
        match self {
            Self::OmegaMeta => "meta",
            Self::SigmaGuard => "guard",
            Self::SrOmegaInfinity => "sr",
            Self::AcfaLeague => "league",
        }
    }

    /// The path that tells whether it is well; the league has no `/health`.
    pub fn probe_path(self) -> &'static str {
        match self {
            Self::AcfaLeague => "/league/canary/ping",
            _ => "/health",
        }
    }

    /// Pods when the spec does not say.
    pub fn default_replicas(self) -> i32 {
        if self == Self::SigmaGuard { 2 } else { 1 }
    }

    /// CPU and memory when the spec does not say.
    pub fn default_resources(self) -> (&'static str, &'static str) {
        match self {
            Self::OmegaMeta | Self::AcfaLeague => LARGE,
            Self::SigmaGuard | Self::SrOmegaInfinity => SMALL,
        }
    }
}

const LARGE: (&str, &str) = ("500m", "512Mi");
const SMALL: (&str, &str) = ("250m", "256Mi");

/// One value per service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PerService<T> {
    /// For Ω-META, the orchestrator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omega_meta: Option<T>,

    /// For Σ-Guard, the gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma_guard: Option<T>,

    /// For SR-Ω∞, self-reflection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sr_omega_infinity: Option<T>,

    /// For the ACFA League, champion and challenger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acfa_league: Option<T>,
}

impl<T> Default for PerService<T> {
    fn default() -> Self {
        Self {
            omega_meta: None,
            sigma_guard: None,
            sr_omega_infinity: None,
            acfa_league: None,
        }
    }
}

impl<T> PerService<T> {
    /// The value of a service.
    pub fn get(&self, service: Service) -> Option<&T> {
        match service {
            Service::OmegaMeta => self.omega_meta.as_ref(),
            Service::SigmaGuard => self.sigma_guard.as_ref(),
            Service::SrOmegaInfinity => self.sr_omega_infinity.as_ref(),
            Service::AcfaLeague => self.acfa_league.as_ref(),
        }
    }

    /// Sets the value of a service.
    pub fn set(&mut self, service: Service, value: Option<T>) {
        match service {
            Service::OmegaMeta => self.omega_meta = value,
            Service::SigmaGuard => self.sigma_guard = value,
            Service::SrOmegaInfinity => self.sr_omega_infinity = value,
            Service::AcfaLeague => self.acfa_league = value,
        }
    }
}

/// Pods per service. 0 stops a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Replicas {
    /// Pods of Ω-META.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 1))]
    pub omega_meta: Option<i32>,

    /// Pods of Σ-Guard; two or more are recommended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 2))]
    pub sigma_guard: Option<i32>,

    /// Pods of SR-Ω∞.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 1))]
    pub sr_omega_infinity: Option<i32>,

    /// Pods of the ACFA League.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS), extend("default" = 1))]
    pub acfa_league: Option<i32>,
}

impl Replicas {
    /// Pods of a service, its default when absent.
    pub fn get(&self, service: Service) -> i32 {
        let given = match service {
            Service::OmegaMeta => self.omega_meta,
            Service::SigmaGuard => self.sigma_guard,
            Service::SrOmegaInfinity => self.sr_omega_infinity,
            Service::AcfaLeague => self.acfa_league,
        };
        given.unwrap_or_else(|| service.default_replicas())
    }
}

/// CPU and memory per service; requests and limits are the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// CPU and memory of Ω-META.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "large")]
    pub omega_meta: Option<ServiceResources>,

    /// CPU and memory of Σ-Guard.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "small")]
    pub sigma_guard: Option<ServiceResources>,

    /// CPU and memory of SR-Ω∞.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "small")]
    pub sr_omega_infinity: Option<ServiceResources>,

    /// CPU and memory of the ACFA League.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "large")]
    pub acfa_league: Option<ServiceResources>,
}

/// CPU and memory of one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceResources {
    /// CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

fn large(generator: &mut SchemaGenerator) -> Schema {
    resources_schema(generator, LARGE)
}

fn small(generator: &mut SchemaGenerator) -> Schema {
    resources_schema(generator, SMALL)
}

fn resources_schema(generator: &mut SchemaGenerator, (cpu, memory): (&str, &str)) -> Schema {
    let quantity = |generator: &mut SchemaGenerator, description: &str, default: &str| {
        let mut schema = schema::quantity(generator);
        schema.insert("description".into(), description.into());
        schema.insert("default".into(), default.into());
        schema
    };
    json_schema!({
        "type": "object",
        "properties": {
            "cpu": quantity(generator, "CPU, such as `500m`.", cpu),
            "memory": quantity(generator, "Memory, such as `512Mi`.", memory),
        },
    })
}

impl Resources {
    /// CPU and memory of a service, its defaults where absent.
    pub fn get(&self, service: Service) -> (Quantity, Quantity) {
        let given = match service {
            Service::OmegaMeta => &self.omega_meta,
            Service::SigmaGuard => &self.sigma_guard,
            Service::SrOmegaInfinity => &self.sr_omega_infinity,
            Service::AcfaLeague => &self.acfa_league,
        };
        let (cpu, memory) = service.default_resources();
        let pick = |given: Option<&Quantity>, default: &str| {
            given.cloned().unwrap_or_else(|| Quantity(default.to_owned()))
        };
        let given = given.as_ref();
        (
            pick(given.and_then(|r| r.cpu.as_ref()), cpu),
            pick(given.and_then(|r| r.memory.as_ref()), memory),
        )
    }
}

/// What one service does otherwise than the image's defaults ask for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceOverride {
    /// Port that the service listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i32>,

    /// How the service is asked whether it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ServiceProbe>,

    /// Path of its Prometheus metrics, `/metrics` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = schema::PATH_PATTERN))]
    pub metrics_path: Option<String>,

    /// Changes to the service's container: image, command, arguments, environment and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerOverride>,

    /// A PodSpec fragment, merged strategically over the generated pod; the container is called as the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_spec: Option<Fragment>,
}

/// How a service is asked whether it is well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceProbe {
    /// `HTTP` (the default) or `TCP`, which only looks whether the port is open.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<ProbeType>,

    /// Path of an HTTP probe, `/health` when absent (for the league `/league/canary/ping`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024), regex(pattern = schema::PATH_PATTERN))]
    pub path: Option<String>,
}

/// Kind of probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(description = "")]
pub enum ProbeType {
    /// Asks a path.
    #[default]
    Http,
    /// Opens the port.
    Tcp,
}
