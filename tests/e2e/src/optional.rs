//! Kinds of others that the operator uses where they are: CRDs of the right names, and settings that name a gateway.

use gantry_operator::settings::{Gateway, Settings};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::json;

use crate::{Cluster, operator};

pub fn settings() -> Settings {
    let gateway = Gateway {
        name: "gw".into(),
        namespace: "gw".into(),
        agent_timeout: "300s".into(),
        modelapi_timeout: "120s".into(),
        mcp_timeout: "60s".into(),
    };
    Settings {
        gateway: Some(gateway),
        ..operator::settings()
    }
}

pub fn routes() -> ApiResource {
    let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "HTTPRoute");
    ApiResource::from_gvk_with_plural(&kind, "httproutes")
}

/// Stand-ins for definitions of others: names and versions are what counts, any spec is accepted.
pub async fn install(cluster: &Cluster) -> anyhow::Result<()> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for (group, kind, plural) in [
        ("gateway.networking.k8s.io", "HTTPRoute", "httproutes"),
        ("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
        ("monitoring.coreos.com", "PodMonitor", "podmonitors"),
        ("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
    ] {
        let name = format!("{plural}.{group}");
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": name,
                "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
            },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {
                    "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List"),
                },
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": open},
                }}}],
            },
        });
        api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&crd))
            .await?;
    }
    Ok(())
}
