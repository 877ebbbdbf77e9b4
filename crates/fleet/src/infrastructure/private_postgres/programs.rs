//! Where PostgreSQL's programs are, and as whom they run.

use std::{
    cmp::Reverse,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::Command;

use super::PostgresError;

#[derive(Clone)]
pub struct Programs {
    pub folder: PathBuf,
    pub run_as: Option<(u32, u32)>,
}

impl Programs {
    /// Those of this major version where they are installed, of the newest one otherwise.
    pub fn find(wanted: Option<u32>) -> Result<Self, PostgresError> {
        let given = std::env::var_os("GANTRY_POSTGRES_BIN").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = given.into_iter().collect();
        let mut debian: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
            .collect();
        debian.sort_by_key(|folder| preference(folder, wanted));
        places.extend(debian);
        places.extend(std::env::split_paths(&path));
        let folder = places
            .into_iter()
            .find(|folder| {
                ["initdb", "postgres", "pg_ctl"]
                    .iter()
                    .all(|name| folder.join(name).is_file())
            })
            .ok_or(PostgresError::NotInstalled)?;
        Ok(Self {
            folder,
            run_as: run_as()?,
        })
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        if let Some((uid, gid)) = self.run_as {
            command.uid(uid).gid(gid);
        }
        // Messages in words that we can rely on, and none of our secrets in its environment.
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    pub async fn run(&self, program: &'static str, arguments: &[&str]) -> Result<String, PostgresError> {
        let output = self
            .command(program)
            .args(arguments)
            .output()
            .await
            .map_err(|source| PostgresError::Run { program, source })?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        if output.status.success() {
            Ok(said)
        } else {
            Err(PostgresError::Failed { program, said })
        }
    }
}

/// The wanted version first, then the newest ones: a server reads the data of its own major version only.
fn preference(folder: &Path, wanted: Option<u32>) -> (bool, Reverse<u32>) {
    let version = version_of(folder);
    (Some(version) != wanted, Reverse(version))
}

fn version_of(folder: &Path) -> u32 {
    let name = folder
        .parent()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str());
    name.and_then(|name| name.parse().ok()).unwrap_or(0)
}

/// Root has to give the server to somebody else: it refuses to run as root.
fn run_as() -> Result<Option<(u32, u32)>, PostgresError> {
    let me = fs::metadata("/proc/self").map_or(1, |about| about.uid());
    if me != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let find = |wanted: &str| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, uid, gid) = (fields.next()?, fields.nth(1)?, fields.next()?);
            (name == wanted).then_some((uid.parse().ok()?, gid.parse().ok()?))
        })
    };
    find("postgres")
        .or_else(|| find("nobody"))
        .map(Some)
        .ok_or(PostgresError::NobodyToRunAs)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::new_data(None, ["17", "15", "9"])]
    #[case::data_of_an_older_one(Some(15), ["15", "17", "9"])]
    #[case::data_of_one_that_is_gone(Some(14), ["17", "15", "9"])]
    fn the_programs_that_can_read_the_data_come_first(
        #[case] wanted: Option<u32>,
        #[case] expected: [&str; 3],
    ) {
        let place = |version: &str| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
        let mut places = ["15", "9", "17"].map(place);
        places.sort_by_key(|folder| preference(folder, wanted));
        assert_eq!(places, expected.map(place));
    }
}
