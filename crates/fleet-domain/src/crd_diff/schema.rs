//! A structural schema in the one form that is compared: `allOf` is folded in, what constrains nothing is gone, and
//! numbers have one spelling. `parse` makes it from JSON of any shape, however hostile.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    ops::{Deref, DerefMut},
    sync::OnceLock,
};

use serde_json::Value;

pub use super::{enumeration::Enumeration, types::Types};
use super::{
    number::{Bound, Number},
    object::cel::Source,
};

/// How many there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Count {
    pub min: u64,
    pub max: Option<u64>,
}

impl Count {
    pub fn admits(self, count: u64) -> bool {
        count >= self.min && self.max.is_none_or(|max| count <= max)
    }

    pub fn merge(&mut self, other: Self) {
        self.min = self.min.max(other.min);
        self.max = match (self.max, other.max) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// What single values have to meet, whatever their kind.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Limits {
    pub enumeration: Option<Box<Enumeration>>,
    pub minimum: Option<Bound>,
    pub maximum: Option<Bound>,
    pub multiples: Vec<Number>,
    pub length: Count,
    pub items: Count,
    pub fields: Count,
    pub patterns: BTreeSet<String>,
    pub formats: BTreeSet<String>,
    pub unique: bool,
}

impl Limits {
    pub fn is_empty(&self) -> bool {
        *self == NO_LIMITS
    }
}

/// `anyOf`, `oneOf` and `not`. Several of each hold together: `allOf` may bring more than one.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub struct Choices {
    pub any: Vec<Vec<Schema>>,
    pub one: Vec<Vec<Schema>>,
    pub not: Vec<Schema>,
}

impl Choices {
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.one.is_empty() && self.not.is_empty()
    }
}

static NO_LIMITS: Limits = Limits {
    enumeration: None,
    minimum: None,
    maximum: None,
    multiples: Vec::new(),
    length: Count { min: 0, max: None },
    items: Count { min: 0, max: None },
    fields: Count { min: 0, max: None },
    patterns: BTreeSet::new(),
    formats: BTreeSet::new(),
    unique: false,
};
static NO_CHOICES: Choices = Choices {
    any: Vec::new(),
    one: Vec::new(),
    not: Vec::new(),
};

/// A part that most schemas do without. It takes room only where it says something: a large definition has tens of
/// thousands of nodes, and moving them about is most of the work of reading it.
#[derive(Clone, Debug)]
pub struct Rare<T>(Option<Box<T>>);

/// What a part is that says nothing.
pub trait Part: Default + PartialEq + 'static {
    fn none() -> &'static Self;
}

impl Part for Limits {
    fn none() -> &'static Self {
        &NO_LIMITS
    }
}

impl Part for Choices {
    fn none() -> &'static Self {
        &NO_CHOICES
    }
}

impl<T: Part> Rare<T> {
    /// The part, where it says something.
    pub fn said(&self) -> Option<&T> {
        self.0.as_deref().filter(|part| **part != *T::none())
    }

    /// The part, where there is one.
    pub fn given(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    pub fn take(&mut self) -> T {
        self.0.take().map(|part| *part).unwrap_or_default()
    }
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Part> From<T> for Rare<T> {
    fn from(part: T) -> Self {
        Self((part != *T::none()).then(|| Box::new(part)))
    }
}

impl<T: Part> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::none())
    }
}

impl<T: Part> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Part> PartialEq for Rare<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.0.is_none() && other.0.is_none()) || **self == **other
    }
}

impl<T: Part + Hash> Hash for Rare<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if *self != Self(None) {
            (**self).hash(state);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListType {
    /// What it is when nothing is said.
    #[default]
    Atomic,
    Set,
    Map(BTreeSet<String>),
}

impl std::fmt::Display for ListType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Atomic => f.write_str("atomic list"),
            Self::Set => f.write_str("set"),
            Self::Map(keys) => {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                write!(f, "map by {}", keys.join(", "))
            }
        }
    }
}

/// A CEL rule of `x-kubernetes-validations`.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The expression, with its white space evened out.
    pub expression: String,
    /// The expression as it is written, with its comments: what is evaluated.
    pub source: Source,
    pub message: Option<String>,
    pub message_expression: Option<Source>,
    /// Speaks of the value before the change, and so only of updates.
    pub transition: bool,
    /// A transition rule that also looks at new objects.
    pub optional_old_self: bool,
}

