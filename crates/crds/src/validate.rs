//! The schema rules of our CRDs, checked in Rust: for objects that were stored under an older schema, and for
//! `gantry` commands that check a file without a server.

use crate::common::{Autoscaling, Problem};
use crate::{KINDS, Kind, kaos, nimbusguard, ollama, penin, schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What the schema of the kind says about a spec.
pub(crate) fn spec_problems<T: Serialize>(kind: Kind, spec: &T) -> Vec<Problem> {
    let (Some(schema), Ok(value)) = (kind.spec_schema(), serde_json::to_value(spec)) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    check(schema, &value, "spec", &mut problems);
    problems
}

/// Everything that is wrong with the spec of a document of one of our kinds, as it was written: also what does not
/// decode into the kind's type. `None` for a document of another kind.
pub fn document_problems(document: &Value) -> Option<Vec<Problem>> {
    let info = KINDS
        .iter()
        .find(|k| document["kind"] == k.kind && document["apiVersion"] == k.api_version().as_str())?;
    let Some(spec) = document.get("spec") else {
        return Some(vec![Problem::new("spec", "Required value")]);
    };
    let mut problems = Vec::new();
    if let Some(schema) = info.id.spec_schema() {
        check(schema, spec, "spec", &mut problems);
    }
    let typed = match info.id {
        Kind::Agent => typed::<kaos::AgentSpec>(spec, kaos::AgentSpec::problems),
        Kind::ModelAPI => typed::<kaos::ModelAPISpec>(spec, kaos::ModelAPISpec::problems),
        Kind::MCPServer => typed::<kaos::MCPServerSpec>(spec, kaos::MCPServerSpec::problems),
        Kind::Model => typed::<ollama::ModelSpec>(spec, ollama::ModelSpec::problems),
        Kind::ScalingPolicy => {
            typed::<nimbusguard::ScalingPolicySpec>(spec, nimbusguard::ScalingPolicySpec::problems)
        }
        Kind::PeninOmegaCluster => {
            typed::<penin::PeninOmegaClusterSpec>(spec, penin::PeninOmegaClusterSpec::problems)
        }
        Kind::InfrastructureChange => {
            typed::<penin::InfrastructureChangeSpec>(spec, penin::InfrastructureChangeSpec::problems)
        }
    };
    let new: Vec<Problem> = typed
        .into_iter()
        .filter(|problem| !problems.contains(problem))
        .collect();
    problems.extend(new);
    Some(problems)
}

fn typed<T: DeserializeOwned>(spec: &Value, problems: impl Fn(&T) -> Vec<Problem>) -> Vec<Problem> {
    match serde_json::from_value::<T>(spec.clone()) {
        Ok(spec) => problems(&spec),
        Err(error) => vec![Problem::new("spec", error.to_string())],
    }
}

/// What is wrong across the fields of an autoscaling block.
pub(crate) fn autoscaling_problems(field: &str, autoscaling: Option<&Autoscaling>) -> Vec<Problem> {
    let Some(autoscaling) = autoscaling else {
        return Vec::new();
    };
    let mut problems = autoscaling.problems(field);
    for (i, metric) in autoscaling.metrics.iter().flatten().enumerate() {
        problems.extend(metric.problems(&format!("{field}.metrics[{i}]")));
    }
    problems
}

/// Checks a value against a structural schema, in words close to the API server's own.
pub fn check(schema: &Value, value: &Value, path: &str, problems: &mut Vec<Problem>) {
    let mut say = |message: String| problems.push(Problem::new(path, message));
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    if let Some(expected) = schema["type"].as_str() {
        let fits = match expected {
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => true,
        };
        if !fits {
            say(format!("must be of type {expected}"));
            return;
        }
    } else if int_or_string && !(value.is_string() || value.is_i64() || value.is_u64()) {
        say("must be an integer or a string".to_owned());
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
        say(format!(
            "Unsupported value: {value}: supported values: {}",
            list.join(", ")
        ));
    }
    if let Some(number) = value.as_f64() {
        if let Some(min) = schema["minimum"].as_f64().filter(|min| number < *min) {
            say(format!("should be greater than or equal to {min}"));
        }
        if let Some(max) = schema["maximum"].as_f64().filter(|max| number > *max) {
            say(format!("should be less than or equal to {max}"));
        }
    }
    if let Some(text) = value.as_str() {
        let length = text.chars().count() as u64;
        if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
            say(format!("should be at least {min} chars long"));
        }
        if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
            say(format!("Too long: may not be more than {max} bytes"));
        }
        if let Some(pattern) = schema["pattern"].as_str().filter(|p| !schema::matches(p, text)) {
            say(format!("should match '{pattern}'"));
        }
    }
    if let Some(items) = value.as_array() {
        let length = items.len() as u64;
        if let Some(min) = schema["minItems"].as_u64().filter(|min| length < *min) {
            say(format!("should have at least {min} items"));
        }
        if let Some(max) = schema["maxItems"].as_u64().filter(|max| length > *max) {
            say(format!("Too many: {length}: must have at most {max} items"));
        }
        for (i, item) in items.iter().enumerate() {
            check(&schema["items"], item, &format!("{path}[{i}]"), problems);
        }
    }
    if let Some(fields) = value.as_object() {
        check_object(schema, fields, path, problems);
    }
}

fn check_object(
    schema: &Value,
    fields: &serde_json::Map<String, Value>,
    path: &str,
    problems: &mut Vec<Problem>,
) {
    if let Some(max) = schema["maxProperties"]
        .as_u64()
        .filter(|max| fields.len() as u64 > *max)
    {
        problems.push(Problem::new(path, format!("must have at most {max} properties")));
    }
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !fields.contains_key(name) {
            problems.push(Problem::new(format!("{path}.{name}"), "Required value"));
        }
    }
    for (name, value) in fields {
        let child = schema["properties"]
            .get(name)
            .or_else(|| schema.get("additionalProperties"));
        if let Some(child) = child {
            check(child, value, &format!("{path}.{name}"), problems);
        }
    }
}
