//! Pure: spec and reads in, a [`Valid`] agent or the reason why not out.

use gantry_crds::{
    common::text,
    conditions::reasons,
    kaos::{Agent, AgentSpec, MODEL_NAME_VARIABLE},
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    dependencies::{Dependencies, Role},
    env, harness, network,
    observe::Observed,
};
use crate::{
    Settings,
    workload::{merge, names, pod as pods, refs, route::Route, verdicts::Blocked},
};

pub const CONTAINER: &str = "agent";
pub const PORT: i32 = 8000;

/// An agent that can be built: every choice made, every name known.
pub struct Valid {
    pub name: String,
    pub namespace: String,
    /// Name of the children.
    pub child: String,
    pub spec: AgentSpec,
    pub model: Option<String>,
    pub dependencies: Dependencies,
    pub pod: Value,
    pub fingerprint: Option<String>,
    pub route: Route,
    /// Spec of the NetworkPolicy, when one is wanted.
    pub policy: Option<Value>,
}

impl Valid {
    /// Where a gateway serves it.
    pub fn path(&self) -> String {
        format!("/{}/agent/{}", self.namespace, self.name)
    }
}

pub fn validate(agent: &Agent, settings: &Settings, observed: &Observed) -> Result<Valid, Blocked> {
    Blocked::on_problems(&agent.spec.problems())?;
    let dependencies = &observed.dependencies;
    if let Some(why) = dependencies.refused() {
        return Err(Blocked::stuck(reasons::REFERENCE_NOT_ALLOWED, why));
    }
    env::check_names(dependencies)?;
    let model = choose_model(agent, dependencies)?;
    let waits = agent.spec.wait_for_dependencies();
    let wait = |roles: &[Role]| match dependencies.wait(roles).filter(|_| waits) {
        Some((reason, message)) => Err(Blocked::waiting(reason, message)),
        None => Ok(()),
    };
    wait(&[Role::Model, Role::Tools])?;
    if let Some(why) = dependencies.unexposed().filter(|_| waits) {
        return Err(Blocked::stuck(reasons::REFERENCE_NOT_ALLOWED, why));
    }
    let pod = pod(agent, settings, observed)?;
    let namespace = agent.namespace().unwrap_or_default();
    let name = agent.name_any();
    let policy = network::policy(
        agent.spec.network_policy.as_ref(),
        &selector(&name),
        dependencies,
        PORT,
    )?;
    let uses = refs::uses(&namespace, &pod);
    Blocked::on_missing(refs::missing(&uses, &observed.known))?;
    // Last, so that whoever waits for peers is known to wait for nothing else.
    wait(&[Role::Peer])?;
    Ok(Valid {
        child: child_name(&name),
        fingerprint: refs::fingerprint(&uses, &observed.known),
        route: route(&agent.spec, settings, observed.has_gateway_api),
        spec: agent.spec.clone(),
        dependencies: dependencies.clone(),
        model,
        policy,
        name,
        namespace,
        pod,
    })
}

pub fn child_name(name: &str) -> String {
    names::child("agent", name)
}

/// The original's selector: it cannot change on a live Deployment.
pub fn selector(name: &str) -> Value {
    json!({"app": "agent", "agent": names::label_value(name)})
}

/// A route leads to the Service, so there is none without it.
fn route(spec: &AgentSpec, settings: &Settings, has_gateway_api: bool) -> Route {
    let own = spec.gateway_route.as_ref();
    let route = Route::decide(own, settings.gateway.as_ref(), has_gateway_api);
    if spec.expose() || route == Route::NotWanted {
        route
    } else if own.and_then(|own| own.enabled) == Some(true) {
        Route::Impossible("the agent is not exposed: set agentNetwork.expose to true".to_owned())
    } else {
        Route::NotWanted
    }
}

/// How the model is named.
enum Named {
    Literally(String),
    /// By a Secret or ConfigMap, which is not looked into.
    Elsewhere,
    NotAtAll,
}

/// What the pod will see: the user's environment wins over `spec.model`.
fn named(agent: &Agent) -> Named {
    let variable = env::given(&agent.spec)
        .into_iter()
        .rev()
        .find(|variable| variable.name == MODEL_NAME_VARIABLE);
    match variable {
        Some(variable) if variable.value_from.is_some() => Named::Elsewhere,
        variable => variable
            .as_ref()
            .and_then(|variable| text(variable.value.as_ref()))
            .or_else(|| text(agent.spec.model.as_ref()))
            .map_or(Named::NotAtAll, |model| Named::Literally(model.to_owned())),
    }
}

