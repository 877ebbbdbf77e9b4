//! The same limits in other words: rules and combinations that became limits, and the other way round. Nothing is refused
//! that was not refused before, and what is refused more is still told.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{Crd, Options, Report, ServerVersion, Verdict, compare};
use rstest::rstest;
use serde_json::{Value, json};

fn report_on(old: &Value, new: &Value, server: Option<ServerVersion>) -> Report {
    let crd = |spec: &Value| {
        Crd::parse(&json!({
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": spec},
                }}}],
            },
        }))
        .unwrap()
    };
    let options = Options {
        forward: true,
        server,
        ..Options::default()
    };
    compare(&[crd(old)], &[crd(new)], &options)
}

fn report(old: &Value, new: &Value) -> Report {
    report_on(old, new, None)
}

/// A field of an object, beside one that stays as it is.
fn field(field: Value) -> Value {
    json!({"type": "object", "properties": {"a": field, "b": {"type": "string"}}})
}

fn text(mut more: Value) -> Value {
    more["type"] = "string".into();
    field(more)
}

fn number(mut more: Value) -> Value {
    more["type"] = "integer".into();
    field(more)
}

/// The object, with a rule of its own.
fn ruled(mut object: Value, rule: &str) -> Value {
    object["x-kubernetes-validations"] = json!([{"rule": rule}]);
    object
}

fn required(mut object: Value, names: &[&str]) -> Value {
    object["required"] = json!(names);
    object
}

/// Two fields and no others, and what is said of the object.
fn two(more: Value) -> Value {
    let mut object = text(json!({}));
    for (word, value) in more.as_object().unwrap() {
        object[word] = value.clone();
    }
    object
}

/// Which fields are there, in words that come to the same.
#[rstest]
#[case::count_to_any_of(json!({"minProperties": 1}), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), true)]
#[case::count_to_one_of(json!({"minProperties": 1, "maxProperties": 1}), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), true)]
#[case::one_of_to_count(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"minProperties": 1, "maxProperties": 1}), true)]
#[case::one_rule_to_one_of(own_rule("has(self.a) != has(self.b)"), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), true)]
#[case::longer_rule_to_one_of(own_rule("has(self.a) ? !has(self.b) : has(self.b)"), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), true)]
#[case::any_rule_to_any_of(own_rule("has(self.a) || has(self.b)"), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), true)]
#[case::one_of_to_rule(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), own_rule("has(self.a) != has(self.b)"), true)]
#[case::one_of_to_any_of_and_not(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["a", "b"]}}), true)]
#[case::any_of_and_not_to_one_of(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["a", "b"]}}), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), true)]
#[case::rule_to_not(own_rule("!(has(self.a) && has(self.b))"), json!({"not": {"required": ["a", "b"]}}), true)]
#[case::rule_to_most(own_rule("!has(self.a) || !has(self.b)"), json!({"maxProperties": 1}), true)]
#[case::open_object(json!({"minProperties": 1, "x-kubernetes-preserve-unknown-fields": true}), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "x-kubernetes-preserve-unknown-fields": true}), false)]
#[case::open_object_to_count(json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "x-kubernetes-preserve-unknown-fields": true}), json!({"maxProperties": 1, "x-kubernetes-preserve-unknown-fields": true}), false)]
#[case::any_of_to_one_of(json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
#[case::one_is_too_few(json!({"minProperties": 1}), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
#[case::any_rule_to_one_of(own_rule("has(self.a) || has(self.b)"), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
#[case::rule_about_values(own_rule("has(self.a) != (has(self.b) && self.b == 'x')"), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
#[case::rule_about_changes(own_rule("has(self.a) != has(self.b) || self == oldSelf"), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
#[case::also_values(json!({"minProperties": 1}), json!({"anyOf": [{"required": ["a"]}, {"properties": {"b": {"enum": ["x"]}}, "required": ["b"]}]}), false)]
fn which_fields_are_there(#[case] old: Value, #[case] new: Value, #[case] same: bool) {
    let report = report(&two(old), &two(new));
    assert_eq!(
        report.forward == Some(Verdict::Safe),
        same,
        "{:#?}",
        report.findings
    );
}

