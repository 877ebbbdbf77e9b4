//! Patterns. The server's are Go's; both engines run in linear time and neither backtracks, so a hostile pattern can
//! only be too large, and then it is not used.

use std::fmt::Write as _;

use std::collections::{HashMap, VecDeque};

use regex::Regex;
use regex_automata::{
    Anchored, MatchKind,
    dfa::{Automaton, StartKind, dense},
    util::{primitives::StateID, start, syntax},
};
use regex_syntax::hir::Hir;

use super::schema::Count;

/// Larger than any pattern in practice.
const MAX_PATTERN: usize = 4_096;
/// How large a pattern may be that is put to live objects.
pub const MAX_REGEX_BYTES: usize = 1 << 20;
/// And one that is put to all values of a list while definitions are compared.
pub const MAX_LISTED_REGEX_BYTES: usize = 1 << 16;
/// Determinising takes time in proportion to the product of these two.
const MAX_NFA_BYTES: usize = 48 << 10;
const MAX_DFA_BYTES: usize = 96 << 10;
/// How many pairs of states are looked at before giving up.
const MAX_PAIRS: usize = 20_000;

/// What is said when the [`Budget`] is spent.
pub const TOO_MANY: &str = "too many patterns changed at once to compare them all";

/// What may be done with the patterns of one pair of definitions.
pub struct Budget {
    /// How much memory the automata may come to, one after the other: building them is what takes the time.
    memory: usize,
    /// How much text may be read: by patterns, or as patterns.
    text: usize,
    /// One change of a pattern often stands in many places.
    answers: HashMap<(Option<String>, String, Count), Inclusion>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            memory: 384 << 10,
            text: 32 << 10,
            answers: HashMap::new(),
        }
    }
}

impl Budget {
    /// Room for so many patterns more that are only compiled, not compared, and run over so much text.
    pub fn runs(&mut self, patterns: usize, text: usize) -> bool {
        self.spend(patterns.saturating_mul(1 << 14)) && self.reads(patterns.saturating_mul(text))
    }

    /// Nothing more is going to be compared.
    pub fn is_spent(&self) -> bool {
        self.memory == 0
    }

    fn reads(&mut self, text: usize) -> bool {
        let enough = self.text >= text;
        self.text = self.text.saturating_sub(text);
        enough
    }

    fn spend(&mut self, bytes: usize) -> bool {
        let enough = self.memory >= bytes;
        self.memory = self.memory.saturating_sub(bytes);
        enough
    }
}

/// Whether every text that one pattern matches is matched by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inclusion {
    Yes,
    /// This text matches the first and not the second.
    No(String),
    Unknown(&'static str),
}

/// A pattern as the server would run it; nothing if it is too large or not understood.
pub fn compile(pattern: &str) -> Option<Regex> {
    compile_within(pattern, MAX_REGEX_BYTES)
}

/// The same, with another limit of its size.
pub fn compile_within(pattern: &str, max_bytes: usize) -> Option<Regex> {
    if pattern.len() > MAX_PATTERN {
        return None;
    }
    regex::RegexBuilder::new(&translate(pattern))
        .size_limit(max_bytes)
        .dfa_size_limit(max_bytes)
        .build()
        .ok()
}

/// Whether `new` matches all that `old` matches; without an old pattern, all text. Only text of this length counts.
pub fn includes(old: Option<&str>, new: &str, length: Count, budget: &mut Budget) -> Inclusion {
    if old == Some(new) {
        return Inclusion::Yes;
    }
    let question = (old.map(str::to_owned), new.to_owned(), length);
    if let Some(known) = budget.answers.get(&question) {
        return known.clone();
    }
    if budget.is_spent() {
        return Inclusion::Unknown(TOO_MANY);
    }
    let answer = compare(old, new, length, budget);
    budget.answers.insert(question, answer.clone());
    answer
}

fn compare(old: Option<&str>, new: &str, length: Count, budget: &mut Budget) -> Inclusion {
    let old = old.map_or_else(|| "(?s:.*)".to_owned(), translate);
    // The new one is the likelier to be too large; then the old one need not be built.
    let new = automaton(&translate(new), budget);
    match new.and_then(|new| Some((automaton(&old, budget)?, new))) {
        Some((old, new)) => walk(&old, &new, length),
        None => Inclusion::Unknown("one of the patterns is too large, or of a form that is not understood"),
    }
}

