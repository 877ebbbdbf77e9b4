//! What rules mean, as far as it tells whether one can refuse objects that were stored before: how `||`, `&&`, `!`, `? :`,
//! `has(self.field)` and `self.field == 'text'` hang together. Everything else is only equal to itself.
//!
//! Errors count: an expression that looks at a missing field fails, and a rule that fails refuses the object. `||` and
//! `&&` swallow the error of one side when the other decides.

use super::object::cel::{Expr as Cel, Op, Source};

/// How many parts of two rules are compared.
const MAX_STEPS: u32 = 500;

/// How many fields are kept in mind that a rule has found there.
const MAX_FOUND: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub enum Expr {
    Or(Vec<Expr>),
    And(Vec<Expr>),
    Not(Box<Expr>),
    If(Box<[Expr; 3]>),
    /// `has(self.field)`
    Has(String),
    /// `self.field == 'text'`
    Is(String, String),
    Bool(bool),
    Other(String),
}

/// What an expression comes to for all objects in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    True,
    False,
    /// One or the other, without an error.
    Either,
    Unsure,
}

/// What is known of the fields of all objects in question.
pub trait Fields {
    /// No object has it.
    fn is_never_there(&self, field: &str) -> bool;
    /// Every object has it.
    fn is_always_there(&self, field: &str) -> bool;
    /// No object has this text in it.
    fn is_never(&self, field: &str, text: &str) -> bool;
}

/// What a rule means, as far as it is looked into.
pub fn of(source: &Source) -> Expr {
    match source.program() {
        Ok(program) => part(&program.expr),
        Err(_) => Expr::Other(source.text.clone()),
    }
}

fn part(expr: &Cel) -> Expr {
    let all = |parts: &[Cel]| parts.iter().map(part).collect();
    match expr {
        Cel::Or(parts) => Expr::Or(all(parts)),
        Cel::And(parts) => Expr::And(all(parts)),
        Cel::Not(inner) => Expr::Not(Box::new(part(inner))),
        Cel::If(parts) => Expr::If(Box::new([part(&parts.0), part(&parts.1), part(&parts.2)])),
        Cel::Has { of, name } if is_self(of) && is_plain(name) => Expr::Has(name.clone()),
        Cel::Binary(Op::Equal, sides) => match (&sides.0, &sides.1) {
            (
                Cel::Field {
                    of,
                    name,
                    optional: false,
                },
                Cel::Text(text),
            ) if is_self(of) && is_plain(name) => Expr::Is(name.clone(), text.clone()),
            _ => Expr::Other(format!("{expr:?}")),
        },
        Cel::Bool(yes) => Expr::Bool(*yes),
        _ => Expr::Other(format!("{expr:?}")),
    }
}

fn is_self(expr: &Cel) -> bool {
    matches!(expr, Cel::Name(name) if name == "self")
}

/// A name that stands for itself: two underscores are how CEL writes what it cannot spell.
fn is_plain(name: &str) -> bool {
    !name.contains("__")
}

/// What the expression comes to; `there` are fields that something around it has found there.
pub fn truth(expr: &Expr, fields: &dyn Fields, there: &[&str]) -> Truth {
    match expr {
        Expr::Bool(true) => Truth::True,
        Expr::Bool(false) => Truth::False,
        Expr::Has(field) if there.contains(&field.as_str()) || fields.is_always_there(field) => Truth::True,
        Expr::Has(field) if fields.is_never_there(field) => Truth::False,
        Expr::Has(_) => Truth::Either,
        Expr::Is(field, text) if there.contains(&field.as_str()) || fields.is_always_there(field) => {
            if fields.is_never(field, text) {
                Truth::False
            } else {
                Truth::Either
            }
        }
        Expr::Is(..) | Expr::Other(_) => Truth::Unsure,
        Expr::Not(inner) => match truth(inner, fields, there) {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            unclear => unclear,
        },
        Expr::Or(parts) => all_of(parts, fields, there, Truth::True),
        Expr::And(parts) => all_of(parts, fields, there, Truth::False),
        Expr::If(parts) => {
            let [condition, yes, no] = &**parts;
            let mut inside = there.to_vec();
            found_by(condition, &mut inside);
            match truth(condition, fields, there) {
                Truth::True => truth(yes, fields, &inside),
                Truth::False => truth(no, fields, there),
                Truth::Unsure => Truth::Unsure,
                Truth::Either => match (truth(yes, fields, &inside), truth(no, fields, there)) {
                    (Truth::Unsure, _) | (_, Truth::Unsure) => Truth::Unsure,
                    (one, other) if one == other => one,
                    _ => Truth::Either,
                },
            }
        }
    }
}

/// `||` and `&&`: one part that is `decides` decides. Later parts count only where the earlier ones did not decide.
fn all_of(parts: &[Expr], fields: &dyn Fields, there: &[&str], decides: Truth) -> Truth {
    let mut there = there.to_vec();
    let mut whole = if decides == Truth::True {
        Truth::False
    } else {
        Truth::True
    };
    for part in parts {
        match truth(part, fields, &there) {
            decided if decided == decides => return decides,
            Truth::Unsure => whole = Truth::Unsure,
            Truth::Either if whole != Truth::Unsure => whole = Truth::Either,
            _ => {}
        }
        match part {
            Expr::Not(inner) if decides == Truth::True => found_by(inner, &mut there),
            part if decides == Truth::False => found_by(part, &mut there),
            _ => {}
        }
    }
    whole
}

