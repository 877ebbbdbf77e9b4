//! What Secrets cost that nobody here speaks of.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use gantry_e2e::{Cluster, eventually_for, fixtures::mcpserver_resource};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use serde_json::json;

use crate::operator::Operator;

/// They are made by many, which is not what is measured.
const AT_ONCE: usize = 32;
/// As large as a certificate with its key.
const SIZE: usize = 4096;
/// More than this for each of them, and the operator keeps what it should not.
const MOST_BYTES: f64 = 1024.0;
/// What a process takes more or less by chance, which would count for much among few Secrets.
const CHANCE_MIB: f64 = 4.0;

pub async fn measure(count: usize) -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let binary = std::env::var("GANTRY_BIN").context("GANTRY_BIN must name the gantry binary")?;
    println!("{count} Secrets of {SIZE} bytes, and one MCPServer that takes a variable from another");
    let mut operator = Operator::start(&binary, &cluster.namespace)?;
    make(&cluster, "ours", 64).await?;
    let server = json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer", "metadata": {"name": "reader"},
        "spec": {"runtime": "custom", "container": {
            "image": "none",
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "ours", "key": "data"}}}],
        }},
    });
    cluster.apply(&mcpserver_resource(), &server).await?;
    eventually_for(Duration::from_secs(60), async || {
        let told = cluster.api(&mcpserver_resource()).get("reader").await?;
        ensure!(
            told.data["status"]["observedGeneration"].is_i64(),
            "not visited yet"
        );
        Ok(())
    })
    .await?;
    let (before, cpu) = (operator.resident_mib()?, operator.cpu_seconds()?);
    let start = Instant::now();
    stream::iter(0..count)
        .map(|index| {
            let cluster = &cluster;
            async move { make(cluster, &format!("foreign-{index}"), SIZE).await }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let took = start.elapsed();
    operator.wait_until_quiet().await?;
    let row = |what: &str, value: f64, unit: &str| println!("{what:48} {value:9.2} {unit}");
    row("clients: make them all", took.as_secs_f64(), "s");
    row("operator: CPU time meanwhile", operator.cpu_seconds()? - cpu, "s");
    row("operator: resident before", before, "MiB");
    row("operator: resident with them", operator.resident_mib()?, "MiB");
    operator.stop();
    let mut operator = Operator::start(&binary, &cluster.namespace)?;
    eventually_for(Duration::from_secs(120), async || {
        let done = operator.metric("gantry_reconciles_total").await?;
        ensure!(done >= 1, "no visit yet");
        Ok(())
    })
    .await?;
    operator.wait_until_quiet().await?;
    let after = operator.resident_mib()?;
    row("operator: resident after a restart among them", after, "MiB");
    operator.stop();
    cluster.done().await?;
    let each = (after - before - CHANCE_MIB) * 1024.0 * 1024.0 / count as f64;
    ensure!(each < MOST_BYTES, "{each:.0} bytes are kept of each");
    Ok(())
}

async fn make(cluster: &Cluster, name: &str, size: usize) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        string_data: Some([("data".to_owned(), "x".repeat(size))].into()),
        ..Secret::default()
    };
    api.create(&PostParams::default(), &secret).await?;
    Ok(())
}
