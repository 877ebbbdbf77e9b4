//! One fixture for each kind that has a controller; every sweep runs over all of them. A new kind adds one here and a
//! table of its fields in `tests/fields.rs`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::{Cluster, eventually_for};

pub struct Fixture {
    pub resource: ApiResource,
    pub name: &'static str,
    /// A minimal object.
    pub base: Value,
    /// Another spec of the same object, as different as can be; its children differ in number too.
    pub other: Value,
    /// A spec that is accepted by the server but cannot work, with the reason that it leads to.
    pub broken: (Value, &'static str),
    /// A spec that the server stores and that does not decode.
    pub poison: Value,
    /// Name of the main workload.
    pub deployment: &'static str,
}

pub fn all() -> Vec<Fixture> {
    vec![agent(), mcpserver(), model(), modelapi(), peninomegacluster()]
}

pub fn agent_resource() -> ApiResource {
    ApiResource::erase::<gantry_crds::kaos::Agent>(&())
}

/// Nothing that it needs is there: it stands alone.
fn agent() -> Fixture {
    let of = |spec: Value| {
        let mut alone = json!({"modelAPI": "absent", "model": "m", "waitForDependencies": false});
        for (field, value) in spec.as_object().into_iter().flatten() {
            alone[field] = value.clone();
        }
        json!({
            "apiVersion": "kaos.tools/v1alpha1", "kind": "Agent", "metadata": {"name": "helper"}, "spec": alone,
        })
    };
    Fixture {
        resource: agent_resource(),
        name: "helper",
        base: of(json!({"config": {"instructions": "be brief"}})),
        other: of(json!({
            "mcpServers": ["absent", "too"],
            "agentNetwork": {"access": ["peer"]},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targetCPU": 50},
            "networkPolicy": {"enabled": true, "ingress": [{"from": [{"namespaceSelector": {}}]}]},
        })),
        broken: (
            of(json!({"podSpec": {"nodeSelector": {"no-node": "has-this"}}})),
            "Unschedulable",
        ),
        poison: of(json!({"container": {"securityContext": {"runAsUser": "somebody"}}})),
        deployment: "agent-helper",
    }
}

/// Checks all kinds at the same time: most of it is waiting.
pub async fn each(check: impl AsyncFn(&Fixture) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let fixtures = all();
    let checks = fixtures
        .iter()
        .map(async |fixture| check(fixture).await.context(fixture.resource.kind.clone()));
    futures::future::try_join_all(checks).await?;
    Ok(())
}

pub fn mcpserver_resource() -> ApiResource {
    ApiResource::erase::<gantry_crds::kaos::MCPServer>(&())
}

fn mcpserver() -> Fixture {
    let of = |spec: Value| {
        json!({
            "apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer",
            "metadata": {"name": "echo"}, "spec": spec,
        })
    };
    Fixture {
        resource: mcpserver_resource(),
        name: "echo",
        base: of(
            json!({"runtime": "python-string", "params": "def echo(text: str) -> str:\n    return text\n"}),
        ),
        other: of(json!({
            "config": {"mcp": "mcp-server-time==1.0", "transport": "stdio", "env": [{"name": "TZ", "value": "UTC"}]},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targetCPU": 50},
            "resources": {"limits": {"memory": "1Gi"}},
        })),
        broken: (
            of(json!({"runtime": "python-string", "podSpec": {"nodeSelector": {"no-node": "has-this"}}})),
            "Unschedulable",
        ),
        poison: of(json!({
            "runtime": "python-string", "container": {"securityContext": {"runAsUser": "somebody"}},
        })),
        deployment: "mcpserver-echo",
    }
}

pub fn modelapi_resource() -> ApiResource {
    ApiResource::erase::<gantry_crds::kaos::ModelAPI>(&())
}

fn modelapi() -> Fixture {
    let of = |spec: Value| {
        json!({
            "apiVersion": "kaos.tools/v1alpha1", "kind": "ModelAPI",
            "metadata": {"name": "llm"}, "spec": spec,
        })
    };
    Fixture {
        resource: modelapi_resource(),
        name: "llm",
        base: of(json!({"mode": "Proxy", "proxyConfig": {"apiBase": "http://stub:8080/v1"}})),
        other: of(json!({
            "mode": "Hosted",
            "hostedConfig": {"model": "smollm2:135m", "storage": {"size": "1Gi"}},
            "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targetCPU": 50},
            "resources": {"limits": {"memory": "1Gi"}},
        })),
        broken: (
            of(
                json!({"mode": "Proxy", "proxyConfig": {}, "podSpec": {"nodeSelector": {"no-node": "has-this"}}}),
            ),
            "Unschedulable",
        ),
        poison: of(json!({
            "mode": "Proxy", "proxyConfig": {}, "container": {"securityContext": {"runAsUser": "somebody"}},
        })),
        deployment: "modelapi-llm",
    }
}

