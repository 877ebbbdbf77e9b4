//! Paths and values of a cluster's spec: what a patch would set, what stands there now, and the way back.

use gantry_crds::{
    Kind,
    penin::{CHANGEABLE, ChangePlan, FieldChange},
};
use serde_json::{Map, Value, json};

/// Every value that a patch sets, by its path below `spec`. A list is one value.
pub fn leaves(patch: &Map<String, Value>) -> Vec<(String, Value)> {
    fn walk(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let path = if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}.{name}")
                    };
                    walk(&path, member, found);
                }
            }
            // An explicit null says nothing.
            Value::Null => {}
            _ => found.push((path.to_owned(), value.clone())),
        }
    }
    let mut found = Vec::new();
    walk("", &Value::Object(patch.clone()), &mut found);
    found
}

/// The first block of a patch that sets nothing, by its path. To the server it is there all the same, and to be there can
/// mean something: `autoScaling: {}` scales every service.
pub fn hollow(patch: &Map<String, Value>) -> Option<String> {
    patch.iter().find_map(|(name, value)| match value {
        Value::Object(members) if members.values().all(Value::is_null) => Some(name.clone()),
        Value::Object(members) => hollow(members).map(|inner| format!("{name}.{inner}")),
        _ => None,
    })
}

/// The patch that sets these values and nothing else.
pub fn patch(leaves: &[(String, Value)]) -> Map<String, Value> {
    let mut whole = json!({});
    for (path, value) in leaves {
        set(&mut whole, path, Some(value.clone()));
    }
    match whole {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// The value at a path.
pub fn get<'a>(spec: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(spec, |at, name| at.get(name))
        .filter(|value| !value.is_null())
}

/// Sets the value at a path; `None` removes it.
pub fn set(spec: &mut Value, path: &str, value: Option<Value>) {
    let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = spec;
    for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
        if !at[parent].is_object() {
            if value.is_none() {
                return;
            }
            at[parent] = json!({});
        }
        at = &mut at[parent];
    }
    match (value, at.as_object_mut()) {
        (Some(value), Some(members)) => {
            members.insert(name.to_owned(), value);
        }
        (None, Some(members)) => {
            members.remove(name);
        }
        _ => {}
    }
}

/// The blocks that a patch touches, as they stand in a spec.
pub fn blocks(spec: &Value, patch: &Map<String, Value>) -> Map<String, Value> {
    CHANGEABLE
        .iter()
        .filter(|block| patch.contains_key(**block))
        .filter_map(|block| Some(((*block).to_owned(), get(spec, block)?.clone())))
        .collect()
}

/// The schema of a field of the cluster's spec.
pub fn schema(path: &str) -> Option<&'static Value> {
    path.split('.')
        .try_fold(Kind::PeninOmegaCluster.spec_schema()?, |at, name| {
            at["properties"].get(name)
        })
}

/// What a field is when nobody sets it, where the schema says so.
pub fn default(path: &str) -> Option<Value> {
    schema(path)?.get("default").cloned()
}

/// A number, also one that is written as a quantity.
pub fn amount(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(_) => gantry_kit::project::nanos(value).map(|billionths| billionths as f64 / 1e9),
        _ => None,
    }
}

/// Whether a field's value is a number or a quantity.
pub fn is_amount(path: &str) -> bool {
    schema(path).is_some_and(|schema| {
        schema["pattern"] == gantry_crds::schema::QUANTITY_PATTERN
            || [json!("integer"), json!("number")].contains(&schema["type"])
    })
}

/// Whether two values mean the same: `1` and `1.0`, `1Gi` and `1024Mi`.
pub fn same(one: Option<&Value>, other: Option<&Value>) -> bool {
    let near = |one: f64, other: f64| (one - other).abs() <= 1e-12 * one.abs().max(other.abs());
    match (one, other) {
        (Some(one), Some(other)) => {
            one == other
                || amount(one)
                    .zip(amount(other))
                    .is_some_and(|(one, other)| near(one, other))
        }
        (None, None) => true,
        _ => false,
    }
}

