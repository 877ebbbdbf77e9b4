//! Tokens → expression. Bounded in length and height, so that neither parsing nor walking the result can exhaust a
//! stack.

use super::{
    ast::{Expr, Loop, Op},
    lex::{Token, tokens},
};

/// Longer than any rule in practice.
const MAX_LENGTH: usize = 32 << 10;
/// How high the tree of an expression may be.
const MAX_HEIGHT: usize = 64;

/// Words that are no names.
pub const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub fn parse(text: &str) -> Result<Expr, String> {
    if text.len() > MAX_LENGTH {
        return Err("the rule is too long".to_owned());
    }
    let mut parser = Parser {
        tokens: tokens(text)?,
        next: 0,
    };
    let whole = parser.expression(0)?;
    match parser.peek() {
        None => Ok(whole.expr),
        Some(token) => Err(format!("the rule goes on with {token:?}")),
    }
}

/// An expression, and how high its tree is.
struct Tree {
    expr: Expr,
    height: usize,
}

fn leaf(expr: Expr) -> Tree {
    Tree { expr, height: 1 }
}

fn above(highest: usize, expr: Expr) -> Result<Tree, String> {
    let height = highest + 1;
    if height > MAX_HEIGHT {
        return Err(TOO_DEEP.to_owned());
    }
    Ok(Tree { expr, height })
}

const TOO_DEEP: &str = "the rule is nested too deeply";

/// Several trees, and the height of the highest.
#[derive(Default)]
struct Trees {
    all: Vec<Expr>,
    highest: usize,
}

