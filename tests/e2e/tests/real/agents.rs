//! Models, tools and agents together: a real proxy, real tools, and agents that use every variable they are given.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_crds::kaos::{Agent, MCPServer, ModelAPI};
use gantry_e2e::{
    Cluster, eventually_for,
    fixtures::{condition, wait_ready_for},
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
    core::ApiResource,
};
use serde_json::{Value, json};

use super::{address, get, post, start};

/// The proxy alone takes half a minute to start, and longer while others do the same.
const PATIENCE: Duration = Duration::from_secs(420);

fn resource(kind: &str) -> ApiResource {
    match kind {
        "Agent" => ApiResource::erase::<Agent>(&()),
        "ModelAPI" => ApiResource::erase::<ModelAPI>(&()),
        _ => ApiResource::erase::<MCPServer>(&()),
    }
}

async fn make(cluster: &Cluster, kind: &str, name: &str, spec: Value) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "kaos.tools/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    });
    cluster.apply(&resource(kind), &object).await?;
    Ok(())
}

async fn ready(cluster: &Cluster, kind: &str, name: &str) -> anyhow::Result<()> {
    wait_ready_for(PATIENCE, cluster, &resource(kind), name, "True", None).await?;
    Ok(())
}

/// A provider of models that lets these keys in.
async fn provider(cluster: &Cluster, keys: &str) -> anyhow::Result<()> {
    let labels = json!({"app": "provider"});
    let container = json!({
        "name": "provider", "image": "gantry/test-openai:dev", "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "STUB_API_KEYS", "value": keys}],
        "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
    });
    cluster
        .create(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "provider"},
            "spec": {"selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels}, "spec": {"containers": [container]},
            }},
        }))
        .await?;
    cluster
        .create(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "provider"},
            "spec": {"selector": labels, "ports": [{"port": 8000, "protocol": "TCP"}]},
        }))
        .await
}

async fn key(cluster: &Cluster, value: &str) -> anyhow::Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "provider-key"}, "stringData": {"key": value},
    });
    cluster.apply(&ApiResource::erase::<Secret>(&()), &secret).await?;
    Ok(())
}

async fn chat(cluster: &Cluster, service: &str, model: &str, question: &str) -> anyhow::Result<String> {
    let url = format!("{}/v1/chat/completions", address(cluster, service, 8000).await?);
    let messages = json!([{"role": "user", "content": question}]);
    post(&url, &json!({"model": model, "messages": messages})).await
}

/// What `examples/kaos` holds, as kind and name.
async fn examples(cluster: &Cluster) -> anyhow::Result<Vec<(String, String)>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/kaos");
    let mut made = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let object: Value = serde_saphyr::from_str(&std::fs::read_to_string(entry?.path())?)?;
        let kind = object["kind"].as_str().context("no kind")?.to_owned();
        let name = object["metadata"]["name"].as_str().context("no name")?.to_owned();
        cluster.apply(&resource(&kind), &object).await?;
        made.push((kind, name));
    }
    Ok(made)
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_ask_their_model_call_tools_and_delegate() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    provider(&cluster, "first").await?;
    key(&cluster, "first").await?;
    // Agents first: they wait for what comes after them.
    make(
        &cluster,
        "Agent",
        "lead",
        json!({
            "modelAPI": "proxy", "model": "gpt-4o", "mcpServers": ["calculator"],
            "agentNetwork": {"access": ["coordinator"]},
            "config": {"description": "Leads.", "env": [{"name": "LOG_LEVEL", "value": "DEBUG"}]},
            "limits": {"maxSteps": 7, "maxRuntimeSeconds": 60, "maxToolCalls": 9, "maxTokensPerTask": 1000,
                       "maxTokensPerDay": 100_000},
        }),
    )
    .await?;
    let mut made = examples(&cluster).await?;
    let proxy = json!({"mode": "Proxy", "proxyConfig": {
        "models": ["gpt-4o"], "provider": "openai", "apiBase": "http://provider:8000/v1",
        "apiKey": {"valueFrom": {"secretKeyRef": {"name": "provider-key", "key": "key"}}},
    }});
    make(&cluster, "ModelAPI", "proxy", proxy).await?;
    made.extend([
        ("ModelAPI".to_owned(), "proxy".to_owned()),
        ("Agent".to_owned(), "lead".to_owned()),
    ]);
    for (kind, name) in &made {
        ready(&cluster, kind, name)
            .await
            .with_context(|| format!("{kind} {name}"))?;
    }
    for (_, name) in made.iter().filter(|(kind, _)| kind == "Agent") {
        let base = address(&cluster, &format!("agent-{name}"), 80).await?;
        let proof = get(&format!("{base}/prove")).await?;
        assert_eq!(proof["ok"], true, "{name}: {proof:#}");
        assert_eq!(proof["unused"], json!([]), "{name}: {proof:#}");
        assert_eq!(proof["process"]["rootWritable"], false, "{name}");
    }
    // Through the proxy and a provider, to a peer, from there to another, whose tool it asks.
    let inner = r#"call add {"a": 2, "b": 40}"#;
    let middle = format!("call delegate_to_analyst {}", json!({"task": inner}));
    let question = format!("call delegate_to_coordinator {}", json!({"task": middle}));
    let answer = chat(&cluster, "agent-lead", "gpt-4o", &question).await?;
    assert!(answer.contains("42"), "{answer}");

    // A key that the provider does not know: the pods roll with it, and the provider says no.
    let answer = chat(&cluster, "modelapi-proxy", "gpt-4o", "hello").await?;
    assert!(answer.contains("heard: hello"), "{answer}");
    key(&cluster, "wrong").await?;
    eventually_for(PATIENCE, async || {
        let refused = chat(&cluster, "modelapi-proxy", "gpt-4o", "hello").await;
        let error = refused.err().context("the old key still works")?.to_string();
        ensure!(error.contains("401"), "{error}");
        Ok(())
    })
    .await?;
    cluster.done().await
}

