use rstest::rstest;
use serde_json::{Value, json};

use crate::crd_diff::{
    object::{Checker, Violation},
    parse_schema,
};

/// A schema of one field, which has one rule.
fn ruled(mut field: Value, rule: Value) -> Value {
    field["x-kubernetes-validations"] = json!([rule]);
    json!({"type": "object", "properties": {"a": field}})
}

fn check(schema: &Value, object: &Value) -> (Vec<Violation>, Vec<String>) {
    let mut checker = Checker::default();
    let violations = checker.check(&parse_schema(schema), object);
    let open = checker.undecided().values().map(|why| why.reason.clone());
    (violations, open.collect())
}

fn one(schema: &Value, object: &Value) -> Violation {
    let (mut violations, open) = check(schema, object);
    assert_eq!((violations.len(), open.len()), (1, 0), "{violations:?} {open:?}");
    violations.remove(0)
}

#[test]
fn a_rule_is_met_or_broken() {
    let schema = ruled(json!({"type": "integer"}), json!({"rule": "self % 2 == 0"}));
    assert_eq!(check(&schema, &json!({"a": 4})), (vec![], vec![]));
    assert_eq!(check(&schema, &json!({})), (vec![], vec![]));
    let broken = one(&schema, &json!({"a": 3}));
    assert_eq!(
        broken,
        Violation {
            path: ".a".into(),
            place: ".a".into(),
            message: "breaks the rule self % 2 == 0".into(),
            ratchets: true,
            spared: false
        }
    );
}

#[rstest]
#[case::message(json!({"rule": "self < 3", "message": " has to be small "}), "breaks a rule: has to be small")]
#[case::made(
    json!({"rule": "self < 3", "message": "x", "messageExpression": "'not ' + string(self)"}),
    "breaks a rule: not 5"
)]
#[case::made_in_vain(
    json!({"rule": "self < 3", "message": "x", "messageExpression": "string(self / 0)"}),
    "breaks a rule: x"
)]
#[case::made_empty(json!({"rule": "self < 3", "messageExpression": "''"}), "breaks the rule self < 3")]
#[case::error(json!({"rule": "1 / (self - 5) > 3", "message": "x"}), "breaks a rule: x (division by zero)")]
fn in_the_words_of_its_author(#[case] rule: Value, #[case] message: &str) {
    let schema = ruled(json!({"type": "integer"}), rule);
    assert_eq!(one(&schema, &json!({"a": 5})).message, message);
}

#[rstest]
#[case::function("self.reverse() == 'a'", "reverse() is not known here")]
#[case::library(
    "format.dns1123Label().validate(self).hasValue()",
    "format.dns1123Label() is not known here"
)]
#[case::syntax("self ==", "ends too early")]
#[case::kinds("self > 5", "different kinds")]
#[case::name("other == self", "the name other is not known")]
#[case::field("self.b == 1", "without fields")]
#[case::pattern("self.matches('(')", "is not understood")]
#[case::no_verdict("self + 'x'", "neither true nor false")]
#[case::two_steps("self.reverse() == 'a' || self == 'y'", "reverse()")]
fn what_is_not_known_is_undecided(#[case] rule: &str, #[case] reason: &str) {
    let schema = ruled(json!({"type": "string"}), json!({"rule": rule}));
    let (violations, open) = check(&schema, &json!({"a": "x"}));
    assert_eq!(violations, []);
    assert!(open.len() == 1 && open[0].contains(reason), "{open:?}");
}

#[rstest]
#[case("self.reverse() == 'a' || self == 'x'", 0)]
#[case("self.reverse() == 'a' && self == 'y'", 1)]
fn what_decides_does_so_beside_what_is_not_known(#[case] rule: &str, #[case] broken: usize) {
    let schema = ruled(json!({"type": "string"}), json!({"rule": rule}));
    let (violations, open) = check(&schema, &json!({"a": "x"}));
    assert_eq!((violations.len(), open.len()), (broken, 0));
}

#[test]
fn a_field_that_the_schema_does_not_have_is_not_missing_but_undecided() {
    let field = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "b": {"type": "integer"}, "c": {"x-kubernetes-preserve-unknown-fields": true}}});
    for rule in ["self.zzz == 1", "has(self.zzz)", "has(self.c)"] {
        let schema = ruled(field.clone(), json!({"rule": rule}));
        let (violations, open) = check(&schema, &json!({"a": {"zzz": 2, "c": 1}}));
        assert_eq!((violations.len(), open.len()), (0, 1), "{rule}");
    }
    let schema = ruled(field, json!({"rule": "self.b == 1"}));
    assert!(one(&schema, &json!({"a": {}})).message.contains("no such key: b"));
}