/// A pattern in its parts; nothing if it is too large or not understood.
pub fn parse(pattern: &str, budget: &mut Budget) -> Option<Hir> {
    if pattern.len() > MAX_PATTERN || !budget.reads(pattern.len()) {
        return None;
    }
    regex_syntax::parse(&translate(pattern)).ok()
}

fn automaton(pattern: &str, budget: &mut Budget) -> Option<dense::DFA<Vec<u32>>> {
    let built = build(pattern);
    // One that grew too large took the longest. What was built is used; the next one finds the budget spent.
    let memory = built.as_ref().map_or(2 * MAX_DFA_BYTES, dense::DFA::memory_usage);
    budget.spend(memory + 32 * pattern.len());
    built
}

fn build(pattern: &str) -> Option<dense::DFA<Vec<u32>>> {
    if pattern.len() > MAX_PATTERN {
        return None;
    }
    dense::Builder::new()
        .configure(
            dense::Config::new()
                .start_kind(StartKind::Unanchored)
                .match_kind(MatchKind::All)
                .dfa_size_limit(Some(MAX_DFA_BYTES))
                .determinize_size_limit(Some(MAX_DFA_BYTES)),
        )
        .thompson(regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(MAX_NFA_BYTES)))
        .syntax(syntax::Config::new())
        .build(pattern)
        .ok()
}

/// Where a text is, in both automata and in UTF-8. `seen` says that a match has ended already: what follows is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    old: StateID,
    new: StateID,
    old_seen: bool,
    new_seen: bool,
    utf8: Utf8,
    /// In characters, as far as it matters.
    length: u64,
}

/// All texts at once, shortest first, until one matches the old pattern alone.
fn walk(old: &dense::DFA<Vec<u32>>, new: &dense::DFA<Vec<u32>>, wanted: Count) -> Inclusion {
    let config = start::Config::new().anchored(Anchored::No);
    let (Ok(old_start), Ok(new_start)) = (old.start_state(&config), new.start_state(&config)) else {
        return Inclusion::Unknown("the patterns could not be compared");
    };
    let first = Place {
        old: old_start,
        new: new_start,
        old_seen: false,
        new_seen: false,
        utf8: Utf8::Boundary,
        length: 0,
    };
    let counted_to = wanted.max.map_or(wanted.min, |max| max.saturating_add(1));
    // One byte for each class of bytes that neither automaton nor UTF-8 tells apart.
    let bytes = representatives(old, new);
    let mut came: HashMap<Place, Option<(Place, u8)>> = HashMap::from([(first, None)]);
    let mut queue = VecDeque::from([first]);
    while let Some(place) = queue.pop_front() {
        if place.utf8 == Utf8::Boundary && wanted.admits(place.length) {
            let old_matches = place.old_seen || old.is_match_state(old.next_eoi_state(place.old));
            let new_matches = place.new_seen || new.is_match_state(new.next_eoi_state(place.new));
            if old_matches && !new_matches {
                return Inclusion::No(spell(&came, place));
            }
        }
        for &byte in &bytes {
            let Some(utf8) = place.utf8.next(byte) else {
                continue;
            };
            let mut next = place;
            next.utf8 = utf8;
            if utf8 == Utf8::Boundary {
                next.length = counted_to.min(place.length + 1);
            }
            if !place.old_seen {
                next.old = old.next_state(place.old, byte);
                if old.is_quit_state(next.old) {
                    return Inclusion::Unknown("the old pattern cannot be followed for all text");
                }
                next.old_seen = old.is_match_state(next.old);
            }
            next.new = new.next_state(place.new, byte);
            if new.is_quit_state(next.new) {
                return Inclusion::Unknown("the new pattern cannot be followed for all text");
            }
            next.new_seen = new.is_match_state(next.new);
            // The new pattern has matched: whatever follows, it stays so.
            let too_long = wanted.max.is_some_and(|max| next.length > max);
            let lost = too_long || (!next.old_seen && old.is_dead_state(next.old));
            if next.new_seen || lost || came.contains_key(&next) {
                continue;
            }
            if came.len() >= MAX_PAIRS {
                return Inclusion::Unknown("the patterns are too large to be compared");
            }
            came.insert(next, Some((place, byte)));
            queue.push_back(next);
        }
    }
    Inclusion::Yes
}

