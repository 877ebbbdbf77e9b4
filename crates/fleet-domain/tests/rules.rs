//! CEL rules that came, went or met other defaults: what is told of them, with an example where something is refused.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{Class, Crd, Finding, Impact, Kind, Options, Report, Verdict, compare};
use rstest::rstest;
use serde_json::{Value, json};

fn report(old: &Value, new: &Value) -> Report {
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
        ..Options::default()
    };
    compare(&[crd(old)], &[crd(new)], &options)
}

/// An object with these fields and rules.
fn with(properties: Value, rules: &[&str]) -> Value {
    let rules: Vec<Value> = rules
        .iter()
        .map(|rule| json!({"rule": rule, "message": rule}))
        .collect();
    json!({"type": "object", "properties": properties, "x-kubernetes-validations": rules})
}

fn texts() -> Value {
    json!({"a": {"type": "string"}, "b": {"type": "string"}})
}

fn list() -> Value {
    json!({"l": {"type": "array", "items": {"type": "object", "required": ["t"], "properties": {"t": {"type": "string", "enum": ["A", "B"]}}}}})
}

/// Rules in other words, or wider ones.
#[rstest]
#[case::de_morgan(texts(), &["!(has(self.a) && has(self.b))"], &["!has(self.a) || !has(self.b)"])]
#[case::either_way(texts(), &["has(self.a) ? has(self.b) : true"], &["!has(self.a) || has(self.b)"])]
#[case::split(texts(), &["has(self.a) && has(self.b)"], &["has(self.a)", "has(self.b)"])]
#[case::joined(texts(), &["has(self.a)", "has(self.b)"], &["has(self.a) && has(self.b)"])]
#[case::swapped(texts(), &["self.a == 'x'"], &["'x' == self.a"])]
#[case::one_more_value(texts(), &["self.a == 'x'"], &["self.a in ['x', 'y']"])]
#[case::one_more_value_each(texts(),
    &["!has(self.a) || self.a in ['x']", "!has(self.b) || self.b in ['x']"],
    &["!has(self.a) || self.a in ['x', 'y']", "!has(self.b) || self.b in ['x', 'y']"])]
#[case::other_name(list(), &["!has(self.l) || self.l.all(x, x.t == 'A')"], &["!has(self.l) || self.l.all(y, y.t == 'A')"])]
#[case::at_most_two(list(),
    &["!has(self.l) || self.l.filter(x, x.t == 'A').size() < 2"],
    &["!has(self.l) || self.l.filter(x, x.t == 'A').size() <= 2"])]
#[case::counted(texts(), &["[has(self.a), has(self.b)].exists_one(x, x)"], &["has(self.a) != has(self.b)"])]
#[case::numbers(json!({"a": {"type": "integer", "minimum": 3}}), &[], &["!has(self.a) || self.a > 2"])]
#[case::lengths(json!({"a": {"type": "string", "minLength": 2}}), &[], &["!has(self.a) || self.a.size() > 1"])]
#[case::pattern(json!({"a": {"type": "string", "pattern": "^[a-z]+$"}}), &[], &["!has(self.a) || self.a.matches('^[a-z]+$')"])]
#[case::wider_pattern(json!({"a": {"type": "string", "pattern": "^[a-z]+$"}}), &[], &["has(self.a) ? self.a.matches('^[a-z0-9]+$') : true"])]
#[case::items(json!({"l": {"type": "array", "maxItems": 30, "items": {"type": "string"}}}), &[], &["!has(self.l) || self.l.size() <= 30"])]
#[case::characters(json!({"a": {"type": "string", "maxLength": 3000, "minLength": 1}}), &[], &["!has(self.a) || (size(self.a) < 3001 && self.a.size() > 0)"])]
#[case::keys_of_a_map(map_list(), &[], &["!has(self.l) || self.l.all(x, self.l.exists_one(y, x.k == y.k))"])]
#[case::keys_of_a_map_counted(map_list(), &[], &["!has(self.l) || self.l.all(x, self.l.filter(y, y.k == x.k).size() == 1)"])]
fn nothing_is_refused(#[case] fields: Value, #[case] old: &[&str], #[case] new: &[&str]) {
    let report = report(&with(fields.clone(), old), &with(fields, new));
    assert_eq!(report.forward, Some(Verdict::Safe), "{:?}", report.findings);
}

