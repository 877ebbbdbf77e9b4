//! Small texts that Kubernetes writes its own way: durations and quantities.

use std::time::Duration;

/// Parses `500ms`, `2s`, `1.5s`, `1m30s`, `2h` and a bare number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a duration such as 500ms, 2s or 1m30s");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    if let Ok(seconds) = rest.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| bad());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        rest = &rest[letters..];
        total += Duration::try_from_secs_f64(number * unit).map_err(|_| bad())?;
    }
    Ok(total)
}

/// Writes a duration as Go does (`10s`, `1m20s`, `5m0s`, `500ms`), which is how it appears in kubelet messages.
pub fn go_duration(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 {
        return if millis == 0 {
            "0s".to_owned()
        } else {
            format!("{millis}ms")
        };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut out = match (hours, minutes) {
        (0, 0) => String::new(),
        (0, _) => format!("{minutes}m"),
        _ => format!("{hours}h{minutes}m"),
    };
    out += &(seconds % 60).to_string();
    if millis > 0 {
        out += format!(".{millis:03}").trim_end_matches('0');
    }
    out + "s"
}

/// Parses `key=value`.
pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not KEY=VALUE")),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// Parses `key=value:Effect` and `key:Effect`.
pub fn parse_taint(text: &str) -> Result<Taint, String> {
    let bad = || format!("'{text}' is not KEY[=VALUE]:EFFECT");
    let (pair, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if key.is_empty() || !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(bad());
    }
    Ok(Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("500ms", 500)]
    #[case("2s", 2000)]
    #[case("1.5s", 1500)]
    #[case("1m30s", 90_000)]
    #[case("2h", 7_200_000)]
    #[case("3", 3000)]
    #[case(" 0.25 ", 250)]
    fn durations_are_read(#[case] text: &str, #[case] millis: u64) {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)));
    }

    #[rstest]
    #[case("")]
    #[case("s")]
    #[case("5 minutes")]
    #[case("-1s")]
    #[case("-1")]
    #[case("1.2.3s")]
    #[case("99999999999999999999999h")]
    fn bad_durations_are_refused(#[case] text: &str) {
        assert!(parse_duration(text).is_err(), "{text}");
    }

    #[rstest]
    #[case(0, "0s")]
    #[case(500, "500ms")]
    #[case(10_000, "10s")]
    #[case(1500, "1.5s")]
    #[case(80_000, "1m20s")]
    #[case(300_000, "5m0s")]
    #[case(3_600_000, "1h0m0s")]
    fn durations_are_written_as_go_does(#[case] millis: u64, #[case] text: &str) {
        assert_eq!(go_duration(Duration::from_millis(millis)), text);
    }
}
