//! The CRDs on real servers: the old one, and a current one that knows validation rules.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, ensure};
use gantry_crds::KindInfo;
use gantry_e2e::{Cluster, cluster::config, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;

struct Sample {
    path: PathBuf,
    info: &'static KindInfo,
    object: Value,
    expect: Option<String>,
}

/// `fixtures/<set>/<kind>/*.yaml` of the crds crate.
fn samples(set: &str) -> anyhow::Result<Vec<Sample>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../crates/crds/fixtures")
        .join(set);
    let mut samples = Vec::new();
    for info in gantry_crds::KINDS {
        let folder = root.join(info.kind.to_lowercase());
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            let expect = text
                .lines()
                .find_map(|line| line.strip_prefix("# expect: "))
                .map(ToOwned::to_owned);
            samples.push(Sample {
                object: serde_saphyr::from_str(&text)?,
                path,
                info,
                expect,
            });
        }
    }
    ensure!(samples.len() > 20, "only {} fixtures in {set}", samples.len());
    Ok(samples)
}

async fn create(
    client: &Client,
    namespace: &str,
    sample: &Sample,
    index: usize,
) -> Result<DynamicObject, kube::Error> {
    let resource = ApiResource {
        group: sample.info.group.to_owned(),
        version: sample.info.version.to_owned(),
        api_version: sample.info.api_version(),
        kind: sample.info.kind.to_owned(),
        plural: sample.info.plural.to_owned(),
    };
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
    let mut object = sample.object.clone();
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["name"] = format!("s{index}").into();
    let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &object).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_takes_the_stripped_crds_and_checks_what_it_can() -> anyhow::Result<()> {
    let cluster = Cluster::simulated().await?;
    for (index, sample) in samples("good")?.iter().enumerate() {
        create(&cluster.client, &cluster.namespace, sample, index)
            .await
            .with_context(|| sample.path.display().to_string())?;
    }
    let bad = samples("bad")?;
    let mut refused = 0;
    for (index, sample) in bad.iter().enumerate() {
        match create(&cluster.client, &cluster.namespace, sample, 1000 + index).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) => {
                ensure!(
                    status.code == 422,
                    "{}: {}",
                    sample.path.display(),
                    status.message
                );
                refused += 1;
            }
            Err(error) => return Err(error).with_context(|| sample.path.display().to_string()),
        }
    }
    // The rest are rules that this server cannot check; the operator does.
    assert!(
        refused >= 30,
        "only {refused} of {} refused by the schema",
        bad.len()
    );
    cluster.done().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_current_server_takes_the_crds_and_enforces_every_rule() -> anyhow::Result<()> {
    let Some(config) = config("GANTRY_TEST_CRD").await? else {
        eprintln!(
            "SKIPPED: no current CRD server (GANTRY_TEST_CRD): validation rules were NOT checked by a server"
        );
        return Ok(());
    };
    let client = Client::try_from(config)?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in gantry_crds::all() {
        let name = crd.name_any();
        let body = gantry_crds::schema::manifest(&crd);
        crds.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&body))
            .await
            .context(name)?;
    }
    let good = samples("good")?;
    for (index, sample) in good.iter().enumerate() {
        eventually(async || match create(&client, "default", sample, index).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            answer => answer
                .map(|_| ())
                .with_context(|| sample.path.display().to_string()),
        })
        .await?;
    }
    for (index, sample) in samples("bad")?.iter().enumerate() {
        let Err(error) = create(&client, "default", sample, 1000 + index).await else {
            anyhow::bail!("{} was accepted", sample.path.display());
        };
        let expected = sample
            .expect
            .as_deref()
            .context("a bad fixture says what to expect")?;
        ensure!(
            error.to_string().contains(expected),
            "{}: {error}",
            sample.path.display()
        );
    }
    Ok(())
}
