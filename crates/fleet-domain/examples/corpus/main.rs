//! Puts the comparison to real histories of definitions: `cargo run -p gantry-fleet-domain --example corpus FOLDER [PART OF A NAME]`.
//!
//! Every folder below FOLDER that has an `old.json` and a `new.json` is a pair. Each is compared both ways and timed, and
//! the answer is checked: objects that the old schema takes are made around every place that changed and around every
//! finding, and put to the new schema by a second implementation of what a server does ([`oracle`]). An object that is
//! refused or loses a field where no finding says so is a *miss*; a breaking finding for which no such object turns up is
//! an *alarm without a witness*, and somebody has to look at it.

mod oracle;
mod place;
mod sample;
mod scalar;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use gantry_fleet_domain::crd_diff::{Class, Crd, Direction, Finding, Impact, Kind, Options, Report, compare};
use serde_json::Value;

use crate::{oracle::Server, place::Place};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One pair must not take all the time; what is left out is told.
const TIME_PER_VERSION: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Tally {
    pairs: usize,
    panics: usize,
    /// By the worst that is found in one direction.
    verdicts: BTreeMap<(String, &'static str), usize>,
    samples: usize,
    harmful: usize,
    misses: usize,
    /// Kind → findings, and those of them without a witness.
    breaking: BTreeMap<&'static str, (usize, usize)>,
    undecidable: BTreeMap<&'static str, (usize, usize)>,
    /// Kinds that samples cannot show.
    not_sampled: BTreeMap<&'static str, usize>,
    cut_short: usize,
    not_understood: usize,
    /// Bytes of both, and how long.
    times: Vec<(usize, Duration)>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next() else {
        eprintln!(
            "usage: corpus FOLDER [PART OF A NAME], with folders in it that hold an old.json and a new.json"
        );
        return ExitCode::from(2);
    };
    let wanted = arguments.next().unwrap_or_default();
    let mut pairs = Vec::new();
    find_pairs(Path::new(&folder), &mut pairs);
    pairs.sort();
    let mut tally = Tally::default();
    for pair in &pairs {
        let name = pair.strip_prefix(&folder).unwrap_or(pair).display().to_string();
        if name.contains(&wanted) {
            try_pair(&name, pair, &mut tally);
        }
    }
    tally.print();
    if tally.misses == 0 && tally.panics == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn find_pairs(folder: &Path, pairs: &mut Vec<PathBuf>) {
    if folder.join("old.json").exists() && folder.join("new.json").exists() {
        pairs.push(folder.to_owned());
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            find_pairs(&entry.path(), pairs);
        }
    }
}

fn try_pair(name: &str, folder: &Path, tally: &mut Tally) {
    let read = |file: &str| -> Option<(usize, Value)> {
        let text = fs::read(folder.join(file)).ok()?;
        Some((text.len(), serde_json::from_slice(&text).ok()?))
    };
    let (Some((size, old)), Some((more, new))) = (read("old.json"), read("new.json")) else {
        println!("{name}: cannot be read");
        return;
    };
    let start = on_cpu();
    let Ok(outcome) = std::panic::catch_unwind(|| whole(&old, &new)) else {
        println!("PANIC {name}");
        tally.panics += 1;
        return;
    };
    let Some(report) = outcome else {
        println!("{name}: is not a pair of definitions");
        return;
    };
    tally.times.push((size + more, on_cpu().saturating_sub(start)));
    tally.pairs += 1;
    for direction in [Direction::Forward, Direction::Backward] {
        let worst = worst(&report, direction);
        *tally.verdicts.entry((direction.to_string(), worst)).or_default() += 1;
    }
    check(name, &old, &new, &report, Direction::Forward, tally);
    check(name, &new, &old, &report, Direction::Backward, tally);
}

/// What a person waits for: reading two documents, and comparing them both ways.
fn whole(old: &Value, new: &Value) -> Option<Report> {
    let options = Options {
        forward: true,
        backward: true,
        ..Options::default()
    };
    let (old, new) = (Crd::parse(old).ok()?, Crd::parse(new).ok()?);
    Some(compare(&[old], &[new], &options))
}

fn worst(report: &Report, direction: Direction) -> &'static str {
    let of = |impact: Impact| {
        let all = report
            .findings
            .iter()
            .filter(move |finding| finding.direction == direction && finding.impact == impact);
        all.map(|finding| finding.class).min()
    };
    match (of(Impact::Breaking), of(Impact::Undecidable)) {
        (Some(Class::DataLoss), _) => "breaking: data loss",
        (Some(Class::RejectsObjects), _) => "breaking: rejects existing objects",
        (Some(_), _) => "breaking: rejects clients",
        (None, Some(_)) => "undecidable",
        (None, None) if of(Impact::Warning).is_some() => "safe, with warnings",
        (None, None) => "safe",
    }
}

