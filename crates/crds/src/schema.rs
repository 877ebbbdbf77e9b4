//! Schema helpers: compact schemas for embedded Kubernetes types, CEL rules, and the passes that turn what the derive
//! makes into a CRD that API servers from 1.20 to today accept.
//!
//! Embedded Kubernetes types are written out here by hand and without descriptions: the generated ones are a hundred
//! times larger, and `kubectl explain pod.spec` already tells what they mean.
//!
//! Enums carry `#[schemars(description = "")]`: kube puts the description of an optional enum's type over that of the field.

use crate::patterns;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Longest text that still fits into one environment variable (the kernel stops at 128 KiB, names and a few
/// multi-byte characters included).
pub const MAX_TEXT: u32 = 100_000;
/// Longest value of a variable or argument: the kernel takes no longer one.
pub const MAX_VALUE: u32 = 131_072;
/// Longest Kubernetes object name.
pub const MAX_NAME: u32 = 253;
/// Longest `namespace/name` reference.
pub const MAX_REFERENCE: u32 = 317;
/// Most replicas that a kind of ours may be asked for.
pub const MAX_REPLICAS: i32 = 1000;

/// Gateway API duration: one to four groups of a number and a unit.
pub const DURATION_PATTERN: &str = "^([0-9]+(h|m|s|ms)){1,4}$";
/// A name, optionally with a namespace before it: `tools` or `shared/tools`.
pub const REFERENCE_PATTERN: &str =
    "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$";
/// A DNS subdomain, as object names are.
pub const NAME_PATTERN: &str = "^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$";
/// The same, or nothing, where the originals take an empty text for absent.
pub const OPTIONAL_NAME_PATTERN: &str = "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$";
/// An http or https address.
pub const URL_PATTERN: &str = "^https?://[^ ]+$";
/// A Kubernetes quantity such as `500m`, `1.5` or `10Gi`.
pub const QUANTITY_PATTERN: &str = "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$";

/// A path of an address.
pub const PATH_PATTERN: &str = "^/[^ ]*$";
/// A path below the spec of a PeninOmegaCluster that may be changed: `replicas.sigmaGuard` or `config.*`.
pub const CHANGE_PATTERN: &str = "^(replicas|resources|autoScaling|config)(\\.[A-Za-z]+)*(\\.\\*)?$";
/// A requirement as pip or npm takes it; never an option (a leading dash), and empty for "not set".
pub const PACKAGE_PATTERN: &str = "^([A-Za-z0-9@._][^\\n\\r]*)?$";

/// Whether a text matches one of the patterns above. Written out by hand: so few patterns do not pay for a regex engine.
/// A pattern that is not known here matches everything; a test keeps the list complete.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern {
        DURATION_PATTERN => patterns::duration(text),
        REFERENCE_PATTERN => patterns::reference(text),
        NAME_PATTERN => patterns::name(text),
        OPTIONAL_NAME_PATTERN => text.is_empty() || patterns::name(text),
        URL_PATTERN => patterns::url(text),
        QUANTITY_PATTERN => patterns::quantity(text),
        PATH_PATTERN => patterns::path(text),
        CHANGE_PATTERN => patterns::change(text),
        PACKAGE_PATTERN => patterns::package(text),
        _ => true,
    }
}

/// One CEL rule of a schema. The same rule is checked in Rust by the kind's `problems()`, with the same message,
/// because servers before 1.25 ignore CEL.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The CEL expression, true when all is well.
    pub rule: &'static str,
    /// What the user reads: what is wrong and how to cure it.
    pub message: &'static str,
}

/// The value of `x-kubernetes-validations` for some rules.
pub fn rules(rules: &[Rule]) -> Value {
    rules
        .iter()
        .map(|r| json!({"rule": r.rule, "message": r.message}))
        .collect()
}

