//! The regular expressions of the schemas as functions.

/// [`crate::schema::DURATION_PATTERN`]
pub(crate) fn duration(text: &str) -> bool {
    let mut rest = text;
    for group in 0..5 {
        if rest.is_empty() {
            return group > 0;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let unit = ["ms", "h", "m", "s"]
            .into_iter()
            .find(|unit| tail.starts_with(unit));
        match unit {
            Some(unit) if !number.is_empty() => rest = &tail[unit.len()..],
            _ => return false,
        }
    }
    false
}

/// [`crate::schema::REFERENCE_PATTERN`]
pub(crate) fn reference(text: &str) -> bool {
    match text.split_once('/') {
        Some((namespace, object)) => label(namespace, 63, false) && label(object, 253, true),
        None => label(text, 253, true),
    }
}

/// [`crate::schema::NAME_PATTERN`]
pub(crate) fn name(text: &str) -> bool {
    label(text, 253, true)
}

fn label(text: &str, max: usize, dots: bool) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    bytes.len() <= max
        && alphanumeric(*first)
        && alphanumeric(*last)
        && bytes
            .iter()
            .all(|b| alphanumeric(*b) || *b == b'-' || (dots && *b == b'.'))
}

/// [`crate::schema::URL_PATTERN`]
pub(crate) fn url(text: &str) -> bool {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(' '))
}

/// [`crate::schema::PATH_PATTERN`]
pub(crate) fn path(text: &str) -> bool {
    text.starts_with('/') && !text.contains(' ')
}

const SUFFIXES: [&str; 16] = [
    "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
];

/// [`crate::schema::QUANTITY_PATTERN`]
pub(crate) fn quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = unsigned
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b'.')
        .count();
    let (number, suffix) = unsigned.split_at(number);
    if !decimal(number) {
        return false;
    }
    if SUFFIXES.contains(&suffix) {
        return true;
    }
    let exponent = suffix.strip_prefix(['e', 'E']);
    exponent.is_some_and(|e| decimal(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

/// `1`, `1.`, `1.5` or `.5`.
fn decimal(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
}

/// [`crate::schema::CHANGE_PATTERN`]
pub(crate) fn change(text: &str) -> bool {
    let mut parts = text.strip_suffix(".*").unwrap_or(text).split('.');
    let block = parts.next().unwrap_or_default();
    ["replicas", "resources", "autoScaling", "config"].contains(&block)
        && parts.all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphabetic()))
}

/// [`crate::schema::PACKAGE_PATTERN`]
pub(crate) fn package(text: &str) -> bool {
    let Some(first) = text.chars().next() else {
        return true;
    };
    (first.is_ascii_alphanumeric() || ['@', '.', '_'].contains(&first)) && !text.contains(['\n', '\r'])
}

#[cfg(test)]
mod tests {
    use crate::schema::{
        CHANGE_PATTERN, DURATION_PATTERN, NAME_PATTERN, OPTIONAL_NAME_PATTERN, PACKAGE_PATTERN, PATH_PATTERN,
        QUANTITY_PATTERN, REFERENCE_PATTERN, URL_PATTERN, matches,
    };
    use rstest::rstest;

    #[rstest]
    #[case(DURATION_PATTERN, &["30s", "1m30s", "0s", "500ms", "1h2m3s4ms"], &["", "30", "s", "1d", "1h2m3s4ms5s", "1.5s"])]
    #[case(
        REFERENCE_PATTERN,
        &["tools", "shared/tools", "a.b-c", "0"],
        &["", "/tools", "a/", "a/b/c", "Tools", "a_b", "-a", "n.s/tools"]
    )]
    #[case(NAME_PATTERN, &["a", "a-b.c", "0"], &["", "a/b", "A", "a-", ".a"])]
    #[case(OPTIONAL_NAME_PATTERN, &["", "a", "a-b.c"], &["a/b", "A", "a-", " "])]
    #[case(URL_PATTERN, &["http://a", "https://a/b?c"], &["", "http://", "ftp://a", "a", "http://a b"])]
    #[case(
        QUANTITY_PATTERN,
        &["1", "500m", "1.5", ".5", "5.", "10Gi", "1e3", "1E-3", "+1k", "-2", "7Ei", "3E"],
        &["", "1GB", "half", "1 Gi", "m", "1.2.3", "0x1", "1e", "ki"]
    )]
    #[case(
        PACKAGE_PATTERN,
        &["", "mcp-server-time", "a[b]>=1, <2", "@scope/pkg@1.0", "./wheel.whl"],
        &["-r", "--index-url=x", "a\nb", " a"]
    )]
    #[case(PATH_PATTERN, &["/", "/a/b"], &["", "a", "/a b"])]
    #[case(
        CHANGE_PATTERN,
        &["replicas", "replicas.*", "config.caosPlus.kappa", "resources.omegaMeta.*"],
        &["", "*", "secrets.x", "replicas.", "replicas..a", "replicas.*.a", "configx"]
    )]
    fn as_the_regular_expression(#[case] pattern: &str, #[case] good: &[&str], #[case] bad: &[&str]) {
        for text in good {
            assert!(matches(pattern, text), "{pattern} should take {text:?}");
        }
        for text in bad {
            assert!(!matches(pattern, text), "{pattern} should not take {text:?}");
        }
    }
}
