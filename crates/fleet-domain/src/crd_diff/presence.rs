//! Which fields an object can have at once, by all that the old schema says of it: `oneOf` of two required fields, the
//! rule `has(self.a) != has(self.b)` and exactly one field of two say the same. Each set of fields is looked at, and what
//! is not about fields being there may be true or not; so a set that is left out here is sure to be refused.
//!
//! The server prunes, fills in and then validates: the sets are those of objects with their defaults, and nothing is
//! claimed where defaults differ.

use super::{
    choices::{Fuel, MAX_NESTED, branches},
    object::cel::{Expr, Op, unescape},
    schema::{Choices, Count, Schema, Types},
};

/// Of more fields not all sets are looked at.
const MAX_FIELDS: usize = 10;
/// More rules are not looked at.
const MAX_RULES: usize = 12;
/// Rules are not followed deeper.
const MAX_DEPTH: usize = 32;

/// Nothing if it may be either.
type Answer = Option<bool>;

/// The sets of fields that stored objects can have, once somebody asks.
pub struct Presence<'s> {
    old: &'s Schema,
    new: &'s Schema,
    rules: bool,
    root: bool,
    sets: Option<Sets<'s>>,
    looked: bool,
}

struct Sets<'s> {
    names: Vec<&'s str>,
    /// There are no other fields.
    complete: bool,
    possible: Vec<u32>,
}

impl<'s> Presence<'s> {
    pub fn new(old: &'s Schema, new: &'s Schema, root: bool, rules: bool) -> Self {
        Self {
            old,
            new,
            rules,
            root,
            sets: None,
            looked: false,
        }
    }

    /// How many fields objects have, as far as this tells.
    pub fn count(&mut self, fuel: &mut Fuel) -> Count {
        let Some(sets) = self.sets(fuel) else {
            return Count::default();
        };
        let counts = || sets.possible.iter().map(|set| u64::from(set.count_ones()));
        Count {
            min: counts().min().unwrap_or(0),
            max: counts().max().filter(|_| sets.complete),
        }
    }

    /// Whether all objects are sure to meet one of these branches.
    pub fn meets_any(&mut self, group: &[Schema], fuel: &mut Fuel) -> bool {
        self.all_are(group, fuel, |there| {
            any(group.iter().map(|branch| there.of(branch)))
        })
    }

    /// Or exactly one of them.
    pub fn meets_one(&mut self, group: &[Schema], fuel: &mut Fuel) -> bool {
        self.all_are(group, fuel, |there| {
            one(group.iter().map(|branch| there.of(branch)))
        })
    }

    /// Or not this one.
    pub fn never_meets(&mut self, branch: &Schema, fuel: &mut Fuel) -> bool {
        self.all_are(std::slice::from_ref(branch), fuel, |there| not(there.of(branch)))
    }

    fn all_are(&mut self, group: &[Schema], fuel: &mut Fuel, is: impl Fn(&There<'_>) -> Answer) -> bool {
        let Some(sets) = self.sets(fuel) else { return false };
        let size: usize = group.iter().map(|branch| 1 + branches(branch)).sum();
        fuel.burns(sets.possible.len().saturating_mul(size))
            && sets
                .possible
                .iter()
                .all(|set| is(&sets.there(*set)) == Some(true))
    }

    fn sets(&mut self, fuel: &mut Fuel) -> Option<&Sets<'s>> {
        if !self.looked {
            self.looked = true;
            self.sets = self.find(fuel);
        }
        self.sets.as_ref()
    }

    fn find(&self, fuel: &mut Fuel) -> Option<Sets<'s>> {
        let (old, new) = (self.old, self.new);
        let size = branches(old);
        if old.types.without(Types::NULL) != Types::OBJECT || size > MAX_NESTED {
            return None;
        }
        let whole = self.root || old.embedded || new.embedded;
        let open = |schema: &Schema| schema.preserve || schema.additional.is_some();
        let complete = !whole
            && !open(old)
            && old.properties.len() <= MAX_FIELDS
            && new
                .properties
                .iter()
                .all(|(name, field)| field.default.is_none() || old.properties.contains_key(name));
        let mut names: Vec<&'s str> = Vec::new();
        if complete {
            names.extend(old.properties.keys().map(String::as_str));
        } else {
            mentioned(&new.choices, &mut names);
            mentioned(&old.choices, &mut names);
            names.extend(old.required.iter().map(String::as_str));
            names.sort_unstable();
            names.dedup();
        }
        // What the old schema drops is never there.
        names.retain(|name| old.keeps(name));
        let filled = |schema: &Schema, name: &str| {
            schema
                .properties
                .get(name)
                .is_some_and(|field| field.default.is_some())
        };
        let stays = |name: &&str| {
            new.keeps(name)
                && filled(old, name) == filled(new, name)
                && (may_be_null(new, name) || !may_be_null(old, name))
        };
        if names.is_empty() || names.len() > MAX_FIELDS || !names.iter().all(stays) {
            return None;
        }
        let rules: Vec<&Expr> = old
            .rules
            .iter()
            .filter(|rule| self.rules && !rule.transition)
            .take(MAX_RULES)
            .filter_map(|rule| rule.source.program().ok())
            .map(|program| &program.expr)
            .collect();
        let words: usize = old
            .rules
            .iter()
            .take(MAX_RULES)
            .map(|rule| rule.source.text.len() / 8)
            .sum();
        let all = 1_u32 << names.len();
        if !fuel.burns((1 + size + words).saturating_mul(all as usize)) {
            return None;
        }
        let mut sets = Sets {
            names,
            complete,
            possible: Vec::new(),
        };
        sets.possible = (0..all)
            .filter(|set| {
                let there = sets.there(*set);
                let always = |name: &&str| filled(old, name) || old.required.contains(*name);
                let mut has_to = sets.names.iter().filter(|name| always(name));
                has_to.all(|name| there.has(name) == Some(true))
                    && there.counted(old.limits.fields) != Some(false)
                    && there.meets(&old.choices) != Some(false)
                    && rules
                        .iter()
                        .all(|rule| there.holds(rule, old, MAX_DEPTH) != Some(false))
            })
            .collect();
        Some(sets)
    }
}

