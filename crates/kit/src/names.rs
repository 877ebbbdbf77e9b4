//! Texts that are too long, or have the wrong characters, made into names and values of labels.

use crate::wish::digest_bytes;

/// A valid DNS label that is the text itself when that is one, and else says so by a digest at its end.
pub fn dns_label(text: &str) -> String {
    let is_valid = text.len() <= 63
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_valid {
        return text.to_owned();
    }
    let clean: String = text
        .to_ascii_lowercase()
        .chars()
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '-'
            }
        })
        .collect();
    let short: String = clean.trim_matches('-').chars().take(54).collect();
    format!(
        "{}-{}",
        short.trim_end_matches('-'),
        &digest_bytes(text.as_bytes())[..8]
    )
}

/// A valid label value: up to 63 characters, dots allowed.
pub fn label_value(text: &str) -> String {
    if text.len() <= 63 {
        text.to_owned()
    } else {
        dns_label(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_value_stays_as_it_is() {
        let long = "x".repeat(70);
        let short = label_value(&long);
        assert!(short.len() <= 63 && short != long);
        assert_eq!(label_value(&short), short);
        assert_eq!(label_value("a.b"), "a.b");
    }
}
