//! Pure: spec and reads in, a [`Valid`] Model or the reason why not out.

use gantry_crds::{
    common::{PullPolicy, text},
    conditions::reasons,
    ollama::{Model, ModelSpec, PORT},
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    api::Info,
    monitoring,
    name::ModelName,
    observe::Observed,
    proxy,
    pull::State,
    store::{self, MODELS, MOUNT, SERVER, Store, VOLUME},
};
use crate::{
    Settings,
    workload::{merge::strategic, names, pod as pods, refs, route::Route, telemetry, verdicts::Blocked},
};

/// The container that waits for the weights, as ollama-operator called it.
pub const PULLER: &str = "ollama-image-pull";
/// Key of the ConfigMap that holds what Ollama tells about the model.
pub const METADATA: &str = "model.json";

/// A Model that can be built: every choice made, every name known.
pub struct Valid {
    pub name: String,
    pub namespace: String,
    /// Name of most children.
    pub workload: String,
    /// The same, as a name that a Service can have.
    pub service: String,
    pub spec: ModelSpec,
    pub model: ModelName,
    pub store: Store,
    /// Why the store cannot be made or changed now. Whoever said it, the Models that share the store go on.
    pub store_waits: Option<Blocked>,
    /// Metadata and spec of the pods.
    pub template: Value,
    /// The original's selector: it cannot change on a live Deployment.
    pub selector: Value,
    pub fingerprint: Option<String>,
    /// ConfigMaps and Secrets that the pods read.
    pub reads: Reads,
    pub route: Route,
    pub monitoring: monitoring::Plan,
    /// What the ConfigMap tells.
    pub info: Info,
    pub pull: Option<State>,
    /// Whether the pods may be made now.
    pub serves: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reads {
    pub config_maps: Vec<String>,
    pub secrets: Vec<String>,
}

impl Valid {
    /// Where a gateway serves it.
    pub fn path(&self) -> String {
        format!("/{}/model/{}", self.namespace, self.name)
    }
}

pub fn workload_name(model: &Model) -> String {
    let name = format!("ollama-model-{}", model.name_any());
    if name.len() <= 63 {
        name
    } else {
        names::dns_label(&name)
    }
}

pub fn validate(model: &Model, settings: &Settings, observed: &Observed) -> Result<Valid, Blocked> {
    Blocked::on_problems(&model.spec.problems())?;
    let mut draft = draft(model, settings, observed)?;
    let namespace = model.namespace().unwrap_or_default();
    let uses = refs::uses(&namespace, &draft.template["spec"]);
    Blocked::on_missing(refs::missing(&uses, &observed.known))?;
    let uses_of_store = refs::uses(&namespace, draft.store.pod());
    let store_waits = Blocked::on_missing(refs::missing(&uses_of_store, &observed.known)).err();
    if let Some(fingerprint) = refs::fingerprint(&uses_of_store, &observed.known) {
        draft.store.reads(&fingerprint);
    }
    let workload = workload_name(model);
    let named = |source| {
        let uses = uses.iter().filter(|used| used.reference.source == source);
        let mut names: Vec<String> = uses.map(|used| used.reference.key.name.clone()).collect();
        names.dedup();
        names
    };
    Ok(Valid {
        service: names::dns_label(&workload),
        workload,
        fingerprint: refs::fingerprint(&uses, &observed.known),
        reads: Reads {
            config_maps: named(gantry_kit::references::Source::ConfigMap),
            secrets: named(gantry_kit::references::Source::Secret),
        },
        route: Route::decide(
            model.spec.gateway_route.as_ref(),
            settings.gateway.as_ref(),
            observed.has_gateway_api,
        ),
        monitoring: monitoring::Plan::decide(model.spec.monitoring.as_ref(), observed.monitoring),
        info: observed.info.clone().unwrap_or_else(|| Info {
            name: draft.model.short(),
            ..Info::default()
        }),
        serves: serves(observed),
        pull: observed.pull.clone(),
        spec: model.spec.clone(),
        name: model.name_any(),
        namespace,
        model: draft.model,
        store: draft.store,
        store_waits,
        template: draft.template,
        selector: draft.selector,
    })
}

/// Pods that exist are looked after in any case. New ones wait for the store, and for the weights as long as the store
/// tells about them: a pod that waits holds its GPU. Where the store cannot be asked, the pods wait by themselves.
fn serves(observed: &Observed) -> bool {
    let weights = matches!(&observed.pull, Some(State::Present(_) | State::Unreachable(_)));
    observed.deployment.is_some() || (observed.store.is_ready() && weights)
}

/// What can be said without looking anything up that the pods refer to.
pub struct Draft {
    pub model: ModelName,
    pub store: Store,
    pub template: Value,
    pub selector: Value,
}

pub fn draft(model: &Model, settings: &Settings, observed: &Observed) -> Result<Draft, Blocked> {
    let image = text(model.spec.image.as_ref()).unwrap_or_default();
    let name = ModelName::parse(image).ok_or_else(|| {
        let message = format!(
            "spec.image: {image:?} is no name of a model: write it as ollama pull takes it, such as llama3.1:8b"
        );
        Blocked::stuck(reasons::INVALID_SPEC, message)
    })?;
    let store = store::decide(
        model,
        &observed.users(),
        settings,
        &observed.store,
        observed.refused_size.as_deref(),
    )?;
    let selector = observed
        .deployment
        .as_ref()
        .map(|live| live["spec"]["selector"]["matchLabels"].clone())
        .filter(Value::is_object)
        .unwrap_or_else(|| selector(model));
    let size = observed.info.as_ref().and_then(|info| info.size);
    let template = template(model, settings, &name, &store, size)?;
    Ok(Draft {
        model: name,
        store,
        template,
        selector,
    })
}

/// As ollama-operator has it.
fn selector(model: &Model) -> Value {
    let name = names::label_value(&model.name_any());
    json!({
        "app": names::label_value(&workload_name(model)),
        "ollama.ayaka.io/type": "model",
        "model.ollama.ayaka.io": name,
        "model.ollama.ayaka.io/name": name,
    })
}

fn template(
    model: &Model,
    settings: &Settings,
    name: &ModelName,
    store: &Store,
    size: Option<u64>,
) -> Result<Value, Blocked> {
    let spec = &model.spec;
    let server_spec = spec.server.clone().unwrap_or_default();
    let image = server_spec.image().unwrap_or(&settings.ollama_image);
    let port = if spec.proxy_enabled() { proxy::BEHIND } else { PORT };
    let mut server = store::server(image, true, port);
    server["imagePullPolicy"] = json!(server_spec.image_pull_policy.unwrap_or(PullPolicy::IfNotPresent));
    server["env"] = json!([
        {"name": "OLLAMA_HOST", "value": format!("0.0.0.0:{port}")},
        {"name": "OLLAMA_MODELS", "value": MODELS},
        {"name": "OLLAMA_NOPRUNE", "value": "true"},
    ]);
    let namespace = model.namespace().unwrap_or_default();
    let telemetry = telemetry::env(spec.telemetry.as_ref(), settings, &namespace, &model.name_any());
    // Without these a CPU target means nothing; a limit is the user's to set.
    server["resources"] = json!({"requests": {"cpu": "100m", "memory": "512Mi"}});
    let period = 5;
    let ready = is_there(name, port);
    let startup = server_spec
        .startup_timeout_seconds
        .unwrap_or_else(|| startup_seconds(size));
    server["startupProbe"] = probe(&ready, period, (startup / period).max(1));
    server["readinessProbe"] = probe(&ready, 10, 3);
    if server_spec.net_bind_service == Some(true) {
        server["securityContext"]["capabilities"]["add"] = json!(["NET_BIND_SERVICE"]);
    }
    let mut patch = json!({
        "name": SERVER, "env": telemetry, "envFrom": spec.extra_env_from, "resources": spec.resources,
    });
    store::drop_nulls(&mut patch);
    strategic(&mut server, &patch);
    if let Some(env) = &spec.extra_env {
        strategic(&mut server, &json!({"name": SERVER, "env": env}));
    }
    let puller = puller(spec, image, name, store);
    server["lifecycle"]["preStop"]["httpGet"] = proxy::before_stop(spec.proxy_enabled());
    let mut containers = vec![server];
    if spec.proxy_enabled() {
        containers.push(proxy::container(spec, settings, name));
    }
    let mut pod = store::pod(containers, vec![puller], &store.id.claim, store.read_only);
    if spec.proxy_enabled() {
        // Answers under way may take their time.
        pod["terminationGracePeriodSeconds"] = json!(120);
    }
    if !store.access_mode.is_shared() {
        // The volume can be on one node only; a pod elsewhere would wait for it for ever.
        pod["affinity"] = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": store.selector},
            "topologyKey": "kubernetes.io/hostname",
        }]}});
    }
    if let Some(class) = text(spec.runtime_class_name.as_ref()) {
        pod["runtimeClassName"] = json!(class);
    }
    pods::run_as(
        &mut pod,
        spec.service_account_name.as_ref(),
        &store::pull_secrets(model, settings),
    );
    if text(spec.service_account_name.as_ref()).is_none() {
        pod["serviceAccountName"] = json!(workload_name(model));
    }
    let mut template = json!({"metadata": {}, "spec": pod});
    if let Some(fragment) = &spec.pod_template {
        strategic(&mut template, &Value::Object(fragment.0.clone()));
        one_handler(&mut template["spec"]);
    }
    serde_json::from_value::<PodTemplateSpec>(template.clone()).map_err(|error| {
        let message = format!("podTemplate does not give a valid pod: {error}");
        Blocked::stuck(reasons::INVALID_OVERRIDE, message)
    })?;
    Ok(template)
}

