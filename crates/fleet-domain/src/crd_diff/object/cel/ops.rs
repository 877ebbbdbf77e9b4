//! Operators, and what is equal or less.

use std::cmp::Ordering;

use super::{
    ast::Op,
    eval::{Evaluator, Outcome},
    time,
    value::{List, Map, Stop, Value, fails, undecided},
};

pub fn binary<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    op: Op,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Outcome<'a> {
    let ordered = |wanted: fn(Ordering) -> bool, evaluator: &mut Evaluator<'a, '_>| {
        compare(evaluator, left, right).map(|order| Value::Bool(wanted(order)))
    };
    match op {
        Op::Equal => equal(evaluator, left, right).map(Value::Bool),
        Op::Unequal => equal(evaluator, left, right).map(|same| Value::Bool(!same)),
        Op::Less => ordered(Ordering::is_lt, evaluator),
        Op::LessOrEqual => ordered(Ordering::is_le, evaluator),
        Op::Greater => ordered(Ordering::is_gt, evaluator),
        Op::GreaterOrEqual => ordered(Ordering::is_ge, evaluator),
        Op::In => is_in(evaluator, left, right).map(Value::Bool),
        Op::Add => add(evaluator, left, right),
        Op::Subtract | Op::Multiply | Op::Divide | Op::Remainder => arithmetic(op, left, right),
    }
}

pub fn minus<'a>(value: &Value<'a>) -> Outcome<'a> {
    match value {
        Value::Int(number) => number.checked_neg().map_or_else(overflow, |n| Ok(Value::Int(n))),
        Value::Double(number) => Ok(Value::Double(-number)),
        Value::Duration(time) => time
            .checked_neg()
            .map_or_else(overflow, |n| Ok(Value::Duration(n))),
        _ => undecided("- stands before something that is no number"),
    }
}

fn overflow<'a>() -> Outcome<'a> {
    fails("integer overflow")
}

pub fn add<'a>(evaluator: &mut Evaluator<'a, '_>, left: &Value<'a>, right: &Value<'a>) -> Outcome<'a> {
    match (left, right) {
        (Value::Text(one), Value::Text(other)) => {
            evaluator.spend_on(one.len() + other.len())?;
            Ok(Value::text(format!("{}{}", &**one, &**other)))
        }
        (Value::Bytes(one), Value::Bytes(other)) => {
            evaluator.spend_on(one.len() + other.len())?;
            Ok(Value::Bytes([&**one, &**other].concat().into()))
        }
        (Value::List(one), Value::List(other)) => {
            if !one.is_ordered() || !other.is_ordered() {
                return undecided("sets and maps of entries are added, which is not done here");
            }
            evaluator.spend((one.len() + other.len()) as u64)?;
            let both: Result<Vec<_>, Stop> = one.iter().chain(other.iter()).collect();
            both.map(Value::list)
        }
        (Value::Timestamp(time), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(time)) => {
            time::add(*time, *by)
        }
        _ => arithmetic(Op::Add, left, right),
    }
}

