//! Functions of text. Places are counted in characters, as the server counts them.

use std::fmt::Write as _;

use super::{
    eval::{Evaluator, Outcome},
    value::{Stop, Value, fails, undecided},
};

pub fn call<'a>(evaluator: &mut Evaluator<'a, '_>, name: &str, args: &[Value<'a>]) -> Option<Outcome<'a>> {
    if let ("join", [Value::List(_)] | [Value::List(_), Value::Text(_)]) = (name, args) {
        return Some(join(evaluator, args));
    }
    let Value::Text(text) = args.first()? else {
        return None;
    };
    if let Err(stop) = evaluator.spend_on(text.len()) {
        return Some(Err(stop));
    }
    let yes = |yes: bool| Ok(Value::Bool(yes));
    Some(match (name, &args[1..]) {
        ("size", []) => Ok(Value::Int(text.chars().count() as i64)),
        ("startsWith", [Value::Text(other)]) => yes(text.starts_with(&**other)),
        ("endsWith", [Value::Text(other)]) => yes(text.ends_with(&**other)),
        ("contains", [Value::Text(other)]) => yes(text.contains(&**other)),
        ("matches", [Value::Text(pattern)]) => evaluator
            .pattern(pattern)
            .map(|pattern| Value::Bool(pattern.is_match(text))),
        ("find", [Value::Text(pattern)]) => evaluator
            .pattern(pattern)
            .map(|pattern| Value::text(pattern.find(text).map_or("", |found| found.as_str()))),
        ("findAll", [Value::Text(pattern)]) => find_all(evaluator, text, pattern, -1),
        ("findAll", [Value::Text(pattern), Value::Int(most)]) => find_all(evaluator, text, pattern, *most),
        ("lowerAscii", []) => Ok(Value::text(text.to_ascii_lowercase())),
        ("upperAscii", []) => Ok(Value::text(text.to_ascii_uppercase())),
        ("trim", []) => Ok(Value::text(text.trim())),
        ("charAt", [Value::Int(index)]) => char_at(text, *index),
        ("substring", [Value::Int(start)]) => substring(text, *start, None),
        ("substring", [Value::Int(start), Value::Int(end)]) => substring(text, *start, Some(*end)),
        ("indexOf", [Value::Text(other)]) => index_of(evaluator, text, other, 0),
        ("indexOf", [Value::Text(other), Value::Int(from)]) => index_of(evaluator, text, other, *from),
        ("lastIndexOf", [Value::Text(other)]) => last_index_of(evaluator, text, other),
        ("replace", [Value::Text(old), Value::Text(new)]) => replace(evaluator, text, old, new, -1),
        ("replace", [Value::Text(old), Value::Text(new), Value::Int(most)]) => {
            replace(evaluator, text, old, new, *most)
        }
        ("split", [Value::Text(separator)]) => split(evaluator, text, separator, -1),
        ("split", [Value::Text(separator), Value::Int(most)]) => split(evaluator, text, separator, *most),
        ("format", [Value::List(values)]) => {
            let values: Result<Vec<_>, Stop> = values.iter().collect();
            values.and_then(|values| format(evaluator, text, &values))
        }
        _ => return None,
    })
}

fn find_all<'a>(evaluator: &mut Evaluator<'a, '_>, text: &str, pattern: &str, most: i64) -> Outcome<'a> {
    let pattern = evaluator.pattern(pattern)?;
    evaluator.spend(text.len() as u64)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let found = pattern.find_iter(text).take(most);
    Ok(Value::list(
        found.map(|found| Value::text(found.as_str())).collect(),
    ))
}

fn char_at<'a>(text: &str, index: i64) -> Outcome<'a> {
    let place = usize::try_from(index).ok();
    match place.map(|place| (text.chars().nth(place), place == text.chars().count())) {
        Some((Some(c), _)) => Ok(Value::text(c.to_string())),
        Some((None, true)) => Ok(Value::text("")),
        _ => fails(format!("index out of range: {index}")),
    }
}

