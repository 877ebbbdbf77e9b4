//! Reading the audit log, and proving it.

use gantry_fleet_api as api;
use gantry_ledger::{Entry, Fault, Head, PublicKey, SignedHead, verify as verify_chain};
use jiff::{SignedDuration, Timestamp};
use sqlx::PgPool;

use super::{Fleet, work::commitment};
use crate::{
    Error,
    infrastructure::store::{
        Window,
        audit::{self as store, LEDGER, Link},
    },
};

const STRETCH: i64 = 1000;

pub async fn list(fleet: &Fleet, filter: &store::Filter, window: Window) -> Result<api::AuditEntries, Error> {
    let (rows, total) = store::list(&fleet.pool, filter, window).await?;
    let page = api::Page::new(total, window.limit, window.offset, rows.len());
    let entries = rows
        .into_iter()
        .map(|row| api::AuditEntry {
            sequence: row.seq as u64,
            timestamp: row.at.into(),
            action: row.action,
            outcome: row.outcome,
            actor_id: row.actor,
            actor: row.subject,
            target_kind: row.target_kind,
            target_id: row.target_id,
            details: row.details.and_then(|text| serde_json::from_str(&text).ok()),
            trace_id: row.trace_id,
            line: row.line,
        })
        .collect();
    Ok(api::AuditEntries { entries, page })
}

/// What a verification found when nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    pub head: Head,
    /// How many entries still have their details.
    pub with_details: u64,
    /// Whose key signed the head, if one was asked for.
    pub signed: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("failed to read the audit log")]
    Read(#[source] sqlx::Error),
    #[error("{0}")]
    Chain(Fault),
    #[error("the row of entry {0} says something else than its line")]
    Row(u64),
    #[error("the details of entry {0} are not those that were recorded")]
    Details(u64),
    #[error("there is an entry with the number {0}, and the first one is 1: it was added past the server")]
    Number(i64),
    #[error(
        "the noted head is {noted}, and the log ends with {found}: entries were removed or added past the server"
    )]
    Head { noted: String, found: String },
    #[error("the head is not signed by that key: {0}")]
    Signature(String),
}

/// Walks the whole log: the chain, the rows beside it, the details that are left, the heads that are known. All of it is of one
/// moment, so that what is more than the noted head was not written by a server meanwhile.
pub async fn verify(pool: &PgPool, known: &[Head], key: Option<&PublicKey>) -> Result<Proven, Broken> {
    let mut snapshot = store::snapshot(pool).await.map_err(Broken::Read)?;
    let noted = store::head(&mut snapshot).await.map_err(Broken::Read)?;
    let outside = store::before_the_first(&mut snapshot).await;
    if let Some(number) = outside.map_err(Broken::Read)? {
        return Err(Broken::Number(number));
    }
    let mut head = Head::genesis(LEDGER);
    let mut with_details = 0;
    loop {
        let links = store::links(&mut snapshot, head.seq as i64, STRETCH)
            .await
            .map_err(Broken::Read)?;
        if links.is_empty() {
            break;
        }
        let mut entries = Vec::with_capacity(links.len());
        for link in &links {
            entries.push(check_link(link, head.seq)?);
            with_details += u64::from(link.details.is_some());
        }
        let last = entries.last().map_or(head.seq, |entry| entry.seq);
        let here: Vec<Head> = known
            .iter()
            .filter(|known| known.seq > head.seq && known.seq <= last)
            .copied()
            .collect();
        head = verify_chain(&head, entries, &here).map_err(Broken::Chain)?;
    }
    if let Some(cut) = known.iter().find(|known| known.seq > head.seq) {
        return Err(Broken::Chain(Fault::Truncated {
            last: head.seq,
            known: cut.seq,
        }));
    }
    // Hashes alone need no key: who adds an entry past the server gets the next one right. The head is what is signed.
    let is_noted = match &noted {
        Some((seq, hash, _)) => head.seq == *seq as u64 && head.hash.to_string() == *hash,
        None => head.seq == 0,
    };
    if !is_noted {
        let noted = noted
            .as_ref()
            .map_or_else(|| "absent".to_owned(), |noted| format!("{}:{}", noted.0, noted.1));
        return Err(Broken::Head {
            noted,
            found: head.to_string(),
        });
    }
    let mut signed = false;
    if let Some(key) = key {
        let (seq, hash, stored) = noted
            .and_then(|(seq, hash, signed)| Some((seq, hash, signed?)))
            .ok_or_else(|| Broken::Signature("it has no signature".to_owned()))?;
        let stored: SignedHead = serde_json::from_value(stored)
            .map_err(|_| Broken::Signature("it is no signed head".to_owned()))?;
        let of = key
            .check(LEDGER, &stored)
            .map_err(|error| Broken::Signature(error.to_string()))?;
        if of.seq != seq as u64 || of.hash.to_string() != hash {
            return Err(Broken::Signature(format!(
                "the signature is of {of}, and the noted head is {seq}:{hash}"
            )));
        }
        signed = true;
    }
    Ok(Proven {
        head,
        with_details,
        signed,
    })
}

fn check_link(link: &Link, after: u64) -> Result<Entry, Broken> {
    let entry = Entry::from_line(&link.line).map_err(|fault| {
        Broken::Chain(Fault::Line {
            line: usize::try_from(link.seq).unwrap_or(0),
            after,
            fault,
        })
    })?;
    if entry.seq != link.seq as u64 || !is_beside(link, &entry) {
        return Err(Broken::Row(link.seq as u64));
    }
    if let (Some(salt), Some(details)) = (&link.salt, &link.details)
        && entry.body["details"].as_str() != Some(commitment(salt, details).as_str())
    {
        return Err(Broken::Details(entry.seq));
    }
    Ok(entry)
}

/// Whether the columns say what the line says; the database keeps times to the microsecond.
fn is_beside(link: &Link, entry: &Entry) -> bool {
    let at: Timestamp = link.at.into();
    let target = &entry.body["target"];
    entry
        .at
        .parse::<Timestamp>()
        .is_ok_and(|said| said.duration_since(at).abs() < SignedDuration::from_micros(2))
        && entry.body["action"] == link.action
        && entry.body["outcome"] == link.outcome
        && entry.body["actor"] == link.actor.to_string()
        && target["kind"] == link.target_kind
        && target["id"] == link.target_id
        && entry.body["trace"].as_str() == link.trace_id.as_deref()
}
