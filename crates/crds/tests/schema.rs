//! The CRDs themselves: structure, size, bounds, descriptions, defaults, names.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

mod support;

use gantry_crds::{KINDS, all, crd, schema, strip_for_old_servers};
use serde_json::Value;
use support::{nodes, root};

const MAX_BYTES: usize = 200 * 1024;

#[test]
fn crds_are_small() {
    for crd in all() {
        let bytes = serde_json::to_string(&schema::manifest(&crd)).unwrap().len();
        assert!(bytes < MAX_BYTES, "{:?} has {bytes} bytes", crd.metadata.name);
    }
}

#[test]
fn names_are_as_in_the_table() {
    let crds = all();
    assert_eq!(crds.len(), KINDS.len());
    for (kind, crd) in KINDS.iter().zip(&crds) {
        assert_eq!(crd.metadata.name.as_deref(), Some(kind.crd_name().as_str()));
        assert_eq!(crd.spec.group, kind.group);
        assert_eq!(crd.spec.scope, "Namespaced");
        assert_eq!(crd.spec.names.kind, kind.kind);
        assert_eq!(crd.spec.names.plural, kind.plural);
        assert_eq!(crd.spec.names.singular.as_deref(), Some(kind.singular));
        assert!(
            crd.spec
                .names
                .categories
                .as_ref()
                .unwrap()
                .contains(&"gantry".to_owned())
        );
        let [version] = crd.spec.versions.as_slice() else {
            panic!("one version")
        };
        assert_eq!(version.name, kind.version);
        assert!(version.served && version.storage);
        assert!(
            version.subresources.as_ref().unwrap().status.is_some(),
            "{}",
            kind.kind
        );
    }
}

#[test]
fn kinds_are_found_by_any_of_their_names() {
    for name in [
        "PeninOmegaCluster",
        "peninaomegaclusters",
        "peninaomegacluster",
        "peninaomegaclusters.penin.ai",
    ] {
        let found = crd(name).unwrap();
        assert_eq!(found.spec.names.kind, "PeninOmegaCluster");
    }
    assert!(crd("Pod").is_none());
}

#[test]
fn short_names_are_the_originals() {
    let expected: &[(&str, &[&str])] = &[
        ("Agent", &["agent", "agents"]),
        ("ModelAPI", &["api", "apis"]),
        ("MCPServer", &["mcp", "mcps"]),
        ("Model", &[]),
        ("ScalingPolicy", &["sp", "nsp"]),
        ("PeninOmegaCluster", &["poc", "penin"]),
    ];
    for (kind, names) in expected {
        assert_eq!(
            crd(kind).unwrap().spec.names.short_names.unwrap_or_default(),
            *names,
            "{kind}"
        );
    }
}

/// The originals' headings, in their order, come before ours.
#[test]
fn columns_start_with_the_originals() {
    let expected: &[(&str, &[&str])] = &[
        ("Agent", &["ModelAPI", "Model", "Ready", "Phase"]),
        ("ModelAPI", &["Mode", "Ready", "Phase"]),
        ("MCPServer", &["Runtime", "Ready", "Phase"]),
        ("Model", &["Model", "Status"]),
        (
            "ScalingPolicy",
            &[
                "Target",
                "Min-Replicas",
                "Max-Replicas",
                "Current-Replicas",
                "Phase",
            ],
        ),
        ("PeninOmegaCluster", &["Phase", "Version"]),
    ];
    for (kind, headings) in expected {
        let crd = crd(kind).unwrap();
        let columns = crd.spec.versions[0].additional_printer_columns.clone().unwrap();
        let names: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
        assert!(names.starts_with(headings), "{kind}: {names:?}");
        assert_eq!(names.last(), Some(&"Age"), "{kind}");
    }
}

/// Columns and scale paths that name a field which does not exist show nothing, for ever.
#[test]
fn paths_lead_somewhere() {
    for kind in KINDS {
        let crd = kind.id.crd().unwrap();
        let version = &crd.spec.versions[0];
        let schema = root(kind);
        let mut paths: Vec<String> = version
            .additional_printer_columns
            .iter()
            .flatten()
            .map(|c| c.json_path.clone())
            .collect();
        if let Some(scale) = &version.subresources.as_ref().unwrap().scale {
            paths.push(scale.spec_replicas_path.clone());
            paths.push(scale.status_replicas_path.clone());
            paths.extend(scale.label_selector_path.clone());
        }
        for path in paths.iter().filter(|p| !p.starts_with(".metadata.")) {
            let plain = path.replace("[?(@.type==\"Ready\")]", "[]");
            let mut node = &schema;
            for part in plain.trim_start_matches('.').split('.') {
                let name = part.trim_end_matches("[]");
                node = node["properties"]
                    .get(name)
                    .unwrap_or_else(|| panic!("{}: {path}", kind.kind));
                if part.ends_with("[]") {
                    node = &node["items"];
                }
            }
        }
    }
}

