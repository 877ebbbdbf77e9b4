//! Walks two schemas side by side, once, and asks at every place: what was kept and taken before, and is not any more?

mod lists;
mod whole;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
};

use super::{
    choices::{self, Fuel},
    filled::{self, Turn},
    kind::Kind,
    limits,
    pattern::Budget,
    presence::Presence,
    print, rules,
    said::{Reader, Said},
    schema::{Count, Schema, Types},
    server::ServerVersion,
    sink::{Mark, Sink, Step},
    witness::{self, Model},
    words::{default_text, shape, shorten, shorten_fields},
};
use whole::{ALWAYS, embedded, metadata};

/// Where a schema stands, which decides what happens to a null.
#[derive(Clone, Copy)]
struct Stand {
    root: bool,
    /// The value of a field or of a map, where the server drops a null that is not nullable.
    in_object: bool,
    demand: Demand,
}

/// Whether the field has to be there, so that a dropped null is a missing field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    Never,
    /// In some objects.
    Sometimes,
    Always,
}

impl From<bool> for Demand {
    fn from(demanded: bool) -> Self {
        if demanded { Self::Always } else { Self::Never }
    }
}

/// Bounds the work that is more than linear, over the whole of one pair of definitions.
#[derive(Default)]
pub struct Work {
    fuel: Fuel,
    patterns: Budget,
    model: Model,
    reader: Reader,
}

impl Work {
    /// For comparisons that ask what is lost, and not what is refused.
    pub fn without_rules() -> Self {
        Self {
            model: Model::idle(),
            ..Self::default()
        }
    }
}

/// Among more fields nobody looks for one that was renamed.
const MAX_RENAMES: usize = 2_000;

/// What becomes of objects that were written under `old` when they meet `new`.
pub fn compare<'a>(sink: &mut Sink<'a>, old: &'a Schema, new: &'a Schema, work: &mut Work) {
    let stand = Stand {
        root: true,
        in_object: false,
        demand: Demand::Always,
    };
    node(sink, old, new, stand, work);
}

fn node<'a>(sink: &mut Sink<'a>, old: &'a Schema, new: &'a Schema, stand: Stand, work: &mut Work) {
    if old.unread.is_some() || new.unread.is_some() {
        if old.unread != new.unread {
            sink.add(Kind::NotComparable, "", "");
            sink.stands_for(|| print::of_values([&old.unread, &new.unread]));
            sink.undecidable("it is nested too deeply, refers to another schema, or is not a schema");
        }
        return;
    }
    null(sink, old, new, stand);
    sink.go_into(old, new);
    let mark = sink.mark();
    let shared = limits(sink, old, new, stand.root, work);
    veil(sink, &mark, old, new);
    let around = work.model.enter(old, new, || sink.path());
    if shared.has(Types::OBJECT) {
        object(sink, old, new, stand, work);
    }
    if shared.has(Types::ARRAY) {
        lists::compare(sink, old, new, work);
    }
    work.model.leave(around);
    if !shared.is_empty() {
        let mark = sink.mark();
        choices::compare(sink, old, new, stand.root, &mut work.fuel, &mut work.patterns);
        if sink.may_be(ServerVersion::evaluates_rules) {
            rules::compare(sink, old, new, stand.root, &mut work.model);
        }
        veil(sink, &mark, old, new);
    }
    sink.come_out();
}

/// Where a default went, or is another one, every object that comes from the API has the old one; what is stored may
/// be without it.
fn veil(sink: &mut Sink<'_>, mark: &Mark, old: &Schema, new: &Schema) {
    let went = |(name, before): (&String, &Schema)| {
        let after = new.properties.get(name).and_then(|after| after.default.as_ref());
        before.default.is_some() && before.default.as_ref() != after
    };
    if sink.has_harm_since(mark) && old.properties.iter().any(went) {
        sink.veil_since(mark);
    }
}

