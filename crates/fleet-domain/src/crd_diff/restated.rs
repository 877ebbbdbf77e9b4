//! Rules that say what the limits said already: `self.matches(…)` beside a pattern, `self.size() <= 3` beside `maxItems: 3`.
//! Patterns are Go's in both, and both count characters.

use super::{
    limits,
    object::cel::{Expr, Op, unescape},
    pattern::{Budget, Inclusion},
    reads::{as_constant, size_of},
    schema::{Count, Schema, Types},
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