fn arithmetic<'a>(op: Op, left: &Value<'a>, right: &Value<'a>) -> Outcome<'a> {
    match (left, right) {
        (Value::Int(one), Value::Int(other)) => {
            let by_zero = *other == 0;
            let outcome = match op {
                Op::Add => one.checked_add(*other),
                Op::Subtract => one.checked_sub(*other),
                Op::Multiply => one.checked_mul(*other),
                Op::Divide | Op::Remainder if by_zero => return fails("division by zero"),
                Op::Divide => one.checked_div(*other),
                _ => one.checked_rem(*other),
            };
            outcome.map_or_else(overflow, |number| Ok(Value::Int(number)))
        }
        (Value::Uint(one), Value::Uint(other)) => {
            let by_zero = *other == 0;
            let outcome = match op {
                Op::Add => one.checked_add(*other),
                Op::Subtract => one.checked_sub(*other),
                Op::Multiply => one.checked_mul(*other),
                Op::Divide | Op::Remainder if by_zero => return fails("division by zero"),
                Op::Divide => one.checked_div(*other),
                _ => one.checked_rem(*other),
            };
            outcome.map_or_else(overflow, |number| Ok(Value::Uint(number)))
        }
        (Value::Double(one), Value::Double(other)) => Ok(Value::Double(match op {
            Op::Add => one + other,
            Op::Subtract => one - other,
            Op::Multiply => one * other,
            Op::Divide => one / other,
            _ => return undecided("% is used with numbers that are no integers"),
        })),
        (Value::Duration(one), Value::Duration(other)) => {
            let outcome = match op {
                Op::Add => one.checked_add(*other),
                Op::Subtract => one.checked_sub(*other),
                _ => return undecided("durations are neither multiplied nor divided"),
            };
            outcome.map_or_else(overflow, |time| Ok(Value::Duration(time)))
        }
        (Value::Timestamp(one), Value::Timestamp(other)) if op == Op::Subtract => time::between(*one, *other),
        (Value::Timestamp(one), Value::Duration(other)) if op == Op::Subtract => match other.checked_neg() {
            Some(by) => time::add(*one, by),
            None => overflow(),
        },
        _ => undecided("an operator is used with values that it is not for"),
    }
}

/// A number as it is compared with one of another kind.
fn number(value: &Value<'_>) -> Option<f64> {
    Some(match value {
        Value::Int(number) => *number as f64,
        Value::Uint(number) => *number as f64,
        Value::Double(number) => *number,
        _ => return None,
    })
}

pub fn compare<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Result<Ordering, Stop> {
    Ok(match (left, right) {
        (Value::Int(one), Value::Int(other)) | (Value::Duration(one), Value::Duration(other)) => {
            one.cmp(other)
        }
        (Value::Uint(one), Value::Uint(other)) => one.cmp(other),
        (Value::Int(one), Value::Uint(other)) => i128::from(*one).cmp(&i128::from(*other)),
        (Value::Uint(one), Value::Int(other)) => i128::from(*one).cmp(&i128::from(*other)),
        (Value::Bool(one), Value::Bool(other)) => one.cmp(other),
        (Value::Timestamp(one), Value::Timestamp(other)) => one.cmp(other),
        (Value::Bytes(one), Value::Bytes(other)) => {
            evaluator.spend_on(one.len().min(other.len()))?;
            one.cmp(other)
        }
        (Value::Text(one), Value::Text(other)) => {
            evaluator.spend_on(one.len().min(other.len()))?;
            (**one).cmp(&**other)
        }
        _ => match (number(left), number(right)) {
            (Some(one), Some(other)) => match one.partial_cmp(&other) {
                Some(order) => order,
                None => return undecided("something that is no number is compared"),
            },
            _ => return undecided("values of different kinds are compared"),
        },
    })
}

pub fn equal<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    left: &Value<'a>,
    right: &Value<'a>,
) -> Result<bool, Stop> {
    evaluator.spend(1)?;
    Ok(match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::List(one), Value::List(other)) => return equal_lists(evaluator, one, other),
        (Value::Map(one), Value::Map(other)) => return equal_maps(evaluator, one, other),
        (
            Value::Object {
                fields,
                schema,
                whole,
            },
            Value::Object {
                fields: others,
                schema: schema_of_others,
                whole: whole_of_others,
            },
        ) => {
            let known = |name: &String| {
                schema.properties.contains_key(name) && schema_of_others.properties.contains_key(name)
            };
            if *whole || *whole_of_others || !fields.keys().chain(others.keys()).all(known) {
                return undecided("objects are compared that have more than their schema says");
            }
            return equal_objects(
                evaluator,
                left,
                right,
                fields.keys(),
                fields.len() == others.len(),
            );
        }
        (Value::Type(one), Value::Type(other)) => one == other,
        (Value::Optional(one), Value::Optional(other)) => match (one, other) {
            (Some(one), Some(other)) => return equal(evaluator, one, other),
            (None, None) => true,
            _ => false,
        },
        (Value::Quantity(one, _), Value::Quantity(other, _)) => one == other,
        (Value::Ip(one), Value::Ip(other)) => one == other,
        (Value::Cidr(one, length), Value::Cidr(other, other_length)) => {
            one == other && length == other_length
        }
        _ if is_plain(left) && is_plain(right) && rank(left) != rank(right) => false,
        _ => return compare(evaluator, left, right).map(Ordering::is_eq),
    })
}

