//! The ledger of a cluster: a chain of ConfigMaps, written one entry at a time, each head signed.
//!
//! A ConfigMap holds entries until it is full; then it is sealed (`immutable`), and the chain goes on in the next. Nobody
//! owns them: they outlive their cluster, and a new cluster of the same name goes on with the same chain. What is known
//! of a ledger is kept in memory; a write that meets a newer version of the ConfigMap fails, and all is read again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use gantry_kit::{ObjectKey, Result, client::Caller, error::Error};
use gantry_ledger::{Entry, Head, PublicKey, SignedHead, Signer, verify_lines};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::record::{Body, Memory, Step};
use crate::workload::names;

/// Label of the ConfigMaps: the cluster that they tell about.
pub const LABEL: &str = "penin.ai/ledger";
/// The Secret with the key that signs heads, in the operator's own namespace.
pub const KEY_SECRET: &str = "gantry-ledger-key";
const PRIVATE_KEY: &str = "private-key.pem";
const PUBLIC_KEY: &str = "public-key.pem";
const HEAD: &str = "head";
const ENTRY: &str = "entry-";
const MANAGER: &str = "gantry-ledger";
/// A ConfigMap holds a megabyte; far below that, so that an edit with kubectl still works.
const MOST_ENTRIES: usize = 128;
const MOST_BYTES: usize = 384 << 10;

/// Name of the ledger of a cluster, which its first hash is made from.
pub fn ledger_name(cluster: &ObjectKey) -> String {
    format!("penin/{}/{}", cluster.namespace, cluster.name)
}

/// Value of [`LABEL`] for a cluster.
pub fn label(cluster: &str) -> String {
    names::label_value(cluster)
}

/// One ConfigMap of a chain, as it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    pub number: u32,
    pub name: String,
    pub resource_version: Option<String>,
    pub sealed: bool,
    /// In order.
    pub lines: Vec<String>,
    pub head: Option<SignedHead>,
    /// The key that signed, as PEM; what it says of itself.
    pub public_key: Option<String>,
}

impl Segment {
    pub fn new(map: &ConfigMap) -> Self {
        let data = map.data.clone().unwrap_or_default();
        Self {
            number: number(&map.name_any()),
            name: map.name_any(),
            resource_version: map.resource_version(),
            sealed: map.immutable.unwrap_or(false),
            lines: lines(&data),
            head: data.get(HEAD).and_then(|text| serde_json::from_str(text).ok()),
            public_key: data.get(PUBLIC_KEY).cloned(),
        }
    }

    fn is_full(&self) -> bool {
        let bytes: usize = self.lines.iter().map(String::len).sum();
        self.sealed || self.lines.len() >= MOST_ENTRIES || bytes >= MOST_BYTES
    }
}

/// Keys are numbered with leading zeros, so that their order is that of the entries.
fn lines(data: &BTreeMap<String, String>) -> Vec<String> {
    data.iter()
        .filter(|(key, _)| key.starts_with(ENTRY))
        .map(|(_, line)| line.clone())
        .collect()
}

fn number(name: &str) -> u32 {
    name.rsplit_once('-')
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or(0)
}

fn segment_name(cluster: &str, number: u32) -> String {
    format!("{}-{number:06}", names::dns_label(&format!("{cluster}-changes")))
}

/// What is wrong with a chain, if anything, and its newest head.
pub fn audit(name: &str, segments: &[Segment], key: &PublicKey) -> (Head, Option<String>) {
    let mut known = Vec::new();
    let mut fault = None;
    for head in segments.iter().filter_map(|segment| segment.head.as_ref()) {
        match key.check(name, head) {
            Ok(head) => known.push(head),
            Err(bad) => {
                fault.get_or_insert(format!("the head at entry {} proves nothing: {bad}", head.seq));
            }
        }
    }
    if segments.iter().any(|segment| segment.head.is_none()) {
        fault.get_or_insert("a part of the record has no signed head".to_owned());
    }
    let lines = segments.iter().flat_map(|segment| &segment.lines);
    let genesis = Head::genesis(name);
    if let Err(found) = verify_lines(&genesis, lines.clone().map(String::as_str), &known) {
        fault = Some(found.to_string());
    }
    // Also a broken record goes on where it ends: what was done to it stays visible for ever.
    let last = lines.rev().find_map(|line| Entry::from_line(line).ok());
    (last.map_or(genesis, |entry| entry.head()), fault)
}

