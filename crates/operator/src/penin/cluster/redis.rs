//! Pure: Redis, the cache of a cluster, and its password.

use std::fmt::Write as _;

use gantry_crds::{common::text, conditions::reasons, storage::ClaimStorage};
use gantry_kit::{Error, MANAGED_BY, Result, project::quantity};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::{
    env,
    plan::{Plan, REDIS, REDIS_PORT},
    services,
};
use crate::workload::{merge::strategic, pod as pods, verdicts::Blocked};

/// The key of a password that we made up.
pub const PASSWORD: &str = "password";
const DATA: &str = "/data";

/// Where the password is: as given, or in the Secret that is made for it.
pub fn password(plan: &Plan<'_>) -> Value {
    match plan.spec.storage().cache().password_secret_ref {
        Some(given) => json!(given),
        None => json!({"name": plan.password_secret(), "key": PASSWORD}),
    }
}

/// Whether a password has to be there that nobody has given.
pub fn makes_password(plan: &Plan<'_>) -> bool {
    let storage = plan.spec.storage();
    storage.wants_redis() && storage.cache().password_secret_ref.is_none()
}

/// The Secret with a password, made once: it is never written again, so that a crash between two steps cannot lead to
/// two passwords.
pub fn password_secret(plan: &Plan<'_>, password: String) -> Secret {
    let mut labels = plan.selector(REDIS);
    labels["app.kubernetes.io/managed-by"] = json!(MANAGED_BY);
    let secret = json!({
        "metadata": {"name": plan.password_secret(), "labels": labels},
        "stringData": {PASSWORD: password},
    });
    serde_json::from_value(secret).unwrap_or_default()
}

/// 192 random bits, in letters and digits that need no quoting in an address.
pub fn new_password() -> Result<String> {
    let mut bytes = [0_u8; 24];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::api("make up a password", kube::Error::Service(error.into())))?;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

pub fn pod(plan: &Plan<'_>) -> Result<Value, Blocked> {
    let cache = plan.spec.storage().cache();
    let mut resources = json!({
        "requests": {"cpu": "100m", "memory": "128Mi"},
        "limits": {"cpu": "200m", "memory": "256Mi"},
    });
    strategic(&mut resources, &json!(cache.resources.unwrap_or_default()));
    let storage = storage(plan);
    let mut args: Vec<String> = ["--requirepass", "$(REDIS_PASSWORD)", "--dir", DATA]
        .map(ToOwned::to_owned)
        .into();
    if storage.is_some() {
        args.extend(["--appendonly", "yes"].map(ToOwned::to_owned));
    } else {
        args.extend(["--save", "", "--appendonly", "no"].map(ToOwned::to_owned));
    }
    if let Some(thousandths) = quantity(&resources["limits"]["memory"]) {
        // A cache that is full forgets; one that grows beyond its limit is killed.
        let most = thousandths / 1000 * 3 / 4;
        args.extend(["--maxmemory".to_owned(), most.to_string()]);
        args.extend(["--maxmemory-policy", "allkeys-lru"].map(ToOwned::to_owned));
    }
    let probe = |more: Value| {
        let mut probe = json!({"tcpSocket": {"port": REDIS_PORT}});
        strategic(&mut probe, &more);
        probe
    };
    let container = json!({
        "name": REDIS,
        "image": text(cache.image.as_ref()).unwrap_or(&plan.settings.redis_image),
        "command": ["redis-server"],
        "args": args,
        "ports": [{"name": REDIS, "containerPort": REDIS_PORT, "protocol": "TCP"}],
        "env": [env::secret("REDIS_PASSWORD", password(plan))],
        "resources": resources,
        "startupProbe": probe(json!({"periodSeconds": 2, "failureThreshold": 60})),
        "readinessProbe": probe(json!({"periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2})),
        "livenessProbe": probe(json!({"periodSeconds": 10, "timeoutSeconds": 3, "failureThreshold": 3})),
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    });
    let data = services::volume(storage.as_ref(), plan.child(REDIS));
    let mut pod = pods::secure(vec![container], Vec::new(), vec![data]);
    pod["enableServiceLinks"] = json!(false);
    pods::run_as(&mut pod, None, &services::pull_secrets(plan));
    pods::with_overrides(pod, REDIS, None, None)
        .map_err(|message| Blocked::stuck(reasons::INVALID_SPEC, format!("spec.storage.cache: {message}")))
}

/// Two servers on one set of files would destroy it, so a Redis that keeps something is stopped before its successor.
pub fn strategy(plan: &Plan<'_>) -> Value {
    match storage(plan) {
        Some(_) => json!({"type": "Recreate"}),
        None => json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}),
    }
}

/// The volume that is asked for, when Redis is to keep something.
pub fn storage(plan: &Plan<'_>) -> Option<ClaimStorage> {
    let storage = plan.spec.storage();
    let claim = storage.cache().storage.filter(ClaimStorage::enabled);
    claim.filter(|_| storage.wants_redis())
}
