//! `gantry crds print` and `gantry crds apply` as processes.

// Helpers of tests, where a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Output,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

const MCP: &str = "mcpservers.kaos.tools";

fn gantry(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.arg("crds").args(arguments).kill_on_drop(true);
    command
}

/// Definitions by their names.
fn definitions(text: &str) -> BTreeMap<String, Value> {
    let documents = text.split("---\n").filter(|document| !document.trim().is_empty());
    let named = documents.map(|document| {
        let definition: Value = serde_saphyr::from_str(document).unwrap();
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        (name, definition)
    });
    named.collect()
}

/// Those that users get as files.
fn files() -> BTreeMap<String, Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let texts = fs::read_dir(folder)
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    texts.flat_map(|text| definitions(&text)).collect()
}

fn said(ended: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&ended.stdout), text(&ended.stderr))
}

#[tokio::test]
async fn all_of_them_are_printed_as_the_files_are() {
    let ended = gantry(&["print"]).output().await.unwrap();
    assert!(ended.status.success());
    let (printed, files) = (definitions(&said(&ended).0), files());
    assert_eq!(printed.len(), 7);
    assert!(printed.keys().eq(files.keys()), "{:?}", printed.keys());
    for (name, printed) in printed {
        assert_eq!(printed, files[&name], "{name}");
    }
}

#[rstest]
#[tokio::test]
async fn one_is_printed_by_any_of_its_names(
    #[values("MCPServer", "mcpserver", "mcpservers", MCP)] kind: &str,
) {
    let ended = gantry(&["print", "--kind", kind]).output().await.unwrap();
    assert!(ended.status.success());
    let printed = definitions(&said(&ended).0);
    assert_eq!(printed, [(MCP.to_owned(), files()[MCP].clone())].into());
}

#[rstest]
#[case::printed("print")]
// Before anything is applied.
#[case::applied("apply")]
#[tokio::test]
async fn who_asks_for_an_unknown_kind_is_told_the_known_ones(#[case] command: &str) {
    let server = Server::start("33").await;
    let ended = server.run(&[command, "--kind", "mcpsever"]).await;
    assert!(!ended.status.success());
    let (printed, error) = said(&ended);
    assert_eq!(printed, "");
    assert!(error.contains("\"mcpsever\""), "{error}");
    for definition in files().values() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        assert!(error.contains(kind), "{kind} is not named: {error}");
    }
    assert!(server.applied().is_empty());
}

#[rstest]
#[case::current("33", true)]
#[case::old("20", false)]
#[tokio::test]
async fn one_is_applied_as_its_server_takes_it(#[case] minor: &str, #[case] knows_rules: bool) {
    let server = Server::start(minor).await;
    let ended = server.run(&["apply", "--kind", "mcpserver"]).await;
    let (printed, error) = said(&ended);
    assert!(ended.status.success(), "{error}");
    assert!(printed.contains(&format!("{MCP} applied\n")), "{printed}");
    assert_eq!(
        printed.contains("left out the validation rules: server v1.20.0"),
        !knows_rules
    );
    let applied = server.applied();
    assert!(applied.keys().eq([MCP]), "{:?}", applied.keys());
    let text = applied[MCP].to_string();
    assert_eq!(text.contains("x-kubernetes-validations"), knows_rules);
    if knows_rules {
        assert_eq!(applied[MCP], files()[MCP]);
    }
}

#[tokio::test]
async fn all_of_them_are_applied() {
    let server = Server::start("33").await;
    let ended = server.run(&["apply"]).await;
    assert!(ended.status.success(), "{}", said(&ended).1);
    assert_eq!(server.applied(), files());
}

/// What an API server does with definitions that are applied.
struct Server {
    applied: Applied,
    folder: tempfile::TempDir,
}

type Applied = Arc<Mutex<BTreeMap<String, Value>>>;

impl Server {
    async fn start(minor: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", listener.local_addr().unwrap())}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        fs::write(folder.path().join("config"), kubeconfig.to_string()).unwrap();
        let applied = Applied::default();
        let state = (minor.to_owned(), applied.clone());
        let router = Router::new().fallback(answer).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { applied, folder }
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = gantry(arguments);
        command.env("KUBECONFIG", self.folder.path().join("config"));
        command.output().await.unwrap()
    }

    fn applied(&self) -> BTreeMap<String, Value> {
        self.applied.lock().unwrap().clone()
    }
}

async fn answer(
    State((minor, applied)): State<(String, Applied)>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let served = |definition: &Value| {
        let mut served = definition.clone();
        served["metadata"]["resourceVersion"] = json!("1");
        served["status"] = json!({
            "acceptedNames": served["spec"]["names"], "storedVersions": ["v1"],
            "conditions": [{"type": "Established", "status": "True"}],
        });
        served
    };
    let path = uri.path();
    if path == "/version" {
        let mut version = json!({"major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0")});
        for field in [
            "buildDate",
            "compiler",
            "gitCommit",
            "gitTreeState",
            "goVersion",
            "platform",
        ] {
            version[field] = json!("");
        }
        return Json(version).into_response();
    }
    let Some(rest) = path.strip_prefix("/apis/apiextensions.k8s.io/v1/customresourcedefinitions") else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let mut applied = applied.lock().unwrap();
    let query = uri.query().unwrap_or_default();
    match (method, rest.trim_start_matches('/')) {
        (Method::PATCH, name) if query.contains("fieldManager=gantry-crds") => {
            let definition: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(definition["metadata"]["name"], name);
            let answer = served(&definition);
            applied.insert(name.to_owned(), definition);
            Json(answer).into_response()
        }
        (Method::GET, "") if !query.contains("watch=true") => {
            let asked = |name: &str| query.contains(name);
            let items: Vec<Value> = applied
                .iter()
                .filter(|(name, _)| asked(name))
                .map(|(_, definition)| served(definition))
                .collect();
            let list = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinitionList",
                "metadata": {"resourceVersion": "1"}, "items": items,
            });
            Json(list).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