fn representatives(old: &dense::DFA<Vec<u32>>, new: &dense::DFA<Vec<u32>>) -> Vec<u8> {
    let (old, new) = (old.byte_classes(), new.byte_classes());
    let mut seen = std::collections::HashSet::new();
    // Letters and digits first, so that examples can be read.
    let order = (b'a'..=b'z').chain(b'A'..=b'Z').chain(b'0'..=b'9').chain(0..=255);
    order
        .filter(|&byte| seen.insert((old.get(byte), new.get(byte), Utf8::class(byte))))
        .collect()
}

fn spell(came: &HashMap<Place, Option<(Place, u8)>>, mut place: Place) -> String {
    let mut bytes = Vec::new();
    while let Some(Some((before, byte))) = came.get(&place) {
        bytes.push(*byte);
        place = *before;
    }
    bytes.reverse();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How many bytes of a character are still to come, and what the next one may be.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Utf8 {
    Boundary,
    One,
    Two,
    Three,
    /// After E0, ED, F0, F4 the next byte is restricted, or the text would not be UTF-8.
    AfterE0,
    AfterEd,
    AfterF0,
    AfterF4,
}

impl Utf8 {
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Boundary, 0..=0x7f) | (Self::One, 0x80..=0xbf) => Self::Boundary,
            (Self::Boundary, 0xc2..=0xdf)
            | (Self::Two, 0x80..=0xbf)
            | (Self::AfterE0, 0xa0..=0xbf)
            | (Self::AfterEd, 0x80..=0x9f) => Self::One,
            (Self::Boundary, 0xe0) => Self::AfterE0,
            (Self::Boundary, 0xed) => Self::AfterEd,
            (Self::Boundary, 0xe1..=0xec | 0xee..=0xef)
            | (Self::Three, 0x80..=0xbf)
            | (Self::AfterF0, 0x90..=0xbf)
            | (Self::AfterF4, 0x80..=0x8f) => Self::Two,
            (Self::Boundary, 0xf0) => Self::AfterF0,
            (Self::Boundary, 0xf4) => Self::AfterF4,
            (Self::Boundary, 0xf1..=0xf3) => Self::Three,
            _ => return None,
        })
    }

    /// Bytes of one class behave alike in every state.
    fn class(byte: u8) -> u8 {
        match byte {
            0..=0x7f => 0,
            0x80..=0x8f => 1,
            0x90..=0x9f => 2,
            0xa0..=0xbf => 3,
            0xc2..=0xdf => 4,
            0xe0 => 5,
            0xed => 6,
            0xe1..=0xef => 7,
            0xf0 => 8,
            0xf4 => 9,
            0xf1..=0xf3 => 10,
            _ => 11,
        }
    }
}

/// Go's pattern in Rust's words. They differ in little: classes such as `\d` are ASCII in Go, a bracket or `&&` inside a
/// class is a plain character there, and so is a brace that opens no count.
fn translate(pattern: &str) -> String {
    let chars: Vec<char> = pattern.chars().collect();
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut class = false;
    let mut i = 0;
    while i < chars.len() {
        let c = chars[i];
        match c {
            '\\' if i + 1 < chars.len() => {
                i += 1;
                escape(chars[i], class, &mut out);
            }
            '[' if !class => {
                class = true;
                out.push('[');
                if chars.get(i + 1) == Some(&'^') {
                    out.push('^');
                    i += 1;
                }
                // Right after the opening, a closing bracket is a plain character.
                if chars.get(i + 1) == Some(&']') {
                    out.push_str("\\]");
                    i += 1;
                }
            }
            '[' if chars.get(i + 1) == Some(&':') => {
                let rest: String = chars[i..].iter().collect();
                match rest.find(":]") {
                    Some(end) => {
                        out.push_str(&rest[..end + 2]);
                        i += rest[..end + 2].chars().count() - 1;
                    }
                    None => out.push_str("\\["),
                }
            }
            '[' | '&' | '~' if class => {
                out.push('\\');
                out.push(c);
            }
            ']' if class => {
                class = false;
                out.push(']');
            }
            '-' if class && chars.get(i + 1) == Some(&'-') => out.push_str("\\-"),
            '{' if !class && !opens_count(&chars[i..]) => out.push_str("\\{"),
            other => out.push(other),
        }
        i += 1;
    }
    out
}

