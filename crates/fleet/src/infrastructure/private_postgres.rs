//! A PostgreSQL of our own in a folder, for a first try and for tests: from the installed server, reached by a socket
//! that only we can open, ended with us.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tokio::process::{Child, Command};

const USER: &str = "gantry";
/// The kernel's limit for the name of a socket is 108 bytes.
const LONGEST_SOCKET: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error(
        "no PostgreSQL server is installed here (looked in PATH and /usr/lib/postgresql): install it (on Debian: apt-get install postgresql), or set DATABASE_URL to a database elsewhere"
    )]
    NotInstalled,
    #[error("failed to prepare {path}")]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "PostgreSQL refuses to run as root and there is no user postgres or nobody to run it as; start this as another user, or set DATABASE_URL"
    )]
    NobodyToRunAs,
    #[error(
        "PostgreSQL refuses to run as root, so it runs as another user, who cannot enter {0}; name a folder with --state-dir that everybody can reach, such as /var/lib/gantry"
    )]
    NotReachable(PathBuf),
    #[error("failed to run {program}")]
    Run {
        program: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} failed: {said}")]
    Failed { program: &'static str, said: String },
    #[error("the private PostgreSQL does not answer; its log is {log}: {last}")]
    Silent { log: PathBuf, last: String },
    #[error(
        "{folder} holds data of PostgreSQL {found}, and PostgreSQL {installed} is installed; move the data with pg_upgrade, or remove the folder to begin anew"
    )]
    OtherVersion {
        folder: PathBuf,
        found: String,
        installed: String,
    },
}

/// Runs until it is stopped or dropped.
pub struct PrivatePostgres {
    child: Option<Child>,
    programs: Programs,
    folder: PathBuf,
    data: PathBuf,
    socket: PathBuf,
}

#[derive(Clone)]
struct Programs {
    folder: PathBuf,
    run_as: Option<(u32, u32)>,
}

