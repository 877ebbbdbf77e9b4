//! What an API server does with an object, written a second time: from the JSON of a schema, and with a general JSON
//! Schema validator. Nothing of `crd_diff` is used, so that both cannot be wrong in the same way.

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value, json};

use crate::place;

const ALWAYS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// A server that has one schema.
pub struct Server {
    schema: Value,
    validator: Validator,
    prunes: bool,
}

/// What becomes of an object, as JSON pointers into it.
#[derive(Default)]
pub struct Harm {
    pub lost: Vec<String>,
    pub refused: Vec<String>,
}

impl Harm {
    pub fn places(&self) -> impl Iterator<Item = &String> {
        self.lost.iter().chain(&self.refused)
    }
}

impl Server {
    /// Nothing if the validator does not understand the schema.
    pub fn new(schema: &Value, prunes: bool) -> Option<Self> {
        Some(Self {
            validator: validator(schema)?,
            schema: schema.clone(),
            prunes,
        })
    }

    /// An object as somebody wrote it, as far as it is kept, and as it is stored; nothing if it is refused.
    pub fn store(&self, object: &Value) -> Option<(Value, Value)> {
        let mut written = object.clone();
        if self.prunes {
            prune(&self.schema, &mut written, true, "", &mut Vec::new());
        }
        let mut object = written.clone();
        fill_in(&self.schema, &mut object);
        let takes = self.validator.is_valid(&object) && refusals(&self.schema, &object).is_empty();
        takes.then_some((written, object))
    }

    /// What happens to a stored object at its next write.
    pub fn meet(&self, object: &Value) -> Harm {
        let mut object = object.clone();
        let mut harm = Harm::default();
        if self.prunes {
            prune(&self.schema, &mut object, true, "", &mut harm.lost);
        }
        fill_in(&self.schema, &mut object);
        harm.refused = refusals(&self.schema, &object);
        if !self.validator.is_valid(&object) {
            let errors = self.validator.iter_errors(&object);
            harm.refused
                .extend(errors.map(|error| error.instance_path().to_string()));
        }
        harm
    }
}

/// Whether somebody wrote a null, which one schema drops and another refuses.
pub fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().any(has_null),
        Value::Array(items) => items.iter().any(has_null),
        _ => false,
    }
}

pub fn validator(schema: &Value) -> Option<Validator> {
    jsonschema::options()
        .with_draft(Draft::Draft4)
        .with_pattern_options(PatternOptions::regex())
        .should_validate_formats(true)
        .with_format("date", |text| text.parse::<jiff::civil::Date>().is_ok())
        .with_format("byte", |text| {
            text.len().is_multiple_of(4) && !text.contains(['*', ' '])
        })
        .with_format("cidr", |text| text.contains('/'))
        .build(&general(schema))
        .ok()
}

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

fn prune(schema: &Value, value: &mut Value, whole: bool, at: &str, lost: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let whole = whole || is(schema, "x-kubernetes-embedded-resource");
            fields.retain(|name, value| {
                let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                if whole && ALWAYS.contains(&name.as_str()) {
                    return true;
                }
                if let Some(child) = place::field(schema, name) {
                    prune(child, value, false, &at, lost);
                    return true;
                }
                if schema["additionalProperties"] == true {
                    prune(&Value::Null, value, false, &at, lost);
                    return true;
                }
                let stays = is(schema, PRESERVE) || value.is_null();
                if !stays {
                    lost.push(at);
                }
                stays
            });
        }
        Value::Array(items) => {
            let mut entry = schema.get("items").cloned().unwrap_or_default();
            if is(schema, PRESERVE) {
                // Entries keep what the list preserves.
                entry[PRESERVE] = true.into();
            }
            for (index, item) in items.iter_mut().enumerate() {
                prune(&entry, item, false, &format!("{at}/{index}"), lost);
            }
        }
        _ => {}
    }
}

fn fill_in(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| {
                if let Some(child) = place::field(schema, name) {
                    replace(child, value);
                }
                !value.is_null() || place::field(schema, name).is_none_or(|child| is(child, "nullable"))
            });
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(default) = property.get("default")
                    && !fields.contains_key(name)
                {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                if let Some(child) = place::field(schema, name) {
                    fill_in(child, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    replace(schema, item);
                    fill_in(schema, item);
                }
            }
        }
        _ => {}
    }
}

