//! Reads single values out of JSON that passes by, byte by byte, without keeping it. Pure.
//!
//! A final line of Ollama can hold megabytes of context before the counts, so lines are not collected: the scanner
//! keeps the keys that lead to where it is, and the beginning of the value it is in. What is not JSON gives no values
//! and does no harm.

/// Keys and values are of interest down to this depth.
const DEPTH: usize = 3;
/// Longer keys and values are cut, and then equal nothing that is looked for.
const LONGEST: usize = 256;

/// A value found in an object: a string without its quotes, or a number, `true`, `false`, `null` as written.
pub struct Found<'a> {
    pub text: &'a [u8],
    pub quoted: bool,
}

#[derive(Default)]
pub struct Scanner {
    keys: [Vec<u8>; DEPTH],
    depth: usize,
    /// One bit for each level that is an object; the innermost is the lowest.
    objects: u64,
    state: State,
    text: Vec<u8>,
    cut: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// Before a value, after one, or between elements.
    #[default]
    Value,
    /// In an object, before a key.
    Key,
    InKey,
    InString,
    Escape {
        key: bool,
    },
    Bare,
    /// Nested beyond what can be followed; silent until `reset`.
    Lost,
}

impl Scanner {
    pub fn feed(&mut self, bytes: &[u8], found: &mut impl FnMut(&[Vec<u8>], Found<'_>)) {
        for &byte in bytes {
            self.step(byte, found);
        }
    }

    /// A new document begins; a number at the end of the last one is complete.
    pub fn reset(&mut self, found: &mut impl FnMut(&[Vec<u8>], Found<'_>)) {
        if self.state == State::Bare {
            self.tell(false, found);
        }
        self.depth = 0;
        self.objects = 0;
        self.state = State::Value;
    }

    fn step(&mut self, byte: u8, found: &mut impl FnMut(&[Vec<u8>], Found<'_>)) {
        match self.state {
            State::Lost => {}
            State::InKey | State::InString => {
                let key = self.state == State::InKey;
                match byte {
                    b'\\' => self.state = State::Escape { key },
                    b'"' if key => {
                        let (text, cut) = (&self.text, self.cut);
                        if let Some(place) = self.depth.checked_sub(1).and_then(|at| self.keys.get_mut(at)) {
                            place.clear();
                            if !cut {
                                place.extend_from_slice(text);
                            }
                        }
                        self.state = State::Value;
                    }
                    b'"' => {
                        self.tell(true, found);
                        self.state = State::Value;
                    }
                    _ => self.keep(byte),
                }
            }
            State::Escape { key } => {
                // The only escape that a name is written with; any other makes it equal nothing.
                if !matches!(byte, b'/' | b'"' | b'\\') {
                    self.keep(b'\\');
                }
                self.keep(byte);
                self.state = if key { State::InKey } else { State::InString };
            }
            State::Bare if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.') => {
                self.keep(byte);
            }
            State::Bare => {
                self.tell(false, found);
                self.state = State::Value;
                self.structure(byte);
            }
            State::Value | State::Key => self.structure(byte),
        }
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => {
                if self.depth == 64 {
                    self.state = State::Lost;
                    return;
                }
                self.depth += 1;
                self.objects = self.objects << 1 | u64::from(byte == b'{');
                if let Some(key) = self.keys.get_mut(self.depth - 1) {
                    key.clear();
                }
                self.state = if byte == b'{' { State::Key } else { State::Value };
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.objects >>= 1;
                self.state = State::Value;
            }
            b',' => {
                self.state = if self.in_object() {
                    State::Key
                } else {
                    State::Value
                };
            }
            b'"' => {
                self.begin();
                self.state = if self.state == State::Key {
                    State::InKey
                } else {
                    State::InString
                };
            }
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                self.begin();
                self.keep(byte);
                self.state = State::Bare;
            }
            _ => {}
        }
    }

    fn in_object(&self) -> bool {
        self.depth > 0 && self.objects & 1 == 1
    }

    fn begin(&mut self) {
        self.text.clear();
        self.cut = false;
    }