#[test]
fn a_rule_where_the_schema_has_no_type_is_undecided() {
    let schema = ruled(
        json!({"x-kubernetes-preserve-unknown-fields": true}),
        json!({"rule": "self == 1"}),
    );
    assert_eq!(check(&schema, &json!({"a": 2})).1.len(), 1);
}

#[test]
fn the_root_has_a_name_and_a_kind_and_is_not_ratcheted() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [
        {"rule": "self.kind == 'Thing' && self.metadata.name.size() < 5 && !has(self.metadata.generateName)"}]});
    let object =
        |name: &str| json!({"apiVersion": "x/v1", "kind": "Thing", "metadata": {"name": name, "labels": {}}});
    assert_eq!(check(&schema, &object("abc")), (vec![], vec![]));
    let broken = one(&schema, &object("abcdef"));
    assert_eq!(
        (broken.path.as_str(), broken.place.as_str(), broken.ratchets),
        (".", ".", false)
    );
    let schema =
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "has(self.metadata.labels)"}]});
    assert_eq!(check(&schema, &object("abc")).1.len(), 1);
}

#[rstest]
#[case::transition(json!({"rule": "self == oldSelf + 1"}), 0, false)]
#[case::optional(json!({"rule": "oldSelf.hasValue() || self < 3", "optionalOldSelf": true}), 0, false)]
#[case::optional_and_broken(json!({"rule": "oldSelf.hasValue() && self < 3", "optionalOldSelf": true}), 1, false)]
fn rules_of_changes(#[case] rule: Value, #[case] broken: usize, #[case] ratchets: bool) {
    let schema = ruled(json!({"type": "integer"}), rule);
    let (violations, open) = check(&schema, &json!({"a": 5}));
    assert_eq!(
        (violations.len(), open.len()),
        (broken, 0),
        "{violations:?} {open:?}"
    );
    assert!(violations.iter().all(|violation| violation.ratchets == ratchets));
}

#[test]
fn at_every_entry_with_its_place() {
    let schema = json!({"type": "object", "properties": {"l": {"type": "array", "items": {
        "type": "object", "properties": {"n": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.n > 1"}]}}}});
    let broken = one(&schema, &json!({"l": [{"n": 2}, {"n": 1}]}));
    assert_eq!((broken.path.as_str(), broken.place.as_str()), (".l[1]", ".l[*]"));
}

#[test]
fn a_missing_field_is_told_once() {
    let field = json!({"type": "object", "required": ["b"], "properties": {"b": {"type": "integer"}}});
    let schema = ruled(field, json!({"rule": "self.b > 1"}));
    assert_eq!(one(&schema, &json!({"a": {}})).message, "is required");
}

/// Each would run for minutes, or eat all memory.
#[rstest]
#[case("self.all(a, self.all(b, self.all(c, self.all(d, a + b + c + d > 0))))")]
#[case("self.exists(a, self.exists(b, self.exists(c, self.exists(d, self.nope(e)))))")]
#[case("self.map(a, self.map(b, self.map(c, self))).size() == 0")]
#[case(
    "self.map(a, 'xxxxxxxxxxxxxxxx').join().replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').replace('x', self.map(a, 'yyyyyyyy').join()).size() == 0"
)]
#[case("self.map(a, self.map(b, string(b)).join()).all(p, self.all(q, p.matches(p + string(q))))")]
fn hostile_rules_end_undecided(#[case] rule: &str) {
    let schema = parse_schema(&ruled(
        json!({"type": "array", "items": {"type": "integer"}}),
        json!({"rule": rule}),
    ));
    let numbers: Vec<i64> = (1..2000).collect();
    let mut checker = Checker::default();
    for _ in 0..100 {
        assert_eq!(checker.check(&schema, &json!({"a": numbers})), []);
    }
    let why = &checker.undecided()[".a"];
    assert_eq!((why.times, why.reason.as_str()), (100, super::eval::TOO_COSTLY));
}

#[test]
fn as_deep_as_may_be_fits_on_a_stack() {
    let rule = format!("{}self{} == 1", "[".repeat(60), "][0]".repeat(30));
    let deep = format!("{}true{}", "(true ? ".repeat(30), " : false)".repeat(30));
    for rule in [rule, deep] {
        let schema = ruled(json!({"type": "integer"}), json!({"rule": rule}));
        check(&schema, &json!({"a": 1}));
    }
}