#[rstest]
#[case::narrower(texts(), &["!has(self.a) || self.a in ['x', 'y']"], &["!has(self.a) || self.a == 'x'"], r#"{"a":"y"}"#)]
#[case::other_value(texts(), &[], &["!has(self.b) || self.b != 'q'"], r#"{"b":"q"}"#)]
#[case::entry(list(), &[], &["!has(self.l) || self.l.exists(x, x.t == 'B')"], r#"{"l":[]}"#)]
#[case::count(list(), &[], &["!has(self.l) || self.l.filter(x, x.t == 'B').size() <= 1"], r#"{"l":[{"t":"B"},{"t":"B"}]}"#)]
#[case::pattern(json!({"a": {"type": "string", "pattern": "^[a-c]$"}}), &[], &["!has(self.a) || self.a.matches('^[a-b]$')"], r#"{"a":"c"}"#)]
#[case::number(json!({"a": {"type": "integer", "minimum": 3}}), &[], &["!has(self.a) || self.a > 3"], r#"{"a":3}"#)]
#[case::with_what_else_is_asked_for(texts(), &["has(self.b) == has(self.a)"], &["has(self.b) == has(self.a)", "!has(self.a)"], r#"{"a":"other","b":"other"}"#)]
#[case::null(json!({"c": {"type": "string", "nullable": true}}), &[], &["has(self.c)"], "{}")]
fn an_example_is_refused(
    #[case] fields: Value,
    #[case] old: &[&str],
    #[case] new: &[&str],
    #[case] example: &str,
) {
    let report = report(&with(fields.clone(), old), &with(fields, new));
    assert_eq!(report.forward, Some(Verdict::Breaking), "{:?}", report.findings);
    let finding: &Finding = &report.findings[0];
    assert!(
        finding.why.ends_with(&format!("For example {example}.")),
        "{}",
        finding.why
    );
}

/// A list whose entries differ in their key.
fn map_list() -> Value {
    json!({"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
        "type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}},
    }}})
}

/// Those that a limit comes close to.
#[rstest]
#[case::pattern(json!({"a": {"type": "string", "pattern": "^[a-z]+"}}), "!has(self.a) || self.a.matches('^[a-z]+$')", Verdict::Breaking)]
#[case::one_kind(json!({"a": {"x-kubernetes-int-or-string": true, "pattern": "^[a-z]+$"}}), "!has(self.a) || self.a.matches('^[a-z]+$')", Verdict::Breaking)]
#[case::another_field(json!({"a": {"type": "string", "maxLength": 3}, "b": {"type": "string"}}), "!has(self.a) || self.b.size() <= 3", Verdict::Breaking)]
#[case::fewer_items(json!({"l": {"type": "array", "maxItems": 3, "items": {"type": "string"}}}), "!has(self.l) || self.l.size() < 3", Verdict::Breaking)]
#[case::other_way(json!({"l": {"type": "array", "maxItems": 3, "items": {"type": "string"}}}), "!has(self.l) || self.l.size() >= 3", Verdict::Breaking)]
#[case::not_there(json!({"l": {"type": "array", "maxItems": 3, "items": {"type": "string"}}}), "self.l.size() <= 3", Verdict::Breaking)]
#[case::long_list(json!({"l": {"type": "array", "items": {"type": "string"}}}), "!has(self.l) || self.l.size() <= 16", Verdict::Breaking)]
#[case::long_list_of_objects(list(), "!has(self.l) || self.l.size() < 64", Verdict::Breaking)]
#[case::long_set(json!({"l": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}), "!has(self.l) || self.l.size() <= 16", Verdict::Breaking)]
#[case::long_map(json!({"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}}}), "!has(self.l) || self.l.size() <= 16", Verdict::Breaking)]
#[case::long_text(json!({"a": {"type": "string"}}), "!has(self.a) || self.a.size() <= 1000", Verdict::Breaking)]
#[case::text_as_long_as_can_be(json!({"a": {"type": "string", "maxLength": 1001}}), "!has(self.a) || self.a.size() <= 1000", Verdict::Breaking)]
#[case::too_long_to_be_made(json!({"a": {"type": "string"}}), "!has(self.a) || self.a.size() <= 100000", Verdict::Undecidable)]
#[case::what_is_no_key(
    map_list(),
    "!has(self.l) || self.l.all(x, self.l.exists_one(y, x.v == y.v))",
    Verdict::Breaking
)]
#[case::entries_of_a_plain_list(
    list(),
    "!has(self.l) || self.l.all(x, self.l.exists_one(y, x.t == y.t))",
    Verdict::Breaking
)]
fn what_a_limit_does_not_say(#[case] fields: Value, #[case] rule: &str, #[case] verdict: Verdict) {
    let report = report(&with(fields.clone(), &[]), &with(fields, &[rule]));
    assert_eq!(report.forward, Some(verdict), "{:?}", report.findings);
}

