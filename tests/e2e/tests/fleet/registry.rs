//! What real Helm packs and Debian's registry keeps: definitions in `crds/` and in subcharts, charts that are broken or mean
//! harm, and things that are no charts.

use std::path::Path;

use anyhow::Context as _;
use gantry_e2e::{cluster::eventually, fleet::Fleet};
use gantry_fleet_domain::hex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::charts::{DEFINITION, Registry, VERSIONS, chart, program, run};

fn definition(plural: &str, kind: &str) -> String {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.bundle.gantry.dev")},
        "spec": {"group": "bundle.gantry.dev", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object"}}}}}]},
    });
    format!("---\n{definition}\n")
}

fn write(folder: &Path, path: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(path);
    std::fs::create_dir_all(path.parent().context("no folder")?)?;
    Ok(std::fs::write(path, text)?)
}

/// Two definitions in a file of `crds/`, one in the `crds/` of a subchart, one that the subchart's templates make, and a
/// subchart that is switched off.
fn bundle(folder: &Path, version: &str) -> anyhow::Result<()> {
    let part = |name: &str| format!("apiVersion: v2\nname: {name}\nversion: 0.1.0\n");
    let dependencies = json!([
        {"name": "part", "version": "0.1.0"},
        {"name": "spare", "version": "0.1.0", "condition": "spare.enabled"},
    ]);
    let about = format!("apiVersion: v2\nname: bundle\nversion: {version}\ndependencies: {dependencies}\n");
    write(folder, "bundle/Chart.yaml", &about)?;
    let values = json!({"spare": {"enabled": false, "plural": "spares"}, "part": {"plural": "rendereds"}});
    write(folder, "bundle/values.yaml", &values.to_string())?;
    let both = definition("wholes", "Whole") + &definition("halves", "Half");
    write(folder, "bundle/crds/both.yaml", &both)?;
    write(folder, "bundle/charts/part/Chart.yaml", &part("part"))?;
    write(
        folder,
        "bundle/charts/part/crds/piece.yaml",
        &definition("pieces", "Piece"),
    )?;
    let template = |kind| definition("PLURAL", kind).replace("PLURAL", "{{ .Values.plural }}");
    write(
        folder,
        "bundle/charts/part/templates/crd.yaml",
        &template("Rendered"),
    )?;
    write(folder, "bundle/charts/spare/Chart.yaml", &part("spare"))?;
    write(
        folder,
        "bundle/charts/spare/templates/crd.yaml",
        &template("Spare"),
    )
}

async fn is_up(registry: &Registry) -> anyhow::Result<()> {
    eventually(async || Ok(std::net::TcpStream::connect(&registry.address).map(drop)?)).await
}

/// The versions of an operator, when all of them were read.
async fn versions(fleet: &Fleet, operator: &str) -> anyhow::Result<Vec<Value>> {
    eventually(async || {
        let versions = fleet.get(&format!("/operators/{operator}/versions")).await?;
        let rows = versions["versions"].as_array().context("versions")?.clone();
        anyhow::ensure!(
            rows.iter().all(|row| row["crdDiscovery"] != "Pending"),
            "{versions}"
        );
        Ok(rows)
    })
    .await
}

async fn bundled_with(helm: &str) -> anyhow::Result<()> {
    let (helm, folder) = (program(helm)?, tempfile::tempdir()?);
    let registry = Registry::start(folder.path())?;
    is_up(&registry).await?;
    let repository = format!("oci://{}/charts", registry.address);
    bundle(folder.path(), "1.0.0")?;
    run(&helm, &["package", "bundle"], folder.path())?;
    let push = ["push", "bundle-1.0.0.tgz", &repository, "--plain-http"];
    run(&helm, &push, folder.path())?;

    let fleet = Fleet::start(&["--helm", helm.to_str().context("path")?]).await?;
    let body =
        json!({"name": "bundle", "namespace": "b", "chartRepository": repository, "chartName": "bundle"});
    fleet.post("/operators", &body).await?;
    let version = versions(&fleet, "bundle").await?.remove(0);
    assert_eq!(version["crdDiscovery"], "Discovered", "{version}");
    let names =
        ["halves", "pieces", "rendereds", "wholes"].map(|plural| format!("{plural}.bundle.gantry.dev"));
    assert_eq!(version["crdNames"], json!(names), "{version}");
    for name in names {
        let crd = fleet.get(&format!("/crds/{name}")).await?;
        assert_eq!(crd["operatorName"], "bundle", "{crd}");
    }
    fleet.stop().await
}

