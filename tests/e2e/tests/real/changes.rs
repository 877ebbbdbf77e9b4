//! Self-architecting with real pods: a stand-in for SR-Ω∞ asks by HTTP, with the token of its own pod, for more gates. Its
//! score follows the number of gates that really answer. The record of it all is copied to a volume.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_crds::penin::{InfrastructureChange, PeninOmegaCluster};
use gantry_e2e::{
    Cluster, Running, eventually_for,
    fixtures::{condition, wait_ready_for},
    operator,
};
use gantry_kit::{Options, testing::Faults};
use gantry_operator::{
    Settings,
    penin::change::{LEDGER_LABEL, Segment},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{address, host, penin::kubectl, post};

/// Python starts slowly on a tenth of a processor, and more slowly beside others.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where the copy of the ledger is on the volume.
const FOLDER: &str = "/data/gantry-changes/evolving";
const FILE: &str = "/data/gantry-changes/evolving/changes.jsonl";

fn clusters() -> ApiResource {
    ApiResource::erase::<PeninOmegaCluster>(&())
}

/// Says something to SR-Ω∞.
async fn tell(cluster: &Cluster, path: &str, body: Value) -> anyhow::Result<Value> {
    let base = address(cluster, "evolving-sr-omega-infinity", 8012).await?;
    let answer = post(&format!("{base}{path}"), &body).await?;
    Ok(serde_json::from_str(&answer)?)
}

/// Lets SR-Ω∞ ask, and waits for the end.
async fn ask(cluster: &Cluster, guards: i32, id: &str) -> anyhow::Result<DynamicObject> {
    let body = json!({
        "cluster": "evolving", "reason": "the gate is slow", "patch": {"replicas": {"sigmaGuard": guards}}, "id": id,
    });
    let answer = tell(cluster, "/stub/ask", body).await?;
    ensure!(answer["status"] == 201, "{answer}");
    let name = answer["answer"]["name"].as_str().context("name")?.to_owned();
    let api = cluster.api(&ApiResource::erase::<InfrastructureChange>(&()));
    eventually_for(PATIENCE, async || {
        let change = api.get(&name).await?;
        let status = &change.data["status"];
        ensure!(status["endedAt"].is_string(), "{name} is {status}");
        Ok(change)
    })
    .await
}

/// The file on the volume, as the pod of Ω-META sees it, once it holds every entry and the keeper has proven it.
async fn copied(cluster: &Cluster) -> anyhow::Result<String> {
    kept(cluster, "Succeeded").await?;
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), &cluster.namespace);
    let selector = ListParams::default().labels(&format!("{LEDGER_LABEL}=evolving"));
    eventually_for(PATIENCE, async || {
        let mut parts: Vec<Segment> = maps.list(&selector).await?.iter().map(Segment::new).collect();
        parts.sort_by_key(|part| part.number);
        let lines = parts.into_iter().flat_map(|part| part.lines);
        let chain: String = lines.map(|line| line + "\n").collect();
        let words = ["exec", "deploy/evolving-omega-meta", "--", "cat", FILE];
        let file = kubectl(cluster, &words).await?;
        ensure!(file == chain, "file:\n{file}\nchain:\n{chain}");
        let words = [
            "exec",
            "deploy/evolving-ledger-keeper",
            "--",
            "gantry",
            "penin",
            "ledger",
            "verify",
            "evolving",
            "--compare",
            "--file",
            FOLDER,
        ];
        let said = kubectl(cluster, &words).await?;
        let count = file.lines().count();
        ensure!(
            said.contains(&format!("{count} of the {count} entries")),
            "{said}"
        );
        Ok(file)
    })
    .await
}

/// Waits for a reason of the condition; the cluster itself runs all the time.
async fn kept(cluster: &Cluster, reason: &str) -> anyhow::Result<String> {
    eventually_for(PATIENCE, async || {
        let live = cluster.api(&clusters()).get("evolving").await?;
        let phase = &live.data["status"]["phase"];
        ensure!(phase == "Running", "{phase}");
        let told = condition(&live, "LedgerKept").context("no condition")?;
        ensure!(told["reason"] == reason, "{told}");
        Ok(told["message"].as_str().unwrap_or_default().to_owned())
    })
    .await
}