/// Two entries of one list are not one and the same.
#[rstest]
#[case::equal(&[], "!has(self.l) || self.l.all(x, self.l.all(y, x.t == y.t))")]
#[case::or_another_field(&[], "!has(self.l) || self.l.all(x, self.l.all(y, x.t != y.t || x == y))")]
#[case::differs(&[], "!has(self.l) || !self.l.exists(x, self.l.exists(y, x.t != y.t))")]
#[case::of_one_name(&[], "!has(self.l) || self.l.all(x, self.l.all(x, x.t == x.t) && self.l.exists_one(y, y.t == x.t))")]
#[case::picked(&[], "!has(self.l) || self.l.filter(x, self.l.filter(y, y.t == x.t).size() > 1).size() == 0")]
fn entries_of_one_list_differ(#[case] old: &[&str], #[case] new: &str) {
    let report = report(&with(list(), old), &with(list(), &[new]));
    assert_ne!(report.forward, Some(Verdict::Safe), "{:?}", report.findings);
}

#[test]
fn an_entry_is_equal_to_itself() {
    let side = |rules: &[&str]| with(list(), rules);
    let rule = "!has(self.l) || self.l.all(x, x.t == x.t)";
    assert_eq!(report(&side(&[]), &side(&[rule])).forward, Some(Verdict::Safe));
}

/// A rule about changes is about clients, whatever it replaces.
#[test]
fn another_rule_about_changes() {
    let report = report(
        &with(texts(), &["self.a == oldSelf.a"]),
        &with(texts(), &["self.b == oldSelf.b"]),
    );
    let finding = &report.findings[0];
    assert_eq!(
        (finding.class, finding.impact),
        (Class::Clients, Impact::Undecidable)
    );
    assert_eq!(finding.before, "self.a == oldSelf.a");
}

/// What a rule is waived by is its own text, not what else went beside it.
#[test]
fn the_fingerprint_of_a_rule() {
    let print = |old: &[&str]| {
        let old = json!({"type": "object", "properties": texts(), "x-kubernetes-validations": old.iter().map(|rule| json!({"rule": rule})).collect::<Vec<_>>()});
        let report = report(&old, &with(texts(), &["has(self.a)"]));
        let finding = report
            .findings
            .iter()
            .find(|finding| finding.after == "has(self.a)");
        finding.unwrap().fingerprint.clone()
    };
    let one = print(&["has(self.b)"]);
    assert_eq!(one, print(&[]));
    assert_eq!(one, print(&["has(self.b)", "!has(self.a) || has(self.b)"]));
}

/// Comments are no part of a rule, whatever is in them.
#[rstest]
#[case::apostrophe(&[], "// don't change\nself == oldSelf", &[Kind::TransitionRuleAdded])]
#[case::in_a_comment(&[], "self != 'x' // oldSelf", &[Kind::RuleAdded])]
#[case::behind_a_raw_text(&[], "self.matches(r'^\\') || self == oldSelf", &[Kind::TransitionRuleAdded])]
#[case::in_a_text(&[], "self != 'oldSelf'", &[Kind::RuleAdded])]
#[case::no_longer_a_comment(&["self != 'x' // && self != 'y'"], "self != 'x' //\n && self != 'y'", &[Kind::RuleChanged])]
#[case::another_comment(&["self != 'x' // one"], "self != 'x'\n// two", &[])]
#[case::slashes_in_a_text(&["self != 'http://x'"], "self != 'http://y'", &[Kind::RuleChanged])]
fn comments(#[case] old: &[&str], #[case] new: &str, #[case] kinds: &[Kind]) {
    let side = |rules: &[&str]| {
        let rules: Vec<Value> = rules.iter().map(|rule| json!({"rule": rule})).collect();
        json!({"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-validations": rules}}})
    };
    let report = report(&side(old), &side(&[new]));
    let found: Vec<Kind> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(found, kinds);
}