#[test]
fn what_runs_in_one_deployment_can_be_scaled() {
    for (name, scalable) in [
        ("Agent", true),
        ("ModelAPI", true),
        ("MCPServer", true),
        ("Model", true),
        ("ScalingPolicy", false),
        ("PeninOmegaCluster", false),
        ("InfrastructureChange", false),
    ] {
        let crd = crd(name).unwrap();
        let scale = crd.spec.versions[0].subresources.as_ref().unwrap().scale.clone();
        assert_eq!(scale.is_some(), scalable, "{name}");
        if let Some(scale) = scale {
            assert_eq!(scale.label_selector_path.as_deref(), Some(".status.selector"));
            // Without a default the scale subresource reports 0, which switches autoscalers off.
            let schema = root(KINDS.iter().find(|k| k.kind == name).unwrap());
            assert_eq!(
                schema["properties"]["spec"]["properties"]["replicas"]["default"], 1,
                "{name}"
            );
        }
    }
}

/// The rules for structural schemas, as far as our schemas could break them, and what 1.20 knows.
#[test]
fn schemas_are_structural() {
    const KNOWN: &[&str] = &[
        "additionalProperties",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ];
    for kind in KINDS {
        let schema = root(kind);
        let mut found = Vec::new();
        nodes("", &schema, false, &mut found);
        for node in found {
            let at = format!("{} {}", kind.kind, node.path);
            let fields = node
                .schema
                .as_object()
                .unwrap_or_else(|| panic!("{at}: not an object"));
            for key in fields.keys() {
                assert!(KNOWN.contains(&key.as_str()), "{at}: {key}");
            }
            let typed = fields.contains_key("type");
            let int_or_string = node.schema["x-kubernetes-int-or-string"] == true;
            let preserved = node.schema["x-kubernetes-preserve-unknown-fields"] == true;
            assert!(typed || int_or_string || preserved, "{at}: no type");
            assert!(!(typed && int_or_string), "{at}: type and int-or-string");
            assert!(
                !(fields.contains_key("properties") && fields.contains_key("additionalProperties")),
                "{at}: properties and additionalProperties"
            );
            if node.schema["type"] == "array" {
                assert!(fields.contains_key("items"), "{at}: array without items");
            }
            if let Some(format) = fields.get("format") {
                assert!(
                    ["int32", "int64", "double", "date-time"].contains(&format.as_str().unwrap()),
                    "{at}: {format}"
                );
            }
            for name in node.schema["required"].as_array().into_iter().flatten() {
                assert!(
                    node.schema["properties"].get(name.as_str().unwrap()).is_some(),
                    "{at}: requires {name}"
                );
            }
            if let Some(keys) = node.schema["x-kubernetes-list-map-keys"].as_array() {
                for key in keys {
                    let required = node.schema["items"]["required"].as_array().unwrap();
                    assert!(required.contains(key), "{at}: key {key} is not required");
                }
            }
        }
    }
}

/// CEL's cost is estimated from the greatest possible size; what has no bound makes the server refuse the CRD.
#[test]
fn everything_in_a_spec_is_bounded() {
    for kind in KINDS {
        let schema = root(kind);
        let mut found = Vec::new();
        nodes(".spec", &schema["properties"]["spec"], false, &mut found);
        for node in found {
            let at = format!("{} {}", kind.kind, node.path);
            let has = |key: &str| node.schema.get(key).is_some();
            match node.schema["type"].as_str() {
                Some("string") => assert!(has("maxLength") || has("enum") || has("format"), "{at}"),
                Some("array") => assert!(has("maxItems"), "{at}"),
                Some("object") if has("additionalProperties") => assert!(has("maxProperties"), "{at}"),
                _ => {}
            }
        }
    }
}

/// CEL sees neither fields without a type nor what is inside a preserved object.
#[test]
fn rules_name_fields_that_cel_can_see() {
    for kind in KINDS {
        let schema = root(kind);
        let mut found = Vec::new();
        nodes("", &schema, false, &mut found);
        for node in found {
            for rule in node.schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let text = rule["rule"].as_str().unwrap();
                assert!(!rule["message"].as_str().unwrap().contains('\n'), "{text}");
                for path in text
                    .split(|c: char| !(c.is_alphanumeric() || c == '.'))
                    .filter_map(|w| w.strip_prefix("self."))
                {
                    let mut at = node.schema;
                    for part in path.split('.') {
                        at = at["properties"]
                            .get(part)
                            .unwrap_or_else(|| panic!("{}: {text}: {part}", kind.kind));
                        let visible = at.get("type").is_some() || at["x-kubernetes-int-or-string"] == true;
                        assert!(visible, "{}: {text}: {part} has no type", kind.kind);
                    }
                }
            }
        }
    }
}