/// What is filled in, and a null that a rule does not see, count as well.
#[rstest]
#[case::default_in_both(json!({"default": "x"}), json!({"default": "x"}), json!({"maxProperties": 1}), json!({"not": {"required": ["b"]}}), true)]
#[case::default_now(json!({}), json!({"default": "x"}), json!({"maxProperties": 1}), json!({"not": {"required": ["a", "b"]}}), false)]
#[case::default_before(json!({"default": "x"}), json!({}), json!({"minProperties": 1}), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
#[case::null(json!({"nullable": true}), json!({"nullable": true}), own_rule("has(self.a) != has(self.b)"), json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
#[case::null_that_counts(json!({"nullable": true}), json!({"nullable": true}), json!({"minProperties": 1}), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), true)]
#[case::null_dropped(json!({"nullable": true}), json!({}), json!({"minProperties": 1}), json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}), false)]
fn which_fields_are_there_in_the_end(
    #[case] before: Value,
    #[case] after: Value,
    #[case] old: Value,
    #[case] new: Value,
    #[case] same: bool,
) {
    let side = |field: Value, more: Value| {
        let mut object = two(more);
        object["properties"]["a"] = field;
        object["properties"]["a"]["type"] = "string".into();
        object
    };
    let report = report(&side(before, old), &side(after, new));
    assert_eq!(
        report.forward == Some(Verdict::Safe),
        same,
        "{:#?}",
        report.findings
    );
}

fn own_rule(rule: &str) -> Value {
    json!({"x-kubernetes-validations": [{"rule": rule}]})
}

#[rstest]
#[case::rule_to_enum(text(own_rule("self in ['x', 'y']")), text(json!({"enum": ["x", "y"]})))]
#[case::rule_to_wider_enum(text(own_rule("self == 'x' || 'y' == self")), text(json!({"enum": ["z", "y", "x"]})))]
#[case::rule_above_to_enum(ruled(text(json!({})), "!has(self.a) || self.a in ['x', 'y']"), text(json!({"enum": ["x", "y"]})))]
#[case::condition_to_enum(ruled(text(json!({})), "has(self.a) ? self.a == 'x' : true"), text(json!({"enum": ["x"]})))]
#[case::rule_to_required(ruled(text(json!({})), "has(self.a)"), required(text(json!({})), &["a"]))]
#[case::read_to_required(ruled(text(json!({})), "self.a != 'x'"), required(text(json!({})), &["a"]))]
#[case::either_way_to_required(
    ruled(text(json!({})), "has(self.b) ? has(self.a) && self.b == 'x' : self.a == 'y'"),
    required(text(json!({})), &["a"]))]
#[case::rule_to_length(text(own_rule("self != ''")), text(json!({"minLength": 1})))]
#[case::rule_to_longest(text(own_rule("self.size() < 64")), text(json!({"maxLength": 63})))]
#[case::rule_to_pattern(text(own_rule("self.matches('^[a-z]+$')")), text(json!({"pattern": "^[a-z0-9]+$"})))]
#[case::rule_to_bounds(number(own_rule("self > 0 && !(self >= 10)")), number(json!({"minimum": 1, "maximum": 9})))]
#[case::rule_to_bound(number(own_rule("10 >= self")), number(json!({"maximum": 10})))]
#[case::lists_to_enum(text(json!({"anyOf": [{"enum": ["x"]}, {"enum": ["y", "z"]}]})), text(json!({"enum": ["x", "y", "z"]})))]
#[case::fields_to_count(
    {
        let mut object = text(json!({}));
        object["anyOf"] = json!([{"required": ["a"]}, {"required": ["b"]}]);
        object
    },
    {
        let mut object = text(json!({}));
        object["minProperties"] = json!(1);
        object
    })]
