//! Pure: spec and reads in, a [`Valid`] server or the reason why not out.

use gantry_crds::{
    conditions::reasons,
    kaos::{
        CUSTOM_RUNTIME, MCPServer, MCPServerSpec, McpServerConfig, McpServerType, McpTransport, ToolSource,
    },
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    observe::Observed,
    registry::{PYTHON_STRING, Registry},
};
use crate::{
    Settings,
    workload::{names, pod as pods, refs, rollout::INSTALLER, route::Route, telemetry, verdicts::Blocked},
};

pub const CONTAINER: &str = "mcp-server";
pub const PORT: i32 = 8000;
/// Where a package is installed; the root file system is read-only.
const PACKAGES: &str = "/opt/mcp";
/// A package that is not installed by then will not be.
const INSTALL_SECONDS: u32 = 600;
/// Where the program is installed that makes stdio HTTP.
const BRIDGE: &str = "/opt/mcp/.bridge";

pub fn child_name(name: &str) -> String {
    names::child("mcpserver", name)
}

/// A server that can be built: every choice made, every name known.
pub struct Valid {
    pub name: String,
    pub namespace: String,
    /// Name of the children.
    pub child: String,
    pub spec: MCPServerSpec,
    /// What the pods run, for the status.
    pub runtime: String,
    pub pod: Value,
    pub fingerprint: Option<String>,
    pub route: Route,
}

impl Valid {
    /// Where a gateway serves it.
    pub fn path(&self) -> String {
        format!("/{}/mcp/{}", self.namespace, self.name)
    }
}

pub fn validate(server: &MCPServer, settings: &Settings, observed: &Observed) -> Result<Valid, Blocked> {
    Blocked::on_problems(&server.spec.problems())?;
    let pod = pod(server, settings, &observed.registry)?;
    let namespace = server.namespace().unwrap_or_default();
    let uses = refs::uses(&namespace, &pod);
    Blocked::on_missing(refs::missing(&uses, &observed.known))?;
    check_required_env(server, &observed.registry, &pod, observed)?;
    let name = server.name_any();
    Ok(Valid {
        child: child_name(&name),
        fingerprint: refs::fingerprint(&uses, &observed.known),
        runtime: runtime_word(&server.spec),
        route: Route::decide(
            server.spec.gateway_route.as_ref(),
            settings.gateway.as_ref(),
            observed.has_gateway_api,
        ),
        spec: server.spec.clone(),
        name,
        namespace,
        pod,
    })
}

fn runtime_word(spec: &MCPServerSpec) -> String {
    match spec.source() {
        Some(ToolSource::Runtime { name, .. }) => name.to_owned(),
        Some(ToolSource::Package { .. }) => "package".to_owned(),
        _ => "tools".to_owned(),
    }
}

/// The complete pod of a server. Needs no reads but the registry, so that what it refers to can be looked up.
pub fn pod(server: &MCPServer, settings: &Settings, registry: &Registry) -> Result<Value, Blocked> {
    let spec = &server.spec;
    let Some(source) = spec.source() else {
        return Err(Blocked::stuck(
            reasons::INVALID_SPEC,
            "name exactly one source of tools",
        ));
    };
    let mut server_container = json!({
        "name": CONTAINER,
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": base_env(server, settings),
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "startupProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 10, "timeoutSeconds": 3, "failureThreshold": 3},
    });
    let mut init = Vec::new();
    let mut volumes = Vec::new();
    match source {
        ToolSource::Runtime {
            name: CUSTOM_RUNTIME,
            params,
        } => {
            push_env(
                &mut server_container,
                params.map(|params| json!({"name": "MCP_PARAMS", "value": pods::literal(params)})),
            );
        }
        ToolSource::Runtime { name, params } => {
            let runtime = find(registry, name)?;
            server_container["image"] = json!(runtime.image);
            set_list(&mut server_container, "command", &runtime.command);
            set_list(&mut server_container, "args", &runtime.args);
            if let Some(params) = params {
                let Some(variable) = &runtime.params_env_var else {
                    let message = format!("runtime {name:?} takes no params: remove spec.params");
                    return Err(Blocked::stuck(reasons::INVALID_SPEC, message));
                };
                push_env(
                    &mut server_container,
                    Some(json!({"name": variable, "value": pods::literal(params)})),
                );
            }
        }
        ToolSource::ToolsString(code) => {
            let runtime = find(registry, PYTHON_STRING)?;
            server_container["image"] = json!(runtime.image);
            push_env(
                &mut server_container,
                Some(json!({"name": "MCP_TOOLS_STRING", "value": pods::literal(code)})),
            );
        }
        ToolSource::ToolsSecret(selector) => {
            let runtime = find(registry, PYTHON_STRING)?;
            server_container["image"] = json!(runtime.image);
            let variable = json!({"name": "MCP_TOOLS_STRING", "valueFrom": {"secretKeyRef": selector}});
            push_env(&mut server_container, Some(variable));
        }
        ToolSource::Package { package, language } => {
            let installed = install(spec, settings, package, language)?;
            for (field, value) in installed.run {
                server_container[field] = value;
            }
            init.push(installed.init);
            volumes.push(json!({"name": "packages", "emptyDir": {}}));
        }
    }
    let mut wished = pods::secure(vec![server_container], init, volumes);
    if let Some(env) = spec.config.as_ref().and_then(|config| config.env.as_ref()) {
        // The installer gets them too: an index or a proxy is configured by environment.
        for list in ["containers", "initContainers"] {
            for container in wished[list].as_array_mut().into_iter().flatten() {
                let name = container["name"].clone();
                crate::workload::merge::strategic(container, &json!({"name": name, "env": env}));
            }
        }
    }
    if let Some(resources) = &spec.resources {
        let patch = json!({"containers": [{"name": CONTAINER, "resources": resources}]});
        crate::workload::merge::strategic(&mut wished, &patch);
    }
    pods::run_as(
        &mut wished,
        spec.service_account_name.as_ref(),
        &settings.image_pull_secrets,
    );
    pods::with_overrides(
        wished,
        CONTAINER,
        spec.container.as_deref(),
        spec.pod_spec.as_ref(),
    )
    .map_err(|message| Blocked::stuck(reasons::INVALID_OVERRIDE, message))
}

