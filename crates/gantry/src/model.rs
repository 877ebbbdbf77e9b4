//! `gantry model`: a Model without writing YAML, in the spirit of ollama-operator's own command.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use gantry_crds::ollama::{Model, ModelPhase, ModelStatus};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Map, Value, json};

/// Who wrote, for the server and for people.
const MANAGER: &str = "gantry-cli";
/// A failure that lasts this long is told; one that goes away by itself is not.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make or change a Model, and wait until it answers.
    Deploy(Deploy),
    /// Let clients outside of the cluster reach a Model.
    Expose(Expose),
    /// Delete a Model; weights that no other Model uses go with it.
    Undeploy(Undeploy),
}

#[derive(Args)]
struct Target {
    /// Name of the Model.
    name: String,
    /// Its namespace [default: that of the kubeconfig].
    #[arg(long, short)]
    namespace: Option<String>,
    /// Seconds to wait; 0: do not wait.
    #[arg(long, default_value_t = 3600)]
    timeout: u64,
}

#[derive(Args)]
struct Deploy {
    #[command(flatten)]
    target: Target,
    /// The model, as `ollama pull` takes it [default: the name].
    #[arg(long)]
    image: Option<String>,
    /// How many pods serve.
    #[arg(long)]
    replicas: Option<u16>,
    /// A limit of the server, such as nvidia.com/gpu=1; repeat for more.
    #[arg(long = "limit", value_name = "RESOURCE=QUANTITY", value_parser = limit)]
    limits: Vec<(String, String)>,
    /// `StorageClass` of the weights.
    #[arg(long)]
    storage_class: Option<String>,
    /// How the volume of the weights may be mounted.
    #[arg(long, value_parser = ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"])]
    pv_access_mode: Option<String>,
    /// Let clients outside of the cluster reach it, as `gantry model expose` does.
    #[arg(long)]
    expose: bool,
    #[command(flatten)]
    service: ServiceWish,
}

#[derive(Args)]
struct Expose {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    service: ServiceWish,
}

#[derive(Args)]
struct ServiceWish {
    /// Kind of Service [default: `NodePort`, when exposed].
    #[arg(long, value_parser = ["ClusterIP", "NodePort", "LoadBalancer"])]
    service_type: Option<String>,
    /// Port of the nodes, for Services of type `NodePort` or `LoadBalancer`.
    #[arg(long)]
    node_port: Option<u16>,
}

#[derive(Args)]
struct Undeploy {
    #[command(flatten)]
    target: Target,
}

fn limit(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, quantity)) if !name.is_empty() && !quantity.is_empty() => {
            Ok((name.to_owned(), quantity.to_owned()))
        }
        _ => Err("write it as RESOURCE=QUANTITY, such as memory=8Gi".to_owned()),
    }
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = Client::try_default()
        .await
        .context("no cluster: set KUBECONFIG, or run inside a pod")?;
    match arguments.command {
        Command::Deploy(deploy) => {
            let session = Session::new(client, &deploy.target);
            let wish = json!({
                "apiVersion": "ollama.ayaka.io/v1", "kind": "Model",
                "metadata": {"name": session.name, "labels": {"ollama.ayaka.io/managed-by": MANAGER}},
                "spec": spec(&deploy),
            });
            let written = session.write(&Patch::Apply(&wish)).await?;
            session.until_ready(&written).await
        }
        Command::Expose(expose) => {
            let session = Session::new(client, &expose.target);
            let service = service(&expose.service, true);
            let written = session
                .write(&Patch::Merge(&json!({"spec": {"service": service}})))
                .await?;
            session.until_ready(&written).await
        }
        Command::Undeploy(undeploy) => Session::new(client, &undeploy.target).delete().await,
    }
}

