//! What the server writes into its log and sends to a collector: that it can be found by trace and user, goes on in other
//! servers, and holds no secret.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use serde_json::{Value, json};

use super::{
    collector::{self, Collector},
    process::Process,
    support::{charts::Repository, database, definition, key_line, kube::StandIn, until},
};

const PLANTED: &str = "planted-s3cret-t0ken-that-must-not-show";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const UNSAMPLED: &str = "5bf92f3577b34da6a3ce929d0e0e4737";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_and_traces_tell_who_asked_and_no_secret() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (collector, address) = (Collector::default(), collector::free().unwrap());
    collector.serve(address);
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let endpoint = format!("http://{address}");
    // What people switch on when something is wrong.
    let more = ["--otlp-endpoint", &endpoint, "--log-level", "debug"];
    let server = Process::start(&url, &key, folder.path(), &more).await;
    let admin = server.admin();
    let (cluster, other) = (StandIn::start().await, StandIn::start().await);
    let repository = Repository::start().await;
    repository.chart("widget", "1.0.0", &[]);
    repository.lock("robot", PLANTED);

    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [
        ("traceparent", parent.as_str()),
        ("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
    ];
    let body = cluster.registration("c", PLANTED);
    admin
        .ask("post", "/clusters", Some(&body), &headers)
        .await
        .expect(201);
    let parent = format!("00-{UNSAMPLED}-00f067aa0ba902b7-00");
    let body = other.registration("d", PLANTED);
    admin
        .ask("post", "/clusters", Some(&body), &[("traceparent", &parent)])
        .await
        .expect(201);
    let operator = json!({
        "name": "widget", "namespace": "w", "chartRepository": repository.url, "chartName": "widget",
        "chartRepositoryCredentials": {"username": "robot", "password": PLANTED},
    });
    admin.post("/operators", &operator).await.expect(201);
    // What goes wrong is where secrets are told.
    let broken = json!({"name": "e", "environment": "Dev", "kubeconfig": {"users": PLANTED}});
    admin.post("/clusters", &broken).await.expect(400);
    let broken = json!({"name": "e", "environment": "Dev", "kubeconfig": PLANTED});
    admin.post("/clusters", &broken).await.expect(400);
    let login = json!({"username": "nobody", "password": PLANTED});
    server
        .asker(None)
        .post("/authentication/login", &login)
        .await
        .expect(401);
    server
        .asker(Some(PLANTED.to_owned()))
        .get("/clusters")
        .await
        .expect(401);
    let change = json!({"kubeconfig": cluster.kubeconfig(&format!("{PLANTED}-renewed"))});
    admin.put("/clusters/c", &change).await.expect(200);
    cluster.mood(401);
    until("it is unhealthy", async || {
        (admin.get("/clusters/c").await.body["healthStatus"] == "Unhealthy").then_some(())
    })
    .await;
    let said = server.stop().await;

    // The trace goes on in the cluster's server, as the caller decided.
    let of = |stand_in: &StandIn, id: &str| -> Vec<(String, String)> {
        let traces = stand_in.traces.lock().unwrap().clone();
        let begin = format!("00-{id}-");
        traces
            .into_iter()
            .filter(|(parent, _)| parent.starts_with(&begin))
            .collect()
    };
    let asked = of(&cluster, TRACE);
    assert!(!asked.is_empty(), "{:?}", cluster.traces.lock().unwrap());
    for (parent, state) in asked {
        assert!(parent.ends_with("-01"), "{parent}");
        assert_eq!(state, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
    }
    let asked = of(&other, UNSAMPLED);
    assert!(!asked.is_empty(), "{:?}", other.traces.lock().unwrap());
    assert!(
        asked.iter().all(|(parent, _)| parent.ends_with("-00")),
        "{asked:?}"
    );
    let spans = collector.spans();
    let sent = |id: &str| {
        spans
            .iter()
            .any(|span| gantry_fleet_domain::hex(&span.trace_id) == id)
    };
    assert!(sent(TRACE), "{} spans", spans.len());
    assert!(!sent(UNSAMPLED), "nobody wanted it");

    // Lines are found by what they belong to.
    let lines: Vec<Value> = said
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    assert!(lines.len() > 20, "{said:?}");
    assert!(
        lines
            .iter()
            .any(|line| line["trace_id"] == TRACE && line["user"] == "admin"),
        "no line has both"
    );

    let exported = format!("{:?}", collector.received.lock().unwrap());
    assert!(exported.contains("cluster.connect"), "spans of looks are there");
    for form in [
        PLANTED,
        &STANDARD.encode(PLANTED)[..40],
        // As Basic authorization has it.
        &STANDARD.encode(format!("robot:{PLANTED}"))[..40],
        &gantry_fleet_domain::hex(PLANTED.as_bytes()),
    ] {
        let line = said.iter().find(|line| line.contains(form));
        assert_eq!(line, None, "in the log");
        assert!(!exported.contains(form), "{form} in the exported traces");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_validation_is_a_span_that_names_the_operator_and_its_version() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (collector, address) = (Collector::default(), collector::free().unwrap());
    collector.serve(address);
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let endpoint = format!("http://{address}");
    let server = Process::start(&url, &key, folder.path(), &["--otlp-endpoint", &endpoint]).await;
    let (admin, cluster, repository) = (server.admin(), StandIn::start().await, Repository::start().await);
    let definition = definition("widgets.example.com", json!({"size": {"type": "string"}}));
    repository.chart(
        "widget",
        "1.0.0",
        &[("crds/widgets.yaml", definition.to_string())],
    );
    let operator = json!({
        "name": "widget-operator", "namespace": "w", "chartRepository": repository.url, "chartName": "widget",
    });
    admin.post("/operators", &operator).await.expect(201);
    admin
        .post("/clusters", &cluster.registration("c", "t"))
        .await
        .expect(201);
    until("its definition is known", async || {
        (admin.get("/crds/widgets.example.com").await.status == 200).then_some(())
    })
    .await;
    let proposal = json!({"newSchemaDefinition": definition, "newOperatorVersion": "1.1.0"});
    admin
        .post("/crds/widgets.example.com/validate", &proposal)
        .await
        .expect(200);
    admin
        .post("/crds/widgets.example.com/prove", &json!({"clusters": ["c"]}))
        .await
        .expect(200);
    server.stop().await;

    let spans = collector.spans();
    let mut told: Vec<BTreeMap<String, String>> = spans
        .iter()
        .filter(|span| span.name == "operator.validate")
        .map(|span| {
            let wanted = |key: &str| ["crd", "operator", "version"].contains(&key);
            let attributes = span.attributes.iter().filter(|attribute| wanted(&attribute.key));
            attributes
                .map(
                    |attribute| match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
                        Attribute::StringValue(text) => (attribute.key.clone(), text.clone()),
                        other => panic!("{other:?}"),
                    },
                )
                .collect()
        })
        .collect();
    told.sort();
    // The validation, of what is to come, and the proof, of what is there.
    let expected = ["1.0.0", "1.1.0"].map(|version| {
        let pairs = [
            ("crd", "widgets.example.com"),
            ("operator", "widget-operator"),
            ("version", version),
        ];
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    });
    assert_eq!(told, expected);
}

/// What was opened is in memory.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_crash_leaves_no_memory_behind() {
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let server = Process::start(&url, &key, folder.path(), &[]).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max core file size"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[4..6], ["0", "0"], "{limits}");
    server.kill().await;
}

