//! The CRDs on real servers: the old one, and a current one that knows validation rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use anyhow::{Context as _, ensure};
use gantry_crds::KindInfo;
use gantry_e2e::{Cluster, cluster::config, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Map, Value, json};

struct Sample {
    path: PathBuf,
    info: &'static KindInfo,
    object: Value,
    expect: Option<String>,
}

/// `fixtures/<set>/<kind>/*.yaml` of the crds crate.
fn samples(set: &str) -> anyhow::Result<Vec<Sample>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../crates/crds/fixtures")
        .join(set);
    let mut samples = Vec::new();
    for info in gantry_crds::KINDS {
        let folder = root.join(info.kind.to_lowercase());
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            let expect = text
                .lines()
                .find_map(|line| line.strip_prefix("# expect: "))
                .map(ToOwned::to_owned);
            samples.push(Sample {
                object: serde_saphyr::from_str(&text)?,
                path,
                info,
                expect,
            });
        }
    }
    ensure!(samples.len() > 20, "only {} fixtures in {set}", samples.len());
    Ok(samples)
}

fn api(client: &Client, namespace: &str, info: &KindInfo) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: info.group.to_owned(),
        version: info.version.to_owned(),
        api_version: info.api_version(),
        kind: info.kind.to_owned(),
        plural: info.plural.to_owned(),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

async fn create(
    client: &Client,
    namespace: &str,
    sample: &Sample,
    index: usize,
) -> Result<DynamicObject, kube::Error> {
    let mut object = sample.object.clone();
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["name"] = format!("s{index}").into();
    let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    let api = api(client, namespace, sample.info);
    api.create(&PostParams::default(), &object).await
}

async fn remove(client: &Client, namespace: &str, sample: &Sample, index: usize) -> anyhow::Result<()> {
    let api = api(client, namespace, sample.info);
    api.delete(&format!("s{index}"), &DeleteParams::default()).await?;
    Ok(())
}

/// The schema of a kind, as we give it to current servers.
fn schema(info: &KindInfo) -> anyhow::Result<Value> {
    let crd = gantry_crds::crd(info.kind).context(info.kind)?;
    let manifest = gantry_crds::schema::manifest(&crd);
    Ok(manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone())
}

/// Sets what is absent and has a default, as a server is to do it, and notes where.
fn set_defaults(schema: &Value, value: &mut Value, path: &str, set: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let known = schema["properties"].as_object();
            for (name, child) in known.into_iter().flatten() {
                let path = format!("{path}.{name}");
                if let (None, Some(default)) = (fields.get(name), child.get("default")) {
                    fields.insert(name.clone(), default.clone());
                    set.insert(path.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    set_defaults(child, field, &path, set);
                }
            }
            if let Some(child) = schema.get("additionalProperties") {
                for field in fields.values_mut() {
                    set_defaults(child, field, &format!("{path}{{}}"), set);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                set_defaults(&schema["items"], item, &format!("{path}[]"), set);
            }
        }
        _ => {}
    }
}

/// Every default of a schema. Not of what stands in a default itself.
fn defaults(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if child.get("default").is_some() {
            found.insert(path.clone());
        }
        defaults(child, &path, found);
    }
    for (key, sign) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(child) = schema.get(key) {
            defaults(child, &format!("{path}{sign}"), found);
        }
    }
}

/// Without differences that are none: 5.0 is 5, and a null, which an old server makes of an empty text, is nothing.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .filter(|(_, field)| !field.is_null() && *field != "");
            let fields: Map<String, Value> =
                fields.map(|(name, field)| (name.clone(), plain(field))).collect();
            fields.into()
        }
        other => other.clone(),
    }
}

