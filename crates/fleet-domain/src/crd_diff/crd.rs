//! A definition as far as it is compared. Reads `apiextensions.k8s.io/v1`, and `v1beta1` as the server would convert it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    parse,
    schema::{Schema, Types},
};

/// Why a document is not a definition that can be compared.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unreadable {
    #[error("it has no metadata.name and no spec.group and spec.names.plural to make one of")]
    NoName,
    #[error("{0} has no versions")]
    NoVersions(String),
}

#[derive(Clone, Debug)]
pub struct Crd {
    pub name: String,
    pub group: String,
    pub kind: String,
    pub scope: String,
    pub plural: String,
    pub singular: String,
    pub list_kind: String,
    pub short_names: BTreeSet<String>,
    pub categories: BTreeSet<String>,
    /// Nothing is pruned at all: a leftover of `v1beta1`.
    pub preserves_unknown: bool,
    pub conversion: Conversion,
    pub versions: Vec<Version>,
    /// The release of Helm, with its namespace, that removes the definition when its chart does not have it any more.
    pub release: Option<String>,
    /// Known only where the definition comes from a cluster.
    pub stored_versions: Option<BTreeSet<String>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversion {
    pub webhook: bool,
    /// Where the webhook is, without its certificate, which changes by itself.
    pub target: Option<Value>,
    pub review_versions: BTreeSet<String>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the API")]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub schema: Schema,
    pub status: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<Column>,
    pub selectable: BTreeSet<String>,
}

/// What `kubectl get` shows; its description is shown by nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub path: String,
    pub kind: String,
    pub format: String,
    /// Columns above 0 are shown only where all are asked for.
    pub priority: i64,
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        if self.priority > 0 {
            f.write_str(" (wide)")?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    pub spec: String,
    pub status: String,
    pub selector: Option<String>,
}

/// Whether a document is a definition at all.
pub fn is_definition(document: &Value) -> bool {
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    text("kind") == Some("CustomResourceDefinition")
        && text("apiVersion").is_some_and(|version| version.starts_with("apiextensions.k8s.io/"))
}

impl Crd {
    pub fn parse(document: &Value) -> Result<Self, Unreadable> {
        let spec = &document["spec"];
        let names = &spec["names"];
        let beta = document["apiVersion"] == "apiextensions.k8s.io/v1beta1";
        let group = text(&spec["group"]);
        let plural = text(&names["plural"]);
        let name = match text(&document["metadata"]["name"]) {
            name if !name.is_empty() => name,
            _ if !group.is_empty() && !plural.is_empty() => format!("{plural}.{group}"),
            _ => return Err(Unreadable::NoName),
        };
        let kind = text(&names["kind"]);
        let or_else = |given: String, made: String| if given.is_empty() { made } else { given };
        let preserves_unknown = spec["preserveUnknownFields"].as_bool().unwrap_or(beta);
        let versions = versions(spec, preserves_unknown);
        if versions.is_empty() {
            return Err(Unreadable::NoVersions(name));
        }
        Ok(Self {
            scope: or_else(text(&spec["scope"]), "Namespaced".to_owned()),
            singular: or_else(text(&names["singular"]), kind.to_lowercase()),
            list_kind: or_else(text(&names["listKind"]), format!("{kind}List")),
            short_names: texts(&names["shortNames"]),
            categories: texts(&names["categories"]),
            preserves_unknown,
            conversion: conversion(&spec["conversion"]),
            release: release(&document["metadata"]),
            stored_versions: document["status"]["storedVersions"]
                .as_array()
                .filter(|versions| !versions.is_empty())
                .map(|_| texts(&document["status"]["storedVersions"])),
            versions,
            name,
            group,
            kind,
            plural,
        })
    }

    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    pub fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|version| version.storage)
    }
}

/// Helm does not look after what came from `crds/`, and leaves alone what is to be kept.
fn release(metadata: &Value) -> Option<String> {
    let annotation = |name: &str| metadata["annotations"][name].as_str();
    let is_helms = metadata["labels"]["app.kubernetes.io/managed-by"] == "Helm";
    let name = annotation("meta.helm.sh/release-name").filter(|name| is_helms && !name.is_empty())?;
    let stays =
        annotation("helm.sh/resource-policy").is_some_and(|policy| policy.eq_ignore_ascii_case("keep"));
    let namespace = annotation("meta.helm.sh/release-namespace").unwrap_or_default();
    (!stays).then(|| format!("{namespace}/{name}"))
}

