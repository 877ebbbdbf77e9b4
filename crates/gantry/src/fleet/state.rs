//! The folder of a server that was given nothing else: its keys, made at first use, and its private PostgreSQL.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use gantry_fleet::infrastructure::private_postgres::PrivatePostgres;

/// Where the database is.
#[derive(Args, Clone)]
pub struct Database {
    /// A PostgreSQL database, 15 or newer, as postgresql://USER@HOST/NAME. Without one a private PostgreSQL is kept in the
    /// state folder, from the installed server.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// Folder for what is not given: keys, and the private PostgreSQL [default: /var/lib/gantry for root, else
    /// ~/.local/state/gantry/fleet].
    #[arg(long, env = "GANTRY_FLEET_STATE", value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
}

impl Database {
    pub fn folder(&self) -> anyhow::Result<PathBuf> {
        if let Some(folder) = &self.state_dir {
            return Ok(folder.clone());
        }
        // PostgreSQL runs as another user when we are root, who could not enter root's home.
        if fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0) {
            return Ok("/var/lib/gantry".into());
        }
        let home = std::env::var_os("HOME").context("HOME is not set; name a folder with --state-dir")?;
        let state = std::env::var_os("XDG_STATE_HOME")
            .map_or_else(|| Path::new(&home).join(".local/state"), PathBuf::from);
        Ok(state.join("gantry/fleet"))
    }

    /// The address, and the private server behind it if there is one.
    pub async fn open(&self) -> anyhow::Result<(String, Option<PrivatePostgres>)> {
        if let Some(url) = self.given() {
            return Ok((url, None));
        }
        let server = PrivatePostgres::start(&self.postgres()?).await?;
        Ok((server.url(), Some(server)))
    }

    /// The same for one who keeps that server running, of whom there can be one for each folder.
    pub async fn keep(&self) -> anyhow::Result<(String, Option<PrivatePostgres>)> {
        if let Some(url) = self.given() {
            return Ok((url, None));
        }
        let server = PrivatePostgres::start_alone(&self.postgres()?).await?;
        Ok((server.url(), Some(server)))
    }

    fn given(&self) -> Option<String> {
        self.database_url.clone().filter(|url| !url.is_empty())
    }

    fn postgres(&self) -> anyhow::Result<PathBuf> {
        Ok(self.folder()?.join("postgres"))
    }

    pub fn is_private(&self) -> bool {
        self.given().is_none()
    }
}

/// The text of a secret file in the folder, made with `make` when it is not there. Only its owner can read it.
pub fn secret(
    folder: &Path,
    name: &str,
    make: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    if path.exists() {
        return Ok(path);
    }
    let context = || format!("failed to make {}", path.display());
    fs::create_dir_all(folder).with_context(context)?;
    // Written beside and renamed: a key that is half there would be taken for a whole one.
    let part = folder.join(format!(".{name}.{}", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)
        .with_context(context)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))
        .with_context(context)?;
    writeln!(file, "{}", make()?.trim()).with_context(context)?;
    file.sync_all().with_context(context)?;
    fs::rename(&part, &path).with_context(context)?;
    Ok(path)
}
