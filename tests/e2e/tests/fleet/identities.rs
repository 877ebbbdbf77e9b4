//! Who we are in a real cluster: accounts that are there only as long as they are needed, credentials that end.

use std::{path::Path, process::Command, time::Duration};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use gantry_e2e::{cluster::eventually, fleet::Fleet};
use gantry_fleet::infrastructure::kubernetes::{connect, deployer, reader, slots::Slots, with_token};
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Secret, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::clusters::{client, kubeconfig, reader_rules};

async fn may_make_namespaces(client: &Client) -> Result<(), kube::Error> {
    let namespace = serde_json::from_value(json!({"metadata": {"name": "gantry-fleet-e2e-made"}}));
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    Api::<Namespace>::all(client.clone())
        .create(&params, &namespace.unwrap_or_default())
        .await
        .map(drop)
}

/// Token Secrets of an account of ours: their names, and what is in each in place of a token.
async fn token_secrets(admin: &Client, account: &str) -> anyhow::Result<Vec<(String, String)>> {
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "gantry-fleet");
    let of_it = |secret: &Secret| {
        let annotations = secret.metadata.annotations.as_ref();
        let of = annotations.and_then(|all| all.get("kubernetes.io/service-account.name"));
        of.is_some_and(|of| of == account)
    };
    let named = |secret: Secret| {
        let token = secret.data.unwrap_or_default().remove("token");
        let token = String::from_utf8(token.map(|token| token.0).unwrap_or_default()).ok()?;
        Some((secret.metadata.name?, token))
    };
    let all = secrets.list(&ListParams::default()).await?.items;
    Ok(all.into_iter().filter(of_it).filter_map(named).collect())
}

/// Those of them that open something.
async fn usable(admin: &Client, account: &str) -> anyhow::Result<Vec<String>> {
    let all = token_secrets(admin, account).await?.into_iter();
    let is_token = |text: &str| text.starts_with("ey") && text.split('.').count() == 3;
    Ok(all
        .filter(|(_, token)| is_token(token))
        .map(|(name, _)| name)
        .collect())
}

/// One that is being made while ours takes its place is taken back by the cluster; after that, none comes.
async fn none_is_usable(admin: &Client, account: &str) -> anyhow::Result<()> {
    let none = async || {
        let found = usable(admin, account).await?;
        anyhow::ensure!(found.is_empty(), "{found:?} can be used");
        Ok(())
    };
    eventually(none).await?;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        none().await?;
    }
    Ok(())
}

async fn is_old(admin: &Client) -> anyhow::Result<bool> {
    let version = admin.apiserver_version().await?;
    let is_old = version.minor.trim_end_matches('+').parse::<u32>()? < 24;
    if !is_old {
        println!("NOT TESTED: tokens that do not end, because {version:?} makes none");
    }
    Ok(is_old)
}

