//! Makes the API server send `metrics.k8s.io` to us: a Service with our address, and the APIService.

use std::{net::IpAddr, time::Duration};

use anyhow::Context as _;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Endpoints, Service},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::render::GROUP;

pub const NAMESPACE: &str = "kube-system";
pub const SERVICE: &str = "gantry-simnode-metrics";
const API_SERVICE: &str = "v1beta1.metrics.k8s.io";
const MANAGER: &str = "gantry-simnode-metrics";

/// Who may speak for the API server.
#[derive(Debug)]
pub struct FrontProxy {
    pub client_ca: String,
    /// Common names; none means any.
    pub allowed_names: Vec<String>,
}

/// Reads the front proxy's CA as the API server publishes it, waiting for it a while.
pub async fn front_proxy(client: &Client) -> anyhow::Result<FrontProxy> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let mut last = String::new();
    for _ in 0..60 {
        match api.get_opt("extension-apiserver-authentication").await {
            Ok(Some(map)) => {
                let data = map.data.unwrap_or_default();
                if let Some(client_ca) = data.get("requestheader-client-ca-file") {
                    let names = data
                        .get("requestheader-allowed-names")
                        .map_or("[]", String::as_str);
                    return Ok(FrontProxy {
                        client_ca: client_ca.clone(),
                        allowed_names: serde_json::from_str(names)
                            .context("bad requestheader-allowed-names")?,
                    });
                }
                "it has no requestheader-client-ca-file: the API server runs without aggregation"
                    .clone_into(&mut last);
            }
            Ok(None) => "it does not exist".clone_into(&mut last),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    anyhow::bail!("failed to read ConfigMap {NAMESPACE}/extension-apiserver-authentication: {last}")
}

/// The names that the API server may use for us.
pub fn host_names() -> Vec<String> {
    vec![
        format!("{SERVICE}.{NAMESPACE}.svc"),
        format!("{SERVICE}.{NAMESPACE}.svc.cluster.local"),
        format!("{SERVICE}.{NAMESPACE}"),
    ]
}

/// Writes the three objects.
pub async fn register(client: &Client, address: IpAddr, port: u16, ca_pem: &str) -> anyhow::Result<()> {
    let params = PatchParams::apply(MANAGER).force();
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let endpoints: Api<Endpoints> = Api::namespaced(client.clone(), NAMESPACE);
    let api_services: Api<APIService> = Api::all(client.clone());
    services
        .patch(SERVICE, &params, &Patch::Apply(service(port)))
        .await
        .context("failed to apply the Service")?;
    endpoints
        .patch(SERVICE, &params, &Patch::Apply(endpoints_object(address, port)))
        .await
        .context("failed to apply the Endpoints")?;
    // Not by server-side apply: the aggregator of 1.20 panics at it.
    let wanted = api_service(ca_pem);
    match api_services
        .patch(API_SERVICE, &PatchParams::default(), &Patch::Merge(&wanted))
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            api_services
                .create(&PostParams::default(), &serde_json::from_value(wanted)?)
                .await
        }
        other => other,
    }
    .context("failed to write the APIService")?;
    Ok(())
}

/// Takes the API away again: one that nobody serves blocks the deletion of every namespace.
pub async fn deregister(client: &Client) -> anyhow::Result<()> {
    let api: Api<APIService> = Api::all(client.clone());
    api.delete(API_SERVICE, &DeleteParams::default()).await?;
    Ok(())
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": SERVICE, "app.kubernetes.io/part-of": "gantry-dev"})
}

fn service(port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE, "labels": labels()},
        "spec": {"ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}]},
    })
}

/// Without a selector on the Service, nobody else writes these.
fn endpoints_object(address: IpAddr, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE, "labels": labels()},
        "subsets": [{
            "addresses": [{"ip": address.to_string()}],
            "ports": [{"name": "https", "protocol": "TCP", "port": port}],
        }],
    })
}

fn api_service(ca_pem: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": API_SERVICE, "labels": labels()},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": SERVICE, "namespace": NAMESPACE, "port": 443},
            "caBundle": k8s_openapi::ByteString(ca_pem.as_bytes().to_vec()),
        },
    })
}
