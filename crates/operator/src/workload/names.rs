//! Names of children: as the originals named them wherever that is possible.

use gantry_kit::wish::digest_bytes;

/// `<prefix>-<name>`, shortened and made a valid DNS label where the root's name is too long or has dots.
pub fn child(prefix: &str, name: &str) -> String {
    dns_label(&format!("{prefix}-{name}"))
}

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
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("echo", "mcpserver-echo")]
    #[case("a.b", "mcpserver-a-b-")]
    #[case(
        "x23456789012345678901234567890123456789012345678901234567890",
        "mcpserver-x2345678901234567890123456789012345678901234-"
    )]
    fn names_are_kept_or_made_valid(#[case] name: &str, #[case] start: &str) {
        let made = child("mcpserver", name);
        assert!(made.starts_with(start), "{made}");
        assert!(made.len() <= 63);
        assert_eq!(made, dns_label(&made), "valid as it is");
    }

    #[test]
    fn different_names_stay_different() {
        assert_ne!(child("mcpserver", "a.b"), child("mcpserver", "a-b"));
    }
}
