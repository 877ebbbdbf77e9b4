//! What a namespace holds, without what differs from run to run: the oracle of the differential tests.

use std::collections::BTreeMap;

use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::Cluster;

/// Every kind of child that any controller makes.
pub fn child_kinds() -> Vec<ApiResource> {
    let of = |group: &str, version: &str, kind: &str, plural: &str| ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    vec![
        of("apps", "v1", "Deployment", "deployments"),
        of("", "v1", "Service", "services"),
        of(
            "autoscaling",
            "v2beta2",
            "HorizontalPodAutoscaler",
            "horizontalpodautoscalers",
        ),
        of("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
        of("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
        of("apps", "v1", "StatefulSet", "statefulsets"),
        of("", "v1", "ConfigMap", "configmaps"),
        of("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        of("", "v1", "ServiceAccount", "serviceaccounts"),
        of("rbac.authorization.k8s.io", "v1", "Role", "roles"),
        of("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
        of("networking.k8s.io", "v1", "Ingress", "ingresses"),
        of("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
        of("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
        of("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
        of("policy", "v1beta1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ]
}

/// Children by `Kind/name`, with the namespace's name taken out.
pub type Snapshot = BTreeMap<String, Value>;

pub async fn children(cluster: &Cluster) -> anyhow::Result<Snapshot> {
    let mut found = Snapshot::new();
    for kind in child_kinds() {
        for object in cluster.list(&kind).await? {
            if object
                .metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get("app.kubernetes.io/managed-by"))
                == Some(&"gantry".to_owned())
            {
                let name = object.metadata.name.clone().unwrap_or_default();
                found.insert(
                    format!("{}/{name}", kind.kind),
                    essence(&object, &cluster.namespace),
                );
            }
        }
    }
    Ok(found)
}

/// What was asked for, not what the server and other controllers keep in it.
pub fn essence(object: &DynamicObject, namespace: &str) -> Value {
    let mut value = json!(object);
    let metadata = json!({
        "labels": value["metadata"]["labels"],
        "annotations": value["metadata"]["annotations"],
        "owners": value["metadata"]["ownerReferences"].as_array().map(Vec::len),
    });
    value["metadata"] = metadata;
    if let Some(map) = value.as_object_mut() {
        map.remove("status");
        // Of a ServiceAccount: tokens that old servers make for it.
        map.remove("secrets");
    }
    if let Some(annotations) = value["metadata"]["annotations"].as_object_mut() {
        // The revision counts rollouts, the digest covers the owner's uid, and volumes are bound by others.
        let theirs = [
            "deployment.kubernetes.io/",
            "pv.kubernetes.io/",
            "volume.",
            gantry_kit::WISH,
        ];
        annotations.retain(|name, _| !theirs.iter().any(|prefix| name.starts_with(prefix)));
    }
    // What is referred to may be made up, and is another one in every run.
    if let Some(references) =
        value["spec"]["template"]["metadata"]["annotations"].get_mut("gantry.dev/references")
    {
        *references = json!("DIGEST");
    }
    if let Some(spec) = value["spec"].as_object_mut() {
        spec.retain(|name, _| !matches!(name.as_str(), "clusterIP" | "clusterIPs" | "volumeName"));
    }
    sort_merged_lists(&mut value);
    let text = value.to_string().replace(namespace, "NAMESPACE");
    serde_json::from_str(&text).unwrap_or_default()
}

/// Lists that are merged by key keep the order in which their items came.
fn sort_merged_lists(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(sort_merged_lists),
        Value::Array(items) => {
            items.iter_mut().for_each(sort_merged_lists);
            if items
                .iter()
                .all(|item| item.get("name").is_some() || item.get("mountPath").is_some())
            {
                items.sort_by_key(ToString::to_string);
            }
        }
        _ => {}
    }
}

/// Where two snapshots differ, leaf by leaf; empty when they do not.
pub fn differences(found: &Snapshot, expected: &Snapshot) -> Vec<String> {
    let mut list = Vec::new();
    compare("", &json!(found), &json!(expected), &mut list);
    list
}

fn compare(path: &str, found: &Value, expected: &Value, list: &mut Vec<String>) {
    match (found, expected) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                compare(&format!("{path}/{key}"), &of(one), &of(other), list);
            }
        }
        (found, expected) if found != expected => list.push(format!("{path}: {found} instead of {expected}")),
        _ => {}
    }
}