/// The spec that the arguments ask for. Pure.
fn spec(deploy: &Deploy) -> Value {
    let mut spec = json!({"image": deploy.image.as_ref().unwrap_or(&deploy.target.name)});
    if let Some(replicas) = deploy.replicas {
        spec["replicas"] = json!(replicas);
    }
    if !deploy.limits.is_empty() {
        let limits: Map<String, Value> = deploy
            .limits
            .iter()
            .map(|(name, quantity)| (name.clone(), json!(quantity)))
            .collect();
        spec["resources"] = json!({"limits": limits});
    }
    if let Some(class) = &deploy.storage_class {
        spec["storageClassName"] = json!(class);
    }
    if let Some(mode) = &deploy.pv_access_mode {
        spec["persistentVolume"] = json!({"accessMode": mode});
    }
    let service = service(&deploy.service, deploy.expose);
    if !service.is_empty() {
        spec["service"] = Value::Object(service);
    }
    spec
}

fn service(wish: &ServiceWish, exposed: bool) -> Map<String, Value> {
    let mut service = Map::new();
    let kind = wish.service_type.as_deref().or(exposed.then_some("NodePort"));
    if let Some(kind) = kind {
        service.insert("type".to_owned(), json!(kind));
    }
    if let Some(port) = wish.node_port {
        service.insert("nodePort".to_owned(), json!(port));
    }
    service
}

struct Session {
    name: String,
    timeout: Duration,
    models: Api<Model>,
    services: Api<Service>,
}

impl Session {
    fn new(client: Client, target: &Target) -> Self {
        let namespace = target
            .namespace
            .clone()
            .unwrap_or_else(|| client.default_namespace().to_owned());
        Self {
            name: target.name.clone(),
            timeout: Duration::from_secs(target.timeout),
            models: Api::namespaced(client.clone(), &namespace),
            services: Api::namespaced(client, &namespace),
        }
    }

    async fn write(&self, patch: &Patch<&Value>) -> anyhow::Result<Model> {
        let mut params = PatchParams::apply(MANAGER);
        // What a person asks for here wins over what was written before, as with kubectl edit.
        params.force = matches!(patch, Patch::Apply(_));
        let written = self.models.patch(&self.name, &params, patch).await;
        written.with_context(|| format!("failed to write Model {}", self.name))
    }

