//! Laws that hold for all schemas and values, tried on random ones: nothing changes between a schema and itself; what
//! is lost or refused was said to be; our validator agrees with a general one; nothing panics.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{
    Crd, Direction, Options, Report, Verdict, compare,
    object::{Checker, fill_in, prune},
    parse_schema,
    schema::Schema,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-4_i64..8).prop_map(Value::from),
        (-4_i64..8).prop_map(|n| json!(n as f64 / 2.0)),
        "[ab0]{0,4}".prop_map(Value::from),
        prop::sample::select(vec!["10.0.0.1", "2024-02-29", "::1"]).prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            fields(inner).prop_map(Value::Object),
        ]
    })
}

fn fields<S: Strategy<Value = Value>>(inner: S) -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(prop::sample::select(&NAMES[..]), inner, 0..4).prop_map(|fields| {
        fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    })
}

/// What may stand beside a type, of which each is taken or left.
fn limit() -> impl Strategy<Value = (&'static str, Value)> {
    prop_oneof![
        (0_u64..4).prop_map(|n| ("minLength", json!(n))),
        (0_u64..5).prop_map(|n| ("maxLength", json!(n))),
        prop::sample::select(vec!["^a", "b$", "^[ab]*$", "0", "^a+$", ".*"])
            .prop_map(|p| ("pattern", json!(p))),
        (-3_i64..6).prop_map(|n| ("minimum", json!(n))),
        (-3_i64..6).prop_map(|n| ("maximum", json!(n as f64 + 0.5))),
        any::<bool>().prop_map(|b| ("exclusiveMinimum", json!(b))),
        (1_i64..4).prop_map(|n| ("multipleOf", json!(n))),
        (0_u64..3).prop_map(|n| ("minItems", json!(n))),
        (0_u64..4).prop_map(|n| ("maxItems", json!(n))),
        (0_u64..3).prop_map(|n| ("minProperties", json!(n))),
        (0_u64..4).prop_map(|n| ("maxProperties", json!(n))),
        prop::collection::vec(scalar(), 1..4).prop_map(|values| ("enum", Value::from(values))),
        any::<bool>().prop_map(|b| ("nullable", json!(b))),
        prop::sample::select(vec!["ipv4", "ipv6", "date", "int32", "no such"])
            .prop_map(|f| ("format", json!(f))),
    ]
}

fn limits() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::vec(limit(), 0..3).prop_map(|limits| {
        limits
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    })
}

fn required() -> impl Strategy<Value = Value> {
    prop::sample::subsequence(&NAMES[..], 0..3).prop_map(|names| json!(names))
}

/// A branch of a combination: no types, as the server asks for.
fn branch() -> impl Strategy<Value = Value> {
    let plain = || {
        limits().prop_map(|mut limits| {
            limits.remove("nullable");
            Value::Object(limits)
        })
    };
    let leaf = prop_oneof![plain(), required().prop_map(|names| json!({"required": names}))];
    leaf.prop_recursive(2, 8, 3, move |inner| {
        let several = || prop::collection::vec(inner.clone(), 1..3);
        prop_oneof![
            3 => (fields(inner.clone()), required()).prop_map(|(fields, names)| json!({"properties": fields, "required": names})),
            1 => inner.clone().prop_map(|entry| json!({"items": entry})),
            1 => several().prop_map(|all| json!({"allOf": all})),
            1 => several().prop_map(|any| json!({"anyOf": any})),
            1 => inner.clone().prop_map(|not| json!({"not": not})),
        ]
    })
}