/// Somebody edits the chain: the copy does not follow, and the cluster says why until it is put right.
async fn tampered(cluster: &Cluster, copy: &str) -> anyhow::Result<()> {
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), &cluster.namespace);
    let entry = copy.lines().nth(1).context("a second entry")?;
    let write = async |text: &str| {
        let patch = Patch::Merge(json!({"data": {"entry-0000000002": text}}));
        let params = PatchParams::default();
        maps.patch("evolving-changes-000001", &params, &patch).await
    };
    write(&entry.replacen("\"at\":\"2", "\"at\":\"1", 1)).await?;
    let message = kept(cluster, "LedgerDisagrees").await?;
    assert!(message.contains("entry 2 was altered"), "{message}");
    assert!(message.contains(FOLDER), "{message}");
    let words = ["exec", "deploy/evolving-omega-meta", "--", "cat", FILE];
    assert_eq!(kubectl(cluster, &words).await?, copy, "it holds what was");
    write(entry).await?;
    kept(cluster, "Succeeded").await?;
    assert_eq!(copied(cluster).await?, copy);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sr_asks_for_gates_and_gets_what_does_good() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let port = std::net::TcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
    let settings = Settings {
        changes_address: Some(([0, 0, 0, 0], port).into()),
        gantry_image: "gantry:dev".into(),
        ..operator::settings()
    };
    let _operator = Running::start_with(&cluster, &Faults::default(), Options::default(), settings).await?;
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sr"}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "asker"},
            "rules": [{"apiGroups": ["penin.ai"], "resources": ["infrastructurechanges"], "verbs": ["create"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "asker"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "asker"},
            "subjects": [{"kind": "ServiceAccount", "name": "sr"}],
        }),
    ] {
        cluster.create(&object).await?;
    }
    let small = json!({"cpu": "100m", "memory": "64Mi"});
    let token = json!({"serviceAccountToken": {"path": "token", "audience": "gantry-changes"}});
    let object = json!({
        "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster", "metadata": {"name": "evolving"},
        "spec": {
            "replicas": {"omegaMeta": 1, "sigmaGuard": 1, "srOmegaInfinity": 1, "acfaLeague": 0},
            "resources": {"omegaMeta": small, "sigmaGuard": small, "srOmegaInfinity": small, "acfaLeague": small},
            "storage": {"wormLedger": {"size": "1Gi", "deletionPolicy": "Delete"}, "cache": {"enabled": false}},
            "services": {"srOmegaInfinity": {
                "container": {
                    "env": [{"name": "GANTRY_CHANGES_URL", "value": format!("http://{}:{port}/v1/changes", host(&cluster)?)}],
                    "volumeMounts": [{"name": "gantry", "mountPath": "/var/run/secrets/gantry", "readOnly": true}],
                },
                "podSpec": {
                    "serviceAccountName": "sr",
                    "volumes": [{"name": "gantry", "projected": {"sources": [token]}}],
                },
            }},
            "selfArchitecting": {
                "enabled": true, "allowedFields": ["replicas.sigmaGuard"], "takeOwnership": true,
                "bounds": [{"field": "replicas.sigmaGuard", "max": 3}],
                "requireApproval": false, "cooldownSeconds": 0, "observationSeconds": 15,
                "verdict": {"metric": "srScore", "minSamples": 3, "noiseBand": 0.01},
            },
        },
    });
    cluster.apply(&clusters(), &object).await?;
    wait_ready_for(PATIENCE, &cluster, &clusters(), "evolving", "True", None).await?;
    let spec = async || anyhow::Ok(cluster.api(&clusters()).get("evolving").await?.data["spec"].clone());

    tell(&cluster, "/stub/effect", json!({"each": 0.1})).await?;
    let better = ask(&cluster, 2, "better").await?;
    assert_eq!(
        better.data["status"]["phase"], "Kept",
        "{}",
        better.data["status"]
    );
    assert_eq!(
        better.data["status"]["requestedBy"],
        format!("system:serviceaccount:{}:sr", cluster.namespace)
    );
    let kept = spec().await?;
    assert_eq!(kept["replicas"]["sigmaGuard"], 2);
    copied(&cluster).await?;

    tell(&cluster, "/stub/effect", json!({"each": -0.1})).await?;
    let worse = ask(&cluster, 3, "worse").await?;
    assert_eq!(
        worse.data["status"]["phase"], "RolledBack",
        "{}",
        worse.data["status"]
    );
    assert_eq!(spec().await?, kept, "exactly the spec before");

    let outside = ask(&cluster, 4, "outside").await?;
    assert_eq!(outside.data["status"]["phase"], "Rejected");
    assert_eq!(outside.data["status"]["rule"], "bounds");
    assert_eq!(spec().await?, kept);

    let copy = copied(&cluster).await?;
    tampered(&cluster, &copy).await?;
    cluster.done().await
}