fn substring<'a>(text: &str, start: i64, end: Option<i64>) -> Outcome<'a> {
    let length = text.chars().count();
    let place = |index: i64| usize::try_from(index).ok().filter(|place| *place <= length);
    let end = end.map_or(Some(length), place);
    match (place(start), end) {
        (Some(start), Some(end)) if start <= end => Ok(Value::text(
            text.chars().skip(start).take(end - start).collect::<String>(),
        )),
        _ => fails("index out of range"),
    }
}

fn index_of<'a>(evaluator: &mut Evaluator<'a, '_>, text: &str, other: &str, from: i64) -> Outcome<'a> {
    evaluator.spend_on(text.len())?;
    let Ok(start) = usize::try_from(from) else {
        return fails(format!("index out of range: {from}"));
    };
    if other.is_empty() && start > 0 {
        return undecided("nothing is looked for in the middle of a text");
    }
    if other.is_empty() {
        return Ok(Value::Int(0));
    }
    let Some(offset) = text.char_indices().nth(start).map(|(offset, _)| offset) else {
        return Ok(Value::Int(-1));
    };
    let found = text[offset..].find(other);
    Ok(Value::Int(found.map_or(-1, |at| {
        (start + text[offset..offset + at].chars().count()) as i64
    })))
}

fn last_index_of<'a>(evaluator: &mut Evaluator<'a, '_>, text: &str, other: &str) -> Outcome<'a> {
    evaluator.spend_on(text.len())?;
    let found = text.rfind(other);
    Ok(Value::Int(
        found.map_or(-1, |at| text[..at].chars().count() as i64),
    ))
}

fn replace<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    text: &str,
    old: &str,
    new: &str,
    most: i64,
) -> Outcome<'a> {
    // The most that may come of it.
    evaluator.spend_on((text.len() + 1).saturating_mul(new.len() + 1))?;
    Ok(Value::text(match usize::try_from(most) {
        Ok(most) => text.replacen(old, new, most),
        Err(_) => text.replace(old, new),
    }))
}

fn split<'a>(evaluator: &mut Evaluator<'a, '_>, text: &str, separator: &str, most: i64) -> Outcome<'a> {
    evaluator.spend(text.len() as u64)?;
    let parts: Vec<Value<'a>> = match (separator, usize::try_from(most)) {
        ("", Err(_)) => text.chars().map(|c| Value::text(c.to_string())).collect(),
        ("", Ok(_)) => return undecided("split() into some characters is not done here"),
        (_, Ok(0)) => Vec::new(),
        (separator, Ok(most)) => text.splitn(most, separator).map(Value::text).collect(),
        (separator, Err(_)) => text.split(separator).map(Value::text).collect(),
    };
    Ok(Value::list(parts))
}

fn join<'a>(evaluator: &mut Evaluator<'a, '_>, args: &[Value<'a>]) -> Outcome<'a> {
    let (list, separator) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::Text(separator)] => (list, &**separator),
        _ => return undecided("join() is used with values that it is not for"),
    };
    let mut joined = String::new();
    for (index, item) in list.iter().enumerate() {
        let Value::Text(text) = item? else {
            return undecided("join() is used with entries that are no text");
        };
        evaluator.spend_on(text.len() + separator.len())?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(&text);
    }
    Ok(Value::text(joined))
}

/// `%s` and `%d` of plain values; the rest of the language of formats is not known here.
fn format<'a>(evaluator: &mut Evaluator<'a, '_>, pattern: &str, values: &[Value<'a>]) -> Outcome<'a> {
    let mut out = String::new();
    let mut values = values.iter();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match (chars.next(), values.as_slice().first()) {
            (Some('%'), _) => {
                out.push('%');
                continue;
            }
            (Some('s'), Some(Value::Text(text))) => {
                evaluator.spend_on(text.len())?;
                out.push_str(text);
            }
            (Some('s'), Some(Value::Bool(yes))) => {
                let _ = write!(out, "{yes}");
            }
            (Some('s' | 'd'), Some(Value::Int(number))) => {
                let _ = write!(out, "{number}");
            }
            (Some('s' | 'd'), Some(Value::Uint(number))) => {
                let _ = write!(out, "{number}");
            }
            _ => return undecided("format() is only known for %s and %d of plain values"),
        }
        values.next();
    }
    Ok(Value::text(out))
}
