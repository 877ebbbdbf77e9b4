//! The functions that rules may call: the language's own, and those that Kubernetes adds. One that is not known makes a
//! rule undecided, under its name.

use std::cmp::Ordering;

use super::{
    eval::{Evaluator, Outcome},
    net, ops, quantity, text, time,
    value::{List, Stop, Value, fails, undecided},
};

/// `args` begins with what a method is called on.
pub fn call<'a>(evaluator: &mut Evaluator<'a, '_>, name: &str, args: &[Value<'a>]) -> Outcome<'a> {
    text::call(evaluator, name, args)
        .or_else(|| lists(evaluator, name, args))
        .or_else(|| convert(evaluator, name, args))
        .or_else(|| time::call(name, args))
        .or_else(|| quantity::call(name, args))
        .or_else(|| net::call(name, args))
        .or_else(|| optional(name, args))
        .unwrap_or_else(|| undecided(format!("{name}() is not known here for these values")))
}

fn lists<'a>(evaluator: &mut Evaluator<'a, '_>, name: &str, args: &[Value<'a>]) -> Option<Outcome<'a>> {
    Some(match (name, args) {
        ("size", [Value::List(list)]) => Ok(Value::Int(list.len() as i64)),
        ("size", [Value::Map(map)]) => Ok(Value::Int(map.len() as i64)),
        ("isSorted", [Value::List(list)]) => is_sorted(evaluator, list).map(Value::Bool),
        ("sum", [Value::List(list)]) => sum(evaluator, list),
        ("min", [Value::List(list)]) => extreme(evaluator, list, Ordering::Less),
        ("max", [Value::List(list)]) => extreme(evaluator, list, Ordering::Greater),
        ("indexOf", [Value::List(list), wanted]) => position(evaluator, list, wanted, false),
        ("lastIndexOf", [Value::List(list), wanted]) => position(evaluator, list, wanted, true),
        ("sets.contains", [Value::List(list), Value::List(wanted)]) => {
            contains_all(evaluator, list, wanted).map(Value::Bool)
        }
        ("sets.equivalent", [Value::List(one), Value::List(other)]) => {
            let there = contains_all(evaluator, one, other);
            there
                .and_then(|there| Ok(there && contains_all(evaluator, other, one)?))
                .map(Value::Bool)
        }
        ("sets.intersects", [Value::List(one), Value::List(other)]) => {
            intersects(evaluator, one, other).map(Value::Bool)
        }
        _ => return None,
    })
}

fn is_sorted<'a>(evaluator: &mut Evaluator<'a, '_>, list: &List<'a>) -> Result<bool, Stop> {
    let mut before: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        evaluator.spend(1)?;
        if let Some(before) = &before
            && ops::compare(evaluator, before, &item)?.is_gt()
        {
            return Ok(false);
        }
        before = Some(item);
    }
    Ok(true)
}

fn sum<'a>(evaluator: &mut Evaluator<'a, '_>, list: &List<'a>) -> Outcome<'a> {
    let mut total: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        evaluator.spend(1)?;
        if !matches!(
            item,
            Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_)
        ) {
            return undecided("sum() is used with entries that are no numbers");
        }
        total = Some(match total {
            Some(total) => ops::add(evaluator, &total, &item)?,
            None => item,
        });
    }
    Ok(total.unwrap_or(Value::Int(0)))
}

fn extreme<'a>(evaluator: &mut Evaluator<'a, '_>, list: &List<'a>, wanted: Ordering) -> Outcome<'a> {
    let mut best: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        evaluator.spend(1)?;
        best = Some(match best {
            Some(best) if ops::compare(evaluator, &item, &best)? != wanted => best,
            _ => item,
        });
    }
    best.map_or_else(|| fails("min or max called on empty list"), Ok)
}

fn position<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    list: &List<'a>,
    wanted: &Value<'a>,
    last: bool,
) -> Outcome<'a> {
    let mut found = -1;
    for (index, item) in list.iter().enumerate() {
        if ops::equal(evaluator, &item?, wanted)? {
            found = index as i64;
            if !last {
                break;
            }
        }
    }
    Ok(Value::Int(found))
}

