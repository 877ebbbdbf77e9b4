//! What a new schema would do to objects that real clusters have.

use std::process::Command;

use anyhow::Context as _;
use gantry_e2e::{cluster::eventually, fleet::Fleet};
use k8s_openapi::{
    api::{core::v1::Namespace, rbac::v1::ClusterRole},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::clusters::{client, in_base64, kubeconfig};

const NAME: &str = "fleetproofs.e2e.gantry.dev";

fn definition(size: Value, more: Value) -> Value {
    let mut properties = json!({"size": size});
    if let (Some(all), Some(more)) = (properties.as_object_mut(), more.as_object()) {
        all.extend(more.clone());
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": NAME},
        "spec": {"group": "e2e.gantry.dev", "scope": "Namespaced",
            "names": {"plural": "fleetproofs", "kind": "FleetProof"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": properties}},
            }}}]},
    })
}

#[tokio::test]
async fn the_objects_that_a_schema_would_hurt_are_named() -> anyhow::Result<()> {
    let fleet = Fleet::start(&[]).await?;
    let params = PatchParams::apply("e2e").force();
    let old = definition(json!({"type": "integer"}), json!({"note": {"type": "string"}}));
    let new = definition(json!({"type": "integer", "maximum": 10}), json!({}));
    fleet
        .post(
            "/crds",
            &json!({"operatorVersion": "1.0.0", "schemaDefinition": old}),
        )
        .await?;
    // Two clusters have the definition, one of them objects; the third has neither.
    let mut admins = Vec::new();
    for (name, variable) in [
        ("some", "GANTRY_TEST_SIM"),
        ("none", "GANTRY_TEST_REAL"),
        ("far", "GANTRY_TEST_FAR"),
    ] {
        let document = kubeconfig(variable)?;
        let admin = client(&document).await?;
        if name != "far" {
            Api::<CustomResourceDefinition>::all(admin.clone())
                .patch(NAME, &params, &Patch::Apply(&old))
                .await?;
        }
        let body = json!({"name": name, "environment": "Production", "kubeconfig": in_base64(&document)});
        fleet.post("/clusters", &body).await?;
        admins.push(admin);
    }
    let namespace = "gantry-fleet-e2e-proof";
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    Api::<Namespace>::all(admins[0].clone())
        .patch(namespace, &params, &Patch::Apply(&body))
        .await?;
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("e2e.gantry.dev", "v1", "FleetProof"),
        "fleetproofs",
    );
    let objects: Api<DynamicObject> = Api::namespaced_with(admins[0].clone(), namespace, &resource);
    for (name, spec) in [
        ("small", json!({"size": 3})),
        ("large", json!({"size": 30})),
        ("noted", json!({"size": 4, "note": "kept for a reason"})),
    ] {
        let body = json!({
            "apiVersion": "e2e.gantry.dev/v1", "kind": "FleetProof", "metadata": {"name": name}, "spec": spec,
        });
        eventually(async || {
            Ok(objects
                .patch(name, &params, &Patch::Apply(&body))
                .await
                .map(drop)?)
        })
        .await?;
    }
    let path = format!("/crds/{NAME}/prove");
    let prove = async |clusters: &[&str]| {
        let body = json!({"clusters": clusters, "newSchemaDefinition": new});
        fleet.ask("POST", &path, Some(&body)).await?.expect(200)
    };
    let proof = prove(&["some", "none", "far"]).await?;
    assert_eq!(proof["hurtsNobody"], false, "{proof}");
    let [far, none, some] = &proof["clusters"].as_array().cloned().unwrap_or_default()[..] else {
        anyhow::bail!("{proof}")
    };
    assert_eq!(
        (&far["isInstalled"], &far["error"]),
        (&json!(false), &Value::Null),
        "{far}"
    );
    assert_eq!(
        (&none["isInstalled"], &none["checked"]),
        (&json!(true), &json!(0)),
        "{none}"
    );
    assert_eq!(
        (&some["checked"], &some["rejected"], &some["pruned"]),
        (&json!(3), &json!(1), &json!(1)),
        "{some}"
    );
    let harm = |name: &str| {
        let objects = some["objects"].as_array().cloned().unwrap_or_default();
        let found = objects.iter().find(|object| object["name"] == name).cloned();
        found.unwrap_or_default()["harm"].clone()
    };
    assert_eq!(
        (harm("large"), harm("noted"), harm("small")),
        (json!("rejected"), json!("pruned"), Value::Null)
    );
    // The same change hurts nobody where nobody uses it.
    assert_eq!(prove(&["none", "far"]).await?["hurtsNobody"], true);
    the_command_finds_the_same(&new)?;
    // And it was the reader who looked, with the right to look at just these.
    let id = fleet.get("/clusters/some").await?["clusterId"]
        .as_str()
        .unwrap_or_default()
        .replace('-', "");
    let role = Api::<ClusterRole>::all(admins[0].clone())
        .get(&format!("gantry-fleet-reader-{}", &id[..12]))
        .await?;
    let rules = role.rules.unwrap_or_default();
    assert!(
        rules
            .iter()
            .any(|rule| rule.resources.as_deref() == Some(&["fleetproofs".to_owned()])),
        "{rules:?}"
    );
    assert!(
        rules.iter().all(|rule| rule.verbs == ["get", "list"]),
        "{rules:?}"
    );
    for name in ["some", "none", "far"] {
        fleet
            .ask("DELETE", &format!("/clusters/{name}"), None)
            .await?
            .expect(204)?;
    }
    for admin in &admins[..2] {
        Api::<CustomResourceDefinition>::all(admin.clone())
            .delete(NAME, &DeleteParams::default())
            .await?;
    }
    Api::<Namespace>::all(admins[0].clone())
        .delete(namespace, &DeleteParams::default())
        .await?;
    fleet.stop().await
}

