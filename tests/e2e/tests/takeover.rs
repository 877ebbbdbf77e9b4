//! What a running KAOS made is taken over while it runs: no pod restarts, and what is later removed really goes.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, Running, eventually,
    fixtures::{agent_resource, mcpserver_resource, modelapi_resource, wait_ready},
    optional,
    snapshot::child_kinds,
};
use gantry_kit::{Options, testing::Faults};
use gantry_operator::workload::route;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

/// A root as KAOS left it, and the workload that it made for it.
struct Original {
    resource: ApiResource,
    root: Value,
    status: Value,
    child: &'static str,
    route: &'static str,
    /// Label and container.
    app: &'static str,
    container: &'static str,
    ports: Value,
    env: Value,
    /// A change that rolls the pods.
    change: Value,
}

fn originals(namespace: &str) -> Vec<Original> {
    let of = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "kaos.tools/v1alpha1", "kind": kind, "spec": spec,
            "metadata": {"name": name, "finalizers": [format!("kaos.tools/{}-finalizer", kind.to_lowercase())]},
        })
    };
    let told = |child: &str, more: Value| {
        let mut status = json!({
            "phase": "Ready", "ready": true, "message": "Deployment ready replicas: 1/1",
            "endpoint": format!("http://{child}.{namespace}.svc.cluster.local:8000"),
            "deployment": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "updatedReplicas": 1},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            status[field] = value.clone();
        }
        status
    };
    let ports = json!([{"name": "http", "port": 8000, "targetPort": 8000, "protocol": "TCP"}]);
    vec![
        Original {
            resource: modelapi_resource(),
            root: of(
                "ModelAPI",
                "llm",
                json!({"mode": "Proxy", "proxyConfig": {"models": ["gpt-4o"], "apiBase": "http://stub"}}),
            ),
            status: told("modelapi-llm", json!({"supportedModels": ["gpt-4o"]})),
            child: "modelapi-llm",
            route: "modelapi-llm",
            app: "modelapi",
            container: "model-api",
            ports: ports.clone(),
            env: json!([{"name": "PROXY_API_BASE", "value": "http://stub"}, {"name": "LITELLM_LOG", "value": "INFO"},
                        {"name": "ONLY_THE_ORIGINAL", "value": "1"}]),
            change: json!({"proxyConfig": {"apiBase": "http://other"}}),
        },
        Original {
            resource: mcpserver_resource(),
            root: of(
                "MCPServer",
                "echo",
                json!({"runtime": "python-string", "params": "def a(): pass"}),
            ),
            status: told("mcpserver-echo", json!({})),
            child: "mcpserver-echo",
            route: "mcp-echo",
            app: "mcpserver",
            container: "mcp-server",
            ports: ports.clone(),
            env: json!([{"name": "MCP_TOOLS_STRING", "value": "def a(): pass"}, {"name": "ONLY_THE_ORIGINAL", "value": "1"}]),
            change: json!({"params": "def b(): pass"}),
        },
        Original {
            resource: agent_resource(),
            root: of(
                "Agent",
                "front",
                json!({"modelAPI": "llm", "model": "gpt-4o", "mcpServers": ["echo"]}),
            ),
            status: told("agent-front", json!({"linkedResources": {"modelapi": "llm"}})),
            child: "agent-front",
            route: "agent-front",
            app: "agent",
            container: "agent",
            ports,
            env: json!([{"name": "AGENT_NAME", "value": "front"}, {"name": "MODEL_NAME", "value": "gpt-4o"},
                        {"name": "ONLY_THE_ORIGINAL", "value": "1"}]),
            change: json!({"config": {"instructions": "be brief"}}),
        },
    ]
}

/// Everything is written as the original writes it: plain creates and updates by field manager `manager`.
async fn play_the_original(cluster: &Cluster, original: &Original) -> anyhow::Result<()> {
    let by = PostParams {
        field_manager: Some("manager".to_owned()),
        ..PostParams::default()
    };
    let root: DynamicObject = serde_json::from_value(original.root.clone())?;
    let roots = cluster.api(&original.resource);
    let mut root = roots.create(&PostParams::default(), &root).await?;
    let name = root.name_any();
    root.data["status"] = original.status.clone();
    let root = roots.replace_status(&name, &by, &root).await?;
    let labels = json!({"app": original.app, original.app: name});
    let owner = json!([{
        "apiVersion": "kaos.tools/v1alpha1", "kind": original.resource.kind, "name": name, "uid": root.metadata.uid,
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let metadata = |name: &str| json!({"name": name, "labels": labels, "ownerReferences": owner});
    let mut pod = json!({"containers": [{
        "name": original.container, "image": "axsauze/original:1", "imagePullPolicy": "IfNotPresent", "env": original.env,
        "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
    }]});
    if original.app == "modelapi" {
        let config = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("litellm-config-llm"),
            "data": {"config.yaml": "model_list: []\n", "only-the-original": "1"},
        });
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        maps.create(&by, &serde_json::from_value(config)?).await?;
        pod["volumes"] = json!([{"name": "config", "configMap": {"name": "litellm-config-llm"}}]);
    }
    let deployment: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(original.child),
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"kaos.tools/pod-spec-hash": "0123456789abcdef"}},
                "spec": pod,
            },
        },
    }))?;
    cluster.api(&child_kinds()[0]).create(&by, &deployment).await?;
    let service: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(original.child),
        "spec": {"type": "ClusterIP", "selector": labels, "ports": original.ports},
    }))?;
    cluster.api(&child_kinds()[1]).create(&by, &service).await?;
    let route: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": metadata(original.route),
        "spec": {
            "parentRefs": [{"name": "gw", "namespace": "gw"}], "hostnames": ["only-the-original.example.com"],
            "rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": format!("/{}/{}/{name}", cluster.namespace, original.app)}}],
                "backendRefs": [{"name": original.child, "port": 8000}],
            }],
        },
    }))?;
    eventually(async || Ok(cluster.api(&route::resource()).create(&by, &route).await?)).await?;
    Ok(())
}

