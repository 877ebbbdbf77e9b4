//! The runtime registry: what `runtime: NAME` means. Five entries are built in, as in the original; a ConfigMap in the
//! operator's namespace changes them and adds more.

use std::collections::BTreeMap;

use gantry_kit::references::Resolved;
use serde::Deserialize;
use serde_json::Value;

pub const CONFIG_MAP: &str = "kaos-mcp-runtimes";
const KEY: &str = "runtimes.yaml";
/// The runtime that serves tools given as Python code.
pub const PYTHON_STRING: &str = "python-string";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Runtime {
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    /// Variable that carries `params`.
    pub params_env_var: Option<String>,
    /// Variables that the user has to supply.
    pub required_env: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// What each name means, or why that cannot be told.
    runtimes: BTreeMap<String, Result<Runtime, String>>,
    /// Why nothing of the ConfigMap can be told. It may replace any runtime, so then no name has a meaning: what is built
    /// in would quietly move running servers to other images.
    fault: Option<String>,
}

impl Registry {
    pub fn parse(config_map: Option<&Resolved>) -> Self {
        let mut registry = Self {
            runtimes: built_in(),
            fault: None,
        };
        let Some(text) = config_map.and_then(|map| map.data.get(KEY)) else {
            return registry;
        };
        match read(text) {
            Ok(runtimes) => registry.runtimes.extend(runtimes),
            Err(why) => {
                registry.fault = Some(format!(
                    "key {KEY} of ConfigMap {CONFIG_MAP} cannot be read: {why}"
                ));
            }
        }
        registry
    }

    /// The entry, or words for the user.
    pub fn find(&self, name: &str) -> Result<&Runtime, String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        match self.runtimes.get(name) {
            Some(Ok(runtime)) => Ok(runtime),
            Some(Err(why)) => Err(format!(
                "runtime {name:?} in key {KEY} of ConfigMap {CONFIG_MAP} cannot be read: {why}"
            )),
            None => {
                let names: Vec<&str> = self.runtimes.keys().map(String::as_str).collect();
                Err(format!(
                    "runtime {name:?} is not in the registry (there are: {}): use one of these, \"custom\" with \
                     container.image, or add it to ConfigMap {CONFIG_MAP}",
                    names.join(", ")
                ))
            }
        }
    }
}

/// Entries stand under `runtimes` or, when there is no such key, at the top. One that is wrong does not spoil the others.
fn read(text: &str) -> Result<BTreeMap<String, Result<Runtime, String>>, String> {
    let file: Value = if text.trim().is_empty() {
        Value::Null
    } else {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())?
    };
    let entries = match file {
        Value::Object(mut top) => top.remove("runtimes").unwrap_or(Value::Object(top)),
        other => other,
    };
    match entries {
        Value::Null => Ok(BTreeMap::new()),
        Value::Object(entries) => {
            let entries = entries.into_iter();
            Ok(entries.map(|(name, entry)| (name, read_entry(entry))).collect())
        }
        _ => Err("it is no map of runtimes by name".to_owned()),
    }
}

fn read_entry(mut entry: Value) -> Result<Runtime, String> {
    if let Some(fields) = entry.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        // Everything that we read is text; `args: [--port, 8000]` means text too.
        for items in fields.values_mut().filter_map(Value::as_array_mut) {
            items.iter_mut().for_each(as_text);
        }
    }
    let runtime: Runtime = serde_json::from_value(entry).map_err(|error| error.to_string())?;
    if runtime.image.is_empty() {
        return Err("it names no image".to_owned());
    }
    Ok(runtime)
}

fn as_text(value: &mut Value) {
    // Not what has a point: 1.10 has become 1.1 here.
    if value.is_i64() || value.is_boolean() {
        *value = Value::String(value.to_string());
    }
}

