//! What an operator looks at, and what it does when the server, or somebody else, stands in its way.

mod refused;
mod watched;

use gantry_e2e::{Cluster, snapshot::child_kinds};
use kube::{Api, core::DynamicObject};
use serde_json::{Value, json};

fn server(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kaos.tools/v1alpha1", "kind": "MCPServer", "metadata": {"name": name}, "spec": spec})
}

fn deployments(cluster: &Cluster) -> Api<DynamicObject> {
    cluster.api(&child_kinds()[0])
}
