//! Real API servers: registered, looked at, lost and found again.

use std::{path::Path, process::Command};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gantry_e2e::{cluster::eventually, fleet::Fleet};
use k8s_openapi::{
    api::{
        authentication::v1::TokenRequest,
        core::v1::{Node, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::door::Door;

/// The kubeconfig of a cluster of the tests, as a document.
pub fn kubeconfig(variable: &str) -> anyhow::Result<Value> {
    let path = std::env::var(variable).with_context(|| format!("{variable} must name a kubeconfig"))?;
    Ok(serde_saphyr::from_str(&std::fs::read_to_string(path)?)?)
}

pub fn in_base64(document: &Value) -> Value {
    json!(STANDARD.encode(document.to_string()))
}

pub async fn client(document: &Value) -> anyhow::Result<Client> {
    let kubeconfig: Kubeconfig = serde_json::from_value(document.clone())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn server(document: &Value) -> &str {
    document["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap_or_default()
}

/// The same cluster through a door.
async fn through_a_door(document: &Value) -> anyhow::Result<(Door, Value)> {
    let target = server(document)
        .trim_start_matches("https://")
        .trim_end_matches('/')
        .to_owned();
    let host = target.split(':').next().unwrap_or_default().to_owned();
    let door = Door::before(target).await?;
    let mut document = document.clone();
    let cluster = &mut document["clusters"][0]["cluster"];
    cluster["server"] = json!(format!("https://{}", door.address));
    // Its certificate is for its own address.
    cluster["tls-server-name"] = json!(host);
    Ok((door, document))
}

/// A service account with these rules, and a kubeconfig with a token of it.
async fn account(client: &Client, document: &Value, name: &str, rules: Value) -> anyhow::Result<Value> {
    let params = PatchParams::apply("e2e").force();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let body = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    accounts.patch(name, &params, &Patch::Apply(&body)).await?;
    let api_version = "rbac.authorization.k8s.io/v1";
    let role =
        json!({"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    Api::<ClusterRole>::all(client.clone())
        .patch(name, &params, &Patch::Apply(&role))
        .await?;
    let binding = json!({
        "apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    });
    Api::<ClusterRoleBinding>::all(client.clone())
        .patch(name, &params, &Patch::Apply(&binding))
        .await?;
    let request: TokenRequest = serde_json::from_value(json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "metadata": {}, "spec": {"audiences": [], "expirationSeconds": 3600},
    }))?;
    let answer = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await?;
    let token = answer.status.context("no token")?.token;
    let mut document = document.clone();
    document["users"][0]["user"] = json!({"token": token});
    Ok(document)
}

pub fn reader_rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]},
    ])
}

#[tokio::test]
async fn real_clusters_are_registered_and_known_by_what_they_run() -> anyhow::Result<()> {
    let fleet = Fleet::start(&[]).await?;
    for (name, variable, environment) in [
        ("simulated", "GANTRY_TEST_SIM", "Dev"),
        ("real", "GANTRY_TEST_REAL", "Production"),
    ] {
        let document = kubeconfig(variable)?;
        let body = json!({"name": name, "environment": environment, "kubeconfig": in_base64(&document)});
        let made = fleet.post("/clusters", &body).await?;
        let client = client(&document).await?;
        let nodes = Api::<Node>::all(client.clone())
            .list(&ListParams::default())
            .await?
            .items
            .len();
        assert_eq!(made["nodeCount"], nodes);
        assert_eq!(
            made["kubernetesVersion"],
            client.apiserver_version().await?.git_version
        );
        assert_eq!(made["apiServerUrl"], server(&document));
        assert_eq!(made["healthStatus"], "Healthy", "{made}");
    }
    // What was uploaded made readers, and they look.
    let admin = client(&kubeconfig("GANTRY_TEST_SIM")?).await?;
    let id = fleet.get("/clusters/simulated").await?["clusterId"]
        .as_str()
        .context("id")?
        .replace('-', "");
    let reader = format!("gantry-fleet-reader-{}", &id[..12]);
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "gantry-fleet");
    eventually(async || Ok(accounts.get(&reader).await.map(drop)?)).await?;
    eventually(async || {
        let cluster = fleet.get("/clusters/simulated").await?;
        anyhow::ensure!(
            cluster["lastHealthCheckAt"] != cluster["registeredAt"],
            "{cluster}"
        );
        anyhow::ensure!(cluster["healthStatus"] == "Healthy", "{cluster}");
        Ok(())
    })
    .await?;
    assert_eq!(fleet.get("/clusters?healthStatus=Healthy").await?["total"], 2);
    assert_eq!(
        fleet.get("/clusters?environment=Production").await?["clusters"][0]["name"],
        "real"
    );
    fleet
        .ask("DELETE", "/clusters/simulated", None)
        .await?
        .expect(204)?;
    let bindings: Api<ClusterRoleBinding> = Api::all(admin);
    // The reader goes with the cluster, also one that a look was still making.
    eventually(async || {
        anyhow::ensure!(accounts.get_opt(&reader).await?.is_none(), "the account stays");
        anyhow::ensure!(bindings.get_opt(&reader).await?.is_none(), "the binding stays");
        Ok(())
    })
    .await?;
    let whole = fleet.command(&["audit", "verify"])?;
    assert!(whole.contains("is whole"), "{whole}");
    fleet.stop().await
}

/// A definition as a chart has it, and what a real server makes of it, are known to be the same.
#[tokio::test]
async fn a_definition_on_a_real_cluster_is_recognised() -> anyhow::Result<()> {
    let fleet = Fleet::start(&[]).await?;
    let document = kubeconfig("GANTRY_TEST_SIM")?;
    let client = client(&document).await?;
    let definition = |kind: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "fleetthings.e2e.gantry.dev"},
            "spec": {"group": "e2e.gantry.dev", "scope": "Namespaced",
                "names": {"plural": "fleetthings", "kind": "FleetThing"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "description": "words",
                    "properties": {"spec": {"type": "object", "properties": {
                        "size": {"type": kind, "description": "how large"},
                        "names": {"type": "array", "items": {"type": "string"}, "default": []},
                    }}},
                }}}]},
        })
    };
    for (version, kind) in [("1.0.0", "integer"), ("2.0.0", "string")] {
        let body = json!({"operatorVersion": version, "schemaDefinition": definition(kind)});
        fleet.post("/crds", &body).await?;
    }
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("e2e").force();
    api.patch(
        "fleetthings.e2e.gantry.dev",
        &params,
        &Patch::Apply(&definition("integer")),
    )
    .await?;
    let rights = account(&client, &document, "gantry-fleet-e2e-crds", reader_rules()).await?;
    let body = json!({"name": "sim", "environment": "Dev", "kubeconfig": rights});
    fleet.post("/clusters", &body).await?;
    let runs = async |version: &str| {
        eventually(async || {
            let crd = fleet.get("/crds/fleetthings.e2e.gantry.dev").await?;
            let on = &crd["clusters"][0];
            anyhow::ensure!(on["operatorVersion"] == version, "{on}");
            anyhow::ensure!(on["storedVersions"] == json!(["v1"]), "{on}");
            Ok(())
        })
        .await
    };
    runs("1.0.0").await?;
    api.patch(
        "fleetthings.e2e.gantry.dev",
        &params,
        &Patch::Apply(&definition("string")),
    )
    .await?;
    runs("2.0.0").await?;
    api.delete("fleetthings.e2e.gantry.dev", &DeleteParams::default())
        .await?;
    fleet.stop().await
}