/// What is known of one ledger.
struct Book {
    newest: Option<Segment>,
    head: Head,
    fault: Option<String>,
    memory: Memory,
}

/// What a change has to know of the ledger.
#[derive(Clone, Debug)]
pub struct Page {
    pub memory: Memory,
    pub head: Head,
    /// Why the record cannot be trusted.
    pub fault: Option<String>,
}

type Shelf = Arc<tokio::sync::Mutex<Option<Book>>>;

/// The ledgers of all clusters.
pub struct Books {
    /// Where the key is.
    namespace: String,
    signer: tokio::sync::OnceCell<Arc<Signer>>,
    shelves: Mutex<HashMap<ObjectKey, Shelf>>,
}

impl Books {
    pub fn new(namespace: String) -> Self {
        Self {
            namespace,
            signer: tokio::sync::OnceCell::new(),
            shelves: Mutex::default(),
        }
    }

    /// What stands in the ledger of a cluster.
    pub async fn page(&self, cluster: &ObjectKey, caller: &Caller) -> Result<Page> {
        let shelf = self.shelf(cluster);
        let mut held = shelf.lock().await;
        if held.as_ref().is_some_and(|book| book.fault.is_some()) {
            // Perhaps somebody put it right.
            *held = None;
        }
        let book = self.opened(&mut held, cluster, caller).await?;
        Ok(Page {
            memory: book.memory.clone(),
            head: book.head,
            fault: book.fault.clone(),
        })
    }

    /// The next look reads the ledger anew: perhaps another process wrote to it.
    pub async fn close(&self, cluster: &ObjectKey) {
        *self.shelf(cluster).lock().await = None;
    }

    /// Adds a step, unless it stands there already.
    pub async fn append(&self, cluster: &ObjectKey, body: &Body, caller: &Caller) -> Result<Head> {
        let shelf = self.shelf(cluster);
        let mut held = shelf.lock().await;
        let book = self.opened(&mut held, cluster, caller).await?;
        if book.memory.has(body) {
            return Ok(book.head);
        }
        // Two changes at once: the other was faster, and the next look tells.
        if let Some((_, name)) = book.memory.open().filter(|(uid, _)| *uid != body.uid)
            && body.step == Step::Intent
        {
            return Err(Error::Predecessor {
                kind: "InfrastructureChange".to_owned(),
                name: name.to_owned(),
            });
        }
        let signer = self.signer(caller).await?;
        let entry = Entry::next(&book.head, Timestamp::now().to_string(), body.to_value());
        let written = write(book, cluster, &entry, &signer, caller).await;
        match written {
            Ok(segment) => {
                book.newest = Some(segment);
                book.head = entry.head();
                book.memory.read(&entry);
                Ok(book.head)
            }
            Err(error) => {
                // Whether it was written is not known: read all of it again.
                *held = None;
                Err(error)
            }
        }
    }

    fn shelf(&self, cluster: &ObjectKey) -> Shelf {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.entry(cluster.clone()).or_default().clone()
    }

