//! Expressions as they are written, read at most once.

use std::sync::{Arc, OnceLock};

use super::{ast::Expr, parse::parse};

/// The text of an expression, and what it says; copies share what was read.
#[derive(Clone, Debug)]
pub struct Source {
    pub text: String,
    program: OnceLock<Arc<Result<Program, String>>>,
}

#[derive(Debug)]
pub struct Program {
    pub expr: Expr,
    /// It asks for the value before an update.
    pub about_changes: bool,
}

impl Source {
    /// What it takes to read it, in steps of a rule: nothing, the second time.
    pub fn cost(&self) -> u64 {
        match self.program.get() {
            Some(_) => 1,
            None => 1 + self.text.len() as u64 / 4,
        }
    }

    /// Or why it is not understood.
    pub fn program(&self) -> Result<&Program, &String> {
        let read = self.program.get_or_init(|| {
            Arc::new(parse(&self.text).map(|expr| Program {
                about_changes: expr.mentions("oldSelf"),
                expr,
            }))
        });
        (**read).as_ref()
    }
}

impl From<String> for Source {
    fn from(text: String) -> Self {
        Self {
            text,
            program: OnceLock::new(),
        }
    }
}
