//! Walks a chain and names the first thing that is wrong with it.

use crate::entry::{Entry, Head, LineFault};

/// The first thing that is wrong with a ledger, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A line is no entry.
    #[error("line {line}, after entry {after}: {fault}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// The entry before.
        after: u64,
        /// What is wrong with it.
        fault: LineFault,
    },
    /// An entry's content does not fit its own hash.
    #[error("entry {seq} was altered: its content does not fit its hash")]
    Altered {
        /// The entry.
        seq: u64,
    },
    /// Entries are missing in the middle.
    #[error("entries {first} to {last} are missing")]
    Gap {
        /// The first that is missing.
        first: u64,
        /// The last that is missing.
        last: u64,
    },
    /// All entries may be there, but not in their order.
    #[error("entry {found} stands where entry {expected} belongs: entries were moved or repeated")]
    Reordered {
        /// The number that belongs here.
        expected: u64,
        /// The number that is here.
        found: u64,
    },
    /// An entry is whole but does not continue the one before: from here on it is another record.
    #[error(
        "the record was rewritten: entry {seq} does not continue entry {}",
        seq - 1
    )]
    Rewritten {
        /// The first entry of the other record.
        seq: u64,
    },
    /// The record is whole, but is not the one whose head is known.
    #[error("the record was rewritten at or before entry {seq}: the head known from there is another one")]
    OtherHead {
        /// Where the known head is.
        seq: u64,
    },
    /// The record ends before a head that is known.
    #[error("the record was cut: it ends with entry {last}, but entry {known} is known to have existed")]
    Truncated {
        /// The last entry that is there.
        last: u64,
        /// The entry that is known.
        known: u64,
    },
    /// A known head lies before the place where the record starts, so nothing can be said about it.
    #[error("the record starts after entry {start}, so the head known from entry {known} proves nothing")]
    BeforeStart {
        /// The head that the record starts from.
        start: u64,
        /// Where the known head is.
        known: u64,
    },
}

/// Checks that entries follow `start` one after the other, unaltered, and that the chain passes through every head in
/// `known`, in whatever order those are given. Gives the newest head.
///
/// Start from [`Head::genesis`] for a whole ledger, or from a head that was checked before.
pub fn verify<I>(start: &Head, entries: I, known: &[Head]) -> Result<Head, Fault>
where
    I: IntoIterator<Item = Entry>,
{
    let mut walk = Walk::new(start, known)?;
    let mut entries = entries.into_iter();
    while let Some(entry) = entries.next() {
        if let Err(fault) = walk.step(&entry) {
            // A missing entry that comes later was moved.
            return Err(match fault {
                Fault::Gap { first, .. } if entries.any(|later| later.seq == first) => Fault::Reordered {
                    expected: first,
                    found: entry.seq,
                },
                other => other,
            });
        }
    }
    walk.end()
}

/// [`verify`] for text with one entry per line, as [`Entry::to_line`] writes them.
pub fn verify_lines<'a, I>(start: &Head, lines: I, known: &[Head]) -> Result<Head, Fault>
where
    I: IntoIterator<Item = &'a str>,
{
    let mut walk = Walk::new(start, known)?;
    let mut lines = (1..).zip(lines);
    while let Some((line, text)) = lines.next() {
        let entry = Entry::from_line(text).map_err(|fault| Fault::Line {
            line,
            after: walk.head.seq,
            fault,
        })?;
        if let Err(fault) = walk.step(&entry) {
            return Err(match fault {
                Fault::Gap { first, .. } if lines.any(|(_, text)| is_entry(text, first)) => {
                    Fault::Reordered {
                        expected: first,
                        found: entry.seq,
                    }
                }
                other => other,
            });
        }
    }
    walk.end()
}

fn is_entry(line: &str, seq: u64) -> bool {
    Entry::from_line(line).is_ok_and(|entry| entry.seq == seq)
}

/// How far the walk has come.
struct Walk<'a> {
    head: Head,
    known: &'a [Head],
}

impl<'a> Walk<'a> {
    fn new(start: &Head, known: &'a [Head]) -> Result<Self, Fault> {
        let walk = Self { head: *start, known };
        match known.iter().find(|head| head.seq < start.seq) {
            Some(before) => Err(Fault::BeforeStart {
                start: start.seq,
                known: before.seq,
            }),
            None => walk.passes().map(|()| walk),
        }
    }

    fn step(&mut self, entry: &Entry) -> Result<(), Fault> {
        let expected = self.head.seq + 1;
        if entry.computed_hash() != entry.hash {
            return Err(Fault::Altered { seq: entry.seq });
        }
        if entry.seq < expected {
            return Err(Fault::Reordered {
                expected,
                found: entry.seq,
            });
        }
        if entry.seq > expected {
            return Err(Fault::Gap {
                first: expected,
                last: entry.seq - 1,
            });
        }
        if entry.previous != self.head.hash {
            return Err(Fault::Rewritten { seq: entry.seq });
        }
        self.head = entry.head();
        self.passes()
    }

    /// Whether the chain is, here, the one that is known.
    fn passes(&self) -> Result<(), Fault> {
        let other = |known: &Head| known.seq == self.head.seq && known.hash != self.head.hash;
        if self.known.iter().any(other) {
            return Err(Fault::OtherHead { seq: self.head.seq });
        }
        Ok(())
    }

    fn end(self) -> Result<Head, Fault> {
        match self.known.iter().map(|known| known.seq).max() {
            Some(known) if known > self.head.seq => Err(Fault::Truncated {
                last: self.head.seq,
                known,
            }),
            _ => Ok(self.head),
        }
    }
}
