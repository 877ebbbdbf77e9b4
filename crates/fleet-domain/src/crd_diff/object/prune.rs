//! Drops the fields that a schema does not name.

use serde_json::Value;

use crate::crd_diff::{
    schema::Schema,
    sink::{Step, render},
};

/// A field that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    node(schema, object, root, "", "", &mut pruned);
    pruned
}

fn node(schema: &Schema, value: &mut Value, whole: bool, path: &str, place: &str, pruned: &mut Vec<Pruned>) {
    match value {
        Value::Object(fields) => {
            let whole = whole || schema.embedded;
            fields.retain(|name, value| {
                let step = render(&[Step::Field(name)]);
                let path = format!("{path}{step}");
                if whole && ALWAYS.contains(&name.as_str()) {
                    return true;
                }
                match (schema.properties.get(name), &schema.additional) {
                    (Some(property), _) if !property.unstructured => {
                        node(property, value, false, &path, &format!("{place}{step}"), pruned);
                        true
                    }
                    (_, Some(values)) => {
                        node(values, value, false, &path, &format!("{place}.*"), pruned);
                        true
                    }
                    _ if schema.preserve => true,
                    _ => {
                        // A null is nothing that could be lost.
                        if !value.is_null() {
                            pruned.push(Pruned {
                                path,
                                place: format!("{place}{step}"),
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
                node(
                    schema,
                    item,
                    false,
                    &format!("{path}[{index}]"),
                    &format!("{place}[*]"),
                    pruned,
                );
            }
        }
        _ => {}
    }
}
