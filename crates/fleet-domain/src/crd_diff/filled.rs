//! Whether combinations and limits, of an object or around it, mind a field that is filled in from now on, or one that
//! is not there any more: its default went, or a null is dropped.

use super::{
    choices::{Fuel, MAX_NESTED, branches},
    schema::{Choices, Count, Schema, Types},
    sink::Step,
};

/// The new schemas around a place that have combinations, with their depth and how many branches they have.
#[derive(Default)]
pub struct Above<'a>(Vec<(usize, &'a Schema, usize)>);

/// What becomes of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is filled in, or with something else.
    FilledIn,
    /// It was there, and is not.
    Missing,
    /// A null stays in it, which was dropped.
    Null,
}

impl<'a> Above<'a> {
    /// The walk goes into a schema that is so many steps deep.
    pub fn enter(&mut self, depth: usize, schema: &'a Schema) {
        // Scalars have no fields.
        if schema.types.has(Types::OBJECT.or(Types::ARRAY)) && !schema.choices.is_empty() {
            self.0.push((depth, schema, branches(schema)));
        }
    }

    pub fn leave(&mut self, depth: usize) {
        self.0.pop_if(|(own, ..)| *own == depth);
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any of them may be broken by what becomes of this field of the object that the steps lead to.
    pub fn minds(&self, turn: Turn, steps: &[Step<'_>], name: &str, fuel: &mut Fuel) -> bool {
        self.0.iter().any(|(depth, schema, branches)| {
            let way = steps.get(*depth..).unwrap_or_default();
            let Choices { any, one, not } = &*schema.choices;
            *branches > MAX_NESTED
                || !fuel.burns(*branches)
                || one.iter().flatten().any(|branch| speaks_of(branch, way, name))
                || not.iter().any(|branch| speaks_of(branch, way, name))
                || any
                    .iter()
                    .flatten()
                    .any(|branch| may_break(branch, turn, way, name))
        })
    }
}

/// Whether what becomes of a field may break how many fields an object has.
pub fn counts(schema: &Schema, turn: Turn) -> bool {
    match turn {
        Turn::FilledIn | Turn::Null => schema.limits.fields.max.is_some(),
        Turn::Missing => schema.counts_fields(),
    }
}

/// Whether a branch that is met may not be met any more. What it only requires, a field that is filled in gives it; what
/// it only says of a field that is there, one that is missing meets.
fn may_break(branch: &Schema, turn: Turn, way: &[Step<'_>], name: &str) -> bool {
    let Choices { any, one, not } = &*branch.choices;
    let here = match (way, turn) {
        ([step, rest @ ..], _) => below(branch, *step, &|child| may_break(child, turn, rest, name)),
        ([], Turn::FilledIn) => {
            branch
                .properties
                .get(name)
                .is_some_and(|property| !property.is_vacuous())
                || branch.additional.is_some()
                || branch.limits.fields.max.is_some()
        }
        ([], Turn::Null) => {
            let field = branch.properties.get(name).or(branch.additional.as_deref());
            field.is_some_and(refuses_null) || branch.limits.fields.max.is_some()
        }
        ([], Turn::Missing) => branch.required.contains(name) || branch.limits.fields.min > 0,
    };
    here || branch.limits.enumeration.is_some()
        || branch.unread.is_some()
        || one.iter().flatten().any(|inner| speaks_of(inner, way, name))
        || not.iter().any(|inner| speaks_of(inner, way, name))
        || any
            .iter()
            .flatten()
            .any(|inner| may_break(inner, turn, way, name))
}

/// A null is put to types and to listed values, and to nothing else.
pub fn refuses_null(schema: &Schema) -> bool {
    let listed = schema.limits.enumeration.as_ref();
    !schema.types.has(Types::NULL)
        || schema.unread.is_some()
        || listed.is_some_and(|values| !values.contains(&serde_json::Value::Null))
}

/// Whether this field can make a difference to what a branch says.
fn speaks_of(branch: &Schema, way: &[Step<'_>], name: &str) -> bool {
    let Choices { any, one, not } = &*branch.choices;
    let here = match way {
        [step, rest @ ..] => below(branch, *step, &|child| speaks_of(child, rest, name)),
        [] => {
            branch.required.contains(name)
                || branch.properties.contains_key(name)
                || branch.additional.is_some()
                || branch.limits.fields != Count::default()
        }
    };
    let mut inner = any.iter().chain(one).flatten().chain(not);
    here || branch.limits.enumeration.is_some()
        || branch.unread.is_some()
        || !branch.rules.is_empty()
        || inner.any(|inner| speaks_of(inner, way, name))
}

/// What a branch says of the parts that one step leads to.
fn below(branch: &Schema, step: Step<'_>, says: &dyn Fn(&Schema) -> bool) -> bool {
    let values = branch.additional.as_deref();
    match step {
        Step::Field(name) => branch.properties.get(name).or(values).is_some_and(says),
        Step::Items => branch.items.as_deref().is_some_and(says),
        // A branch may name keys of a map.
        Step::Values => branch.properties.values().chain(values).any(says),
    }
}
