//! Rules that say what the limits said already: `self.matches(…)` beside a pattern, `self.size() <= 3` beside `maxItems: 3`.
//! Patterns are Go's in both, and both count characters.

use std::{borrow::Cow, collections::BTreeSet};

use super::{
    limits,
    object::cel::{Expr, Loop, Op, unescape},
    pattern::{Budget, Inclusion},
    reads::{as_constant, size_of},
    schema::{Count, ListType, Schema, Types},
};

/// Rules are not followed deeper.
const MAX_DEPTH: usize = 16;

/// Whether every value that the old limits let through is sure to meet the rule.
pub fn is_met(rule: &Expr, old: &Schema, new: &Schema, patterns: &mut Budget) -> bool {
    let this = |expr: &Expr| is_self(expr);
    met(rule, &this, old, new, patterns, MAX_DEPTH) || of_field(rule, old, new, patterns)
}

/// A rule that asks for something where a field is there: `!has(self.a) || …` or `has(self.a) ? … : true`.
fn of_field(rule: &Expr, old: &Schema, new: &Schema, patterns: &mut Budget) -> bool {
    let (guard, asked) = match rule {
        Expr::Or(parts) => match parts.as_slice() {
            [Expr::Not(guard), asked] => (&**guard, asked),
            _ => return false,
        },
        Expr::If(parts) if matches!(parts.2, Expr::Bool(true)) => (&parts.0, &parts.1),
        _ => return false,
    };
    let Expr::Has { of, name } = guard else {
        return false;
    };
    let Some(field) = unescape(name).filter(|_| is_self(of)) else {
        return false;
    };
    let (Some(before), Some(after)) = (old.properties.get(&*field), new.properties.get(&*field)) else {
        return false;
    };
    let this = |expr: &Expr| matches!(expr, Expr::Field { of, name: other, optional: false } if is_self(of) && other == name);
    !before.unstructured && after.default.is_none() && met(asked, &this, before, after, patterns, MAX_DEPTH)
}

fn met(
    rule: &Expr,
    this: &dyn Fn(&Expr) -> bool,
    old: &Schema,
    new: &Schema,
    patterns: &mut Budget,
    depth: usize,
) -> bool {
    let kind = old.types.without(Types::NULL);
    if depth == 0 || new.types.without(Types::NULL) != kind {
        return false;
    }
    match rule {
        Expr::And(parts) => parts
            .iter()
            .all(|part| met(part, this, old, new, patterns, depth - 1)),
        Expr::Call {
            name,
            on: Some(on),
            args,
        } if name == "matches" && this(on) && kind == Types::STRING => {
            let [Expr::Text(pattern)] = args.as_slice() else {
                return false;
            };
            let known: Vec<&str> = old.limits.patterns.iter().map(String::as_str).collect();
            !known.is_empty()
                && (known.contains(&pattern.as_str())
                    || limits::covered(&known, pattern, old.limits.length, patterns) == Inclusion::Yes)
        }
        Expr::Loop {
            kind: Loop::All,
            over,
            names,
            steps,
        } if this(over) => tells_apart(names, steps, this, old, new),
        Expr::Binary(op, sides) => {
            let count = match kind {
                Types::STRING => old.limits.length,
                Types::ARRAY => old.limits.items,
                _ => return false,
            };
            let counted = size_of(&sides.0).is_some_and(this);
            let number = as_constant(&sides.1).and_then(|number| number.as_u64());
            counted && number.is_some_and(|number| is_within(count, *op, number))
        }
        _ => false,
    }
}

/// `all(x, exists_one(y, y.key == x.key))` on a list whose entries differ in that key, or the same with `filter` and its
/// size: an entry is equal to itself, and to no other one.
fn tells_apart(
    names: &[String],
    steps: &[Expr],
    this: &dyn Fn(&Expr) -> bool,
    old: &Schema,
    new: &Schema,
) -> bool {
    let ([outer], [body]) = (names, steps) else {
        return false;
    };
    let inner = match body {
        Expr::Loop {
            kind: Loop::ExistsOne,
            ..
        } => body,
        Expr::Binary(op, sides) => {
            let one = as_constant(&sides.1).and_then(|number| number.as_u64());
            let at_most_one = matches!(
                (op, one),
                (Op::Equal | Op::LessOrEqual, Some(1)) | (Op::Less, Some(2))
            );
            match size_of(&sides.0) {
                Some(
                    inner @ Expr::Loop {
                        kind: Loop::Filter, ..
                    },
                ) if at_most_one => inner,
                _ => return false,
            }
        }
        _ => return false,
    };
    let Expr::Loop {
        over, names, steps, ..
    } = inner
    else {
        return false;
    };
    let ([other], [compared]) = (names.as_slice(), steps.as_slice()) else {
        return false;
    };
    let (ListType::Map(keys), Some(before), Some(after)) = (&old.list, &old.items, &new.items) else {
        return false;
    };
    let all = match compared {
        Expr::And(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    // What is compared has to be all keys, and nothing else.
    let of = |expr: &Expr, entry: &str| match expr {
        Expr::Field {
            of,
            name,
            optional: false,
        } if matches!(&**of, Expr::Name(name) if name == entry) => unescape(name).map(Cow::into_owned),
        _ => None,
    };
    let compared: Option<BTreeSet<String>> = all
        .iter()
        .map(|part| {
            let Expr::Binary(Op::Equal, sides) = part else {
                return None;
            };
            let either = |a, b| of(&sides.0, a).filter(|key| of(&sides.1, b).as_ref() == Some(key));
            either(outer, other).or_else(|| either(other, outer))
        })
        .collect();
    let is_key = |key: &String| {
        let (Some(before), Some(after)) = (before.properties.get(key), after.properties.get(key)) else {
            return false;
        };
        let text_or_number = [Types::STRING, Types::INTEGER];
        text_or_number.contains(&before.types)
            && after.types == before.types
            && before.default == after.default
            && !before.unstructured
            && !after.unstructured
    };
    // Without a default, a key is there only where it has to be.
    let is_there = |key: &String| {
        before.required.contains(key)
            || before
                .properties
                .get(key)
                .is_some_and(|field| field.default.is_some())
    };
    let are_objects = before.types == Types::OBJECT && after.types == Types::OBJECT;
    are_objects
        && outer != other
        && outer != "self"
        && other != "self"
        && this(over)
        && compared.is_some_and(|compared| compared == *keys)
        && keys.iter().all(|key| is_key(key) && is_there(key))
}

fn is_within(count: Count, op: Op, number: u64) -> bool {
    match op {
        Op::Less => count.max.is_some_and(|max| max < number),
        Op::LessOrEqual => count.max.is_some_and(|max| max <= number),
        Op::Greater => count.min > number,
        Op::GreaterOrEqual => count.min >= number,
        Op::Equal => count.min == number && count.max == Some(number),
        Op::Unequal => count.min > number || count.max.is_some_and(|max| max < number),
        _ => false,
    }
}

fn is_self(expr: &Expr) -> bool {
    matches!(expr, Expr::Name(name) if name == "self")
}