/// An object that is passed through as it is.
pub fn preserved(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Anything at all; what it may be is checked in code.
pub fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// When something is pulled; the empty word is as good as none.
pub fn pull_policy_or_empty(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["Always", "IfNotPresent", "Never", ""]})
}

/// A quantity: a string such as `500m`, or an integer.
pub fn quantity(_: &mut SchemaGenerator) -> Schema {
    quantity_schema().into()
}

fn quantity_schema() -> Map {
    object(json!({
        "pattern": QUANTITY_PATTERN,
        "x-kubernetes-int-or-string": true,
        "maxLength": 64,
    }))
}

/// A string of an embedded type: bounded, so that the cost of CEL rules above it is.
fn short() -> Value {
    json!({"type": "string", "maxLength": 4096})
}

type Map = serde_json::Map<String, Value>;

fn object(value: Value) -> Map {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// `ResourceRequirements`: requests, limits and claims.
pub fn resources(_: &mut SchemaGenerator) -> Schema {
    let quantities =
        json!({"type": "object", "additionalProperties": quantity_schema(), "maxProperties": 32});
    json_schema!({
        "type": "object",
        "properties": {
            "requests": quantities,
            "limits": quantities,
            "claims": {
                "type": "array",
                "maxItems": 32,
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": short(), "request": short()},
                },
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        },
    })
}

fn key_selector() -> Value {
    json!({
        "type": "object",
        "required": ["key"],
        "properties": {
            "name": {"type": "string", "maxLength": MAX_NAME},
            "key": {"type": "string", "maxLength": MAX_NAME},
            "optional": {"type": "boolean"},
        },
        "x-kubernetes-map-type": "atomic",
    })
}

/// A key of a Secret in the same namespace.
pub fn secret_key(_: &mut SchemaGenerator) -> Schema {
    object(key_selector()).into()
}

/// A Secret in the same namespace, and a key of it where there are several.
pub fn secret_key_or_name(_: &mut SchemaGenerator) -> Schema {
    let mut schema = object(key_selector());
    schema.remove("required");
    schema.into()
}

/// A key of a ConfigMap in the same namespace.
pub fn config_map_key(_: &mut SchemaGenerator) -> Schema {
    object(key_selector()).into()
}

/// A list of environment variables.
pub fn env(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 512,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 1024},
                "value": {"type": "string", "maxLength": MAX_VALUE},
                "valueFrom": {
                    "type": "object",
                    "properties": {
                        "secretKeyRef": key_selector(),
                        "configMapKeyRef": key_selector(),
                        "fieldRef": {
                            "type": "object",
                            "required": ["fieldPath"],
                            "properties": {"apiVersion": short(), "fieldPath": short()},
                            "x-kubernetes-map-type": "atomic",
                        },
                        "resourceFieldRef": {
                            "type": "object",
                            "required": ["resource"],
                            "properties": {
                                "containerName": short(),
                                "resource": short(),
                                "divisor": quantity_schema(),
                            },
                            "x-kubernetes-map-type": "atomic",
                        },
                        "fileKeyRef": {
                            "type": "object",
                            "required": ["key", "path", "volumeName"],
                            "properties": {
                                "key": short(),
                                "path": short(),
                                "volumeName": short(),
                                "optional": {"type": "boolean"},
                            },
                            "x-kubernetes-map-type": "atomic",
                        },
                    },
                },
            },
        },
    })
}

/// A list of sources whose keys all become environment variables.
pub fn env_from(_: &mut SchemaGenerator) -> Schema {
    let source = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": MAX_NAME}, "optional": {"type": "boolean"}},
        "x-kubernetes-map-type": "atomic",
    });
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": {
            "type": "object",
            "properties": {"prefix": short(), "secretRef": source, "configMapRef": source},
        },
    })
}

