//! PeninOmegaClusters with real pods: stand-ins for the four services, a real Redis, and kubectl as users have it.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use gantry_e2e::{
    Cluster, eventually_for,
    fixtures::{condition, peninomegacluster_resource as resource, wait_ready_for},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
};

use super::{address, get, post, start};

/// Python starts slowly on a tenth of a processor, and more slowly beside others.
const PATIENCE: Duration = Duration::from_secs(300);

/// Component, port, and where its probe asks.
const SERVICES: [(&str, u16, &str); 4] = [
    ("omega-meta", 8010, "/health"),
    ("sigma-guard", 8011, "/health"),
    ("sr-omega-infinity", 8012, "/health"),
    ("acfa-league", 8013, "/league/canary/ping"),
];

fn of(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster", "metadata": {"name": name}, "spec": spec})
}

/// The same for every service.
fn each(value: &Value) -> Value {
    json!({"omegaMeta": value, "sigmaGuard": value, "srOmegaInfinity": value, "acfaLeague": value})
}

/// So that a few clusters fit on two processors.
fn small(replicas: i32) -> Value {
    json!({
        "replicas": each(&json!(replicas)),
        "resources": each(&json!({"cpu": "100m", "memory": "64Mi"})),
        "storage": {"wormLedger": {"size": "1Gi", "deletionPolicy": "Delete"}},
    })
}

pub async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<String> {
    let done = Command::new("kubectl")
        .args(["--kubeconfig", &std::env::var("GANTRY_TEST_REAL")?])
        .args(["--namespace", &cluster.namespace])
        .args(arguments)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "kubectl {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

async fn patch(cluster: &Cluster, name: &str, spec: Value) -> anyhow::Result<()> {
    let patch = json!({"spec": spec}).to_string();
    kubectl(
        cluster,
        &["patch", "penin", name, "--type=merge", "--patch", &patch],
    )
    .await?;
    Ok(())
}

async fn running(cluster: &Cluster, name: &str) -> anyhow::Result<DynamicObject> {
    let live = wait_ready_for(PATIENCE, cluster, &resource(), name, "True", None).await?;
    assert_eq!(live.data["status"]["phase"], "Running");
    Ok(live)
}

/// Pods by name, of a component or of all; those that are going do not count.
async fn pods(cluster: &Cluster, component: Option<&str>) -> anyhow::Result<BTreeMap<String, Pod>> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let labels = component.map_or("app=penin-omega".to_owned(), |c| {
        format!("app=penin-omega,service={c}")
    });
    let list = api.list(&ListParams::default().labels(&labels)).await?;
    let there = list
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(there.map(|pod| (pod.name_any(), pod)).collect())
}

async fn names(cluster: &Cluster, component: &str) -> anyhow::Result<Vec<String>> {
    Ok(pods(cluster, Some(component)).await?.into_keys().collect())
}

/// What a service says of what it was given.
async fn prove(cluster: &Cluster, root: &str, component: &str) -> anyhow::Result<Value> {
    let (_, port, _) = SERVICES
        .into_iter()
        .find(|(name, ..)| *name == component)
        .context("no such service")?;
    let address = address(cluster, &format!("{root}-{component}"), port).await?;
    get(&format!("{address}/prove")).await
}

/// Once all that it was given works: a pod is ready a moment before every node knows its way there.
async fn proven(cluster: &Cluster, root: &str, component: &str) -> anyhow::Result<Value> {
    eventually_for(PATIENCE, async || {
        let proof = prove(cluster, root, component).await?;
        ensure!(proof["ok"] == true, "{proof}");
        Ok(proof)
    })
    .await
}

