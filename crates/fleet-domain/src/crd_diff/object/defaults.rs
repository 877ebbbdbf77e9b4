//! Fills in defaults, and drops nulls where there may be none.

use serde_json::{Map, Value};

use crate::crd_diff::schema::Schema;

pub fn fill_in(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => object(schema, fields),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for item in items {
                    fill_in(schema, item);
                }
            }
        }
        _ => {}
    }
}

fn object(schema: &Schema, fields: &mut Map<String, Value>) {
    fields.retain(|name, value| {
        let child = schema.properties.get(name).or(schema.additional.as_deref());
        // Before defaults, the server drops nulls of fields that it knows and that are not nullable.
        !(value.is_null() && child.is_some_and(|child| !child.nullable))
    });
    for (name, property) in &schema.properties {
        if let Some(default) = &property.default
            && !fields.contains_key(name)
        {
            fields.insert(name.clone(), (**default).clone());
        }
    }
    for (name, value) in fields {
        if let Some(child) = schema.properties.get(name).or(schema.additional.as_deref()) {
            fill_in(child, value);
        }
    }
}
