//! Places in schemas: where two of them differ, told from their JSON alone.

use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Field(String),
    /// Every entry of a list.
    Items,
    /// Every value of a map.
    Values,
}

pub type Place = Vec<Step>;

/// Words that nobody is refused for.
const WORDS: [&str; 7] = [
    "description",
    "title",
    "example",
    "externalDocs",
    "default",
    "x-kubernetes-validations",
    "x-kubernetes-map-type",
];

/// `.spec.list[*].map.*["odd name"]`, as findings write it.
pub fn read(path: &str) -> Option<Place> {
    let mut place = Vec::new();
    let mut rest = path;
    while !rest.is_empty() && rest != "." {
        if let Some(after) = rest.strip_prefix("[*]") {
            place.push(Step::Items);
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            let mut words = serde_json::Deserializer::from_str(after).into_iter::<String>();
            place.push(Step::Field(words.next()?.ok()?));
            rest = after[words.byte_offset()..].strip_prefix(']')?;
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            place.push(match &after[..end] {
                "*" => Step::Values,
                name => Step::Field(name.to_owned()),
            });
            rest = &after[end..];
        }
    }
    Some(place)
}

/// Whether one is the other, or around it. `found` is a JSON pointer into an object.
pub fn is_near(place: &[Step], found: &str) -> bool {
    let mut steps = place.iter();
    found.split('/').skip(1).all(|part| match steps.next() {
        None | Some(Step::Values) => true,
        Some(Step::Items) => part.parse::<usize>().is_ok(),
        Some(Step::Field(name)) => *name == part.replace("~1", "/").replace("~0", "~"),
    })
}

/// The schema at a place.
pub fn at<'s>(schema: &'s Value, place: &[Step]) -> Option<&'s Value> {
    place.iter().try_fold(schema, |schema, step| match step {
        Step::Items => schema.get("items"),
        Step::Values => schema.get("additionalProperties"),
        Step::Field(name) => field(schema, name),
    })
}

/// The schema of a field, by name or as a value of a map.
pub fn field<'s>(schema: &'s Value, name: &str) -> Option<&'s Value> {
    let values = || {
        schema
            .get("additionalProperties")
            .filter(|values| values.is_object())
    };
    schema["properties"].get(name).or_else(values)
}

/// Where two schemas differ: a node whose own words differ, or a field that only one of them names.
pub fn changed(old: &Value, new: &Value, here: &Place, found: &mut Vec<Place>) {
    if old == new {
        return;
    }
    if own_words(old) != own_words(new) {
        found.push(here.clone());
    }
    let (before, after) = (&old["properties"], &new["properties"]);
    for name in names(before).chain(names(after).filter(|name| before.get(*name).is_none())) {
        let below = with(here, Step::Field(name.clone()));
        match (before.get(name), after.get(name)) {
            (Some(old), Some(new)) => changed(old, new, &below, found),
            _ => found.push(below),
        }
    }
    for (word, step) in [("items", Step::Items), ("additionalProperties", Step::Values)] {
        match (old.get(word), new.get(word)) {
            (Some(old), Some(new)) => changed(old, new, &with(here, step), found),
            (None, None) => {}
            _ => found.push(here.clone()),
        }
    }
}

fn with(place: &Place, step: Step) -> Place {
    let mut place = place.clone();
    place.push(step);
    place
}

fn names(properties: &Value) -> impl Iterator<Item = &String> {
    properties.as_object().into_iter().flat_map(Map::keys)
}

fn own_words(schema: &Value) -> Map<String, Value> {
    let mut words = schema.as_object().cloned().unwrap_or_default();
    for word in ["properties", "items", "additionalProperties"]
        .iter()
        .chain(&WORDS)
    {
        words.remove(*word);
    }
    words
}

/// Without the words for people.
pub fn plain(schema: &Value) -> Value {
    let Some(node) = schema.as_object() else {
        return schema.clone();
    };
    let each = |value: &Value| match value {
        Value::Array(branches) => branches.iter().map(plain).collect(),
        other => plain(other),
    };
    node.iter()
        .filter(|(word, _)| !WORDS[..4].contains(&word.as_str()))
        .map(|(word, value)| {
            let value = match word.as_str() {
                "properties" => Value::Object(
                    value
                        .as_object()
                        .into_iter()
                        .flatten()
                        .map(|(name, child)| (name.clone(), plain(child)))
                        .collect(),
                ),
                "items" | "additionalProperties" | "not" | "anyOf" | "oneOf" | "allOf" => each(value),
                _ => value.clone(),
            };
            (word.clone(), value)
        })
        .collect()
}

/// Takes fields out of both that are the same in both and that nothing speaks of: samples do without them, and large
/// schemas are checked as fast as small ones.
pub fn shrink(old: &mut Value, new: &mut Value) {
    // A default brings its fields with it.
    if [&*old, &*new]
        .iter()
        .any(|schema| schema["default"].is_object() || schema["default"].is_array())
    {
        return;
    }
    let mut needed: Vec<String> = Vec::new();
    for schema in [&*old, &*new] {
        for word in ["required", "anyOf", "oneOf", "allOf", "not"] {
            list_texts(&schema[word], &mut needed);
        }
    }
    let same: Vec<String> = names(&old["properties"])
        .filter(|name| !needed.contains(name) && new["properties"].get(*name) == old["properties"].get(*name))
        .cloned()
        .collect();
    for schema in [&mut *old, &mut *new] {
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|name, _| !same.contains(name));
        }
    }
    let (Some(old), Some(new)) = (old.as_object_mut(), new.as_object_mut()) else {
        return;
    };
    for word in ["items", "additionalProperties"] {
        if let (Some(old), Some(new)) = (old.get_mut(word), new.get_mut(word)) {
            shrink(old, new);
        }
    }
    if let (Some(Value::Object(old)), Some(Value::Object(new))) =
        (old.get_mut("properties"), new.get_mut("properties"))
    {
        for (name, old) in old.iter_mut() {
            if let Some(new) = new.get_mut(name) {
                shrink(old, new);
            }
        }
    }
}

/// All texts and names in there.
fn list_texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| list_texts(value, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                found.push(name.clone());
                list_texts(value, found);
            }
        }
        _ => {}
    }
}