fn combination() -> impl Strategy<Value = Map<String, Value>> {
    let branches = || prop::collection::vec(branch(), 1..4);
    prop_oneof![
        4 => Just(Map::new()),
        1 => branches().prop_map(|b| Map::from_iter([("anyOf".to_owned(), Value::from(b))])),
        1 => branches().prop_map(|b| Map::from_iter([("oneOf".to_owned(), Value::from(b))])),
        1 => branches().prop_map(|b| Map::from_iter([("allOf".to_owned(), Value::from(b))])),
        1 => branch().prop_map(|b| Map::from_iter([("not".to_owned(), b)])),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    let leaf = (
        prop::sample::select(vec!["string", "integer", "number", "boolean"]),
        limits(),
        combination(),
    )
        .prop_map(|(kind, limits, combination)| {
            let mut schema = json!({"type": kind});
            extend(&mut schema, limits);
            extend(&mut schema, combination);
            schema
        });
    let leaf = prop_oneof![
        8 => leaf,
        1 => Just(json!({"x-kubernetes-int-or-string": true})),
        1 => Just(json!({"x-kubernetes-preserve-unknown-fields": true})),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            (
                fields(inner.clone()),
                required(),
                limits(),
                combination(),
                any::<bool>()
            )
                .prop_map(|(properties, required, limits, combination, preserve)| {
                    let mut schema =
                        json!({"type": "object", "properties": properties, "required": required});
                    if preserve {
                        schema["x-kubernetes-preserve-unknown-fields"] = true.into();
                    }
                    extend(&mut schema, limits);
                    extend(&mut schema, combination);
                    schema
                }),
            (inner.clone(), limits()).prop_map(|(values, limits)| {
                let mut schema = json!({"type": "object", "additionalProperties": values});
                extend(&mut schema, limits);
                schema
            }),
            (inner.clone(), scalar_key(), limits()).prop_map(|(other, key, limits)| {
                let entry =
                    json!({"type": "object", "required": ["a"], "properties": {"a": key, "b": other}});
                let mut schema = json!({
                    "type": "array", "items": entry,
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
                });
                extend(&mut schema, limits);
                schema
            }),
            (inner, limits(), any::<bool>(), any::<bool>()).prop_map(|(items, limits, set, preserve)| {
                let mut schema = json!({"type": "array", "items": items});
                if set {
                    schema["x-kubernetes-list-type"] = "set".into();
                }
                if preserve {
                    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
                }
                extend(&mut schema, limits);
                schema
            }),
        ]
    })
}

/// What entries of a list may be told apart by.
fn scalar_key() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({"type": "string"}),
        json!({"type": "string", "default": "a"}),
        json!({"type": "integer"}),
    ])
}

fn extend(schema: &mut Value, more: Map<String, Value>) {
    if let Some(schema) = schema.as_object_mut() {
        schema.extend(more);
    }
}

/// A small change somewhere in a schema: most pairs of random schemas have nothing in common.
fn changed() -> impl Strategy<Value = (Value, Value)> {
    (
        schema(),
        schema(),
        limits(),
        combination(),
        scalar(),
        any::<prop::sample::Index>(),
        0..11_u8,
    )
        .prop_map(|(mut old, other, limits, combination, default, index, how)| {
            let mut new = old.clone();
            let mut places = Vec::new();
            list_places(&old, String::new(), &mut places);
            let place = &places[index.index(places.len())];
            let node = new.pointer_mut(place).unwrap();
            match how {
                0 => *node = other,
                3 => extend(node, combination),
                4 => {
                    let fields = node.as_object_mut().unwrap();
                    if let Some(name) = fields.keys().find(|name| *name != "type").cloned() {
                        fields.remove(&name);
                    }
                }
                5 if node["properties"].is_object() => node["properties"]["b"] = other,
                6 if node["properties"].is_object() => node["required"] = json!(["a", "c"]),
                7 if node["properties"].is_object() => {
                    node["properties"].as_object_mut().unwrap().remove("a");
                }
                // A server refuses a default that its own schema refuses.
                8 if Checker::default().accepts(&parse_schema(node), &default) && !default.is_null() => {
                    node["default"] = default;
                }
                // It goes, or is another one than before.
                9 | 10 if Checker::default().accepts(&parse_schema(node), &default) && !default.is_null() => {
                    if how == 9 {
                        node.as_object_mut().unwrap().remove("default");
                    } else if node["default"].is_null() && node["type"] == "string" {
                        node["default"] = "a".into();
                    }
                    old.pointer_mut(place).unwrap()["default"] = default;
                }
                _ => extend(node, limits),
            }
            (old, new)
        })
}

fn list_places(schema: &Value, path: String, places: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        list_places(property, format!("{path}/properties/{name}"), places);
    }
    for child in ["items", "additionalProperties"] {
        if schema[child].is_object() {
            list_places(&schema[child], format!("{path}/{child}"), places);
        }
    }
    places.push(path);
}

