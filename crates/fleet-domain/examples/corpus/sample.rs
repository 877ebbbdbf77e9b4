//! Objects to try: as small as a schema allows, with one place in them that takes every value which might matter.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::{
    oracle,
    place::{Step, at, field},
    scalar::scalars,
};

/// Longer lists than this are not made.
const MAX_COUNT: u64 = 3_000;
/// How many values of each kind are tried at one place.
pub const MAX_VALUES: usize = 300;

/// Values for a place that has had one schema and gets another, whether the old one takes them or not.
pub fn values(old: Option<&Value>, new: Option<&Value>) -> Vec<Value> {
    let schemas: Vec<&Value> = old.into_iter().chain(new).collect();
    let mut found = scalars(&schemas);
    for schema in &schemas {
        found.extend(objects(schema, &schemas));
        found.extend(lists(schema, &schemas));
    }
    found.extend(branches(&schemas));
    found.extend([Value::Null, json!({}), json!([]), json!({"unknown": {"deep": 1}})]);
    found
}

/// An object of the schema in which the place has this value; several, where the schema leaves a choice.
pub fn around(schema: &Value, place: &[Step], value: &Value) -> Vec<Value> {
    let Some((step, rest)) = place.split_first() else {
        return vec![value.clone()];
    };
    let mut found = Vec::new();
    match step {
        Step::Field(name) => {
            let child = field(schema, name).unwrap_or(&Value::Null);
            let inner = around(child, rest, value);
            for mut whole in least_with(schema, &[name]) {
                for inner in &inner {
                    whole[name] = inner.clone();
                    found.push(whole.clone());
                }
            }
            if has_choices(schema)
                && let Some(validator) = oracle::validator(schema)
            {
                found.sort_by_key(|whole| !validator.is_valid(whole));
            }
            found.truncate(4);
        }
        Step::Values => {
            for inner in around(&schema["additionalProperties"], rest, value) {
                let mut whole = json!({"key": inner});
                fill_up(schema, &mut whole);
                found.push(whole);
            }
        }
        Step::Items => {
            for inner in around(&schema["items"], rest, value) {
                let others = count(schema, "minItems").unwrap_or(1).clamp(1, 20) - 1;
                let mut items = vec![inner];
                items.extend(distinct(&schema["items"], others));
                found.push(items.into());
            }
        }
    }
    found
}

/// The smallest values that the schema takes, with these fields in them.
pub fn least_with(schema: &Value, must: &[&str]) -> Vec<Value> {
    let kind = kind(schema);
    if kind == "array" {
        let many = count(schema, "minItems").unwrap_or(0).min(20);
        return vec![distinct(&schema["items"], many).into()];
    }
    if must.is_empty()
        && let Some(value) = plainest(schema)
    {
        return vec![value];
    }
    if kind != "object" && must.is_empty() {
        let validator = oracle::validator(schema);
        let fits = |value: &Value| validator.as_ref().is_none_or(|v| v.is_valid(value));
        return scalars(&[schema]).into_iter().filter(fits).take(1).collect();
    }
    let mut found = Vec::new();
    for option in options(schema) {
        let mut fields: BTreeSet<&str> = texts(&schema["required"]).collect();
        fields.extend(option.iter().flat_map(|branch| texts(&branch["required"])));
        fields.extend(must);
        let mut whole = Map::new();
        for name in fields {
            let own = field(schema, name);
            let mut all: Vec<&Value> = own.into_iter().collect();
            all.extend(option.iter().filter_map(|branch| branch["properties"].get(name)));
            let child = match all.as_slice() {
                [only] => (*only).clone(),
                all => merged(all),
            };
            if let Some(value) = least_with(&child, &[]).into_iter().next() {
                whole.insert(name.to_owned(), value);
            }
        }
        let mut whole = Value::Object(whole);
        if schema["x-kubernetes-embedded-resource"] == true {
            whole["apiVersion"] = "v1".into();
            whole["kind"] = "Thing".into();
        }
        fill_up(schema, &mut whole);
        if !found.contains(&whole) {
            found.push(whole);
        }
    }
    if found.len() > 1
        && let Some(validator) = oracle::validator(schema)
    {
        found.sort_by_key(|whole| !validator.is_valid(whole));
    }
    found
}

/// The value for a schema that says no more than its type, which is most of them.
fn plainest(schema: &Value) -> Option<Value> {
    let only = |word: &String| {
        matches!(
            word.as_str(),
            "type" | "default" | "nullable" | "maxLength" | "x-kubernetes-validations"
        )
    };
    let small = schema["maxLength"].as_u64() == Some(0);
    if small || !schema.as_object()?.keys().all(only) {
        return None;
    }
    match schema["type"].as_str()? {
        "string" => Some("a".into()),
        "integer" | "number" => Some(1.into()),
        "boolean" => Some(true.into()),
        _ => None,
    }
}

/// Several schemas that hold together, as one; the words of later ones win, all others stay in `allOf`.
fn merged(all: &[&Value]) -> Value {
    let mut one = all.first().map_or_else(|| json!({}), |first| (*first).clone());
    if all.len() > 1 {
        one["allOf"] = all[1..].iter().map(|schema| (*schema).clone()).collect();
    }
    one
}