/// The lines of the ledger, through the service that writes it.
async fn ledger(cluster: &Cluster, root: &str) -> anyhow::Result<String> {
    let proof = prove(cluster, root, "omega-meta").await?;
    Ok(proof["proofs"]["ledger"]["outcome"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

fn example(name: &str) -> anyhow::Result<Value> {
    let file = format!("../../examples/penin/peninomegacluster-{name}.yaml");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    let mut object: Value = serde_saphyr::from_str(&std::fs::read_to_string(path)?)?;
    object["metadata"]
        .as_object_mut()
        .context("no metadata")?
        .remove("namespace");
    Ok(object)
}

/// The seed's flows, one after the other, on what its development example makes.
#[tokio::test(flavor = "multi_thread")]
async fn the_development_example_lives_changes_and_ends() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    cluster.apply(&resource(), &example("dev")?).await?;
    let live = running(&cluster, "penin-dev").await?;
    for service in ["omegaMeta", "sigmaGuard", "srOmegaInfinity", "acfaLeague"] {
        assert_eq!(
            live.data["status"]["services"][service],
            json!({"ready": true, "replicas": 1, "readyReplicas": 1})
        );
    }
    for component in ["omega-meta", "acfa-league"] {
        let proof = proven(&cluster, "penin-dev", component).await?;
        assert_eq!(proof["proofs"]["redis"]["outcome"], "works");
        assert_eq!(
            proof["proofs"].as_object().map(serde_json::Map::len),
            Some(5),
            "{proof}"
        );
        assert_eq!(proof["uid"], 1000);
    }
    the_score_comes_from_rest(&cluster).await?;
    // Out, up, otherwise, and to another version.
    patch(&cluster, "penin-dev", json!({"replicas": {"sigmaGuard": 2}})).await?;
    let live = running(&cluster, "penin-dev").await?;
    assert_eq!(live.data["status"]["services"]["sigmaGuard"]["readyReplicas"], 2);
    changes_touch_what_they_are_for(&cluster).await?;
    patch(&cluster, "penin-dev", json!({"version": "0.10.0"})).await?;
    let live = running(&cluster, "penin-dev").await?;
    assert_eq!(live.data["status"]["version"], "0.10.0");
    for (component, port, path) in SERVICES {
        let address = address(&cluster, &format!("penin-dev-{component}"), port).await?;
        eventually_for(PATIENCE, async || {
            let told = get(&format!("{address}{path}")).await?;
            ensure!(told["version"] == "0.10.0", "{component}: {told}");
            Ok(())
        })
        .await?;
    }
    it_ends_and_its_ledger_stays(&cluster).await?;
    cluster.done().await
}

/// As the original, the stand-in serves no metrics by itself, and scores nothing before it was asked to.
async fn the_score_comes_from_rest(cluster: &Cluster) -> anyhow::Result<()> {
    eventually_for(PATIENCE, async || {
        let live = cluster.api(&resource()).get("penin-dev").await?;
        let told = condition(&live, "MetricsAvailable").context("no condition")?;
        ensure!(told["reason"] == "MetricsNotServed", "{told}");
        ensure!(live.data["status"]["metrics"].is_null());
        // Those that are not up yet are not asked.
        let words = told["message"].as_str().unwrap_or_default();
        ensure!(words.contains("omega-meta: status 404"), "{words}");
        Ok(())
    })
    .await?;
    let sr = address(cluster, "penin-dev-sr-omega-infinity", 8012).await?;
    post(&format!("{sr}/stub/score"), &json!({"sr_score": 0.91})).await?;
    eventually_for(PATIENCE, async || {
        let live = cluster.api(&resource()).get("penin-dev").await?;
        let metrics = &live.data["status"]["metrics"];
        ensure!(*metrics == json!({"srScore": 0.91}), "{metrics}");
        let told = condition(&live, "MetricsAvailable").context("no condition")?;
        ensure!(told["status"] == "True", "{told}");
        Ok(())
    })
    .await
}

async fn changes_touch_what_they_are_for(cluster: &Cluster) -> anyhow::Result<()> {
    let untouched = ["sigma-guard", "sr-omega-infinity", "acfa-league", "redis"];
    let mut before = Vec::new();
    for component in untouched {
        before.push(names(cluster, component).await?);
    }
    let meta = names(cluster, "omega-meta").await?;
    patch(
        cluster,
        "penin-dev",
        json!({"resources": {"omegaMeta": {"cpu": "300m"}}}),
    )
    .await?;
    running(cluster, "penin-dev").await?;
    let new = pods(cluster, Some("omega-meta")).await?;
    assert!(!new.contains_key(&meta[0]), "a new pod");
    let limits = json!(new.into_values().next())["spec"]["containers"][0]["resources"]["limits"].clone();
    assert_eq!(limits["cpu"], "300m");
    patch(
        cluster,
        "penin-dev",
        json!({"config": {"budgetDailyUsd": 2.5, "caosPlus": {"kappa": 25.0}}}),
    )
    .await?;
    running(cluster, "penin-dev").await?;
    let meta = address(cluster, "penin-dev-omega-meta", 8010).await?;
    eventually_for(PATIENCE, async || {
        let env = get(&format!("{meta}/env")).await?;
        ensure!(env["PENIN_CAOS_PLUS__KAPPA"] == "25.0", "{env}");
        ensure!(env["PENIN_BUDGET_DAILY_USD"] == "2.5", "{env}");
        ensure!(env["PENIN_LOG_LEVEL"] == "DEBUG", "{env}");
        Ok(())
    })
    .await?;
    for (component, before) in untouched.into_iter().zip(before).filter(|(name, _)| {
        // These go by the budget and by kappa.
        !matches!(*name, "sr-omega-infinity" | "acfa-league")
    }) {
        assert_eq!(
            names(cluster, component).await?,
            before,
            "{component} was restarted"
        );
    }
    Ok(())
}

async fn it_ends_and_its_ledger_stays(cluster: &Cluster) -> anyhow::Result<()> {
    let written = ledger(cluster, "penin-dev").await?;
    assert!(written.lines().count() >= 3, "one line a start: {written}");
    kubectl(cluster, &["delete", "penin", "penin-dev"]).await?;
    eventually_for(PATIENCE, async || {
        for what in [
            "deployments",
            "replicasets",
            "pods",
            "services",
            "horizontalpodautoscalers",
            "poddisruptionbudgets",
            "networkpolicies",
            "secrets",
        ] {
            let left = kubectl(
                cluster,
                &["get", what, "--output=name", "--selector=app=penin-omega"],
            )
            .await?;
            ensure!(left.is_empty(), "left: {left}");
        }
        Ok(())
    })
    .await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let left = claims.list(&ListParams::default()).await?;
    let left: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
    assert_eq!(left, ["penin-dev-ledger"]);
    // Its successor of the same name writes on.
    cluster.apply(&resource(), &example("dev")?).await?;
    running(cluster, "penin-dev").await?;
    eventually_for(PATIENCE, async || {
        let again = ledger(cluster, "penin-dev").await?;
        ensure!(
            again.starts_with(&written) && again.len() > written.len(),
            "{again}"
        );
        Ok(())
    })
    .await
}

/// Somebody who asks a service without a pause, each time over a new connection.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU32>,
    failures: Arc<Mutex<Vec<String>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    async fn start(cluster: &Cluster, root: &str) -> anyhow::Result<Self> {
        let mut load = Self {
            stop: Arc::default(),
            answered: Arc::default(),
            failures: Arc::default(),
            tasks: Vec::new(),
        };
        for (component, port, path) in SERVICES {
            let url = address(cluster, &format!("{root}-{component}"), port).await? + path;
            let (stop, answered, failures) =
                (load.stop.clone(), load.answered.clone(), load.failures.clone());
            load.tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match get(&url).await {
                        Ok(_) => {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let told = format!("{component}: {error:#}");
                            failures.lock().unwrap_or_else(PoisonError::into_inner).push(told);
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }));
        }
        Ok(load)
    }

    fn seen(&self) -> (u32, Vec<String>) {
        let failures = self
            .failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        (self.answered.load(Ordering::Relaxed), failures)
    }

    async fn stop(self) -> anyhow::Result<(u32, Vec<String>)> {
        self.stop.store(true, Ordering::Relaxed);
        let (answered, failures) = (self.answered, self.failures);
        for task in self.tasks {
            task.await?;
        }
        let failures = failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((answered.load(Ordering::Relaxed), failures))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_lost_in_a_rolling_update() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    cluster.apply(&resource(), &of("ha", small(2))).await?;
    running(&cluster, "ha").await?;
    let load = Load::start(&cluster, "ha").await?;
    for (what, change) in [
        (
            "resources",
            json!({"resources": each(&json!({"memory": "72Mi"}))}),
        ),
        (
            "config",
            json!({"config": {"env": [{"name": "NEW", "value": "1"}]}}),
        ),
        ("version", json!({"version": "0.10.0"})),
        ("replicas", json!({"replicas": {"sigmaGuard": 3}})),
        ("fewer replicas", json!({"replicas": {"sigmaGuard": 2}})),
    ] {
        let (before, _) = load.seen();
        patch(&cluster, "ha", change).await?;
        running(&cluster, "ha").await?;
        let (answered, failures) = load.seen();
        assert_eq!(failures, [] as [String; 0], "{what}");
        assert!(answered > before, "{what}: nobody asked");
    }
    // The pods that go still do.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (answered, failures) = load.stop().await?;
    assert_eq!(failures, [] as [String; 0]);
    assert!(answered > 500, "only {answered} answers");
    println!("{answered} answers, no failure");
    cluster.done().await
}

/// What a Redis at this address says to these lines.
async fn redis(address: &str, words: &str) -> anyhow::Result<String> {
    let host = address.trim_start_matches("http://");
    let mut stream = tokio::net::TcpStream::connect(host).await?;
    stream.write_all(words.as_bytes()).await?;
    let mut answer = vec![0; 200];
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_read_by_either_name_and_a_new_password_goes_everywhere() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let _operator = start(&cluster).await?;
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"token": "let me in"},
    });
    cluster.create(&token).await?;
    let mut spec = small(0);
    spec["replicas"]["omegaMeta"] = json!(1);
    spec["secrets"] = json!({"metricsToken": {"name": "keys", "key": "token"}});
    spec["observability"] = json!({"metricsIntervalSeconds": 5});
    for (set, expected) in [
        (
            "readme",
            json!({"alpha": 0.78, "deltaLinf": 0.05, "caosPlus": 1.9, "srScore": 0.84}),
        ),
        (
            "library",
            json!({"deltaLinf": 0.05, "caosPlus": 1.9, "srScore": 0.84}),
        ),
    ] {
        spec["config"] = json!({"env": [{"name": "STUB_METRICS", "value": set}]});
        cluster.apply(&resource(), &of("m", spec.clone())).await?;
        running(&cluster, "m").await?;
        eventually_for(PATIENCE, async || {
            let live = cluster.api(&resource()).get("m").await?;
            let metrics = &live.data["status"]["metrics"];
            ensure!(*metrics == expected, "{metrics}");
            Ok(())
        })
        .await?;
    }
    // What trembles is not written, what moves is.
    let meta = address(&cluster, "m-omega-meta", 8010).await?;
    let before = cluster.api(&resource()).get("m").await?;
    post(
        &format!("{meta}/stub/metrics"),
        &json!({"penin_caos_plus_score": 1.901}),
    )
    .await?;
    tokio::time::sleep(Duration::from_secs(12)).await;
    let after = cluster.api(&resource()).get("m").await?;
    assert_eq!(before.metadata.resource_version, after.metadata.resource_version);
    post(
        &format!("{meta}/stub/metrics"),
        &json!({"penin_caos_plus_score": 2.5}),
    )
    .await?;
    eventually_for(PATIENCE, async || {
        let live = cluster.api(&resource()).get("m").await?;
        ensure!(live.data["status"]["metrics"]["caosPlus"] == 2.5);
        Ok(())
    })
    .await?;
    a_new_password(&cluster).await?;
    cluster.done().await
}