#[tokio::test]
async fn a_cluster_that_is_lost_is_unhealthy_and_comes_back_by_itself() -> anyhow::Result<()> {
    let fleet = Fleet::start(&[]).await?;
    let document = kubeconfig("GANTRY_TEST_SIM")?;
    let client = client(&document).await?;
    let (door, doored) = through_a_door(&document).await?;
    let (other_door, other) = through_a_door(&document).await?;
    let account_of = |name| account(&client, &doored, name, reader_rules());
    let token = account_of("gantry-fleet-e2e-lost").await?;
    for (name, kubeconfig) in [("door", &doored), ("other", &other), ("token", &token)] {
        let body = json!({"name": name, "environment": "Dev", "kubeconfig": kubeconfig});
        assert_eq!(fleet.post("/clusters", &body).await?["healthStatus"], "Healthy");
    }
    let is = async |name: &str, health: &str| {
        eventually(async || {
            let cluster = fleet.get(&format!("/clusters/{name}")).await?;
            anyhow::ensure!(cluster["healthStatus"] == health, "{cluster}");
            Ok(cluster)
        })
        .await
    };
    door.shut();
    let lost = is("door", "Unhealthy").await?;
    assert!(lost["healthSince"].is_string());
    assert_eq!(is("other", "Healthy").await?["healthReason"], "NodesReady");
    door.silent();
    eventually(async || {
        let cluster = fleet.get("/clusters/door").await?;
        anyhow::ensure!(cluster["healthReason"] == "Timeout", "{cluster}");
        Ok(())
    })
    .await?;
    // One that hangs delays nobody.
    let before = fleet.get("/clusters/other").await?["lastHealthCheckAt"].clone();
    eventually(async || {
        let now = fleet.get("/clusters/other").await?["lastHealthCheckAt"].clone();
        anyhow::ensure!(now != before);
        Ok(())
    })
    .await?;
    door.open();
    is("door", "Healthy").await?;
    // It went through the same door: its reason is a new one only from here on.
    is("token", "Healthy").await?;
    // A token that is revoked.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    accounts
        .delete("gantry-fleet-e2e-lost", &DeleteParams::default())
        .await?;
    assert_eq!(is("token", "Unhealthy").await?["healthReason"], "Unauthorized");
    // New credentials for the same cluster.
    let renewed = account_of("gantry-fleet-e2e-lost").await?;
    fleet
        .ask("PUT", "/clusters/token", Some(&json!({"kubeconfig": renewed})))
        .await?
        .expect(200)?;
    is("token", "Healthy").await?;
    // A connection that is in use goes half-open: nothing comes through any more, and nobody says so.
    eventually(async || {
        anyhow::ensure!(other_door.through() > 0, "no connection is kept");
        Ok(())
    })
    .await?;
    other_door.jam();
    assert_eq!(is("other", "Unhealthy").await?["healthReason"], "Timeout");
    other_door.open();
    assert_eq!(is("other", "Healthy").await?["healthReason"], "NodesReady");
    fleet.stop().await
}

