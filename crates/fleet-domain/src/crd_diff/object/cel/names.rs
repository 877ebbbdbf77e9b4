//! Names of fields that are no names in a rule are written another way there: `foo-bar` is `foo__dash__bar`.

use std::borrow::Cow;

use super::parse::RESERVED;

const ESCAPES: [(&str, char); 3] = [("__dot__", '.'), ("__dash__", '-'), ("__slash__", '/')];
const UNDERSCORES: &str = "__underscores__";

/// The field that a rule names; nothing if it is not written as the server wants it.
pub fn unescape(name: &str) -> Option<Cow<'_, str>> {
    if RESERVED.contains(&name) {
        return None;
    }
    if !name.contains("__") {
        return Some(name.into());
    }
    let word = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    if let Some(word) = word.filter(|word| RESERVED.contains(word)) {
        return Some(word.into());
    }
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    'next: while let Some(c) = rest.chars().next() {
        if rest.starts_with("__") {
            if let Some(after) = rest.strip_prefix(UNDERSCORES) {
                plain.push_str("__");
                rest = after;
                continue;
            }
            for (escape, meant) in ESCAPES {
                if let Some(after) = rest.strip_prefix(escape) {
                    plain.push(meant);
                    rest = after;
                    continue 'next;
                }
            }
            return None;
        }
        plain.push(c);
        rest = &rest[c.len_utf8()..];
    }
    Some(plain.into())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::unescape;

    #[rstest]
    #[case("plain", Some("plain"))]
    #[case("a_b", Some("a_b"))]
    #[case("a__dash__b__dot__c__slash__d", Some("a-b.c/d"))]
    #[case("a__underscores__b", Some("a__b"))]
    #[case("__namespace__", Some("namespace"))]
    #[case("namespace", None)]
    #[case("a__b", None)]
    fn as_the_server_reads_it(#[case] name: &str, #[case] field: Option<&str>) {
        assert_eq!(unescape(name).as_deref(), field);
    }
}
