//! `gantry penin ledger`: prints the record of a cluster's changes, and proves that nobody altered it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use gantry_kit::ObjectKey;
use gantry_ledger::{Entry, Fault, Head, PublicKey, SignedHead, verify_lines};
use gantry_operator::penin::{
    change::{LEDGER_LABEL, Segment, ledger_label, ledger_name},
    keeper::{
        copy::{self, Disagreement},
        volume,
    },
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams};

use super::connect;

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the entries, one on each line. Keep the output: `verify --file` reads it.
    Show {
        #[command(flatten)]
        which: Which,
        /// Entries from a file, or from the folder of a copy that `keep` makes, instead of the cluster's.
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
    },
    /// Prove that no entry was altered, removed, added or moved, and that every head was signed.
    Verify {
        #[command(flatten)]
        which: Which,
        /// A head that you kept (NUMBER:HASH, as in a change's status.ledgerHead): also proves that nothing up to it was
        /// rewritten, and that nothing was cut off. Repeat for more.
        #[arg(long, value_name = "HEAD")]
        since: Vec<Head>,
        /// The key that must have signed the heads, as PEM. Without it, that of the record itself: enough against
        /// mistakes, not against a forger.
        #[arg(long, value_name = "FILE")]
        public_key: Option<PathBuf>,
        /// Entries from a file, as `show` printed them, instead of the cluster's; such a file has no signed heads. Or the
        /// folder of a copy that `keep` makes, which has.
        #[arg(long, value_name = "PATH")]
        file: Option<PathBuf>,
        /// Prove those of the cluster as well, and that the file is a beginning of them.
        #[arg(long, requires = "file")]
        compare: bool,
    },
    /// Copy every entry to files that are only appended to, and go on doing so: what runs beside a cluster with
    /// selfArchitecting and a ledger volume.
    Keep(super::keep::Arguments),
}

#[derive(Args)]
struct Which {
    /// Name of the PeninOmegaCluster; it need not exist any more.
    cluster: String,
    /// Its namespace [default: that of the kubeconfig or pod].
    #[arg(long, short)]
    namespace: Option<String>,
}

