//! Kubernetes quantities (`250m`, `128Mi`), as far as CPU and memory need them.

/// Parses a quantity into billionths of its unit; `None` if it is none, or negative, or too large.
fn parse_nano(text: &str) -> Option<u128> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 20 || fraction.contains('.') {
        return None;
    }
    // (numerator, denominator) of the suffix in nano units.
    let (times, over): (u128, u128) = match suffix {
        "n" => (1, 1),
        "u" => (1_000, 1),
        "m" => (1_000_000, 1),
        "" => (NANO, 1),
        "k" => (NANO * 1000, 1),
        "M" => (NANO * 1_000_000, 1),
        "G" => (NANO * 1_000_000_000, 1),
        "T" => (NANO * 1_000_000_000_000, 1),
        "Ki" => (NANO << 10, 1),
        "Mi" => (NANO << 20, 1),
        "Gi" => (NANO << 30, 1),
        "Ti" => (NANO << 40, 1),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            match exponent {
                0..=12 => (NANO * 10_u128.pow(exponent.unsigned_abs()), 1),
                -12..0 => (NANO, 10_u128.pow(exponent.unsigned_abs())),
                _ => return None,
            }
        }
    };
    let fraction: String = fraction.chars().take(12).collect();
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    Some(digits.checked_mul(times)? / over / 10_u128.pow(u32::try_from(fraction.len()).ok()?))
}

const NANO: u128 = 1_000_000_000;

/// Billionths of a CPU.
pub fn parse_cpu(text: &str) -> Option<u64> {
    u64::try_from(parse_nano(text)?).ok()
}

/// Bytes.
pub fn parse_memory(text: &str) -> Option<u64> {
    u64::try_from(parse_nano(text)?.div_ceil(NANO)).ok()
}

/// `250m` where that is exact, else billionths, as metrics-server writes them.
pub fn format_cpu(nano: u64) -> String {
    match nano {
        0 => "0".to_owned(),
        n if n.is_multiple_of(1_000_000) => format!("{}m", n / 1_000_000),
        n => format!("{n}n"),
    }
}

pub fn format_memory(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        b if b.is_multiple_of(1024) => format!("{}Ki", b / 1024),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("250m", Some(250_000_000))]
    #[case("1", Some(1_000_000_000))]
    #[case("0.5", Some(500_000_000))]
    #[case(".5", Some(500_000_000))]
    #[case("1500u", Some(1_500_000))]
    #[case("7n", Some(7))]
    #[case("2k", Some(2_000_000_000_000))]
    #[case("1e-3", Some(1_000_000))]
    #[case("", None)]
    #[case("m", None)]
    #[case("-1", None)]
    #[case("1.2.3", None)]
    #[case("1 m", None)]
    #[case("99999999999Ti", None)]
    fn cpu(#[case] text: &str, #[case] nano: Option<u64>) {
        assert_eq!(parse_cpu(text), nano);
    }

    #[rstest]
    #[case("128Mi", Some(134_217_728))]
    #[case("1.5Gi", Some(1_610_612_736))]
    #[case("64k", Some(64_000))]
    #[case("1e3", Some(1000))]
    #[case("100m", Some(1))]
    #[case("1Xi", None)]
    fn memory(#[case] text: &str, #[case] bytes: Option<u64>) {
        assert_eq!(parse_memory(text), bytes);
    }

    #[rstest]
    #[case(format_cpu(250_000_000), "250m")]
    #[case(format_cpu(123), "123n")]
    #[case(format_cpu(0), "0")]
    #[case(format_memory(134_217_728), "131072Ki")]
    #[case(format_memory(1000), "1000")]
    fn written(#[case] text: String, #[case] expected: &str) {
        assert_eq!(text, expected);
    }
}
