//! Every end of a change, each for its own reason.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_e2e::{Cluster, Running, eventually, fixtures::wait_ready};
use gantry_kit::{Options, testing::Faults};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{World, changes, clusters};

#[tokio::test(flavor = "multi_thread")]
async fn what_does_good_is_kept_and_the_ledger_tells_every_step() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let world = World::new(&home, "improves", json!({}), json!({})).await?;
    let operator = Running::start(&world.cluster, &Faults::default()).await?;
    world.one_more_guard("more").await?;
    let change = world.until("more", "Kept").await?;
    assert_eq!(change.data["status"]["inEffect"], true);
    assert_eq!(change.data["status"]["gain"], 0.1);
    let live = world.live().await?;
    assert_eq!(live.data["spec"]["replicas"]["sigmaGuard"], 3);
    assert_eq!(world.edits().await?, 1);
    let ours = live
        .metadata
        .managed_fields
        .unwrap_or_default()
        .into_iter()
        .find(|entry| {
            entry
                .manager
                .as_deref()
                .is_some_and(|m| m.starts_with("gantry-change-"))
        })
        .context("no field manager of the change")?;
    let fields = ours.fields_v1.context("fields")?.0;
    assert_eq!(
        fields["f:spec"],
        json!({"f:replicas": {"f:sigmaGuard": {}}}),
        "the proposed field only"
    );
    assert_eq!(
        world.steps().await?,
        [
            "Requested",
            "Validated",
            "Intent",
            "Applied",
            "Observing",
            "Decided",
            "Ended"
        ]
    );
    // It is over: another operator has nothing to write about it.
    operator.kill().await;
    let again = Running::start(&world.cluster, &Faults::default()).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(again.faults.writes(), []);
    world.cluster.done().await?;
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_harm_is_rolled_back_to_exactly_the_spec_before() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    // The block is absent, partly there, and owned by somebody whose field may be taken.
    let cases = [
        (json!({}), json!({})),
        (
            json!({"resources": {"sigmaGuard": {"cpu": "200m"}}}),
            json!({"allowedFields": ["replicas.*", "resources.*"], "takeOwnership": true}),
        ),
        (
            json!({"replicas": {"sigmaGuard": 2, "omegaMeta": 2}}),
            json!({"takeOwnership": true}),
        ),
    ];
    let runs = cases.into_iter().map(async |(spec, policy)| {
        let world = World::new(&home, "worsens", spec, policy).await?;
        let _operator = Running::start(&world.cluster, &Faults::default()).await?;
        let patch = if world.before.data["spec"]["resources"].is_object() {
            json!({"replicas": {"sigmaGuard": 3}, "resources": {"sigmaGuard": {"cpu": "250m", "memory": "300Mi"}}})
        } else {
            json!({"replicas": {"sigmaGuard": 3}})
        };
        world.ask("more", patch).await?;
        let change = world.until("more", "RolledBack").await?;
        assert_eq!(change.data["status"]["inEffect"], false);
        let live = world.live().await?;
        assert_eq!(live.data["spec"], world.before.data["spec"]);
        assert_eq!(world.edits().await?, 2, "one change and one way back");
        world.cluster.done().await
    });
    futures::future::try_join_all(runs).await?;
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_does_not_allow_is_rejected_by_name() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let world = World::new(
        &home,
        "improves",
        json!({}),
        json!({"bounds": [{"field": "replicas.*", "max": 4}]}),
    )
    .await?;
    let owned = json!({"replicas": {"sigmaGuard": 2}});
    let theirs = World::new(&home, "improves", owned, json!({})).await?;
    let silent = World::new(&home, "silent", json!({}), json!({})).await?;
    let _operators = [
        Running::start(&world.cluster, &Faults::default()).await?,
        Running::start(&theirs.cluster, &Faults::default()).await?,
        Running::start(&silent.cluster, &Faults::default()).await?,
    ];
    for (world, name, patch, rule) in [
        (
            &world,
            "field",
            json!({"replicas": {"omegaMeta": 2}}),
            "allowedFields",
        ),
        (
            &world,
            "empty",
            json!({"replicas": {"sigmaGuard": 3}, "autoScaling": {}}),
            "schema",
        ),
        (&world, "step", json!({"replicas": {"sigmaGuard": 4}}), "maxStep"),
        (&world, "bound", json!({"replicas": {"sigmaGuard": 9}}), "bounds"),
        (
            &world,
            "nothing",
            json!({"replicas": {"sigmaGuard": 2}}),
            "noChange",
        ),
        (
            &theirs,
            "owned",
            json!({"replicas": {"sigmaGuard": 3}}),
            "takeOwnership",
        ),
        (
            &silent,
            "silent",
            json!({"replicas": {"sigmaGuard": 3}}),
            "verdict",
        ),
    ] {
        world.ask(name, patch).await?;
        let change = world.until(name, "Rejected").await?;
        assert_eq!(change.data["status"]["rule"], rule, "{name}");
        assert_eq!(world.edits().await?, 0, "{name} changed something");
    }
    // Whoever owns it is named.
    let owned = theirs.until("owned", "Rejected").await?;
    let manager = theirs
        .before
        .metadata
        .managed_fields
        .clone()
        .unwrap_or_default()
        .into_iter()
        .find(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            fields.is_some_and(|fields| fields.get("f:spec").is_some())
        })
        .and_then(|entry| entry.manager)
        .context("manager of the spec")?;
    let message = owned.data["status"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(&manager), "{message} does not name {manager}");
    assert_eq!(theirs.steps().await?, ["Requested", "Ended"]);
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manual_edit_wins_and_one_beside_it_makes_it_unclear() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let edit = async |world: &World, spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        let params = PatchParams {
            field_manager: Some("a-person".into()),
            ..PatchParams::default()
        };
        world
            .cluster
            .api(&clusters())
            .patch("demo", &params, &patch)
            .await
    };
    let superseded = async {
        let world = World::new(&home, "worsens", json!({}), json!({})).await?;
        let _operator = Running::start(&world.cluster, &Faults::default()).await?;
        world.one_more_guard("more").await?;
        world.until("more", "Observing").await?;
        edit(&world, json!({"replicas": {"sigmaGuard": 5}})).await?;
        let change = world.until("more", "Superseded").await?;
        assert_eq!(
            world.live().await?.data["spec"]["replicas"]["sigmaGuard"],
            5,
            "the person wins"
        );
        assert_eq!(world.edits().await?, 2, "the change and the person's");
        let message = change.data["status"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(message.contains("replicas.sigmaGuard"), "{message}");
        world.cluster.done().await
    };
    let applied = async {
        let world = World::new(&home, "worsens", json!({}), json!({})).await?;
        let _operator = Running::start(&world.cluster, &Faults::default()).await?;
        world.one_more_guard("more").await?;
        world.until("more", "Observing").await?;
        // The same value, by somebody who will go on applying it.
        let theirs = json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster", "metadata": {"name": "demo"},
            "spec": {"replicas": {"sigmaGuard": 3}},
        });
        let params = PatchParams::apply("argocd");
        let api = world.cluster.api(&clusters());
        api.patch("demo", &params, &Patch::Apply(theirs)).await?;
        world.until("more", "Superseded").await?;
        assert_eq!(world.live().await?.data["spec"]["replicas"]["sigmaGuard"], 3);
        assert_eq!(world.edits().await?, 1, "the change only");
        world.cluster.done().await
    };
    let beside = async {
        let world = World::new(&home, "improves", json!({}), json!({})).await?;
        let _operator = Running::start(&world.cluster, &Faults::default()).await?;
        world.one_more_guard("more").await?;
        world.until("more", "Observing").await?;
        edit(&world, json!({"replicas": {"omegaMeta": 2}})).await?;
        world.until("more", "Inconclusive").await?;
        let live = world.live().await?;
        // The guard goes back to what it is by itself; the person's field stays.
        assert_eq!(live.data["spec"]["replicas"]["omegaMeta"], 2);
        assert_eq!(live.data["spec"]["replicas"]["sigmaGuard"], 2);
        world.cluster.done().await
    };
    futures::try_join!(superseded, applied, beside)?;
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn unclear_is_no_success_and_the_policy_says_what_becomes_of_it() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let runs = [("Keep", 3, true), ("RollBack", 2, false)].map(async |(word, guards, in_effect)| {
        let policy = json!({"verdict": {"onInconclusive": word}});
        let world = World::new(&home, "nothing", json!({}), policy).await?;
        let _operator = Running::start(&world.cluster, &Faults::default()).await?;
        world.one_more_guard("more").await?;
        let change = world.until("more", "Inconclusive").await?;
        assert_eq!(change.data["status"]["inEffect"], in_effect);
        let live = world.live().await?;
        let found = live.data["spec"]["replicas"]["sigmaGuard"].as_i64().unwrap_or(2);
        assert_eq!(found, guards, "{word}");
        if !in_effect {
            assert_eq!(live.data["spec"], world.before.data["spec"]);
        }
        world.cluster.done().await
    });
    futures::future::try_join_all(runs).await?;
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_is_waited_for_and_denial_is_final() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let world = World::new(&home, "improves", json!({}), json!({"requireApproval": true})).await?;
    let _operator = Running::start(&world.cluster, &Faults::default()).await?;
    world.one_more_guard("no").await?;
    world.until("no", "AwaitingApproval").await?;
    assert_eq!(world.edits().await?, 0);
    let (good, said) = world.command("approve no --deny --by alice").await?;
    assert!(good, "{said}");
    let change = world.until("no", "Rejected").await?;
    assert_eq!(change.data["status"]["rule"], "approval");
    assert_eq!(world.edits().await?, 0);
    world.one_more_guard("yes").await?;
    world.until("yes", "AwaitingApproval").await?;
    let (good, said) = world.command("approve yes --by alice").await?;
    assert!(good, "{said}");
    let change = world.until("yes", "Kept").await?;
    assert_eq!(
        change.data["status"]["approval"]["by"], "alice",
        "the approver's word stays"
    );
    assert!(world.steps().await?.contains(&"Approved".to_owned()));
    world.cluster.done().await?;
    home.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_was_tampered_with_stops_further_changes() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let world = World::new(&home, "improves", json!({}), json!({})).await?;
    let operator = Running::start(&world.cluster, &Faults::default()).await?;
    world.one_more_guard("more").await?;
    let change = world.until("more", "Kept").await?;
    let head = change.data["status"]["ledgerHead"].as_str().context("head")?;
    let verify = format!("ledger verify demo --since {head}");
    let (good, said) = world.command(&verify).await?;
    assert!(good && said.contains("every head was signed"), "{said}");
    let part = world.segments().await?.remove(0);
    let name = part.metadata.name.clone().context("name")?;
    let key = part
        .data
        .clone()
        .unwrap_or_default()
        .into_keys()
        .find(|key| key.starts_with("entry-"))
        .context("entry")?;
    let line = part.data.unwrap_or_default()[&key].replace("the gate is slow", "no reason");
    let patch = Patch::Merge(json!({"data": {key: line}}));
    let maps = Api::<ConfigMap>::namespaced(world.cluster.client.clone(), &world.cluster.namespace);
    maps.patch(&name, &PatchParams::default(), &patch).await?;
    // Noticed by the one that runs, without a restart.
    world.ask("next", json!({"replicas": {"sigmaGuard": 4}})).await?;
    wait_ready(&world.cluster, &changes(), "next", "False", Some("LedgerBroken")).await?;
    let fault = world.steps().await.unwrap_err().to_string();
    assert!(fault.contains("entry 1 was altered"), "{fault}");
    let (good, said) = world.command(&verify).await?;
    assert!(!good && said.contains("entry 1 was altered"), "{said}");
    assert_eq!(world.edits().await?, 1);
    operator.kill().await;
    world.cluster.done().await?;
    home.done().await
}

