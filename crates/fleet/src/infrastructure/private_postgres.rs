//! A PostgreSQL of our own in a folder, for a first try and for tests: from the installed server, reached by a socket
//! that only we can open, ended with us.

mod programs;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tokio::process::{Child, Command};
use uuid::Uuid;

use self::programs::Programs;

const USER: &str = "gantry";
/// The kernel's limit for the name of a socket is 108 bytes.
const LONGEST_SOCKET: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries to start beside a server that is about to end.
const PAUSE: Duration = Duration::from_millis(500);
/// How long somebody waits for the turn of another one who ends.
const TURN: Duration = Duration::from_secs(3);
/// Beginnings of folders that are not the data yet, and never will be if nobody is at them.
const UNFINISHED: &str = "data.new.";

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
        "{folder} holds data of PostgreSQL {found}, and PostgreSQL {installed} is installed; install PostgreSQL {found} beside it, move the data with pg_upgrade, or remove the folder to begin anew"
    )]
    OtherVersion {
        folder: PathBuf,
        found: String,
        installed: String,
    },
    #[error(
        "{0} is not the data of a PostgreSQL: it was not finished, or is damaged; restore it, or remove it to begin anew"
    )]
    NotData(PathBuf),
    #[error(
        "another server runs on {0} and keeps the private PostgreSQL there; end that one, name another folder with --state-dir, or let both use one database with DATABASE_URL"
    )]
    Taken(PathBuf),
}

/// Runs until it is stopped or dropped.
pub struct PrivatePostgres {
    /// None where another process started it.
    child: Option<Child>,
    programs: Programs,
    folder: PathBuf,
    data: PathBuf,
    socket: PathBuf,
    /// How long the log was when the child was started.
    log_before: u64,
    /// Held by the one who keeps the folder; the kernel gives it back however we end.
    turn: Option<File>,
}

impl PrivatePostgres {
    /// Starts the server of this folder, making it first if it is new. One that runs there is used as it is.
    pub async fn start(folder: &Path) -> Result<Self, PostgresError> {
        Self::open(folder, false).await
    }

    /// The same for somebody who keeps the folder for as long as they live. There can be one: a second one would end what
    /// the first one works with.
    pub async fn start_alone(folder: &Path) -> Result<Self, PostgresError> {
        Self::open(folder, true).await
    }