/// Puts samples of every version that both have to the other schema, and compares with what was found.
fn check(name: &str, old: &Value, new: &Value, report: &Report, direction: Direction, tally: &mut Tally) {
    let versions = |crd: &'_ Value| -> BTreeMap<String, (Value, bool)> {
        let list = crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
        list.into_iter()
            .filter_map(|mut version| {
                let used = version["served"] == true || version["storage"] == true;
                let schema = version.pointer_mut("/schema/openAPIV3Schema")?.take();
                Some((version["name"].as_str()?.to_owned(), (schema, used)))
            })
            .collect()
    };
    let (before, after) = (versions(old), versions(new));
    for (version, (schema, used)) in &before {
        let Some((other, used_after)) = after.get(version) else {
            continue;
        };
        if !(*used || *used_after) {
            continue;
        }
        let findings: Vec<&Finding> = report
            .findings
            .iter()
            .filter(|finding| {
                finding.direction == direction
                    && finding.version.as_ref() == Some(version)
                    && finding.path.starts_with(['.', '['])
                    && finding.impact <= Impact::Undecidable
            })
            .collect();
        let (mut schema, mut other) = (place::plain(schema), place::plain(other));
        if schema == other && findings.is_empty() {
            continue;
        }
        for whole in [&mut schema, &mut other] {
            for word in ["apiVersion", "kind", "metadata"] {
                if let Some(properties) = whole.get_mut("properties").and_then(Value::as_object_mut) {
                    properties.remove(word);
                }
                if let Some(required) = whole.get_mut("required").and_then(Value::as_array_mut) {
                    required.retain(|name| name != word);
                }
            }
        }
        place::shrink(&mut schema, &mut other);
        let keeps = |crd: &Value| {
            let beta = crd["apiVersion"] == "apiextensions.k8s.io/v1beta1";
            crd["spec"]["preserveUnknownFields"].as_bool().unwrap_or(beta)
        };
        let (Some(from), Some(to)) = (
            Server::new(&schema, !keeps(old)),
            Server::new(&other, !keeps(new)),
        ) else {
            println!("NOT UNDERSTOOD by the validator: {name} {version}");
            tally.not_understood += 1;
            continue;
        };
        let title = format!("{direction} {name} {version}");
        check_version(&title, (&schema, &from), (&other, &to), &findings, tally);
    }
}