impl Rule {
    /// What two equal rules have in common: white space, and a message that is computed, are no difference.
    fn essence(&self) -> (&str, Option<&str>, bool, bool) {
        (
            &self.expression,
            self.message.as_deref(),
            self.transition,
            self.optional_old_self,
        )
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.essence() == other.essence()
    }
}

impl Eq for Rule {}

impl Hash for Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.essence().hash(state);
    }
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the API")]
pub struct Schema {
    pub types: Types,
    /// Said to be nullable. A schema without a type takes a null, but the server drops it before.
    pub nullable: bool,
    /// Keeps fields that the schema does not name.
    pub preserve: bool,
    pub embedded: bool,
    pub atomic_map: bool,
    /// Named only inside `allOf`: checked, but not kept from pruning.
    pub unstructured: bool,
    pub default: Option<Box<Value>>,
    pub properties: BTreeMap<String, Schema>,
    pub additional: Option<Box<Schema>>,
    pub items: Option<Box<Schema>>,
    pub required: BTreeSet<String>,
    pub limits: Rare<Limits>,
    pub choices: Rare<Choices>,
    pub list: ListType,
    pub rules: Vec<Rule>,
    /// A part of what is said here and below stands in an `allOf` of the schema around, whose error it is then; this is a
    /// hash of that part. What values are taken does not depend on it.
    pub held: Option<u64>,
    /// What could not be read, because it is too deep or not a schema.
    pub unread: Option<Box<Value>>,
    pub(super) facts: OnceLock<Facts>,
}

/// What is asked of branches again and again, found out once for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Schemas that are equal have the same.
    print: u64,
    vacuous: bool,
    fills: bool,
}

impl PartialEq for Schema {
    /// Schemas that differ are told apart at once, however large they are.
    fn eq(&self, other: &Self) -> bool {
        self.facts().print == other.facts().print && self.words() == other.words() && {
            self.properties == other.properties
                && self.additional == other.additional
                && self.items == other.items
                && *self.choices == *other.choices
        }
    }
}

impl Hash for Schema {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.facts().print);
    }
}

impl Schema {
    /// Says nothing and keeps nothing.
    pub fn empty() -> Self {
        Self {
            types: Types::ANY,
            nullable: false,
            preserve: false,
            embedded: false,
            atomic_map: false,
            unstructured: false,
            default: None,
            properties: BTreeMap::new(),
            additional: None,
            items: None,
            required: BTreeSet::new(),
            limits: Rare::default(),
            choices: Rare::default(),
            list: ListType::Atomic,
            rules: Vec::new(),
            held: None,
            unread: None,
            facts: OnceLock::new(),
        }
    }

    /// A copy of all but its fields and combinations, which may be large.
    #[must_use]
    pub fn without_fields_and_choices(&self) -> Self {
        Self {
            types: self.types,
            nullable: self.nullable,
            preserve: self.preserve,
            embedded: self.embedded,
            atomic_map: self.atomic_map,
            unstructured: self.unstructured,
            default: self.default.clone(),
            properties: BTreeMap::new(),
            additional: self.additional.clone(),
            items: self.items.clone(),
            required: self.required.clone(),
            limits: self.limits.clone(),
            choices: Rare::default(),
            list: self.list.clone(),
            rules: self.rules.clone(),
            held: self.held,
            unread: self.unread.clone(),
            facts: OnceLock::new(),
        }
    }

    /// To be called by whoever alters a schema that somebody may have looked at.
    pub fn forget(&mut self) {
        self.facts.take();
    }

    /// All that it says belongs to the schema around.
    pub fn hold(&mut self) {
        self.held = Some(self.facts().print);
    }

    /// Whether the schema around says something here that it did not say before.
    pub fn is_held_anew(&self, old: Option<&Self>) -> bool {
        self.held.is_some() && old.is_none_or(|old| old.held != self.held)
    }