/// An object in the seed's shape, from the definitions' own fixtures, under this name.
fn older(file: &str, name: &str) -> anyhow::Result<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/crds/fixtures/good");
    let mut object: Value = serde_saphyr::from_str(&std::fs::read_to_string(path.join(file))?)?;
    object["metadata"]["name"] = name.into();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    Ok(object)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_seeds_shapes_answer() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    provider(&cluster, "first").await?;
    key(&cluster, "first").await?;
    // Any model, with the provider's settings in variables; once by our configuration, once by the user's.
    let settings = json!([
        {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "provider-key", "key": "key"}}},
        {"name": "OPENAI_API_BASE", "value": "http://provider:8000/v1"},
    ]);
    let mut models = older("modelapi/older-proxy.yaml", "models")?;
    let mut routed = older("modelapi/own-config.yaml", "routed")?;
    for proxy in [&mut models, &mut routed] {
        proxy["spec"]["proxyConfig"]["env"] = settings.clone();
    }
    let mut coordinator = older("agent/older.yaml", "coordinator")?;
    coordinator["spec"]["config"]["env"][0]["value"] = "openai/gpt-4o".into();
    let worker = |name: &str| {
        json!({
            "apiVersion": "kaos.tools/v1alpha1", "kind": "Agent", "metadata": {"name": name},
            "spec": {"modelAPI": "hosted", "config": {
                "description": "Works.", "env": [{"name": "MODEL_NAME", "value": "smollm2:135m"}],
            }},
        })
    };
    let objects = [
        coordinator,
        worker("worker-1"),
        worker("worker-2"),
        models,
        routed,
        older("modelapi/older-hosted.yaml", "hosted")?,
        older("mcpserver/older-from-string.yaml", "echo")?,
        older("mcpserver/older-tools-string.yaml", "calculator")?,
    ];
    for object in &objects {
        let kind = object["kind"].as_str().context("no kind")?;
        cluster.apply(&resource(kind), object).await?;
    }
    for object in &objects {
        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
        let (kind, name) = (
            kind.as_str().unwrap_or_default(),
            name.as_str().unwrap_or_default(),
        );
        ready(&cluster, kind, name)
            .await
            .with_context(|| format!("{kind} {name}"))?;
    }
    for name in ["coordinator", "worker-1", "worker-2"] {
        let base = address(&cluster, &format!("agent-{name}"), 80).await?;
        let proof = get(&format!("{base}/prove")).await?;
        assert_eq!(proof["ok"], true, "{name}: {proof:#}");
        assert_eq!(proof["unused"], json!([]), "{name}: {proof:#}");
    }
    for service in ["modelapi-models", "modelapi-routed"] {
        let answer = chat(&cluster, service, "openai/gpt-4o", "hello")
            .await
            .with_context(|| service.to_owned())?;
        assert!(answer.contains("heard: hello"), "{service}: {answer}");
    }
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hosted_model_is_kept_over_restarts_and_a_missing_one_is_named() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    let hosted = |model: &str, offline: bool, kept: bool| {
        let mut config =
            json!({"model": model, "env": [{"name": "STUB_OFFLINE", "value": offline.to_string()}]});
        if kept {
            config["storage"] = json!({"size": "1Gi"});
        }
        json!({"mode": "Hosted", "hostedConfig": config})
    };
    make(&cluster, "ModelAPI", "kept", hosted("smollm2:135m", false, true)).await?;
    make(
        &cluster,
        "ModelAPI",
        "fleeting",
        hosted("smollm2:135m", true, false),
    )
    .await?;
    make(
        &cluster,
        "ModelAPI",
        "wrong",
        hosted("missing-model", false, false),
    )
    .await?;
    ready(&cluster, "ModelAPI", "kept").await?;
    let answer = {
        let url = format!(
            "{}/v1/chat/completions",
            address(&cluster, "modelapi-kept", 11434).await?
        );
        post(
            &url,
            &json!({"model": "smollm2:135m", "messages": [{"role": "user", "content": "hi"}]}),
        )
        .await?
    };
    assert!(answer.contains("heard: hi"), "{answer}");
    // Without a registry only what is on the volume can be served: a new pod, by a new spec and by a lost pod.
    make(&cluster, "ModelAPI", "kept", hosted("smollm2:135m", true, true)).await?;
    ready(&cluster, "ModelAPI", "kept").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let of_kept = ListParams::default().labels("modelapi=kept");
    pods.delete_collection(&DeleteParams::default(), &of_kept).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    ready(&cluster, "ModelAPI", "kept").await?;
    // And where there is no volume, or no such model, the cause is told.
    for (name, word) in [("wrong", "does not exist"), ("fleeting", "smollm2")] {
        eventually_for(PATIENCE, async || {
            let object = cluster.api(&resource("ModelAPI")).get(name).await?;
            let ready = condition(&object, "Ready").context("no Ready yet")?;
            let told = ready["status"] == "False" && ready["message"].to_string().contains(word);
            ensure!(
                told && object.data["status"]["phase"] == "Failed",
                "{name}: {ready}"
            );
            Ok(())
        })
        .await?;
    }
    // The cure does not wait for the patient.
    make(
        &cluster,
        "ModelAPI",
        "wrong",
        hosted("smollm2:135m", false, false),
    )
    .await?;
    ready(&cluster, "ModelAPI", "wrong").await?;
    cluster.done().await
}
