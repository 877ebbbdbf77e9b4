//! The OpenAPI 3.1 document, made from the list of operations.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use strum::IntoEnumIterator;

use crate::{
    Problem,
    operation::{Operation, Reply, Spec},
};

/// The document for this version of the server.
pub fn document(version: &str) -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let problem = generator.subschema_for::<Problem>();
    let mut paths = Map::new();
    for operation in Operation::iter() {
        let spec = operation.spec();
        let mut described = json!({
            "operationId": operation.id(),
            "tags": [spec.tag],
            "summary": spec.summary,
            "parameters": parameters(&spec),
            "responses": {
                "default": {
                    "description": "What went wrong",
                    "content": {"application/json": {"schema": problem}},
                },
            },
        });
        let reply = match spec.reply {
            Reply::Json(schema) => json!({
                "description": "Success",
                "content": {"application/json": {"schema": schema(&mut generator)}},
            }),
            Reply::Any => json!({"description": "Success", "content": {"application/json": {}}}),
            Reply::Html => json!({"description": "Success", "content": {"text/html": {}}}),
            Reply::Empty => json!({"description": "Success"}),
        };
        described["responses"][spec.status.to_string()] = reply;
        if let Some(schema) = spec.body {
            described["requestBody"] = json!({
                "required": true,
                "content": {"application/json": {"schema": schema(&mut generator)}},
            });
        }
        if operation.is_open() {
            described["security"] = json!([]);
        }
        paths.entry(spec.path).or_insert_with(|| json!({}))[spec.method] = described;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Gantry fleet",
            "version": version,
            "description": "Keeps operators up to date on many clusters.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    })
}

fn parameters(spec: &Spec) -> Vec<Value> {
    let mut all: Vec<Value> = spec
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    all.extend(spec.query.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "in": "query",
            "description": parameter.about,
            "schema": {"type": parameter.kind},
        })
    }));
    let header = |name: &str, about: &str| json!({"name": name, "in": "header", "description": about, "schema": {"type": "string"}});
    if spec.if_match {
        all.push(header(
            "If-Match",
            "The ETag of what you saw; refused with 412 when it has changed since.",
        ));
    }
    if spec.idempotency_key {
        all.push(header(
            "Idempotency-Key",
            "Any text of your choice; the same request sent again with it is done once.",
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_is_in_it_and_every_reference_resolves() {
        let document = document("1.2.3");
        let ids: BTreeSet<&str> = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|path| path.as_object().unwrap().values())
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        assert_eq!(ids, Operation::iter().map(Operation::id).collect());
        let mut waiting = vec![&document];
        while let Some(value) = waiting.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    waiting.extend(fields.values());
                }
                Value::Array(items) => waiting.extend(items),
                _ => {}
            }
        }
    }

    #[test]
    fn only_two_operations_need_no_token() {
        let document = document("1");
        let open: Vec<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, path)| {
                path.as_object()
                    .unwrap()
                    .values()
                    .any(|o| o.get("security").is_some())
            })
            .map(|(path, _)| path.clone())
            .collect();
        assert_eq!(open, ["/api/v1/authentication/login", "/health"]);
    }
}