    /// All that a schema says itself, without its children.
    fn words(&self) -> impl PartialEq + Hash + '_ {
        let flags = [
            self.nullable,
            self.preserve,
            self.embedded,
            self.atomic_map,
            self.unstructured,
        ];
        (
            (self.types, flags, &self.limits, &self.required, &self.list),
            (&self.rules, &self.default, &self.unread),
        )
    }

    fn facts(&self) -> Facts {
        *self.facts.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            self.words().hash(&mut hasher);
            self.properties.hash(&mut hasher);
            self.additional.hash(&mut hasher);
            self.items.hash(&mut hasher);
            self.choices.hash(&mut hasher);
            Facts {
                print: hasher.finish(),
                vacuous: self.finds_vacuous(),
                fills: self.finds_defaults(),
            }
        })
    }

    /// Says nothing and keeps everything: what a version without a schema has.
    pub fn open() -> Self {
        Self {
            preserve: true,
            ..Self::empty()
        }
    }

    /// Takes every value and keeps all of it.
    pub fn is_open(&self) -> bool {
        self.preserve && self.is_vacuous()
    }

    /// Whether fields that somebody may set are dropped, here or anywhere inside.
    pub fn prunes(&self) -> bool {
        let closed = !self.preserve && self.additional.is_none() && self.types.has(Types::OBJECT);
        let mut named = self.properties.values().filter(|property| !property.unstructured);
        closed
            || named.any(Self::prunes)
            || self.additional.as_deref().is_some_and(Self::prunes)
            || self.items.as_deref().is_some_and(Self::prunes)
    }

    /// Whether something in a value of any type is dropped, here or anywhere inside.
    pub fn empties(&self) -> bool {
        let mut named = self.properties.values().filter(|property| !property.unstructured);
        (!self.preserve && (self.additional.is_none() || self.items.is_none()))
            || named.any(Self::empties)
            || self.additional.as_deref().is_some_and(Self::empties)
            || self.items.as_deref().is_some_and(Self::empties)
    }

    /// Names types, and says nothing else.
    pub fn is_bare(&self) -> bool {
        let flags = self.nullable || self.preserve || self.embedded || self.atomic_map || self.unstructured;
        !flags
            && self.limits.is_empty()
            && self.choices.is_empty()
            && self.required.is_empty()
            && self.properties.is_empty()
            && self.additional.is_none()
            && self.items.is_none()
            && self.list == ListType::Atomic
            && self.rules.is_empty()
            && self.default.is_none()
            && self.unread.is_none()
    }

    /// Rejects nothing; what it prunes is another question.
    pub fn is_vacuous(&self) -> bool {
        // Most are told by their type alone.
        self.types.or(Types::NULL) == Types::ANY && self.facts().vacuous
    }

    fn finds_vacuous(&self) -> bool {
        self.types.or(Types::NULL) == Types::ANY
            && self.required.is_empty()
            && self.limits.is_empty()
            && self.choices.is_empty()
            && self.list == ListType::Atomic
            && self.rules.is_empty()
            && !self.embedded
            && self.unread.is_none()
            && self.properties.values().all(Self::is_vacuous)
            && self.additional.as_deref().is_none_or(Self::is_vacuous)
            && self.items.as_deref().is_none_or(Self::is_vacuous)
    }

    /// Whether there are defaults, of its fields or anywhere below.
    pub fn fills(&self) -> bool {
        self.facts().fills
    }

    fn finds_defaults(&self) -> bool {
        let mut fields = self.properties.values();
        // Of entries and of values of maps it takes the place of a null.
        let fills = |field: &Self| field.default.is_some() || field.fills();
        fields.any(fills)
            || self.additional.as_deref().is_some_and(fills)
            || self.items.as_deref().is_some_and(fills)
    }

    /// The server puts defaults in before it validates, so a required field that has one is never missing.
    pub fn demands(&self, name: &str) -> bool {
        self.required.contains(name)
            && self
                .properties
                .get(name)
                .is_none_or(|property| property.default.is_none())
    }

    /// How many places it speaks of, beside combinations.
    pub fn size(&self) -> usize {
        let children = self.properties.values();
        let others = self
            .additional
            .as_deref()
            .into_iter()
            .chain(self.items.as_deref());
        1 + children.chain(others).map(Self::size).sum::<usize>()
    }

    /// Whether an object may be refused because this field was dropped from it.
    pub fn misses(&self, name: &str) -> bool {
        self.demands(name) || self.counts_fields()
    }

    /// Whether an object may be refused for having too few fields, whichever they are.
    pub fn counts_fields(&self) -> bool {
        self.limits.fields.min > 0
    }

    /// Whether a field of this name survives pruning here.
    pub fn keeps(&self, name: &str) -> bool {
        self.preserve
            || self.additional.is_some()
            || self.properties.get(name).is_some_and(|p| !p.unstructured)
            || (self.embedded && matches!(name, "apiVersion" | "kind" | "metadata"))
    }
}