/// A record as it was read.
#[derive(Default)]
struct Record {
    lines: Vec<String>,
    heads: Vec<SignedHead>,
    /// Parts without a readable head.
    headless: Vec<String>,
    key: Option<String>,
    /// The bytes of a file, which may end within a line.
    file: Vec<u8>,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Show { which, file } => {
            let record = match file {
                Some(file) => open(&file)?,
                None => read(which).await?.0,
            };
            record.lines.iter().for_each(|line| println!("{line}"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Verify {
            which,
            since,
            public_key,
            file,
            compare,
        } => {
            let trusted = public_key.map(|file| text(&file)).transpose()?;
            let report = |name: &str, mut record: Record| {
                record.key = trusted.clone().or(record.key);
                report(name, &record, &since, trusted.is_some())
            };
            let Some(file) = file else {
                let (record, name) = read(which).await?;
                return Ok(code(report(&name, record)));
            };
            let record = open(&file)?;
            if !compare {
                let Some(namespace) = which.namespace else {
                    bail!("say which namespace the cluster is in: a file does not tell");
                };
                let name = ledger_name(&ObjectKey::new(namespace, which.cluster));
                return Ok(code(report(&name, record)));
            }
            let (chain, name) = read(which).await?;
            let agree = agree(&record.file, &chain.lines);
            println!("{}:", file.display());
            let whole = report(&name, record);
            println!("ConfigMaps:");
            let whole = report(&name, chain) && whole;
            match &agree {
                Ok(words) => println!("{words}"),
                Err(disagreement) => eprintln!("they disagree: {disagreement}"),
            }
            Ok(code(whole && agree.is_ok()))
        }
        Command::Keep(arguments) => super::keep::run(arguments).await,
    }
}

fn code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn text(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

/// A record from a file of entries, or from the folder of a copy.
fn open(path: &Path) -> anyhow::Result<Record> {
    if !path.is_dir() {
        let text = text(path)?;
        return Ok(Record {
            lines: text.lines().map(ToOwned::to_owned).collect(),
            file: text.into_bytes(),
            ..Record::default()
        });
    }
    let copy = volume::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let entries = String::from_utf8_lossy(&copy.entries).into_owned();
    let (complete, torn) = copy::whole(&entries);
    if !torn.is_empty() {
        eprintln!("the last line is not complete yet, and is left out");
    }
    Ok(Record {
        lines: complete.lines().map(ToOwned::to_owned).collect(),
        heads: copy::heads(&copy.heads)?,
        headless: Vec::new(),
        key: copy.key,
        file: copy.entries,
    })
}

/// Whether a file is a beginning of the chain, in words.
fn agree(file: &[u8], chain: &[String]) -> Result<String, Disagreement> {
    let chain: Vec<&str> = chain.iter().map(String::as_str).collect();
    let missing = copy::ends(&copy::compare(file, &chain)?);
    Ok(format!(
        "the file holds {} of the {} entries in the ConfigMaps, and they are the same",
        chain.len() - missing,
        chain.len()
    ))
}

async fn read(which: Which) -> anyhow::Result<(Record, String)> {
    let (client, namespace) = connect(which.namespace).await?;
    let api = Api::<ConfigMap>::namespaced(client, &namespace);
    let selector = format!("{LEDGER_LABEL}={}", ledger_label(&which.cluster));
    let found = api
        .list(&ListParams::default().labels(&selector))
        .await
        .context("failed to list the ConfigMaps of the ledger")?;
    let mut segments: Vec<Segment> = found.items.iter().map(Segment::new).collect();
    segments.sort_by_key(|segment| segment.number);
    if segments.is_empty() {
        bail!(
            "there is no ledger of PeninOmegaCluster {} in namespace {namespace}",
            which.cluster
        );
    }
    let mut record = Record::default();
    for segment in segments {
        record.lines.extend(segment.lines);
        match segment.head {
            Some(head) => record.heads.push(head),
            None => record.headless.push(segment.name),
        }
        record.key = segment.public_key.or(record.key);
    }
    Ok((record, ledger_name(&ObjectKey::new(namespace, which.cluster))))
}

/// Tells what was found, and whether it is good.
fn report(name: &str, record: &Record, since: &[Head], trusted: bool) -> bool {
    match check(name, record, since) {
        Ok(proven) => {
            println!(
                "ledger {name}: {} entries, head {}",
                record.lines.len(),
                proven.head
            );
            if proven.absent > 0 {
                println!(
                    "entries 1 to {} are absent, and nothing is proven of them; a head that you kept vouches for what follows",
                    proven.absent
                );
            }
            match proven.key {
                Some(key) if trusted => println!("every head was signed by key {key}, which you trust"),
                Some(key) => println!(
                    "every head was signed by key {key}, which the record itself names: compare it with the one you know"
                ),
                None => println!("no heads to check: entries prove each other only"),
            }
            true
        }
        Err(fault) => {
            eprintln!("ledger {name} is not what it was: {fault}");
            false
        }
    }
}

/// What was proven of a record.
#[derive(Debug)]
struct Proven {
    head: Head,
    /// Name of the key that signed.
    key: Option<String>,
    /// How many entries are missing at the beginning.
    absent: u64,
}

/// What is proven, or what is wrong.
fn check(name: &str, record: &Record, since: &[Head]) -> Result<Proven, String> {
    if let Some(part) = record.headless.first() {
        return Err(format!("{part} has no signed head"));
    }
    let key = match &record.key {
        Some(text) if !record.heads.is_empty() => Some(
            PublicKey::from_pem(text).map_err(|error| format!("its public key cannot be read: {error}"))?,
        ),
        None if !record.heads.is_empty() => return Err("it names no public key".to_owned()),
        _ => None,
    };
    let mut known = since.to_vec();
    for head in &record.heads {
        if let Some(key) = &key {
            let checked = key
                .check(name, head)
                .map_err(|bad| format!("the head at entry {} proves nothing: {bad}", head.seq))?;
            known.push(checked);
        }
    }
    let lines = record.lines.iter().map(String::as_str);
    let start = start(name, record, since);
    // What was archived cannot be looked at.
    known.retain(|head| head.seq >= start.seq);
    let head = verify_lines(&start, lines, &known).map_err(|fault: Fault| fault.to_string())?;
    Ok(Proven {
        head,
        key: key.map(|key| key.id()),
        absent: start.seq,
    })
}

/// From the beginning; or, when that is no longer there, from what the first entry says was before it. That is only its
/// word, but a kept head at or after that place is known to the proof, and holds only when the word is true.
fn start(name: &str, record: &Record, since: &[Head]) -> Head {
    let first = record.lines.first().and_then(|line| Entry::from_line(line).ok());
    match first {
        Some(first) if first.seq > 1 && since.iter().any(|head| head.seq + 1 >= first.seq) => Head {
            seq: first.seq - 1,
            hash: first.previous,
        },
        _ => Head::genesis(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_ledger::Signer;
    use rstest::rstest;

    const NAME: &str = "penin/ns/demo";

    fn record(count: usize, signer: &Signer) -> (Record, Vec<Head>) {
        let mut head = Head::genesis(NAME);
        let (mut lines, mut heads) = (Vec::new(), Vec::new());
        for step in 0..count {
            let entry = Entry::next(&head, "now", serde_json::json!({"step": step}));
            head = entry.head();
            heads.push(head);
            lines.push(entry.to_line());
        }
        let record = Record {
            lines,
            heads: vec![signer.sign(NAME, &head)],
            key: Some(signer.public_key().to_pem()),
            ..Record::default()
        };
        (record, heads)
    }

    #[test]
    fn a_whole_record_is_proven_from_any_head() {
        let signer = Signer::generate().unwrap();
        let (record, heads) = record(4, &signer);
        for head in &heads {
            let found = check(NAME, &record, &[*head]).unwrap();
            assert_eq!((found.head, found.absent), (heads[3], 0));
            assert_eq!(found.key, Some(signer.public_key().id()));
        }
    }

    #[rstest]
    #[case::altered(|r: &mut Record| r.lines[1] = r.lines[1].replace("now", "then"), "entry 2 was altered")]
    #[case::removed(|r: &mut Record| { r.lines.remove(1); }, "entries 2 to 2 are missing")]
    #[case::cut_without_its_head(|r: &mut Record| { r.lines.truncate(3); }, "the record was cut")]
    #[case::no_head(|r: &mut Record| r.headless.push("demo-changes-000001".into()), "no signed head")]
    #[case::no_key(|r: &mut Record| r.key = None, "no public key")]
    fn what_was_done_is_told(#[case] edit: fn(&mut Record), #[case] expected: &str) {
        let signer = Signer::generate().unwrap();
        let (mut record, _) = record(4, &signer);
        edit(&mut record);
        let fault = check(NAME, &record, &[]).unwrap_err();
        assert!(fault.contains(expected), "{fault}");
    }

    /// Whoever holds the key can sign a shorter or another record; only a kept head tells.
    #[test]
    fn a_kept_head_finds_what_the_holder_of_the_key_did() {
        let signer = Signer::generate().unwrap();
        let (_, kept) = record(4, &signer);
        let (shorter, _) = record(3, &signer);
        assert!(check(NAME, &shorter, &[]).is_ok(), "by itself it looks whole");
        let fault = check(NAME, &shorter, &[kept[3]]).unwrap_err();
        assert!(fault.contains("the record was cut"), "{fault}");
        let mut other = Head::genesis(NAME);
        let lines: Vec<String> = (0..4)
            .map(|step| {
                let entry = Entry::next(&other, "now", serde_json::json!({"forged": step}));
                other = entry.head();
                entry.to_line()
            })
            .collect();
        let forged = Record {
            lines,
            heads: vec![signer.sign(NAME, &other)],
            key: Some(signer.public_key().to_pem()),
            ..Record::default()
        };
        assert!(check(NAME, &forged, &[]).is_ok());
        let fault = check(NAME, &forged, &[kept[1]]).unwrap_err();
        assert!(fault.contains("rewritten"), "{fault}");
    }

    #[test]
    fn an_archived_beginning_is_bridged_by_a_kept_head_and_by_nothing_else() {
        let signer = Signer::generate().unwrap();
        let (mut record, heads) = record(5, &signer);
        record.lines.drain(..2);
        for kept in &heads[1..] {
            let found = check(NAME, &record, &[*kept]).unwrap();
            assert_eq!((found.head, found.absent), (heads[4], 2));
        }
        let fault = check(NAME, &record, &[]).unwrap_err();
        assert!(fault.contains("entries 1 to 2 are missing"), "{fault}");
    }

    /// A kept head vouches for all that leads to it: what stands before it is looked at like the rest.
    #[rstest]
    #[case::altered(0, |line: &str| line.replace("now", "then"), "entry 3 was altered")]
    #[case::rubbish(1, |_: &str| "rubbish".to_owned(), "line 2")]
    fn without_its_beginning_every_entry_is_still_looked_at(
        #[case] at: usize,
        #[case] edit: fn(&str) -> String,
        #[case] expected: &str,
    ) {
        let signer = Signer::generate().unwrap();
        let (mut record, heads) = record(5, &signer);
        record.lines.drain(..2);
        record.lines[at] = edit(&record.lines[at]);
        let fault = check(NAME, &record, &[heads[3]]).unwrap_err();
        assert!(fault.contains(expected), "{fault}");
    }

    #[test]
    fn a_forged_rest_does_not_lead_to_a_kept_head() {
        let signer = Signer::generate().unwrap();
        let (mut record, heads) = record(5, &signer);
        record.lines.drain(..2);
        let forged = Entry::next(&heads[0], "now", serde_json::json!({"forged": 1}));
        let forged = Entry::next(&forged.head(), "now", serde_json::json!({"forged": 2}));
        record.lines[0] = forged.to_line();
        let fault = check(NAME, &record, &[heads[3]]).unwrap_err();
        assert!(fault.contains("entry 4"), "{fault}");
        // Signed heads within the record count as well.
        let (mut record, heads) = self::record(5, &signer);
        record.heads.push(signer.sign(
            NAME,
            &Head {
                seq: 3,
                hash: heads[0].hash,
            },
        ));
        record.lines.drain(..2);
        let fault = check(NAME, &record, &[heads[3]]).unwrap_err();
        assert!(fault.contains("rewritten"), "{fault}");
    }

    #[test]
    fn the_folder_of_a_copy_is_proven_with_its_heads_and_compared() {
        let signer = Signer::generate().unwrap();
        let (chain, _) = record(3, &signer);
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        let lines = |count: usize| -> String {
            let lines = chain.lines.iter().take(count);
            lines.map(|line| line.clone() + "\n").collect()
        };
        write(volume::KEY, signer.public_key().to_pem());
        write(volume::HEADS, format!("{}\n", serde_json::json!(chain.heads[0])));
        // Torn in the middle of the third.
        write(volume::ENTRIES, lines(3)[..lines(2).len() + 9].to_owned());
        let copy = open(folder.path()).unwrap();
        assert!(
            check(NAME, &copy, &[]).unwrap_err().contains("cut"),
            "its head is from the third"
        );
        assert!(agree(&copy.file, &chain.lines).unwrap().contains("2 of the 3"));
        write(volume::ENTRIES, lines(3));
        let copy = open(folder.path()).unwrap();
        let Proven { head, key, .. } = check(NAME, &copy, &[]).unwrap();
        assert_eq!((head.seq, key), (3, Some(signer.public_key().id())));
        assert!(agree(&copy.file, &chain.lines).unwrap().contains("3 of the 3"));
        let cut = agree(&copy.file, &chain.lines[..1]).unwrap_err();
        assert_eq!(cut, Disagreement::Cut { chain: 1, copy: 3 });
    }
}