fn base_env(server: &MCPServer, settings: &Settings) -> Vec<Value> {
    let name = server.name_any();
    let mut env = vec![
        json!({"name": "MCP_SERVER_NAME", "value": name}),
        json!({"name": "LOG_LEVEL", "value": settings.log_level}),
        json!({"name": "PYTHONUNBUFFERED", "value": "1"}),
        // What servers built on FastMCP read, so that they listen where the Service leads.
        json!({"name": "FASTMCP_HOST", "value": "0.0.0.0"}),
        json!({"name": "FASTMCP_PORT", "value": PORT.to_string()}),
        json!({"name": "HOST", "value": "0.0.0.0"}),
        json!({"name": "PORT", "value": PORT.to_string()}),
    ];
    let namespace = server.namespace().unwrap_or_default();
    env.extend(telemetry::env(
        server.spec.telemetry.as_ref(),
        settings,
        &namespace,
        &name,
    ));
    env
}

struct Installed {
    init: Value,
    run: Vec<(&'static str, Value)>,
}

/// A package is installed by the pod itself, into a volume, and its command run from there.
fn install(
    spec: &MCPServerSpec,
    settings: &Settings,
    package: &str,
    language: McpServerType,
) -> Result<Installed, Blocked> {
    let config = spec.config.clone().unwrap_or_default();
    let stdio = spec.transport() == McpTransport::Stdio;
    let mount = json!([{"name": "packages", "mountPath": PACKAGES}]);
    let (image, script, path) = match language {
        McpServerType::Python => {
            // The bridge gets a folder of its own: its dependencies must not decide those of the package.
            let bridge = if stdio {
                format!(" && {} {BRIDGE} $MCP_BRIDGE", pip())
            } else {
                String::new()
            };
            let script = format!("{pip} {PACKAGES} \"$MCP_PACKAGE\"{bridge}", pip = pip());
            (&settings.python_image, script, format!("{PACKAGES}/bin"))
        }
        McpServerType::Node if stdio => {
            let message = "stdio is bridged for Python packages only: use a package that serves HTTP";
            return Err(Blocked::stuck(reasons::INVALID_SPEC, message));
        }
        McpServerType::Node => {
            let script = format!(
                "timeout -k 5 {INSTALL_SECONDS} npm install --no-audit --no-fund --cache /tmp/npm --prefix {PACKAGES} \
                 \"$MCP_PACKAGE\""
            );
            (
                &settings.node_image,
                script,
                format!("{PACKAGES}/node_modules/.bin"),
            )
        }
    };
    let script = format!(
        "{script}; code=$?; [ $code -ne 124 ] || echo \"error: no end after {INSTALL_SECONDS} s: is the package index \
         reachable?\" >&2; exit $code"
    );
    let mut env = vec![json!({"name": "MCP_PACKAGE", "value": package})];
    if stdio {
        env.push(json!({"name": "MCP_BRIDGE", "value": settings.bridge_package}));
    }
    env.extend(index(&config, settings, language));
    let init = json!({
        "name": INSTALLER,
        "image": image,
        "command": ["sh", "-c", script],
        "env": env,
        "volumeMounts": mount,
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
    });
    // The command is handed over as `$0`, never as part of the script: a package's name is the user's text.
    let command = command_of(package);
    let run = if stdio {
        format!(
            "exec env PYTHONPATH={BRIDGE} {BRIDGE}/bin/mcp-proxy --host 0.0.0.0 --port {PORT} --stateless \
             --pass-environment -- env PYTHONPATH={PACKAGES} \"$0\" \"$@\""
        )
    } else if language == McpServerType::Python {
        // Some packages install no command and run as a module.
        "if command -v \"$0\" >/dev/null; then exec \"$0\" \"$@\"; \
         else exec python -m \"$(echo \"$0\" | tr - _)\" \"$@\"; fi"
            .to_owned()
    } else {
        "exec \"$0\" \"$@\"".to_owned()
    };
    let mut args = vec![command];
    args.extend(config.args.unwrap_or_default());
    Ok(Installed {
        init,
        run: vec![
            ("image", json!(image)),
            (
                "command",
                json!([
                    "sh",
                    "-c",
                    format!("export PATH={path}:$PATH PYTHONPATH={PACKAGES}; {run}")
                ]),
            ),
            ("args", json!(args)),
            ("volumeMounts", mount),
        ],
    })
}

/// Where the installer of this language finds packages. The operator's own index is one of Python packages.
fn index(config: &McpServerConfig, settings: &Settings, language: McpServerType) -> Vec<Value> {
    let own = config.index_url.as_deref().filter(|url| !url.is_empty());
    match language {
        McpServerType::Node => own
            .map(|url| json!({"name": "NPM_CONFIG_REGISTRY", "value": url}))
            .into_iter()
            .collect(),
        McpServerType::Python => {
            let url = own.unwrap_or(settings.package_index.as_str());
            let named = (!url.is_empty()).then(|| json!({"name": "PIP_INDEX_URL", "value": url}));
            let trusted = host_of(url).map(|host| json!({"name": "PIP_TRUSTED_HOST", "value": host}));
            named.into_iter().chain(trusted).collect()
        }
    }
}

/// Installs what follows into the folder that follows; gives up on an index that does not answer.
fn pip() -> String {
    format!(
        "timeout -k 5 {INSTALL_SECONDS} python -m pip install --disable-pip-version-check --no-input --no-cache-dir \
         --timeout 20 --retries 1 --target"
    )
}

/// Plain HTTP indexes are named to pip as trusted; the user chose them.
fn host_of(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://")?;
    let authority = rest.split('/').next()?;
    let host = authority.rsplit('@').next()?;
    Some(host.split(':').next().unwrap_or(host))
}

/// `pkg[extra]==1.0` and `@scope/pkg@1.0` both have the command `pkg`.
fn command_of(package: &str) -> String {
    let unscoped = package.trim().trim_start_matches('@');
    let base = unscoped.rsplit('/').next().unwrap_or(unscoped);
    base.split(['[', '=', '<', '>', '~', '!', ';', ' ', '@'])
        .next()
        .unwrap_or(base)
        .to_owned()
}

fn check_required_env(
    server: &MCPServer,
    registry: &Registry,
    pod: &Value,
    observed: &Observed,
) -> Result<(), Blocked> {
    let Some(ToolSource::Runtime { name, .. }) = server.spec.source() else {
        return Ok(());
    };
    if name == CUSTOM_RUNTIME {
        return Ok(());
    }
    let runtime = find(registry, name)?;
    let namespace = server.namespace().unwrap_or_default();
    let containers = pod["containers"].as_array().cloned().unwrap_or_default();
    let container = containers
        .iter()
        .find(|container| container["name"] == CONTAINER)
        .cloned()
        .unwrap_or_default();
    let from_whole = |variable: &str| {
        let mut sources = container["envFrom"].as_array().into_iter().flatten();
        sources.any(|source| {
            let prefix = source["prefix"].as_str().unwrap_or_default();
            let Some(key) = variable.strip_prefix(prefix) else {
                return false;
            };
            let used = refs::uses(&namespace, &json!({"containers": [{"envFrom": [source]}]}));
            used.iter().any(|used| {
                let resolved = observed.known.get(&used.reference).and_then(Option::as_ref);
                resolved.is_some_and(|resolved| resolved.digests.contains_key(key))
            })
        })
    };
    let given = |variable: &str| {
        container["env"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|entry| entry["name"] == variable)
            || from_whole(variable)
    };
    let missing: Vec<&str> = runtime
        .required_env
        .iter()
        .map(String::as_str)
        .filter(|variable| !given(variable))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "runtime {name:?} needs {}: set it in container.env",
        missing.join(" and ")
    );
    Err(Blocked::stuck(reasons::INVALID_SPEC, message))
}

fn find<'a>(registry: &'a Registry, name: &str) -> Result<&'a super::registry::Runtime, Blocked> {
    registry
        .find(name)
        .map_err(|message| Blocked::stuck(reasons::RUNTIME_NOT_FOUND, message))
}

fn push_env(container: &mut Value, variable: Option<Value>) {
    if let (Some(list), Some(variable)) = (container["env"].as_array_mut(), variable) {
        list.push(variable);
    }
}

fn set_list(container: &mut Value, field: &str, list: &[String]) {
    if !list.is_empty() {
        container[field] = json!(list);
    }
}