    async fn opened<'a>(
        &self,
        book: &'a mut Option<Book>,
        cluster: &ObjectKey,
        caller: &Caller,
    ) -> Result<&'a mut Book> {
        if book.is_none() {
            let key = self.signer(caller).await?.public_key();
            let mut segments = read(cluster, caller).await?;
            let (head, fault) = audit(&ledger_name(cluster), &segments, &key);
            if let Some(fault) = &fault {
                tracing::error!(cluster = %cluster, fault, "the ledger is broken");
            }
            let mut memory = Memory::default();
            for line in segments.iter().flat_map(|segment| &segment.lines) {
                if let Ok(entry) = Entry::from_line(line) {
                    memory.read(&entry);
                }
            }
            *book = Some(Book {
                newest: segments.pop(),
                head,
                fault,
                memory,
            });
        }
        book.as_mut().ok_or(Error::NotLeader)
    }

    /// The key that signs; made once, and never made again.
    pub async fn signer(&self, caller: &Caller) -> Result<Arc<Signer>> {
        self.signer
            .get_or_try_init(async || {
                let api = Api::<Secret>::namespaced(caller.client(), &self.namespace);
                let action = format!("get Secret {KEY_SECRET}");
                if let Some(secret) = caller.read(action.clone(), api.get_opt(KEY_SECRET)).await? {
                    return parse(&secret);
                }
                let made = Signer::generate().map_err(bad_key)?;
                let private = made.to_pem().map_err(bad_key)?;
                let secret: Secret = decode(json!({
                    "metadata": {"name": KEY_SECRET, "labels": {"app.kubernetes.io/part-of": "gantry"}},
                    "stringData": {PRIVATE_KEY: private, PUBLIC_KEY: made.public_key().to_pem()},
                }))?;
                let params = PostParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PostParams::default()
                };
                let call = api.create(&params, &secret);
                // Any replica may: the endpoint of each needs it, and only one can be the first.
                match caller.read(format!("create Secret {KEY_SECRET}"), call).await {
                    Ok(_) => Ok(Arc::new(made)),
                    // Somebody was faster: theirs counts.
                    Err(error) if error.reason() == "Conflict" => {
                        match caller.read(action, api.get_opt(KEY_SECRET)).await? {
                            Some(secret) => parse(&secret),
                            None => Err(error),
                        }
                    }
                    Err(error) => Err(error),
                }
            })
            .await
            .cloned()
    }
}

fn parse(secret: &Secret) -> Result<Arc<Signer>> {
    let text = secret
        .data
        .as_ref()
        .and_then(|data| data.get(PRIVATE_KEY))
        .and_then(|value| String::from_utf8(value.0.clone()).ok())
        .unwrap_or_default();
    Signer::from_pem(&text).map(Arc::new).map_err(bad_key)
}

fn bad_key(error: gantry_ledger::BadKey) -> Error {
    Error::Decode {
        what: format!("key {PRIVATE_KEY:?} of Secret {KEY_SECRET}"),
        source: serde::de::Error::custom(error),
    }
}

fn decode<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|source| Error::Decode {
        what: "an object of our own".to_owned(),
        source,
    })
}

/// All ConfigMaps of a ledger, in order. Not from a cache: what decides must be what is stored.
async fn read(cluster: &ObjectKey, caller: &Caller) -> Result<Vec<Segment>> {
    let api = Api::<ConfigMap>::namespaced(caller.client(), &cluster.namespace);
    let params = ListParams::default().labels(&format!("{LABEL}={}", label(&cluster.name)));
    let action = format!("list the ledger of {cluster}");
    let found = caller.read(action, api.list(&params)).await?;
    let mut segments: Vec<Segment> = found.items.iter().map(Segment::new).collect();
    segments.sort_by_key(|segment| segment.number);
    Ok(segments)
}