#[test]
fn no_token_is_issued_for_the_server_itself() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("token.key");
    std::fs::write(&secret, super::support::SECRET).unwrap();
    let issue = |subject: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gantry"));
        command.args(["fleet", "token", "--subject", subject, "--jwt-secret-file"]);
        command.arg(&secret).output().unwrap()
    };
    assert!(issue("jo").status.success());
    let refused = issue("system:fleet");
    assert!(!refused.status.success() && refused.stdout.is_empty());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("the server itself"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_on_where_no_collector_is_named() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let server = Process::start(&url, &key, folder.path(), &[]).await;
    let cluster = StandIn::start().await;
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "rojo=1")];
    let body = cluster.registration("c", "t");
    let admin = server.admin();
    admin
        .ask("post", "/clusters", Some(&body), &headers)
        .await
        .expect(201);
    let traces = cluster.traces.lock().unwrap().clone();
    assert!(!traces.is_empty(), "it is passed on");
    for trace in traces {
        assert_eq!(trace, (parent.clone(), "rojo=1".to_owned()), "as it came");
    }
    server.kill().await;
}

/// The line that says where it serves is one of the few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_few_lines_has_all_traces() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (collector, address) = (Collector::default(), collector::free().unwrap());
    collector.serve(address);
    let endpoint = format!("http://{address}");
    let (folder, url, key) = (tempfile::tempdir().unwrap(), database().await, key_line());
    let few = ["--log-level", "warn,gantry_fleet::serve=info"];
    for more in [few.to_vec(), [&few[..], &["--otlp-endpoint", &endpoint]].concat()] {
        let server = Process::start(&url, &key, folder.path(), &more).await;
        let cluster = StandIn::start().await;
        let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let headers = [("traceparent", parent.as_str())];
        let body = cluster.registration(&format!("c{}", more.len()), "t");
        server
            .admin()
            .ask("post", "/clusters", Some(&body), &headers)
            .await
            .expect(201);
        let traces = cluster.traces.lock().unwrap().clone();
        let begin = format!("00-{TRACE}-");
        assert!(
            traces.iter().any(|(parent, _)| parent.starts_with(&begin)),
            "it is not passed on: {traces:?}"
        );
        let said = server.stop().await;
        let infos = said.iter().filter(|line| line.contains("\"INFO\""));
        assert!(
            infos.clone().all(|line| line.contains("gantry_fleet::serve")),
            "{said:?}"
        );
    }
    let spans = collector.spans();
    assert!(
        spans
            .iter()
            .any(|span| gantry_fleet_domain::hex(&span.trace_id) == TRACE),
        "{} spans",
        spans.len()
    );
}
