//! Text → tokens, by the lexical rules of the CEL specification.

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// Without its sign.
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Name(String),
    Sign(&'static str),
}

/// Longer ones first: `<=` is not `<`.
const SIGNS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "!", "+", "-", "*", "/", "%", "(", ")", "[", "]", "{", "}",
    ".", ",", ":", "?", "=",
];

pub fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut lexer = Lexer { rest: text };
    let mut all = Vec::new();
    loop {
        lexer.skip_blanks();
        let Some(first) = lexer.rest.chars().next() else {
            return Ok(all);
        };
        all.push(lexer.token(first)?);
    }
}

struct Lexer<'t> {
    rest: &'t str,
}

impl<'t> Lexer<'t> {
    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches(['\t', '\n', '\u{c}', '\r', ' ']);
            let Some(comment) = self.rest.strip_prefix("//") else {
                return;
            };
            self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
        }
    }

    fn token(&mut self, first: char) -> Result<Token, String> {
        if let Some(literal) = self.quoted()? {
            return Ok(literal);
        }
        let second = self.rest.chars().nth(1);
        if first.is_ascii_digit() || (first == '.' && second.is_some_and(|c| c.is_ascii_digit())) {
            return self.number();
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let name = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
            return Ok(Token::Name(name.to_owned()));
        }
        for sign in SIGNS {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = rest;
                return Ok(Token::Sign(sign));
            }
        }
        Err(format!("the character {first:?} is not understood"))
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn number(&mut self) -> Result<Token, String> {
        let bad = |_| "a number is not understood".to_owned();
        if let Some(rest) = self
            .rest
            .strip_prefix("0x")
            .or_else(|| self.rest.strip_prefix("0X"))
        {
            self.rest = rest;
            let digits = self.take(|c| c.is_ascii_hexdigit());
            let number = u64::from_str_radix(digits, 16).map_err(bad)?;
            return Ok(self.unsigned(number));
        }
        let start = self.rest;
        self.take(|c| c.is_ascii_digit());
        let mut whole = true;
        let digit_after = |text: &str, skip: usize| text[skip..].starts_with(|c: char| c.is_ascii_digit());
        if self.rest.starts_with('.') && digit_after(self.rest, 1) {
            whole = false;
            self.rest = &self.rest[1..];
            self.take(|c| c.is_ascii_digit());
        }
        if self.rest.starts_with(['e', 'E']) {
            let signed = usize::from(self.rest[1..].starts_with(['+', '-']));
            if digit_after(self.rest, 1 + signed) {
                whole = false;
                self.rest = &self.rest[1 + signed..];
                self.take(|c| c.is_ascii_digit());
            }
        }
        let text = &start[..start.len() - self.rest.len()];
        if whole {
            let number = text.parse().map_err(bad)?;
            return Ok(self.unsigned(number));
        }
        text.parse()
            .map(Token::Double)
            .map_err(|_| "a number is not understood".to_owned())
    }

    fn unsigned(&mut self, number: u64) -> Token {
        match self.rest.strip_prefix(['u', 'U']) {
            Some(rest) => {
                self.rest = rest;
                Token::Uint(number)
            }
            None => Token::Int(number),
        }
    }

    /// Text or bytes, with their prefixes, if there are any here.
    fn quoted(&mut self) -> Result<Option<Token>, String> {
        // No prefix is longer than two letters.
        let mut start = self.rest.bytes().take(3);
        let Some(prefix) = start
            .position(|byte| matches!(byte, b'"' | b'\''))
            .map(|at| &self.rest[..at])
        else {
            return Ok(None);
        };
        let (raw, bytes) = match prefix.to_ascii_lowercase().as_str() {
            "" => (false, false),
            "r" => (true, false),
            "b" => (false, true),
            "rb" | "br" => (true, true),
            _ => return Ok(None),
        };
        let body = &self.rest[prefix.len()..];
        let end = ["\"\"\"", "'''", "\"", "'"]
            .into_iter()
            .find(|end| body.starts_with(end))
            .unwrap_or("\"");
        let mut rest = &body[end.len()..];
        let mut content = Vec::new();
        loop {
            if let Some(after) = rest.strip_prefix(end) {
                self.rest = after;
                break;
            }
            let Some(c) = rest.chars().next() else {
                return Err("a text does not end".to_owned());
            };
            if end.len() == 1 && matches!(c, '\n' | '\r') {
                return Err("a text does not end on its line".to_owned());
            }
            if c == '\\' && !raw {
                rest = escape(&rest[1..], bytes, &mut content)?;
                continue;
            }
            rest = &rest[c.len_utf8()..];
            content.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        if bytes {
            return Ok(Some(Token::Bytes(content)));
        }
        String::from_utf8(content)
            .map(|text| Some(Token::Text(text)))
            .map_err(|_| "a text is not UTF-8".to_owned())
    }
}

/// What follows a backslash; gives back what is left.
fn escape<'t>(text: &'t str, bytes: bool, out: &mut Vec<u8>) -> Result<&'t str, String> {
    let bad = || "an escape in a text is not understood".to_owned();
    let c = text.chars().next().ok_or_else(bad)?;
    let plain = match c {
        'a' => Some(7),
        'b' => Some(8),
        'f' => Some(12),
        'n' => Some(b'\n'),
        'r' => Some(b'\r'),
        't' => Some(b'\t'),
        'v' => Some(11),
        '\\' | '?' | '"' | '\'' | '`' => Some(c as u8),
        _ => None,
    };
    if let Some(byte) = plain {
        out.push(byte);
        return Ok(&text[1..]);
    }
    let (skip, digits, radix) = match c {
        'x' | 'X' => (1, 2, 16),
        'u' if !bytes => (1, 4, 16),
        'U' if !bytes => (1, 8, 16),
        '0'..='3' => (0, 3, 8),
        _ => return Err(bad()),
    };
    let code = text.get(skip..skip + digits).ok_or_else(bad)?;
    let code = u32::from_str_radix(code, radix).map_err(|_| bad())?;
    if bytes {
        out.push(u8::try_from(code).map_err(|_| bad())?);
    } else {
        let c = char::from_u32(code).ok_or_else(bad)?;
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(&text[skip + digits..])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("'a\\'b'", Token::Text("a'b".into()))]
    #[case("r'\\d+'", Token::Text("\\d+".into()))]
    #[case("\"\"\"a\"b\"\"\"", Token::Text("a\"b".into()))]
    #[case("'\\u00e9\\x41\\101'", Token::Text("éAA".into()))]
    #[case("b'\\xff'", Token::Bytes(vec![255]))]
    #[case("0x1F", Token::Int(31))]
    #[case("7u", Token::Uint(7))]
    #[case("1.5e-1", Token::Double(0.15))]
    #[case("a // b", Token::Name("a".into()))]
    fn one_token(#[case] text: &str, #[case] token: Token) {
        assert_eq!(tokens(text).unwrap(), [token]);
    }

    #[rstest]
    #[case("'a")]
    #[case("'a\nb'")]
    #[case("'\\q'")]
    #[case("99999999999999999999")]
    #[case("a § b")]
    #[case("`a-b`")]
    fn not_understood(#[case] text: &str) {
        assert!(tokens(text).is_err());
    }
}
