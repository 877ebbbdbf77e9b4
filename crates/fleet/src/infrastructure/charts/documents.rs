//! The documents of a file: JSON, YAML, lists of objects, and templates as far as they are nearly YAML.

use serde_json::Value;

use super::archive::{File, is_archive};
use crate::infrastructure::yaml::{self, Bounds, TextError};

/// Whether a file of this name may hold documents.
pub fn may_hold(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let ending = lower.rsplit('.').next().unwrap_or_default();
    matches!(ending, "yaml" | "yml" | "json")
}

/// Whether a file of this name may hold documents, or other files that do.
pub fn may_hold_or_pack(name: &str) -> bool {
    may_hold(name) || is_archive(name)
}

const KIND: &str = "CustomResourceDefinition";

fn has(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// Most files of a chart have no definitions, and need not even be parsed.
pub fn may_define(file: &File) -> bool {
    if !has(&file.bytes, KIND) {
        return false;
    }
    // A comment in values.yaml that speaks of definitions makes none. A template may have one in the middle of a line.
    let is_said = |line: &[u8]| !line.trim_ascii_start().starts_with(b"#") && has(line, KIND);
    !file.read_by_templates || !may_hold(&file.path) || file.bytes.split(|byte| *byte == b'\n').any(is_said)
}

/// Whether the file may hold definitions that only Helm can tell for sure.
pub fn is_templated(file: &File) -> bool {
    (file.read_by_templates || file.template && has(&file.bytes, "{{")) && may_define(file)
}

/// All documents of a file, with lists opened.
pub fn read(file: &File, bounds: Bounds) -> Result<Vec<Value>, TextError> {
    let text = std::str::from_utf8(&file.bytes).map_err(|_| TextError::Unreadable)?;
    if file.template && text.contains("{{") {
        return Ok(Vec::new());
    }
    parse(text, bounds)
}

/// Documents, with lists opened.
pub fn parse(text: &str, bounds: Bounds) -> Result<Vec<Value>, TextError> {
    let documents = yaml::documents(text, bounds)?;
    Ok(documents.into_iter().flat_map(opened).collect())
}

/// The objects of a `List`, or the object itself.
fn opened(mut document: Value) -> Vec<Value> {
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
pub fn approximate(file: &File, bounds: Bounds) -> (Vec<Value>, Vec<String>) {
    let mut documents = Vec::new();
    let mut notes = Vec::new();
    let text = String::from_utf8_lossy(&file.bytes);
    let mut left = bounds;
    for part in split(&text) {
        if !part.contains("CustomResourceDefinition") {
            continue;
        }
        match parse(&without_actions(&part), left) {
            Ok(read) => {
                left.spend(&read);
                documents.extend(read);
            }
            Err(_) => notes.push(format!(
                "a definition in {} depends on chart values and was not compared; render the chart with `helm template` and compare the output",
                file.path
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
    use super::*;
    use crate::infrastructure::yaml::CHART;

    fn file(text: &str, template: bool) -> File {
        File {
            path: "x.yaml".to_owned(),
            bytes: text.as_bytes().to_vec(),
            template,
            read_by_templates: false,
        }
    }

    #[test]
    fn lists_are_opened() {
        let text = "kind: List\nitems:\n- kind: A\n- kind: B\n---\nkind: C\n";
        let documents = read(&file(text, false), CHART).unwrap();
        let kinds: Vec<&str> = documents.iter().filter_map(|d| d["kind"].as_str()).collect();
        assert_eq!(kinds, ["A", "B", "C"]);
    }

    #[test]
    fn templates_that_are_nearly_yaml_are_read() {
        let text = "{{- if .Values.crds }}\nkind: CustomResourceDefinition\nmetadata:\n  name: {{ .Values.name }}\n  \
                    labels:\n    {{- include \"labels\" . | nindent 4 }}\n    a: \"{{ .Release.Name }}-x\"\nspec:\n  \
                    group: example.com\n{{- end }}\n";
        let template = file(text, true);
        assert!(is_templated(&template));
        assert!(read(&template, CHART).unwrap().is_empty());
        let (documents, notes) = approximate(&template, CHART);
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(documents[0]["spec"]["group"], "example.com");
        assert_eq!(documents[0]["metadata"]["labels"]["a"], "-x");
    }

    #[test]
    fn a_comment_in_values_defines_nothing() {
        let values = |text: &str| File {
            path: "x/values.yaml".to_owned(),
            read_by_templates: true,
            ..file(text, false)
        };
        let comment = "crds:\n  # Install the CustomResourceDefinition.\n  enabled: true\n";
        assert!(!may_define(&values(comment)) && !is_templated(&values(comment)));
        let said = values("extra:\n- kind: CustomResourceDefinition\n");
        assert!(is_templated(&said), "a template may print it");
        let helper = File {
            path: "x/templates/_helpers.tpl".to_owned(),
            ..values("# kind: CustomResourceDefinition")
        };
        assert!(may_define(&helper), "that is no YAML");
    }

    #[test]
    fn templates_that_are_not_are_named() {
        let text = "kind: CustomResourceDefinition\n  {{ range .x }} a: [ {{ end }}\n";
        let (documents, notes) = approximate(&file(text, true), CHART);
        assert!(documents.is_empty());
        assert_eq!(notes.len(), 1);
    }
}