async fn a_new_password(cluster: &Cluster) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let password = async || -> anyhow::Result<String> {
        let mut data = secrets.get("m-redis-auth").await?.data.context("no data")?;
        Ok(String::from_utf8(
            data.remove("password").context("no password")?.0,
        )?)
    };
    let cache = async || address(cluster, "m-redis", 6379).await;
    let works = async || -> anyhow::Result<()> {
        let proof = prove(cluster, "m", "omega-meta").await?["proofs"]["redis"].clone();
        ensure!(proof["outcome"] == "works", "{proof}");
        Ok(())
    };
    works().await?;
    let first = password().await?;
    assert!(redis(&cache().await?, "PING\r\n").await?.starts_with("-NOAUTH"));
    assert!(
        redis(&cache().await?, &format!("AUTH {first}\r\n"))
            .await?
            .starts_with("+OK")
    );
    secrets.delete("m-redis-auth", &DeleteParams::default()).await?;
    let second = eventually_for(PATIENCE, async || {
        let now = password().await?;
        ensure!(now != first, "still the old one");
        Ok(now)
    })
    .await?;
    eventually_for(PATIENCE, async || {
        let old = redis(&cache().await?, &format!("AUTH {first}\r\n")).await?;
        ensure!(old.starts_with("-WRONGPASS"), "{old}");
        let new = redis(&cache().await?, &format!("AUTH {second}\r\n")).await?;
        ensure!(new.starts_with("+OK"), "{new}");
        works().await
    })
    .await?;
    running(cluster, "m").await?;
    Ok(())
}