fn built_in() -> BTreeMap<String, Result<Runtime, String>> {
    let runtime = |image: &str, params: Option<&str>, args: &[&str], required: &[&str]| Runtime {
        image: image.to_owned(),
        params_env_var: params.map(ToOwned::to_owned),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        required_env: required.iter().map(|name| (*name).to_owned()).collect(),
        ..Runtime::default()
    };
    [
        (
            PYTHON_STRING,
            runtime(
                "axsauze/kaos-mcp-python-string:latest",
                Some("MCP_TOOLS_STRING"),
                &[],
                &[],
            ),
        ),
        (
            "kubernetes",
            runtime(
                "quay.io/containers/kubernetes_mcp_server:v0.0.67",
                None,
                &["--port", "8000"],
                &[],
            ),
        ),
        (
            "slack",
            runtime(
                "zencoderai/slack-mcp:latest",
                None,
                &[],
                &["SLACK_BOT_TOKEN", "SLACK_TEAM_ID"],
            ),
        ),
        (
            "pctx-codemode",
            runtime(
                "axsauze/kaos-mcp-pctx-codemode:latest",
                Some("PCTX_CONFIG"),
                &[],
                &[],
            ),
        ),
        (
            "fastmcp-codemode",
            runtime(
                "axsauze/kaos-mcp-fastmcp-codemode:latest",
                Some("MCP_SERVERS_CONFIG"),
                &[],
                &[],
            ),
        ),
    ]
    .map(|(name, runtime)| (name.to_owned(), Ok(runtime)))
    .into()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn registry(text: &str) -> Registry {
        let data = [(KEY.to_owned(), text.to_owned())].into();
        Registry::parse(Some(&Resolved {
            data,
            ..Resolved::default()
        }))
    }

    #[rstest]
    #[case::wrapped("runtimes:\n  mine: {image: i, paramsEnvVar: P, description: ignored}\n")]
    #[case::plain("mine: {image: i, paramsEnvVar: P, type: python}\n")]
    fn both_layouts_are_read_and_add_to_what_is_built_in(#[case] text: &str) {
        let registry = registry(text);
        assert_eq!(
            registry.find("mine").unwrap().params_env_var.as_deref(),
            Some("P")
        );
        assert!(registry.find("slack").is_ok());
    }

    #[test]
    fn a_missing_runtime_names_the_cure() {
        let error = registry("").find("nope").unwrap_err();
        assert!(
            error.contains("nope") && error.contains("python-string") && error.contains(CONFIG_MAP),
            "{error}"
        );
    }

    /// Any of the five may have been replaced in what cannot be read: falling back to them would move what runs to
    /// other images.
    #[rstest]
    #[case::not_yaml("runtimes: [")]
    #[case::twice("slack: {image: a}\nslack: {image: b}\n")]
    #[case::a_list("- image: i\n")]
    #[case::a_list_inside("runtimes: [{image: i}]\n")]
    fn a_file_that_cannot_be_read_leaves_no_runtime_to_fall_back_to(#[case] text: &str) {
        for name in ["slack", "mine"] {
            let why = registry(text).find(name).unwrap_err();
            assert!(why.contains("cannot be read"), "{why}");
        }
    }

    #[rstest]
    #[case::wrapped("runtimes:\n  slack: {image: [i]}\n  kubernetes: {image: own, args: [--port, 8000]}\n")]
    #[case::plain("slack: {args: []}\nkubernetes: {image: own, args: [--port, 8000]}\n")]
    #[case::nothing("slack:\nkubernetes: {image: own, args: [--port, 8000]}\n")]
    fn an_entry_at_fault_concerns_nobody_else(#[case] text: &str) {
        let registry = registry(text);
        let why = registry.find("slack").unwrap_err();
        assert!(
            why.contains("slack") && why.contains("cannot be read") && why.contains(CONFIG_MAP),
            "{why}"
        );
        let own = registry.find("kubernetes").unwrap();
        assert_eq!(
            (own.image.as_str(), own.args.join(" ").as_str()),
            ("own", "--port 8000")
        );
        assert!(registry.find(PYTHON_STRING).is_ok());
    }

    #[rstest]
    #[case("")]
    #[case("# nothing yet\n")]
    #[case("runtimes:\n")]
    #[case("runtimes: {}\n")]
    fn an_empty_file_changes_nothing(#[case] text: &str) {
        assert_eq!(registry(text), Registry::parse(None));
    }
}