fn crd(spec: &Value) -> Crd {
    Crd::parse(&json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec},
            }}}],
        },
    }))
    .unwrap()
}

fn report(old: &Value, new: &Value) -> Report {
    let options = Options {
        forward: true,
        backward: true,
        ..Options::default()
    };
    compare(&[crd(old)], &[crd(new)], &options)
}

/// A version that comes beside the stored one, or becomes it.
fn versions(one: &Value, other: &Value, moved: bool) -> Report {
    let version = |name: &str, stored: bool, spec: &Value| {
        json!({"name": name, "served": true, "storage": stored, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": spec},
        }}})
    };
    let crd = |versions: Value| {
        Crd::parse(&json!({
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "names": {"plural": "things", "kind": "Thing"}, "versions": versions},
        }))
        .unwrap()
    };
    let old = crd(json!([version("v1", true, one)]));
    let new = crd(json!([version("v1", !moved, one), version("v2", moved, other)]));
    let options = Options {
        forward: true,
        ..Options::default()
    };
    compare(&[old], &[new], &options)
}

/// A server that has one schema.
struct Server {
    schema: Schema,
    checker: Checker,
}

impl Server {
    fn new(schema: &Value) -> Self {
        Self {
            schema: parse_schema(&json!({"type": "object", "properties": {"spec": schema}})),
            checker: Checker::default(),
        }
    }

    /// An object as it was written; nothing if it is refused.
    fn write(&mut self, value: &Value) -> Option<Value> {
        let mut object = json!({"spec": value});
        prune(&self.schema, &mut object, false);
        self.store(value).map(|_| object)
    }

    /// An object as it is stored; nothing if it is refused.
    fn store(&mut self, value: &Value) -> Option<Value> {
        let mut object = json!({"spec": value});
        prune(&self.schema, &mut object, false);
        fill_in(&self.schema, &mut object);
        self.checker.accepts(&self.schema, &object).then_some(object)
    }

    /// The same, with rules.
    fn store_with_rules(&mut self, value: &Value) -> Option<Value> {
        let object = self.store(value)?;
        self.checker
            .check(&self.schema, &object)
            .is_empty()
            .then_some(object)
    }

    fn takes_with_rules(&mut self, object: &Value) -> bool {
        let mut object = object.clone();
        let lost = !prune(&self.schema, &mut object, false).is_empty();
        fill_in(&self.schema, &mut object);
        !lost && self.checker.check(&self.schema, &object).is_empty()
    }

    /// What a stored object comes to: whether fields are lost, and whether it is refused.
    fn meet(&mut self, object: &Value) -> (bool, bool) {
        let mut object = object.clone();
        let lost = !prune(&self.schema, &mut object, false).is_empty();
        fill_in(&self.schema, &mut object);
        (lost, !self.checker.accepts(&self.schema, &object))
    }
}