/// The model to ask for. It must be served by the ModelAPI, as far as that is known.
fn choose_model(agent: &Agent, dependencies: &Dependencies) -> Result<Option<String>, Blocked> {
    let api = agent.spec.model_api.clone().unwrap_or_default();
    let named = named(agent);
    let Some(served) = &dependencies.served else {
        return Ok(match named {
            Named::Literally(model) => Some(model),
            Named::Elsewhere => None,
            Named::NotAtAll => dependencies.model_before.clone(),
        });
    };
    let list = served.join(", ");
    match named {
        Named::Literally(model) if served.iter().any(|pattern| serves(pattern, &model)) => Ok(Some(model)),
        Named::Literally(model) => Err(Blocked::stuck(
            reasons::MODEL_NOT_SERVED,
            format!(
                "model {model} is not served by ModelAPI {api}, which serves {list}: change spec.model, or add it there"
            ),
        )),
        Named::Elsewhere => Ok(None),
        Named::NotAtAll => match served.as_slice() {
            [only] if !only.contains('*') => Ok(Some(only.clone())),
            // The choice was made when there was no other; that more is served now is no reason to end what runs.
            _ if keeps(dependencies, served) => Ok(dependencies.model_before.clone()),
            _ => Err(Blocked::stuck(
                reasons::INVALID_SPEC,
                format!("no model is named, and ModelAPI {api} serves {list}: set spec.model"),
            )),
        },
    }
}

fn keeps(dependencies: &Dependencies, served: &[String]) -> bool {
    let before = dependencies.model_before.as_ref();
    before.is_some_and(|model| served.iter().any(|pattern| serves(pattern, model)))
}

/// Exactly, all of them, or all with a prefix.
fn serves(pattern: &str, model: &str) -> bool {
    pattern == "*"
        || pattern == model
        || pattern
            .strip_suffix('*')
            .is_some_and(|prefix| prefix.ends_with('/') && model.starts_with(prefix))
}

/// What the operator puts into the environment, without the user's variables.
fn environment(agent: &Agent, settings: &Settings, observed: &Observed) -> Vec<Value> {
    let model = choose_model(agent, &observed.dependencies).ok().flatten();
    env::build(agent, settings, &observed.dependencies, model.as_deref())
}

/// What a person should know about this spec, once.
pub fn warnings(agent: &Agent, settings: &Settings, observed: &Observed) -> Vec<(&'static str, String)> {
    env::clashes(agent, &environment(agent, settings, observed))
}

/// The complete pod of an agent. Needs to know nothing of Secrets, so that what it refers to can be looked up.
pub fn pod(agent: &Agent, settings: &Settings, observed: &Observed) -> Result<Value, Blocked> {
    let spec = &agent.spec;
    let harness = harness::parts(agent, &observed.harnesses, settings)?;
    let mut env = environment(agent, settings, observed);
    env.extend(harness.env);
    let probe = |path: &str| json!({"path": path, "port": PORT});
    let container = json!({
        "name": CONTAINER,
        "image": harness.image.as_ref().unwrap_or(&settings.agent_image),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": env,
        "volumeMounts": harness.mounts,
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        },
        "startupProbe": {"httpGet": probe("/health"), "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {"httpGet": probe("/ready"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {"httpGet": probe("/health"), "periodSeconds": 10, "timeoutSeconds": 3, "failureThreshold": 3},
    });
    let mut wished = pods::secure(vec![container], harness.init, harness.volumes);
    let mut patch = json!({"name": CONTAINER});
    if let Some(env) = spec.config.as_ref().and_then(|config| config.env.as_ref()) {
        patch["env"] = json!(env);
    }
    if let Some(resources) = &spec.resources {
        patch["resources"] = json!(resources);
    }
    merge::strategic(&mut wished, &json!({"containers": [patch]}));
    let own = spec
        .image_pull_secrets
        .iter()
        .flatten()
        .map(|secret| secret.name.clone());
    let mut pull_secrets: Vec<String> = settings.image_pull_secrets.clone();
    pull_secrets.extend(own);
    pull_secrets.sort();
    pull_secrets.dedup();
    pods::run_as(&mut wished, spec.service_account_name.as_ref(), &pull_secrets);
    pods::with_overrides(
        wished,
        CONTAINER,
        spec.container.as_deref(),
        spec.pod_spec.as_ref(),
    )
    .map_err(|message| Blocked::stuck(reasons::INVALID_OVERRIDE, message))
}
