//! An expression as the parser makes it: macros are told apart already, chains of `&&` and `||` are flat.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// The macros that walk over a list or a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    All,
    Exists,
    ExistsOne,
    Filter,
    /// One or two steps: the value, or a condition and the value.
    Map,
}

#[derive(Debug, PartialEq)]
pub enum Expr {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Name(String),
    Field {
        of: Box<Expr>,
        name: String,
        optional: bool,
    },
    Index {
        of: Box<Expr>,
        at: Box<Expr>,
        optional: bool,
    },
    Has {
        of: Box<Expr>,
        name: String,
    },
    Not(Box<Expr>),
    Minus(Box<Expr>),
    Or(Vec<Expr>),
    And(Vec<Expr>),
    If(Box<(Expr, Expr, Expr)>),
    Binary(Op, Box<(Expr, Expr)>),
    Call {
        name: String,
        on: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    Loop {
        kind: Loop,
        over: Box<Expr>,
        /// One name for the entries, or two for their places and them.
        names: Vec<String>,
        steps: Vec<Expr>,
    },
    /// `optMap` and `optFlatMap`.
    OptionalMap {
        of: Box<Expr>,
        name: String,
        body: Box<Expr>,
        flat: bool,
    },
    /// A macro that is known by its name alone.
    Unknown(String),
}

impl Expr {
    /// Whether the value before an update is asked for.
    pub fn mentions(&self, wanted: &str) -> bool {
        let any = |list: &[Expr]| list.iter().any(|expr| expr.mentions(wanted));
        match self {
            Self::Name(name) => name == wanted,
            Self::List(list) | Self::Or(list) | Self::And(list) => any(list),
            Self::Map(entries) => entries
                .iter()
                .any(|(key, value)| key.mentions(wanted) || value.mentions(wanted)),
            Self::Field { of, .. } | Self::Has { of, .. } | Self::Not(of) | Self::Minus(of) => {
                of.mentions(wanted)
            }
            Self::Index { of, at, .. } => of.mentions(wanted) || at.mentions(wanted),
            Self::If(parts) => {
                parts.0.mentions(wanted) || parts.1.mentions(wanted) || parts.2.mentions(wanted)
            }
            Self::Binary(_, parts) => parts.0.mentions(wanted) || parts.1.mentions(wanted),
            Self::Call { on, args, .. } => on.as_deref().is_some_and(|on| on.mentions(wanted)) || any(args),
            Self::Loop { over, steps, .. } => over.mentions(wanted) || any(steps),
            Self::OptionalMap { of, body, .. } => of.mentions(wanted) || body.mentions(wanted),
            Self::Null
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Uint(_)
            | Self::Double(_)
            | Self::Text(_)
            | Self::Bytes(_)
            | Self::Unknown(_) => false,
        }
    }
}