/// What the limits refuse that neither the old ones did nor anything else that the old schema says.
fn limits(sink: &mut Sink<'_>, old: &Schema, new: &Schema, root: bool, work: &mut Work) -> Types {
    let mark = sink.mark();
    let shared = limits::compare(sink, old, new, &mut work.patterns);
    if !sink.has_harm_since(&mark) {
        return shared;
    }
    let counts = new.limits.fields != Count::default();
    let said = sink.said(&mut work.reader);
    if said.is_none() && !counts {
        return shared;
    }
    let mut said = said.unwrap_or_default();
    forget_what_was_filled_in(&mut said, old, new);
    if counts {
        let rules = sink.may_be(ServerVersion::evaluates_rules);
        let count = Presence::new(old, new, root, rules).count(&mut work.fuel);
        said.limits.fields.merge(count);
        said.limits.fields.merge(Count {
            min: 0,
            max: most_fields(old, new, root),
        });
    }
    sink.back_to(mark);
    limits::compare(sink, &said.added_to(old), new, &mut work.patterns)
}

/// How many fields an object can have at most when it is pruned and filled in. Unknown ones are not counted: they are
/// gone by then.
fn most_fields(old: &Schema, new: &Schema, root: bool) -> Option<u64> {
    let is_open = |schema: &Schema| schema.preserve || schema.additional.is_some();
    if root || old.embedded || is_open(old) || is_open(new) {
        return None;
    }
    let stays = |name: &&String| old.keeps(name) && new.keeps(name);
    let filled_in = new.properties.iter().filter(|(name, field)| {
        // What was there is counted already.
        field.default.is_some() && !old.keeps(name)
    });
    Some((old.properties.keys().filter(stays).count() + filled_in.count()) as u64)
}

/// That a field is there may be true only because it was filled in, and now it is not.
fn forget_what_was_filled_in(said: &mut Said, old: &Schema, new: &Schema) {
    let mut went = old.properties.iter().filter(|(name, before)| {
        before.default.is_some()
            && new
                .properties
                .get(*name)
                .is_none_or(|after| after.default.is_none())
    });
    if let Some((first, _)) = went.next() {
        for name in went.map(|(name, _)| name).chain([first]) {
            said.there.remove(name);
        }
        said.limits.fields.min = 0;
    }
}

fn null(sink: &mut Sink<'_>, old: &Schema, new: &Schema, stand: Stand) {
    let took = |schema: &Schema| {
        let listed = schema.limits.enumeration.as_ref();
        schema.types.has(Types::NULL)
            && listed.is_none_or(|all| all.contains(&serde_json::Value::Null))
            && (schema.nullable || !stand.in_object)
    };
    let (before, after) = (took(old), took(new));
    if before == after {
        return;
    }
    if after {
        sink.add(Kind::Loosened, "no null", "null allowed");
    } else if !new.nullable && new.default.is_some() {
        sink.add(Kind::NullDropped, "null allowed", "null replaced by the default");
    } else if stand.in_object && !new.nullable && stand.demand == Demand::Never {
        sink.add(Kind::NullDropped, "null allowed", "null dropped");
    } else if stand.in_object && !new.nullable && stand.demand == Demand::Sometimes {
        sink.add(Kind::NullRejected, "null allowed", "null dropped, and missed");
        sink.undecidable("whether a combination misses the dropped field depends on the object");
    } else if !stand.root {
        sink.add(Kind::NullRejected, "null allowed", "null refused");
    }
}

/// A null that was dropped until now, because the field was not nullable, and stays from now on. None is stored: it is about
/// clients that write it without a need, and no more than a warning.
fn null_kept<'a>(
    sink: &mut Sink<'a>,
    step: Step<'a>,
    before: &Schema,
    after: &Schema,
    objects: &Objects<'_>,
    work: &mut Work,
) {
    if before.nullable || !after.nullable {
        return;
    }
    let minds = match step {
        // Where the field had to be there, a null in it was refused already.
        Step::Field(name) if objects.old.demands(name) => return,
        Step::Field(name) => objects.minds(sink, Turn::Null, name, work),
        _ => filled::counts(objects.new, Turn::Null) || sink.is_combined(),
    };
    let before = "null dropped";
    if filled::refuses_null(after) {
        sink.add_child(
            Kind::NullKept,
            step,
            before,
            "null kept, and refused by the listed values",
        );
    } else if minds {
        sink.add_child(
            Kind::NullKept,
            step,
            before,
            "null kept, and it counts as a field",
        );
    }
}