/// Adds fields until there are as many as have to be.
fn fill_up(schema: &Value, whole: &mut Value) {
    let least = count(schema, "minProperties").unwrap_or(0).min(20);
    let named: Vec<String> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect();
    let spare = (0..least).map(|index| format!("k{index}"));
    for name in named.into_iter().chain(spare) {
        let Some(fields) = whole
            .as_object_mut()
            .filter(|fields| (fields.len() as u64) < least)
        else {
            return;
        };
        if let Some(child) = field(schema, &name)
            && !fields.contains_key(&name)
            && let Some(value) = least_with(child, &[]).into_iter().next()
        {
            fields.insert(name, value);
        }
    }
}

/// The ways to meet the combinations of a schema: which branches to follow.
fn options(schema: &Value) -> Vec<Vec<&Value>> {
    let mut ways: Vec<Vec<&Value>> = vec![vec![]];
    let all = schema["allOf"].as_array().into_iter().flatten();
    for node in std::iter::once(schema).chain(all) {
        for word in ["oneOf", "anyOf"] {
            let Some(branches) = node[word].as_array() else {
                continue;
            };
            let longer = ways.iter().flat_map(|way| {
                branches.iter().map(|branch| {
                    let mut way = way.clone();
                    way.push(branch);
                    way
                })
            });
            let mut longer: Vec<_> = longer.take(40).collect();
            longer.append(&mut ways);
            ways = longer;
        }
    }
    ways
}

fn has_choices(schema: &Value) -> bool {
    ["oneOf", "anyOf", "allOf", "not", "maxProperties"]
        .iter()
        .any(|word| schema.get(word).is_some())
}