/// Whoever approves may write the whole status. It is not believed over the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_status_writes_nothing_and_ends_nothing() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let forge = async |world: &World, status: Value| {
        let patch = Patch::Merge(json!({"status": status}));
        let api = world.cluster.api(&changes());
        api.patch_status("more", &PatchParams::default(), &patch).await
    };
    let plan = async {
        let policy = json!({"requireApproval": true});
        let world = World::new(&home, "improves", json!({}), policy).await?;
        let _operator = Running::start(&world.cluster, &Faults::default()).await?;
        world.one_more_guard("more").await?;
        world.until("more", "AwaitingApproval").await?;
        // As if it had been made, and had done harm: the way back leads to what nobody allowed.
        let meta = &world.before.metadata;
        let readings = json!({"samples": 9, "median": 99.0, "least": 99.0, "greatest": 99.0});
        let now = world.before.data["spec"]["replicas"]["sigmaGuard"].clone();
        let forged = json!({
            "phase": "Observing", "appliedAt": "2026-01-01T00:00:00Z", "appliedGeneration": meta.generation,
            "baseline": readings,
            "plan": {
                "clusterUid": meta.uid, "before": {"replicas": {"sigmaGuard": 9}},
                "after": {"replicas": world.before.data["spec"]["replicas"]},
                "fields": [{"field": "replicas.sigmaGuard", "from": 9, "to": now}],
            },
        });
        forge(&world, forged).await?;
        // Longer than anything is watched for.
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert_eq!(world.edits().await?, 0, "nothing was written");
        world.until("more", "AwaitingApproval").await?;
        world.cluster.done().await
    };
    let end = async {
        let world = World::new(&home, "worsens", json!({}), json!({})).await?;
        let _operator = Running::start(&world.cluster, &Faults::default()).await?;
        world.one_more_guard("more").await?;
        world.until("more", "Observing").await?;
        forge(&world, json!({"phase": "Kept"})).await?;
        world.until("more", "RolledBack").await?;
        forge(&world, json!({"phase": "Kept", "inEffect": true})).await?;
        let change = eventually(async || {
            let change = world.cluster.api(&changes()).get("more").await?;
            ensure!(
                change.data["status"]["phase"] == "RolledBack",
                "the forged end stays"
            );
            Ok(change)
        })
        .await?;
        assert_eq!(change.data["status"]["inEffect"], false);
        assert_eq!(world.live().await?.data["spec"], world.before.data["spec"]);
        world.cluster.done().await
    };
    futures::try_join!(plan, end)?;
    home.done().await
}

/// The newest stay to be looked at; the ledger keeps the rest.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_ended_long_ago_go_and_the_ledger_stays() -> anyhow::Result<()> {
    let home = Cluster::simulated().await?;
    let world = World::new(&home, "improves", json!({}), json!({})).await?;
    let settings = gantry_operator::Settings {
        kept_changes: 2,
        ..gantry_e2e::operator::settings()
    };
    let faults = Faults::default();
    let _operator = Running::start_with(&world.cluster, &faults, Options::default(), settings).await?;
    for name in ["one", "two", "three"] {
        world.ask(name, json!({"replicas": {"sigmaGuard": 2}})).await?;
        world.until(name, "Rejected").await?;
        // Ends are told apart by the second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    eventually(async || {
        let left = world.cluster.list(&changes()).await?;
        let mut names: Vec<_> = left
            .into_iter()
            .filter_map(|change| change.metadata.name)
            .collect();
        names.sort();
        ensure!(names == ["three", "two"], "{names:?}");
        Ok(())
    })
    .await?;
    let ends = world
        .steps()
        .await?
        .into_iter()
        .filter(|step| step == "Ended")
        .count();
    assert_eq!(ends, 3);
    world.cluster.done().await?;
    home.done().await
}
