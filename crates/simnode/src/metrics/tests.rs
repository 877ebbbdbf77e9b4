//! What the metrics API says, from pods and from a kubelet's own words.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    render,
    tls::{Identity, is_allowed},
    usage::{NodeSamples, Summary, simulated, simulated_nodes},
};

fn now() -> Timestamp {
    "2026-01-02T03:04:05.678Z".parse().unwrap()
}

fn pod(annotations: &Value, phase: &str) -> Pod {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "a"}, "annotations": annotations,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "sim-0", "containers": []},
        "status": {"phase": phase, "containerStatuses": [
            {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": running},
            {"name": "b", "image": "", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ]},
    }))
    .unwrap()
}

#[rstest]
#[case(json!({"simnode.gantry.dev/cpu": "250m", "simnode.gantry.dev/memory": "128Mi"}), "250m", "131072Ki")]
#[case(json!({}), "10m", "32768Ki")]
#[case(json!({"simnode.gantry.dev/cpu": "lots"}), "10m", "32768Ki")]
fn simulated_usage_is_annotated(#[case] annotations: Value, #[case] cpu: &str, #[case] memory: &str) {
    let pod = pod(&annotations, "Running");
    let metrics = render::pod_metrics(&pod.metadata, &simulated(&pod, now()).unwrap());
    let expected = json!({
        "kind": "PodMetrics",
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "p", "namespace": "ns", "labels": {"app": "a"},
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "timestamp": "2026-01-02T03:04:05Z",
        "window": "5s",
        "containers": [{"name": "a", "usage": {"cpu": cpu, "memory": memory}}],
    });
    assert_eq!(metrics, expected);
}

#[test]
fn what_does_not_run_uses_nothing() {
    assert_eq!(simulated(&pod(&json!({}), "Pending"), now()), None);
}

#[test]
fn simulated_nodes_use_what_their_pods_do() {
    let pods = [
        pod(&json!({}), "Running"),
        pod(&json!({"simnode.gantry.dev/cpu": "1"}), "Running"),
    ];
    let samples = simulated_nodes(["sim-0", "sim-1"].into_iter(), &pods, now());
    let meta = kube::api::ObjectMeta {
        name: Some("sim-0".into()),
        ..Default::default()
    };
    let busy = render::node_metrics(&meta, &samples["sim-0"]);
    assert_eq!(busy["usage"], json!({"cpu": "1060m", "memory": "327680Ki"}));
    assert_eq!(busy["metadata"].get("namespace"), None);
    let idle = render::node_metrics(&meta, &samples["sim-1"]);
    assert_eq!(idle["usage"], json!({"cpu": "50m", "memory": "262144Ki"}));
}

#[test]
fn a_kubelets_summary_is_read() {
    let container = |name: &str, cpu: Value| {
        json!({"name": name, "startTime": "2026-01-01T00:00:00Z", "cpu": cpu,
            "memory": {"time": "2026-01-01T00:00:10Z", "workingSetBytes": 4096, "rssBytes": 1}})
    };
    let cpu = json!({"time": "2026-01-01T00:00:10Z", "usageNanoCores": 1234, "usageCoreNanoSeconds": 5});
    let unmeasured = json!({"time": "2026-01-01T00:00:10Z", "usageCoreNanoSeconds": 5});
    let summary: Summary = serde_json::from_value(json!({
        "node": {"nodeName": "n", "cpu": cpu, "memory": {"workingSetBytes": 8192}, "fs": {}},
        "pods": [
            {"podRef": {"name": "p", "namespace": "ns", "uid": "u"}, "containers": [container("c", cpu.clone())]},
            {"podRef": {"name": "new", "namespace": "ns", "uid": "v"},
                "containers": [container("c", cpu.clone()), container("d", unmeasured)]},
            {"podRef": {"name": "empty", "namespace": "ns", "uid": "w"}},
        ],
    }))
    .unwrap();
    let samples = NodeSamples::from(summary);
    assert_eq!(samples.pods.len(), 1);
    let meta = kube::api::ObjectMeta {
        name: Some("p".into()),
        namespace: Some("ns".into()),
        ..Default::default()
    };
    let metrics = render::pod_metrics(&meta, &samples.pods[&("ns".to_owned(), "p".to_owned())]);
    assert_eq!(
        metrics["containers"],
        json!([{"name": "c", "usage": {"cpu": "1234n", "memory": "4Ki"}}])
    );
    assert_eq!(
        (&metrics["timestamp"], &metrics["window"]),
        (&json!("2026-01-01T00:00:10Z"), &json!("10s"))
    );
    assert_eq!(
        render::node_metrics(&meta, &samples.node.unwrap())["usage"]["memory"],
        json!("8Ki")
    );
}

#[test]
fn lists_carry_kind_and_version_once() {
    let pod = pod(&json!({}), "Running");
    let item = render::pod_metrics(&pod.metadata, &simulated(&pod, now()).unwrap());
    let list = render::list("PodMetrics", vec![item]);
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("PodMetricsList"), &json!("metrics.k8s.io/v1beta1"))
    );
    assert_eq!(list["items"][0].get("kind"), None);
    assert_eq!(list["items"][0]["metadata"]["name"], "p");
}

#[test]
fn only_allowed_names_may_speak_for_the_api_server() {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "front-proxy-client");
    let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert!(is_allowed(certificate.der(), &names(&[])));
    assert!(is_allowed(
        certificate.der(),
        &names(&["a", "front-proxy-client"])
    ));
    assert!(!is_allowed(certificate.der(), &names(&["a"])));
    assert!(!is_allowed(b"nonsense", &names(&["a"])));
}

#[test]
fn an_identity_makes_a_server() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let identity =
        Identity::generate(&["x.kube-system.svc".to_owned()], "10.0.0.1".parse().unwrap()).unwrap();
    let ca = identity.ca_pem.clone();
    assert!(identity.server_config(&ca).is_ok());
}
