//! A closed list of values, of which a hostile one may have very many.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    sync::OnceLock,
};

use serde_json::Value;

use super::{limits, number::canonical};

#[derive(Clone, Debug, Default)]
pub struct Enumeration {
    pub values: Vec<Value>,
    /// Of a long list: the hash of each value and its place, by hash. So a giant list costs little more than its length.
    index: Vec<(u64, usize)>,
    words: OnceLock<String>,
}

impl Enumeration {
    const LONG: usize = 16;

    pub fn new(values: Vec<Value>) -> Self {
        let mut all = Self::default();
        if values.len() < Self::LONG {
            for value in values {
                if !all.contains(&value) {
                    all.values.push(value);
                }
            }
            return all;
        }
        all.index = values.iter().map(hash).zip(0..).collect();
        all.index.sort_unstable();
        all.values = values;
        let twice = all.repeated();
        if twice.is_empty() {
            return all;
        }
        let values = std::mem::take(&mut all.values).into_iter().zip(0..);
        let once = values.filter(|(_, place)| twice.binary_search(place).is_err());
        Self::new(once.map(|(value, _)| value).collect())
    }

    /// A null is spared, or not: the server puts it to the list of its own schema, which takes none whatever it names,
    /// and to no list of a combination.
    pub fn spare_null(&mut self, spared: bool) {
        if self.contains(&Value::Null) != spared {
            let mut values = std::mem::take(&mut self.values);
            values.retain(|value| !value.is_null());
            if spared {
                values.push(Value::Null);
            }
            *self = Self::new(values);
        }
    }

    /// The places of values that stand further up already.
    fn repeated(&self) -> Vec<usize> {
        let groups = self.index.chunk_by(|(one, _), (other, _)| one == other);
        let mut repeated = Vec::new();
        for group in groups.filter(|group| group.len() > 1) {
            let mut first: Vec<usize> = Vec::new();
            for &(_, place) in group {
                let value = &self.values[place];
                if first.iter().any(|known| is_same(&self.values[*known], value)) {
                    repeated.push(place);
                } else {
                    first.push(place);
                }
            }
        }
        repeated.sort_unstable();
        repeated
    }

    pub fn contains(&self, value: &Value) -> bool {
        if self.index.is_empty() {
            return self.values.iter().any(|known| is_same(known, value));
        }
        let wanted = hash(value);
        let start = self.index.partition_point(|(hash, _)| *hash < wanted);
        self.index[start..]
            .iter()
            .take_while(|(hash, _)| *hash == wanted)
            .any(|(_, place)| is_same(&self.values[*place], value))
    }

    /// The places of values that the other list does not have.
    pub fn missing_in(&self, other: &Self) -> Vec<usize> {
        // Most lists begin and end alike; values differ within each, so that nothing of that is between.
        let same = |(one, other): &(&Value, &Value)| is_same(one, other);
        let start = self.values.iter().zip(&other.values).take_while(same).count();
        let (rest, others) = (&self.values[start..], &other.values[start..]);
        let end = rest
            .iter()
            .rev()
            .zip(others.iter().rev())
            .take_while(same)
            .count();
        let between = start..self.values.len() - end;
        let few = between.len() < self.values.len() / 16;
        if few || self.index.is_empty() || other.index.is_empty() {
            return between
                .filter(|place| !other.contains(&self.values[*place]))
                .collect();
        }
        // Both are by hash, so one walk along both is enough.
        let mut rest = other.index.as_slice();
        let mut missing = Vec::new();
        for &(hash, place) in &self.index {
            let smaller = rest.iter().take_while(|(other, _)| *other < hash).count();
            rest = &rest[smaller..];
            let mut equal = rest.iter().take_while(|(other, _)| *other == hash);
            if !equal.any(|(_, there)| is_same(&self.values[place], &other.values[*there])) {
                missing.push(place);
            }
        }
        missing.sort_unstable();
        missing
    }

    /// The list as findings name it; made once, because that takes time where it is long.
    pub fn in_words(&self) -> &str {
        self.words.get_or_init(|| limits::list(&self.values))
    }
}

impl PartialEq for Enumeration {
    fn eq(&self, other: &Self) -> bool {
        self.values.len() == other.values.len()
            && (self.values == other.values || self.missing_in(other).is_empty())
    }
}

impl Hash for Enumeration {
    /// The same in any order, as for `==`.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let sum = self.values.iter().map(hash).fold(0, u64::wrapping_add);
        state.write_u64(sum);
    }
}

fn hash(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    match value {
        Value::String(word) => word.hash(&mut hasher),
        other => canonical(other).hash(&mut hasher),
    }
    hasher.finish()
}

fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::String(one), Value::String(other)) => one == other,
        (Value::String(_), _) | (_, Value::String(_)) => false,
        _ => one == other || canonical(one) == canonical(other),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Short and long lists go different ways, and have to come to the same.
    #[rstest]
    #[case::short(0)]
    #[case::long(40)]
    fn equal_values_are_one(#[case] others: usize) {
        let list = |values: Vec<Value>| {
            let more = (0..others).map(|n| json!(format!("value {n}")));
            Enumeration::new(values.into_iter().chain(more).collect())
        };
        let all = list(vec![
            json!("a"),
            json!(1),
            json!(1.0),
            json!("a"),
            json!("1"),
            json!({"b": 2}),
        ]);
        assert_eq!(all.values.len(), 4 + others);
        assert_eq!(all.values[1], json!(1));
        assert!(all.contains(&json!("1")) && all.contains(&json!({"b": 2.0})) && !all.contains(&json!("b")));
        let turned = list(vec![json!({"b": 2}), json!("1"), json!(1.0), json!("a")]);
        assert_eq!(all, turned);
        assert_ne!(all, list(vec![json!("a"), json!(1), json!("1"), json!({"b": 3})]));
    }
}