fn versions(spec: &Value, preserves_unknown: bool) -> Vec<Version> {
    let beta_single = [serde_json::json!({
        "name": spec["version"],
        "served": true,
        "storage": true,
    })];
    let list = match spec["versions"].as_array() {
        Some(list) if !list.is_empty() => list.as_slice(),
        _ if spec["version"].is_string() => &beta_single,
        _ => return Vec::new(),
    };
    // A name twice is refused by every server; the first one counts.
    let mut seen = BTreeSet::new();
    list.iter()
        .filter(|version| seen.insert(text(&version["name"])))
        .map(|version| one_version(spec, version, preserves_unknown))
        .collect()
}

fn one_version(spec: &Value, version: &Value, preserves_unknown: bool) -> Version {
    // In v1beta1 what all versions share stands beside them.
    let shared = |own: &'static str, top: &'static str| match version.get(own) {
        Some(value) if !value.is_null() => value.clone(),
        _ => spec.get(top).cloned().unwrap_or_default(),
    };
    let schema = version
        .get("schema")
        .filter(|schema| !schema.is_null())
        .or_else(|| spec.get("validation"))
        .and_then(|schema| schema.get("openAPIV3Schema"))
        .filter(|schema| !schema.is_null());
    let parse = if preserves_unknown {
        parse::parse_preserving
    } else {
        parse::parse
    };
    let subresources = shared("subresources", "subresources");
    let columns = shared("additionalPrinterColumns", "additionalPrinterColumns");
    Version {
        name: text(&version["name"]),
        served: version["served"].as_bool().unwrap_or(false),
        storage: version["storage"].as_bool().unwrap_or(false),
        deprecated: version["deprecated"].as_bool().unwrap_or(false),
        schema: of_object(schema.map_or_else(Schema::open, parse)),
        status: subresources.get("status").is_some_and(|status| !status.is_null()),
        scale: subresources
            .get("scale")
            .filter(|scale| !scale.is_null())
            .map(|scale| Scale {
                spec: text(&scale["specReplicasPath"]),
                status: text(&scale["statusReplicasPath"]),
                selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
            }),
        columns: columns
            .as_array()
            .into_iter()
            .flatten()
            .map(|column| {
                let path = [&column["jsonPath"], &column["JSONPath"]];
                let path = path.into_iter().find(|path| path.is_string());
                Column {
                    name: text(&column["name"]),
                    path: path.map(text).unwrap_or_default(),
                    kind: text(&column["type"]),
                    format: text(&column["format"]),
                    priority: column["priority"].as_i64().unwrap_or_default(),
                }
            })
            .collect(),
        selectable: version["selectableFields"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|field| text(&field["jsonPath"]))
            .collect(),
    }
}

/// A custom resource is an object, whether its schema says so or says nothing.
fn of_object(mut schema: Schema) -> Schema {
    if schema.types.has(Types::OBJECT) {
        schema.types = Types::OBJECT;
        schema.forget();
    }
    schema
}

fn conversion(conversion: &Value) -> Conversion {
    let client = [
        &conversion["webhook"]["clientConfig"],
        &conversion["webhookClientConfig"],
    ];
    let client = client.into_iter().find(|client| client.is_object());
    let versions = [
        &conversion["webhook"]["conversionReviewVersions"],
        &conversion["conversionReviewVersions"],
    ];
    let webhook = conversion["strategy"] == "Webhook";
    let named: BTreeSet<String> = versions.into_iter().flat_map(texts).collect();
    Conversion {
        webhook,
        target: client
            .map(|client| serde_json::json!({"service": service(&client["service"]), "url": client["url"]})),
        review_versions: if webhook && named.is_empty() {
            // Which only v1beta1 allows to be left out.
            BTreeSet::from(["v1beta1".to_owned()])
        } else {
            named
        },
    }
}

/// Where the webhook is, as a server has it once it has filled in what was left out.
fn service(service: &Value) -> Value {
    if !service.is_object() {
        return Value::Null;
    }
    let port = Some(&service["port"]).filter(|port| !port.is_null());
    serde_json::json!({
        "name": service["name"],
        "namespace": service["namespace"],
        "path": text(&service["path"]),
        "port": port.cloned().unwrap_or_else(|| 443.into()),
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> BTreeSet<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