fn object<'a>(sink: &mut Sink<'a>, old: &'a Schema, new: &'a Schema, stand: Stand, work: &mut Work) {
    // Where keeping everything ends, that is said once for all fields.
    let closes = old.preserve && !new.preserve && new.additional.is_none();
    if closes {
        let named: Vec<&str> = new.properties.keys().map(String::as_str).collect();
        let after = if named.is_empty() {
            "no field is kept".to_owned()
        } else {
            format!("kept and checked: {}", shorten(&named))
        };
        sink.add(Kind::UnknownPruned, "every field is kept", after);
        let came = |(name, _): &(&String, &Schema)| !old.properties.contains_key(*name);
        sink.stands_for(|| print::of_fields(new.properties.iter().filter(came)));
    }
    embedded(sink, old, new, work);
    let mut objects = Objects {
        old,
        new,
        closes,
        root: stand.root,
        renames: None,
    };
    for (name, pair) in side_by_side(&old.properties, &new.properties) {
        let whole = stand.root || (old.embedded && new.embedded);
        match pair {
            pair if whole && name == "metadata" => metadata(sink, pair, work),
            // What is kept by the mark alone is compared there.
            _ if old.embedded && !new.embedded && name == "metadata" => {}
            (Some(_), None) | (None, Some(_)) if whole && ALWAYS.contains(&name) => {}
            (Some(before), Some(after)) => {
                let mark = sink.mark();
                default(sink, name, before, after, &objects, work);
                if before.default.is_some() {
                    sink.veil_since(&mark);
                }
                null_kept(sink, Step::Field(name), before, after, &objects, work);
                let demand = objects.demand(sink, name, before, after, work);
                child(sink, Step::Field(name), before, after, demand, work);
            }
            (Some(before), None) => gone(sink, name, before, &mut objects, work),
            (None, Some(after)) => came(sink, name, after, &objects, work),
            (None, None) => {}
        }
    }
    let mark = sink.mark();
    required(sink, old, new, stand, &mut work.reader);
    veil(sink, &mark, old, new);
    match (&old.additional, &new.additional) {
        (Some(before), Some(after)) => {
            null_kept(sink, Step::Values, before, after, &objects, work);
            child(sink, Step::Values, before, after, new.counts_fields(), work);
        }
        (Some(_), None) if new.preserve => sink.add(Kind::Loosened, "a map", "any fields"),
        (Some(_), None) => sink.add(Kind::UnknownPruned, "a map with any keys", shorten_fields(new)),
        (None, Some(after)) if old.preserve => typed(sink, Step::Values, after, new.counts_fields()),
        (None, Some(_)) => sink.add(Kind::Loosened, "named fields", "any keys"),
        (None, None) if new.preserve && !old.preserve => {
            sink.add(Kind::Loosened, "unknown fields pruned", "unknown fields kept");
        }
        (None, None) => {}
    }
    if old.atomic_map != new.atomic_map {
        let word = |atomic| if atomic { "atomic" } else { "granular" };
        sink.add(Kind::MapTypeChanged, word(old.atomic_map), word(new.atomic_map));
    }
}

/// Two schemas of objects, and what their fields need to know of them.
struct Objects<'a> {
    old: &'a Schema,
    new: &'a Schema,
    closes: bool,
    root: bool,
    renames: Option<Renames<'a>>,
}

impl Objects<'_> {
    /// Whether the new schemas may mind what becomes of a field.
    fn minds(&self, sink: &Sink<'_>, turn: Turn, name: &str, work: &mut Work) -> bool {
        // That more fields are asked for than before is told as such.
        let told = turn == Turn::Missing && self.new.limits.fields.min > self.old.limits.fields.min;
        (!told && filled::counts(self.new, turn)) || sink.minds(turn, name, &mut work.fuel)
    }

    /// Whether a null that is dropped from this field is missed.
    fn demand(
        &self,
        sink: &Sink<'_>,
        name: &str,
        before: &Schema,
        after: &Schema,
        work: &mut Work,
    ) -> Demand {
        let is_dropped = before.nullable && !after.nullable;
        if self.new.misses(name) {
            Demand::Always
        } else if !is_dropped || after.default.is_some() || !self.minds(sink, Turn::Missing, name, work) {
            Demand::Never
        } else if self.lacking(name, true, work).is_some() {
            Demand::Always
        } else {
            Demand::Sometimes
        }
    }

    /// An object that lacks this field, or has a null in it, and is refused for that from now on.
    fn lacking(&self, name: &str, null: bool, work: &mut Work) -> Option<String> {
        let pair = witness::Pair {
            old: self.old,
            new: self.new,
            root: self.root,
        };
        work.model.lacking(pair, name, null)
    }
}

