//! Durations and timestamps, as Go reads and counts them. What is written in another way than the usual is undecided.

use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

use super::value::{Stop, Value, fails, undecided};

type Outcome<'a> = Result<Value<'a>, Stop>;

/// The longest unit first where one begins like another.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

pub fn duration<'a>(text: &str) -> Outcome<'a> {
    match nanoseconds(text) {
        Some(nanoseconds) => Ok(Value::Duration(nanoseconds)),
        None => undecided(format!("the duration {text:?} is not understood")),
    }
}

fn nanoseconds(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() || rest.len() > 64 {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let (unit, size) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && part.is_empty()) || whole.len() > 19 || part.len() > 15 {
            return None;
        }
        let digits = |text: &str| {
            if text.is_empty() {
                Some(0)
            } else {
                text.parse::<i128>().ok()
            }
        };
        total += digits(whole)? * size + digits(part)? * size / 10_i128.pow(part.len() as u32);
        rest = &after[unit.len()..];
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

pub fn timestamp<'a>(text: &str) -> Outcome<'a> {
    let bytes = text.as_bytes();
    let usual = bytes.len() >= 20 && bytes[10] == b'T' && text.is_ascii() && &bytes[17..19] != b"60";
    match text.parse::<Timestamp>() {
        Ok(time) if usual => Ok(Value::Timestamp(time)),
        _ => undecided(format!("the time {text:?} is not understood")),
    }
}

pub fn add<'a>(time: Timestamp, nanoseconds: i64) -> Outcome<'a> {
    match time.checked_add(SignedDuration::from_nanos(nanoseconds)) {
        Ok(time) => Ok(Value::Timestamp(time)),
        Err(_) => undecided("a time is out of range"),
    }
}

pub fn between<'a>(later: Timestamp, earlier: Timestamp) -> Outcome<'a> {
    match i64::try_from(later.as_nanosecond() - earlier.as_nanosecond()) {
        Ok(nanoseconds) => Ok(Value::Duration(nanoseconds)),
        Err(_) => fails("integer overflow"),
    }
}

pub fn call<'a>(name: &str, args: &[Value<'a>]) -> Option<Outcome<'a>> {
    let number = match args {
        [Value::Text(text)] => {
            return match name {
                "duration" => Some(duration(text)),
                "timestamp" => Some(timestamp(text)),
                _ => None,
            };
        }
        [Value::Duration(nanoseconds)] => {
            let unit = match name {
                "duration" => return Some(Ok(args[0].clone())),
                "getHours" => 3_600_000_000_000,
                "getMinutes" => 60_000_000_000,
                "getSeconds" => 1_000_000_000,
                "getMilliseconds" => 1_000_000,
                _ => return None,
            };
            nanoseconds / unit
        }
        [Value::Timestamp(time)] => {
            let utc: DateTime = TimeZone::UTC.to_datetime(*time);
            match name {
                "timestamp" => return Some(Ok(args[0].clone())),
                "int" => time.as_second(),
                "getFullYear" => utc.year().into(),
                "getMonth" => i64::from(utc.month()) - 1,
                "getDate" => utc.day().into(),
                "getDayOfMonth" => i64::from(utc.day()) - 1,
                "getDayOfWeek" => utc.weekday().to_sunday_zero_offset().into(),
                "getDayOfYear" => i64::from(utc.day_of_year()) - 1,
                "getHours" => utc.hour().into(),
                "getMinutes" => utc.minute().into(),
                "getSeconds" => utc.second().into(),
                "getMilliseconds" => utc.millisecond().into(),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Ok(Value::Int(number)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::nanoseconds;

    #[rstest]
    #[case("0", Some(0))]
    #[case("1h30m", Some(5_400_000_000_000))]
    #[case("-1.5s", Some(-1_500_000_000))]
    #[case("1ms", Some(1_000_000))]
    #[case("1d", None)]
    #[case("1", None)]
    #[case("", None)]
    #[case("9999999h", None)]
    fn durations(#[case] text: &str, #[case] expected: Option<i64>) {
        assert_eq!(nanoseconds(text), expected);
    }
}
