//! Pure: what the copy of a ledger lacks, or where it and the chain of ConfigMaps disagree.
//!
//! The file of entries is a beginning of the text that the chain makes, or something is wrong. So what to append is the
//! rest of that text, and a line that was torn by a crash, wherever that was, is completed by the same rule.

use std::fmt::Write as _;

use gantry_ledger::{Fault, Head, PublicKey, SignedHead, verify_lines};
use serde_json::json;

use crate::penin::change::{Segment, audit};

/// The files of a copy, as they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    /// One entry a line; the last line may be torn, also within a letter.
    pub entries: Vec<u8>,
    /// One signed head a line, in order.
    pub heads: String,
    /// The key that signed the first head, as PEM. Another one is not taken for it later.
    pub key: Option<String>,
}

/// What is to be appended to each file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    pub key: Option<String>,
    pub entries: Vec<u8>,
    pub heads: String,
}

/// Why nothing may be appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    #[error("the ConfigMaps are not what they were: {0}")]
    Chain(String),
    #[error("the chain of ConfigMaps was cut: it ends with entry {chain}, and the copy with entry {copy}")]
    Cut { chain: usize, copy: usize },
    #[error("the chain of ConfigMaps was rewritten: its entry {0} is not that of the copy")]
    Rewritten(usize),
    #[error("the copy on the volume is not what it was: {0}")]
    Copy(String),
}

impl Disagreement {
    /// What a person can do about it.
    pub fn cure(&self, folder: &str) -> String {
        match self {
            Self::Copy(_) => format!(
                "save {folder} of the volume for whoever looks into it and move it away: then everything is copied anew"
            ),
            _ => format!(
                "{folder} of the volume still holds the record: put the ConfigMaps back as it says, or move it away if a new \
                 chain is meant to begin"
            ),
        }
    }
}

impl Due {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What the copy of ledger `name` lacks. The segments are all there are, in order.
pub fn due(name: &str, copy: &Copy, segments: &[Segment]) -> Result<Due, Disagreement> {
    let newest = segments
        .iter()
        .rev()
        .find_map(|segment| segment.public_key.as_ref());
    let chain: Vec<&str> = segments
        .iter()
        .flat_map(|segment| segment.lines.iter().map(String::as_str))
        .collect();
    let Some(pem) = copy.key.as_ref().or(newest) else {
        let fault = "they name no public key".to_owned();
        // Nothing was ever recorded.
        return if chain.is_empty() && *copy == Copy::default() {
            Ok(Due::default())
        } else {
            Err(Disagreement::Chain(fault))
        };
    };
    let key = PublicKey::from_pem(pem).map_err(|bad| match copy.key {
        Some(_) => Disagreement::Copy(format!("its public key cannot be read: {bad}")),
        None => Disagreement::Chain(format!("their public key cannot be read: {bad}")),
    })?;
    check(name, copy, &key)?;
    if let (_, Some(fault)) = audit(name, segments, &key) {
        return Err(Disagreement::Chain(fault));
    }
    Ok(Due {
        key: copy.key.is_none().then(|| pem.clone()),
        entries: compare(&copy.entries, &chain)?,
        heads: due_heads(&copy.heads, segments),
    })
}

/// Whether a copy is whole by itself: its newest head, and how many heads it passes through.
pub fn check(name: &str, copy: &Copy, key: &PublicKey) -> Result<(Head, usize), Disagreement> {
    let mut known = Vec::new();
    for head in heads(&copy.heads)? {
        let checked = key.check(name, &head).map_err(|bad| {
            Disagreement::Copy(format!("the head at entry {} proves nothing: {bad}", head.seq))
        })?;
        known.push(checked);
    }
    let text = String::from_utf8_lossy(&copy.entries);
    let (complete, _) = whole(&text);
    let head = verify_lines(&Head::genesis(name), complete.lines(), &known)
        .map_err(|fault: Fault| Disagreement::Copy(fault.to_string()))?;
    Ok((head, known.len()))
}

/// What is missing in a file of entries that is proven whole by itself, or why it is not a beginning of the chain.
pub fn compare(file: &[u8], chain: &[&str]) -> Result<Vec<u8>, Disagreement> {
    let mut text = Vec::new();
    for line in chain {
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
    }
    if let Some(rest) = text.strip_prefix(file) {
        return Ok(rest.to_owned());
    }
    let file = String::from_utf8_lossy(file);
    let (complete, torn) = whole(&file);
    let copied = complete.lines().count();
    let same = complete
        .lines()
        .zip(chain)
        .take_while(|(one, other)| one == *other)
        .count();
    Err(if same == copied && !torn.is_empty() {
        Disagreement::Copy(format!(
            "line {}, after entry {same}, is neither an entry nor the beginning of the next",
            same + 1
        ))
    } else if same == chain.len() {
        Disagreement::Cut {
            chain: same,
            copy: copied,
        }
    } else {
        Disagreement::Rewritten(same + 1)
    })
}

/// The complete lines of a file, and what is left of a torn one.
pub fn whole(file: &str) -> (&str, &str) {
    file.split_at(file.rfind('\n').map_or(0, |end| end + 1))
}

/// How many lines end in a text.
pub fn ends(text: &[u8]) -> usize {
    text.split(|byte| *byte == b'\n').count().saturating_sub(1)
}

/// The heads of a copy. One that was torn by a crash is on a line of its own, which a later head follows.
pub fn heads(file: &str) -> Result<Vec<SignedHead>, Disagreement> {
    let (complete, _) = whole(file);
    let (mut heads, mut torn) = (Vec::new(), None);
    for (number, line) in (1..).zip(complete.lines()) {
        match serde_json::from_str(line) {
            Ok(head) => {
                heads.push(head);
                torn = None;
            }
            Err(_) => torn = torn.or(Some(number)),
        }
    }
    match torn {
        Some(line) => Err(Disagreement::Copy(format!("line {line} of its heads is no head"))),
        None => Ok(heads),
    }
}

/// Heads that are newer than those of the file. What is torn is completed where the same head is still there to
/// complete it, and else left on a line of its own.
fn due_heads(file: &str, segments: &[Segment]) -> String {
    let (complete, torn) = whole(file);
    let newest = complete
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str::<SignedHead>(line).ok())
        .map_or(0, |head| head.seq);
    let mut text = String::new();
    for head in segments.iter().filter_map(|segment| segment.head.as_ref()) {
        if head.seq > newest {
            let _ = writeln!(text, "{}", json!(head));
        }
    }
    match text.strip_prefix(torn) {
        Some(rest) => rest.to_owned(),
        None if text.is_empty() => text,
        None => format!("\n{text}"),
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
