//! Quantities such as `1.5Gi`, exact to a thousand millionth as the server keeps them. Larger and finer ones, which it
//! rounds, are undecided.

use super::value::{Stop, Value, fails, undecided};

/// One, in the units that are counted.
const ONE: i128 = 1_000_000_000;
/// What the server caps at.
const MOST: i128 = i64::MAX as i128 * ONE;

const SUFFIXES: [(&str, i128, i128); 16] = [
    ("", 1, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
];

/// Nothing if it is no quantity.
fn parse(text: &str) -> Result<Option<i128>, Stop> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.contains('.') {
        return Ok(None);
    }
    if whole.is_empty() && part.is_empty() {
        // The server reads a sign or a dot alone as zero.
        let odd = |c: char| "+-.eEinumkKMGTP".contains(c);
        return if !text.is_empty() && text.chars().all(odd) {
            undecided("a quantity has no digits")
        } else {
            Ok(None)
        };
    }
    let Some((up, down)) = factor(suffix)? else {
        return Ok(None);
    };
    let (whole, part) = (whole.trim_start_matches('0'), part.trim_end_matches('0'));
    if whole.len() > 18 || part.len() > 9 {
        return undecided("a quantity is very large or very fine");
    }
    let digits = |text: &str| text.parse::<i128>().unwrap_or(0);
    let exact = digits(whole)
        .checked_mul(ONE)
        .and_then(|whole| whole.checked_add(digits(part) * 10_i128.pow(9 - part.len() as u32)))
        .and_then(|number| number.checked_mul(up))
        .filter(|number| number % down == 0 && number / down <= MOST);
    match exact {
        Some(number) if negative => Ok(Some(-number / down)),
        Some(number) => Ok(Some(number / down)),
        None => undecided("a quantity is very large or very fine"),
    }
}

fn factor(suffix: &str) -> Result<Option<(i128, i128)>, Stop> {
    let known = SUFFIXES.iter().find(|(known, _, _)| *known == suffix);
    if let Some((_, up, down)) = known {
        return Ok(Some((*up, *down)));
    }
    let Some(exponent) = suffix.strip_prefix(['e', 'E']) else {
        return Ok(None);
    };
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return Ok(None);
    }
    match exponent.parse::<i32>() {
        Ok(up @ 0..=18) => Ok(Some((10_i128.pow(up.unsigned_abs()), 1))),
        Ok(down @ -9..0) => Ok(Some((1, 10_i128.pow(down.unsigned_abs())))),
        _ => undecided("a quantity has a very large exponent"),
    }
}

/// `4000m` is no integer for the server, though it is four.
fn is_written_whole(text: &str) -> bool {
    !text.contains(['.', 'n', 'u', 'm', 'e']) && !text.contains("E-")
}

pub fn call<'a>(name: &str, args: &[Value<'a>]) -> Option<Result<Value<'a>, Stop>> {
    Some(match (name, args) {
        ("quantity", [Value::Text(text)]) => match parse(text) {
            Ok(Some(quantity)) => Ok(Value::Quantity(quantity, is_written_whole(text))),
            Ok(None) => fails(format!("{:?} is no quantity", &**text)),
            Err(stop) => Err(stop),
        },
        ("isQuantity", [Value::Text(text)]) => parse(text).map(|quantity| Value::Bool(quantity.is_some())),
        ("isLessThan", [Value::Quantity(one, _), Value::Quantity(other, _)]) => Ok(Value::Bool(one < other)),
        ("isGreaterThan", [Value::Quantity(one, _), Value::Quantity(other, _)]) => {
            Ok(Value::Bool(one > other))
        }
        ("compareTo", [Value::Quantity(one, _), Value::Quantity(other, _)]) => {
            Ok(Value::Int(one.cmp(other) as i64))
        }
        ("isInteger", [Value::Quantity(one, _)]) if one % ONE != 0 => Ok(Value::Bool(false)),
        ("isInteger", [Value::Quantity(_, true)]) => Ok(Value::Bool(true)),
        ("asInteger", [Value::Quantity(one, _)]) if one % ONE != 0 => fails("a quantity is no integer"),
        ("asInteger", [Value::Quantity(one, true)]) => match i64::try_from(one / ONE) {
            Ok(whole) => Ok(Value::Int(whole)),
            Err(_) => undecided("a quantity is very large"),
        },
        ("isInteger" | "asInteger", [Value::Quantity(..)]) => {
            undecided("whether a quantity is an integer depends on how it is written")
        }
        ("asApproximateFloat", [Value::Quantity(one, true)]) if one % ONE == 0 => {
            Ok(Value::Double((one / ONE) as f64))
        }
        ("add" | "sub", [Value::Quantity(one, _), other]) => {
            let other = match other {
                Value::Quantity(other, _) => *other,
                Value::Int(other) => i128::from(*other) * ONE,
                _ => return None,
            };
            let sum = if name == "add" { one + other } else { one - other };
            if sum.abs() > MOST {
                undecided("a quantity is very large")
            } else {
                Ok(Value::Quantity(sum, false))
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1", ONE)]
    #[case("1500m", 3 * ONE / 2)]
    #[case("1.5Gi", (3 << 29) * ONE)]
    #[case("1e3", 1000 * ONE)]
    #[case("1E", 1_000_000_000_000_000_000 * ONE)]
    #[case("-.5", -ONE / 2)]
    #[case("+2k", 2000 * ONE)]
    fn quantities(#[case] text: &str, #[case] expected: i128) {
        assert_eq!(parse(text), Ok(Some(expected)));
    }

    #[rstest]
    #[case("")]
    #[case("abc")]
    #[case("1K")]
    #[case("1 Gi")]
    #[case("1.2.3")]
    #[case("1e")]
    fn no_quantities(#[case] text: &str) {
        assert_eq!(parse(text), Ok(None));
    }

    #[rstest]
    #[case("100E")]
    #[case(".")]
    #[case("0.5n")]
    #[case("1e99")]
    fn rounded_by_the_server(#[case] text: &str) {
        assert!(parse(text).is_err());
    }
}
