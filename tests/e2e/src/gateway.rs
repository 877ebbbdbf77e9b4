//! The Gateway API as far as the operator needs it: a CRD of the right name, and settings that name a gateway.

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

/// A stand-in for the Gateway API: the name and version are what counts, any spec is accepted.
pub async fn install(cluster: &Cluster) -> anyhow::Result<()> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "httproutes.gateway.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
        },
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "HTTPRoute", "plural": "httproutes", "singular": "httproute", "listKind": "HTTPRouteList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": open},
            }}}],
        },
    });
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let name = "httproutes.gateway.networking.k8s.io";
    api.patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(&crd))
        .await?;
    Ok(())
}
