//! How long the operator needs for many objects, beside a bare client that writes the same ones in the same run.
//!
//! `gantry-bench [COUNT=1000]` takes MCPServers, `gantry-bench penin [COUNT=200]` clusters of five Deployments each,
//! `gantry-bench foreign [COUNT=50000]` Secrets that are none of the operator's business.
//! `GANTRY_TEST_SIM` names a cluster without nodes, `GANTRY_BIN` the operator. Prints a table; keeps nothing. Times depend
//! on the machine and are only told; writes at rest and memory do not, and too much of them is a failure.

mod foreign;
mod operator;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use gantry_e2e::{
    Cluster, eventually_for,
    fixtures::{mcpserver_resource, peninomegacluster_resource},
    snapshot::child_kinds,
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, ObjectMeta},
};
use serde_json::{Value, json};

use crate::operator::Operator;

/// As many requests at once as the operator has workers.
const AT_ONCE: usize = 8;
/// What an operator takes as soon as it has anything to do, however much that is: some 16 MiB.
const FIXED_MIB: f64 = 20.0;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == "foreign").is_some() {
        let count = arguments.next().map_or(Ok(50_000), |text| text.parse())?;
        return foreign::measure(count).await;
    }
    let subject = match arguments.next_if(|word| word == "penin") {
        Some(_) => Subject::clusters(),
        None => Subject::servers(),
    };
    let count: usize = arguments.next().map_or(Ok(subject.usual), |text| text.parse())?;
    let cluster = Cluster::simulated().await?;
    let binary = std::env::var("GANTRY_BIN").context("GANTRY_BIN must name the gantry binary")?;
    let kind = &subject.resource.kind;
    println!("{count} {kind}s, {AT_ONCE} requests at once");

    let mut operator = Operator::start(&binary, &cluster.namespace)?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let empty = operator.resident_mib()?;
    let created = timed("a client creates them", create(&cluster, &subject, count)).await?;
    let start = Instant::now();
    wait_for_children(&cluster, &subject, count).await?;
    let total = created + start.elapsed();
    println!(
        "{:48} {:7.2} s",
        "operator: first create to last child and status",
        total.as_secs_f64()
    );
    println!(
        "{:48} {:7.1}",
        "operator: requests an object until then",
        operator.requests().await? / count as f64
    );
    println!("{:48} {:7.1} MiB", "operator: resident with no object", empty);
    operator.wait_until_quiet().await?;
    for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
        let took = operator.visit_seconds(kind, quantile).await?;
        println!(
            "{:48} {:7.1} ms",
            format!("operator: a visit, {name}"),
            took * 1000.0
        );
    }
    let resident = operator.resident_mib()?;
    println!(
        "{:48} {resident:7.1} MiB",
        format!("operator: resident with {count}")
    );
    let each = (resident - empty - FIXED_MIB).max(0.0) * 1024.0 / count as f64;
    println!(
        "{:48} {each:7.1} KiB",
        "operator: of that for each, beyond what is fixed"
    );
    let before = operator.writes().await?;
    let cpu = operator.cpu_seconds()?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let at_rest = operator.writes().await? - before;
    println!("{:48} {at_rest:7}", "operator: writes in a minute at rest");
    println!(
        "{:48} {:7.2} s",
        "operator: CPU time in that minute",
        operator.cpu_seconds()? - cpu
    );
    let wished = children(&cluster).await?;
    let made = |kind: &str| wished.iter().filter(|(of, ..)| of.kind == kind).count();
    println!(
        "{:48} {:7}",
        format!(
            "children ({} Deployments, {} Services)",
            made("Deployment"),
            made("Service")
        ),
        wished.len()
    );
    ensure!(
        made("Deployment") == count * subject.deployments,
        "not every Deployment is there"
    );
    operator.stop();

    let restarted = Instant::now();
    let operator = Operator::start(&binary, &cluster.namespace)?;
    eventually_for(Duration::from_secs(120), async || {
        let done = operator.metric("gantry_reconciles_total").await?;
        ensure!(done >= count as u64, "{done} visits");
        Ok(())
    })
    .await?;
    println!(
        "{:48} {:7.2} s",
        "operator: restart to all visited",
        restarted.elapsed().as_secs_f64()
    );
    // What comes late counts as well.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let by_restart = operator.writes().await?;
    println!("{:48} {by_restart:7}", "operator: writes by that restart");
    let told = operator.writes_and_errors().await?;
    println!(
        "{:48} {:7.1} MiB",
        "operator: resident after that restart",
        operator.resident_mib()?
    );
    drop(operator);

    let peer = cluster.in_new_namespace().await?;
    let bare = Instant::now();
    create(&peer, &subject, count).await?;
    write_all(&peer, &subject, wished, count).await?;
    let bare = bare.elapsed();
    println!(
        "{:48} {:7.2} s",
        "bare client: the same objects and statuses",
        bare.as_secs_f64()
    );
    println!(
        "{:48} {:7.2}",
        "ratio operator / bare client",
        total.as_secs_f64() / bare.as_secs_f64()
    );
    peer.done().await?;
    cluster.done().await?;
    // In the end, so that the whole table is there to look at.
    ensure!(at_rest == 0, "{at_rest} writes in a minute at rest");
    ensure!(by_restart == 0, "{by_restart} writes by a restart:\n{told}");
    ensure!(
        each < subject.most_kib,
        "{each:.1} KiB of memory for each {kind}, and {} are allowed",
        subject.most_kib
    );
    Ok(())
}