#[tokio::test]
async fn definitions_in_folders_and_subcharts_are_found_with_helm_3() -> anyhow::Result<()> {
    bundled_with("helm3").await
}

#[tokio::test]
async fn definitions_in_folders_and_subcharts_are_found_with_helm_4() -> anyhow::Result<()> {
    bundled_with("helm4").await
}

/// Something else than a chart under a tag of one, as other tools put it there.
async fn push_something_else(registry: &Registry, tag: &str) -> anyhow::Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let http = reqwest::Client::new();
    let home = format!("http://{}/v2/charts/gizmo", registry.address);
    let content = b"no chart".to_vec();
    let digest = format!("sha256:{}", hex(&Sha256::digest(&content)));
    let begun = http
        .post(format!("{home}/blobs/uploads/"))
        .send()
        .await?
        .error_for_status()?;
    let place = begun
        .headers()
        .get("location")
        .context("no location")?
        .to_str()?
        .to_owned();
    let mut place = reqwest::Url::parse(&home)?.join(&place)?;
    place.query_pairs_mut().append_pair("digest", &digest);
    let put = http
        .put(place)
        .header("content-type", "application/octet-stream")
        .body(content);
    put.send().await?.error_for_status()?;
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let blob = json!({"mediaType": "text/plain", "digest": digest, "size": 8});
    let manifest = json!({"schemaVersion": 2, "mediaType": media_type, "config": blob, "layers": [blob]});
    let put = http
        .put(format!("{home}/manifests/{tag}"))
        .header("content-type", media_type);
    put.body(manifest.to_string()).send().await?.error_for_status()?;
    Ok(())
}

async fn survived_in_a_registry_with(helm: &str) -> anyhow::Result<()> {
    const OTHER: &str = "1.0.20";
    let (helm, folder) = (program(helm)?, tempfile::tempdir()?);
    let registry = Registry::start(folder.path())?;
    is_up(&registry).await?;
    let repository = format!("oci://{}/charts", registry.address);
    // A good one, one that takes all memory, and one that is none.
    let mut expected = Vec::new();
    for version in VERSIONS {
        if !["1.0.0", "1.0.1", "1.0.7"].contains(&version.number) {
            continue;
        }
        chart(folder.path(), version.number, &["a"])?;
        let template = format!("{}{DEFINITION}", version.template);
        std::fs::write(folder.path().join("gizmo/templates/crd.yaml"), template)?;
        let archive = format!("gizmo-{}.tgz", version.number);
        // Not by Helm, which may look into the templates.
        run(Path::new("tar"), &["czf", &archive, "gizmo"], folder.path())?;
        run(
            &helm,
            &["push", &archive, &repository, "--plain-http"],
            folder.path(),
        )?;
        expected.push((version.number, version.found, version.said));
    }
    push_something_else(&registry, OTHER).await?;
    expected.push((OTHER, "Failed", "is no Helm chart"));

    let fleet = Fleet::start(&["--helm", helm.to_str().context("path")?]).await?;
    let body = json!({
        "name": "gizmo", "namespace": "gizmo", "chartRepository": repository, "chartName": "gizmo",
        "defaultValues": {"crds": {"enabled": true}},
    });
    fleet.post("/operators", &body).await?;
    let rows = versions(&fleet, "gizmo").await?;
    assert_eq!(rows.len(), expected.len(), "{rows:?}");
    for (number, found, said) in expected {
        let row = rows.iter().find(|row| row["version"] == number);
        let row = row.with_context(|| format!("no {number}: {rows:?}"))?;
        assert_eq!(row["crdDiscovery"], found, "{row}");
        let told = row["crdDiscoveryMessage"].as_str().unwrap_or_default();
        assert!(told.contains(said), "{row}");
    }
    fleet.stop().await
}

#[tokio::test]
async fn what_is_bad_in_a_registry_hurts_nobody_with_helm_3() -> anyhow::Result<()> {
    survived_in_a_registry_with("helm3").await
}

#[tokio::test]
async fn what_is_bad_in_a_registry_hurts_nobody_with_helm_4() -> anyhow::Result<()> {
    survived_in_a_registry_with("helm4").await
}
