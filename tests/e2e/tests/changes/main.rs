//! Changes that a PeninOmegaCluster asks for: each end, with a stand-in for Prometheus whose numbers follow the live
//! cluster. `crashes`: an operator that dies after every single write, and everything that can go wrong between it and the
//! API server. `endpoint`: requests by HTTP. `keeper`: the copy of the ledger.

mod crashes;
mod endpoint;
mod ends;
mod keeper;

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use axum::{Json, Router, extract::State, http::Uri, routing::get};
use gantry_crds::penin::{InfrastructureChange, PeninOmegaCluster};
use gantry_e2e::{Cluster, Running, eventually_for, fixtures::wait_ready};
use gantry_kit::{ObjectKey, testing::Faults};
use gantry_ledger::{Entry, PublicKey};
use gantry_operator::penin::change::{KEY_SECRET, LEDGER_LABEL, Segment, audit, ledger_name};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::ListParams,
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

/// Long enough for a loaded machine: measured, changed, rolled out, watched for ten seconds, and judged.
const PATIENCE: Duration = Duration::from_secs(150);

fn clusters() -> ApiResource {
    ApiResource::erase::<PeninOmegaCluster>(&())
}

fn changes() -> ApiResource {
    ApiResource::erase::<InfrastructureChange>(&())
}