/// A null that may not be one gets the default.
fn replace(schema: &Value, value: &mut Value) {
    if let Some(default) = schema.get("default")
        && value.is_null()
        && !is(schema, "nullable")
    {
        default.clone_into(value);
    }
}

/// What JSON Schema has no word for: lists that are maps, and whole objects inside of objects.
fn refusals(schema: &Value, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    refuse(schema, object, "", &mut found);
    found
}

fn refuse(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let named = |name: &str| value[name].as_str().is_some_and(|text| !text.is_empty());
            if is(schema, "x-kubernetes-embedded-resource") && !(named("apiVersion") && named("kind")) {
                found.push(at.to_owned());
            }
            for (name, value) in fields {
                if let Some(child) = place::field(schema, name) {
                    refuse(child, value, &format!("{at}/{name}"), found);
                }
            }
        }
        Value::Array(items) => {
            if schema["x-kubernetes-list-type"] == "map" {
                let keys = schema["x-kubernetes-list-map-keys"].as_array();
                let key = |item: &Value| -> Vec<Value> {
                    let names = keys.into_iter().flatten().filter_map(Value::as_str);
                    names.map(|name| item[name].clone()).collect()
                };
                let mut seen: Vec<Vec<Value>> = Vec::new();
                if items.len() < 100
                    && items.iter().map(key).any(|key| {
                        let twice = seen.contains(&key);
                        seen.push(key);
                        twice
                    })
                {
                    found.push(at.to_owned());
                }
            }
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    refuse(schema, item, &format!("{at}/{index}"), found);
                }
            }
        }
        _ => {}
    }
}

fn is(schema: &Value, word: &str) -> bool {
    schema.get(word) == Some(&Value::Bool(true))
}

/// The same schema in the words of JSON Schema (draft 4, which has the same exclusive bounds).
fn general(schema: &Value) -> Value {
    let Some(node) = schema.as_object() else {
        return json!({});
    };
    let mut out = Map::new();
    for (name, value) in node {
        let translated = match name.as_str() {
            "properties" => value
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, child)| (name.clone(), general(child)))
                .collect(),
            "items" | "not" => general(value),
            "additionalProperties" if value.is_object() => general(value),
            "anyOf" | "oneOf" | "allOf" => value.as_array().into_iter().flatten().map(general).collect(),
            // Checked from 1.36 on, and never of a stored value that is left alone.
            "format" if value == "int32" || value == "float" => continue,
            "required" if value.as_array().is_none_or(Vec::is_empty) => continue,
            "enum" | "required" => {
                let mut once: Vec<Value> = Vec::new();
                for entry in value.as_array().into_iter().flatten() {
                    // A list takes no null, whatever it names.
                    if !once.contains(entry) && !entry.is_null() {
                        once.push(entry.clone());
                    }
                }
                once.into()
            }
            // Flags of Go's patterns are not known to the validator; such a pattern is left out on both sides.
            "pattern" if value.as_str().is_some_and(|text| text.contains("(?i)")) => continue,
            "exclusiveMinimum" if node.get("minimum").is_none() => continue,
            "exclusiveMaximum" if node.get("maximum").is_none() => continue,
            "type" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
            | "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
            | "pattern" | "format" | "uniqueItems" => value.clone(),
            _ => continue,
        };
        out.insert(name.clone(), translated);
    }
    if is(schema, "x-kubernetes-int-or-string") {
        out.insert("type".to_owned(), json!(["integer", "string"]));
    }
    if schema["x-kubernetes-list-type"] == "set" {
        out.insert("uniqueItems".to_owned(), true.into());
    }
    // A null is put to the type and to the list of values, and to nothing else.
    let may_be_null = is(schema, "nullable") || !out.contains_key("type");
    if may_be_null && !out.contains_key("enum") {
        return json!({"anyOf": [{"type": "null"}, out]});
    }
    Value::Object(out)
}
