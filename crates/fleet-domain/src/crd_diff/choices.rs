//! Compares `anyOf`, `oneOf` and `not`.
//!
//! Exactly where that is possible: branches that became fewer or more, branches that only speak of fields which no old
//! object can have, and branches of which one implies the other. Otherwise it says that it does not know.

use std::cell::LazyCell;

use super::{
    kind::Kind,
    limits,
    object::Checker,
    pattern::{self, Budget, Inclusion},
    presence::Presence,
    print, said,
    schema::{Choices, ListType, Schema, Types},
    server::ServerVersion,
    sink::Sink,
};

/// Branches are compared each with each; beyond this it is not tried.
const MAX_BRANCHES: usize = 64;

/// More values of a list are not put to the branches.
const MAX_LISTED: usize = 64;

/// Branches within branches of one place; nobody writes so many by hand, and beyond this they are not looked at.
pub const MAX_NESTED: usize = 4_000;

/// How much comparing of branches is done for one pair of definitions: nested ones multiply.
pub struct Fuel(usize);

impl Default for Fuel {
    fn default() -> Self {
        Self(200_000)
    }
}

impl Fuel {
    /// To look at two branches that may turn out to be equal, or one of them to say nothing.
    const LOOK: usize = 1;
    /// To compare all that two branches say themselves.
    const COMPARE: usize = 9;

    /// Whether there is enough for that; what was asked for is gone in any case.
    pub fn burns(&mut self, some: usize) -> bool {
        self.0 = self.0.saturating_sub(some);
        self.is_left()
    }

    fn is_left(&self) -> bool {
        self.0 > 0
    }
}

pub fn compare(
    sink: &mut Sink<'_>,
    old: &Schema,
    new: &Schema,
    root: bool,
    fuel: &mut Fuel,
    patterns: &mut Budget,
) {
    if old.choices == new.choices {
        return;
    }
    let mut left = MAX_NESTED;
    if !(count(&old.choices, &mut left) && count(&new.choices, &mut left)) {
        sink.add(Kind::ChoiceChanged, "combinations", "other combinations");
        sink.stands_for(|| print::of_each([print::of_many(&old.choices), print::of_many(&new.choices)]));
        sink.undecidable(format!(
            "there are more than {MAX_NESTED} branches within branches, and so many are not compared"
        ));
        return;
    }
    let may_have = |name: &str| {
        // Only objects lack fields; `required` says nothing of a list. A null meets every combination.
        old.types.without(Types::NULL) != Types::OBJECT
            || old.keeps(name)
            || new
                .properties
                .get(name)
                .is_some_and(|property| property.default.is_some())
    };
    let after = without_unknown(&may_have, &new.choices);
    let before = &old.choices;
    if fuel.is_left() && takes_all_listed(old, new, fuel) {
        sink.add(
            Kind::Loosened,
            "listed values",
            "a combination that takes them all",
        );
        return;
    }
    let rules = sink.may_be(ServerVersion::evaluates_rules);
    let mut presence = Presence::new(old, new, root, rules);
    let mut tightened = false;
    // What was there before is looked at once for all that is there now.
    let known = LazyCell::new(|| print::of_choices(before));
    for group in &after.any {
        let mut groups = before.any.iter().chain(&before.one);
        if fuel.is_left()
            && (groups.any(|known| covers(known, group, fuel))
                || meets_by_itself(old, group, fuel)
                || meets_a_pattern(old, group, patterns)
                || presence.meets_any(group, fuel))
        {
            continue;
        }
        tightened = true;
        report(sink, "anyOf", before.any.first(), group, before.any.len() == 1);
        sink.stands_for(|| print::of_each([*known, print::of_branches(group)]));
    }
    for group in &after.one {
        if fuel.is_left()
            && (before.one.iter().any(|known| same(known, group, fuel)) || presence.meets_one(group, fuel))
        {
            continue;
        }
        tightened = true;
        report(sink, "oneOf", before.one.first(), group, before.one.len() == 1);
        sink.stands_for(|| print::of_each([*known, print::of_branches(group)]));
    }
    for not in &after.not {
        if fuel.is_left()
            && (before.not.iter().any(|known| implies(not, known, fuel)) || presence.never_meets(not, fuel))
        {
            continue;
        }
        tightened = true;
        if before.not.is_empty() {
            sink.add(Kind::ChoiceAdded, "no such limit", "not: values that meet it");
        } else {
            sink.add(
                Kind::ChoiceChanged,
                format!("{} under not", before.not.len()),
                "others under not",
            );
            sink.undecidable("what two negations let through cannot be compared in general");
        }
        sink.stands_for(|| print::of_each([*known, print::of(not)]));
    }
    if !tightened && !before.is_empty() {
        sink.add(Kind::Loosened, "a combination", "a wider one, or none");
    }
}