#[test]
fn a_null_is_not_there() {
    let side = |rules: &[&str]| {
        let mut schema = with(json!({"c": {"type": "string", "nullable": true}}), rules);
        schema["required"] = json!(["c"]);
        schema
    };
    let report = report(&side(&[]), &side(&["has(self.c)"]));
    assert!(report.findings[0].why.ends_with(r#"For example {"c":null}."#));
}

#[rstest]
#[case("!oldSelf.hasValue() || self == oldSelf.value()")]
#[case("oldSelf.hasValue() || self == 'x'")]
fn stored_objects_may_stay_as_they_are(#[case] rule: &str) {
    let side = |rules: Value| json!({"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-validations": rules}}});
    let report = report(
        &side(json!([])),
        &side(json!([{"rule": rule, "optionalOldSelf": true}])),
    );
    let finding = &report.findings[0];
    assert_eq!(
        (finding.impact, finding.class),
        (Impact::Breaking, Class::Clients)
    );
}

/// What is not understood is not called safe, nor breaking where another limit went.
#[rstest]
#[case::nothing_went(json!({}), Verdict::Breaking)]
#[case::a_rule_went(json!({"x-kubernetes-validations": [{"rule": "self != 'x'"}]}), Verdict::Undecidable)]
#[case::a_pattern_went(json!({"pattern": "^[a-z]+$"}), Verdict::Undecidable)]
fn rules_that_are_not_known(#[case] old: Value, #[case] verdict: Verdict) {
    let side = |mut field: Value| {
        field["type"] = "string".into();
        json!({"type": "object", "properties": {"a": field}})
    };
    let new =
        json!({"x-kubernetes-validations": [{"rule": "!format.dns1123Label().validate(self).hasValue()"}]});
    assert_eq!(report(&side(old), &side(new)).forward, Some(verdict));
}

/// The rule stays as it is, and the default of what it looks at does not.
#[rstest]
#[case::added(json!({}), json!({"default": "x"}), "!(has(self.a) && has(self.b))", Some(Impact::Breaking))]
#[case::added_and_fine(json!({}), json!({"default": "x"}), "!has(self.a) || !has(self.b) || self.b == 'x' || self.a == 'y'", None)]
#[case::changed(json!({"default": "x"}), json!({"default": "y"}), "self.b != 'y'", Some(Impact::Undecidable))]
#[case::of_something_else(json!({}), json!({"default": "x"}), "!has(self.a) || self.a != 'x'", None)]
#[case::not_understood(json!({}), json!({"default": "x"}), "self.?b.orValue(self.a).lowerAscii() != 'q'", Some(Impact::Undecidable))]
fn defaults_under_rules(
    #[case] old: Value,
    #[case] new: Value,
    #[case] rule: &str,
    #[case] impact: Option<Impact>,
) {
    let side = |mut field: Value| {
        field["type"] = "string".into();
        with(json!({"a": {"type": "string"}, "b": field}), &[rule])
    };
    let report = report(&side(old), &side(new));
    let found = report
        .findings
        .iter()
        .find(|finding| finding.kind == Kind::DefaultUnderChoice);
    assert_eq!(
        found.map(|finding| finding.impact),
        impact,
        "{:?}",
        report.findings
    );
}

/// A rule that moves to the field it speaks of, or away from it.
#[test]
fn rules_that_move() {
    let field = json!({"a": {"type": "string"}});
    let ruled = json!({"a": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'x'"}]}});
    let above = ["!has(self.a) || self.a != 'x'"];
    let up = report(&with(ruled.clone(), &[]), &with(field.clone(), &above));
    assert_eq!(up.forward, Some(Verdict::Safe));
    let down = report(&with(field, &above), &with(ruled, &[]));
    assert_eq!(down.forward, Some(Verdict::Undecidable));
}

/// Listed values are put to a new combination one by one.
#[rstest]
#[case::split(json!({"anyOf": [{"enum": ["a"]}, {"enum": ["b"]}]}), Verdict::Safe)]
#[case::patterns(json!({"anyOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]}), Verdict::Safe)]
#[case::one_is_missing(json!({"anyOf": [{"pattern": "^a$"}, {"pattern": "^c$"}]}), Verdict::Breaking)]
#[case::both_at_once(json!({"oneOf": [{"pattern": "^[ab]$"}, {"pattern": "^b$"}]}), Verdict::Breaking)]
fn listed_values_under_a_combination(#[case] mut new: Value, #[case] verdict: Verdict) {
    new["type"] = "string".into();
    let side = |field: Value| json!({"type": "object", "properties": {"a": field}});
    let old = json!({"type": "string", "enum": ["a", "b"]});
    assert_eq!(report(&side(old), &side(new)).forward, Some(verdict));
}