/// The same schema in the words of JSON Schema.
fn general(schema: &Value) -> Value {
    let Some(node) = schema.as_object() else {
        return schema.clone();
    };
    let mut out = Map::new();
    for (name, value) in node {
        match name.as_str() {
            "properties" => {
                let children: Map<String, Value> = value
                    .as_object()
                    .unwrap()
                    .iter()
                    .map(|(name, child)| (name.clone(), general(child)))
                    .collect();
                out.insert(name.clone(), Value::Object(children));
            }
            "items" | "additionalProperties" | "not" => {
                out.insert(name.clone(), general(value));
            }
            "anyOf" | "oneOf" | "allOf" => {
                out.insert(
                    name.clone(),
                    value.as_array().unwrap().iter().map(general).collect(),
                );
            }
            "x-kubernetes-int-or-string" => {
                out.insert("type".to_owned(), json!(["integer", "string"]));
            }
            "minimum" if node.get("exclusiveMinimum") == Some(&Value::Bool(true)) => {
                out.insert("exclusiveMinimum".to_owned(), value.clone());
            }
            "x-kubernetes-list-type" if value == "set" => {
                out.insert("uniqueItems".to_owned(), true.into());
            }
            "exclusiveMinimum" | "nullable" | "default" => {}
            "enum" => {
                let listed = value.as_array().unwrap().iter().filter(|value| !value.is_null());
                let listed: Vec<Value> = listed.cloned().collect();
                // Nothing is this text: an empty list is none in JSON Schema.
                let none = || vec![json!("no such value")];
                let listed = if listed.is_empty() { none() } else { listed };
                out.insert(name.clone(), listed.into());
            }
            _ => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    // The server puts a null to its type and to the listed values of its own schema, which take none; and to no combination.
    let may_be_null = node.get("nullable") == Some(&Value::Bool(true)) || !out.contains_key("type");
    if may_be_null && node.get("enum").is_none() {
        return json!({"anyOf": [{"type": "null"}, out]});
    }
    Value::Object(out)
}

/// JSON of any shape that has the words of a definition in it.
fn anything() -> impl Strategy<Value = Value> {
    let words = vec![
        "spec",
        "versions",
        "schema",
        "openAPIV3Schema",
        "properties",
        "items",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "type",
        "enum",
        "default",
        "required",
        "pattern",
        "minimum",
        "exclusiveMinimum",
        "additionalProperties",
        "metadata",
        "name",
        "names",
        "x-kubernetes-validations",
        "rule",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
        "status",
        "conversion",
        "subresources",
    ];
    let leaf = prop_oneof![
        scalar(),
        any::<f64>().prop_map(|n| json!(n)),
        any::<u64>().prop_map(Value::from),
        prop::sample::select(vec![
            "object",
            "string",
            "array",
            "integer",
            "map",
            "set",
            "(",
            "^a{1000}{1000}$",
            "oldSelf"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 96, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(words.clone()), inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

/// What rules may say of three fields and a list.
fn rule() -> impl Strategy<Value = String> {
    let value = || prop::sample::select(vec!["x", "y", "z"]);
    let atom =
        (prop::sample::select(&NAMES[..3]), value(), 0..16_u8).prop_map(|(name, value, how)| match how {
            0 | 1 => format!("has(self.{name})"),
            2 => format!("!has(self.{name})"),
            3 => format!("self.{name} == '{value}'"),
            4 => format!("self.{name} != '{value}'"),
            5 => format!("self.{name} in ['x', '{value}']"),
            6 => format!("self.?{name}.orValue('y') == '{value}'"),
            9 => format!("self.{name}.size() > 0"),
            10 => format!("self.{name}.matches('^[w{value}]$')"),
            11 => format!("'{value}' == self.{name}"),
            12 => "(!has(self.l) || self.l.all(e, self.l.all(f, e == f)))".to_owned(),
            13 => format!("(!has(self.l) || self.l.exists(e, self.l.all(f, e == f || f != '{value}')))"),
            14 => "(!has(self.l) || !self.l.exists(e, self.l.exists(f, e != f)))".to_owned(),
            15 => format!("(!has(self.l) || self.l.all(e, self.l.exists_one(f, f == e) || e == '{value}'))"),
            7 => format!("(!has(self.l) || self.l.all(e, e != '{value}'))"),
            _ => format!("(has(self.l) && self.l.filter(e, e == '{value}').size() <= 1)"),
        });
    atom.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} || {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} && {b})")),
            inner.clone().prop_map(|a| format!("!({a})")),
            (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
        ]
    })
}

fn ruled() -> impl Strategy<Value = Value> {
    let values = vec![
        json!(["x"]),
        json!(["x", "y"]),
        json!(["x", "y", "z"]),
        Value::Null,
    ];
    let field = (prop::sample::select(values), 0..4_u8, 0..6_u8).prop_map(|(values, default, null)| {
        let mut field = json!({"type": "string"});
        if !values.is_null() {
            field["enum"] = values;
        }
        if default == 0 {
            field["default"] = "x".into();
        }
        if null == 0 {
            field["nullable"] = true.into();
        }
        field
    });
    let fields = prop::collection::vec(field, 3);
    let rules = prop::collection::vec(rule(), 0..3);
    (fields, rules, prop::sample::subsequence(&NAMES[..3], 0..2)).prop_map(|(fields, rules, required)| {
        let rules: Vec<Value> = rules.iter().map(|rule| json!({"rule": rule})).collect();
        let named = NAMES.iter().zip(fields);
        let mut properties: Map<String, Value> = named.map(|(name, field)| ((*name).to_owned(), field)).collect();
        properties.insert("l".to_owned(), json!({"type": "array", "items": {"type": "string"}}));
        json!({"type": "object", "properties": properties, "required": required, "x-kubernetes-validations": rules})
    })
}

/// Which fields go together, in words of several kinds.
fn tie() -> impl Strategy<Value = Map<String, Value>> {
    let two = prop::sample::subsequence(&NAMES[..3], 2);
    (two, 0..9_u8).prop_map(|(names, how)| {
        let (a, b) = (names[0], names[1]);
        let each = json!([{"required": [a]}, {"required": [b]}]);
        let words = match how {
            0 => json!({"oneOf": each}),
            1 => json!({"anyOf": each}),
            2 => json!({"not": {"required": [a, b]}}),
            3 => json!({"minProperties": 1}),
            4 => json!({"maxProperties": 1}),
            5 => json!({"x-kubernetes-validations": [{"rule": format!("has(self.{a}) != has(self.{b})")}]}),
            6 => json!({"x-kubernetes-validations": [{"rule": format!("has(self.{a}) || has(self.{b})")}]}),
            7 => json!({"x-kubernetes-validations": [{"rule": format!("!has(self.{a}) || !has(self.{b})")}]}),
            _ => json!({"anyOf": [{"required": [a]}, {"not": {"required": [b]}}]}),
        };
        words.as_object().cloned().unwrap_or_default()
    })
}

/// Two schemas that tie fields together in other words.
fn tied_pair() -> impl Strategy<Value = (Value, Value)> {
    let ties = || prop::collection::vec(tie(), 1..3);
    (ruled(), ruled(), ties(), ties(), 0..4_u8).prop_map(|(mut old, other, before, after, how)| {
        old["x-kubernetes-validations"] = json!([]);
        if how > 0 {
            old["properties"].as_object_mut().unwrap().remove("l");
        }
        let mut new = old.clone();
        if how == 1 {
            new["properties"]["a"] = other["properties"]["a"].clone();
        }
        for words in before {
            extend(&mut old, words);
        }
        for words in after {
            extend(&mut new, words);
        }
        (old, new)
    })
}

/// Two schemas that differ in a field, a default or some of their rules.
fn ruled_pair() -> impl Strategy<Value = (Value, Value)> {
    let name = prop::sample::select(&NAMES[..3]);
    (ruled(), ruled(), rule(), name, 0..9_u8).prop_map(|(mut old, other, rule, name, how)| {
        let mut new = old.clone();
        let rules = "x-kubernetes-validations";
        match how {
            0 => new["properties"][name] = other["properties"][name].clone(),
            1 => new["properties"][name]["default"] = "x".into(),
            2 => new[rules] = other[rules].clone(),
            3 => {
                if let Some(first) = new.pointer_mut("/x-kubernetes-validations/0/rule") {
                    *first = format!("{} || {rule}", first.as_str().unwrap()).into();
                }
            }
            4 => {
                old["properties"].as_object_mut().unwrap().remove(name);
                old["required"]
                    .as_array_mut()
                    .unwrap()
                    .retain(|required| required != name);
                // A server takes no rule about a field that is not there.
                let written = old[rules].to_string();
                if written.contains(&format!(".{name}")) || written.contains(&format!(".?{name}")) {
                    old[rules] = json!([]);
                }
            }
            // In other words, or in words that say more.
            5..8 => {
                new[rules] = json!([]);
                match how {
                    5 => new["properties"][name] = other["properties"][name].clone(),
                    6 => new["required"] = other["required"].clone(),
                    _ => new["properties"][name]["pattern"] = "^[wxy]$".into(),
                }
            }
            _ => new[rules].as_array_mut().unwrap().push(json!({"rule": rule})),
        }
        (old, new)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_changes_between_a_schema_and_itself(schema in schema()) {
        prop_assert!(report(&schema, &schema).findings.is_empty());
    }

    #[test]
    fn what_is_lost_or_refused_was_said((old, new) in changed(), values in prop::collection::vec(value(), 24)) {
        let report = report(&old, &new);
        for (from, to, verdict, direction) in [
            (&old, &new, report.forward, Direction::Forward),
            (&new, &old, report.backward, Direction::Backward),
        ] {
            let (mut before, mut after) = (Server::new(from), Server::new(to));
            for object in values.iter().filter_map(|value| before.store(value)) {
                let (lost, refused) = after.meet(&object);
                prop_assert!(
                    !(lost || refused) || verdict != Some(Verdict::Safe),
                    "{direction}: {object} is lost ({lost}) or refused ({refused}) by {to}, was {from}: {:?}", report.findings
                );
            }
            // Who writes it again leaves the same fields to their defaults. (A null that was dropped is a warning.)
            let written = values.iter().filter_map(|value| before.write(value));
            for object in written.filter(|object| !object.to_string().contains("null")) {
                let (_, refused) = after.meet(&object);
                prop_assert!(
                    !refused || verdict != Some(Verdict::Safe),
                    "{direction}: {object}, written anew, is refused by {to}, was {from}: {:?}", report.findings
                );
            }
        }
    }

    /// What the name of another version is put to keeps what that version knows.
    #[test]
    fn what_another_version_loses_was_said(
        (one, other) in changed(), moved in any::<bool>(), values in prop::collection::vec(value(), 24),
    ) {
        let report = versions(&one, &other, moved);
        let (mut before, mut after) = (Server::new(&one), Server::new(&other));
        for object in values.iter().filter_map(|value| before.store(value)) {
            let (lost, _) = after.meet(&object);
            prop_assert!(
                !lost || report.forward != Some(Verdict::Safe),
                "{object} loses something under {other}, was {one}: {:?}", report.findings
            );
        }
    }

    #[test]
    fn the_validator_agrees_with_a_general_one(schema in schema(), values in prop::collection::vec(value(), 8)) {
        // Of these the general one knows nothing, or something else.
        let text = schema.to_string();
        prop_assume!(!text.contains("list-map-keys") && !text.contains("format"));
        let ours = parse_schema(&schema);
        let mut checker = Checker::default();
        let theirs = jsonschema::validator_for(&general(&schema)).unwrap();
        for mut value in values {
            // What only a branch names is never there.
            prune(&ours, &mut value, false);
            prop_assert_eq!(
                checker.accepts(&ours, &value), theirs.is_valid(&value), "{} under {}", value, schema
            );
        }
    }

    #[test]
    fn nothing_panics(old in anything(), new in anything(), value in value()) {
        let wrap = |schema: &Value| crd(schema);
        let options = Options { forward: true, backward: true, ..Options::default() };
        let _ = compare(&[wrap(&old)], &[wrap(&new)], &options);
        let _ = Server::new(&new).meet(&json!({"spec": value}));
        if let (Ok(old), Ok(new)) = (Crd::parse(&old), Crd::parse(&new)) {
            let _ = compare(&[old], &[new], &options);
        }
        let versions = |v: &Value| json!({"metadata": {"name": "x"}, "spec": {"versions": [v]}});
        if let (Ok(old), Ok(new)) = (Crd::parse(&versions(&old)), Crd::parse(&versions(&new))) {
            let _ = compare(&[old], &[new], &options);
        }
    }
}

proptest! {
    // Many values are tried for each.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 160, ..ProptestConfig::default() })]

    /// Whatever rules say, an object that is refused from now on was told of.
    #[test]
    fn what_rules_refuse_was_said((old, new) in prop_oneof![ruled_pair(), tied_pair()]) {
        let safe = report(&old, &new).forward == Some(Verdict::Safe);
        let texts = [None, Some(json!("x")), Some(json!("y")), Some(json!("w")), Some(Value::Null)];
        let lists = [None, Some(json!([])), Some(json!(["x", "x"])), Some(json!(["y", "z", "z"]))];
        let (mut before, mut after) = (Server::new(&old), Server::new(&new));
        // There is nothing to be shown of what is not called safe.
        for number in 0..if safe { texts.len().pow(3) * lists.len() } else { 0 } {
            let mut object = Map::new();
            let mut rest = number;
            for (name, values) in NAMES.iter().zip([&texts[..], &texts, &texts]).chain([(&"l", &lists[..])]) {
                if let Some(value) = &values[rest % values.len()] {
                    object.insert((*name).to_owned(), value.clone());
                }
                rest /= values.len();
            }
            let Some(stored) = before.store_with_rules(&Value::Object(object)) else { continue };
            prop_assert!(after.takes_with_rules(&stored), "{stored} is refused by {new}, was {old}");
        }
    }
}