    async fn open(folder: &Path, alone: bool) -> Result<Self, PostgresError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PostgresError::Folder { path, source }
        };
        let folder = std::path::absolute(folder).map_err(failed(folder))?;
        let (data, socket) = (folder.join("data"), socket_folder(&folder));
        let programs = Programs::find(major_of(&data).and_then(|major| major.parse().ok()))?;
        for path in [&folder, &socket] {
            private_folder(path, programs.run_as).map_err(failed(path))?;
        }
        if programs.run_as.is_some()
            && let Some(parent) = closed_to_others(&folder)
        {
            return Err(PostgresError::NotReachable(parent));
        }
        let turn = if alone {
            Some(take_turn(&folder).await?)
        } else {
            None
        };
        let mut server = Self {
            child: None,
            programs,
            folder,
            data,
            socket,
            log_before: 0,
            turn,
        };
        if is_new(&server.data) {
            server.initialise().await?;
        }
        server.check_version().await?;
        server.bring_up().await?;
        Ok(server)
    }

    /// Beside the data, and renamed when it is whole: whoever is killed in the middle leaves nothing that looks like data.
    async fn initialise(&self) -> Result<(), PostgresError> {
        let failed = |source| PostgresError::Folder {
            path: self.data.clone(),
            source,
        };
        for entry in fs::read_dir(&self.folder).map_err(failed)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                // Somebody who was killed may have left an initdb that is still at it; its folder goes another time.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let new = self
            .folder
            .join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
        let path = new.to_string_lossy();
        // Whoever can open the socket is us: its folder lets nobody else in.
        let arguments = [
            "--pgdata",
            &path,
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
        self.programs.run("initdb", &arguments).await?;
        fs::rename(&new, &self.data).map_err(failed)
    }

    async fn check_version(&self) -> Result<(), PostgresError> {
        let found = major_of(&self.data)
            .filter(|_| self.data.join("global/pg_control").exists())
            .ok_or_else(|| PostgresError::NotData(self.data.clone()))?;
        let said = self.programs.run("postgres", &["--version"]).await?;
        let installed = said.rsplit_once(") ").map_or(said.as_str(), |parts| parts.1);
        let major = installed.split(['.', ' ']).next().unwrap_or_default();
        if found == major {
            Ok(())
        } else {
            Err(PostgresError::OtherVersion {
                folder: self.data.clone(),
                found,
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
            .and_then(|file| Ok((file.metadata()?.len(), file.try_clone()?, file)))
            .map_err(|source| PostgresError::Folder { path: log, source })?;
        self.log_before = output.0;
        let mut command = self.server_command();
        command
            .arg("-D")
            .arg(&self.data)
            .arg("-k")
            .arg(&self.socket)
            .args(["-c", "listen_addresses=", "-c", "unix_socket_permissions=0700"])
            .args(["-c", "max_connections=100", "-c", "shared_buffers=64MB"])
            .args(["-c", "log_min_messages=warning", "-c", "log_line_prefix=%m [%p] "])
            .stdout(output.1)
            .stderr(output.2);
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

    /// Has a server that answers, and our database on it: one that runs already, or a new one. One that is about to end
    /// (whoever kept it was killed a moment ago) keeps a new one from starting until it is gone, which is waited for.
    async fn bring_up(&mut self) -> Result<(), PostgresError> {
        let begin = Instant::now();
        loop {
            let made = tokio::time::timeout(PATIENCE / 2, self.make_database());
            let Err(error) = made.await.unwrap_or(Err(sqlx::Error::PoolTimedOut)) else {
                return Ok(());
            };
            let ended = match &mut self.child {
                Some(child) => !matches!(child.try_wait(), Ok(None)),
                None => false,
            };
            let said = self.said_since_start();
            if begin.elapsed() > PATIENCE || (ended && !is_in_the_way(&said)) {
                let lines = said.lines().rev().take(3).collect::<Vec<_>>();
                let last = lines.into_iter().rev().collect::<Vec<_>>().join(" | ");
                return Err(PostgresError::Silent {
                    last: if last.is_empty() { error.to_string() } else { last },
                    log: self.folder.join("log"),
                });
            }
            if ended {
                self.child = None;
                tokio::time::sleep(PAUSE).await;
            } else if self.child.is_none() {
                self.spawn()?;
            } else {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// What is in the log since the child was started.
    fn said_since_start(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut log = File::open(self.folder.join("log"))?;
            log.seek(SeekFrom::Start(self.log_before))?;
            let mut said = Vec::new();
            log.take(64 << 10).read_to_end(&mut said)?;
            Ok(said)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let options = self.options("postgres");
        tokio::time::timeout(Duration::from_secs(2), PgConnection::connect_with(&options))
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    async fn make_database(&self) -> Result<(), sqlx::Error> {
        let mut connection = self.connect().await?;
        let there: bool =
            sqlx::query_scalar("select exists (select from pg_database where datname = 'gantry')")
                .fetch_one(&mut connection)
                .await?;
        if !there {
            sqlx::query("create database gantry")
                .execute(&mut connection)
                .await?;
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
            self.child = None;
            match self.bring_up().await {
                Ok(()) if self.child.is_some() => {
                    tracing::warn!("the private PostgreSQL had ended and is started again");
                }
                // It was only slow to answer.
                Ok(()) => {}
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

    /// Ends it in order. What was committed is on disk in any case. One that somebody else started is theirs to end, unless
    /// we keep its folder: whoever started it is gone then.
    pub async fn stop(mut self) {
        if self.child.is_none() && self.turn.is_none() {
            return;
        }
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

/// The major version that the data is of.
fn major_of(data: &Path) -> Option<String> {
    let text = fs::read_to_string(data.join("PG_VERSION")).ok()?;
    Some(text.trim().to_owned())
}

/// Whether there is no data, or a folder for it with nothing in it.
fn is_new(data: &Path) -> bool {
    match fs::read_dir(data) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// A process that somebody was just about to start when they died holds their turn for a moment longer.
async fn take_turn(folder: &Path) -> Result<File, PostgresError> {
    let path = folder.join("lock");
    let failed = |source| PostgresError::Folder {
        path: path.clone(),
        source,
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) if begin.elapsed() < TURN => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(fs::TryLockError::WouldBlock) => return Err(PostgresError::Taken(folder.to_owned())),
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
    }
}

/// Whether it did not start because another server has the data. Its words are those of the C locale.
fn is_in_the_way(said: &str) -> bool {
    [
        "lock file \"postmaster.pid\" already exists",
        "pre-existing shared memory block",
    ]
    .iter()
    .any(|words| said.contains(words))
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