async fn pods(cluster: &Cluster, original: &Original) -> anyhow::Result<BTreeSet<String>> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let list = api
        .list(&ListParams::default().labels(&format!("app={}", original.app)))
        .await?;
    Ok(list.into_iter().filter_map(|pod| pod.metadata.uid).collect())
}

async fn start(cluster: &Cluster) -> anyhow::Result<Running> {
    Running::start_with(
        cluster,
        &Faults::default(),
        Options::default(),
        optional::settings(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_kaos_is_taken_over_without_a_restart() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    let deployments = cluster.api(&child_kinds()[0]);
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let originals = originals(&cluster.namespace);
    optional::install(&cluster).await?;
    for original in &originals {
        play_the_original(&cluster, original).await?;
    }
    let mut before = Vec::new();
    for original in &originals {
        let live = eventually(async || {
            let live = deployments.get(original.child).await?;
            ensure!(
                live.data["status"]["availableReplicas"] == 1,
                "{} does not run yet",
                original.child
            );
            Ok(live)
        })
        .await?;
        before.push((live, pods(&cluster, original).await?));
    }
    let operator = start(&cluster).await?;
    for (original, (deployment, running)) in originals.iter().zip(&before) {
        let name = original.root["metadata"]["name"].as_str().context("a name")?;
        let object = wait_ready(&cluster, &original.resource, name, "True", None).await?;
        assert_eq!(object.data["status"]["phase"], "Ready");
        let live = deployments.get(original.child).await?;
        assert_eq!(live.metadata.uid, deployment.metadata.uid);
        assert_eq!(
            live.data["spec"]["template"], deployment.data["spec"]["template"],
            "the template of {} stays",
            original.child
        );
        assert_eq!(
            live.labels()
                .get("app.kubernetes.io/managed-by")
                .map(String::as_str),
            Some("gantry")
        );
        assert_eq!(
            &pods(&cluster, original).await?,
            running,
            "the pods of {} stay",
            original.child
        );
        let service = services.get(original.child).await?;
        assert_eq!(
            service
                .labels()
                .get("app.kubernetes.io/managed-by")
                .map(String::as_str),
            Some("gantry")
        );
        let route = cluster.api(&route::resource()).get(original.route).await?;
        assert_eq!(
            route
                .labels()
                .get("app.kubernetes.io/managed-by")
                .map(String::as_str),
            Some("gantry")
        );
        assert_eq!(
            route.data["spec"]["hostnames"],
            Value::Null,
            "a field that is ours no longer"
        );
    }
    // Taken over, all is as quiet as if we had made it.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let writes = operator.faults.writes();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(operator.faults.writes()[writes.len()..], [], "at rest");
    operator.kill().await;
    let operator = start(&cluster).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(operator.faults.writes(), [], "after a restart");
    for (original, (_, running)) in originals.iter().zip(&before) {
        assert_eq!(
            &pods(&cluster, original).await?,
            running,
            "the pods of {} still stay",
            original.child
        );
    }
    removals_work(&cluster, &originals).await?;
    cluster.done().await
}

async fn removals_work(cluster: &Cluster, originals: &[Original]) -> anyhow::Result<()> {
    let deployments = cluster.api(&child_kinds()[0]);
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    // A change of the spec rolls the pods, and nothing of the original stays in them.
    for original in originals {
        let name = original.root["metadata"]["name"].as_str().context("a name")?;
        let patch = Patch::Merge(json!({"spec": original.change}));
        cluster
            .api(&original.resource)
            .patch(name, &PatchParams::default(), &patch)
            .await?;
    }
    for original in originals {
        eventually(async || {
            let live = deployments.get(original.child).await?;
            let template = live.data["spec"]["template"].to_string();
            ensure!(!template.contains("axsauze/original:1"), "not rolled yet");
            ensure!(!template.contains("ONLY_THE_ORIGINAL"), "left over: {template}");
            ensure!(!template.contains("pod-spec-hash"), "left over: {template}");
            Ok(())
        })
        .await
        .with_context(|| original.child.to_owned())?;
        let name = original.root["metadata"]["name"].as_str().context("a name")?;
        wait_ready(cluster, &original.resource, name, "True", None).await?;
    }
    let hidden = Patch::Merge(json!({"spec": {"agentNetwork": {"expose": false}}}));
    cluster
        .api(&agent_resource())
        .patch("front", &PatchParams::default(), &hidden)
        .await?;
    eventually(async || {
        ensure!(
            services.get_opt("agent-front").await?.is_none(),
            "the Service is still there"
        );
        Ok(())
    })
    .await?;
    for original in originals {
        let name = original.root["metadata"]["name"].as_str().context("a name")?;
        let hidden = Patch::Merge(json!({"spec": {"gatewayRoute": {"enabled": false}}}));
        cluster
            .api(&original.resource)
            .patch(name, &PatchParams::default(), &hidden)
            .await?;
        eventually(async || {
            let route = cluster.api(&route::resource()).get_opt(original.route).await?;
            ensure!(route.is_none(), "the HTTPRoute is still there");
            Ok(())
        })
        .await?;
    }
    // Finalizers that nobody serves any more hold nothing back.
    for original in originals {
        let name = original.root["metadata"]["name"].as_str().context("a name")?;
        cluster.delete(&original.resource, name).await?;
        eventually(async || {
            ensure!(
                cluster.api(&original.resource).get_opt(name).await?.is_none(),
                "held back"
            );
            ensure!(deployments.get_opt(original.child).await?.is_none(), "left over");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