pub fn model_resource() -> ApiResource {
    ApiResource::erase::<gantry_crds::ollama::Model>(&())
}

/// On simulated nodes no store answers, so that pods wait for their weights by themselves, and are ready.
fn model() -> Fixture {
    let of = |spec: Value| {
        let mut spec = spec;
        spec["store"] = json!({"size": "1Gi", "deletionPolicy": "Delete"});
        json!({
            "apiVersion": "ollama.ayaka.io/v1", "kind": "Model", "metadata": {"name": "phi"}, "spec": spec,
        })
    };
    Fixture {
        resource: model_resource(),
        name: "phi",
        base: of(json!({"image": "phi3"})),
        other: of(json!({
            "image": "hf.co/org/other:Q4_K_M",
            "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targetCPU": 50},
            "ingress": {"host": "phi.example.org"},
            "serviceAccountName": "default",
            "extraEnv": [{"name": "OLLAMA_KEEP_ALIVE", "value": "1h"}],
        })),
        broken: (
            of(json!({
                "image": "phi3", "podTemplate": {"spec": {"nodeSelector": {"no-node": "has-this"}}},
            })),
            "Unschedulable",
        ),
        poison: {
            let mut poison = of(json!({"image": "phi3"}));
            poison["spec"]["store"]["securityContext"] = json!({"runAsUser": "somebody"});
            poison
        },
        deployment: "ollama-model-phi",
    }
}

pub fn peninomegacluster_resource() -> ApiResource {
    ApiResource::erase::<gantry_crds::penin::PeninOmegaCluster>(&())
}

fn peninomegacluster() -> Fixture {
    let of = |mut spec: Value| {
        // Many of them share a node; and several times what a simulated pod uses, so that no autoscaler adds any.
        let small = json!({"cpu": "100m", "memory": "128Mi"});
        spec["resources"] =
            json!({"omegaMeta": small, "sigmaGuard": small, "srOmegaInfinity": small, "acfaLeague": small});
        json!({
            "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster",
            "metadata": {"name": "omega"}, "spec": spec,
        })
    };
    Fixture {
        resource: peninomegacluster_resource(),
        name: "omega",
        // One, as the autoscaler of `other` starts with: a number that runs is handed over to it.
        base: of(json!({"replicas": {"sigmaGuard": 1}})),
        other: of(json!({
            "version": "0.10.0",
            // The volume of `base` outlives its cluster; this one does not.
            "storage": {"wormLedger": {"deletionPolicy": "Delete"}, "cache": {"type": "memory"}},
            "autoScaling": {"minReplicas": 1, "maxReplicas": 3, "services": {"acfaLeague": {"enabled": false}}},
            "replicas": {"acfaLeague": 2},
            "networkPolicy": {"egress": [{"ports": [{"port": 443, "protocol": "TCP"}]}]},
            "observability": {"dashboards": true},
            "services": {"sigmaGuard": {"port": 9000, "probe": {"type": "TCP"}}},
        })),
        broken: (
            of(
                json!({"services": {"srOmegaInfinity": {"podSpec": {"nodeSelector": {"no-node": "has-this"}}}}}),
            ),
            "Unschedulable",
        ),
        poison: of(
            json!({"services": {"sigmaGuard": {"container": {"securityContext": {"runAsUser": "somebody"}}}}}),
        ),
        deployment: "omega-omega-meta",
    }
}

/// The object as it is now.
pub async fn get(cluster: &Cluster, fixture: &Fixture) -> anyhow::Result<DynamicObject> {
    Ok(cluster.api(&fixture.resource).get(fixture.name).await?)
}

/// Waits until the `Ready` condition of the current generation has this status and, if given, this reason.
pub async fn wait_ready(
    cluster: &Cluster,
    resource: &ApiResource,
    name: &str,
    status: &str,
    reason: Option<&str>,
) -> anyhow::Result<DynamicObject> {
    wait_ready_for(Duration::from_secs(90), cluster, resource, name, status, reason).await
}

pub async fn wait_ready_for(
    patience: Duration,
    cluster: &Cluster,
    resource: &ApiResource,
    name: &str,
    status: &str,
    reason: Option<&str>,
) -> anyhow::Result<DynamicObject> {
    let api = cluster.api(resource);
    eventually_for(patience, async || {
        let object = api.get(name).await?;
        let ready = condition(&object, "Ready").context("no Ready condition yet")?;
        let current = object.data["status"]["observedGeneration"].as_i64() == object.metadata.generation;
        if !current || ready["status"] != status || reason.is_some_and(|reason| ready["reason"] != reason) {
            bail!("{name} is {ready} (current generation observed: {current})");
        }
        Ok(object)
    })
    .await
}

pub fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    object.data["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == type_)
}