/// Objects: the smallest, each field alone beside it, two fields, all fields, fields that nobody knows, many keys.
fn objects(schema: &Value, schemas: &[&Value]) -> Vec<Value> {
    if kind(schema) != "object" {
        return Vec::new();
    }
    let mut found = least_with(schema, &[]);
    let mut names: Vec<&str> = Vec::new();
    for schema in schemas {
        for name in schema["properties"].as_object().into_iter().flat_map(Map::keys) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    names.truncate(60);
    let child = |name: &str| schemas.iter().find_map(|schema| field(schema, name));
    let known: BTreeMap<&str, Value> = names
        .iter()
        .filter_map(|name| Some((*name, least_with(child(name)?, &[]).into_iter().next()?)))
        .collect();
    let value = |name: &str| known.get(name).cloned();
    let base = found.first().cloned().unwrap_or_else(|| json!({}));
    let with = |names: &[&str]| {
        let mut whole = base.clone();
        for name in names {
            whole[*name] = value(name).unwrap_or_else(|| json!("x"));
        }
        whole
    };
    let any_choice = schemas.iter().any(|schema| has_choices(schema));
    for (index, name) in names.iter().enumerate() {
        found.extend(least_with(schema, &[name]).into_iter().take(3));
        found.push(json!({*name: value(name)}));
        if child(name).is_some_and(|child| kind(child) == "object") {
            found.push(json!({*name: {}}));
        }
        // A free object that gets named fields is tried with what those do not take.
        if field(schema, name).is_none() {
            found.extend(
                [json!(1), json!("x"), json!({"x": 1}), json!([1])].map(|value| json!({*name: value})),
            );
        }
        if any_choice {
            found.extend(
                names[index + 1..]
                    .iter()
                    .take(20)
                    .map(|other| with(&[name, other])),
            );
        }
    }
    found.push(with(&names));
    let mut unknown = base.clone();
    unknown["unknownField"] = json!({"deep": "x"});
    found.push(unknown);
    if let Some(values) = schema
        .get("additionalProperties")
        .filter(|values| values.is_object())
    {
        for count in counts(schemas, &["minProperties", "maxProperties"]) {
            let value = least_with(values, &[]).into_iter().next().unwrap_or_default();
            found.push(
                (0..count)
                    .map(|index| (format!("k{index}"), value.clone()))
                    .collect::<Map<_, _>>()
                    .into(),
            );
        }
        for name in names {
            for value in scalars(&[values])
                .into_iter()
                .take(40)
                .chain(least_with(values, &[]))
            {
                found.push(json!({name: value}));
            }
        }
    }
    found
}

fn lists(schema: &Value, schemas: &[&Value]) -> Vec<Value> {
    if kind(schema) != "array" {
        return Vec::new();
    }
    let items = &schema["items"];
    let mut found: Vec<Value> = counts(schemas, &["minItems", "maxItems"])
        .into_iter()
        .map(|count| distinct(items, count).into())
        .collect();
    for item in least_with(items, &[])
        .into_iter()
        .chain(scalars(&[items]).into_iter().take(10))
    {
        found.push(json!([item]));
        found.push(json!([item, item]));
    }
    // Entries that have the same keys, and differ in one other field.
    let base = least_with(items, &[]).into_iter().next().unwrap_or_default();
    for (name, child) in items["properties"].as_object().into_iter().flatten().take(40) {
        for value in least_with(child, &[]).into_iter().chain(distinct(child, 3)) {
            let mut other = base.clone();
            other[name] = value;
            found.push(json!([base, other]));
        }
    }
    found
}

/// Values of the schema that differ from each other, as far as it has so many.
fn distinct(schema: &Value, count: u64) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    if kind(schema) == "object" {
        let base = least_with(schema, &[])
            .into_iter()
            .next()
            .unwrap_or_else(|| json!({}));
        let names = schema["properties"].as_object().into_iter().flatten();
        let text = names
            .filter(|(_, child)| matches!(kind(child), "string" | "integer"))
            .map(|(name, _)| name);
        let keys: Vec<&String> = text
            .filter(|name| texts(&schema["required"]).any(|other| other == *name))
            .collect();
        for index in 0..count.min(MAX_COUNT) {
            let mut one = base.clone();
            for key in &keys {
                let values = distinct(&schema["properties"][key.as_str()], count.min(30));
                if let Some(value) = values.get(index as usize % values.len().max(1)) {
                    one[key.as_str()] = value.clone();
                }
            }
            all.push(one);
        }
        return all;
    }
    let validator = oracle::validator(schema);
    let fits = |value: &Value| validator.as_ref().is_none_or(|v| v.is_valid(value));
    for value in least_with(schema, &[])
        .into_iter()
        .chain(scalars(&[schema]))
        .filter(fits)
    {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    let mut index = 0;
    while (all.len() as u64) < count.min(MAX_COUNT) && index < count {
        let more = if kind(schema) == "integer" {
            json!(index + 100)
        } else {
            json!(format!("text{index}"))
        };
        index += 1;
        if fits(&more) {
            all.push(more);
        }
    }
    let short = all.first().cloned();
    while (all.len() as u64) < count.min(MAX_COUNT) {
        let Some(value) = &short else { break };
        all.push(value.clone());
    }
    all.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    all
}

/// Values for what branches say of fields: each branch's fields with each value that it names.
fn branches(schemas: &[&Value]) -> Vec<Value> {
    let mut found = Vec::new();
    for schema in schemas {
        for way in options(schema) {
            for branch in way {
                for (name, child) in branch["properties"].as_object().into_iter().flatten() {
                    for base in least_with(schema, &[]).into_iter().take(2) {
                        for value in scalars(&[child]).into_iter().take(20) {
                            let mut whole = base.clone();
                            if whole.is_object() {
                                whole[name] = value;
                                found.push(whole);
                            }
                        }
                    }
                }
            }
        }
    }
    found.truncate(MAX_VALUES);
    found
}

fn counts(schemas: &[&Value], words: &[&str]) -> Vec<u64> {
    let named: BTreeSet<u64> = schemas
        .iter()
        .flat_map(|schema| words.iter().filter_map(|word| count(schema, word)))
        .collect();
    let mut all = around_counts(&named, MAX_COUNT);
    all.extend([0, 1, 2]);
    all.sort_unstable();
    all.dedup();
    all
}

pub fn around_counts(named: &BTreeSet<u64>, most: u64) -> Vec<u64> {
    let mut all: Vec<u64> = named
        .iter()
        .flat_map(|count| [count.saturating_sub(1), *count, count + 1])
        .collect();
    all.retain(|count| *count <= most);
    all
}

pub fn count(schema: &Value, word: &str) -> Option<u64> {
    schema[word]
        .as_u64()
        .or_else(|| schema[word].as_f64().map(|number| number as u64))
}

/// The type, also where only the words tell it.
pub fn kind(schema: &Value) -> &str {
    let has = |word: &str| schema.get(word).is_some();
    match schema["type"].as_str() {
        Some(kind) => kind,
        None if has("properties")
            || has("additionalProperties")
            || schema["x-kubernetes-preserve-unknown-fields"] == true =>
        {
            "object"
        }
        None if has("items") => "array",
        None => "",
    }
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Everything to try at one place: with each value, and without it.
pub fn tries(old: &Value, new: &Value, place: &[Step]) -> Vec<Value> {
    let mark = json!("\u{1}here");
    let frames = around(old, place, &mark);
    let mut found = Vec::new();
    for value in values(at(old, place), at(new, place)) {
        found.extend(frames.iter().map(|frame| put(frame, &mark, &value)));
    }
    if let Some((Step::Field(name), parent)) = place.split_last()
        && let Some(schema) = at(old, parent)
    {
        for mut value in least_with(schema, &[]) {
            found.extend(around(old, parent, &value));
            // Also where it is required: the server may fill it in.
            if let Some(fields) = value.as_object_mut() {
                fields.remove(name);
                found.extend(around(old, parent, &value));
            }
        }
    }
    found
}

/// The frame with the value where the mark is.
fn put(frame: &Value, mark: &Value, value: &Value) -> Value {
    match frame {
        _ if frame == mark => value.clone(),
        Value::Object(fields) => {
            let each = |(name, inner): (&String, &Value)| (name.clone(), put(inner, mark, value));
            Value::Object(fields.iter().map(each).collect())
        }
        Value::Array(items) => items.iter().map(|inner| put(inner, mark, value)).collect(),
        other => other.clone(),
    }
}