/// `gantry crds diff` on live clusters, with the user's own kubeconfig.
fn the_command_finds_the_same(new: &Value) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut both = json!({"apiVersion": "v1", "kind": "Config"});
    for list in ["clusters", "users", "contexts"] {
        both[list] = json!([]);
    }
    for (name, variable) in [("some", "GANTRY_TEST_SIM"), ("none", "GANTRY_TEST_REAL")] {
        let one = kubeconfig(variable)?;
        for (list, what) in [("clusters", "cluster"), ("users", "user")] {
            let entry = json!({"name": name, what: one[list][0][what]});
            both[list].as_array_mut().context("list")?.push(entry);
        }
        let context = json!({"name": name, "context": {"cluster": name, "user": name}});
        both["contexts"].as_array_mut().context("list")?.push(context);
    }
    let config = folder.path().join("kubeconfig");
    std::fs::write(&config, both.to_string())?;
    std::fs::write(folder.path().join("new.json"), new.to_string())?;
    let diff = |objects: &[&str]| -> anyhow::Result<(Option<i32>, Value)> {
        let done = Command::new(std::env::var("GANTRY_BIN").context("GANTRY_BIN must name the program")?)
            .args(["crds", "diff", "cluster:some", "new.json", "--only", NAME])
            .args(["--fail-on=harm", "--output=json"])
            .args(
                objects
                    .iter()
                    .map(|context| format!("--objects=cluster:{context}")),
            )
            .current_dir(folder.path())
            .env("KUBECONFIG", &config)
            .output()?;
        let told = serde_json::from_slice(&done.stdout)
            .with_context(|| String::from_utf8_lossy(&done.stderr).into_owned())?;
        Ok((done.status.code(), told))
    };
    for objects in [&["some", "none"][..], &["none", "some"]] {
        let (code, told) = diff(objects)?;
        let some = told["proofs"].as_array().into_iter().flatten();
        let some: Vec<_> = some.filter(|proof| proof["checked"] == 3).collect();
        assert_eq!(some.len(), 1, "{told}");
        assert_eq!(
            (&some[0]["rejected"], &some[0]["pruned"]),
            (&json!(1), &json!(1)),
            "{told}"
        );
        assert_eq!(code, Some(1), "{told}");
    }
    assert_eq!(diff(&["none"])?.0, Some(0));
    Ok(())
}