fn check_version(
    title: &str,
    (old, from): (&Value, &Server),
    (new, to): (&Value, &Server),
    findings: &[&Finding],
    tally: &mut Tally,
) {
    let start = Instant::now();
    let named: Vec<(Option<Place>, &Finding)> = findings
        .iter()
        .map(|finding| (place::read(&finding.path), *finding))
        .collect();
    // Findings first: they have to be shown, whatever time is left.
    let mut places: Vec<Place> = named.iter().filter_map(|(place, _)| place.clone()).collect();
    place::changed(old, new, &Vec::new(), &mut places);
    let mut tried = BTreeSet::new();
    places.retain(|place| tried.insert(place.clone()));
    let mut seen = BTreeSet::new();
    let mut told = BTreeSet::new();
    for place in &places {
        if start.elapsed() > TIME_PER_VERSION {
            tally.cut_short += 1;
            return;
        }
        for object in sample::tries(old, new, place) {
            let Some((written, stored)) = from.store(&object) else {
                continue;
            };
            tally.samples += 1;
            let mut harm = to.meet(&stored);
            // Who writes the same again, without what the old schema filled in, is not to be refused either.
            if written != stored && !oracle::has_null(&written) {
                harm.refused.extend(to.meet(&written).refused);
            }
            let mut harmful = false;
            for found in harm.places() {
                harmful = true;
                let mut covered = false;
                for (index, (at, _)) in named.iter().enumerate() {
                    if at.as_ref().is_none_or(|at| place::is_near(at, found)) {
                        covered = true;
                        if at
                            .as_ref()
                            .is_some_and(|at| at.starts_with(place) || place.starts_with(at))
                        {
                            seen.insert(index);
                        }
                    }
                }
                if !covered && told.insert((place.clone(), found.clone())) && told.len() < 20 {
                    let how = if harm.lost.contains(found) {
                        "lost"
                    } else {
                        "refused"
                    };
                    println!("MISS {title}: {found} is {how} in {stored}");
                    tally.misses += 1;
                }
            }
            tally.harmful += usize::from(harmful);
        }
    }
    for (index, finding) in findings.iter().enumerate() {
        if !matches!(finding.class, Class::DataLoss | Class::RejectsObjects)
            || matches!(finding.kind, Kind::RuleAdded | Kind::RuleChanged)
            || finding.path.starts_with(".metadata")
        {
            *tally.not_sampled.entry(finding.kind.id()).or_default() += 1;
            continue;
        }
        let counts = if finding.impact == Impact::Breaking {
            &mut tally.breaking
        } else {
            &mut tally.undecidable
        };
        let counts = counts.entry(finding.kind.id()).or_default();
        counts.0 += 1;
        if !seen.contains(&index) {
            counts.1 += 1;
            println!(
                "NO WITNESS {} {} {title}: {} {} -> {}",
                finding.kind.id(),
                finding.impact.words(),
                finding.path,
                finding.before,
                finding.after
            );
        }
    }
}

impl Tally {
    fn print(&mut self) {
        println!("{} pairs, {} panics", self.pairs, self.panics);
        for ((direction, verdict), count) in &self.verdicts {
            println!("  {direction:9} {verdict:36} {count}");
        }
        println!(
            "{} samples that the old schema takes, {} of them hurt by the new one; {} misses",
            self.samples, self.harmful, self.misses
        );
        println!(
            "{} versions cut short, {} not understood by the validator",
            self.cut_short, self.not_understood
        );
        for (word, counts) in [("breaking", &self.breaking), ("undecidable", &self.undecidable)] {
            println!("{word} findings, and those without a witness:");
            for (kind, (all, without)) in counts {
                println!("  {kind:28} {all:6} {without:6}");
            }
        }
        println!("findings that samples cannot show:");
        for (kind, count) in &self.not_sampled {
            println!("  {kind:28} {count:6}");
        }
        self.times.sort_unstable();
        let (small, large) = (64 << 10, 512 << 10);
        for (name, from, to) in [
            ("all pairs", 0, usize::MAX),
            ("under 64 KiB", 0, small),
            ("64 to 512 KiB", small, large),
            ("512 KiB and more", large, usize::MAX),
        ] {
            let mut times: Vec<Duration> = self
                .times
                .iter()
                .filter(|(size, _)| (from..to).contains(size))
                .map(|(_, time)| *time)
                .collect();
            times.sort_unstable();
            let at = |share: f64| {
                let index = (times.len() as f64 * share) as usize;
                times
                    .get(index.min(times.len().saturating_sub(1)))
                    .map_or(0.0, |time| time.as_secs_f64() * 1e3)
            };
            println!(
                "{name:17} {:5} pairs: p50 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
                times.len(),
                at(0.5),
                at(0.95),
                at(0.99),
                at(1.0)
            );
        }
        let most = self.times.last().map_or(0, |(size, _)| *size);
        println!("largest pair: {} KiB, both documents together", most >> 10);
    }
}

/// Time that this thread has worked, whatever else the machine does; time that has passed where that is not told.
fn on_cpu() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let told = fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|stat| stat.split(' ').next()?.parse().ok());
    match told {
        Some(nanos) => Duration::from_nanos(nanos),
        None => START.get_or_init(Instant::now).elapsed(),
    }
}
