//! InfrastructureChange: a change of a PeninOmegaCluster that somebody asks for, usually the cluster itself.

use super::{AutoScaling, InfrastructureChangeStatus, PeninConfig, Replicas, Resources};
use crate::common::{Fragment, Problem, given};
use crate::schema::{self, Rule};
use crate::validate::spec_problems;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is to be changed, and why. It cannot be edited: ask anew instead.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "penin.ai",
    version = "v1alpha1",
    kind = "InfrastructureChange",
    plural = "infrastructurechanges",
    singular = "infrastructurechange",
    shortname = "ichange",
    category = "gantry",
    namespaced,
    status = "InfrastructureChangeStatus",
    derive = "PartialEq",
    doc = "A change that a PENIN-Ω cluster asks for: checked against its policy, applied, watched, and kept or rolled back.",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.cluster"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Rule", type_ = "string", json_path = ".status.rule"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["cluster", "reason", "patch"], "x-kubernetes-validations" = schema::rules(&[IMMUTABLE])))]
pub struct InfrastructureChangeSpec {
    /// The PeninOmegaCluster, in the same namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::NAME_PATTERN))]
    pub cluster: Option<String>,

    /// Why, for whoever approves it and for the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub reason: Option<String>,

    /// The fields of the cluster's spec to set, and their values. Fields cannot be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<ChangePatch>,
}

/// Fields of a cluster's spec, and their values. Shaped as in the cluster, without its defaults: only what stands here
/// is changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangePatch {
    /// Pods per service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "replicas")]
    pub replicas: Option<Fragment>,

    /// CPU and memory per service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "resources")]
    pub resources: Option<Fragment>,

    /// Autoscaling of the services.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "auto_scaling")]
    pub auto_scaling: Option<Fragment>,

    /// Settings of the services.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "config")]
    pub config: Option<Fragment>,
}

/// The server before 1.25 does not know this rule; there the controller takes what it saw first.
const IMMUTABLE: Rule = Rule {
    rule: "self == oldSelf",
    message: "a request cannot be edited: make a new InfrastructureChange",
};

/// The blocks of a cluster's spec that can be changed.
pub const CHANGEABLE: [&str; 4] = ["replicas", "resources", "autoScaling", "config"];

fn replicas(generator: &mut SchemaGenerator) -> Schema {
    bare(Replicas::json_schema(generator))
}

fn resources(generator: &mut SchemaGenerator) -> Schema {
    bare(Resources::json_schema(generator))
}

fn auto_scaling(generator: &mut SchemaGenerator) -> Schema {
    bare(AutoScaling::json_schema(generator))
}

/// Without `env`: its references could carry Secrets into the services.
fn config(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = bare(PeninConfig::json_schema(generator));
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove("env");
    }
    schema
}

/// A block without what would add to a patch (defaults), and without rules that only make sense for the whole block.
fn bare(schema: Schema) -> Schema {
    let mut value = schema.to_value();
    schema::walk(&mut value, &mut |node| {
        node.remove("default");
        node.remove("x-kubernetes-validations");
    });
    Schema::try_from(value).unwrap_or_default()
}

impl ChangePatch {
    /// The patch as one object, as it would stand in a cluster's spec.
    pub fn to_object(&self) -> Map<String, Value> {
        let blocks = [&self.replicas, &self.resources, &self.auto_scaling, &self.config];
        CHANGEABLE
            .iter()
            .zip(blocks)
            .filter_map(|(name, block)| {
                let block = block.as_ref()?;
                Some(((*name).to_owned(), Value::Object(block.0.clone())))
            })
            .collect()
    }
}

impl InfrastructureChangeSpec {
    /// Name of the cluster; empty when absent, which [`InfrastructureChangeSpec::problems`] reports.
    pub fn cluster(&self) -> &str {
        self.cluster.as_deref().unwrap_or_default()
    }

    /// Everything that is wrong with the spec, for servers that do not check it.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = spec_problems(crate::Kind::InfrastructureChange, self);
        if given(self.cluster.as_ref())
            && self
                .patch
                .as_ref()
                .is_some_and(|patch| patch.to_object().is_empty())
        {
            problems.push(Problem::new(
                "spec.patch",
                "must change something: replicas, resources, autoScaling or config",
            ));
        }
        problems
    }
}
