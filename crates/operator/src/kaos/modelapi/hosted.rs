//! Pure: the containers of mode Hosted, and the volume of the weights.

use gantry_crds::{
    kaos::{HostedConfig, ModelAPI, ModelAPIMode, ModelAPISpec},
    storage::{AccessMode, ClaimStorage},
};
use serde_json::{Value, json};

use super::validate::CONTAINER;
use crate::{
    Settings,
    workload::{claim::Claim, merge::strategic, names, rollout::PULLER},
};

pub const PORT: i32 = 11434;
/// Laid out as Ollama lays out its folder, so that a volume that was filled elsewhere fits. Not below `/root`, which only
/// root may enter.
const FOLDER: &str = "/var/lib/ollama";

/// Serves for itself, pulls unless the model is there, makes sure that it is, and ends. The words of a failure go where
/// the kubelet finds them; a pull writes so much on its way that they would be lost in the log.
const PULL: &str = r#"
fail() {
  printf 'error: %s\n' "$1" >&2
  printf 'error: %s\n' "$1" >/dev/termination-log 2>/dev/null
  exit 1
}
has_model() { ollama show "$PULL_MODEL" >/dev/null 2>&1; }
ollama serve >/tmp/serve.log 2>&1 &
server=$!
tries=0
until ollama list >/dev/null 2>&1; do
  tries=$((tries + 1))
  if [ $tries -gt 120 ] || ! kill -0 $server 2>/dev/null; then
    fail "ollama does not start: $(tail -n 2 /tmp/serve.log)"
  fi
  sleep 1
done
lock="$OLLAMA_MODELS/.pull"
if ! has_model && command -v flock >/dev/null && (: >>"$lock") 2>/dev/null; then
  exec 9>>"$lock"
  flock -w "$PULL_SECONDS" 9
fi
if ! has_model; then
  { timeout "$PULL_SECONDS" ollama pull "$PULL_MODEL"; echo $? >/tmp/code; } 2>&1 | tee /tmp/pull.log
  if ! has_model; then
    case "$(cat /tmp/code)" in
      124 | 143) fail "no end after $PULL_SECONDS s: raise pullTimeoutSeconds, or find out why the download is slow" ;;
    esac
    escape=$(printf '\033')
    fail "$(tr '\r' '\n' </tmp/pull.log | sed "s/$escape\[[0-9;?]*[A-Za-z]//g" | grep -v '^ *$' | tail -n 1)"
  fi
fi
kill $server
wait $server 2>/dev/null
exit 0
"#;

/// The volume that is asked for.
pub fn storage(spec: &ModelAPISpec) -> Option<&ClaimStorage> {
    let hosted = spec
        .hosted()
        .filter(|_| spec.mode == Some(ModelAPIMode::Hosted))?;
    hosted.storage.as_ref().filter(|storage| storage.enabled())
}

pub fn claim_name(root: &str) -> String {
    names::dns_label(&format!("modelapi-{root}-models"))
}

/// How long a rollout may take before it counts as stuck: the download, and what else a pod needs.
pub fn deadline(hosted: &HostedConfig) -> i32 {
    hosted.pull_timeout_seconds() + 600
}

/// Server, init container and volumes.
pub fn parts(
    api: &ModelAPI,
    hosted: &HostedConfig,
    settings: &Settings,
    claim: Option<&Claim>,
) -> (Value, Value, Vec<Value>) {
    let model = hosted.model().unwrap_or_default();
    let read_only = claim.is_some_and(|claim| claim.access_mode == AccessMode::ReadOnlyMany);
    let set = |name: &str, value: &str| json!({"name": name, "value": value});
    let env = json!([
        set("OLLAMA_HOST", &format!("0.0.0.0:{PORT}")),
        set("OLLAMA_MODELS", &format!("{FOLDER}/models")),
        // A server that starts would otherwise remove what another pod is pulling into the same volume, and half of a
        // download that can go on.
        set("OLLAMA_NOPRUNE", "1"),
        set(
            "OLLAMA_DEBUG",
            if settings.log_level.eq_ignore_ascii_case("debug") {
                "1"
            } else {
                "0"
            }
        ),
    ]);
    let mounts = json!([{"name": "ollama-data", "mountPath": FOLDER, "readOnly": read_only.then_some(true)}]);
    let get = |period: u32, failures: u32| {
        json!({
            "httpGet": {"path": "/", "port": PORT, "scheme": "HTTP"},
            "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures,
        })
    };
    let server = json!({
        "name": CONTAINER,
        "image": settings.ollama_image,
        "command": ["ollama"],
        "args": ["serve"],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": env,
        "volumeMounts": mounts,
        // No limits: what a model needs depends on the model.
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
        "startupProbe": get(2, 150),
        "livenessProbe": get(10, 6),
        // Ready is who has the model. Asked by command: over HTTP that takes a request with a body.
        "readinessProbe": {
            "exec": {"command": ["ollama", "show", model]},
            "periodSeconds": 15, "timeoutSeconds": 10, "failureThreshold": 3,
        },
    });
    let mut pull = json!({
        "name": PULLER,
        "image": settings.ollama_image,
        "command": ["sh", "-c", PULL],
        "env": env,
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
    });
    let own = json!([
        set("PULL_MODEL", model),
        set("PULL_SECONDS", &hosted.pull_timeout_seconds().to_string()),
    ]);
    strategic(&mut pull, &json!({"env": own}));
    // The same program as the server, and the way to the registry of models is configured by environment.
    if let Some(container) = &api.spec.container {
        let same = json!({
            "image": container.image, "imagePullPolicy": container.image_pull_policy,
            "envFrom": container.env_from,
        });
        strategic(&mut pull, &without_nulls(same));
    }
    (server, pull, vec![volume(claim, read_only)])
}

fn volume(claim: Option<&Claim>, read_only: bool) -> Value {
    match claim {
        Some(claim) => json!({"name": "ollama-data", "persistentVolumeClaim": {
            "claimName": claim.name, "readOnly": read_only.then_some(true),
        }}),
        None => json!({"name": "ollama-data", "emptyDir": {}}),
    }
}

/// In a merge a null would remove what is generated.
fn without_nulls(mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, value| !value.is_null());
    }
    value
}