fn contains_all<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    list: &List<'a>,
    wanted: &List<'a>,
) -> Result<bool, Stop> {
    let list = Value::List(list.clone());
    for item in wanted.iter() {
        if !ops::is_in(evaluator, &item?, &list)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(evaluator: &mut Evaluator<'a, '_>, one: &List<'a>, other: &List<'a>) -> Result<bool, Stop> {
    let other = Value::List(other.clone());
    for item in one.iter() {
        if ops::is_in(evaluator, &item?, &other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn convert<'a>(evaluator: &mut Evaluator<'a, '_>, name: &str, args: &[Value<'a>]) -> Option<Outcome<'a>> {
    /// From here on, a double is no integer of 64 bits.
    const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;
    let [value] = args else {
        return None;
    };
    let plain_number = |text: &str| {
        text.len() < 64
            && text
                .bytes()
                .all(|c| c.is_ascii_digit() || matches!(c, b'.' | b'-' | b'+' | b'e' | b'E'))
    };
    Some(match (name, value) {
        ("dyn", _) | ("int", Value::Int(_)) | ("double", Value::Double(_)) | ("string", Value::Text(_)) => {
            Ok(value.clone())
        }
        ("type", _) => type_of(value).map_or_else(
            || undecided("type() is used with a value whose type has no name here"),
            |name| Ok(Value::Type(name)),
        ),
        ("int", Value::Uint(number)) => {
            i64::try_from(*number).map_or_else(|_| fails("integer overflow"), |number| Ok(Value::Int(number)))
        }
        ("int", Value::Double(number)) if number.abs() < TOO_LARGE => Ok(Value::Int(*number as i64)),
        ("int", Value::Double(_)) => fails("integer overflow"),
        ("int", Value::Text(text)) => match text.parse() {
            Ok(number) => Ok(Value::Int(number)),
            Err(_) => fails(format!("{:?} is no integer", &**text)),
        },
        ("uint", Value::Int(number)) => u64::try_from(*number)
            .map_or_else(|_| fails("integer overflow"), |number| Ok(Value::Uint(number))),
        ("double", Value::Int(number)) => Ok(Value::Double(*number as f64)),
        ("double", Value::Text(text)) if plain_number(text) => match text.parse() {
            Ok(number) => Ok(Value::Double(number)),
            Err(_) => undecided("a text is no number"),
        },
        ("string", Value::Int(number)) => Ok(Value::text(number.to_string())),
        ("string", Value::Uint(number)) => Ok(Value::text(number.to_string())),
        ("string", Value::Bool(yes)) => Ok(Value::text(yes.to_string())),
        ("string", Value::Bytes(bytes)) => match evaluator.spend_on(bytes.len()) {
            Ok(()) => std::str::from_utf8(bytes)
                .map_or_else(|_| fails("bytes are no text"), |text| Ok(Value::text(text))),
            Err(stop) => Err(stop),
        },
        ("bytes", Value::Text(text)) => evaluator
            .spend_on(text.len())
            .map(|()| Value::Bytes(text.as_bytes().into())),
        ("size", Value::Bytes(bytes)) => Ok(Value::Int(bytes.len() as i64)),
        _ => return None,
    })
}

fn type_of(value: &Value<'_>) -> Option<&'static str> {
    Some(match value {
        Value::Null => "null_type",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Uint(_) => "uint",
        Value::Double(_) => "double",
        Value::Text(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Type(_) => "type",
        _ => return None,
    })
}

fn optional<'a>(name: &str, args: &[Value<'a>]) -> Option<Outcome<'a>> {
    Some(match (name, args) {
        ("optional.of", [value]) => Ok(Value::some(value.clone())),
        ("optional.none", []) => Ok(Value::Optional(None)),
        ("hasValue", [Value::Optional(value)]) => Ok(Value::Bool(value.is_some())),
        ("value", [Value::Optional(Some(value))]) => Ok((**value).clone()),
        ("value", [Value::Optional(None)]) => fails("optional.none() dereference"),
        // With a value, they are answered before their argument is looked at.
        ("or" | "orValue", [Value::Optional(None), other]) => Ok(other.clone()),
        _ => return None,
    })
}