/// The defaults that a server is seen to set. That they are what the code takes for absent fields, a test of the crds crate
/// says.
#[derive(Default)]
struct Defaulted {
    set: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Defaulted {
    /// Compares what the server made of a sample with what it is to make of it.
    fn check(&mut self, sample: &Sample, answer: &DynamicObject) -> anyhow::Result<()> {
        let mut expected = sample.object.clone();
        let set = self.set.entry(sample.info.kind).or_default();
        set_defaults(&schema(sample.info)?, &mut expected, "", set);
        let (found, expected) = (plain(&answer.data["spec"]), plain(&expected["spec"]));
        ensure!(
            found == expected,
            "{}: the server made {found} of it, not {expected}",
            sample.path.display()
        );
        Ok(())
    }

    /// That every default of every kind was seen.
    fn complete(&self) -> anyhow::Result<()> {
        for info in gantry_crds::KINDS {
            let mut all = BTreeSet::new();
            defaults(&schema(info)?["properties"]["spec"], ".spec", &mut all);
            let seen = self.set.get(info.kind).cloned().unwrap_or_default();
            let unseen: Vec<_> = all.difference(&seen).collect();
            ensure!(
                unseen.is_empty(),
                "{}: no sample leaves these to their defaults: {unseen:?}",
                info.kind
            );
        }
        Ok(())
    }
}

/// Whether one of the validation rules says this.
fn is_rule(schema: &Value, words: &str) -> bool {
    let rules = schema["x-kubernetes-validations"].as_array();
    let mut rules = rules.into_iter().flatten();
    let inside = match schema {
        Value::Object(fields) => fields.values().any(|field| is_rule(field, words)),
        Value::Array(items) => items.iter().any(|item| is_rule(item, words)),
        _ => false,
    };
    inside
        || rules.any(|rule| {
            rule["message"]
                .as_str()
                .is_some_and(|message| message.contains(words))
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_takes_the_stripped_crds_and_checks_what_it_can() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let mut defaulted = Defaulted::default();
    for (index, sample) in samples("good")?.iter().enumerate() {
        let made = create(&cluster.client, &cluster.namespace, sample, index)
            .await
            .with_context(|| sample.path.display().to_string())?;
        defaulted.check(sample, &made)?;
    }
    defaulted.complete()?;
    for (index, sample) in samples("bad")?.iter().enumerate() {
        let path = sample.path.display();
        let expected = sample
            .expect
            .as_deref()
            .context("a bad fixture says what to expect")?;
        match create(&cluster.client, &cluster.namespace, sample, 1000 + index).await {
            // A rule that this server does not know; the operator checks it.
            Ok(_) => ensure!(
                is_rule(&schema(sample.info)?, expected),
                "{path} was accepted, and no rule says {expected:?}"
            ),
            Err(kube::Error::Api(status)) => {
                let message = &status.message;
                ensure!(status.code == 422, "{path}: {message}");
                ensure!(message.contains(expected), "{path}: {message}");
                ensure!(
                    message.contains("spec"),
                    "{path}: what is wrong is not named: {message}"
                );
            }
            Err(error) => return Err(error).with_context(|| path.to_string()),
        }
    }
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_current_server_takes_the_crds_and_enforces_every_rule() -> anyhow::Result<()> {
    let Some(config) = config("GANTRY_TEST_CRD").await? else {
        eprintln!(
            "SKIPPED: no current CRD server (GANTRY_TEST_CRD): validation rules were NOT checked by a server"
        );
        return Ok(());
    };
    let client = Client::try_from(config)?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in gantry_crds::all() {
        let name = crd.name_any();
        let body = gantry_crds::schema::manifest(&crd);
        crds.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&body))
            .await
            .context(name)?;
    }
    let mut defaulted = Defaulted::default();
    for (index, sample) in samples("good")?.iter().enumerate() {
        let made = eventually(async || match create(&client, "default", sample, index).await {
            // Left by a test before: made anew.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                remove(&client, "default", sample, index).await?;
                anyhow::bail!("one is there already")
            }
            answer => answer.with_context(|| sample.path.display().to_string()),
        })
        .await?;
        defaulted.check(sample, &made)?;
    }
    defaulted.complete()?;
    for (index, sample) in samples("bad")?.iter().enumerate() {
        let Err(error) = create(&client, "default", sample, 1000 + index).await else {
            anyhow::bail!("{} was accepted", sample.path.display());
        };
        let expected = sample
            .expect
            .as_deref()
            .context("a bad fixture says what to expect")?;
        ensure!(
            error.to_string().contains(expected),
            "{}: {error}",
            sample.path.display()
        );
    }
    Ok(())
}