/// New fields by their name without its spelling and by their type; for removed ones that may have been renamed.
type Renames<'a> = HashMap<(String, Types), &'a str>;

type Pair<'a> = (Option<&'a Schema>, Option<&'a Schema>);

/// The fields of both, each name once and in order.
fn side_by_side<'a>(
    old: &'a BTreeMap<String, Schema>,
    new: &'a BTreeMap<String, Schema>,
) -> impl Iterator<Item = (&'a str, Pair<'a>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (Some((before, _)), Some((after, _))) => before.cmp(after),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        let (name, _) = before.or(after)?;
        Some((
            name.as_str(),
            (before.map(|(_, schema)| schema), after.map(|(_, schema)| schema)),
        ))
    })
}

fn child<'a>(
    sink: &mut Sink<'a>,
    step: Step<'a>,
    old: &'a Schema,
    new: &'a Schema,
    demand: impl Into<Demand>,
    work: &mut Work,
) {
    sink.enter(step);
    let stand = Stand {
        root: false,
        in_object: !matches!(step, Step::Items),
        demand: demand.into(),
    };
    node(sink, old, new, stand, work);
    sink.leave();
}

/// A field that the old schema names and the new one does not.
fn gone<'a>(
    sink: &mut Sink<'a>,
    name: &'a str,
    before: &'a Schema,
    objects: &mut Objects<'a>,
    work: &mut Work,
) {
    let Objects { old, new, .. } = *objects;
    if new.embedded && ALWAYS.contains(&name) {
        return;
    }
    if let Some(values) = &new.additional {
        null_kept(sink, Step::Field(name), before, values, objects, work);
        child(sink, Step::Field(name), before, values, new.misses(name), work);
    } else if new.preserve {
        sink.add_child(Kind::Loosened, Step::Field(name), shape(before), "anything");
    } else if !before.unstructured || old.preserve {
        sink.add_child(Kind::FieldRemoved, Step::Field(name), shape(before), "pruned");
        let renames = objects.renames.get_or_insert_with(|| renames(old, new));
        if let Some(other) = renames.get(&(plain(name), before.types)) {
            sink.note(&format!("It looks as if it was renamed to {other:?}."));
        }
    }
}

/// A field that the new schema names and the old one does not.
fn came<'a>(sink: &mut Sink<'a>, name: &'a str, after: &'a Schema, objects: &Objects<'a>, work: &mut Work) {
    let Objects { old, new, .. } = *objects;
    if old.embedded && ALWAYS.contains(&name) {
        return;
    }
    if let Some(values) = &old.additional {
        null_kept(sink, Step::Field(name), values, after, objects, work);
        child(sink, Step::Field(name), values, after, new.misses(name), work);
    } else if old.preserve {
        if !objects.closes {
            let minds = (old.demands(name) && new.demands(name)) || new.counts_fields();
            typed(sink, Step::Field(name), after, minds);
        }
    } else if after.default.is_some() && objects.minds(sink, Turn::FilledIn, name, work) {
        sink.add_child(
            Kind::DefaultUnderChoice,
            Step::Field(name),
            "no such field",
            default_text(after),
        );
        sink.undecidable("whether the filled-in field breaks the combination depends on the object");
    } else if !new.demands(name) {
        sink.add_child(Kind::FieldAdded, Step::Field(name), "no such field", shape(after));
    }
}