/// The fields that are there when this is true.
fn found_by<'e>(expr: &'e Expr, there: &mut Vec<&'e str>) {
    match expr {
        Expr::Has(field) if there.len() < MAX_FOUND => there.push(field),
        Expr::And(parts) => parts.iter().for_each(|part| found_by(part, there)),
        _ => {}
    }
}

/// Whether `wide` is true, and no error, wherever `narrow` is true.
pub fn implies(narrow: &Expr, wide: &Expr) -> bool {
    implies_within(narrow, wide, &mut MAX_STEPS.clone())
}

fn implies_within(narrow: &Expr, wide: &Expr, steps: &mut u32) -> bool {
    *steps = steps.saturating_sub(1);
    if *steps == 0 {
        return false;
    }
    if narrow == wide || *wide == Expr::Bool(true) {
        return true;
    }
    match (narrow, wide) {
        (Expr::Or(parts), _) => parts.iter().all(|part| implies_within(part, wide, steps)),
        (_, Expr::And(parts)) => parts.iter().all(|part| implies_within(narrow, part, steps)),
        (Expr::Not(one), Expr::Not(other)) => implies_within(other, one, steps),
        (Expr::If(one), Expr::If(other)) => {
            one[0] == other[0]
                && implies_within(&one[1], &other[1], steps)
                && implies_within(&one[2], &other[2], steps)
        }
        (_, Expr::Or(parts)) if parts.iter().any(|part| implies_within(narrow, part, steps)) => true,
        (Expr::And(parts), _) => parts.iter().any(|part| implies_within(part, wide, steps)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn meaning(source: &str) -> Expr {
        of(&source.to_owned().into())
    }

    /// `new` is never there, `sure` always, and `kind` is never `New`.
    struct Known;

    impl Fields for Known {
        fn is_never_there(&self, field: &str) -> bool {
            field == "new"
        }

        fn is_always_there(&self, field: &str) -> bool {
            matches!(field, "sure" | "kind")
        }

        fn is_never(&self, field: &str, text: &str) -> bool {
            field == "kind" && text == "New"
        }
    }

    #[rstest]
    #[case("!has(self.new) || self.new.size() > 1", Truth::True)]
    #[case("has(self.new) ? self.new > 1 : true", Truth::True)]
    #[case("!(has(self.old) && has(self.new))", Truth::True)]
    #[case("!(has(self.old) && (has(self.new) && self.new.deep == 1))", Truth::True)]
    #[case("self.kind == 'New' ? has(self.new) : !has(self.new)", Truth::True)]
    #[case("self.kind == \"New\" ? has(self.new) : !has(self.new)", Truth::True)]
    #[case("has(self.old) && self.old == 'x' ? true : !has(self.new)", Truth::True)]
    #[case("has(self.sure)", Truth::True)]
    #[case("has(self.new) || has(self.old)", Truth::Either)]
    #[case("has(self.new)", Truth::False)]
    #[case("self.old == 'x' ? true : !has(self.new)", Truth::Unsure)]
    #[case("!has(self.new) && self.old > 1", Truth::Unsure)]
    #[case("!has(self.new) == self.flag", Truth::Unsure)]
    #[case("!has(self.new.deep)", Truth::Unsure)]
    #[case("!has(self.__new__)", Truth::Unsure)]
    #[case("self.x == 'a || !has(self.new)'", Truth::Unsure)]
    #[case("self.?new.hasValue() ? false : true", Truth::Unsure)]
    #[case("!has(self.new", Truth::Unsure)]
    fn what_it_comes_to(#[case] expression: &str, #[case] is: Truth) {
        assert_eq!(truth(&meaning(expression), &Known, &[]), is);
    }

    #[rstest]
    #[case(
        "has(self.a) || has(self.b)",
        "(has(self.a) || has(self.b) || has(self.c))",
        true
    )]
    #[case(
        "self == 'x' || self == oldSelf",
        "self == \"x\" || oldSelf == 'x' || self == oldSelf",
        true
    )]
    #[case("self.a > 1 && self.b > 1", "self.b > 1", true)]
    #[case("!has(self.a)", "!(has(self.a) && self.b > 1)", true)]
    #[case(
        "self.a == 'x' ? self.b > 1 : true",
        "self.a == 'x' ? (!has(self.b) || self.b > 1) : true",
        true
    )]
    #[case("has(self.a) || has(self.b)", "has(self.a)", false)]
    #[case("self.b > 1", "self.a > 1 && self.b > 1", false)]
    #[case("!(has(self.a) && self.b > 1)", "!has(self.a)", false)]
    #[case("self.a.matches('x\"y')", "self.a.matches('x'y\")", false)]
    fn one_follows_from_the_other(#[case] narrow: &str, #[case] wide: &str, #[case] yes: bool) {
        assert_eq!(implies(&meaning(narrow), &meaning(wide)), yes);
    }

    #[rstest]
    #[case("(".repeat(4_000))]
    #[case("!".repeat(4_000))]
    #[case(format!("{}a{}", "(".repeat(2_000), ")".repeat(2_000)))]
    #[case("a ? ".repeat(1_000))]
    #[case("a||".repeat(1_300))]
    fn hostile_ones_end(#[case] expression: String) {
        let expr = meaning(&expression);
        let _ = (truth(&expr, &Known, &[]), implies(&expr, &expr));
    }
}