#[test]
fn patterns_are_known_in_code() {
    for kind in KINDS {
        let schema = root(kind);
        let mut found = Vec::new();
        nodes("", &schema, false, &mut found);
        for node in found {
            if let Some(pattern) = node.schema["pattern"].as_str() {
                // No pattern of ours takes this, so one that does is not known.
                assert!(
                    !schema::matches(pattern, "\u{0}\n -"),
                    "{} {}: {pattern}",
                    kind.kind,
                    node.path
                );
            }
        }
    }
}

#[test]
fn every_property_is_described() {
    for kind in KINDS {
        let schema = root(kind);
        let mut found = Vec::new();
        nodes("", &schema, false, &mut found);
        for node in found
            .iter()
            .filter(|n| !n.embedded && !n.path.ends_with(['}', ']']))
        {
            let text = node.schema["description"].as_str().unwrap_or_default();
            assert!(
                text.ends_with('.') && text.len() > 3,
                "{} {}: {text:?}",
                kind.kind,
                node.path
            );
            assert!(!text.contains("Auto-generated"), "{}", kind.kind);
        }
    }
}

#[test]
fn conditions_are_a_map_of_types() {
    for kind in KINDS {
        let conditions = root(kind)["properties"]["status"]["properties"]["conditions"].clone();
        assert_eq!(conditions["x-kubernetes-list-type"], "map", "{}", kind.kind);
        assert_eq!(
            conditions["x-kubernetes-list-map-keys"],
            serde_json::json!(["type"]),
            "{}",
            kind.kind
        );
        assert_eq!(conditions["maxItems"], 32, "{}", kind.kind);
    }
}

#[test]
fn old_servers_get_what_they_understand() {
    for (kind, mut crd) in KINDS.iter().zip(all()) {
        strip_for_old_servers(&mut crd);
        let stripped = schema::manifest(&crd);
        let stripped = &stripped["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let (mut found, mut nullable) = (Vec::new(), 0);
        nodes("", stripped, false, &mut found);
        for node in found {
            let at = format!("{} {}", kind.kind, node.path);
            assert!(node.schema.get("x-kubernetes-validations").is_none(), "{at}");
            assert!(node.schema.get("x-kubernetes-int-or-string").is_none(), "{at}");
            if node.schema.get("nullable").is_some() {
                nullable += 1;
                assert!(
                    node.schema.get("default").is_none(),
                    "{at}: the default would not apply"
                );
                assert!(node.schema.get("enum").is_none(), "{at}: null is not in the enum");
            }
        }
        assert!(nullable > 0, "{}", kind.kind);
        // Nothing else changes.
        let mut back = stripped.clone();
        schema::walk(&mut back, &mut |node| {
            node.remove("nullable");
        });
        let mut expected = root(kind);
        schema::walk(&mut expected, &mut |node| {
            node.remove("x-kubernetes-validations");
            if node.remove("x-kubernetes-int-or-string").is_some() {
                node.insert("x-kubernetes-preserve-unknown-fields".to_owned(), true.into());
            }
        });
        assert_eq!(back, expected, "{}", kind.kind);
    }
}

#[test]
fn manifests_have_whole_numbers_and_no_status() {
    for crd in all() {
        let manifest = schema::manifest(&crd);
        assert_eq!(manifest["kind"], "CustomResourceDefinition");
        assert!(manifest.get("status").is_none());
        let text = serde_json::to_string(&manifest).unwrap();
        assert!(
            !text.contains(".0,") && !text.contains(".0}"),
            "{:?}",
            crd.metadata.name
        );
    }
}

/// A default that the schema does not allow makes the server refuse the CRD.
#[test]
fn defaults_fit_their_schema() {
    for kind in KINDS {
        let schema = root(kind);
        let mut found = Vec::new();
        nodes("", &schema, false, &mut found);
        for node in found {
            if let Some(default) = node.schema.get("default") {
                let mut problems = Vec::new();
                gantry_crds::validate::check(node.schema, default, &node.path, &mut problems);
                assert!(problems.is_empty(), "{} {problems:?}", kind.kind);
                assert_ne!(*default, Value::Null, "{} {}", kind.kind, node.path);
            }
        }
    }
}