/// A pod may do one thing before it stops; the user's own wins.
fn one_handler(pod: &mut Value) {
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        let handler = container.pointer_mut("/lifecycle/preStop");
        if let Some(handler) = handler.and_then(Value::as_object_mut)
            && handler.len() > 1
        {
            handler.remove("httpGet");
        }
    }
}

/// Waits for the weights before the server starts, and gets them where nobody else does.
fn puller(spec: &ModelSpec, image: &str, name: &ModelName, store: &Store) -> Value {
    let pull = spec.pull.clone().unwrap_or_default();
    let command = if pull.insecure == Some(true) {
        "ollama pull --insecure \"$MODEL\""
    } else {
        "ollama pull \"$MODEL\""
    };
    let policy = if store.read_only {
        PullPolicy::Never
    } else {
        spec.image_pull_policy()
    };
    let script = match policy {
        PullPolicy::Never => "until [ -f \"$MANIFEST\" ]; do sleep 2; done".to_owned(),
        PullPolicy::IfNotPresent => format!("until [ -f \"$MANIFEST\" ]; do {command} || sleep 5; done"),
        // What is there serves when the registry cannot be asked.
        PullPolicy::Always => format!("until {command}; do [ -f \"$MANIFEST\" ] && break; sleep 5; done"),
    };
    json!({
        "name": PULLER,
        "image": text(pull.image.as_ref()).unwrap_or(image),
        "command": ["sh", "-c", script],
        "env": [
            {"name": "MODEL", "value": name.short()},
            {"name": "MANIFEST", "value": format!("{MODELS}/{}", name.manifest())},
            {"name": "OLLAMA_HOST", "value": format!("{}:{PORT}", store.id.name)},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "volumeMounts": [{"name": VOLUME, "mountPath": MOUNT, "readOnly": true}],
    })
}

/// Proves that this server can load this very model. A name with slashes does not fit into a path.
fn is_there(name: &ModelName, port: i32) -> Value {
    let short = name.short();
    if short.contains('/') {
        json!({"exec": {"command": ["ollama", "show", short]}})
    } else {
        json!({"httpGet": {"path": format!("/v1/models/{short}"), "port": port}})
    }
}

fn probe(handler: &Value, period: i32, failures: i32) -> Value {
    let mut probe = handler.clone();
    probe["periodSeconds"] = json!(period);
    probe["timeoutSeconds"] = json!(5);
    probe["failureThreshold"] = json!(failures);
    probe
}

/// In few steps, so that learning the size late does not restart the pods of any but the largest models.
fn startup_seconds(size: Option<u64>) -> i32 {
    const GB: u64 = 1_000_000_000;
    match size.unwrap_or(0) / GB {
        0..40 => 600,
        40..200 => 1800,
        _ => 3600,
    }
}