async fn write(
    book: &Book,
    cluster: &ObjectKey,
    entry: &Entry,
    signer: &Signer,
    caller: &Caller,
) -> Result<Segment> {
    let api = Api::<ConfigMap>::namespaced(caller.client(), &cluster.namespace);
    let head = signer.sign(&ledger_name(cluster), &entry.head());
    let data = json!({
        format!("{ENTRY}{:010}", entry.seq): entry.to_line(),
        HEAD: json!(head).to_string(),
        PUBLIC_KEY: signer.public_key().to_pem(),
    });
    let action = format!("record a step in the ledger of {cluster}");
    if let Some(newest) = book.newest.as_ref().filter(|newest| !newest.is_full()) {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": newest.resource_version}, "data": data,
        }));
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let written = caller
            .write(action, api.patch(&newest.name, &params, &patch))
            .await?;
        return Ok(Segment::new(&written));
    }
    if let Some(full) = book.newest.as_ref().filter(|full| !full.sealed) {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": full.resource_version}, "immutable": true,
        }));
        let params = PatchParams::default();
        let call = api.patch(&full.name, &params, &patch);
        caller.write(format!("seal {}", full.name), call).await?;
    }
    let number = book.newest.as_ref().map_or(1, |newest| newest.number + 1);
    let map: ConfigMap = decode(json!({
        "metadata": {
            "name": segment_name(&cluster.name, number),
            "labels": {LABEL: label(&cluster.name), "app.kubernetes.io/part-of": "gantry"},
        },
        "data": data,
    }))?;
    let params = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let written = caller.write(action, api.create(&params, &map)).await?;
    Ok(Segment::new(&written))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NAME: &str = "penin/ns/demo";

    fn segments(signer: &Signer, sizes: &[usize]) -> Vec<Segment> {
        let mut head = Head::genesis(NAME);
        (1..)
            .zip(sizes)
            .map(|(number, size)| {
                let mut lines = Vec::new();
                for step in 0..*size {
                    let entry = Entry::next(&head, "now", json!({"step": step}));
                    head = entry.head();
                    lines.push(entry.to_line());
                }
                Segment {
                    number,
                    lines,
                    head: Some(signer.sign(NAME, &head)),
                    ..Segment::default()
                }
            })
            .collect()
    }

    #[test]
    fn a_chain_over_several_parts_is_whole() {
        let signer = Signer::generate().unwrap();
        let parts = segments(&signer, &[3, 2, 1]);
        let (head, fault) = audit(NAME, &parts, &signer.public_key());
        assert_eq!((head.seq, fault), (6, None));
        assert_eq!(
            audit(NAME, &[], &signer.public_key()),
            (Head::genesis(NAME), None)
        );
    }

    #[rstest]
    #[case::an_entry_altered(|s: &mut Vec<Segment>| s[0].lines[1] = s[0].lines[1].replace("now", "then"), "entry 2 was altered")]
    #[case::a_part_removed(|s: &mut Vec<Segment>| { s.remove(1); }, "entries 4 to 5 are missing")]
    #[case::the_end_cut(|s: &mut Vec<Segment>| { s[2].lines.clear(); }, "the record was cut")]
    #[case::a_head_removed(|s: &mut Vec<Segment>| s[1].head = None, "no signed head")]
    #[case::a_head_altered(|s: &mut Vec<Segment>| s[1].head.as_mut().unwrap().seq = 4, "proves nothing")]
    fn what_was_done_to_it_is_named(#[case] edit: fn(&mut Vec<Segment>), #[case] expected: &str) {
        let signer = Signer::generate().unwrap();
        let mut parts = segments(&signer, &[3, 2, 1]);
        edit(&mut parts);
        let (_, fault) = audit(NAME, &parts, &signer.public_key());
        assert!(
            fault.as_ref().is_some_and(|fault| fault.contains(expected)),
            "{fault:?}"
        );
    }

    #[test]
    fn a_forger_without_the_key_is_found() {
        let (signer, forger) = (Signer::generate().unwrap(), Signer::generate().unwrap());
        let parts = segments(&forger, &[2]);
        let (_, fault) = audit(NAME, &parts, &signer.public_key());
        assert!(fault.is_some_and(|fault| fault.contains("signed it")));
    }

    #[test]
    fn entries_are_read_in_their_order_and_parts_by_their_number() {
        let data = BTreeMap::from([
            (format!("{ENTRY}{:010}", 10), "ten".to_owned()),
            (format!("{ENTRY}{:010}", 9), "nine".to_owned()),
            (HEAD.to_owned(), "x".to_owned()),
        ]);
        assert_eq!(lines(&data), ["nine", "ten"]);
        assert_eq!(number(&segment_name("demo", 12)), 12);
        assert_eq!(segment_name("demo", 12), "demo-changes-000012");
    }
}
