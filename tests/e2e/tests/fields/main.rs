//! Every field of every kind reaches a child, and removing it goes back. A table must name every field of the schema: a
//! new field without a row fails here. A new kind adds a file with its table, and a line to `tables`.

mod agent;
mod mcpserver;
mod model;
mod modelapi;
mod penin;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, Running, eventually_for, optional, snapshot::child_kinds};
use gantry_kit::{Options, testing::Faults};
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::ApiResource,
};
use serde_json::{Map, Value, json};

/// A hundred objects change at once, and a volume goes only after the pod that uses it.
const PATIENCE: Duration = Duration::from_secs(180);

fn tables() -> Vec<Table> {
    vec![
        agent::table(),
        mcpserver::table(),
        model::table(),
        modelapi::table(),
        penin::table(),
    ]
}

/// All fields of one kind.
pub struct Table {
    pub kind: &'static str,
    pub resource: ApiResource,
    pub rows: Vec<Row>,
    /// Objects that the rows refer to; made first.
    pub before: Vec<Value>,
    /// Name of a kind of child of a root.
    pub child_name: fn(child: &str, root: &str) -> String,
    /// Fields that the test cluster's old server cannot show; each with its reason beside it.
    pub exempt: &'static [&'static str],
    /// The beginnings of paths that are exempt as a whole.
    pub exempt_below: &'static [&'static str],
    /// Fields whose removal that server cannot show.
    pub stays: &'static [&'static str],
    /// Fields that are seen on a child that is not there at the start.
    pub makes: &'static [&'static str],
    /// What rows share an object by: fields of several parts of a root that have nothing to do with each other.
    pub shared: fn(field: &str) -> Option<String>,
}

impl Table {
    /// Name of the root that shows a row.
    fn root(&self, index: usize) -> String {
        (self.shared)(self.rows[index].field).unwrap_or_else(|| format!("row-{index}"))
    }

    /// Every root with its spec before and after.
    fn roots(&self) -> BTreeMap<String, (Value, Value)> {
        let mut roots: BTreeMap<String, (Value, Value)> = BTreeMap::new();
        for (index, row) in self.rows.iter().enumerate() {
            let begin = row.quiet_start();
            let (start, set) = roots
                .entry(self.root(index))
                .or_insert((begin.clone(), begin.clone()));
            assert_eq!(*start, begin, "{} shares an object with another start", row.field);
            merge(set, &row.set);
        }
        roots
    }
}

/// One field: where it starts, what it is set to, and where that must be seen.
pub struct Row {
    pub field: &'static str,
    pub start: Value,
    pub set: Value,
    /// Kind, and behind a `/` which one, where a root has several.
    pub child: &'static str,
    /// Segments by `/`; `[key=value]` picks a list item.
    pub pointer: &'static str,
    /// The expected value; a text that starts with `~` must be contained. Null: the child goes.
    pub expected: Value,
}

impl Row {
    /// The start without pods: what is looked at is what makes them, and the rollouts of some hundred objects would be most of
    /// the work. Where their number counts there are pods; PENIN's table has a number for each service.
    fn quiet_start(&self) -> Value {
        let counts = ["autoscaling", "replicas"].iter().any(|field| {
            let says = |spec: &Value| spec.get(field).is_some();
            says(&self.start) || says(&self.set)
        });
        let mut start = self.start.clone();
        if !counts {
            start["replicas"] = json!(0);
        }
        start
    }
}

pub fn row(
    field: &'static str,
    start: Value,
    set: Value,
    child: &'static str,
    pointer: &'static str,
    expected: Value,
) -> Row {
    Row {
        field,
        start,
        set,
        child,
        pointer,
        expected,
    }
}

#[test]
fn every_field_has_a_row() {
    for table in tables() {
        let crd = gantry_crds::crd(table.kind).expect("known kind");
        let schema =
            json!(crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone();
        let mut fields = BTreeSet::new();
        leaves(&schema, "", &mut fields);
        let covered: BTreeSet<String> = table.rows.iter().map(|row| row.field.to_owned()).collect();
        let missing: Vec<&String> = fields
            .iter()
            .filter(|field| !covered.contains(*field) && !table.exempt.contains(&field.as_str()))
            .filter(|field| !table.exempt_below.iter().any(|start| field.starts_with(start)))
            .collect();
        assert!(
            missing.is_empty(),
            "{}: fields without a row: {missing:?}",
            table.kind
        );
        let unknown: Vec<&String> = covered.difference(&fields).collect();
        assert!(
            unknown.is_empty(),
            "{}: rows without a field: {unknown:?}",
            table.kind
        );
    }
}

fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(properties) => {
            for (name, inner) in properties {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(inner, &path, found);
            }
        }
        None => {
            found.insert(path.to_owned());
        }
    }
}

/// One test for each kind: a table takes minutes.
mod every_change_reaches_a_child_and_every_removal_goes_back {
    use super::{agent, check, mcpserver, model, modelapi, penin};

