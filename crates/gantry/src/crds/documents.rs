//! The documents of a file: JSON, YAML, lists of objects, and templates as far as they are plain YAML.

use anyhow::Context as _;
use serde_json::Value;

use super::{chart::is_archive, source::File};

/// Definitions of thousands of fields are large; anchors that multiply are still refused.
const MAX_NODES: usize = 4_000_000;
const MAX_DEPTH: usize = 200;

/// Whether a file of this name may hold documents.
pub fn may_hold(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let ending = lower.rsplit('.').next().unwrap_or_default();
    matches!(ending, "yaml" | "yml" | "json") || is_archive(name)
}

/// The documents of a file, and what the user should know about them.
pub fn read(file: &File) -> anyhow::Result<(Vec<Value>, Vec<String>)> {
    let text = std::str::from_utf8(&file.bytes).with_context(|| format!("{} is not text", file.path))?;
    if file.template && text.contains("{{") {
        return Ok(template(&file.path, text));
    }
    let documents = parse(text).with_context(|| format!("failed to read {}", file.path))?;
    Ok((documents.into_iter().flat_map(flatten).collect(), Vec::new()))
}

fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
    if text.trim_start().starts_with('{') {
        let mut documents = Vec::new();
        for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            match document {
                Ok(document) => documents.push(document),
                // YAML may begin with a brace as well.
                Err(_) => return yaml(text),
            }
        }
        return Ok(documents);
    }
    yaml(text)
}

fn yaml(text: &str) -> anyhow::Result<Vec<Value>> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_depth: MAX_DEPTH,
            max_documents: 10_000,
        },
    };
    Ok(serde_saphyr::from_multiple_with_options(text, options)?)
}

/// The objects of a `List`, or the object itself.
fn flatten(mut document: Value) -> Vec<Value> {
    let is_list = document["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items") {
        Some(Value::Array(items)) if is_list => std::mem::take(items),
        _ => vec![document],
    }
}

/// Definitions in a template, read without rendering it: lines that are only actions are left out, and values that are
/// actions become a word. What then is no YAML is named, not guessed.
fn template(path: &str, text: &str) -> (Vec<Value>, Vec<String>) {
    let mut documents = Vec::new();
    let mut notes = Vec::new();
    for part in split(text) {
        if !part.contains("CustomResourceDefinition") {
            continue;
        }
        match parse(&without_actions(&part)) {
            Ok(read) => documents.extend(read.into_iter().flat_map(flatten)),
            Err(_) => notes.push(format!(
                "a definition in {path} depends on chart values and was not compared; render the chart with `helm template` and compare the output"
            )),
        }
    }
    (documents, notes)
}

fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

fn without_actions(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.lines() {
        let mut kept = String::new();
        let mut rest = line;
        let mut had_action = inside;
        loop {
            if inside {
                let Some(end) = rest.find("}}") else { break };
                rest = &rest[end + 2..];
                inside = false;
            }
            let Some(start) = rest.find("{{") else {
                kept.push_str(rest);
                break;
            };
            had_action = true;
            kept.push_str(&rest[..start]);
            // A value that is an action; inside other text it is dropped.
            if kept.trim_end().ends_with(':') || kept.trim_end().ends_with('-') {
                kept.push_str("templated");
            }
            rest = &rest[start + 2..];
            inside = true;
        }
        let only_actions = had_action && matches!(kept.trim(), "" | "templated");
        if !only_actions {
            out.push_str(&kept);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn file(text: &str, template: bool) -> File {
        File {
            path: "x.yaml".to_owned(),
            bytes: text.as_bytes().to_vec(),
            template,
        }
    }

    #[test]
    fn lists_are_opened() {
        let text = "kind: List\nitems:\n- kind: A\n- kind: B\n---\nkind: C\n";
        let (documents, _) = read(&file(text, false)).unwrap();
        let kinds: Vec<&str> = documents.iter().filter_map(|d| d["kind"].as_str()).collect();
        assert_eq!(kinds, ["A", "B", "C"]);
    }

    #[test]
    fn templates_that_are_nearly_yaml_are_read() {
        let text = "{{- if .Values.crds }}\nkind: CustomResourceDefinition\nmetadata:\n  name: {{ .Values.name }}\n  \
                    labels:\n    {{- include \"labels\" . | nindent 4 }}\n    a: \"{{ .Release.Name }}-x\"\nspec:\n  \
                    group: example.com\n{{- end }}\n";
        let (documents, notes) = read(&file(text, true)).unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(documents[0]["spec"]["group"], "example.com");
        assert_eq!(documents[0]["metadata"]["labels"]["a"], "-x");
    }

    #[test]
    fn templates_that_are_not_are_named() {
        let text = "kind: CustomResourceDefinition\n  {{ range .x }} a: [ {{ end }}\n";
        let (documents, notes) = read(&file(text, true)).unwrap();
        assert!(documents.is_empty());
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn anchors_that_multiply_are_refused() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let before = level - 1;
            let aliases = vec![format!("*a{before}"); 10].join(", ");
            let _ = writeln!(text, "a{level}: &a{level} [{aliases}]");
        }
        assert!(read(&file(&text, false)).is_err());
    }
}
