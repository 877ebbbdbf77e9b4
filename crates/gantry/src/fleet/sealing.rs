//! What seals the credentials of clusters and chart repositories: a key file, a variable, or Vault.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use gantry_fleet::infrastructure::{
    keys::{Keys, LocalKeys},
    vault::{Vault, VaultToken},
};

use super::state::{Database, secret};

/// The file of a server that was given none.
const MADE: &str = "kubeconfig.key";

#[derive(Args)]
pub struct Sealing {
    /// Keys that seal kubeconfigs, one on a line, 32 bytes in base64; the first one seals, the others still open. Read again
    /// when it changes. GANTRY_FLEET_KEY may hold the same text instead. With --vault-key they only open what they sealed.
    #[arg(long, env = "GANTRY_FLEET_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The address of Vault, for --vault-key.
    #[arg(long, env = "VAULT_ADDR", value_name = "URL")]
    vault_address: Option<String>,
    /// Where the engine is mounted.
    #[arg(long, env = "GANTRY_FLEET_VAULT_MOUNT", default_value = "transit")]
    vault_mount: String,
    /// Let Vault's transit engine seal them instead: the name of the key in it.
    #[arg(long, env = "GANTRY_FLEET_VAULT_KEY", value_name = "NAME")]
    vault_key: Option<String>,
    /// A key of Vault that sealed before: it still opens, until everything is under the one that seals now. NAME, or
    /// MOUNT/NAME; repeat for more.
    #[arg(
        long,
        env = "GANTRY_FLEET_VAULT_OLD_KEY",
        value_name = "NAME",
        value_delimiter = ','
    )]
    vault_old_key: Vec<String>,
    /// File with the token for it, read at each use; VAULT_TOKEN is taken otherwise.
    #[arg(long, env = "GANTRY_FLEET_VAULT_TOKEN_FILE", value_name = "FILE")]
    vault_token_file: Option<PathBuf>,
}

/// What seals and what still opens, and the file that is to be watched. Given, or made in the state folder for a server that
/// keeps its own database.
pub fn keys(arguments: &Sealing, database: &Database) -> anyhow::Result<(Keys, Option<PathBuf>)> {
    let mut old = Vec::new();
    for key in &arguments.vault_old_key {
        old.push(Keys::vault(vault(arguments, key, "--vault-old-key")?));
    }
    let (keys, file) = match arguments.vault_key.as_deref().filter(|key| !key.is_empty()) {
        Some(key) => {
            let keys = Keys::vault(vault(arguments, key, "--vault-key")?);
            // What was sealed before Vault was there.
            match local(arguments, database)? {
                Some((older, file)) => (keys.and_opens(older), file),
                None => (keys, None),
            }
        }
        None => match local(arguments, database)? {
            Some(found) => found,
            None if database.is_private() => {
                let file = secret(&database.folder()?, MADE, || Ok(LocalKeys::generate()?))?;
                (read(&file)?, Some(file))
            }
            None => bail!(
                "credentials of clusters need a key that all replicas share: --key-file, GANTRY_FLEET_KEY or Vault (make a key: openssl rand -base64 32)"
            ),
        },
    };
    Ok((old.into_iter().fold(keys, Keys::and_opens), file))
}

/// Keys that are here: in the variable, the file that is named, or the one that was made before.
fn local(arguments: &Sealing, database: &Database) -> anyhow::Result<Option<(Keys, Option<PathBuf>)>> {
    if let Ok(text) = std::env::var("GANTRY_FLEET_KEY")
        && !text.is_empty()
    {
        let keys = LocalKeys::parse(&text).context("GANTRY_FLEET_KEY")?;
        return Ok(Some((Keys::local(keys), None)));
    }
    let file = match &arguments.key_file {
        Some(file) => file.clone(),
        None if database.is_private() && database.folder()?.join(MADE).exists() => {
            database.folder()?.join(MADE)
        }
        None => return Ok(None),
    };
    Ok(Some((read(&file)?, Some(file))))
}

fn read(file: &Path) -> anyhow::Result<Keys> {
    let text = std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
    Ok(Keys::local(
        LocalKeys::parse(&text).with_context(|| file.display().to_string())?,
    ))
}

/// A key of Vault's: `NAME` in the mount that is given, or `MOUNT/NAME`.
fn vault(arguments: &Sealing, key: &str, option: &str) -> anyhow::Result<Vault> {
    let address = arguments.vault_address.as_deref().unwrap_or_default();
    if address.is_empty() {
        bail!("{option} needs the address of Vault: --vault-address or VAULT_ADDR");
    }
    let token = match (&arguments.vault_token_file, std::env::var("VAULT_TOKEN")) {
        (Some(file), _) => VaultToken::File(file.clone()),
        (None, Ok(token)) => VaultToken::Text(token),
        (None, Err(_)) => bail!("Vault needs a token: --vault-token-file or VAULT_TOKEN"),
    };
    let (mount, key) = key.rsplit_once('/').unwrap_or((&arguments.vault_mount, key));
    Ok(Vault::new(address, mount, key, token)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sealing: Sealing,
        #[command(flatten)]
        database: Database,
    }

    fn found(folder: &Path, line: &[&str]) -> anyhow::Result<(Keys, Option<PathBuf>)> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let state = ["gantry", "--state-dir", folder.to_str().unwrap()];
        let line = Line::try_parse_from(state.iter().chain(line))?;
        keys(&line.sealing, &line.database)
    }

    async fn wraps_with(keys: &Keys) -> String {
        match keys.current().await {
            Ok(current) => current.id,
            // Nobody listens there.
            Err(_) => "vault".to_owned(),
        }
    }

    const VAULT: [&str; 4] = [
        "--vault-address",
        "http://127.0.0.1:1",
        "--vault-token-file",
        "/t",
    ];

    #[tokio::test]
    async fn an_address_alone_seals_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (keys, file) = found(folder.path(), &VAULT[..2]).unwrap();
        assert_eq!(file, Some(folder.path().join(MADE)));
        assert_ne!(wraps_with(&keys).await, "vault");
    }

    #[tokio::test]
    async fn a_file_still_opens_what_it_sealed_when_vault_seals() {
        let folder = tempfile::tempdir().unwrap();
        let (before, file) = found(folder.path(), &[]).unwrap();
        let place = gantry_fleet::infrastructure::keys::Place {
            table: "clusters",
            column: "kubeconfig",
            row: uuid::Uuid::nil(),
        };
        let sealed = before.seal(place, b"secret").await.unwrap();
        let line = [&VAULT[..], &["--vault-key", "fleet"]].concat();
        let (keys, watched) = found(folder.path(), &line).unwrap();
        assert_eq!(wraps_with(&keys).await, "vault");
        assert_eq!(keys.open(place, &sealed).await.unwrap(), b"secret");
        assert_eq!(watched, file);
        // And back.
        let line = [&VAULT[..], &["--vault-old-key", "fleet,other/fleet"]].concat();
        let (keys, _) = found(folder.path(), &line).unwrap();
        assert_eq!(wraps_with(&keys).await, before.current().await.unwrap().id);
    }

    #[test]
    fn what_vault_needs_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let refused = found(folder.path(), &["--vault-key", "fleet"]).err().unwrap();
        assert!(refused.to_string().contains("VAULT_ADDR"), "{refused}");
    }
}