/// Values that a rule may meet where it cannot know which kind it is; such are unequal, not wrong.
fn is_plain(value: &Value<'_>) -> bool {
    rank(value) > 0
}

fn rank(value: &Value<'_>) -> u8 {
    match value {
        Value::Int(_) | Value::Uint(_) | Value::Double(_) => 1,
        Value::Text(_) => 2,
        Value::Bool(_) => 3,
        _ => 0,
    }
}

fn equal_lists<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    one: &List<'a>,
    other: &List<'a>,
) -> Result<bool, Stop> {
    if one.len() != other.len() {
        return Ok(false);
    }
    for (left, right) in one.iter().zip(other.iter()) {
        if !equal(evaluator, &left?, &right?)? {
            return if one.is_ordered() && other.is_ordered() {
                Ok(false)
            } else {
                undecided("sets or maps of entries are compared that have another order")
            };
        }
    }
    Ok(true)
}

fn equal_maps<'a>(evaluator: &mut Evaluator<'a, '_>, one: &Map<'a>, other: &Map<'a>) -> Result<bool, Stop> {
    if one.len() != other.len() {
        return Ok(false);
    }
    let (left, right) = (Value::Map(one.clone()), Value::Map(other.clone()));
    for key in one.keys() {
        let Value::Text(key) = &key else {
            return undecided("maps are compared that have keys which are no text");
        };
        evaluator.spend(other.len() as u64)?;
        match (left.field(key)?, right.field(key)?) {
            (Some(left), Some(right)) if equal(evaluator, &left, &right)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn equal_objects<'a, 'n>(
    evaluator: &mut Evaluator<'a, '_>,
    left: &Value<'a>,
    right: &Value<'a>,
    names: impl Iterator<Item = &'n String>,
    as_many: bool,
) -> Result<bool, Stop> {
    for name in names {
        let (
            Value::Object { fields, schema, .. },
            Value::Object {
                fields: others,
                schema: theirs,
                ..
            },
        ) = (left, right)
        else {
            return undecided("objects are compared with something else");
        };
        let (Some(one), Some(other)) = (fields.get(name), others.get(name)) else {
            return Ok(false);
        };
        let (Some(schema), Some(theirs)) = (schema.properties.get(name), theirs.properties.get(name)) else {
            return undecided("objects are compared that have more than their schema says");
        };
        if one.is_null() || other.is_null() {
            return undecided("objects are compared that have nulls");
        }
        let one = super::value::typed(one, schema, false)?;
        let other = super::value::typed(other, theirs, false)?;
        if !equal(evaluator, &one, &other)? {
            return Ok(false);
        }
    }
    Ok(as_many)
}

pub fn is_in<'a>(
    evaluator: &mut Evaluator<'a, '_>,
    wanted: &Value<'a>,
    among: &Value<'a>,
) -> Result<bool, Stop> {
    match (among, wanted) {
        (Value::List(list), _) => {
            for item in list.iter() {
                if equal(evaluator, &item?, wanted)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Map(Map::Found { fields, .. }), Value::Text(key)) => Ok(fields.contains_key(&**key)),
        (Value::Map(map @ Map::Made(_)), _) => {
            for key in map.keys() {
                if equal(evaluator, &key, wanted)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => undecided("in is used with something that is neither a list nor a map"),
    }
}
