//! Drops the fields that a schema does not name.

use serde_json::Value;

use super::place::At;
use crate::crd_diff::schema::Schema;

/// A field that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pruned {
    /// Where in this object, with indices.
    pub path: String,
    /// Where in the schema, as findings name it.
    pub place: String,
}

/// Fields that every object has, whatever its schema says.
const ALWAYS: [&str; 3] = ["apiVersion", "kind", "metadata"];

pub fn prune(schema: &Schema, object: &mut Value, root: bool) -> Vec<Pruned> {
    let mut pruned = Vec::new();
    node(schema, object, root, &At::Whole, &mut pruned);
    pruned
}

/// Whether nothing of a value is dropped.
pub fn keeps_all(schema: &Schema, value: &Value, whole: bool) -> bool {
    match value {
        Value::Object(fields) => {
            let whole = whole || schema.embedded;
            fields.iter().all(|(name, value)| {
                (whole && ALWAYS.contains(&name.as_str()))
                    || match named(schema, name) {
                        Some(field) => keeps_all(field, value, false),
                        None => schema.preserve,
                    }
            })
        }
        Value::Array(items) => match &schema.items {
            Some(entry) => items.iter().all(|item| keeps_all(entry, item, false)),
            None => schema.preserve || items.is_empty(),
        },
        _ => true,
    }
}

/// The schema of a field, or of all values of a map.
fn named<'s>(schema: &'s Schema, name: &str) -> Option<&'s Schema> {
    let property = schema
        .properties
        .get(name)
        .filter(|property| !property.unstructured);
    property.or(schema.additional.as_deref())
}

fn node(schema: &Schema, value: &mut Value, whole: bool, at: &At<'_>, pruned: &mut Vec<Pruned>) {
    match value {
        Value::Object(fields) => {
            let whole = whole || schema.embedded;
            fields.retain(|name, value| {
                if whole && ALWAYS.contains(&name.as_str()) {
                    return true;
                }
                match (schema.properties.get(name), &schema.additional) {
                    (Some(property), _) if !property.unstructured => {
                        node(property, value, false, &At::Field(at, name), pruned);
                        true
                    }
                    (_, Some(values)) => {
                        node(values, value, false, &At::Value(at, name), pruned);
                        true
                    }
                    _ if schema.preserve => true,
                    _ => {
                        // A null is nothing that could be lost.
                        if !value.is_null() {
                            let field = At::Field(at, name);
                            pruned.push(Pruned {
                                path: field.path(),
                                place: field.place(),
                            });
                        }
                        false
                    }
                }
            });
        }
        Value::Array(items) => {
            // Of entries that no schema speaks of, objects are emptied.
            let nothing = Schema::empty();
            let schema = match &schema.items {
                Some(items) => items,
                None if schema.preserve => return,
                None => &nothing,
            };
            for (index, item) in items.iter_mut().enumerate() {
                node(schema, item, false, &At::Item(at, index), pruned);
            }
        }
        _ => {}
    }
}