/// Answers queries of the form `effect/namespace`: the number of guards of the live cluster there, as good or as bad.
async fn prometheus(client: Client) -> anyhow::Result<SocketAddr> {
    async fn answer(State(client): State<Client>, uri: Uri) -> Json<Value> {
        let query = uri
            .query()
            .and_then(|query| query.strip_prefix("query="))
            .unwrap_or_default()
            .replace("%2F", "/");
        let (effect, namespace) = query.split_once('/').unwrap_or_default();
        let api = Api::<DynamicObject>::namespaced_with(client, namespace, &clusters());
        let guards = match api.get("demo").await {
            Ok(cluster) => cluster.data["spec"]["replicas"]["sigmaGuard"]
                .as_f64()
                .unwrap_or(2.0),
            Err(_) => {
                return Json(json!({"status": "success", "data": {"resultType": "vector", "result": []}}));
            }
        };
        let value = match effect {
            "improves" => 0.5 + guards / 10.0,
            "worsens" => 0.5 - guards / 10.0,
            "silent" => {
                return Json(json!({"status": "success", "data": {"resultType": "vector", "result": []}}));
            }
            _ => 0.5,
        };
        let sample = json!({"metric": {}, "value": [0, value.to_string()]});
        Json(json!({"status": "success", "data": {"resultType": "vector", "result": [sample]}}))
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new()
        .route("/api/v1/query", get(answer))
        .with_state(client);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// A cluster with a policy, ready.
struct World {
    cluster: Cluster,
    before: DynamicObject,
}

impl World {
    /// `spec` is put over a small cluster, `policy` over a policy that lets the number of guards change.
    async fn new(home: &Cluster, effect: &str, spec: Value, policy: Value) -> anyhow::Result<Self> {
        let cluster = home.in_new_namespace().await?;
        let address = prometheus(home.client.clone()).await?;
        let mut object = json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster", "metadata": {"name": "demo"},
            "spec": {
                "storage": {"wormLedger": {"enabled": false}, "cache": {"enabled": false}},
                "observability": {"metrics": false},
                "selfArchitecting": {
                    "enabled": true, "allowedFields": ["replicas.sigmaGuard"], "requireApproval": false,
                    "cooldownSeconds": 0, "observationSeconds": 10,
                    "verdict": {
                        "query": format!("{effect}/{}", cluster.namespace),
                        "prometheusUrl": format!("http://{address}"), "minSamples": 2, "noiseBand": 0.01,
                    },
                },
            },
        });
        merge(&mut object["spec"], &spec);
        merge(&mut object["spec"]["selfArchitecting"], &policy);
        cluster.apply(&clusters(), &object).await?;
        let operator = Running::start(&cluster, &Faults::default()).await?;
        wait_ready(&cluster, &clusters(), "demo", "True", None).await?;
        operator.kill().await;
        let before = cluster.api(&clusters()).get("demo").await?;
        Ok(Self { cluster, before })
    }

    async fn ask(&self, name: &str, patch: Value) -> anyhow::Result<()> {
        let change = json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "InfrastructureChange", "metadata": {"name": name},
            "spec": {"cluster": "demo", "reason": "the gate is slow", "patch": patch},
        });
        self.cluster.apply(&changes(), &change).await?;
        Ok(())
    }

    async fn one_more_guard(&self, name: &str) -> anyhow::Result<()> {
        self.ask(name, json!({"replicas": {"sigmaGuard": 3}})).await
    }

    /// Waits for a phase; another end is told at once.
    async fn until(&self, name: &str, phase: &str) -> anyhow::Result<DynamicObject> {
        let api = self.cluster.api(&changes());
        let change = eventually_for(PATIENCE, async || {
            let change = api.get(name).await?;
            let status = &change.data["status"];
            let ended = status["endedAt"].is_string();
            ensure!(
                status["phase"] == phase || ended,
                "{name} is not {phase}: {status}"
            );
            Ok(change)
        })
        .await?;
        let status = &change.data["status"];
        ensure!(status["phase"] == phase, "{name} is not {phase}: {status}");
        Ok(change)
    }

    /// Waits until it came as far as a phase that lies before an end, or to its end.
    async fn at_least(&self, name: &str, phase: &str) -> anyhow::Result<()> {
        let order = ["Requested", "Validated", "Applied", "Observing"];
        let place = |phase: &str| {
            order
                .iter()
                .position(|known| *known == phase)
                .unwrap_or(order.len())
        };
        let api = self.cluster.api(&changes());
        eventually_for(PATIENCE, async || {
            let change = api.get(name).await?;
            let found = change.data["status"]["phase"]
                .as_str()
                .unwrap_or("Requested")
                .to_owned();
            ensure!(place(&found) >= place(phase), "{name} is {found}");
            Ok(())
        })
        .await
    }

    async fn live(&self) -> anyhow::Result<DynamicObject> {
        Ok(self.cluster.api(&clusters()).get("demo").await?)
    }

    /// `gantry penin …` in this namespace: whether it went well, and what it said.
    async fn command(&self, words: &str) -> anyhow::Result<(bool, String)> {
        let binary = std::env::var("GANTRY_BIN").context("GANTRY_BIN must name the gantry binary")?;
        let output = tokio::process::Command::new(binary)
            .arg("penin")
            .args(words.split(' '))
            .args(["--namespace", &self.cluster.namespace])
            .env("KUBECONFIG", std::env::var("GANTRY_TEST_SIM")?)
            .output()
            .await?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    }

    /// How often the spec was changed since the beginning.
    async fn edits(&self) -> anyhow::Result<i64> {
        let generation = |object: &DynamicObject| object.metadata.generation.unwrap_or(0);
        Ok(generation(&self.live().await?) - generation(&self.before))
    }

    async fn segments(&self) -> anyhow::Result<Vec<ConfigMap>> {
        let api = Api::<ConfigMap>::namespaced(self.cluster.client.clone(), &self.cluster.namespace);
        let params = ListParams::default().labels(&format!("{LEDGER_LABEL}=demo"));
        Ok(api.list(&params).await?.items)
    }

    /// Steps in the ledger, after it was proven whole.
    async fn steps(&self) -> anyhow::Result<Vec<String>> {
        let secrets = Api::<Secret>::namespaced(self.cluster.client.clone(), &self.cluster.namespace);
        let secret = secrets.get(KEY_SECRET).await?;
        let pem = secret.data.unwrap_or_default()["public-key.pem"].0.clone();
        let key = PublicKey::from_pem(&String::from_utf8(pem)?)?;
        let parts: Vec<Segment> = self.segments().await?.iter().map(Segment::new).collect();
        let name = ledger_name(&ObjectKey::new(self.cluster.namespace.clone(), "demo"));
        let (_, fault) = audit(&name, &parts, &key);
        ensure!(fault.is_none(), "the ledger is broken: {fault:?}");
        let entries = parts
            .iter()
            .flat_map(|part| &part.lines)
            .map(|line| Entry::from_line(line));
        entries
            .map(|entry| Ok(entry?.body["step"].as_str().unwrap_or_default().to_owned()))
            .collect()
    }
}

fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}