/// Kills the API server of a local cluster, if it runs; the cluster starts it again with the same data.
fn kill_the_api_server(variable: &str) -> anyhow::Result<()> {
    let kubeconfig = std::env::var(variable).with_context(|| format!("{variable} must name a kubeconfig"))?;
    // It is in NAME/pki.
    let name = Path::new(&kubeconfig)
        .ancestors()
        .nth(2)
        .and_then(Path::file_name)
        .context("a kubeconfig of dev/cluster is in a folder")?;
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/cluster"))
        .arg("exec")
        .arg(name)
        .args(["--", "pkill", "-KILL", "-x", "kube-apiserver"])
        .status()?;
    Ok(())
}

#[tokio::test]
async fn an_api_server_that_is_killed_is_known_and_found_again() -> anyhow::Result<()> {
    let fleet = Fleet::start(&[]).await?;
    for (name, variable) in [("lost", "GANTRY_TEST_LOST"), ("other", "GANTRY_TEST_SIM")] {
        let body =
            json!({"name": name, "environment": "Dev", "kubeconfig": in_base64(&kubeconfig(variable)?)});
        assert_eq!(fleet.post("/clusters", &body).await?["healthStatus"], "Healthy");
    }
    for _ in 0..2 {
        // As often as it comes back: a look that is under way waits for a moment.
        let lost = eventually(async || {
            kill_the_api_server("GANTRY_TEST_LOST")?;
            let cluster = fleet.get("/clusters/lost").await?;
            anyhow::ensure!(cluster["healthStatus"] == "Unhealthy", "{cluster}");
            Ok(cluster)
        })
        .await?;
        let reason = lost["healthReason"].as_str().unwrap_or_default();
        // Connections that were open break off; new ones are refused.
        assert!(["ConnectionRefused", "Unreachable"].contains(&reason), "{lost}");
        assert_ne!(lost["healthMessage"], "");
        let other = fleet.get("/clusters/other").await?;
        assert_eq!(other["healthStatus"], "Healthy", "{other}");
        eventually(async || {
            let cluster = fleet.get("/clusters/lost").await?;
            anyhow::ensure!(cluster["healthReason"] == "NodesReady", "{cluster}");
            Ok(())
        })
        .await?;
    }
    let changes = fleet.get("/audit?action=cluster.health-changed").await?;
    assert!(changes["total"].as_u64() >= Some(4), "{changes}");
    fleet.stop().await
}

#[tokio::test]
async fn credentials_that_do_not_do_are_refused_with_the_reason() -> anyhow::Result<()> {
    let fleet = Fleet::start(&[]).await?;
    let document = kubeconfig("GANTRY_TEST_SIM")?;
    let client = client(&document).await?;
    let powerless = account(&client, &document, "gantry-fleet-e2e-powerless", json!([])).await?;
    let mut other_authority = document.clone();
    other_authority["clusters"][0]["cluster"]["certificate-authority-data"] =
        kubeconfig("GANTRY_TEST_REAL")?["clusters"][0]["cluster"]["certificate-authority-data"].clone();
    let mut wrong_token = document.clone();
    wrong_token["users"][0]["user"] = json!({"token": "not.a.token"});
    for (kubeconfig, words) in [
        (powerless, "may not do what is needed"),
        (other_authority, "not signed by the authority"),
        (wrong_token, "does not take the credentials"),
    ] {
        let body = json!({"name": "x", "environment": "Dev", "kubeconfig": kubeconfig});
        let refused = fleet.ask("POST", "/clusters", Some(&body)).await?.expect(503)?;
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(words), "{message}");
    }
    fleet.stop().await
}
