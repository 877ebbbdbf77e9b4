//! Texts, numbers and the like, around everything that schemas say of them.

use std::collections::BTreeSet;

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Value, json};

use crate::sample::{MAX_VALUES, around_counts, count};

/// Longer texts than this are not made.
const MAX_LENGTH: u64 = 70_000;

/// Texts, numbers and the like around everything that the schemas name.
pub fn scalars(schemas: &[&Value]) -> Vec<Value> {
    let mut words = Words::default();
    for schema in schemas {
        words.collect(schema);
    }
    let mut found: Vec<Value> = words.listed.clone();
    let mut texts: Vec<String> = words
        .patterns
        .iter()
        .flat_map(|pattern| matching(pattern))
        .collect();
    texts.extend(SAMPLES.iter().map(|text| (*text).to_owned()));
    for length in around_counts(&words.lengths, MAX_LENGTH) {
        texts.push("a".repeat(usize::try_from(length).unwrap_or(0)));
        let longer: Vec<String> = words
            .patterns
            .iter()
            .filter_map(|pattern| of_length(pattern, length))
            .collect();
        texts.extend(longer);
    }
    let mut numbers = vec![
        json!(1),
        json!(0),
        json!(-1),
        json!(0.5),
        json!(8080),
        json!(3_000_000_000_u64),
        json!(-3_000_000_000_i64),
    ];
    for bound in &words.bounds {
        numbers.extend([
            json!(bound - 1.0),
            json!(bound + 1.0),
            json!(bound + 0.5),
            json!(bound - 0.5),
        ]);
        numbers.push(json!(bound));
    }
    // Whole numbers are written as such.
    let whole = |value: Value| match value.as_f64() {
        Some(number) if number.fract() == 0.0 && number.abs() < 9e15 => json!(number as i64),
        _ => value,
    };
    let takes = |kind: &str| words.kinds.is_empty() || words.kinds.contains(kind);
    if takes("string") {
        found.extend(texts.into_iter().map(Value::from));
    }
    if takes("integer") || takes("number") {
        found.extend(numbers.into_iter().map(whole));
    }
    if takes("boolean") {
        found.extend([json!(true), json!(false)]);
    }
    found.dedup();
    found.truncate(MAX_VALUES * 2);
    found
}

/// Texts of the forms that fields often have.
const SAMPLES: &[&str] = &[
    "a",
    "",
    "x y",
    "1",
    "10",
    "1s",
    "1h30m",
    "30s",
    "5Mi",
    "100m",
    "0.5",
    "50%",
    "a.b.c",
    "a-b",
    "a/b",
    "A",
    "A_B",
    "http://a.b/c",
    "https://a.b",
    "10.0.0.1",
    "10.0.0.0/8",
    "::1",
    "fd00::/8",
    "2024-02-28T00:00:00Z",
    "2024-02-28",
    "YQ==",
    "a@b.c",
    "*",
    "*.a.b",
    "a:b",
    "sha256:00",
    "00000000-0000-0000-0000-000000000000",
    "/",
    "/a",
    "v1",
    "example.com/v1",
    "#fff",
    "1.2.3",
    "\n",
    "ü",
];

#[derive(Default)]
struct Words {
    kinds: BTreeSet<String>,
    listed: Vec<Value>,
    patterns: BTreeSet<String>,
    lengths: BTreeSet<u64>,
    bounds: Vec<f64>,
}

impl Words {
    fn collect(&mut self, schema: &Value) {
        if schema["x-kubernetes-int-or-string"] == true {
            self.kinds.extend(["integer".to_owned(), "string".to_owned()]);
        }
        if let Some(kind) = schema["type"].as_str() {
            self.kinds.insert(kind.to_owned());
        }
        self.listed.extend(
            schema["enum"]
                .as_array()
                .into_iter()
                .flatten()
                .take(MAX_VALUES)
                .cloned(),
        );
        self.patterns
            .extend(schema["pattern"].as_str().map(str::to_owned));
        self.lengths.extend(
            ["minLength", "maxLength"]
                .into_iter()
                .filter_map(|word| count(schema, word)),
        );
        self.bounds.extend(
            ["minimum", "maximum", "multipleOf"]
                .into_iter()
                .filter_map(|word| schema[word].as_f64()),
        );
        for word in ["allOf", "anyOf", "oneOf"] {
            schema[word]
                .as_array()
                .into_iter()
                .flatten()
                .for_each(|branch| self.collect(branch));
        }
        if schema["not"].is_object() {
            let mut inner = Self::default();
            inner.collect(&schema["not"]);
            inner.kinds.clear();
            self.listed.extend(inner.listed);
            self.patterns.extend(inner.patterns);
            self.bounds.extend(inner.bounds);
        }
    }
}

/// Texts that match a pattern: the shortest, and with every part once more.
fn matching(pattern: &str) -> Vec<String> {
    let Ok(hir) = regex_syntax::parse(pattern) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for extra in 0..3 {
        for pick in 0..6 {
            let mut text = String::new();
            write(&hir, extra, pick, &mut text);
            if text.len() < 4_000 && !found.contains(&text) {
                found.push(text);
            }
        }
    }
    found
}

/// A text of this length that matches, if repeating one part makes it so long.
fn of_length(pattern: &str, length: u64) -> Option<String> {
    let hir = regex_syntax::parse(pattern).ok()?;
    let mut text = String::new();
    write(&hir, u32::try_from(length).ok()?, 0, &mut text);
    let text: String = text.chars().take(usize::try_from(length).ok()?).collect();
    Some(text)
}

fn write(hir: &Hir, extra: u32, pick: usize, text: &mut String) {
    if text.len() > 4_000 {
        return;
    }
    match hir.kind() {
        HirKind::Literal(literal) => text.push_str(&String::from_utf8_lossy(&literal.0)),
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.ranges();
            if let Some(range) = ranges.get(pick % ranges.len().max(1)) {
                // A printable one, where there is.
                let start = if range.start() < ' ' && range.end() >= 'a' {
                    'a'
                } else {
                    range.start()
                };
                text.push(start);
            }
        }
        HirKind::Repetition(repetition) => {
            let most = repetition.max.unwrap_or(u32::MAX);
            for _ in 0..repetition.min.saturating_add(extra).min(most) {
                write(&repetition.sub, extra.min(1), pick, text);
            }
        }
        HirKind::Capture(capture) => write(&capture.sub, extra, pick, text),
        HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, extra, pick, text)),
        HirKind::Alternation(parts) => {
            if let Some(part) = parts.get(pick % parts.len().max(1)) {
                write(part, extra, pick, text);
            }
        }
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(Class::Bytes(_)) => {}
    }
}
