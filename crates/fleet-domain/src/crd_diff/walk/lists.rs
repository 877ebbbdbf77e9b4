//! Lists: their entries, and what those are told apart by.

use super::{Work, child, typed};
use crate::crd_diff::{
    kind::Kind,
    schema::{ListType, Schema, Types},
    sink::{Sink, Step},
    words::shape,
};

pub fn compare<'a>(sink: &mut Sink<'a>, old: &'a Schema, new: &'a Schema, work: &mut Work) {
    match (&old.items, &new.items) {
        (Some(before), Some(after)) => child(sink, Step::Items, before, after, false, work),
        (Some(before), None) if !new.preserve && before.types.has(Types::OBJECT) => {
            sink.add_child(
                Kind::UnknownPruned,
                Step::Items,
                shape(before),
                "no field is kept",
            );
        }
        (Some(before), None) => sink.add_child(Kind::Loosened, Step::Items, shape(before), "anything"),
        (None, Some(after)) => typed(sink, Step::Items, after, false),
        (None, None) => {}
    }
    let refilled = told_apart_by_defaults(old, new);
    if old.list == new.list && !refilled {
        return;
    }
    let tightens = match (&old.list, &new.list) {
        (_, ListType::Atomic) => false,
        // One entry is equal to no other.
        _ if old.limits.items.max.is_some_and(|max| max < 2) => false,
        _ if refilled => true,
        // Entries that differ in one key differ in more keys too.
        (ListType::Map(before), ListType::Map(after)) => !before.is_subset(after),
        _ => true,
    };
    let kind = if tightens {
        Kind::ListTightened
    } else {
        Kind::ListLoosened
    };
    sink.add(kind, old.list.to_string(), new.list.to_string());
    if refilled && tightens {
        sink.note("What is filled in where an entry leaves a key out is something else than before, and may make it equal to another one.");
    }
}

/// Whether entries that differed may become equal by what is filled in now.
fn told_apart_by_defaults(old: &Schema, new: &Schema) -> bool {
    let (Some(before), Some(after)) = (&old.items, &new.items) else {
        return false;
    };
    let differs = |name: &String| {
        let of = |schema: &'_ Schema| {
            schema
                .properties
                .get(name)
                .and_then(|field| field.default.clone())
        };
        let filled = of(after);
        filled.is_some() && filled != of(before) && !before.demands(name)
    };
    match &new.list {
        ListType::Atomic => false,
        ListType::Set => after.properties.keys().any(differs),
        ListType::Map(keys) => keys.iter().any(differs),
    }
}
