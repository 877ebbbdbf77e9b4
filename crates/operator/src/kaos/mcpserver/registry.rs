//! The runtime registry: what `runtime: NAME` means. Five entries are built in, as in the original; a ConfigMap in the
//! operator's namespace changes them and adds more.

use std::collections::BTreeMap;

use gantry_kit::references::Resolved;
use serde::Deserialize;

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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    runtimes: BTreeMap<String, Runtime>,
    /// Why the ConfigMap could not be read, if so.
    pub fault: Option<String>,
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
        let found = self
            .runtimes
            .get(name)
            .filter(|runtime| !runtime.image.is_empty());
        found.ok_or_else(|| {
            if let Some(fault) = &self.fault {
                return fault.clone();
            }
            let names: Vec<&str> = self.runtimes.keys().map(String::as_str).collect();
            format!(
                "runtime {name:?} is not in the registry (there are: {}): use one of these, \"custom\" with \
                 container.image, or add it to ConfigMap {CONFIG_MAP}",
                names.join(", ")
            )
        })
    }
}

/// Entries may stand at the top or under `runtimes`.
fn read(text: &str) -> Result<BTreeMap<String, Runtime>, String> {
    #[derive(Deserialize)]
    struct Wrapped {
        runtimes: BTreeMap<String, Runtime>,
    }
    if text.trim().is_empty() {
        return Ok(BTreeMap::new());
    }
    serde_saphyr::from_str::<Wrapped>(text)
        .map(|wrapped| wrapped.runtimes)
        .or_else(|_| serde_saphyr::from_str::<BTreeMap<String, Runtime>>(text))
        .map_err(|error| error.to_string())
}

fn built_in() -> BTreeMap<String, Runtime> {
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
    .map(|(name, runtime)| (name.to_owned(), runtime))
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

    #[test]
    fn a_broken_registry_is_named_but_built_in_runtimes_work() {
        let registry = registry("runtimes: [");
        assert!(registry.find("slack").is_ok());
        assert!(registry.find("mine").unwrap_err().contains("cannot be read"));
    }
}
