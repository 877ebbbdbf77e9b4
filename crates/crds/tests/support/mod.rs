//! Reads the fixtures and walks the schemas.
#![allow(dead_code, reason = "each test binary uses a part")]

use gantry_crds::{KINDS, KindInfo};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A fixture: where it is, what it says, and what its first line expects.
#[derive(Debug)]
pub struct Fixture {
    pub name: String,
    pub kind: KindInfo,
    pub document: Value,
    pub expect: Option<String>,
}

/// All fixtures of a folder (`good`, `bad` or `bad-in-code`), each folder in it named as its kind.
pub fn fixtures(folder: &str) -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(folder);
    let mut found = Vec::new();
    for kind in sorted(&root) {
        let name = kind.file_name().unwrap().to_str().unwrap();
        let info = KINDS
            .iter()
            .find(|k| k.kind.eq_ignore_ascii_case(name))
            .expect("a folder named as a kind");
        for file in sorted(&kind) {
            let text = std::fs::read_to_string(&file).unwrap();
            let expect = text
                .lines()
                .next()
                .and_then(|l| l.strip_prefix("# expect: "))
                .map(str::to_owned);
            found.push(Fixture {
                name: file.strip_prefix(&root).unwrap().display().to_string(),
                kind: *info,
                document: yaml(&text),
                expect,
            });
        }
    }
    assert!(!found.is_empty(), "no fixtures in {}", root.display());
    found
}

pub fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    paths.sort();
    paths
}

pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// A schema node with its path and whether it is inside an embedded Kubernetes type.
pub struct Node<'a> {
    pub path: String,
    pub schema: &'a Value,
    pub embedded: bool,
}

/// The root schema of a CRD.
pub fn root(kind: &KindInfo) -> Value {
    let crd = gantry_crds::schema::manifest(&kind.id.crd().unwrap());
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Every node of a schema, outermost first. Children of a node that has properties without descriptions are embedded.
pub fn nodes<'a>(path: &str, schema: &'a Value, embedded: bool, out: &mut Vec<Node<'a>>) {
    out.push(Node {
        path: path.to_owned(),
        schema,
        embedded,
    });
    let inside = embedded || EMBEDDED.iter().any(|suffix| path.ends_with(suffix));
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        nodes(&format!("{path}.{name}"), child, inside, out);
    }
    if let Some(child) = schema.get("items") {
        nodes(&format!("{path}[]"), child, inside, out);
    }
    if let Some(child) = schema.get("additionalProperties") {
        nodes(&format!("{path}{{}}"), child, inside, out);
    }
}

/// Ends of the paths at which a Kubernetes type is embedded without descriptions.
const EMBEDDED: &[&str] = &[
    ".env",
    ".extraEnv",
    ".envFrom",
    ".extraEnvFrom",
    ".resources",
    "KeyRef",
    "SecretRef",
    ".volumeMounts",
    ".imagePullSecrets",
    ".pullSecrets",
    ".providerKeys",
    ".cacheHmacKey",
    ".registryKey",
    ".metricsToken",
];
