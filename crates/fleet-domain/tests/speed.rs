//! How long a comparison takes, printed and not judged: times are for people. `cargo test --release -p
//! gantry-fleet-domain --test speed -- --ignored --nocapture`.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use gantry_fleet_domain::crd_diff::{Crd, Options, compare};
use serde_json::{Map, Value, json};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn document(schema: Value) -> Value {
    json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// Like a pod template: wide, seven levels deep, with descriptions. `change` alters every n-th field.
fn large(width: usize, depth: usize, change: usize, count: &mut usize) -> Value {
    let mut properties = Map::new();
    for index in 0..width {
        *count += 1;
        let touched = change > 0 && count.is_multiple_of(change);
        let mut field = match index % 4 {
            _ if depth > 0 && index < 3 => large(width, depth - 1, change, count),
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

/// Time that this thread has worked, whatever else the machine does.
fn on_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

fn measure(name: &str, old: &Value, new: &Value) {
    let size = old.to_string().len().max(new.to_string().len());
    let options = Options {
        forward: true,
        backward: true,
        ..Options::default()
    };
    let mut times: Vec<Duration> = (0..50)
        .map(|_| {
            let start = on_cpu();
            let (old, new) = (Crd::parse(old).unwrap(), Crd::parse(new).unwrap());
            std::hint::black_box(compare(&[old], &[new], &options));
            on_cpu().saturating_sub(start)
        })
        .collect();
    times.sort_unstable();
    println!(
        "{name:<24} {:>5} kB  p50 {:>9.2?}  p99 {:>9.2?}  worst {:>9.2?}",
        size / 1000,
        times[25],
        times[48],
        times[49]
    );
}

#[test]
#[ignore = "prints times; for people"]
fn by_size() {
    for (name, width, depth) in [("small", 8, 1), ("middle", 12, 4), ("large", 14, 5)] {
        let old = document(large(width, depth, 0, &mut 0));
        let new = document(large(width, depth, 50, &mut 0));
        measure(&format!("{name}, equal"), &old, &old);
        measure(&format!("{name}, 2 % changed"), &old, &new);
    }
    let giant = |skip: usize| {
        let values: Vec<String> = (skip..60_000).map(|n| format!("value-number-{n:06}")).collect();
        document(json!({"type": "object", "properties": {"a": {"type": "string", "enum": values}}}))
    };
    measure("giant enum", &giant(0), &giant(1));
    let patterns = |last: &str| {
        let fields: Map<String, Value> = (0..5_000)
            .map(|n| {
                let pattern = format!("^(([a-z0-9]+[-a-z0-9]*){{1,63}}\\.?){{1,{}}}{last}$", n % 40 + 1);
                (format!("f{n}"), json!({"type": "string", "pattern": pattern}))
            })
            .collect();
        document(json!({"type": "object", "properties": fields}))
    };
    measure("5,000 large patterns", &patterns("a"), &patterns("b"));
    let branches = |offset: usize| {
        fn nest(depth: usize, offset: usize) -> Value {
            if depth == 0 {
                return json!({"minLength": offset});
            }
            json!({"anyOf": [nest(depth - 1, offset), nest(depth - 1, offset + 1)], "maxLength": 100 + depth})
        }
        document(
            json!({"type": "object", "properties": {"a": {"type": "string", "anyOf": [nest(14, offset), nest(13, offset)]}}}),
        )
    };
    measure("nested combinations", &branches(0), &branches(1));
}
