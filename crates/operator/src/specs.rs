//! For tests: specs that nobody would write, from the schema of their kind. Whatever they say, a controller refuses them
//! with words or builds objects of the right shape from them; it never panics.

use std::cell::Cell;

use gantry_crds::Kind;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::Service,
    networking::v1::{Ingress, NetworkPolicy},
};
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::workload::verdicts::Blocked;

const CASES: u32 = 400;
/// Fewer than this that are accepted would prove little.
const ACCEPTED: u32 = 40;

/// Takes a spec that is good and replaces a few fields of it by anything. `build` says `None` to what does not decode.
pub fn check(kind: Kind, good: &[&str], build: impl Fn(&Value) -> Option<Result<Vec<Value>, Blocked>>) {
    let good: Vec<Value> = good
        .iter()
        .map(|spec| serde_saphyr::from_str(spec).expect("YAML"))
        .collect();
    let accepted = Cell::new(0);
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&near(kind, good), |spec| match build(&spec) {
        Some(Ok(objects)) => {
            accepted.set(accepted.get() + 1);
            objects.iter().try_for_each(fits)
        }
        Some(Err(blocked)) if blocked.message.is_empty() => Err(TestCaseError::fail("refused without words")),
        Some(Err(_)) | None => Ok(()),
    });
    assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    assert!(
        accepted.get() >= ACCEPTED,
        "only {} were accepted",
        accepted.get()
    );
}

fn fits(object: &Value) -> Result<(), TestCaseError> {
    fn is<K: DeserializeOwned>(object: &Value) -> Result<(), TestCaseError> {
        serde_json::from_value::<K>(object.clone())
            .map(drop)
            .map_err(|error| TestCaseError::fail(format!("{error}: {object}")))
    }
    match object["kind"].as_str().unwrap_or_default() {
        "Deployment" => is::<Deployment>(object),
        "StatefulSet" => is::<StatefulSet>(object),
        "Service" => is::<Service>(object),
        "HorizontalPodAutoscaler" => is::<HorizontalPodAutoscaler>(object),
        "NetworkPolicy" => is::<NetworkPolicy>(object),
        "Ingress" => is::<Ingress>(object),
        _ => Ok(()),
    }
}

fn near(kind: Kind, good: Vec<Value>) -> impl Strategy<Value = Value> {
    let schema = kind.spec_schema().expect("a schema");
    let fields = schema["properties"].as_object().expect("fields");
    let field = fields
        .iter()
        .map(|(name, schema)| (Just(name.clone()), any_value(schema)).boxed());
    let field = prop::strategy::Union::new(field);
    (select(good), prop::collection::vec(field, 0..4)).prop_map(|(mut spec, fields)| {
        for (name, value) in fields {
            spec[name] = value;
        }
        spec
    })
}

/// What a schema allows, and a little that it does not.
fn any_value(schema: &'static Value) -> BoxedStrategy<Value> {
    if let Some(words) = schema["enum"].as_array() {
        return select(words.clone()).boxed();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return prop_oneof![number(schema), text()].boxed();
    }
    match schema["type"].as_str().unwrap_or_default() {
        "object" => object(schema),
        "array" => prop::collection::vec(any_value(&schema["items"]), 0..3)
            .prop_map(Value::Array)
            .boxed(),
        "string" => text(),
        "integer" => number(schema),
        "number" => select(vec![json!(0), json!(0.01), json!(0.5), json!(1), json!(1e9)]).boxed(),
        "boolean" => any::<bool>().prop_map(Value::Bool).boxed(),
        _ => prop_oneof![text(), Just(json!({})), Just(json!([{"name": "x"}]))].boxed(),
    }
}

fn object(schema: &'static Value) -> BoxedStrategy<Value> {
    let Some(fields) = schema["properties"].as_object() else {
        let values = match schema.get("additionalProperties") {
            Some(values) if values.is_object() => any_value(values),
            // A fragment of a pod, or of anything else that is not described.
            _ => select(vec![
                json!("x"),
                json!(5),
                json!({}),
                json!([]),
                json!([{"name": "x", "image": "i"}]),
                json!({"disk": "ssd"}),
            ])
            .boxed(),
        };
        let names = select(vec![
            "a",
            "cpu",
            "nodeSelector",
            "containers",
            "volumes",
            "hostNetwork",
            "runAsUser",
        ]);
        return prop::collection::vec((names, values), 0..3)
            .prop_map(|pairs| {
                let pairs = pairs.into_iter().map(|(name, value)| (name.to_owned(), value));
                Value::Object(pairs.collect())
            })
            .boxed();
    };
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, schema)| {
            let often = if required.contains(&name.as_str()) {
                0.95
            } else {
                0.25
            };
            let value = prop::option::weighted(often, any_value(schema));
            value.prop_map(move |value| value.map(|value| (name.clone(), value)))
        })
        .collect();
    fields
        .prop_map(|fields| Value::Object(fields.into_iter().flatten().collect::<Map<String, Value>>()))
        .boxed()
}

fn number(schema: &Value) -> BoxedStrategy<Value> {
    let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
    let bounds = [bound("minimum"), bound("maximum"), Some(1), Some(3), Some(-1)];
    let numbers: Vec<Value> = bounds.into_iter().flatten().map(Value::from).collect();
    select(numbers).boxed()
}

fn text() -> BoxedStrategy<Value> {
    let texts = [
        "",
        "a",
        "a-b",
        "ns/a",
        "0",
        "500m",
        "10Gi",
        "30s",
        "http://h:1/p",
        "/p",
        "*",
        "python-string",
        "custom",
        "A B",
        "$(X) $$ ä\n\"'",
        "-x",
        "2026-01-01T00:00:00Z",
    ];
    select(texts.map(Value::from).to_vec()).boxed()
}
