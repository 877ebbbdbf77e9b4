//! How many tokens an answer cost, as the answer itself says. Pure.

use crate::scan::{Found, Scanner};

/// What is written above this is nonsense, and would spoil the counters for good.
const MOST: u64 = 1_000_000_000;

/// Tokens of one request; absent where the answer does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: Option<u64>,
    pub completion: Option<u64>,
}

impl Usage {
    fn take(&mut self, path: &[Vec<u8>], value: &Found<'_>) {
        let path: &[Vec<u8>] = match path {
            // Ollama's own, in the last line.
            [key] => {
                match key.as_slice() {
                    b"prompt_eval_count" => note(&mut self.prompt, value),
                    b"eval_count" => note(&mut self.completion, value),
                    _ => {}
                }
                return;
            }
            // Events of the Responses and of the Messages API wrap their object.
            [outer, rest @ ..] if rest.len() == 2 && matches!(outer.as_slice(), b"response" | b"message") => {
                rest
            }
            path => path,
        };
        if let [usage, key] = path
            && usage == b"usage"
        {
            match key.as_slice() {
                b"prompt_tokens" | b"input_tokens" => note(&mut self.prompt, value),
                b"completion_tokens" | b"output_tokens" => note(&mut self.completion, value),
                _ => {}
            }
        }
    }
}

/// Counts only grow within one answer: where it tells them more than once, the largest is the last.
fn note(place: &mut Option<u64>, value: &Found<'_>) {
    let number = std::str::from_utf8(value.text)
        .ok()
        .filter(|_| !value.quoted)
        .and_then(|text| text.parse::<u64>().ok())
        .filter(|number| *number <= MOST);
    *place = number.max(*place);
}

/// How values are laid out in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// One document.
    Json,
    /// One document on each line.
    Lines,
    /// Server-sent events.
    Events,
}

impl Framing {
    pub fn of(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        match kind.to_ascii_lowercase().as_str() {
            "application/json" => Some(Self::Json),
            "application/x-ndjson" => Some(Self::Lines),
            "text/event-stream" => Some(Self::Events),
            _ => None,
        }
    }

    /// Whether the answer comes piece by piece.
    pub fn streams(self) -> bool {
        self != Self::Json
    }
}

const DATA: &[u8] = b"data:";

/// Reads the usage out of a body that passes by.
pub struct Reader {
    framing: Framing,
    scanner: Scanner,
    usage: Usage,
    /// In an event: how much of `data:` the line began with, or none when it is another line.
    matched: Option<usize>,
}

impl Reader {
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            scanner: Scanner::default(),
            usage: Usage::default(),
            matched: Some(0),
        }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        if self.framing == Framing::Json {
            self.scan(bytes);
            return;
        }
        // No document holds a bare line break, so each one is a fresh start.
        for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if number > 0 {
                self.end_document();
            }
            match self.framing {
                Framing::Events => self.event(line),
                Framing::Json | Framing::Lines => self.scan(line),
            }
        }
    }

    pub fn finish(&mut self) -> Usage {
        self.end_document();
        self.usage
    }

    fn event(&mut self, mut line: &[u8]) {
        while let (Some(matched), Some((first, rest))) = (self.matched, line.split_first()) {
            match DATA.get(matched) {
                None => break,
                Some(expected) if expected == first => {
                    self.matched = Some(matched + 1);
                    line = rest;
                }
                Some(_) => self.matched = None,
            }
        }
        if self.matched.is_some() {
            self.scan(line);
        }
    }

    fn scan(&mut self, bytes: &[u8]) {
        let usage = &mut self.usage;
        self.scanner
            .feed(bytes, &mut |path, value| usage.take(path, &value));
    }

    fn end_document(&mut self) {
        let usage = &mut self.usage;
        self.scanner.reset(&mut |path, value| usage.take(path, &value));
        self.matched = Some(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn read(framing: Framing, text: &str, cut: usize) -> (Option<u64>, Option<u64>) {
        let mut reader = Reader::new(framing);
        for piece in text.as_bytes().chunks(cut) {
            reader.feed(piece);
        }
        let usage = reader.finish();
        (usage.prompt, usage.completion)
    }

    const OLLAMA: &str = concat!(
        r#"{"model":"phi","response":"a \"eval_count\": 99","done":false}"#,
        "\n",
        r#"{"model":"phi","response":"","done":true,"context":[1,2,3],"prompt_eval_count":26,"eval_count":298}"#,
        "\n",
    );
    const SSE: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\n",
        ": a comment with \"usage\":{\"prompt_tokens\":7}\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":12,\"total_tokens\":17}}\n\n",
        "data: [DONE]\n\n",
    );
    const RESPONSES: &str = concat!(
        "event: response.completed\n",
        "data: {\"response\":{\"id\":\"1\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n",
    );
    const MESSAGES: &str = concat!(
        "event: message_start\r\n",
        "data: {\"message\":{\"usage\":{\"input_tokens\":8,\"output_tokens\":1}}}\r\n\r\n",
        "data: {\"usage\":{\"output_tokens\":9}}\r\n\r\n",
    );

    #[rstest]
    #[case(Framing::Lines, OLLAMA, (Some(26), Some(298)))]
    #[case(Framing::Json, r#"{"done":true,"prompt_eval_count":2,"eval_count":3}"#, (Some(2), Some(3)))]
    #[case(Framing::Json, r#"{"choices":[{"usage":{"prompt_tokens":1}}],"usage":{"prompt_tokens":4,"completion_tokens":6}}"#, (Some(4), Some(6)))]
    #[case(Framing::Json, r#"{"embeddings":[[0.1,0.2]],"prompt_eval_count":8}"#, (Some(8), None))]
    #[case(Framing::Events, SSE, (Some(5), Some(12)))]
    #[case(Framing::Events, RESPONSES, (Some(3), Some(4)))]
    #[case(Framing::Events, MESSAGES, (Some(8), Some(9)))]
    #[case(Framing::Lines, "{\"eval_count\":99999999999999,\"prompt_eval_count\":-4}\n", (None, None))]
    #[case(Framing::Lines, "{\"eval_count\":\"7\"}\n{\"eval_", (None, None))]
    #[case(Framing::Lines, "rubbish \"\n{\"eval_count\":7}", (None, Some(7)))]
    fn tokens_are_read(
        #[case] framing: Framing,
        #[case] text: &str,
        #[case] expected: (Option<u64>, Option<u64>),
    ) {
        for cut in [1, 2, 7, 10_000] {
            assert_eq!(read(framing, text, cut), expected, "cut in {cut}");
        }
    }

    #[rstest]
    #[case("application/x-ndjson", Some(Framing::Lines))]
    #[case("application/json; charset=utf-8", Some(Framing::Json))]
    #[case("Text/Event-Stream", Some(Framing::Events))]
    #[case("text/plain", None)]
    fn the_content_type_says_how(#[case] text: &str, #[case] expected: Option<Framing>) {
        assert_eq!(Framing::of(text), expected);
    }

    proptest! {
        #[test]
        fn rubbish_does_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            for framing in [Framing::Json, Framing::Lines, Framing::Events] {
                let mut reader = Reader::new(framing);
                reader.feed(&bytes);
                reader.finish();
            }
        }
    }
}
