//! Fills in defaults, and drops nulls where there may be none.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::crd_diff::schema::Schema;

/// The value with its defaults; itself where there is nothing to do.
pub fn filled_in<'v>(schema: &Schema, value: &'v Value) -> Cow<'v, Value> {
    if is_filled_in(schema, value) {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    fill_in(schema, &mut value);
    Cow::Owned(value)
}

fn is_filled_in(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            let mut defaults = schema
                .properties
                .iter()
                .filter(|(_, field)| field.default.is_some());
            (!schema.fills() || defaults.all(|(name, _)| fields.contains_key(name)))
                && fields.iter().all(|(name, value)| {
                    let child = schema.properties.get(name).or(schema.additional.as_deref());
                    child.is_none_or(|child| !is_dropped(child, value) && is_filled_in(child, value))
                })
        }
        Value::Array(items) => {
            let entries = schema.items.as_deref();
            let is_done =
                |entry: &Schema, item: &Value| !is_replaced(entry, item) && is_filled_in(entry, item);
            entries.is_none_or(|entry| items.iter().all(|item| is_done(entry, item)))
        }
        _ => true,
    }
}

/// Before defaults, the server drops nulls of fields that it knows and that are not nullable.
fn is_dropped(schema: &Schema, value: &Value) -> bool {
    value.is_null() && !schema.nullable
}

/// A null that may not be one gets the default, among the entries of a list and the values of a map as well.
fn is_replaced(schema: &Schema, value: &Value) -> bool {
    is_dropped(schema, value) && schema.default.is_some()
}

fn replace(schema: &Schema, value: &mut Value) {
    if is_replaced(schema, value)
        && let Some(default) = &schema.default
    {
        (**default).clone_into(value);
    }
}

pub fn fill_in(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => object(schema, fields),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for item in items {
                    replace(schema, item);
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
        child.is_none_or(|child| {
            replace(child, value);
            !is_dropped(child, value)
        })
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