/// Where volumes are mounted in a container.
pub fn volume_mounts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": {
            "type": "object",
            "required": ["name", "mountPath"],
            "properties": {
                "name": short(),
                "mountPath": short(),
                "mountPropagation": short(),
                "readOnly": {"type": "boolean"},
                "recursiveReadOnly": short(),
                "subPath": short(),
                "subPathExpr": short(),
            },
        },
    })
}

/// Names of objects in the same namespace, such as pull secrets.
pub fn local_references(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": MAX_NAME}},
            "x-kubernetes-map-type": "atomic",
        },
    })
}

/// A list whose items are passed through as they are (tolerations, for example).
pub fn preserved_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    })
}

/// A map of short strings: labels, annotations, node selectors.
pub fn string_map(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 4096},
    })
}

/// Standard conditions, one per type.
///
/// Only `type` and `status` are required: objects that an original operator wrote carry less than `metav1.Condition`
/// asks for, and a stricter schema would refuse every edit of such an object until its status is rewritten.
pub fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = copied_conditions(generator);
    schema.insert("x-kubernetes-list-type".to_owned(), "map".into());
    schema.insert(
        "x-kubernetes-list-map-keys".to_owned(),
        serde_json::json!(["type"]),
    );
    schema
}

/// Conditions of another object, carried as they are: one value, not a list that several writers share.
pub fn copied_conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "items": {
            "type": "object",
            "required": ["type", "status"],
            "properties": {
                "type": {
                    "type": "string",
                    "maxLength": 316,
                    "description": "What the condition is about, for example Ready.",
                },
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Whether the condition holds.",
                },
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "description": "One word for programs that says why.",
                },
                "message": {
                    "type": "string",
                    "maxLength": 32768,
                    "description": "A sentence for people that says why, and what to do.",
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When the status last changed.",
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "The generation of the spec that this condition was computed from.",
                },
            },
        },
        "x-kubernetes-list-type": "atomic",
    })
}

/// Turns what the derive made into what we ship: see the passes inside.
pub(crate) fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        else {
            continue;
        };
        let Ok(mut value) = serde_json::to_value(&*schema) else {
            continue;
        };
        tidy(&mut value);
        if let Ok(tidied) = serde_json::from_value(value) {
            *schema = tidied;
        }
    }
    crd
}

/// Drops `nullable` (the server then treats an explicit null as absent and applies the default, and CEL's `has()`
/// means what it says), and joins the lines of descriptions.
fn tidy(schema: &mut Value) {
    walk(schema, &mut |node| {
        node.remove("nullable");
        node.remove("title");
        if let Some(values) = node.get_mut("enum").and_then(Value::as_array_mut) {
            values.retain(|v| !v.is_null());
        }
        if let Some(Value::String(text)) = node.get_mut("description") {
            *text = text
                .split("\n\n")
                .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
                .join("\n\n");
        }
    });
}

/// Calls `visit` on every schema node, outermost first.
pub fn walk(schema: &mut Value, visit: &mut dyn FnMut(&mut Map)) {
    let Some(node) = schema.as_object_mut() else {
        return;
    };
    visit(node);
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        for child in properties.values_mut() {
            walk(child, visit);
        }
    }
    for key in ["items", "additionalProperties", "not"] {
        if let Some(child) = node.get_mut(key) {
            walk(child, visit);
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        if let Some(children) = node.get_mut(key).and_then(Value::as_array_mut) {
            for child in children {
                walk(child, visit);
            }
        }
    }
}

/// A CRD as the document that is written to files and sent to servers: whole numbers without a fraction (the typed form
/// knows bounds as floating point only) and no empty status.
pub fn manifest(crd: &CustomResourceDefinition) -> Value {
    let mut value = serde_json::to_value(crd).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    whole_numbers(&mut value);
    value
}

fn whole_numbers(value: &mut Value) {
    /// Up to here a double holds every integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => {
            if let Some(float) = number
                .as_f64()
                .filter(|f| number.is_f64() && f.fract() == 0.0 && f.abs() < EXACT)
            {
                *value = Value::from(float as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}