    fn keep(&mut self, byte: u8) {
        if self.depth > DEPTH || self.cut {
            return;
        }
        if self.text.len() == LONGEST {
            self.cut = true;
        } else {
            self.text.push(byte);
        }
    }

    fn tell(&self, quoted: bool, found: &mut impl FnMut(&[Vec<u8>], Found<'_>)) {
        // Elements of lists have no name, and neither has what is in them.
        let objects = (1u64 << self.depth.min(63)) - 1;
        if !self.cut
            && self.depth > 0
            && self.objects & objects == objects
            && let Some(path) = self.keys.get(..self.depth)
        {
            let text = &self.text;
            found(path, Found { text, quoted });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn values(pieces: &[&[u8]]) -> Vec<String> {
        let mut scanner = Scanner::default();
        let mut seen = Vec::new();
        let mut note = |path: &[Vec<u8>], value: Found<'_>| {
            let path: Vec<String> = path
                .iter()
                .map(|key| String::from_utf8_lossy(key).into_owned())
                .collect();
            seen.push(format!(
                "{}={}",
                path.join("."),
                String::from_utf8_lossy(value.text)
            ));
        };
        for piece in pieces {
            scanner.feed(piece, &mut note);
        }
        scanner.reset(&mut note);
        seen
    }

    #[rstest]
    #[case(r#"{"model":"phi","n":3}"#, &["model=phi", "n=3"])]
    #[case(r#"{"messages":[{"model":"no"}],"model":"team\/phi"}"#, &["model=team/phi"])]
    #[case(r#"{"a":{"b":{"c":1,"d":{"e":2}}}}"#, &["a.b.c=1"])]
    #[case(r#"{"text":"\"model\":\"no\"","model":"yes"}"#, &["text=\"model\":\"no\"", "model=yes"])]
    #[case(r#"{"x" : [1, {"y":2}], "z" : true }"#, &["z=true"])]
    #[case(r#"[{"model":"no"}]"#, &[])]
    #[case(r#"["model","phi"]"#, &[])]
    #[case("}}}]]]{\"a\":1}", &["a=1"])]
    #[case("not json at all", &[])]
    #[case("17", &[])]
    fn values_of_objects_are_found(#[case] text: &str, #[case] expected: &[&str]) {
        assert_eq!(values(&[text.as_bytes()]), expected);
    }

    #[test]
    fn long_values_are_cut_and_cost_nothing() {
        let long = format!(
            r#"{{"a":"{}","{}":1,"b":2}}"#,
            "x".repeat(100_000),
            "k".repeat(100_000)
        );
        assert_eq!(
            values(&[long.as_bytes()]),
            ["=1", "b=2"],
            "a name that is too long is none"
        );
    }

    #[test]
    fn nesting_without_end_is_given_up() {
        let mut text = "[".repeat(10_000);
        text.push_str(r#"{"a":1}"#);
        assert!(values(&[text.as_bytes()]).is_empty());
    }

    fn document() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(serde_json::Value::from),
            "[a-z\"\\\\/\n]{0,8}".prop_map(serde_json::Value::from),
            Just(serde_json::Value::Null),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                proptest::collection::btree_map("[a-z]{1,4}", inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// The numbers at most `DEPTH` deep, as a parser finds them.
    fn numbers(value: &serde_json::Value, path: &str, depth: usize, out: &mut Vec<String>) {
        let serde_json::Value::Object(map) = value else {
            return;
        };
        for (key, value) in map {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            if value.is_number() && depth < DEPTH {
                out.push(format!("{path}={value}"));
            }
            numbers(value, &path, depth + 1, out);
        }
    }

    proptest! {
        #[test]
        fn it_finds_what_a_parser_finds_however_the_bytes_are_cut(value in document(), cut in 1usize..9) {
            let text = value.to_string();
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            let found: Vec<String> = values(&pieces)
                .into_iter()
                .filter(|line| line.rsplit('=').next().is_some_and(|v| v.parse::<i64>().is_ok()))
                .collect();
            let mut expected = Vec::new();
            numbers(&value, "", 0, &mut expected);
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn rubbish_does_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            values(&[&bytes]);
        }
    }
}