    #[tokio::test(flavor = "multi_thread")]
    async fn of_agent() -> anyhow::Result<()> {
        check(agent::table()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_mcpserver() -> anyhow::Result<()> {
        check(mcpserver::table()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_model() -> anyhow::Result<()> {
        check(model::table()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_modelapi() -> anyhow::Result<()> {
        check(modelapi::table()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_peninomegacluster() -> anyhow::Result<()> {
        check(penin::table()).await
    }
}

async fn check(table: Table) -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    optional::install(&cluster).await?;
    install_growing_class(&cluster).await?;
    let settings = optional::settings();
    let _operator = Running::start_with(&cluster, &Faults::default(), Options::default(), settings).await?;
    run(&cluster, &table).await.context(table.kind)?;
    cluster.done().await
}

async fn run(cluster: &Cluster, table: &Table) -> anyhow::Result<()> {
    for object in &table.before {
        cluster.create(object).await?;
    }
    let rows = &table.rows;
    let roots = table.roots();
    let object = |name: &str, spec: &Value| {
        json!({
            "apiVersion": table.resource.api_version, "kind": table.kind, "metadata": {"name": name}, "spec": spec,
        })
    };
    let mut before = Vec::new();
    for (name, (start, _)) in &roots {
        cluster.apply(&table.resource, &object(name, start)).await?;
    }
    for (index, row) in rows.iter().enumerate() {
        // The Deployment comes last, but the autoscaler and the route after it: wait for all that there will be.
        let seen = eventually_for(PATIENCE, async || {
            let seen = look(cluster, table, index).await?;
            // What is to go must have been there.
            let needs_value = row.expected.is_null();
            if table.makes.contains(&row.field) {
                return Ok(Value::Null);
            }
            ensure!(seen.exists, "{} of {} is not there yet", row.child, row.field);
            ensure!(!needs_value || !seen.value.is_null(), "not complete yet");
            Ok(seen.value)
        })
        .await
        .with_context(|| format!("start of {}", row.field))?;
        assert!(
            !matches(&seen, &row.expected),
            "{} starts with what it is set to",
            row.field
        );
        before.push(seen);
    }
    for (name, (_, set)) in &roots {
        cluster.apply(&table.resource, &object(name, set)).await?;
    }
    for (index, row) in rows.iter().enumerate() {
        expect(cluster, table, index, &row.expected)
            .await
            .with_context(|| format!("change of {}", row.field))?;
    }
    for (name, (start, _)) in &roots {
        cluster.apply(&table.resource, &object(name, start)).await?;
    }
    for (index, row) in rows.iter().enumerate() {
        if table.stays.contains(&row.field) {
            continue;
        }
        expect(cluster, table, index, &before[index])
            .await
            .with_context(|| format!("removal of {}", row.field))?;
    }
    for name in roots.keys() {
        cluster.delete(&table.resource, name).await?;
    }
    Ok(())
}

struct Seen {
    exists: bool,
    value: Value,
}

async fn expect(cluster: &Cluster, table: &Table, index: usize, expected: &Value) -> anyhow::Result<()> {
    eventually_for(PATIENCE, async || {
        let seen = look(cluster, table, index).await?.value;
        ensure!(
            matches(&seen, expected),
            "{} is {seen}, not {expected}",
            table.rows[index].pointer
        );
        Ok(())
    })
    .await
}

fn matches(seen: &Value, expected: &Value) -> bool {
    match expected.as_str().and_then(|text| text.strip_prefix('~')) {
        Some(part) => seen.as_str().is_some_and(|seen| seen.contains(part)),
        None => seen == expected,
    }
}

async fn look(cluster: &Cluster, table: &Table, index: usize) -> anyhow::Result<Seen> {
    let row = &table.rows[index];
    let kind = child_kinds()
        .into_iter()
        .find(|kind| row.child.split('/').next() == Some(&kind.kind))
        .context("unknown child")?;
    let name = (table.child_name)(row.child, &table.root(index));
    let found = cluster.api(&kind).get_opt(&name).await?;
    let exists = found.is_some();
    let value = found
        .map(|object| pick(&json!(object), row.pointer))
        .unwrap_or_default();
    Ok(Seen { exists, value })
}

fn pick(value: &Value, pointer: &str) -> Value {
    let mut value = Some(value);
    let mut rest = pointer;
    while !rest.is_empty() {
        let end = if rest.starts_with('[') {
            rest.find(']').map(|end| end + 1)
        } else {
            rest.find('/')
        };
        let (segment, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after.trim_start_matches('/');
        value = value.and_then(|value| step(value, segment));
    }
    value.cloned().unwrap_or_default()
}

fn step<'a>(value: &'a Value, segment: &str) -> Option<&'a Value> {
    if let Some(choice) = segment
        .strip_prefix('[')
        .and_then(|segment| segment.strip_suffix(']'))
    {
        let (key, wanted) = choice.split_once('=')?;
        return value.as_array()?.iter().find(|item| item[key] == wanted);
    }
    match segment.parse::<usize>() {
        Ok(index) => value.get(index),
        // As in JSON pointers: a slash inside a name.
        Err(_) => value.get(segment.replace("~1", "/")),
    }
}

pub fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(
                    base.entry(key.clone()).or_insert(Value::Object(Map::new())),
                    value,
                );
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

/// A StorageClass whose volumes may grow; that they do is not needed here.
async fn install_growing_class(cluster: &Cluster) -> anyhow::Result<()> {
    use k8s_openapi::api::storage::v1::StorageClass;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "growing"},
        "provisioner": "kubernetes.io/host-path", "allowVolumeExpansion": true,
    });
    let api: Api<StorageClass> = Api::all(cluster.client.clone());
    api.patch(
        "growing",
        &PatchParams::apply("e2e").force(),
        &Patch::Apply(&class),
    )
    .await?;
    Ok(())
}
