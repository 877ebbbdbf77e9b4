//! `gantry crds diff`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use gantry_fleet_domain::crd_diff::{
    self, Crd, Options, Proof, Prover, Report, ServerVersion, Verdict, Waivers, render,
};

use super::{
    live::Cluster,
    source::{self, Definitions, Source},
};

const BREAKING: u8 = 1;
const FAILED: u8 = 2;
const UNDECIDABLE: u8 = 3;

/// Exit code 0: safe, 1: breaking, 2: it could not be done, 3: nothing breaking, but something undecidable.
#[derive(Args)]
pub struct Arguments {
    /// What is there now: a file, folder or chart (folder or .tgz), `-`, `cluster:` or `cluster:CONTEXT`.
    old: Source,
    /// What it is to become: the same forms.
    new: Source,
    /// The upgrade, the rollback, or both; with both, the exit code speaks of the upgrade.
    #[arg(long, value_enum, default_value_t = Direction::Forward)]
    direction: Direction,
    /// Put these objects to the new schemas: a file or folder, `cluster:` or `cluster:CONTEXT`; repeat for more.
    #[arg(long, value_name = "WHERE")]
    objects: Vec<Source>,
    /// Version of the API server, such as 1.33, for what depends on it [default: the oldest cluster that is named].
    #[arg(long, value_name = "VERSION")]
    server_version: Option<ServerVersion>,
    /// File with findings that somebody has accepted.
    #[arg(long, value_name = "FILE")]
    waivers: Option<PathBuf>,
    /// Only this definition, by its name; repeat for more.
    #[arg(long, value_name = "CRD")]
    only: Vec<String>,
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// What makes the exit code other than 0.
    #[arg(long, value_enum, default_value_t = FailOn::Breaking)]
    fail_on: FailOn,
    /// In a table, show changes without effect as well.
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Direction {
    Forward,
    Backward,
    Both,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
    Sarif,
    Markdown,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// every open finding that is breaking or undecidable
    Breaking,
    /// the same, without schema changes that hurt none of the --objects
    Harm,
    Never,
}

/// Never fails: what goes wrong is told, and an exit code of its own.
pub async fn run(arguments: Arguments) -> ExitCode {
    match diff(&arguments).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

async fn diff(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.fail_on == FailOn::Harm && arguments.objects.is_empty() {
        bail!("--fail-on harm needs --objects");
    }
    if arguments.old == Source::Stdin && arguments.new == Source::Stdin {
        bail!("only one side can be standard input");
    }
    let waivers = read_waivers(arguments)?;
    let (old, old_version) = load(&arguments.old, arguments).await?;
    let (new, new_version) = load(&arguments.new, arguments).await?;
    // A name with a slip in it must not look like a safe upgrade.
    let is_there = |name: &&String| old.crds.iter().chain(&new.crds).any(|crd| crd.name == **name);
    if let Some(absent) = arguments.only.iter().find(|name| !is_there(name)) {
        bail!("--only {absent}: neither side has it");
    }
    let (objects, object_versions) = connect(&arguments.objects).await?;
    let detected = [old_version, new_version]
        .into_iter()
        .chain(object_versions)
        .flatten()
        .min();
    let options = Options {
        forward: arguments.direction != Direction::Backward,
        backward: arguments.direction != Direction::Forward,
        server: arguments.server_version.or(detected),
        old_is_cluster: matches!(arguments.old, Source::Cluster(_)),
        new_is_cluster: matches!(arguments.new, Source::Cluster(_)),
    };
    let mut report = crd_diff::compare(&old.crds, &new.crds, &options);
    report.notes.extend(old.notes.iter().chain(&new.notes).cloned());
    let mut seen = Seen::default();
    for place in objects {
        prove(&mut seen, place, &old.crds, &new.crds, options.server).await?;
    }
    report.notes.append(&mut seen.notes);
    report.prove(seen.proofs, &seen.unseen);
    report.waive(&waivers.waivers, jiff::Zoned::now().date());
    print(&report, arguments, &new)?;
    Ok(exit_code(&report, arguments.fail_on))
}

fn read_waivers(arguments: &Arguments) -> anyhow::Result<Waivers> {
    let Some(path) = &arguments.waivers else {
        return Ok(Waivers::default());
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| {
        format!(
            "{} is no file of waivers: each needs fingerprint, approver, reason and expires (2026-12-31)",
            path.display()
        )
    })
}

async fn load(
    source: &Source,
    arguments: &Arguments,
) -> anyhow::Result<(Definitions, Option<ServerVersion>)> {
    let (mut found, version) = if matches!(source, Source::Cluster(_)) {
        let cluster = Cluster::connect(source).await?;
        (cluster.definitions().await?, cluster.version)
    } else {
        (source::definitions(source)?, None)
    };
    if !arguments.only.is_empty() {
        found.crds.retain(|crd| arguments.only.contains(&crd.name));
    }
    Ok((found, version))
}

/// A place with objects, ready to be read.
enum Place {
    Files(Source),
    Cluster(Cluster),
}

async fn connect(sources: &[Source]) -> anyhow::Result<(Vec<Place>, Vec<Option<ServerVersion>>)> {
    let mut places = Vec::new();
    let mut versions = Vec::new();
    for source in sources {
        if matches!(source, Source::Cluster(_)) {
            let cluster = Cluster::connect(source).await?;
            versions.push(cluster.version);
            places.push(Place::Cluster(cluster));
        } else {
            places.push(Place::Files(source.clone()));
        }
    }
    Ok((places, versions))
}

/// What was found at all places with objects.
#[derive(Default)]
struct Seen {
    proofs: Vec<Proof>,
    notes: Vec<String>,
    /// Definitions whose objects could not be looked at somewhere.
    unseen: BTreeSet<String>,
}

async fn prove(
    seen: &mut Seen,
    place: Place,
    old: &[Crd],
    new: &[Crd],
    server: Option<ServerVersion>,
) -> anyhow::Result<()> {
    match place {
        Place::Cluster(cluster) => {
            let installed = cluster.definitions().await?;
            for crd in new {
                let Some(there) = installed.crds.iter().find(|other| other.name == crd.name) else {
                    continue;
                };
                match cluster.prove(there, crd).await? {
                    Ok(proof) => seen.proofs.push(proof),
                    Err(note) => {
                        seen.notes.push(note);
                        seen.unseen.insert(crd.name.clone());
                    }
                }
            }
        }
        Place::Files(source) => {
            let (found, notes) = prove_files(&source, old, new, server)?;
            seen.proofs.extend(found);
            seen.notes.extend(notes);
        }
    }
    Ok(())
}

/// Objects in files, in the version that each was written in.
fn prove_files(
    source: &Source,
    old: &[Crd],
    new: &[Crd],
    server: Option<ServerVersion>,
) -> anyhow::Result<(Vec<Proof>, Vec<String>)> {
    let place = source.to_string();
    let mut provers = BTreeMap::new();
    let mut notes = Vec::new();
    source::visit(source, &mut |file| {
        let (objects, remarks) = source::read(&file)?;
        notes.extend(remarks);
        for object in objects {
            let api = object["apiVersion"].as_str().unwrap_or_default();
            let kind = object["kind"].as_str().unwrap_or_default();
            let Some((group, version)) = api.split_once('/') else {
                continue;
            };
            let Some(crd) = new.iter().find(|crd| crd.group == group && crd.kind == kind) else {
                continue;
            };
            let before = old.iter().find(|other| other.name == crd.name);
            let key = (crd.name.clone(), version.to_owned());
            if !provers.contains_key(&key) {
                match Prover::new(&place, before, crd, version, server) {
                    Some(prover) => {
                        provers.insert(key.clone(), prover);
                    }
                    None => notes.push(format!(
                        "{} has {kind} in version {version}, which the new definition does not have",
                        file.path
                    )),
                }
            }
            if let Some(prover) = provers.get_mut(&key) {
                prover.put(&object);
            }
        }
        Ok(())
    })?;
    Ok((provers.into_values().map(Prover::finish).collect(), notes))
}

fn print(report: &Report, arguments: &Arguments, new: &Definitions) -> anyhow::Result<()> {
    let text = match arguments.output {
        Output::Table => render::table(report, arguments.all),
        Output::Json => serde_json::to_string_pretty(&render::json(report))?,
        Output::Markdown => render::markdown(report),
        Output::Sarif => {
            let is_file = matches!(arguments.new, Source::Path(_));
            let locate = |crd: &str| new.files.get(crd).filter(|_| is_file).cloned();
            let log = render::sarif(report, env!("CARGO_PKG_VERSION"), &locate);
            serde_json::to_string_pretty(&log)?
        }
    };
    println!("{}", text.trim_end());
    Ok(())
}

fn exit_code(report: &Report, fail_on: FailOn) -> ExitCode {
    let verdict = match fail_on {
        FailOn::Never => Verdict::Safe,
        FailOn::Breaking => report.verdict(),
        FailOn::Harm => report.verdict_by_harm(),
    };
    match verdict {
        Verdict::Breaking => ExitCode::from(BREAKING),
        Verdict::Undecidable => ExitCode::from(UNDECIDABLE),
        Verdict::Safe => ExitCode::SUCCESS,
    }
}
