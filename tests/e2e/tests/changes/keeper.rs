//! The copy of the ledger: the process that keeps it, killed at any moment, and a chain that is tampered with.

use std::{fs, path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, bail, ensure};
use gantry_e2e::{Cluster, Running, eventually_for};
use gantry_kit::testing::Faults;
use gantry_operator::penin::{
    change::Segment,
    keeper::{DISAGREES, volume::ENTRIES},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::process::{Child, Command};

use super::{PATIENCE, World, changes};

/// As its pod runs it.
fn start(world: &World, folder: &Path) -> anyhow::Result<Child> {
    let binary = std::env::var("GANTRY_BIN").context("GANTRY_BIN must name the gantry binary")?;
    Ok(Command::new(binary)
        .args([
            "penin",
            "ledger",
            "keep",
            "demo",
            "--namespace",
            &world.cluster.namespace,
        ])
        .args(["--admin-address", "127.0.0.1:0", "--dir"])
        .arg(folder)
        .env("KUBECONFIG", std::env::var("GANTRY_TEST_SIM")?)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?)
}

/// Runs until it ends by itself: its code, and what it said.
async fn ended(keeper: Child) -> anyhow::Result<(Option<i32>, String)> {
    let output = tokio::time::timeout(PATIENCE, keeper.wait_with_output())
        .await
        .context("the keeper goes on")??;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code(), said))
}

async fn chain(world: &World) -> anyhow::Result<String> {
    let parts = world.segments().await?;
    let lines = parts.iter().flat_map(|part| Segment::new(part).lines);
    Ok(lines.map(|line| line + "\n").collect())
}

/// Waits until file and chain hold the same.
async fn caught_up(world: &World, file: &Path) -> anyhow::Result<String> {
    eventually_for(Duration::from_secs(60), async || {
        let (copied, chain) = (fs::read_to_string(file)?, chain(world).await?);
        ensure!(
            !chain.is_empty() && copied == chain,
            "copied:\n{copied}\nchain:\n{chain}"
        );
        Ok(copied)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_survives_its_keeper_and_knows_what_was_done_to_the_chain() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let world = World::new(&home, "improves", json!({}), json!({})).await?;
    let place = tempfile::tempdir()?;
    let folder = place.path().join("demo");
    let file = folder.join(ENTRIES);
    let operator = Running::start(&world.cluster, &Faults::default()).await?;
    world.one_more_guard("more").await?;
    // Killed again and again while entries come.
    let api = world.cluster.api(&changes());
    let mut lives = 0;
    loop {
        let mut keeper = start(&world, &folder)?;
        tokio::time::sleep(Duration::from_millis(700)).await;
        if keeper.try_wait()?.is_some() {
            let (code, said) = ended(keeper).await?;
            bail!("it ended with {code:?}: {said}");
        }
        keeper.kill().await?;
        lives += 1;
        let status = api.get("more").await?.data["status"].clone();
        if status["endedAt"].is_string() {
            ensure!(status["phase"] == "Kept", "{status}");
            break;
        }
    }
    ensure!(lives > 3, "that was too quick to prove anything");
    operator.kill().await;
    let keeper = start(&world, &folder)?;
    let copied = caught_up(&world, &file).await?;
    assert_eq!(copied.lines().count(), world.steps().await?.len());
    let verify = format!("ledger verify demo --compare --file {}", folder.display());
    let (good, said) = world.command(&verify).await?;
    assert!(good, "{said}");
    assert!(said.contains("7 of the 7 entries"), "{said}");
    let (_, shown) = world
        .command(&format!("ledger show demo --file {}", folder.display()))
        .await?;
    assert_eq!(shown, copied);

    let maps = Api::<ConfigMap>::namespaced(world.cluster.client.clone(), &world.cluster.namespace);
    let before = world.segments().await?.remove(0);
    let name = before.name_any();
    let mut data = before.data.clone().unwrap_or_default();
    let entry = data["entry-0000000002"].clone();
    let write = async |text: &str| {
        let patch = Patch::Merge(json!({"data": {"entry-0000000002": text}}));
        maps.patch(&name, &PatchParams::default(), &patch).await
    };
    write(&entry.replacen("\"at\":\"2", "\"at\":\"1", 1)).await?;
    let (code, said) = ended(keeper).await?;
    assert_eq!(code, Some(i32::from(DISAGREES)), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains("entry 2 was altered"), "{said}");
    assert!(last.contains(&folder.display().to_string()), "{said}");
    let (good, said) = world.command(&verify).await?;
    assert!(
        !good && said.contains("its entry 2 is not that of the copy"),
        "{said}"
    );
    // A new process sees it, too, and goes on once it is put right.
    let (code, _) = ended(start(&world, &folder)?).await?;
    assert_eq!(code, Some(i32::from(DISAGREES)));
    write(&entry).await?;
    let keeper = start(&world, &folder)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    maps.delete(&name, &DeleteParams::default()).await?;
    let (code, said) = ended(keeper).await?;
    assert_eq!(code, Some(i32::from(DISAGREES)), "{said}");
    assert!(
        said.contains("ends with entry 0, and the copy with entry 7"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&file)?, copied, "nothing was taken back");

    // What the copy holds is enough to put the chain back.
    for (number, line) in (1..).zip(copied.lines()) {
        data.insert(format!("entry-{number:010}"), line.to_owned());
    }
    let restored = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": name, "labels": before.metadata.labels},
    });
    world.cluster.create(&restored).await?;
    let (good, said) = world.command(&verify).await?;
    assert!(good, "{said}");
    world.cluster.done().await?;
    home.done().await
}
