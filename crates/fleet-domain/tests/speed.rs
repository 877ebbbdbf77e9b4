//! How long a comparison takes, against what is promised: `cargo test --release -p gantry-fleet-domain --test speed --
//! --ignored --nocapture`. `hostile.rs` watches in every test run that it does not grow out of bounds.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod pairs;

use std::{hint::black_box, time::Duration};

use gantry_fleet_domain::crd_diff::{Crd, Options, compare};
use pairs::{HOSTILE, Pair, on_cpu, size, template};
use serde_json::Value;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const P99: Duration = Duration::from_millis(20);
const WORST: Duration = Duration::from_millis(100);
/// A machine that is slow or busy takes long to do no more than copy the documents; then it is so many times that.
const COPIES: u32 = 4;
const RUNS: usize = 100;

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = on_cpu();
    let done = black_box(work());
    (done, on_cpu().saturating_sub(start))
}

struct Times {
    copy: Duration,
    p99: Duration,
    worst: Duration,
}

/// CPU time of a whole comparison, both ways, of two documents that are in memory; beside it the time to do no more than
/// copy them, which tells what machine it is and how busy.
fn measure(name: &str, pair: &Pair, runs: usize) -> Times {
    let options = Options {
        forward: true,
        backward: true,
        ..Options::default()
    };
    let (mut whole, mut reading, mut copying) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let (sides, read) = timed(|| [&pair.0, &pair.1].map(|side| [Crd::parse(side).unwrap()]));
        // What was made is cleared away within the time.
        let ((), compared) = timed(|| drop(compare(&sides[0], &sides[1], &options)));
        let ((), cleared) = timed(|| drop(sides));
        let ((), copied) = timed(|| drop(pair.clone()));
        copying.push(copied);
        reading.push(read);
        whole.push(read + compared + cleared);
    }
    whole.sort_unstable();
    reading.sort_unstable();
    copying.sort_unstable();
    let times = Times {
        copy: copying[runs / 2],
        p99: whole[runs * 99 / 100 - 1],
        worst: whole[runs - 1],
    };
    println!(
        "{name:<32} {:>5} kB  p50 {:>8.2?} (reading {:>8.2?}; a copy {:>8.2?})  p99 {:>8.2?}  worst {:>8.2?}",
        size(pair) / 1000,
        whole[runs / 2],
        reading[runs / 2],
        times.copy,
        times.p99,
        times.worst
    );
    times
}

#[test]
#[ignore = "takes minutes, and means nothing without optimisation"]
fn as_promised() {
    let mut slow = Vec::new();
    for (name, width, depth) in [
        ("small", 8, 1),
        ("middle", 12, 4),
        ("large", 14, 5),
        ("largest", 23, 5),
    ] {
        let (old, new) = (template(width, depth, 0), template(width, depth, 50));
        let same = measure(&format!("{name}, equal"), &(old.clone(), old.clone()), RUNS);
        let changed = measure(&format!("{name}, 2 % changed"), &(old, new), RUNS);
        for times in [same, changed] {
            if times.p99 >= P99.max(COPIES * times.copy) || times.worst >= WORST {
                slow.push(format!("{name}: p99 {:?}, worst {:?}", times.p99, times.worst));
            }
        }
    }
    for hostile in HOSTILE {
        let pair = (hostile.make)(hostile.full);
        let mut times = measure(hostile.name, &pair, 20);
        // What the host of a virtual machine takes from one run does not come again; what we take does.
        for _ in 0..2 {
            if times.worst < WORST {
                break;
            }
            times = measure(hostile.name, &pair, 20);
        }
        if times.worst >= WORST {
            slow.push(format!("{}: {:?}", hostile.name, times.worst));
        }
    }
    assert!(slow.is_empty(), "slower than promised: {slow:#?}");
}

/// What comes before, for files: it is the parser's time, not ours.
#[test]
#[ignore = "means nothing without optimisation"]
fn documents_from_text() {
    let document = template(14, 5, 0);
    let json = document.to_string();
    let yaml = serde_saphyr::to_string(&document).unwrap();
    let mut times: Vec<(Duration, Duration)> = (0..10)
        .map(|_| {
            let from_json = timed(|| serde_json::from_str::<Value>(&json).unwrap()).1;
            let from_yaml = timed(|| serde_saphyr::from_str::<Value>(&yaml).unwrap()).1;
            (from_json, from_yaml)
        })
        .collect();
    times.sort_unstable();
    let (from_json, from_yaml) = times[5];
    println!(
        "one document, {} kB of JSON: {from_json:.2?}; {} kB of YAML: {from_yaml:.2?}",
        json.len() / 1000,
        yaml.len() / 1000
    );
}