async fn none_is_left(admin: &Client, account: &str) -> anyhow::Result<()> {
    eventually(async || {
        let left = token_secrets(admin, account).await?;
        anyhow::ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deployer_can_deploy_while_it_is_bound_and_not_after() -> anyhow::Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let document = kubeconfig("GANTRY_TEST_SIM")?;
    let admin = client(&document).await?;
    let deployment = Uuid::new_v4();
    let name = format!("gantry-fleet-deployer-{}", &deployment.simple().to_string()[..12]);
    let (token, renew_at) = deployer::bind(&admin, deployment, "cluster-admin", Timestamp::now()).await?;
    assert!(renew_at > Timestamp::now());
    let lent = connect(&with_token(&document, &token), &Slots::new(4)).await?;
    may_make_namespaces(&lent).await?;
    // An old server makes tokens that never end, and would make one for an administrator here.
    if is_old(&admin).await? {
        none_is_usable(&admin, &name).await?;
        deployer::bind(&admin, deployment, "cluster-admin", Timestamp::now()).await?;
        none_is_usable(&admin, &name).await?;
        let kept = token_secrets(&admin, &name).await?;
        assert_eq!(kept.len(), 1, "{kept:?}");
    }
    deployer::unbind(&admin, deployment).await?;
    let refused = eventually(async || {
        let refused = may_make_namespaces(&lent).await.err().context("it still may")?;
        Ok(refused.to_string())
    })
    .await?;
    assert!(
        refused.contains("nauthorized") || refused.contains("forbidden"),
        "{refused}"
    );
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "gantry-fleet");
    assert!(accounts.get_opt(&name).await?.is_none());
    assert!(
        Api::<ClusterRoleBinding>::all(admin)
            .get_opt(&name)
            .await?
            .is_none()
    );
    // What is gone can be taken away once more.
    deployer::unbind(&client(&document).await?, deployment).await?;
    none_is_left(&client(&document).await?, &name).await
}

/// Only servers before 1.24 make such tokens.
#[tokio::test]
async fn no_token_of_the_reader_lasts_and_one_that_was_there_before_ends() -> anyhow::Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let document = kubeconfig("GANTRY_TEST_SIM")?;
    let admin = client(&document).await?;
    if !is_old(&admin).await? {
        return Ok(());
    }
    let cluster = Uuid::new_v4();
    let name = format!("gantry-fleet-reader-{}", &cluster.simple().to_string()[..12]);
    reader::open(&admin, cluster, &[], Timestamp::now()).await?;
    none_is_usable(&admin, &name).await?;
    // As it was before: the server has made a token, and the account refers to nothing else.
    let (ours, word) = token_secrets(&admin, &name).await?.pop().context("none")?;
    assert!(!word.is_empty());
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "gantry-fleet");
    secrets.delete(&ours, &DeleteParams::default()).await?;
    let made = eventually(async || usable(&admin, &name).await?.pop().context("none yet")).await?;
    let token = secrets.get(&made).await?.data.context("data")?.remove("token");
    let token = String::from_utf8(token.context("token")?.0)?;
    let holder = connect(&with_token(&document, &token), &Slots::new(4)).await?;
    let nodes: Api<Node> = Api::all(holder);
    eventually(async || Ok(nodes.list(&ListParams::default()).await.map(drop)?)).await?;
    reader::open(&admin, cluster, &[], Timestamp::now()).await?;
    none_is_usable(&admin, &name).await?;
    let refused = eventually(async || {
        let refused = nodes.list(&ListParams::default()).await;
        Ok(refused.err().context("it still opens")?.to_string())
    })
    .await?;
    assert!(refused.contains("nauthorized"), "{refused}");
    // One that somebody empties is filled by the server, and does not stay so either.
    let emptied = json!({"data": {"token": null}});
    secrets
        .patch(&ours, &PatchParams::default(), &Patch::Merge(&emptied))
        .await?;
    eventually(async || usable(&admin, &name).await?.pop().context("none yet")).await?;
    reader::open(&admin, cluster, &[], Timestamp::now()).await?;
    none_is_usable(&admin, &name).await?;
    // The account refers to ours alone, so the cluster has cleaned up behind what was deleted.
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "gantry-fleet");
    eventually(async || {
        let referred = accounts.get(&name).await?.secrets.unwrap_or_default();
        anyhow::ensure!(
            referred.len() == 1 && referred[0].name.as_ref() == Some(&ours),
            "{referred:?}"
        );
        Ok(())
    })
    .await?;
    reader::remove(&admin, cluster).await?;
    none_is_left(&admin, &name).await
}