fn escape(c: char, class: bool, out: &mut String) {
    let (open, close) = if class { ("", "") } else { ("[", "]") };
    match c {
        'd' => {
            let _ = write!(out, "{open}0-9{close}");
        }
        'w' => {
            let _ = write!(out, "{open}0-9A-Za-z_{close}");
        }
        's' => {
            let _ = write!(out, "{open}\\t\\n\\x0c\\r {close}");
        }
        'D' => out.push_str("[^0-9]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        'S' => out.push_str("[^\\t\\n\\x0c\\r ]"),
        'b' | 'B' => {
            let _ = write!(out, "(?-u:\\{c})");
        }
        // Rust knows fewer escapes of plain characters than Go.
        other if !other.is_alphanumeric() && !"\\.+*?()|[]{}^$#&-~ /".contains(other) => out.push(other),
        other => {
            out.push('\\');
            out.push(other);
        }
    }
}

fn opens_count(chars: &[char]) -> bool {
    let inside: String = chars.iter().skip(1).take_while(|c| **c != '}').collect();
    let closed = chars.len() > inside.chars().count() + 1;
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let counts = match inside.split_once(',') {
        Some((min, max)) => is_number(min) && (max.is_empty() || is_number(max)),
        None => is_number(&inside),
    };
    closed && counts
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Some("^[a-z]+$"), "^[a-z0-9]+$")]
    #[case(Some("^abc"), "b")]
    #[case(Some("^a|^b"), "^[ab]")]
    #[case(Some(r"^\d{1,3}$"), "^[0-9]+$")]
    #[case(Some("^http(s)?://.+$"), "^https?://.+$")]
    #[case(None, ".*")]
    #[case(None, "")]
    fn included(#[case] old: Option<&str>, #[case] new: &str) {
        assert_eq!(
            includes(old, new, Count::default(), &mut Budget::default()),
            Inclusion::Yes
        );
    }

    #[rstest]
    #[case(Some("^[a-z0-9]+$"), "^[a-z]+$", "0")]
    #[case(None, "^.+$", "")]
    #[case(None, "^.*$", "\n")]
    #[case(Some("b"), "^abc", "b")]
    fn not_included(#[case] old: Option<&str>, #[case] new: &str, #[case] example: &str) {
        assert_eq!(
            includes(old, new, Count::default(), &mut Budget::default()),
            Inclusion::No(example.to_owned())
        );
    }

    #[rstest]
    #[case("(")]
    #[case("(?:(?:(?:a{1000}){1000}){1000})")]
    #[case("^(([a-z])+.)+[A-Z]([a-z])+[0-9]{400,900}$")]
    fn too_much_is_unknown(#[case] new: &str) {
        assert!(!matches!(
            includes(Some("^x{900}y*$"), new, Count::default(), &mut Budget::default()),
            Inclusion::Yes
        ));
    }

    #[rstest]
    #[case(r"^[\w.-]+$", "a_b.c-d", true)]
    #[case(r"^\d+$", "٣", false)]
    #[case("^[[a]+$", "[a[", true)]
    #[case("^[a&&b]+$", "&ab", true)]
    #[case("^a{$", "a{", true)]
    #[case("^[[:alpha:]]+$", "abc", true)]
    #[case("^[]a]$", "]", true)]
    #[case(r"^\S+$", "a b", false)]
    #[case(r"\bfoo\b", "a foo b", true)]
    #[case("^a-b$", "a-b", true)]
    // The ends of words to others, plain characters to Go.
    #[case(r"^\<[a-z]+\>$", "<abc>", true)]
    #[case(r"^\<[a-z]+\>$", "abc", false)]
    #[case(r"^[\<\>]$", ">", true)]
    #[case(r"^a\b{start}$", "a", false)]
    fn as_go_reads_it(#[case] pattern: &str, #[case] text: &str, #[case] matches: bool) {
        assert_eq!(compile(pattern).unwrap().is_match(text), matches);
    }
}