/// The merge patch that turns one value into another; nothing when they are the same.
pub fn difference(current: &Value, target: &Value) -> Option<Value> {
    let (Some(now), Some(then)) = (current.as_object(), target.as_object()) else {
        return (current != target).then(|| target.clone());
    };
    let gone = now
        .keys()
        .filter(|name| !then.contains_key(*name))
        .map(|name| (name.clone(), Value::Null));
    let set = then.iter().filter_map(|(name, value)| {
        let patch = match now.get(name) {
            Some(now) => difference(now, value),
            None => Some(value.clone()),
        };
        patch.map(|patch| (name.clone(), patch))
    });
    let patch: Map<String, Value> = gone.chain(set).collect();
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The fields of a plan.
pub fn planned(plan: &ChangePlan) -> impl Iterator<Item = (&str, &FieldChange)> {
    plan.fields
        .iter()
        .flatten()
        .map(|change| (change.field.as_deref().unwrap_or_default(), change))
}

/// Fields of the plan that no longer have the value that the change gave them.
pub fn edited(spec: &Value, plan: &ChangePlan) -> Vec<String> {
    planned(plan)
        .filter(|(path, change)| !same(get(spec, path), change.to.as_ref()))
        .map(|(path, _)| path.to_owned())
        .collect()
}

/// The spec as it was before the change. A block that nobody else touched since becomes exactly what it was; in a block
/// that somebody edited elsewhere, only the fields of the plan go back.
pub fn undone(spec: &Value, plan: &ChangePlan) -> Value {
    let empty = Map::new();
    let of = |blocks: &Option<gantry_crds::common::Fragment>| {
        blocks
            .as_ref()
            .map_or_else(|| empty.clone(), |blocks| blocks.0.clone())
    };
    let (before, after) = (of(&plan.before), of(&plan.after));
    let mut target = spec.clone();
    for block in CHANGEABLE {
        let fields: Vec<_> = planned(plan)
            .filter(|(path, _)| path.split('.').next() == Some(block))
            .collect();
        if fields.is_empty() {
            continue;
        }
        if spec.get(block) == after.get(block) {
            set(&mut target, block, before.get(block).cloned());
            continue;
        }
        for (path, change) in fields {
            set(&mut target, path, change.from.clone());
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_crds::common::Fragment;
    use proptest::prelude::*;
    use rstest::rstest;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn what_sets_nothing_is_not_written() {
        let asked = object(
            json!({"replicas": {"sigmaGuard": 3, "omegaMeta": null}, "autoScaling": {"services": {}}}),
        );
        assert_eq!(hollow(&asked).as_deref(), Some("autoScaling.services"));
        let written = patch(&leaves(&asked));
        assert_eq!(written, object(json!({"replicas": {"sigmaGuard": 3}})));
        assert_eq!(hollow(&written), None);
    }

    #[test]
    fn a_patch_is_its_leaves() {
        let patch = json!({"replicas": {"sigmaGuard": 3, "omegaMeta": null}, "config": {"caosPlus": {"kappa": 2}}, "resources": {}});
        assert_eq!(
            leaves(&object(patch)),
            [
                ("config.caosPlus.kappa".to_owned(), json!(2)),
                ("replicas.sigmaGuard".to_owned(), json!(3)),
            ]
        );
    }

    #[rstest]
    #[case("replicas.sigmaGuard", Some(json!(2)))]
    #[case("resources.sigmaGuard.cpu", Some(json!("250m")))]
    #[case("autoScaling.minReplicas", Some(json!(2)))]
    #[case("autoScaling.services.sigmaGuard.minReplicas", None)]
    #[case("nothing.there", None)]
    fn defaults_come_from_the_schema(#[case] path: &str, #[case] expected: Option<Value>) {
        assert_eq!(default(path), expected);
    }

    #[rstest]
    #[case(json!("1Gi"), json!("1024Mi"), true)]
    #[case(json!(1), json!(1.0), true)]
    #[case(json!("1"), json!("1000m"), true)]
    #[case(json!(true), json!(false), false)]
    #[case(json!(2), json!(3), false)]
    fn values_are_compared_by_meaning(#[case] one: Value, #[case] other: Value, #[case] equal: bool) {
        assert_eq!(same(Some(&one), Some(&other)), equal);
    }

    fn plan(before: Value, after: Value, fields: &[(&str, Option<Value>, Value)]) -> ChangePlan {
        ChangePlan {
            before: Some(Fragment(object(before))),
            after: Some(Fragment(object(after))),
            fields: Some(
                fields
                    .iter()
                    .map(|(field, from, to)| FieldChange {
                        field: Some((*field).to_owned()),
                        from: from.clone(),
                        to: Some(to.clone()),
                    })
                    .collect(),
            ),
            ..ChangePlan::default()
        }
    }

    #[rstest]
    // The server filled the block in when the change made it; all of that goes.
    #[case::block_was_absent(
        json!({"version": "1", "replicas": {"omegaMeta": 1, "sigmaGuard": 3}}),
        json!({}), json!({"replicas": {"omegaMeta": 1, "sigmaGuard": 3}}), None, json!({"version": "1"}))]
    #[case::field_was_there(
        json!({"replicas": {"sigmaGuard": 3}}),
        json!({"replicas": {"sigmaGuard": 2}}), json!({"replicas": {"sigmaGuard": 3}}), Some(json!(2)),
        json!({"replicas": {"sigmaGuard": 2}}))]
    // Somebody set another field of the block: it stays.
    #[case::edited_beside(
        json!({"replicas": {"omegaMeta": 4, "sigmaGuard": 3}}),
        json!({"replicas": {"sigmaGuard": 2}}), json!({"replicas": {"sigmaGuard": 3}}), Some(json!(2)),
        json!({"replicas": {"omegaMeta": 4, "sigmaGuard": 2}}))]
    #[case::edited_beside_what_was_absent(
        json!({"replicas": {"omegaMeta": 4, "sigmaGuard": 3}}),
        json!({}), json!({"replicas": {"omegaMeta": 1, "sigmaGuard": 3}}), None,
        json!({"replicas": {"omegaMeta": 4}}))]
    fn the_way_back(
        #[case] now: Value,
        #[case] before: Value,
        #[case] after: Value,
        #[case] from: Option<Value>,
        #[case] expected: Value,
    ) {
        let plan = plan(before, after, &[("replicas.sigmaGuard", from, json!(3))]);
        assert_eq!(undone(&now, &plan), expected);
    }

    #[test]
    fn an_edit_of_a_planned_field_is_seen_and_another_spelling_is_none() {
        let plan = plan(
            json!({}),
            json!({}),
            &[
                ("resources.sigmaGuard.memory", None, json!("1Gi")),
                ("replicas.sigmaGuard", None, json!(3)),
            ],
        );
        let spec = |memory: &str, replicas: i32| json!({"resources": {"sigmaGuard": {"memory": memory}}, "replicas": {"sigmaGuard": replicas}});
        assert!(edited(&spec("1024Mi", 3), &plan).is_empty());
        assert_eq!(edited(&spec("1Gi", 4), &plan), ["replicas.sigmaGuard"]);
        assert_eq!(edited(&json!({}), &plan).len(), 2);
    }

    /// As the server merges (RFC 7386).
    fn merged(target: &Value, patch: &Value) -> Value {
        let Some(patch) = patch.as_object() else {
            return patch.clone();
        };
        let mut result = target.as_object().cloned().unwrap_or_default();
        for (name, value) in patch {
            if value.is_null() {
                result.remove(name);
            } else {
                let now = result.get(name).cloned().unwrap_or(Value::Null);
                result.insert(name.clone(), merged(&now, value));
            }
        }
        Value::Object(result)
    }

    fn any_spec() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i8>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from)
        ];
        let inner = leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        });
        proptest::collection::btree_map("[abc]", inner, 0..4)
            .prop_map(|members| Value::Object(members.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn a_difference_leads_from_one_to_the_other(one in any_spec(), other in any_spec()) {
            let changed = difference(&one, &other).map_or_else(|| one.clone(), |patch| merged(&one, &patch));
            prop_assert_eq!(changed, other);
        }
    }
}
