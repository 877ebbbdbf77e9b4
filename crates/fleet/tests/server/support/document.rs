//! The OpenAPI document, which every good answer is held against: what it promises, callers rely on.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
};

use jsonschema::Validator;
use serde_json::{Value, json};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| gantry_fleet_api::document("0.0.0"));
/// By method and path of the document; made when the first answer comes.
static SCHEMAS: LazyLock<Mutex<HashMap<(String, String), &'static Validator>>> =
    LazyLock::new(Mutex::default);

/// What is wrong with a good answer, if anything is. `path` is as it was asked for.
pub fn complaint(method: &str, path: &str, status: u16, content_type: &str, text: &str) -> Option<String> {
    let asked = path.split(['?', '#']).next().unwrap_or_default();
    let Some(template) = template(method, asked) else {
        return Some("it is not in the document".to_owned());
    };
    let responses = &DOCUMENT["paths"][template][method]["responses"];
    let Some(response) = responses.get(status.to_string()) else {
        return Some(format!("{template} promises no {status}: {responses}"));
    };
    let Some(content) = response["content"].as_object() else {
        return (!text.is_empty()).then(|| format!("{template} promises nothing"));
    };
    let essence = content_type.split(';').next().unwrap_or_default();
    let Some(promised) = content.get(essence) else {
        return Some(format!("{template} promises no {content_type:?}"));
    };
    let schema = promised.get("schema")?;
    let answer: Value = match serde_json::from_str(text) {
        Ok(answer) => answer,
        Err(error) => return Some(format!("it is no JSON: {error}")),
    };
    let wrong: Vec<String> = validator(method, template, schema)
        .iter_errors(&answer)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// The path of the document that leads there; one that has it word by word is before those that have names in it.
fn template(method: &str, path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let template: Vec<&str> = template.split('/').collect();
        let same = |(wanted, is): (&&str, &&str)| wanted == is || wanted.starts_with('{');
        template.len() == parts.len() && template.iter().zip(&parts).all(same)
    };
    let paths = DOCUMENT["paths"].as_object()?.iter();
    paths
        .filter(|(template, operations)| operations.get(method).is_some() && fits(template))
        .map(|(template, _)| template.as_str())
        .min_by_key(|template| template.matches('{').count())
}

fn validator(method: &str, template: &str, schema: &Value) -> &'static Validator {
    let mut known = SCHEMAS.lock().unwrap();
    known
        .entry((method.to_owned(), template.to_owned()))
        .or_insert_with(|| {
            let whole = json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "allOf": [schema],
                "components": DOCUMENT["components"],
            });
            let made = jsonschema::options().should_validate_formats(true).build(&whole);
            Box::leak(Box::new(made.unwrap()))
        })
}

#[test]
fn an_answer_that_is_not_as_documented_is_told() {
    let told = |method, path, status, text: Value| {
        complaint(method, path, status, "application/json", &text.to_string()).unwrap_or_default()
    };
    let health = json!({"status": "Healthy", "version": "1"});
    assert_eq!(told("get", "/health", 200, health.clone()), "");
    assert!(told("get", "/health", 200, json!({"status": 7})).contains("status"));
    assert!(told("get", "/health", 202, health.clone()).contains("no 202"));
    assert!(told("get", "/healthy", 200, health).contains("not in the document"));
    let waiver = json!({"fingerprint": "f", "reason": "r", "expires": "never", "isExpired": false});
    assert!(told("post", "/api/v1/crds/a.b/waivers", 201, waiver).contains("\"never\" is not a \"date\""));
    assert!(told("delete", "/api/v1/clusters/c", 204, json!({})).contains("promises nothing"));
}
