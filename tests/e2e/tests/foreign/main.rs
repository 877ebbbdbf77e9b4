//! Others write too: people, autoscalers, other operators, the kubelet. And what they do must be told truthfully.

mod scaling;
mod told;
mod writers;

use gantry_e2e::{Cluster, snapshot::child_kinds};
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

fn server(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer", "metadata": {"name": name}, "spec": spec})
}

fn deployments(cluster: &Cluster) -> Api<DynamicObject> {
    cluster.api(&child_kinds()[0])
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> anyhow::Result<DynamicObject> {
    Ok(api
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?)
}