fn run(folder: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let done = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()?;
    anyhow::ensure!(
        done.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}

/// A certificate of the cluster's own authority for somebody, until then.
fn certificate(user: &str, until: Timestamp) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let kubeconfig = std::env::var("GANTRY_TEST_SIM")?;
    let authority = Path::new(&kubeconfig).parent().context("a folder")?;
    let of = |name: &str| -> anyhow::Result<String> {
        Ok(authority.join(name).to_str().context("path")?.to_owned())
    };
    let settings = "[ca]\ndefault_ca = d\n[d]\ndatabase = index\nserial = serial\nnew_certs_dir = .\n\
                    default_md = sha256\npolicy = p\nx509_extensions = e\n[e]\nextendedKeyUsage = clientAuth\n[p]\ncommonName = supplied\n";
    std::fs::write(path.join("ca.cnf"), settings)?;
    std::fs::write(path.join("index"), "")?;
    std::fs::write(path.join("serial"), "01\n")?;
    let subject = format!("/CN={user}");
    run(
        path,
        "openssl",
        &[
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            "key",
            "-subj",
            &subject,
            "-out",
            "request",
        ],
    )?;
    let utc = |at: Timestamp| at.to_zoned(TimeZone::UTC).strftime("%Y%m%d%H%M%SZ").to_string();
    let from = utc(Timestamp::now() - 1.hour());
    run(
        path,
        "openssl",
        &[
            "ca",
            "-batch",
            "-config",
            "ca.cnf",
            "-in",
            "request",
            "-out",
            "certificate",
            "-notext",
            "-startdate",
            &from,
            "-enddate",
            &utc(until),
            "-cert",
            &of("ca.crt")?,
            "-keyfile",
            &of("ca.key")?,
        ],
    )?;
    let read =
        |name: &str| -> anyhow::Result<String> { Ok(STANDARD.encode(std::fs::read(path.join(name))?)) };
    Ok(json!({"client-certificate-data": read("certificate")?, "client-key-data": read("key")?}))
}

#[tokio::test]
async fn a_client_certificate_that_expires_is_named_and_can_be_renewed() -> anyhow::Result<()> {
    let fleet = Fleet::start(&[]).await?;
    let document = kubeconfig("GANTRY_TEST_SIM")?;
    let admin = client(&document).await?;
    // Somebody who may only look, so that the certificate itself is used and no account is made with it.
    let (user, params) = ("gantry-fleet-e2e-soon", PatchParams::apply("e2e").force());
    let api_version = "rbac.authorization.k8s.io/v1";
    let role = json!({"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": user}, "rules": reader_rules()});
    Api::<ClusterRole>::all(admin.clone())
        .patch(user, &params, &Patch::Apply(&role))
        .await?;
    let binding = json!({
        "apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    Api::<ClusterRoleBinding>::all(admin.clone())
        .patch(user, &params, &Patch::Apply(&binding))
        .await?;
    let with = |user: Value| {
        let mut document = document.clone();
        document["users"][0]["user"] = user;
        document
    };
    let soon = with(certificate(user, Timestamp::now() + 20.seconds())?);
    let body = json!({"name": "soon", "environment": "Dev", "kubeconfig": soon});
    assert_eq!(fleet.post("/clusters", &body).await?["healthStatus"], "Healthy");
    let is = async |health: &str| {
        eventually(async || {
            let cluster = fleet.get("/clusters/soon").await?;
            anyhow::ensure!(cluster["healthStatus"] == health, "{cluster}");
            Ok(cluster)
        })
        .await
    };
    let lost = is("Unhealthy").await?;
    assert!(
        ["Unauthorized", "CertificateInvalid"].contains(&lost["healthReason"].as_str().unwrap_or_default()),
        "{lost}"
    );
    assert!(
        lost["healthMessage"]
            .as_str()
            .unwrap_or_default()
            .contains("expired"),
        "{lost}"
    );
    let renewed = with(certificate(user, Timestamp::now() + 1.hour())?);
    fleet
        .ask("PUT", "/clusters/soon", Some(&json!({"kubeconfig": renewed})))
        .await?
        .expect(200)?;
    is("Healthy").await?;
    Api::<ClusterRoleBinding>::all(admin.clone())
        .delete(user, &DeleteParams::default())
        .await?;
    Api::<ClusterRole>::all(admin)
        .delete(user, &DeleteParams::default())
        .await?;
    fleet.stop().await
}
