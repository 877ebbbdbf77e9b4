//! What a current server says of CEL rules, and what we say of them: the same, or nothing.

use anyhow::{Context as _, ensure};
use gantry_e2e::{cluster::config, eventually};
use gantry_fleet_domain::crd_diff::{Crd, Harm, Prover, ServerVersion};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A rule at one field, with values that the server takes and refuses.
#[derive(Deserialize)]
struct Case {
    name: String,
    schema: Value,
    rule: String,
    takes: Vec<Value>,
    refuses: Vec<Value>,
}

/// Expressions, by what the server makes of them.
#[derive(Deserialize)]
struct Expressions {
    holds: Vec<String>,
    fails: Vec<String>,
}

impl Expressions {
    fn cases(self) -> Vec<Case> {
        let holds = self.holds.into_iter().map(|rule| (rule, true));
        let all = holds.chain(self.fails.into_iter().map(|rule| (rule, false)));
        all.enumerate()
            .map(|(index, (rule, holds))| {
                let (takes, refuses) = if holds {
                    (vec![json!(1)], vec![])
                } else {
                    (vec![], vec![json!(1)])
                };
                Case {
                    name: format!("e{index}"),
                    schema: json!({"type": "integer"}),
                    rule: format!("self == 1 && ({rule})"),
                    takes,
                    refuses,
                }
            })
            .collect()
    }
}

const GROUP: &str = "rules.gantry.test";

async fn server() -> anyhow::Result<Option<Client>> {
    let Some(config) = config("GANTRY_TEST_CRD").await? else {
        eprintln!(
            "SKIPPED: no current CRD server (GANTRY_TEST_CRD): CEL rules were NOT compared with a server"
        );
        return Ok(None);
    };
    Ok(Some(Client::try_from(config)?))
}

fn definition(kind: &str, spec: &Value, rules: &Value) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": spec},
                "x-kubernetes-validations": rules,
            }}}],
        },
    })
}

fn objects_of(client: &Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{GROUP}/v1"),
        kind: kind.to_owned(),
        plural: format!("{}s", kind.to_lowercase()),
    };
    Api::all_with(client.clone(), &resource)
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "spec": spec})
}

async fn apply(client: &Client, definition: &Value) -> anyhow::Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition["metadata"]["name"].as_str().context("a name")?;
    crds.patch(
        name,
        &PatchParams::apply("e2e").force(),
        &Patch::Apply(definition),
    )
    .await
    .with_context(|| name.to_owned())?;
    Ok(())
}

async fn remove(client: &Client, definition: &Value) -> anyhow::Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition["metadata"]["name"].as_str().context("a name")?;
    crds.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Whether the server would take it; an answer for another reason than its schema is none.