/// A schema for what was anything until now. What it refuses and what it prunes are two things: pruning hurts objects
/// of the right shape too, and no server spares values that are left alone from it. A null was kept until now, and is
/// dropped where it may not be one, which somebody may mind.
fn typed<'a>(sink: &mut Sink<'a>, step: Step<'a>, after: &Schema, minds_dropped: bool) {
    if after.prunes() {
        sink.add_child(Kind::UnknownPruned, step, "anything", shape(after));
        sink.stands_for(|| print::of(after));
    } else if sink.emptied.is_some() && after.empties() {
        sink.empties(step);
    }
    if !after.is_vacuous() {
        sink.add_child(Kind::FreeFieldTyped, step, "anything", shape(after));
        sink.stands_for(|| print::of(after));
    } else if minds_dropped && !after.nullable {
        sink.add_child(
            Kind::NullRejected,
            step,
            "null allowed",
            "null dropped, and missed",
        );
    }
}

fn required<'a>(sink: &mut Sink<'a>, old: &Schema, new: &'a Schema, stand: Stand, reader: &mut Reader) {
    if old.required.is_empty() && new.required.is_empty() {
        return;
    }
    let mut said = None;
    for name in &new.required {
        let always = (stand.root || old.embedded) && ALWAYS.contains(&name.as_str());
        if always || old.demands(name) {
            continue;
        }
        if new.demands(name) {
            let said = said.get_or_insert_with(|| {
                let mut said = sink.said(reader)?;
                forget_what_was_filled_in(&mut said, old, new);
                Some(said)
            });
            if said.as_ref().is_some_and(|said| said.there.contains(name)) {
                continue;
            }
            let before = if old.required.contains(name) {
                "filled in by its default"
            } else if old.keeps(name) {
                "optional"
            } else {
                "no such field"
            };
            sink.add_child(Kind::RequiredAdded, Step::Field(name), before, "required");
        } else if stand.root && sink.drops_status && name == "status" {
            // No default makes up for it: it is told of the version.
        } else if !old.required.contains(name) {
            sink.add_child(
                Kind::RequiredDefaulted,
                Step::Field(name),
                "optional",
                "required, with a default",
            );
        }
    }
    if old.required.iter().any(|name| !new.required.contains(name)) && new.required.is_subset(&old.required) {
        sink.add(Kind::Loosened, "required", "optional");
    }
}

fn default<'a>(
    sink: &mut Sink<'a>,
    name: &'a str,
    old: &Schema,
    new: &Schema,
    parents: &Objects<'a>,
    work: &mut Work,
) {
    let kind = match (&old.default, &new.default) {
        (None, Some(_)) => Kind::DefaultAdded,
        (Some(_), None) => Kind::DefaultRemoved,
        (Some(a), Some(b)) if super::number::canonical(a) != super::number::canonical(b) => {
            Kind::DefaultChanged
        }
        _ => return,
    };
    if kind == Kind::DefaultRemoved && parents.new.demands(name) {
        // Said as a field that has to be set from now on.
        return;
    }
    if kind == Kind::DefaultRemoved {
        if !parents.minds(sink, Turn::Missing, name, work) {
            sink.add_child(kind, Step::Field(name), default_text(old), default_text(new));
            return;
        }
        let example = parents.lacking(name, false, work);
        sink.add_child(
            Kind::DefaultMissed,
            Step::Field(name),
            default_text(old),
            default_text(new),
        );
        match example {
            Some(example) => {
                sink.breaking();
                sink.note(&format!("For example {example}."));
            }
            None => sink.undecidable("whether anything misses the field depends on the object"),
        }
        return;
    }
    let minds = parents.minds(sink, Turn::FilledIn, name, work);
    let kind = if minds { Kind::DefaultUnderChoice } else { kind };
    sink.add_child(kind, Step::Field(name), default_text(old), default_text(new));
    if minds {
        sink.undecidable("whether the filled-in field breaks the combination depends on the object");
    }
}

/// A removed field may come back in another spelling with the same type.
fn renames<'a>(old: &Schema, new: &'a Schema) -> Renames<'a> {
    let mut renames = Renames::new();
    if new.properties.len() > MAX_RENAMES {
        return renames;
    }
    for (name, after) in &new.properties {
        if !old.properties.contains_key(name) {
            renames.entry((plain(name), after.types)).or_insert(name);
        }
    }
    renames
}

fn plain(name: &str) -> String {
    name.replace(['_', '-'], "").to_lowercase()
}
