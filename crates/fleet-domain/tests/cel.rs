//! Rules on values, as a current API server answered (`tests/e2e/tests/cel.rs` asks one again).

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use gantry_fleet_domain::crd_diff::{
    object::{Checker, put_to},
    parse_schema,
};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Case {
    name: String,
    schema: Value,
    rule: String,
    takes: Vec<Value>,
    refuses: Vec<Value>,
    #[serde(default)]
    open: bool,
}

#[derive(Deserialize)]
struct Expressions {
    holds: Vec<String>,
    fails: Vec<String>,
}

#[test]
fn expressions_as_a_server_answered() {
    let all: Expressions = serde_saphyr::from_str(include_str!("fixtures/cel-expressions.yaml")).unwrap();
    let (mut open, mut wrong) = (Vec::new(), Vec::new());
    let holds = all.holds.iter().map(|rule| (rule, true));
    for (rule, holds) in holds.chain(all.fails.iter().map(|rule| (rule, false))) {
        let mut checker = Checker::default();
        let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]});
        let violations = checker.check(&parse_schema(&schema), &json!({}));
        if let Some(why) = checker.undecided().values().next() {
            open.push(format!("{rule}: {}", why.reason));
        } else if violations.is_empty() != holds {
            wrong.push(format!("{rule}: {violations:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        all.holds.len() + all.fails.len() > 200 && open.len() < 40,
        "{}",
        open.join("\n")
    );
}

#[test]
fn as_a_server_answered() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("fixtures/cel.yaml")).unwrap();
    assert!(cases.len() > 50, "only {} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let mut field = case.schema.clone();
        field["x-kubernetes-validations"] = json!([{"rule": case.rule}]);
        let schema = parse_schema(&json!({"type": "object", "properties": {"a": field}}));
        let all = case.takes.iter().map(|value| (value, true));
        for (value, takes) in all.chain(case.refuses.iter().map(|value| (value, false))) {
            let mut checker = Checker::default();
            let violations = put_to(&mut checker, &schema, &json!({"a": value})).violations;
            let open: Vec<_> = checker.undecided().values().collect();
            let right = if open.is_empty() {
                violations.is_empty() == takes
            } else {
                case.open
            };
            if !right {
                wrong.push(format!("{} {value}: {violations:?} {open:?}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const WORDS: &[&str] = &[
    "self",
    "self.a",
    "self.l",
    "self.m",
    "x",
    "oldSelf",
    "null",
    "true",
    "1",
    "-1",
    "2.5",
    "7u",
    "'é'",
    "'1h'",
    "b'\\xff'",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "[?",
    ",",
    ":",
    "?",
    "&&",
    "||",
    "!",
    "==",
    "<",
    "in",
    "+",
    "-",
    "*",
    "/",
    "%",
    ".?",
    ".size()",
    ".all(x,",
    ".map(x,",
    ".exists_one(x,",
    ".matches('a')",
    ".split('')",
    ".substring(",
    ".indexOf(",
    ".replace(",
    ".charAt(",
    ".format(",
    ".sum()",
    ".min()",
    ".add(",
    ".optMap(x,",
    "has(",
    "size(",
    "int(",
    "string(",
    "quantity(",
    "timestamp(",
    "duration(",
    "cidr(",
    "url(",
    "type(",
    "'",
    "\\",
    "//",
    "\n",
];

proptest! {
    /// Whatever stands in a rule, there is an answer and no panic.
    #[test]
    fn any_words_have_an_answer(words in prop::collection::vec(prop::sample::select(WORDS), 0..24), text in ".{0,40}") {
        let object = json!({"a": 5, "l": ["é", "b"], "m": {"k": 1.5}});
        for rule in [words.concat(), words.join(" "), text] {
            let schema = json!({"type": "object", "properties": {
                "a": {"type": "integer"},
                "l": {"type": "array", "items": {"type": "string"}},
                "m": {"type": "object", "additionalProperties": {"type": "number"}},
            }, "x-kubernetes-validations": [{"rule": rule, "messageExpression": rule, "optionalOldSelf": true}]});
            Checker::default().check(&parse_schema(&schema), &object);
        }
    }
}