fn taken(answer: Result<DynamicObject, kube::Error>) -> anyhow::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 422 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes one definition of all cases, and asks the server and us of every value.
async fn judge(client: &Client, kind: &str, cases: &[Case]) -> anyhow::Result<()> {
    let mut spec = json!({"type": "object", "properties": {}});
    for case in cases {
        let mut field = case.schema.clone();
        field["x-kubernetes-validations"] = json!([{"rule": case.rule}]);
        spec["properties"][&case.name] = field;
    }
    let rules = json!([{"rule": format!("self.metadata.name.size() < 20 && self.kind == '{kind}'")}]);
    let definition = definition(kind, &spec, &rules);
    apply(client, &definition).await?;
    let api = objects_of(client, kind);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let crd = Crd::parse(&definition)?;
    let mut bodies = vec![
        (object(kind, "a-name-that-is-much-too-long", &json!({})), false),
        (object(kind, "short", &json!({})), true),
    ];
    for case in cases {
        let takes = case.takes.iter().map(|value| (value, true));
        for (value, takes) in takes.chain(case.refuses.iter().map(|value| (value, false))) {
            let mut spec = json!({});
            spec[&case.name] = value.clone();
            bodies.push((object(kind, "judged", &spec), takes));
        }
    }
    let asked = bodies.len();
    let (mut open, mut wrong) = (0, Vec::new());
    for (body, expected) in bodies {
        // The definition is not served at once.
        let ask = async || taken(api.create(&dry, &serde_json::from_value(body.clone())?).await);
        let theirs = eventually(ask).await.with_context(|| body.to_string())?;
        let mut prover = Prover::new("here", None, &crd, "v1", None).context("a version")?;
        prover.put(&body);
        let proof = prover.finish();
        if theirs != expected {
            wrong.push(format!("the server has changed its mind: {body}"));
        } else if !proof.notes.is_empty() {
            open += 1;
        } else if (proof.rejected == 0) != theirs {
            wrong.push(format!(
                "taken by the server: {theirs}, ours: {:?}: {body}",
                proof.objects
            ));
        }
    }
    remove(client, &definition).await?;
    eprintln!("{kind}: {asked} objects, {open} undecided, {} wrong", wrong.len());
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(asked > 200, "only {asked} objects");
    ensure!(open * 10 < asked, "{open} of {asked} are undecided");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_judged_as_a_current_server_judges_them() -> anyhow::Result<()> {
    let Some(client) = server().await? else {
        return Ok(());
    };
    let table = include_str!("../../../crates/fleet-domain/tests/fixtures/cel.yaml");
    judge(&client, "Judged", &serde_saphyr::from_str::<Vec<Case>>(table)?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_are_reckoned_as_a_current_server_reckons_them() -> anyhow::Result<()> {
    let Some(client) = server().await? else {
        return Ok(());
    };
    let table = include_str!("../../../crates/fleet-domain/tests/fixtures/cel-expressions.yaml");
    judge(
        &client,
        "Reckoned",
        &serde_saphyr::from_str::<Expressions>(table)?.cases(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_objects_are_ratcheted_as_a_current_server_does_it() -> anyhow::Result<()> {
    let Some(client) = server().await? else {
        return Ok(());
    };
    let info = client.apiserver_version().await?;
    let version: ServerVersion = format!("{}.{}", info.major, info.minor).parse()?;
    let number = json!({"type": "integer"});
    let plain = json!({"type": "object", "properties": {"a": number, "b": number}});
    apply(&client, &definition("Stored", &plain, &json!([]))).await?;
    let api = objects_of(&client, "Stored");
    for (name, a, b) in [("fine", 1, 1), ("inner", 9, 1), ("root", 1, 9)] {
        let body = object("Stored", name, &json!({"a": a, "b": b}));
        eventually(async || {
            let made = api.create(&PostParams::default(), &serde_json::from_value(body.clone())?);
            taken(made.await)
        })
        .await?;
    }

    let mut ruled = plain.clone();
    ruled["properties"]["a"]["x-kubernetes-validations"] = json!([{"rule": "self < 5"}]);
    let new = definition("Stored", &ruled, &json!([{"rule": "self.spec.b < 5"}]));
    apply(&client, &new).await?;
    // The rules are in force when a new object that breaks both is refused.
    let bad = object("Stored", "bad", &json!({"a": 9, "b": 9}));
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(async || {
        let taken = taken(api.create(&dry, &serde_json::from_value(bad.clone())?).await)?;
        ensure!(!taken, "the rules are not in force yet");
        Ok(())
    })
    .await?;

    let crd = Crd::parse(&new)?;
    for (name, expected) in [
        ("fine", None),
        ("inner", Some(Harm::RejectedWhenChanged)),
        ("root", Some(Harm::Rejected)),
    ] {
        let mut prover = Prover::new("here", None, &crd, "v1", Some(version)).context("a version")?;
        prover.put(&serde_json::to_value(api.get(name).await?)?);
        let proof = prover.finish();
        assert_eq!(proof.objects.first().map(|hurt| hurt.harm), expected, "{name}");
        // A write that leaves the values alone, and one that changes the inner one to another bad one.
        let label = json!({"metadata": {"labels": {"touched": "yes"}}});
        let touched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(&label))
            .await;
        assert_eq!(taken(touched)?, expected != Some(Harm::Rejected), "{name}");
        let change = json!({"spec": {"a": 8}});
        let changed = api
            .patch(name, &PatchParams::default(), &Patch::Merge(&change))
            .await;
        assert!(!taken(changed)?, "{name}");
    }
    remove(&client, &new).await
}
