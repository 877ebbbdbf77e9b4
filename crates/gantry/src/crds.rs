//! `gantry crds`.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::wait::{await_condition, conditions},
};

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print them as YAML.
    Print {
        /// One kind only, by any of its names.
        #[arg(long)]
        kind: Option<String>,
    },
    /// Install or upgrade them in the cluster that KUBECONFIG names; what an old server does not know is left out.
    Apply {
        /// One kind only, by any of its names.
        #[arg(long)]
        kind: Option<String>,
    },
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Print { kind } => print(kind.as_deref()),
        Command::Apply { kind } => apply(kind.as_deref()).await,
    }
}

fn chosen(kind: Option<&str>) -> anyhow::Result<Vec<CustomResourceDefinition>> {
    let Some(kind) = kind else { return Ok(gantry_crds::all()) };
    let Some(crd) = gantry_crds::crd(kind) else {
        let known: Vec<&str> = gantry_crds::KINDS.iter().map(|info| info.kind).collect();
        bail!("there is no kind {kind:?}; there are {}", known.join(", "));
    };
    Ok(vec![crd])
}

fn print(kind: Option<&str>) -> anyhow::Result<()> {
    for crd in chosen(kind)? {
        println!("---\n{}", serde_saphyr::to_string(&crd)?.trim_end());
    }
    Ok(())
}

async fn apply(kind: Option<&str>) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no cluster: set KUBECONFIG, or run inside a pod")?;
    let api: Api<CustomResourceDefinition> = Api::all(client);
    let params = PatchParams::apply("gantry-crds").force();
    for mut crd in chosen(kind)? {
        let name = crd.name_any();
        let full = api.patch(&name, &params, &Patch::Apply(&crd)).await;
        let note = match full {
            Ok(_) => "",
            // A server from before CEL refuses the rules; the operator checks the same rules itself.
            Err(kube::Error::Api(status)) if speaks_of_unknown_fields(&status.message) => {
                gantry_crds::strip_for_old_servers(&mut crd);
                let stripped = api.patch(&name, &params, &Patch::Apply(&crd)).await;
                stripped.with_context(|| format!("failed to apply {name}"))?;
                " (without validation rules: this server does not know them)"
            }
            Err(error) => return Err(error).with_context(|| format!("failed to apply {name}")),
        };
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(60), established)
            .await
            .with_context(|| format!("{name} was applied but is not served after 60 s"))??;
        println!("{name} applied{note}");
    }
    Ok(())
}

fn speaks_of_unknown_fields(message: &str) -> bool {
    ["not declared in schema", "unknown field", "x-kubernetes-validations"]
        .iter()
        .any(|words| message.contains(words))
}