/// Where the old values are listed, each is put to the new branches: exact, whatever they say.
fn takes_all_listed(old: &Schema, new: &Schema, fuel: &mut Fuel) -> bool {
    let Some(listed) = &old.limits.enumeration else {
        return false;
    };
    let branches = branches(new);
    if listed.values.len() > MAX_LISTED
        || branches > MAX_BRANCHES
        || !fuel.burns(listed.values.len() * branches)
    {
        return false;
    }
    let alone = |schema: &Schema| {
        let mut alone = Schema::empty();
        alone.choices = (*schema.choices).clone().into();
        alone
    };
    let (before, after) = (alone(old), alone(new));
    let mut checker = Checker::with_patterns_to(pattern::MAX_LISTED_REGEX_BYTES);
    let values = listed
        .values
        .iter()
        .filter(|value| old.types.has(Types::of(value)));
    let all = values
        .filter(|value| checker.accepts(&before, value))
        .cloned()
        .collect::<Vec<_>>();
    all.iter().all(|value| checker.accepts(&after, value))
        && checker.skipped_patterns == 0
        && checker.undecided().is_empty()
}

/// Takes one away for each branch, however deep; false when there are more.
fn count(choices: &Choices, left: &mut usize) -> bool {
    let groups = choices.any.iter().chain(&choices.one).flatten();
    groups.chain(&choices.not).all(|branch| {
        *left = left.saturating_sub(1);
        *left > 0 && count(&branch.choices, left)
    })
}

fn report(sink: &mut Sink<'_>, word: &str, old: Option<&Vec<Schema>>, new: &[Schema], single: bool) {
    let Some(old) = old else {
        sink.add(
            Kind::ChoiceAdded,
            format!("no {word}"),
            format!("{word} of {} branches", new.len()),
        );
        return;
    };
    let before = format!("{word} of {} branches", old.len());
    let after = format!("{word} of {} branches", new.len());
    let fewer = single
        && new.len() < old.len()
        && old.len() <= MAX_BRANCHES
        && new.iter().all(|branch| old.contains(branch));
    if fewer {
        // What met only one of the branches that went meets none now.
        sink.add(Kind::ChoiceAdded, before, after);
    } else {
        sink.add(Kind::ChoiceChanged, before, after);
        sink.undecidable(format!(
            "the branches of {word} differ in more than their number, and what they let through together cannot be compared in general"
        ));
    }
}

/// Whatever meets one of the old branches meets one of the new ones.
fn covers(old: &[Schema], new: &[Schema], fuel: &mut Fuel) -> bool {
    old.len().saturating_mul(new.len()) <= MAX_BRANCHES * MAX_BRANCHES
        && old
            .iter()
            .all(|branch| new.iter().any(|wider| implies(branch, wider, fuel)))
}

/// Whether values of each kind that the old schema takes meet one of the new branches for what it says beside them: an
/// integer or a string meets `anyOf` of an integer and a string.
fn meets_by_itself(old: &Schema, new: &[Schema], fuel: &mut Fuel) -> bool {
    new.len() <= MAX_BRANCHES
        && Types::EACH
            .into_iter()
            .filter(|kind| old.types.has(*kind))
            .all(|kind| new.iter().any(|wider| implies_for(kind, old, wider, fuel)))
}

/// Whether all text that meets the old patterns meets one of the new branches, which are patterns and nothing else.
fn meets_a_pattern(old: &Schema, new: &[Schema], patterns: &mut Budget) -> bool {
    if old.limits.patterns.is_empty() {
        return false;
    }
    said::one_pattern(new).is_some_and(|new| {
        let known: Vec<&str> = old.limits.patterns.iter().map(String::as_str).collect();
        limits::covered(&known, &new, old.limits.length, patterns) == Inclusion::Yes
    })
}

fn same(old: &[Schema], new: &[Schema], fuel: &mut Fuel) -> bool {
    fuel.burns(Fuel::LOOK)
        && old.len() == new.len()
        && (old == new
            || (old.len() <= MAX_BRANCHES
                && fuel.burns(old.len() * new.len())
                && old.iter().all(|branch| new.contains(branch))
                && new.iter().all(|branch| old.contains(branch))))
}

/// What a branch comes to for objects that the old schema kept.
enum Truth {
    Always,
    Never,
    Depends(Box<Schema>),
}

/// The new combinations as they look to old objects, which cannot have fields that the old schema pruned.
fn without_unknown(may_have: &dyn Fn(&str) -> bool, new: &Choices) -> Choices {
    let groups = |groups: &[Vec<Schema>], one: bool| -> Vec<Vec<Schema>> {
        groups
            .iter()
            .filter_map(|group| match reduce_group(may_have, group, one) {
                Group::Always => None,
                Group::Branches(branches) => Some(branches),
            })
            .collect()
    };
    Choices {
        any: groups(&new.any, false),
        one: groups(&new.one, true),
        not: new
            .not
            .iter()
            .filter_map(|not| match reduce(may_have, not) {
                Truth::Never => None,
                Truth::Always => Some(Schema::empty()),
                Truth::Depends(schema) => Some(*schema),
            })
            .collect(),
    }
}

enum Group {
    Always,
    Branches(Vec<Schema>),
}

