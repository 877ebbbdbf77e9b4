//! `gantry crds`.

mod diff;
mod live;
mod source;

use std::{process::ExitCode, time::Duration};

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
    /// Tell what a new set of definitions does to the objects and clients of the old one.
    Diff(diff::Arguments),
}

pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Print { kind } => print(kind.as_deref())?,
        Command::Apply { kind } => apply(kind.as_deref()).await?,
        Command::Diff(arguments) => return Ok(diff::run(arguments).await),
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(kind: Option<&str>) -> anyhow::Result<Vec<CustomResourceDefinition>> {
    let Some(kind) = kind else {
        return Ok(gantry_crds::all());
    };
    let Some(crd) = gantry_crds::crd(kind) else {
        let known: Vec<&str> = gantry_crds::KINDS.iter().map(|info| info.kind).collect();
        bail!("there is no kind {kind:?}; there are {}", known.join(", "));
    };
    Ok(vec![crd])
}

fn print(kind: Option<&str>) -> anyhow::Result<()> {
    for crd in chosen(kind)? {
        println!(
            "---\n{}",
            serde_saphyr::to_string(&gantry_crds::schema::manifest(&crd))?.trim_end()
        );
    }
    Ok(())
}

async fn apply(kind: Option<&str>) -> anyhow::Result<()> {
    let client = Client::try_default()
        .await
        .context("no cluster: set KUBECONFIG, or run inside a pod")?;
    let version = client
        .apiserver_version()
        .await
        .context("the API server does not answer")?;
    let is_old = lacks_validation_rules(&version.major, &version.minor);
    let api: Api<CustomResourceDefinition> = Api::all(client);
    let params = PatchParams::apply("gantry-crds").force();
    for mut crd in chosen(kind)? {
        if is_old {
            gantry_crds::strip_for_old_servers(&mut crd);
        }
        let name = crd.name_any();
        let body = gantry_crds::schema::manifest(&crd);
        let applied = api.patch(&name, &params, &Patch::Apply(&body)).await;
        applied.with_context(|| format!("failed to apply {name}"))?;
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(60), established)
            .await
            .with_context(|| format!("{name} was applied but is not served after 60 s"))??;
        println!("{name} applied");
    }
    if is_old {
        // The operator checks the same rules itself.
        println!(
            "left out the validation rules: server {} does not know them",
            version.git_version
        );
    }
    Ok(())
}

/// CEL rules came on by default with 1.25; a server from before refuses a definition that has them.
fn lacks_validation_rules(major: &str, minor: &str) -> bool {
    let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
    matches!((number(major), number(minor)), (Some(1), Some(minor)) if minor < 25)
}

#[cfg(test)]
mod tests {
    use super::lacks_validation_rules;

    #[test]
    fn old_servers_are_told_by_their_version() {
        assert!(lacks_validation_rules("1", "20"));
        assert!(lacks_validation_rules("1", "24+"));
        assert!(!lacks_validation_rules("1", "25"));
        assert!(!lacks_validation_rules("1", "37+"));
        assert!(!lacks_validation_rules("", ""));
    }
}