/// A Deployment and a Service as the original writes them; `arguments` are what a user's own image would bring.
async fn play_the_original(
    cluster: &Cluster,
    root: &DynamicObject,
    component: &str,
    container: Value,
    port: u16,
) -> anyhow::Result<()> {
    let by = PostParams {
        field_manager: Some("OpenAPI-Generator".to_owned()),
        ..PostParams::default()
    };
    let labels = json!({"app": "penin-omega", "cluster": root.name_any(), "service": component});
    let owner = json!([{
        "apiVersion": "penin.ai/v1alpha1", "kind": "PeninOmegaCluster", "name": root.name_any(), "uid": root.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let metadata = json!({"name": format!("{}-{component}", root.name_any()), "labels": labels, "ownerReferences": owner});
    let kinds = gantry_e2e::snapshot::child_kinds();
    let deployment: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "annotations": {"prometheus.io/scrape": "true"}},
            "spec": {"containers": [container]},
        }},
    }))?;
    cluster.api(&kinds[0]).create(&by, &deployment).await?;
    let service: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"type": "ClusterIP", "selector": labels, "ports": [{"port": port, "targetPort": port}]},
    }))?;
    cluster.api(&kinds[1]).create(&by, &service).await?;
    Ok(())
}

/// The original's own pods listen where nobody asks them, and its league has no such page: only a user's own image ever
/// got ready. What serves stays, what does not is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_original_left_is_taken_over_while_it_runs() -> anyhow::Result<()> {
    let cluster = Cluster::real().await?;
    let mut object = of("old", small(1));
    object["metadata"]["finalizers"] = json!(["kopf.zalando.org/KopfFinalizerMarker"]);
    let root = cluster.apply(&resource(), &object).await?;
    let resources = json!({"cpu": "100m", "memory": "64Mi"});
    for ((component, port, _), command) in SERVICES.into_iter().zip(["meta", "guard", "sr", "league"]) {
        let serves = matches!(command, "guard" | "sr");
        let port_text = port.to_string();
        let arguments: &[&str] = if serves {
            &["--host", "0.0.0.0", "--port", &port_text]
        } else {
            &[]
        };
        let probe = json!({"httpGet": {"path": "/health", "port": port}, "periodSeconds": 2});
        let container = json!({
            "name": component, "image": "ghcr.io/danielgonzagat/peninaocubo:0.9.0", "imagePullPolicy": "IfNotPresent",
            "command": ["penin", command], "args": arguments,
            "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
            "env": [{"name": "PENIN_DATA_DIR", "value": "/tmp"}, {"name": "PENIN_METRICS_PORT", "value": port_text}],
            "resources": {"requests": resources, "limits": resources}, "readinessProbe": probe,
        });
        play_the_original(&cluster, &root, component, container, port).await?;
    }
    let container = json!({
        "name": "redis", "image": "redis:7-alpine", "ports": [{"containerPort": 6379}],
        "command": ["redis-server"],
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}},
    });
    play_the_original(&cluster, &root, "redis", container, 6379).await?;
    let before = eventually_for(PATIENCE, async || {
        let found = pods(&cluster, None).await?;
        let ready = |component: &str| {
            found.values().any(|pod| {
                let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
                pod.labels().get("service").map(String::as_str) == Some(component)
                    && conditions
                        .into_iter()
                        .any(|c| c.type_ == "Ready" && c.status == "True")
            })
        };
        ensure!(found.len() == 5 && ready("sigma-guard") && ready("sr-omega-infinity") && ready("redis"));
        Ok(found)
    })
    .await?;
    let _operator = start(&cluster).await?;
    running(&cluster, "old").await?;
    let after = pods(&cluster, None).await?;
    for (name, pod) in &before {
        let component = pod.labels()["service"].as_str();
        let stays = matches!(component, "sigma-guard" | "sr-omega-infinity");
        assert_eq!(after.contains_key(name), stays, "{name}");
    }
    proven(&cluster, "old", "omega-meta").await?;
    // A change brings the rest, and the finalizer of a framework that is gone holds nothing up.
    patch(&cluster, "old", json!({"version": "0.10.0"})).await?;
    running(&cluster, "old").await?;
    for (component, ..) in SERVICES {
        for (name, pod) in pods(&cluster, Some(component)).await? {
            assert!(!before.contains_key(&name), "{name} is still the original's");
            assert_eq!(pod.labels()["app.kubernetes.io/managed-by"], "gantry");
        }
    }
    kubectl(&cluster, &["delete", "penin", "old", "--timeout=60s"]).await?;
    cluster.done().await
}