impl Programs {
    fn find() -> Result<Self, PostgresError> {
        let given = std::env::var_os("GANTRY_POSTGRES_BIN").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = given.into_iter().collect();
        let mut debian: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
            .collect();
        debian.sort_by_key(|folder| std::cmp::Reverse(version_of(folder)));
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

    fn command(&self, program: &str) -> Command {
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

    async fn run(&self, program: &'static str, arguments: &[&str]) -> Result<String, PostgresError> {
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

impl PrivatePostgres {
    /// Starts the server of this folder, making it first if it is new.
    pub async fn start(folder: &Path) -> Result<Self, PostgresError> {
        let programs = Programs::find()?;
        let folder = std::path::absolute(folder).map_err(|source| PostgresError::Folder {
            path: folder.to_owned(),
            source,
        })?;
        let (data, socket) = (folder.join("data"), socket_folder(&folder));
        for path in [&folder, &data, &socket] {
            private_folder(path, programs.run_as).map_err(|source| PostgresError::Folder {
                path: path.clone(),
                source,
            })?;
        }
        if programs.run_as.is_some()
            && let Some(parent) = closed_to_others(&folder)
        {
            return Err(PostgresError::NotReachable(parent));
        }
        let mut server = Self {
            child: None,
            programs,
            folder,
            data,
            socket,
        };
        if !server.data.join("PG_VERSION").exists() {
            server.initialise().await?;
        }
        server.check_version().await?;
        // One that an earlier process left behind when it was killed serves as well.
        if server.connect().await.is_err() {
            server.spawn()?;
        }
        server.wait().await?;
        server.make_database().await?;
        Ok(server)
    }

    async fn initialise(&self) -> Result<(), PostgresError> {
        let data = self.data.to_string_lossy();
        // Whoever can open the socket is us: its folder lets nobody else in.
        let arguments = [
            "--pgdata",
            &data,
            "--username",
            USER,
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--locale",
            "C.UTF-8",
            "--data-checksums",
        ];
        self.programs.run("initdb", &arguments).await.map(drop)
    }

    async fn check_version(&self) -> Result<(), PostgresError> {
        let found = fs::read_to_string(self.data.join("PG_VERSION")).unwrap_or_default();
        let said = self.programs.run("postgres", &["--version"]).await?;
        let installed = said.rsplit_once(") ").map_or(said.as_str(), |parts| parts.1);
        let major = installed.split(['.', ' ']).next().unwrap_or_default();
        if found.trim() == major {
            Ok(())
        } else {
            Err(PostgresError::OtherVersion {
                folder: self.data.clone(),
                found: found.trim().to_owned(),
                installed: major.to_owned(),
            })
        }
    }

    fn spawn(&mut self) -> Result<(), PostgresError> {
        let log = self.folder.join("log");
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .and_then(|file| Ok((file.try_clone()?, file)))
            .map_err(|source| PostgresError::Folder { path: log, source })?;
        let mut command = self.server_command();
        command
            .arg("-D")
            .arg(&self.data)
            .arg("-k")
            .arg(&self.socket)
            .args(["-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"])
            .args(["-c", "max_connections=100", "-c", "shared_buffers=64MB"])
            .args(["-c", "log_min_messages=warning", "-c", "log_line_prefix=%m [%p] "])
            .stdout(output.0)
            .stderr(output.1);
        let child = command.spawn().map_err(|source| PostgresError::Run {
            program: "postgres",
            source,
        })?;
        self.child = Some(child);
        Ok(())
    }

    /// Where `setpriv` is, the kernel tells the server when we are gone, however we went.
    fn server_command(&self) -> Command {
        let setpriv = Path::new("/usr/bin/setpriv");
        if !setpriv.is_file() {
            return self.programs.command("postgres");
        }
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "INT"]);
        if let Some((uid, gid)) = self.programs.run_as {
            command.args([
                format!("--reuid={uid}"),
                format!("--regid={gid}"),
                "--clear-groups".to_owned(),
            ]);
        }
        command
            .arg(self.programs.folder.join("postgres"))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .current_dir("/")
            .stdin(Stdio::null());
        // A Ctrl-C in the terminal is for us; we end the server when we are done with it.
        command.process_group(0);
        command
    }

    async fn wait(&mut self) -> Result<(), PostgresError> {
        let begin = Instant::now();
        loop {
            if self.connect().await.is_ok() {
                return Ok(());
            }
            let ended = match &mut self.child {
                Some(child) => !matches!(child.try_wait(), Ok(None)),
                None => false,
            };
            if ended || begin.elapsed() > PATIENCE {
                let log = self.folder.join("log");
                let text = fs::read_to_string(&log).unwrap_or_default();
                let last = text.lines().rev().take(3).collect::<Vec<_>>();
                return Err(PostgresError::Silent {
                    last: last.into_iter().rev().collect::<Vec<_>>().join(" | "),
                    log,
                });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let options = self.options("postgres");
        tokio::time::timeout(Duration::from_secs(2), PgConnection::connect_with(&options))
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    async fn make_database(&self) -> Result<(), PostgresError> {
        let failed = |error: sqlx::Error| PostgresError::Failed {
            program: "create database",
            said: error.to_string(),
        };
        let mut connection = self.connect().await.map_err(failed)?;
        let there: bool =
            sqlx::query_scalar("select exists (select from pg_database where datname = 'gantry')")
                .fetch_one(&mut connection)
                .await
                .map_err(failed)?;
        if !there {
            sqlx::query("create database gantry")
                .execute(&mut connection)
                .await
                .map_err(failed)?;
        }
        let _ = connection.close().await;
        Ok(())
    }

    fn options(&self, database: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket)
            .username(USER)
            .database(database)
    }

    /// As `DATABASE_URL` would have it.
    pub fn url(&self) -> String {
        self.url_of("gantry")
    }

    pub fn url_of(&self, database: &str) -> String {
        let socket = self.socket.to_string_lossy();
        let host: String = url::form_urlencoded::byte_serialize(socket.as_bytes()).collect();
        format!("postgresql://{USER}@{host}/{database}")
    }

    /// Starts it again whenever it has ended by itself: killed, out of memory, out of disk. Does not return.
    pub async fn keep(&mut self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let ended = match &mut self.child {
                Some(child) => !matches!(child.try_wait(), Ok(None)),
                None => self.connect().await.is_err(),
            };
            if !ended {
                continue;
            }
            let started = match self.spawn() {
                Ok(()) => self.wait().await,
                Err(error) => Err(error),
            };
            match started {
                Ok(()) => tracing::warn!("the private PostgreSQL had ended and is started again"),
                Err(error) => {
                    tracing::error!(%error, "the private PostgreSQL has ended and does not start");
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
            }
        }
    }

    pub fn process(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Ends it in order. What was committed is on disk in any case.
    pub async fn stop(mut self) {
        let data = self.data.to_string_lossy().into_owned();
        let arguments = ["stop", "-D", &data, "-m", "fast", "-t", "20", "-s"];
        if let Err(error) = self.programs.run("pg_ctl", &arguments).await {
            tracing::warn!(%error, "the private PostgreSQL did not end in order");
        }
        if let Some(child) = &mut self.child {
            let _ = tokio::time::timeout(Duration::from_secs(5), child.wait()).await;
        }
    }
}

/// The first folder on the way that lets only its owner in.
fn closed_to_others(folder: &Path) -> Option<PathBuf> {
    let mut parents: Vec<&Path> = folder.ancestors().skip(1).collect();
    parents.reverse();
    let is_closed =
        |path: &&Path| fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o001 == 0);
    parents.into_iter().find(is_closed).map(Path::to_owned)
}

fn private_folder(path: &Path, owner: Option<(u32, u32)>) -> std::io::Result<()> {
    fs::create_dir_all(path)?;
    if let Some((uid, gid)) = owner {
        chown(path, Some(uid), Some(gid))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

/// In the folder itself, or, where that name is too long for a socket, in a short one made from it.
fn socket_folder(folder: &Path) -> PathBuf {
    use sha2::{Digest as _, Sha256};
    let inside = folder.join("socket");
    if inside.as_os_str().len() + ".s.PGSQL.5432".len() < LONGEST_SOCKET {
        return inside;
    }
    let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
    let short = gantry_fleet_domain::hex(&digest[..8]);
    std::env::temp_dir().join(format!("gantry-{short}"))
}