#[case::pattern_to_patterns(text(json!({"pattern": "^(x|y)$"})), text(json!({"anyOf": [{"pattern": "^x$"}, {"pattern": "^y$"}]})))]
#[case::patterns_to_pattern(text(json!({"anyOf": [{"pattern": "^x$"}, {"pattern": "^y$"}]})), text(json!({"pattern": "^(x|y)$"})))]
#[case::kinds_to_bounds(
    field(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]})),
    field(json!({"x-kubernetes-int-or-string": true, "minimum": 1})))]
#[case::branch_to_required(
    {
        let mut object = text(json!({}));
        object["oneOf"] = json!([{"required": ["a"], "properties": {"b": {"enum": ["x"]}}}, {"required": ["a", "b"]}]);
        object
    },
    required(text(json!({})), &["a"]))]
fn nothing_is_refused(#[case] old: Value, #[case] new: Value) {
    let report = report(&old, &new);
    assert_eq!(report.forward, Some(Verdict::Safe), "{:#?}", report.findings);
}

#[rstest]
#[case::one_value_less(text(own_rule("self in ['x', 'y']")), text(json!({"enum": ["x"]})))]
#[case::of_another_field(ruled(text(json!({})), "!has(self.b) || self.b in ['x']"), text(json!({"enum": ["x"]})))]
#[case::only_sometimes(ruled(text(json!({})), "!has(self.b) || (has(self.a) && self.a == 'x')"), text(json!({"enum": ["x"]})))]
#[case::there_only_sometimes(ruled(text(json!({})), "!has(self.b) || has(self.a)"), required(text(json!({})), &["a"]))]
#[case::other_values(text(own_rule("self != 'x'")), text(json!({"enum": ["y"]})))]
#[case::not_among(text(own_rule("!(self in ['x'])")), text(json!({"enum": ["x"]})))]
#[case::may_be_longer(text(own_rule("self.size() <= 64")), text(json!({"maxLength": 63})))]
#[case::more_patterns(text(own_rule("self.matches('[a-z]+')")), text(json!({"pattern": "^[a-z]+$"})))]
#[case::bound(number(own_rule("self >= 0")), number(json!({"minimum": 1})))]
#[case::lists(text(json!({"anyOf": [{"enum": ["x"]}, {"enum": ["y", "z"]}]})), text(json!({"enum": ["x", "y"]})))]
#[case::open_branch(text(json!({"anyOf": [{"enum": ["x"]}, {"pattern": "^y"}]})), text(json!({"enum": ["x"]})))]
#[case::changes_only(text(json!({"x-kubernetes-validations": [{"rule": "self in ['x'] || self == oldSelf"}]})), text(json!({"enum": ["x"]})))]
fn what_is_refused_is_told(#[case] old: Value, #[case] new: Value) {
    let report = report(&old, &new);
    assert_eq!(report.forward, Some(Verdict::Breaking), "{:#?}", report.findings);
}

/// Text that meets both of the new patterns where it met one of the old ones.
#[test]
fn a_pattern_that_is_not_covered() {
    let old = text(json!({"pattern": "^(x|y|z)$"}));
    let new = text(json!({"anyOf": [{"pattern": "^x$"}, {"pattern": "^y$"}]}));
    assert_ne!(report(&old, &new).forward, Some(Verdict::Safe));
}

/// A server that does not look at rules has not refused what they forbid.
#[test]
fn rules_count_where_they_are_looked_at() {
    let (old, new) = (text(own_rule("self in ['x']")), text(json!({"enum": ["x"]})));
    let on = |minor| report_on(&old, &new, Some(ServerVersion { major: 1, minor })).forward;
    assert_eq!((on(24), on(25)), (Some(Verdict::Breaking), Some(Verdict::Safe)));
}