async fn timed<T>(what: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    work.await?;
    println!("{what:48} {:7.2} s", start.elapsed().as_secs_f64());
    Ok(start.elapsed())
}

/// What there are many of.
struct Subject {
    resource: ApiResource,
    spec: Value,
    usual: usize,
    /// That each of them makes.
    deployments: usize,
    /// Memory that each may take with all its children: half more than it does.
    most_kib: f64,
}

impl Subject {
    fn servers() -> Self {
        Self {
            resource: mcpserver_resource(),
            spec: json!({"runtime": "python-string", "params": "def echo(text: str) -> str:\n    return text\n"}),
            usual: 1000,
            deployments: 1,
            most_kib: 40.0,
        }
    }

    fn clusters() -> Self {
        Self {
            resource: peninomegacluster_resource(),
            spec: json!({}),
            usual: 200,
            deployments: 5,
            most_kib: 180.0,
        }
    }

    fn object(&self, index: usize) -> DynamicObject {
        DynamicObject {
            metadata: ObjectMeta {
                name: Some(format!("s{index}")),
                ..ObjectMeta::default()
            },
            ..DynamicObject::new("", &self.resource)
        }
        .data(json!({"spec": self.spec}))
    }
}

async fn create(cluster: &Cluster, subject: &Subject, count: usize) -> anyhow::Result<()> {
    let api = cluster.api(&subject.resource);
    stream::iter(0..count)
        .map(|index| {
            let api = api.clone();
            async move {
                api.create(&PostParams::default(), &subject.object(index))
                    .await
                    .map(|_| ())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// A generation is observed once all that it wants is there.
async fn wait_for_children(cluster: &Cluster, subject: &Subject, count: usize) -> anyhow::Result<()> {
    // An API server on two cores takes some ten objects a second, with all that its own controllers make of them.
    eventually_for(Duration::from_secs(300 + count as u64 / 3), async || {
        let objects = cluster.list(&subject.resource).await?;
        let told = objects
            .iter()
            .map(|object| &object.data["status"])
            .filter(|status| status["observedGeneration"].is_i64() && status["phase"].is_string())
            .count();
        ensure!(told == count, "{told} of {count} have a status");
        Ok(())
    })
    .await
}

/// What the operator made, as it would be sent by somebody who knew it all beforehand.
async fn children(cluster: &Cluster) -> anyhow::Result<Vec<(ApiResource, String, Value)>> {
    let mut found = Vec::new();
    for kind in child_kinds()
        .into_iter()
        .chain([ApiResource::erase::<Secret>(&())])
    {
        for object in cluster.list(&kind).await.unwrap_or_default() {
            let labels = object.metadata.labels.clone().unwrap_or_default();
            if labels.get("app.kubernetes.io/managed-by").map(String::as_str) != Some("gantry") {
                continue;
            }
            let name = object.metadata.name.clone().unwrap_or_default();
            let mut body = object.data.clone();
            if let Some(body) = body.as_object_mut() {
                body.remove("status");
            }
            if let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut) {
                spec.retain(|field, _| !matches!(field.as_str(), "clusterIP" | "clusterIPs" | "volumeName"));
            }
            body["apiVersion"] = json!(kind.api_version);
            body["kind"] = json!(kind.kind);
            body["metadata"] = json!({"name": name, "labels": labels});
            found.push((kind.clone(), name, body));
        }
    }
    Ok(found)
}

async fn write_all(
    cluster: &Cluster,
    subject: &Subject,
    objects: Vec<(ApiResource, String, Value)>,
    count: usize,
) -> anyhow::Result<()> {
    let params = PatchParams::apply("bare-client").force();
    stream::iter(objects)
        .map(|(kind, name, body)| {
            let (api, params): (Api<DynamicObject>, _) = (cluster.api(&kind), params.clone());
            async move { api.patch(&name, &params, &Patch::Apply(&body)).await.map(|_| ()) }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let roots = cluster.api(&subject.resource);
    stream::iter(0..count)
        .map(|index| {
            let (roots, params) = (roots.clone(), params.clone());
            async move {
                let status = json!({
                    "apiVersion": subject.resource.api_version, "kind": subject.resource.kind,
                    "metadata": {"name": format!("s{index}")},
                    "status": {"phase": "Pending", "observedGeneration": 1},
                });
                roots
                    .patch_status(&format!("s{index}"), &params, &Patch::Apply(&status))
                    .await
                    .map(|_| ())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let deployments = cluster.api(&child_kinds()[0]);
    let made = deployments.list(&ListParams::default()).await?.items.len();
    ensure!(
        made == count * subject.deployments,
        "the bare client made {made} Deployments"
    );
    Ok(())
}
