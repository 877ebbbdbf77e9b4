//! Label selectors as they stand in a query. Pure.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// Reads `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
pub fn parse(text: &str) -> Result<Vec<Expression>, String> {
    let mut expressions = Vec::new();
    for part in split(text)? {
        let part = part.trim();
        if part.is_empty() {
            continue;
        }
        expressions.push(expression(part).ok_or_else(|| format!("cannot read the selector {part:?}"))?);
    }
    Ok(expressions)
}

/// At the commas that are not inside brackets.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut open) = (Vec::new(), 0, false);
    for (at, char) in text.char_indices() {
        match char {
            '(' if !open => open = true,
            ')' if open => open = false,
            '(' | ')' => return Err(format!("brackets do not match in the selector {text:?}")),
            ',' if !open => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(format!("brackets do not match in the selector {text:?}"));
    }
    parts.push(text.get(start..).unwrap_or_default());
    Ok(parts)
}

fn expression(part: &str) -> Option<Expression> {
    if let Some((head, list)) = part.split_once('(') {
        let values: BTreeSet<String> = list
            .strip_suffix(')')?
            .split(',')
            .map(|value| word(value, true))
            .collect::<Option<_>>()?;
        let mut words = head.split_whitespace();
        let (key, operator) = (word(words.next()?, false)?, words.next()?);
        return match (operator, words.next()) {
            ("in", None) => Some(Expression::In(key, values)),
            ("notin", None) => Some(Expression::NotIn(key, values)),
            _ => None,
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Some(Expression::NotEqual(word(key, false)?, word(value, true)?));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(Expression::Equal(word(key, false)?, word(value, true)?));
    }
    match part.strip_prefix('!') {
        Some(key) => word(key, false).map(Expression::DoesNotExist),
        None => word(part, false).map(Expression::Exists),
    }
}

fn word(text: &str, may_be_empty: bool) -> Option<String> {
    let text = text.trim();
    let fits = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'));
    (fits && (may_be_empty || !text.is_empty())).then(|| text.to_owned())
}

/// What the API server can choose pods by, and what only the metrics' own labels can tell.
pub fn divide(expressions: Vec<Expression>, own: &[&str]) -> (Selector, Selector) {
    let (ours, theirs): (Vec<Expression>, Vec<Expression>) = expressions
        .into_iter()
        .partition(|expression| own.contains(&key(expression)));
    (theirs.into_iter().collect(), ours.into_iter().collect())
}

fn key(expression: &Expression) -> &str {
    match expression {
        Expression::In(key, _)
        | Expression::NotIn(key, _)
        | Expression::Equal(key, _)
        | Expression::NotEqual(key, _)
        | Expression::Exists(key)
        | Expression::DoesNotExist(key) => key,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "")]
    #[case("app=phi", "app=phi")]
    #[case("app==phi, x!=y ,z,!w", "app=phi,x!=y,z,!w")]
    #[case("a in (b, c),d notin (e)", "a in (b,c),d notin (e)")]
    #[case("model.ollama.ayaka.io/name=phi", "model.ollama.ayaka.io/name=phi")]
    #[case("empty=", "empty=")]
    fn selectors_are_read(#[case] text: &str, #[case] again: &str) {
        let read: Selector = parse(text).unwrap().into_iter().collect();
        assert_eq!(read.to_string(), again);
    }

    #[rstest]
    #[case("a in (b")]
    #[case("a)b")]
    #[case("a like (b)")]
    #[case("=b")]
    #[case("a=b&limit=1")]
    #[case("a b")]
    fn rubbish_is_refused(#[case] text: &str) {
        assert!(parse(text).is_err(), "{text}");
    }

    #[test]
    fn the_metrics_own_labels_are_kept_back() {
        let (theirs, ours) = divide(parse("app=phi,model=phi-3b,pod!=x").unwrap(), &["model", "pod"]);
        assert_eq!(theirs.to_string(), "app=phi");
        assert_eq!(ours.to_string(), "model=phi-3b,pod!=x");
    }
}