fn reduce_group(may_have: &dyn Fn(&str) -> bool, group: &[Schema], one: bool) -> Group {
    let mut always = 0;
    let mut branches = Vec::new();
    for branch in group {
        match reduce(may_have, branch) {
            Truth::Never => {}
            Truth::Always => {
                always += 1;
                branches.push(Schema::empty());
            }
            Truth::Depends(schema) => branches.push(*schema),
        }
    }
    if always > 0 && (!one || branches.len() == 1) {
        Group::Always
    } else {
        Group::Branches(branches)
    }
}

/// Only what is left is copied, and once: not for each level above it, and nothing that is dropped again.
fn reduce(may_have: &dyn Fn(&str) -> bool, branch: &Schema) -> Truth {
    if branch.required.iter().any(|name| !may_have(name)) {
        return Truth::Never;
    }
    let mut rest = Schema {
        choices: without_unknown(may_have, &branch.choices).into(),
        ..branch.without_fields_and_choices()
    };
    let impossible = rest
        .choices
        .any
        .iter()
        .chain(&rest.choices.one)
        .any(Vec::is_empty)
        || rest.choices.not.iter().any(Schema::is_vacuous);
    if impossible {
        return Truth::Never;
    }
    let known = branch.properties.iter().filter(|(name, _)| may_have(name));
    rest.properties = known.map(|(name, field)| (name.clone(), field.clone())).collect();
    if rest.is_vacuous() {
        Truth::Always
    } else {
        Truth::Depends(Box::new(rest))
    }
}

/// Whether everything that meets `narrow` meets `wide`. Sure when it says yes; a no may only mean that it cannot tell.
/// Both are branches: a field that they do not name is free.
fn implies(narrow: &Schema, wide: &Schema, fuel: &mut Fuel) -> bool {
    fuel.burns(Fuel::LOOK)
        && (wide.is_vacuous() || narrow == wide || implies_for(narrow.types, narrow, wide, fuel))
}

/// The same, for values of these kinds alone.
fn implies_for(kinds: Types, narrow: &Schema, wide: &Schema, fuel: &mut Fuel) -> bool {
    if wide.unread.is_some() || !kinds.without(wide.types).is_empty() {
        return false;
    }
    let (a, b) = (&*narrow.limits, &*wide.limits);
    let lists = a.enumeration.as_ref().map_or(0, |few| few.values.len())
        + (wide.required.len() + b.patterns.len())
        + a.multiples.len().saturating_mul(b.multiples.len());
    if !fuel.burns(Fuel::COMPARE.saturating_add(lists)) {
        return false;
    }
    let listed = match (&a.enumeration, &b.enumeration) {
        (_, None) => true,
        (Some(few), Some(many)) => few.values.iter().all(|value| many.contains(value)),
        (None, Some(_)) => false,
    };
    let bounded = b
        .minimum
        .is_none_or(|wide| a.minimum.is_some_and(|own| !wide.is_tighter_lower(own)))
        && b.maximum
            .is_none_or(|wide| a.maximum.is_some_and(|own| !wide.is_tighter_upper(own)))
        && b.multiples
            .iter()
            .all(|step| a.multiples.iter().any(|own| own.is_multiple_of(*step)));
    let within = |own: super::schema::Count, wide: super::schema::Count| {
        own.min >= wide.min && wide.max.is_none_or(|max| own.max.is_some_and(|own| own <= max))
    };
    let counted = within(a.length, b.length) && within(a.items, b.items) && within(a.fields, b.fields);
    let parts = wide.required.is_subset(&narrow.required)
        && b.patterns.is_subset(&a.patterns)
        && b.formats.is_subset(&a.formats)
        && (a.unique || !b.unique)
        && wide.properties.iter().all(|(name, wider)| {
            wider.is_vacuous()
                || narrow
                    .properties
                    .get(name)
                    .is_some_and(|own| implies(own, wider, fuel))
        })
        && child(narrow.items.as_deref(), wide.items.as_deref(), fuel)
        && child(narrow.additional.as_deref(), wide.additional.as_deref(), fuel)
        && wide.rules.is_empty()
        && wide.list == ListType::Atomic
        && !wide.embedded;
    let combined = wide
        .choices
        .not
        .iter()
        .all(|not| narrow.choices.not.iter().any(|own| implies(not, own, fuel)))
        && wide
            .choices
            .any
            .iter()
            .all(|group| narrow.choices.any.iter().any(|own| covers(own, group, fuel)))
        && wide
            .choices
            .one
            .iter()
            .all(|group| narrow.choices.one.iter().any(|own| same(own, group, fuel)));
    listed && bounded && counted && parts && combined
}

fn child(narrow: Option<&Schema>, wide: Option<&Schema>, fuel: &mut Fuel) -> bool {
    match (narrow, wide) {
        (_, None) => true,
        (_, Some(wide)) if wide.is_vacuous() => true,
        (Some(narrow), Some(wide)) => implies(narrow, wide, fuel),
        (None, Some(_)) => false,
    }
}

/// How many branches a schema has in all; more than so many count as one more.
pub fn branches(schema: &Schema) -> usize {
    let mut left = MAX_NESTED;
    if count(&schema.choices, &mut left) {
        MAX_NESTED - left
    } else {
        MAX_NESTED + 1
    }
}
