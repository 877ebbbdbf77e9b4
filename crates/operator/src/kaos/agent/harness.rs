//! A coding harness: another image, a workspace with a clone of a repository, and a folder for its state.

use std::collections::BTreeMap;

use gantry_crds::{
    common::text,
    conditions::reasons,
    kaos::{Agent, HarnessWorkspace},
};
use gantry_kit::references::Resolved;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Settings, workload::verdicts::Blocked};

/// In the operator's namespace, as in the original: what `harness.runtime` means.
pub const CONFIG_MAP: &str = "kaos-harness-runtimes";
const KEY: &str = "runtimes.yaml";
const WORKSPACE: &str = "/workspace";
const STATE: &str = "/state";
const CLONER: &str = "workspace-clone";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Runtime {
    image: String,
    driver: String,
}

/// The registry of harnesses; none are built in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    runtimes: BTreeMap<String, Runtime>,
    fault: Option<String>,
}

impl Registry {
    pub fn parse(config_map: Option<&Resolved>) -> Self {
        #[derive(Deserialize)]
        struct File {
            runtimes: BTreeMap<String, Runtime>,
        }
        let Some(text) = config_map.and_then(|map| map.data.get(KEY)) else {
            return Self::default();
        };
        match serde_saphyr::from_str::<File>(text) {
            Ok(file) => Self {
                runtimes: file.runtimes,
                fault: None,
            },
            Err(error) => Self {
                runtimes: BTreeMap::new(),
                fault: Some(format!(
                    "key {KEY} of ConfigMap {CONFIG_MAP} cannot be read: {error}"
                )),
            },
        }
    }
}

/// What a harness adds to the pod.
#[derive(Default)]
pub struct Parts {
    pub image: Option<String>,
    pub env: Vec<Value>,
    pub mounts: Vec<Value>,
    pub volumes: Vec<Value>,
    pub init: Vec<Value>,
}

pub fn parts(agent: &Agent, registry: &Registry, settings: &Settings) -> Result<Parts, Blocked> {
    let Some(harness) = &agent.spec.harness else {
        return Ok(Parts::default());
    };
    let own_image = agent.spec.container.as_ref().and_then(|c| text(c.image.as_ref()));
    let name = text(harness.runtime.as_ref());
    if let (Some(fault), Some(_)) = (&registry.fault, name) {
        // It decides the driver also where the image is the agent's own.
        return Err(Blocked::stuck(reasons::RUNTIME_NOT_FOUND, fault.clone()));
    }
    let known = name.and_then(|name| registry.runtimes.get(name));
    let image = known
        .map(|known| known.image.clone())
        .filter(|image| !image.is_empty());
    if image.is_none() && own_image.is_none() {
        let message = format!(
            "harness runtime {:?} has no image: add it to ConfigMap {CONFIG_MAP} in the operator's namespace, or set \
             container.image",
            name.unwrap_or_default()
        );
        return Err(Blocked::stuck(reasons::RUNTIME_NOT_FOUND, message));
    }
    let driver = known
        .map(|known| known.driver.as_str())
        .filter(|driver| !driver.is_empty());
    let mounts = vec![
        json!({"name": "workspace", "mountPath": WORKSPACE}),
        json!({"name": "state", "mountPath": STATE}),
    ];
    let mut parts = Parts {
        image,
        env: vec![
            json!({"name": "HARNESS_DRIVER", "value": driver.or(name).unwrap_or_default()}),
            json!({"name": "HARNESS_WORKSPACE", "value": WORKSPACE}),
            json!({"name": "HARNESS_STATE_DIR", "value": STATE}),
        ],
        volumes: vec![
            json!({"name": "workspace", "emptyDir": {}}),
            json!({"name": "state", "emptyDir": {}}),
        ],
        init: Vec::new(),
        mounts,
    };
    if let Some(workspace) = &harness.workspace {
        let env = repository(workspace);
        parts.env.extend(env.clone());
        if text(workspace.repo_url.as_ref()).is_some() {
            parts.init.push(cloner(settings, &env));
        }
    }
    Ok(parts)
}

fn repository(workspace: &HarnessWorkspace) -> Vec<Value> {
    let mut env = vec![json!({"name": "HARNESS_BRANCH", "value": workspace.branch()})];
    if let Some(url) = text(workspace.repo_url.as_ref()) {
        env.push(json!({"name": "HARNESS_REPO_URL", "value": url}));
    }
    if let Some(credentials) = &workspace.credentials_secret_ref {
        let mut selector = json!(credentials);
        if credentials.key.is_empty() {
            selector["key"] = json!("token");
        }
        env.push(json!({"name": "GIT_TOKEN", "valueFrom": {"secretKeyRef": selector}}));
    }
    // The volume's folder is root's, which git would take for somebody else's repository.
    for (name, value) in [
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "safe.directory"),
        ("GIT_CONFIG_VALUE_0", "*"),
    ] {
        env.push(json!({"name": name, "value": value}));
    }
    env
}

/// Clones once for each pod. What the user wrote is in variables, never part of the script; the token is in no argument.
fn cloner(settings: &Settings, env: &[Value]) -> Value {
    let script = format!(
        "git -C {WORKSPACE} rev-parse -q --verify HEAD >/dev/null 2>&1 || {{ find {WORKSPACE} -mindepth 1 -delete; \
         git -c credential.helper='!f() {{ echo username=x-access-token; echo \"password=$GIT_TOKEN\"; }}; f' \
         clone --depth 1 --single-branch --branch \"$HARNESS_BRANCH\" -- \"$HARNESS_REPO_URL\" {WORKSPACE}; }}"
    );
    json!({
        "name": CLONER,
        "image": settings.git_image,
        "command": ["sh", "-c", script],
        "env": env,
        "volumeMounts": [{"name": "workspace", "mountPath": WORKSPACE}],
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
    })
}