impl Trees {
    fn push(&mut self, tree: Tree) {
        self.highest = self.highest.max(tree.height);
        self.all.push(tree.expr);
    }
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(next)) if *next == sign);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) {
            return Ok(());
        }
        Err(match self.peek() {
            Some(token) => format!("{sign:?} is expected before {token:?}"),
            None => format!("{sign:?} is expected at the end"),
        })
    }

    fn name(&mut self) -> Result<String, String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.next += 1;
                Ok(name)
            }
            other => Err(format!("a name is expected instead of {other:?}")),
        }
    }

    fn expression(&mut self, depth: usize) -> Result<Tree, String> {
        if depth > MAX_HEIGHT {
            return Err(TOO_DEEP.to_owned());
        }
        let depth = depth + 1;
        let condition = self.or(depth)?;
        if !self.take("?") {
            return Ok(condition);
        }
        let yes = self.or(depth)?;
        self.expect(":")?;
        let no = self.expression(depth)?;
        let highest = condition.height.max(yes.height).max(no.height);
        above(highest, Expr::If(Box::new((condition.expr, yes.expr, no.expr))))
    }

    fn or(&mut self, depth: usize) -> Result<Tree, String> {
        let first = self.and(depth)?;
        let mut trees = Trees::default();
        trees.push(first);
        while self.take("||") {
            let next = self.and(depth)?;
            trees.push(next);
        }
        flat(trees, Expr::Or)
    }

    fn and(&mut self, depth: usize) -> Result<Tree, String> {
        let first = self.binary(depth, 0)?;
        let mut trees = Trees::default();
        trees.push(first);
        while self.take("&&") {
            let next = self.binary(depth, 0)?;
            trees.push(next);
        }
        flat(trees, Expr::And)
    }

    fn binary(&mut self, depth: usize, weakest: usize) -> Result<Tree, String> {
        let mut left = self.unary(depth)?;
        while let Some((op, strength)) = self.peek().and_then(operator)
            && strength >= weakest
        {
            self.next += 1;
            let right = self.binary(depth, strength + 1)?;
            let highest = left.height.max(right.height);
            left = above(highest, Expr::Binary(op, Box::new((left.expr, right.expr))))?;
        }
        Ok(left)
    }

    fn unary(&mut self, depth: usize) -> Result<Tree, String> {
        if self.take("!") {
            let mut odd = true;
            while self.take("!") {
                odd = !odd;
            }
            let of = self.member(depth)?;
            let of = if odd {
                of
            } else {
                above(of.height, Expr::Not(Box::new(of.expr)))?
            };
            return above(of.height, Expr::Not(Box::new(of.expr)));
        }
        if self.take("-") {
            if let Some(Token::Int(number)) = self.peek() {
                let number = 0_i64
                    .checked_sub_unsigned(*number)
                    .ok_or("a number is too large")?;
                self.next += 1;
                return self.members(leaf(Expr::Int(number)), depth);
            }
            let of = self.member(depth)?;
            return above(of.height, Expr::Minus(Box::new(of.expr)));
        }
        self.member(depth)
    }

    fn member(&mut self, depth: usize) -> Result<Tree, String> {
        let first = self.primary(depth)?;
        self.members(first, depth)
    }

    fn members(&mut self, mut tree: Tree, depth: usize) -> Result<Tree, String> {
        loop {
            if self.take(".") {
                let optional = self.take("?");
                let name = self.name()?;
                if !optional && self.take("(") {
                    let args = self.list(")", depth)?;
                    tree = method(tree, name, args)?;
                    continue;
                }
                let of = Box::new(tree.expr);
                tree = above(tree.height, Expr::Field { of, name, optional })?;
            } else if self.take("[") {
                let optional = self.take("?");
                let at = self.expression(depth)?;
                self.expect("]")?;
                let highest = tree.height.max(at.height);
                let (of, at) = (Box::new(tree.expr), Box::new(at.expr));
                tree = above(highest, Expr::Index { of, at, optional })?;
            } else if matches!(self.peek(), Some(Token::Sign("{"))) {
                return Err("messages cannot be made".to_owned());
            } else {
                return Ok(tree);
            }
        }
    }

    fn list(&mut self, end: &str, depth: usize) -> Result<Trees, String> {
        let mut trees = Trees::default();
        while !self.take(end) {
            let entry = self.expression(depth)?;
            trees.push(entry);
            if !self.take(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(trees)
    }

    fn primary(&mut self, depth: usize) -> Result<Tree, String> {
        let Some(token) = self.peek().cloned() else {
            return Err("the rule ends too early".to_owned());
        };
        self.next += 1;
        Ok(match token {
            Token::Int(number) => leaf(Expr::Int(
                i64::try_from(number).map_err(|_| "a number is too large")?,
            )),
            Token::Uint(number) => leaf(Expr::Uint(number)),
            Token::Double(number) => leaf(Expr::Double(number)),
            Token::Text(text) => leaf(Expr::Text(text)),
            Token::Bytes(bytes) => leaf(Expr::Bytes(bytes)),
            Token::Name(name) => return self.named(name, depth),
            Token::Sign("(") => {
                let inside = self.expression(depth)?;
                self.expect(")")?;
                inside
            }
            Token::Sign("[") => {
                let entries = self.list("]", depth)?;
                above(entries.highest, Expr::List(entries.all))?
            }
            Token::Sign("{") => return self.map(depth),
            Token::Sign(sign) => return Err(format!("{sign:?} is not expected")),
        })
    }

    fn named(&mut self, name: String, depth: usize) -> Result<Tree, String> {
        match name.as_str() {
            "true" => return Ok(leaf(Expr::Bool(true))),
            "false" => return Ok(leaf(Expr::Bool(false))),
            "null" => return Ok(leaf(Expr::Null)),
            word if RESERVED.contains(&word) => return Err(format!("{word} is not a name")),
            _ => {}
        }
        if !self.take("(") {
            return Ok(leaf(Expr::Name(name)));
        }
        let mut args = self.list(")", depth)?;
        if name == "has" && args.all.len() == 1 {
            let Some(Expr::Field {
                of,
                name,
                optional: false,
            }) = args.all.pop()
            else {
                return Err("has() wants a field".to_owned());
            };
            return above(args.highest, Expr::Has { of, name });
        }
        above(
            args.highest,
            Expr::Call {
                name,
                on: None,
                args: args.all,
            },
        )
    }

    fn map(&mut self, depth: usize) -> Result<Tree, String> {
        let mut entries = Vec::new();
        let mut highest = 0;
        while !self.take("}") {
            let key = self.expression(depth)?;
            self.expect(":")?;
            let value = self.expression(depth)?;
            highest = highest.max(key.height).max(value.height);
            entries.push((key.expr, value.expr));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        above(highest, Expr::Map(entries))
    }
}

fn flat(mut trees: Trees, chain: fn(Vec<Expr>) -> Expr) -> Result<Tree, String> {
    match trees.all.len() {
        1 => Ok(Tree {
            expr: trees.all.remove(0),
            height: trees.highest,
        }),
        _ => above(trees.highest, chain(trees.all)),
    }
}

fn operator(token: &Token) -> Option<(Op, usize)> {
    Some(match token {
        Token::Sign(sign) => match *sign {
            "==" => (Op::Equal, 0),
            "!=" => (Op::Unequal, 0),
            "<" => (Op::Less, 0),
            "<=" => (Op::LessOrEqual, 0),
            ">" => (Op::Greater, 0),
            ">=" => (Op::GreaterOrEqual, 0),
            "+" => (Op::Add, 1),
            "-" => (Op::Subtract, 1),
            "*" => (Op::Multiply, 2),
            "/" => (Op::Divide, 2),
            "%" => (Op::Remainder, 2),
            _ => return None,
        },
        Token::Name(name) if name == "in" => (Op::In, 0),
        _ => return None,
    })
}

/// A call on something, which may be one of the macros.
fn method(on: Tree, name: String, mut args: Trees) -> Result<Tree, String> {
    let highest = on.height.max(args.highest);
    let count = args.all.len();
    let kind = match (name.as_str(), count) {
        ("all", 2 | 3) => Some((Loop::All, count - 1)),
        ("exists", 2 | 3) => Some((Loop::Exists, count - 1)),
        ("exists_one", 2) => Some((Loop::ExistsOne, 1)),
        ("existsOne", 2 | 3) => Some((Loop::ExistsOne, count - 1)),
        ("filter", 2) => Some((Loop::Filter, 1)),
        ("map", 2 | 3) => Some((Loop::Map, 1)),
        ("transformList", 3 | 4) => Some((Loop::Map, 2)),
        ("optMap" | "optFlatMap", 2) => {
            let body = Box::new(args.all.remove(1));
            let flat = name == "optFlatMap";
            let name = variable(args.all.remove(0))?;
            let of = Box::new(on.expr);
            return above(highest, Expr::OptionalMap { of, name, body, flat });
        }
        ("bind" | "transformMap" | "transformMapEntry" | "sortBy", _) => {
            return Ok(leaf(Expr::Unknown(name)));
        }
        _ => None,
    };
    let Some((kind, names)) = kind else {
        let on = Some(Box::new(on.expr));
        return above(
            highest,
            Expr::Call {
                name,
                on,
                args: args.all,
            },
        );
    };
    let steps = args.all.split_off(names);
    let names = args.all.into_iter().map(variable).collect::<Result<_, _>>()?;
    let over = Box::new(on.expr);
    above(
        highest,
        Expr::Loop {
            kind,
            over,
            names,
            steps,
        },
    )
}

fn variable(expr: Expr) -> Result<String, String> {
    match expr {
        Expr::Name(name) => Ok(name),
        _ => Err("a macro wants a name".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn int(number: i64) -> Expr {
        Expr::Int(number)
    }

    #[test]
    fn products_bind_before_sums() {
        let product = Expr::Binary(Op::Multiply, Box::new((int(2), int(-3))));
        let sum = Expr::Binary(Op::Add, Box::new((int(1), product)));
        assert_eq!(parse("1 + 2 * -3").unwrap(), sum);
    }

    #[test]
    fn chains_are_flat_and_from_the_left() {
        let ands = Expr::And(vec![Expr::Name("a".into()), Expr::Name("b".into())]);
        assert_eq!(
            parse("a && b || c").unwrap(),
            Expr::Or(vec![ands, Expr::Name("c".into())])
        );
        let left = Expr::Binary(Op::Subtract, Box::new((int(3), int(2))));
        assert_eq!(
            parse("3 - 2 - 1").unwrap(),
            Expr::Binary(Op::Subtract, Box::new((left, int(1))))
        );
    }

    #[test]
    fn long_chains_are_no_towers() {
        let long = vec!["self.a == 1"; 1000].join(" && ");
        assert!(matches!(parse(&long), Ok(Expr::And(all)) if all.len() == 1000));
    }

    #[rstest]
    #[case(&"(".repeat(10_000))]
    #[case(&"[".repeat(10_000))]
    #[case(&format!("{}1{}", "(".repeat(200), ")".repeat(200)))]
    #[case(&vec!["1"; 5000].join("+"))]
    #[case(&"-".repeat(5000))]
    #[case(&format!("a{}", ".b".repeat(5000)))]
    #[case(&format!("{}1", "a ? b : ".repeat(1000)))]
    #[case(&" ".repeat(100_000))]
    #[case("self.a.all(1, true)")]
    #[case("has(self)")]
    #[case("T{a: 1}")]
    #[case("self.a ==")]
    #[case("self.a b")]
    #[case("namespace == 1")]
    #[case("")]
    fn refused(#[case] text: &str) {
        assert!(parse(text).is_err());
    }
}
