//! Self-architecting with real pods: a stand-in for SR-Ω∞ asks by HTTP, with the token of its own pod, for more gates. Its
//! score follows the number of gates that really answer.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_crds::penin::{InfrastructureChange, PeninOmegaCluster};
use gantry_e2e::{Cluster, Running, eventually_for, fixtures::wait_ready_for, operator};
use gantry_kit::{Options, testing::Faults};
use gantry_operator::Settings;
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::{address, host, post};

/// Python starts slowly on a tenth of a processor, and more slowly beside others.
const PATIENCE: Duration = Duration::from_secs(300);

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

#[tokio::test(flavor = "multi_thread")]
async fn sr_asks_for_gates_and_gets_what_does_good() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let port = std::net::TcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
    let settings = Settings {
        changes_address: Some(([0, 0, 0, 0], port).into()),
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
            "storage": {"wormLedger": {"enabled": false}, "cache": {"enabled": false}},
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
    cluster.done().await
}
