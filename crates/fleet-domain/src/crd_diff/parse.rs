//! JSON → [`Schema`]. Takes anything: what is not a schema becomes a schema that could not be read.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    normalise,
    number::{Bound, Number},
    schema::{Choices, Count, Enumeration, Limits, ListType, Rule, Schema, Types},
};

/// Deeper than any schema that a server takes in practice, and shallow enough for every stack.
pub const MAX_DEPTH: usize = 100;

pub fn parse(value: &Value) -> Schema {
    parse_at(value, MAX_DEPTH)
}

fn parse_at(value: &Value, depth: usize) -> Schema {
    let unread = || Schema {
        unread: Some(value.clone()),
        ..Schema::open()
    };
    let Value::Object(node) = value else {
        // `additionalProperties: true` is the one place where a schema may be a word.
        return if *value == Value::Bool(true) {
            Schema::empty()
        } else {
            unread()
        };
    };
    if depth == 0 || node.contains_key("$ref") {
        return unread();
    }
    let flag = |name: &str| node.get(name).and_then(Value::as_bool).unwrap_or(false);
    let child = |value: &Value| Box::new(parse_at(value, depth - 1));
    let mut schema = Schema {
        types: types(node, flag("x-kubernetes-int-or-string"), flag("nullable")),
        nullable: flag("nullable"),
        preserve: flag("x-kubernetes-preserve-unknown-fields"),
        embedded: flag("x-kubernetes-embedded-resource"),
        default: node.get("default").cloned(),
        properties: fields(node, "properties")
            .map(|(name, value)| (name.clone(), parse_at(value, depth - 1)))
            .collect(),
        additional: node
            .get("additionalProperties")
            .filter(|value| **value != Value::Bool(false))
            .map(child),
        items: node.get("items").map(child),
        required: texts(node, "required"),
        limits: limits(node),
        choices: Choices::default(),
        list: list_type(node),
        atomic_map: node.get("x-kubernetes-map-type").is_some_and(|v| v == "atomic"),
        rules: rules(node),
        unstructured: false,
        unread: None,
    };
    let branches = |name: &str| -> Vec<Schema> {
        elements(node, name)
            .map(|value| parse_at(value, depth - 1))
            .collect()
    };
    let mut any = branches("anyOf");
    if flag("x-kubernetes-int-or-string") {
        any = normalise::without_int_or_string(any);
    }
    let one = branches("oneOf");
    if !any.is_empty() {
        schema.choices.any.push(any);
    }
    if !one.is_empty() {
        schema.choices.one.push(one);
    }
    if let Some(not) = node.get("not") {
        schema.choices.not.push(*child(not));
    }
    let int_or_string = flag("x-kubernetes-int-or-string");
    for mut branch in branches("allOf") {
        if int_or_string {
            branch.choices.any = branch
                .choices
                .any
                .into_iter()
                .map(normalise::without_int_or_string)
                .filter(|group| !group.is_empty())
                .collect();
        }
        normalise::merge(&mut schema, branch);
    }
    normalise::tidy(&mut schema);
    schema
}

fn types(node: &Map<String, Value>, int_or_string: bool, nullable: bool) -> Types {
    let named = if int_or_string {
        Some(Types::INT_OR_STRING)
    } else {
        node.get("type")
            .and_then(Value::as_str)
            .and_then(Types::from_name)
    };
    match named {
        Some(types) if nullable => types.or(Types::NULL),
        Some(types) => types,
        None => Types::ANY,
    }
}

fn limits(node: &Map<String, Value>) -> Limits {
    let count = |min: &str, max: &str| Count {
        min: node.get(min).and_then(whole).unwrap_or(0),
        max: node.get(max).and_then(whole),
    };
    let text = |name: &str| -> BTreeSet<String> {
        node.get(name)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .into_iter()
            .collect()
    };
    Limits {
        enumeration: node
            .get("enum")
            .and_then(Value::as_array)
            .filter(|values| !values.is_empty())
            .map(|values| Enumeration::new(values.iter().cloned())),
        minimum: bound(node, "minimum", "exclusiveMinimum"),
        maximum: bound(node, "maximum", "exclusiveMaximum"),
        multiples: node
            .get("multipleOf")
            .and_then(Number::from_json)
            .into_iter()
            .collect(),
        length: count("minLength", "maxLength"),
        items: count("minItems", "maxItems"),
        fields: count("minProperties", "maxProperties"),
        patterns: text("pattern"),
        formats: text("format")
            .into_iter()
            // The server reads `date-time` and `datetime` as one.
            .map(|format| match format.as_str() {
                "datetime" => "date-time".to_owned(),
                _ => format,
            })
            .collect(),
        unique: node.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false),
    }
}

fn bound(node: &Map<String, Value>, value: &str, exclusive: &str) -> Option<Bound> {
    // Apiextensions has the boolean of OpenAPI 3.0; a number is what newer drafts write, and easy to understand.
    if let Some(number) = node.get(exclusive).and_then(Number::from_json) {
        return Some(Bound {
            value: number,
            exclusive: true,
        });
    }
    Some(Bound {
        value: node.get(value).and_then(Number::from_json)?,
        exclusive: node.get(exclusive).and_then(Value::as_bool).unwrap_or(false),
    })
}

fn list_type(node: &Map<String, Value>) -> ListType {
    match node.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(texts(node, "x-kubernetes-list-map-keys")),
        _ => ListType::Atomic,
    }
}

fn rules(node: &Map<String, Value>) -> Vec<Rule> {
    elements(node, "x-kubernetes-validations")
        .filter_map(|rule| {
            let expression = normalise::expression(rule.get("rule")?.as_str()?);
            Some(Rule {
                transition: normalise::mentions(&expression, "oldSelf"),
                expression,
                message: rule.get("message").and_then(Value::as_str).map(str::to_owned),
                optional_old_self: rule
                    .get("optionalOldSelf")
                    .and_then(Value::as_bool)
                    .unwrap_or(false),
            })
        })
        .collect()
}

fn whole(value: &Value) -> Option<u64> {
    match Number::from_json(value)? {
        Number::Whole(whole) => u64::try_from(whole).ok(),
        Number::Real(_) => None,
    }
}

fn fields<'a>(
    node: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    node.get(name).and_then(Value::as_object).into_iter().flatten()
}

fn elements<'a>(node: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    node.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn texts(node: &Map<String, Value>, name: &str) -> BTreeSet<String> {
    elements(node, name)
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
