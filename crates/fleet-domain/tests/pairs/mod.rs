//! Pairs of definitions by size: such as people write, and such as only somebody writes who wants to do harm. And the
//! clock that both are measured with.

// Each test uses a part of it; helpers of tests, where a panic is a failed test.
#![allow(dead_code, clippy::unwrap_used)]

use std::time::Duration;

use gantry_fleet_domain::crd_diff::{Crd, Options, Report, compare};
use serde_json::{Map, Value, json};

pub type Pair = (Value, Value);

pub fn document(schema: Value) -> Value {
    json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn with_field(field: Value) -> Value {
    document(json!({"type": "object", "properties": {"a": field}}))
}

fn with_fields(fields: impl Iterator<Item = (String, Value)>) -> Value {
    document(json!({"type": "object", "properties": fields.collect::<Map<_, _>>()}))
}

/// Time that this thread has worked, whatever else the machine does.
pub fn on_cpu() -> Duration {
    // The account is brought up to date when the thread steps aside, and otherwise only now and then.
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// Reads both and compares them in both directions.
pub fn diff((old, new): &Pair) -> Report {
    let options = Options {
        forward: true,
        backward: true,
        ..Options::default()
    };
    let (old, new) = (Crd::parse(old).unwrap(), Crd::parse(new).unwrap());
    compare(&[old], &[new], &options)
}

pub fn size((old, new): &Pair) -> usize {
    old.to_string().len().max(new.to_string().len())
}

/// Like a pod template: wide, up to seven levels deep, with descriptions. `change` alters every n-th field.
pub fn template(width: usize, depth: usize, change: usize) -> Value {
    document(level(width, depth, change, &mut 0))
}

fn level(width: usize, depth: usize, change: usize, count: &mut usize) -> Value {
    let mut properties = Map::new();
    for index in 0..width {
        *count += 1;
        let touched = change > 0 && count.is_multiple_of(change);
        let mut field = match index % 4 {
            _ if depth > 0 && index < 3 => level(width, depth - 1, change, count),
            0 => json!({"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}),
            1 => json!({"type": "integer", "format": "int32", "minimum": 0}),
            2 => json!({"type": "array", "items": {"type": "string", "enum": ["One", "Two", "Three"]}}),
            _ => {
                json!({"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}})
            }
        };
        field["description"] =
            "A sentence about what this field is for, as long as such sentences are.".into();
        if touched {
            field = json!({"type": "string", "minLength": 1, "pattern": "^[a-z]+$"});
        }
        properties.insert(format!("fieldNumber{index}"), field);
    }
    json!({"type": "object", "properties": properties})
}

/// A kind of hostile pair, and how many of its parts make 1.5 MB.
pub struct Hostile {
    pub name: &'static str,
    pub full: usize,
    pub make: fn(usize) -> Pair,
}

pub const HOSTILE: &[Hostile] = &[
    Hostile {
        name: "giant enum, one removed",
        full: 64_000,
        make: |n| (words(1..n, 1), words(2..n, 1)),
    },
    Hostile {
        name: "giant enum, mixed up",
        full: 64_000,
        make: |n| (words(0..n, 7_919), words(n / 2..n + n / 2, 7_907)),
    },
    Hostile {
        name: "enum under a pattern",
        full: 64_000,
        make: |n| {
            let mut new = words(0..n, 1);
            new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["a"]["pattern"] =
                "^(([a-z0-9]+[-a-z0-9]*){1,63}\\.?){1,9}$".into();
            (words(0..n, 1), new)
        },
    },
    Hostile {
        name: "large patterns",
        full: 18_000,
        make: |n| (patterns(n, "a"), patterns(n, "b")),
    },
    Hostile {
        name: "patterns of letters",
        full: 14_000,
        make: |n| {
            let side = |min: usize| {
                let pattern = "\\p{L}".repeat(8);
                with_fields((0..n).map(move |i| {
                    let pattern = format!("^{pattern}{i}$");
                    (
                        format!("f{i}"),
                        json!({"type": "string", "minLength": min, "pattern": pattern}),
                    )
                }))
            };
            (side(0), side(1))
        },
    },
    Hostile {
        name: "patterns that hold together",
        full: 60_000,
        make: |n| {
            let side = |c: char| {
                let all: Vec<Value> = (0..n).map(|i| json!({"pattern": format!("{c}{i}")})).collect();
                with_field(json!({"type": "string", "allOf": all}))
            };
            (side('a'), side('b'))
        },
    },
    Hostile {
        name: "steps that hold together",
        full: 64_000,
        make: |n| {
            let side = |first: usize| {
                let all: Vec<Value> = (0..n).map(|i| json!({"multipleOf": first + 2 * i})).collect();
                with_field(json!({"type": "integer", "allOf": all}))
            };
            (side(3), side(100_002))
        },
    },
    Hostile {
        name: "limits under levels of allOf",
        full: 50_000,
        make: |n| {
            let side = |c: char| {
                let all: Vec<Value> = (0..n).map(|i| json!({"pattern": format!("{c}{i}")})).collect();
                let mut node = json!({"allOf": all});
                for _ in 0..90 {
                    node = json!({"allOf": [node]});
                }
                node["type"] = "string".into();
                with_field(node)
            };
            (side('a'), side('b'))
        },
    },
    Hostile {
        name: "nested combinations",
        full: 1 << 16,
        make: |n| {
            let depth = n.ilog2() as usize - 2;
            let side = |offset| {
                with_field(json!({"type": "string", "anyOf": [nest(depth, offset), nest(depth, offset + 1)]}))
            };
            (side(0), side(1))
        },
    },
    Hostile {
        name: "branches that differ in the end",
        full: 70_000,
        make: |n| {
            let side = |offset: usize| {
                let branch = |last: usize| {
                    let mut fields: Map<String, Value> =
                        (0..n / 33).map(|i| (format!("f{i}"), json!({}))).collect();
                    fields.insert("z".to_owned(), json!({"minLength": last + 1}));
                    json!({"properties": fields})
                };
                let branches: Vec<Value> = (0..33).map(|i| branch(offset + i)).collect();
                with_field(json!({"type": "object", "anyOf": branches.clone(), "oneOf": branches}))
            };
            (side(0), side(50))
        },
    },
    Hostile {
        name: "many pairs of branches",
        full: 14_000,
        make: |n| {
            let side = |offset: usize| {
                let pair = |i: usize| json!({"anyOf": [{"minLength": i}, {"maxLength": i + 1_000}], "not": {"minLength": i + 5_000}});
                with_fields((0..n / 400).map(|field| {
                    let all: Vec<Value> = (0..400).map(|i| pair(offset + 2 * i)).collect();
                    (format!("f{field}"), json!({"type": "string", "allOf": all}))
                }))
            };
            (side(1), side(2))
        },
    },
    Hostile {
        name: "defaults under branches",
        full: 20_000,
        make: |n| {
            let side = |value: &str| {
                let fields: Map<String, Value> = (0..n)
                    .map(|i| (format!("f{i}"), json!({"type": "string", "default": value})))
                    .collect();
                let branches: Vec<Value> = (0..n).map(|i| json!({"minProperties": i})).collect();
                document(json!({"type": "object", "properties": fields, "anyOf": branches}))
            };
            (side("a"), side("b"))
        },
    },
    Hostile {
        name: "fields that were all renamed",
        full: 45_000,
        make: |n| {
            let side =
                |c: char| with_fields((0..n).map(move |i| (format!("{c}_{i}"), json!({"type": "string"}))));
            (side('a'), side('b'))
        },
    },
    Hostile {
        name: "rules that all changed",
        full: 22_000,
        make: |n| {
            let side = |c: char| {
                let rules: Vec<Value> = (0..n)
                    .map(|i| json!({"rule": format!("self.{c}{i} > 0"), "message": format!("{}", n - i)}))
                    .collect();
                with_field(json!({"type": "object", "x-kubernetes-validations": rules}))
            };
            (side('a'), side('b'))
        },
    },
    Hostile {
        name: "changes under a long name",
        full: 750_000,
        make: |n| {
            let side = |kind: &str| {
                let fields: Map<String, Value> = (0..n / 50)
                    .map(|i| (format!("f{i}"), json!({"type": kind})))
                    .collect();
                let mut schema = json!({"type": "object", "properties": {}});
                schema["properties"]["n".repeat(n)] = json!({"type": "object", "properties": fields});
                document(schema)
            };
            (side("string"), side("integer"))
        },
    },
    Hostile {
        name: "deeper than is read",
        full: 40_000,
        make: |n| {
            let side = |kind: &str| {
                let fields: Map<String, Value> =
                    (0..n).map(|i| (format!("f{i}"), json!({"type": kind}))).collect();
                let mut node = json!({"type": "object", "properties": fields});
                for _ in 0..110 {
                    node = json!({"type": "object", "properties": {"a": node}});
                }
                document(node)
            };
            (side("string"), side("integer"))
        },
    },
    Hostile {
        name: "rules that are tried on values",
        full: 6_000,
        make: |n| {
            let side = |rule: &str| {
                with_fields((0..n).map(|i| {
                    let fields: Map<String, Value> = (0..4).map(|i| (format!("f{i}"), json!({"type": "string"}))).collect();
                    let rule = format!("{rule} || self.f0 == 'v{i}' || self.f2.matches('^a+$')");
                    let node = json!({"type": "object", "properties": fields, "x-kubernetes-validations": [{"rule": rule}]});
                    (format!("o{i}"), node)
                }))
            };
            (side("has(self.f1)"), side("has(self.f3)"))
        },
    },
    Hostile {
        name: "rules above many defaults",
        full: 9_000,
        make: |n| {
            let side = |default: &str| {
                let fields: Map<String, Value> = (0..n)
                    .map(|i| (format!("f{i}"), json!({"type": "string", "default": default})))
                    .collect();
                let rules: Vec<Value> =
                    (0..n).map(|i| json!({"rule": format!("self.f{i} != self.f{} || self.f0 in ['a', 'b']", n - 1 - i)})).collect();
                let inner =
                    json!({"type": "object", "properties": fields, "x-kubernetes-validations": rules});
                (0..20).fold(inner, |inner, _| {
                    json!({"type": "object", "properties": {"a": inner}, "x-kubernetes-validations": [{"rule": "self.a == self.a.a"}]})
                })
            };
            (document(side("a")), document(side("b")))
        },
    },
    Hostile {
        name: "long rules",
        full: 52_000,
        make: |n| {
            // As long as rules are that are read at all.
            let side = |word: &str| {
                with_fields((0..n.div_ceil(1_000)).map(|field| {
                    let parts: Vec<String> = (0..n.min(1_000))
                        .map(|i| format!("has(self.{word}{i:08})"))
                        .collect();
                    let rules = json!([{"rule": parts.join(" && ")}]);
                    let fields = json!({"a": {"type": "string"}});
                    (
                        format!("f{field}"),
                        json!({"type": "object", "properties": fields, "x-kubernetes-validations": rules}),
                    )
                }))
            };
            (side("a"), side("b"))
        },
    },
    Hostile {
        name: "loops within loops",
        full: 4_000,
        make: |n| {
            let side = |op: &str| {
                with_fields((0..n).map(|i| {
                    let rule = format!("self.all(a, self.all(b, self.all(c, self.all(d, a.k {op} b.k || c.k == 'v{i}' || d.k == c.k))))");
                    let entry = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}});
                    (format!("l{i}"), json!({"type": "array", "items": entry, "x-kubernetes-validations": [{"rule": rule}]}))
                }))
            };
            (side("=="), side("<"))
        },
    },
    Hostile {
        name: "defaults that all went",
        full: 20_000,
        make: |n| {
            let side = |default: Value| {
                let fields: Map<String, Value> = (0..n)
                    .map(|i| {
                        let mut field = json!({"type": "string"});
                        if !default.is_null() {
                            field["default"] = default.clone();
                        }
                        (format!("f{i}"), field)
                    })
                    .collect();
                document(json!({"type": "object", "minProperties": 1, "properties": fields}))
            };
            (side("a".into()), side(Value::Null))
        },
    },
    Hostile {
        name: "versions beside a large one",
        full: 12_000,
        make: |n| {
            let side = |served: bool| {
                let fields: Map<String, Value> = (0..n)
                    .map(|i| (format!("f{i}"), json!({"type": "string"})))
                    .collect();
                let mut crd = document(json!({"type": "object", "properties": fields}));
                let more =
                    (0..n).map(|i| json!({"name": format!("w{i}"), "served": served, "storage": false}));
                let versions = crd["spec"]["versions"].as_array_mut().unwrap();
                versions.extend(more);
                crd
            };
            (side(false), side(true))
        },
    },
    Hostile {
        name: "versions",
        full: 22_000,
        make: |n| {
            let side = |served: bool| {
                let mut crd = document(json!({}));
                let versions: Vec<Value> = (0..n)
                    .map(|i| json!({"name": format!("v{i}"), "served": served, "storage": i == 0}))
                    .collect();
                crd["spec"]["versions"] = versions.into();
                crd
            };
            (side(true), side(false))
        },
    },
];

/// Values in steps: in order with a step of one, and otherwise mixed up.
fn words(range: std::ops::Range<usize>, step: usize) -> Value {
    let count = range.len();
    let values: Vec<String> = (0..count)
        .map(|n| format!("value-number-{:06}", range.start + n * step % count))
        .collect();
    with_field(json!({"type": "string", "enum": values}))
}

fn patterns(count: usize, last: &str) -> Value {
    with_fields((0..count).map(|n| {
        let pattern = format!("^(([a-z0-9]+[-a-z0-9]*){{1,63}}\\.?){{1,{}}}{last}$", n % 40 + 1);
        (format!("f{n}"), json!({"type": "string", "pattern": pattern}))
    }))
}

fn nest(depth: usize, offset: usize) -> Value {
    if depth == 0 {
        return json!({"minLength": offset});
    }
    json!({"anyOf": [nest(depth - 1, offset), nest(depth - 1, offset + 1)], "maxLength": 100 + depth})
}
