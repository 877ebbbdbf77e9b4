//! The formats of text that a server checks, as far as they matter for custom resources. A format that is not checked
//! here is taken as met.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::crd_diff::schema::Count;

pub fn matches(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(text),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid(text),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "date-time" => date_time(text),
        "byte" => base64(text),
        "mac" => mac(text),
        "hostname" => {
            !text.is_empty()
                && text.len() <= 255
                && text
                    .trim_end_matches('.')
                    .split('.')
                    .all(|label| is_label(label, true))
        }
        "k8s-short-name" => is_label(text, false),
        // Unlike names of hosts, its parts may be as long as the whole.
        "k8s-long-name" => text.len() <= 253 && text.split('.').all(|part| is_word(part, false)),
        "uri" => text.starts_with('/') || text.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme)),
        "email" => text
            .rsplit_once('@')
            .is_some_and(|(name, host)| !name.is_empty() && !host.is_empty()),
        "hexcolor" => text.strip_prefix('#').is_some_and(|digits| {
            matches!(digits.len(), 3 | 6) && digits.chars().all(|c| c.is_ascii_hexdigit())
        }),
        _ => true,
    }
}

/// How many characters a text with this format has. Only where every server that checks the format agrees on it: old ones
/// take addresses with any number of zeros in front.
pub fn length(format: &str) -> Count {
    let (min, max) = match format {
        // Dashes may be left out.
        "uuid" | "uuid3" | "uuid4" | "uuid5" => (32, Some(36)),
        "date" => (10, Some(10)),
        "date-time" => (20, None),
        "hostname" => (1, Some(255)),
        "k8s-short-name" => (1, Some(63)),
        "k8s-long-name" => (1, Some(253)),
        other => (u64::from(!matches(other, "")), None),
    };
    Count { min, max }
}

fn cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else {
        return false;
    };
    let Ok(length) = length.parse::<u8>() else {
        return false;
    };
    (address.parse::<Ipv4Addr>().is_ok() && length <= 32)
        || (address.parse::<Ipv6Addr>().is_ok() && length <= 128)
}

fn uuid(text: &str) -> bool {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit())
}

fn date_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20
        && matches!(bytes[10], b'T' | b't' | b' ')
        && text
            .replace(['t', ' '], "T")
            .replace('z', "Z")
            .parse::<jiff::Timestamp>()
            .is_ok()
}

fn base64(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    text.len().is_multiple_of(4)
        && text.len() - body.len() <= 2
        && body
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_'))
}

fn mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8)
        && parts
            .iter()
            .all(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()))
}

fn is_label(label: &str, capitals: bool) -> bool {
    label.len() <= 63 && is_word(label, capitals)
}

fn is_word(label: &str, capitals: bool) -> bool {
    let edge = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase() || (capitals && c.is_ascii_uppercase());
    !label.is_empty()
        && label.starts_with(edge)
        && label.ends_with(edge)
        && label.chars().all(|c| edge(c) || c == '-')
}

fn is_scheme(scheme: &str) -> bool {
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{length, matches};

    #[rstest]
    #[case("date-time", "2024-02-30T00:00:00Z", false)]
    #[case("date-time", "2024-02-28T00:00:00Z", true)]
    #[case("date-time", "2024-02-28T00:00:00.123+02:00", true)]
    #[case("date-time", "2024-02-28", false)]
    #[case("date", "2024-13-01", false)]
    #[case("byte", "***", false)]
    #[case("byte", "YQ==", true)]
    #[case("cidr", "10.0.0.0", false)]
    #[case("cidr", "10.0.0.0/8", true)]
    #[case("hostname", "a_b", false)]
    #[case("uri", "foo", false)]
    #[case("uri", "https://x/y", true)]
    #[case("email", "x", false)]
    #[case("k8s-short-name", "A_B ", false)]
    #[case(
        "k8s-short-name",
        "0123456789012345678901234567890123456789012345678901234567890123",
        false
    )]
    #[case(
        "k8s-long-name",
        "0123456789012345678901234567890123456789012345678901234567890123.a",
        true
    )]
    #[case("no-such-format", "anything", true)]
    fn as_the_server_says(#[case] format: &str, #[case] text: &str, #[case] yes: bool) {
        assert_eq!(matches(format, text), yes);
    }

    #[rstest]
    #[case("uuid", "0123456789abcdef0123456789abcdef")]
    #[case("uuid", "01234567-89ab-cdef-0123-456789abcdef")]
    #[case("date", "2024-02-29")]
    #[case("date-time", "2024-02-29T00:00:00Z")]
    #[case("k8s-short-name", "a")]
    #[case("ipv6", "::")]
    #[case("no-such-format", "")]
    fn as_long_as_can_be(#[case] format: &str, #[case] text: &str) {
        assert!(matches(format, text) && length(format).admits(text.chars().count() as u64));
    }
}
