//! The table of kinds and their CRDs.

use crate::{kaos, nimbusguard, ollama, penin, schema};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;
use std::sync::OnceLock;

/// A kind that Gantry serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Agent,
    ModelAPI,
    MCPServer,
    Model,
    ScalingPolicy,
    PeninOmegaCluster,
    InfrastructureChange,
}

/// What is fixed about a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindInfo {
    pub id: Kind,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub group: &'static str,
    pub version: &'static str,
}

/// Every kind, in the order in which CRDs are printed and applied.
pub const KINDS: &[KindInfo] = &[
    KindInfo {
        id: Kind::Agent,
        kind: "Agent",
        plural: "agents",
        singular: "agent",
        group: kaos::GROUP,
        version: kaos::VERSION,
    },
    KindInfo {
        id: Kind::ModelAPI,
        kind: "ModelAPI",
        plural: "modelapis",
        singular: "modelapi",
        group: kaos::GROUP,
        version: kaos::VERSION,
    },
    KindInfo {
        id: Kind::MCPServer,
        kind: "MCPServer",
        plural: "mcpservers",
        singular: "mcpserver",
        group: kaos::GROUP,
        version: kaos::VERSION,
    },
    KindInfo {
        id: Kind::Model,
        kind: "Model",
        plural: "models",
        singular: "model",
        group: ollama::GROUP,
        version: ollama::VERSION,
    },
    KindInfo {
        id: Kind::ScalingPolicy,
        kind: "ScalingPolicy",
        plural: "scalingpolicies",
        singular: "scalingpolicy",
        group: nimbusguard::GROUP,
        version: nimbusguard::VERSION,
    },
    // Plural and singular carry the original's extra "a".
    KindInfo {
        id: Kind::PeninOmegaCluster,
        kind: "PeninOmegaCluster",
        plural: "peninaomegaclusters",
        singular: "peninaomegacluster",
        group: penin::GROUP,
        version: penin::VERSION,
    },
    KindInfo {
        id: Kind::InfrastructureChange,
        kind: "InfrastructureChange",
        plural: "infrastructurechanges",
        singular: "infrastructurechange",
        group: penin::GROUP,
        version: penin::VERSION,
    },
];

impl KindInfo {
    /// Name of the CRD.
    pub fn crd_name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// `group/version`, as it stands in `apiVersion`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

/// What every visit of an object checks its spec against; made when first asked for. Whole CRDs are not kept: typed, they
/// take megabytes, and are needed once.
static SPEC_SCHEMAS: [OnceLock<Option<Value>>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];

fn build(kind: Kind) -> CustomResourceDefinition {
    schema::finish(match kind {
        Kind::Agent => kaos::Agent::crd(),
        Kind::ModelAPI => kaos::ModelAPI::crd(),
        Kind::MCPServer => kaos::MCPServer::crd(),
        Kind::Model => ollama::Model::crd(),
        Kind::ScalingPolicy => nimbusguard::ScalingPolicy::crd(),
        Kind::PeninOmegaCluster => penin::PeninOmegaCluster::crd(),
        Kind::InfrastructureChange => penin::InfrastructureChange::crd(),
    })
}

fn crd_spec_schema(crd: &CustomResourceDefinition) -> Option<Value> {
    let schema = crd
        .spec
        .versions
        .first()?
        .schema
        .as_ref()?
        .open_api_v3_schema
        .as_ref()?;
    let mut spec = serde_json::to_value(schema.properties.as_ref()?.get("spec")?).ok()?;
    // Checks do not look at them, and they are most of a schema.
    schema::walk(&mut spec, &mut |node| {
        node.remove("description");
    });
    Some(spec)
}

impl Kind {
    /// The kind by its name, plural, or singular, whatever the case.
    pub fn parse(name: &str) -> Option<Self> {
        let same = |other: &str| other.eq_ignore_ascii_case(name);
        KINDS
            .iter()
            .find(|k| same(k.kind) || same(k.plural) || same(k.singular) || same(&k.crd_name()))
            .map(|k| k.id)
    }

    fn index(self) -> Option<usize> {
        KINDS.iter().position(|k| k.id == self)
    }

    /// Its CRD.
    pub fn crd(self) -> Option<CustomResourceDefinition> {
        Some(build(self))
    }

    /// The schema of its spec, for [`crate::validate::check`].
    pub fn spec_schema(self) -> Option<&'static Value> {
        let schema = SPEC_SCHEMAS.get(self.index()?)?;
        schema.get_or_init(|| crd_spec_schema(&build(self))).as_ref()
    }
}

/// Every CRD, ready to be applied to a current server; see [`crate::strip_for_old_servers`] for older ones.
pub fn all() -> Vec<CustomResourceDefinition> {
    KINDS.iter().map(|k| build(k.id)).collect()
}

/// The CRD of a kind by name (`Agent`, `agents` or `agents.kaos.tools`).
pub fn crd(kind: &str) -> Option<CustomResourceDefinition> {
    Kind::parse(kind).and_then(Kind::crd)
}