impl Sets<'_> {
    fn there(&self, set: u32) -> There<'_> {
        There { sets: self, set }
    }
}

/// One set of fields.
struct There<'s> {
    sets: &'s Sets<'s>,
    set: u32,
}

impl There<'_> {
    fn has(&self, name: &str) -> Answer {
        let place = self.sets.names.iter().position(|known| *known == name);
        match place {
            Some(place) => Some(self.set & (1 << place) != 0),
            None if self.sets.complete => Some(false),
            None => None,
        }
    }

    fn counted(&self, wanted: Count) -> Answer {
        let known = u64::from(self.set.count_ones());
        let complete = self.sets.complete;
        let least = match known >= wanted.min {
            true => Some(true),
            false if complete => Some(false),
            false => None,
        };
        let most = match wanted.max {
            Some(max) if known > max => Some(false),
            Some(_) if !complete => None,
            _ => Some(true),
        };
        all([least, most].into_iter())
    }

    fn meets(&self, choices: &Choices) -> Answer {
        let Choices {
            any: groups,
            one: exact,
            not: none,
        } = choices;
        let of = |group: &[Schema]| group.iter().map(|branch| self.of(branch)).collect::<Vec<_>>();
        let groups = groups.iter().map(|group| any(of(group).into_iter()));
        let exact = exact.iter().map(|group| one(of(group).into_iter()));
        let none = none.iter().map(|branch| not(self.of(branch)));
        all(groups.chain(exact).chain(none))
    }

    /// What a branch says of an object with these fields.
    fn of(&self, branch: &Schema) -> Answer {
        if branch.unread.is_some() {
            return None;
        }
        if !branch.types.has(Types::OBJECT) {
            return Some(false);
        }
        let required = branch.required.iter().map(|name| self.has(name));
        let fields = branch.properties.iter().map(|(name, field)| {
            // Nothing is said of a field that is not there.
            (field.is_vacuous() || self.has(name) == Some(false)).then_some(true)
        });
        let others = (branch.limits.enumeration.is_none()
            && branch.additional.as_deref().is_none_or(Schema::is_vacuous)
            && branch.rules.is_empty()
            && !branch.embedded)
            .then_some(true);
        let rest = [
            others,
            self.counted(branch.limits.fields),
            self.meets(&branch.choices),
        ];
        all(required.chain(fields).chain(rest))
    }

    /// Whether a rule is met, or fails: an error refuses the object as well.
    fn holds(&self, rule: &Expr, schema: &Schema, depth: usize) -> Answer {
        let depth = depth.checked_sub(1)?;
        let of = |part: &Expr| self.holds(part, schema, depth);
        match rule {
            Expr::Bool(yes) => Some(*yes),
            Expr::Has { of, name } if matches!(&**of, Expr::Name(name) if name == "self") => {
                let name = unescape(name)?;
                schema.properties.get(&*name)?;
                // A null is as good as nothing to a rule.
                let there = self.has(&name)?;
                (!there || !may_be_null(schema, &name)).then_some(there)
            }
            Expr::Not(inner) => not(of(inner)),
            Expr::And(parts) => all(parts.iter().map(of)),
            Expr::Or(parts) => any(parts.iter().map(of)),
            Expr::If(parts) => match of(&parts.0) {
                Some(true) => of(&parts.1),
                Some(false) => of(&parts.2),
                None => of(&parts.1).filter(|yes| of(&parts.2) == Some(*yes)),
            },
            Expr::Binary(Op::Equal, sides) => Some(of(&sides.0)? == of(&sides.1)?),
            Expr::Binary(Op::Unequal, sides) => Some(of(&sides.0)? != of(&sides.1)?),
            _ => None,
        }
    }
}

fn may_be_null(schema: &Schema, name: &str) -> bool {
    let property = schema.properties.get(name).filter(|field| !field.unstructured);
    property
        .or(schema.additional.as_deref())
        .is_none_or(|field| field.nullable)
}

/// The fields that combinations ask for.
fn mentioned<'s>(choices: &'s Choices, names: &mut Vec<&'s str>) {
    let groups = choices.any.iter().chain(&choices.one).flatten();
    for branch in groups.chain(&choices.not) {
        if names.len() > MAX_NESTED {
            return;
        }
        names.extend(branch.required.iter().map(String::as_str));
        mentioned(&branch.choices, names);
    }
}

fn not(answer: Answer) -> Answer {
    answer.map(|yes| !yes)
}

fn all(answers: impl Iterator<Item = Answer>) -> Answer {
    let mut sure = Some(true);
    for answer in answers {
        match answer {
            Some(false) => return answer,
            None => sure = None,
            Some(true) => {}
        }
    }
    sure
}

fn any(answers: impl Iterator<Item = Answer>) -> Answer {
    not(all(answers.map(not)))
}

fn one(answers: impl Iterator<Item = Answer>) -> Answer {
    let (mut met, mut open) = (0, 0);
    for answer in answers {
        match answer {
            Some(true) => met += 1,
            None => open += 1,
            Some(false) => {}
        }
    }
    match (met, open) {
        (2.., _) | (0, 0) => Some(false),
        (1, 0) => Some(true),
        _ => None,
    }
}
