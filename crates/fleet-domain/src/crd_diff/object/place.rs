//! Where something is, in an object and in its schema. Most places are passed without a word, so none is written out
//! before something is said of it.

use std::fmt::Write as _;

use crate::crd_diff::sink::{Step, write_step};

#[derive(Clone, Copy)]
pub enum At<'p> {
    /// The whole object.
    Whole,
    /// A part of an object that is looked at by itself.
    Part,
    Field(&'p At<'p>, &'p str),
    /// A value of a map.
    Value(&'p At<'p>, &'p str),
    Item(&'p At<'p>, usize),
}

impl At<'_> {
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }

    /// In this object, with its keys and indices.
    pub fn path(&self) -> String {
        self.written(|at, path| match at {
            At::Field(_, name) | At::Value(_, name) => write_step(path, Step::Field(name)),
            At::Item(_, index) => {
                let _ = write!(path, "[{index}]");
            }
            At::Whole | At::Part => {}
        })
    }

    /// In the schema, as findings name it.
    pub fn place(&self) -> String {
        self.written(|at, place| match at {
            At::Field(_, name) => write_step(place, Step::Field(name)),
            At::Value(..) => write_step(place, Step::Values),
            At::Item(..) => write_step(place, Step::Items),
            At::Whole | At::Part => {}
        })
    }

    fn written(&self, write: impl Fn(&At<'_>, &mut String)) -> String {
        let mut ways = vec![self];
        while let At::Field(above, _) | At::Value(above, _) | At::Item(above, _) = ways[ways.len() - 1] {
            ways.push(above);
        }
        let mut text = String::new();
        for at in ways.into_iter().rev() {
            write(at, &mut text);
        }
        if text.is_empty() {
            text.push('.');
        }
        text
    }
}