    /// Tells what goes on until the Model answers.
    async fn until_ready(&self, written: &Model) -> anyhow::Result<()> {
        if self.timeout.is_zero() {
            println!("Model {} written", self.name);
            return Ok(());
        }
        let start = Instant::now();
        let mut told = String::new();
        let mut failing: Option<Instant> = None;
        loop {
            let model = self.models.get(&self.name).await?;
            let status = model.status.clone().unwrap_or_default();
            let is_current = status.observed_generation >= written.metadata.generation;
            let words = progress(&status);
            if is_current && words != told {
                println!("{words}");
                told.clone_from(&words);
            }
            if is_current && status.phase == Some(ModelPhase::Ready) {
                return self.tell_address(&status).await;
            }
            let fails = is_current && status.phase == Some(ModelPhase::Failed);
            failing = fails.then(|| failing.unwrap_or_else(Instant::now));
            if failing.is_some_and(|since| since.elapsed() > PATIENCE) {
                bail!(
                    "Model {} does not get ready: {}",
                    self.name,
                    status.message.unwrap_or_default()
                );
            }
            if start.elapsed() > self.timeout {
                bail!(
                    "Model {} is not ready after {} s: {words}",
                    self.name,
                    self.timeout.as_secs()
                );
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn tell_address(&self, status: &ModelStatus) -> anyhow::Result<()> {
        let endpoint = status.endpoint.clone().unwrap_or_default();
        println!("inside the cluster: {endpoint}");
        let service = endpoint
            .trim_start_matches("http://")
            .split('.')
            .next()
            .unwrap_or_default();
        let Some(service) = self.services.get_opt(service).await? else {
            return Ok(());
        };
        for line in outside(&service) {
            println!("{line}");
        }
        Ok(())
    }

    async fn delete(&self) -> anyhow::Result<()> {
        let deleted = self.models.delete(&self.name, &DeleteParams::default()).await;
        let left = match deleted {
            Err(kube::Error::Api(status)) if status.code == 404 => bail!("there is no Model {}", self.name),
            answer => answer.with_context(|| format!("failed to delete Model {}", self.name))?,
        };
        let start = Instant::now();
        let uid = left.left().and_then(|model| model.uid());
        while !self.timeout.is_zero() {
            let found = self.models.get_opt(&self.name).await?;
            if found.is_none_or(|model| model.uid() != uid) {
                break;
            }
            if start.elapsed() > self.timeout {
                bail!(
                    "Model {} is still there after {} s",
                    self.name,
                    self.timeout.as_secs()
                );
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        println!("Model {} deleted", self.name);
        Ok(())
    }
}

/// One line that says how far it is. Pure.
fn progress(status: &ModelStatus) -> String {
    let phase = status.phase.unwrap_or_default();
    let stage = status.stage.as_deref().unwrap_or_default();
    let message = status.message.as_deref().unwrap_or_default();
    match phase {
        ModelPhase::Ready => format!("{phase:?}"),
        ModelPhase::Failed | ModelPhase::Degraded => format!("{phase:?}: {message}"),
        _ => format!("{phase:?}: {stage}"),
    }
}

/// Where clients outside of the cluster find it. Pure.
fn outside(service: &Service) -> Vec<String> {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let mut lines: Vec<String> = ports
        .iter()
        .filter_map(|port| port.node_port)
        .map(|port| format!("port {port} of every node"))
        .collect();
    if spec.type_.as_deref() == Some("LoadBalancer") {
        let given = service
            .status
            .as_ref()
            .and_then(|status| status.load_balancer.as_ref());
        let points = given.and_then(|given| given.ingress.clone()).unwrap_or_default();
        let addresses: Vec<String> = points
            .into_iter()
            .filter_map(|point| point.ip.or(point.hostname))
            .collect();
        lines.push(match addresses.first() {
            Some(address) => format!("load balancer {address}"),
            None => "the load balancer has no address yet".to_owned(),
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn deploy(words: &str) -> Result<Value, clap::Error> {
        let line = Line::try_parse_from(["gantry"].into_iter().chain(words.split(' ')))?;
        Ok(match line.arguments.command {
            Command::Deploy(deploy) => spec(&deploy),
            Command::Expose(expose) => Value::Object(service(&expose.service, true)),
            Command::Undeploy(_) => Value::Null,
        })
    }

    #[test]
    fn arguments_become_a_spec() {
        assert_eq!(deploy("deploy phi3").unwrap(), json!({"image": "phi3"}));
        let all = "deploy big --image llama3.1:8b --limit nvidia.com/gpu=1 --limit memory=8Gi --storage-class fast \
                   --pv-access-mode ReadWriteMany --replicas 2 --expose --node-port 30123";
        assert_eq!(
            deploy(&all.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap(),
            json!({
                "image": "llama3.1:8b", "replicas": 2, "storageClassName": "fast",
                "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}},
                "persistentVolume": {"accessMode": "ReadWriteMany"},
                "service": {"type": "NodePort", "nodePort": 30123},
            })
        );
        assert_eq!(
            deploy("expose phi3 --service-type LoadBalancer").unwrap(),
            json!({"type": "LoadBalancer"})
        );
        assert_eq!(
            deploy("deploy phi3 --service-type ClusterIP").unwrap()["service"],
            json!({"type": "ClusterIP"})
        );
        assert!(deploy("deploy phi3 --limit gpu").is_err());
    }

    #[test]
    fn addresses_are_told() {
        let service = |value: Value| serde_json::from_value::<Service>(value).unwrap();
        let inside = json!({"spec": {"type": "ClusterIP", "ports": [{"port": 11434}]}});
        assert_eq!(outside(&service(inside)), [""; 0]);
        let node = json!({"spec": {"type": "NodePort", "ports": [{"port": 11434, "nodePort": 30123}]}});
        assert_eq!(outside(&service(node)), ["port 30123 of every node"]);
        let balancer = json!({
            "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
        });
        assert_eq!(outside(&service(balancer)), ["load balancer 10.0.0.1"]);
    }
}
