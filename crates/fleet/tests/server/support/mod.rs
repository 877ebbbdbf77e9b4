//! A real PostgreSQL, a server on it, and something to ask it with.

pub mod charts;
mod document;
pub mod kube;

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use gantry_fleet::{
    Server,
    infrastructure::{
        keys::{Keys, LocalKeys},
        private_postgres::PrivatePostgres,
        tokens::{AUDIENCE, Grant, ISSUER, Issuer, KeySource},
    },
    settings::{Limits, PROVE_WITHIN, Rates, Retention, Settings},
};
use gantry_fleet_domain::{access::Role, cluster::Environment, kubeconfig::Allow};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use sqlx::{Connection, Executor, PgConnection};
use uuid::Uuid;

pub const SECRET: &[u8] = b"a secret of the tests, long enough for HS256";

/// The address of a database server that this process may make databases on.
fn postgres() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| {
        let home = std::env::temp_dir().join("gantry-fleet-tests");
        sweep(&home.join("run"));
        let folder = home.join("run").join(std::process::id().to_string());
        let (send, receive) = std::sync::mpsc::channel();
        // On a thread of its own: the server ends with the thread that started it.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let server = runtime.block_on(async {
                copy(&template(&home).await, &folder);
                PrivatePostgres::start(&folder).await.unwrap()
            });
            send.send(server.url_of("DATABASE")).unwrap();
            loop {
                std::thread::park();
            }
        });
        receive
            .recv()
            .expect("PostgreSQL starts; on Debian: dev/setup database")
    })
}

/// A server's folder as it is when it is new: each process begins with a copy, because making one takes a second.
async fn template(home: &Path) -> PathBuf {
    std::fs::create_dir_all(home).unwrap();
    let lock = std::fs::File::create(home.join("lock")).unwrap();
    lock.lock().unwrap();
    let template = home.join("template");
    if !template.exists() {
        let making = home.join("making");
        let _ = std::fs::remove_dir_all(&making);
        PrivatePostgres::start(&making).await.unwrap().stop().await;
        let mut configuration = std::fs::OpenOptions::new()
            .append(true)
            .open(making.join("data/postgresql.conf"))
            .unwrap();
        // Nothing here has to outlive a power cut.
        writeln!(configuration, "fsync = off").unwrap();
        std::fs::rename(making, &template).unwrap();
    }
    template
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}

/// Folders of processes that are gone.
fn sweep(home: &Path) {
    for entry in std::fs::read_dir(home).into_iter().flatten().flatten() {
        let alive = Path::new("/proc").join(entry.file_name()).exists();
        if !alive {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A folder that PostgreSQL can enter, who runs as another user when we are root.
pub fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::Builder::new()
        .prefix("gantry-fleet-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir();
    folder.unwrap()
}

/// A database of its own.
pub async fn database() -> String {
    let name = format!("t_{}", Uuid::new_v4().simple());
    let server = postgres();
    let mut connection = PgConnection::connect(&server.replace("DATABASE", "postgres"))
        .await
        .unwrap();
    let create = format!("create database {name}");
    connection.execute(sqlx::AssertSqlSafe(create)).await.unwrap();
    server.replace("DATABASE", &name)
}

pub async fn pool(url: &str) -> sqlx::PgPool {
    sqlx::PgPool::connect(url).await.unwrap()
}

pub fn key_line() -> String {
    LocalKeys::generate().unwrap()
}

pub fn settings(database_url: &str, folder: &Path) -> Settings {
    let secret = folder.join("token.key");
    std::fs::write(&secret, SECRET).unwrap();
    Settings {
        address: ([127, 0, 0, 1], 0).into(),
        admin_address: None,
        tls: None,
        insecure_http: false,
        trusted_proxies: Vec::new(),
        database_url: database_url.to_owned(),
        database_connections: 8,
        cluster_connections: 90,
        keys: Keys::local(LocalKeys::parse(&key_line()).unwrap()),
        key_file: None,
        tokens: vec![KeySource::Secret(secret.clone())],
        token_issuer: ISSUER.to_owned(),
        token_audience: AUDIENCE.to_owned(),
        login_secret: Some(secret),
        token_lifetime: SignedDuration::from_hours(1),
        audit_key: None,
        allow: Allow { insecure: true },
        limits: Limits::default(),
        rates: Rates {
            read: 100_000,
            write: 100_000,
            register_cluster: 100_000,
            login: 100_000,
        },
        health_interval: SignedDuration::from_secs(60),
        refresh_interval: SignedDuration::from_hours(1),
        prove_within: PROVE_WITHIN,
        retention: Retention::default(),
        deployer_role: "cluster-admin".to_owned(),
        clock: std::sync::Arc::new(Timestamp::now),
        helm: None,
    }
}

/// It lasts longer than any test puts the clock forward.
pub fn token(subject: &str, role: Role) -> String {
    token_in(subject, &[role], None, SignedDuration::from_hours(24 * 3650))
}

pub fn token_in(
    subject: &str,
    roles: &[Role],
    environments: Option<&[&str]>,
    lifetime: SignedDuration,
) -> String {
    let environments: Option<BTreeSet<Environment>> =
        environments.map(|names| names.iter().map(|name| name.parse().unwrap()).collect());
    let grant = Grant {
        subject,
        roles: &roles.iter().copied().collect(),
        environments: environments.as_ref(),
        user: None,
        lifetime,
    };
    Issuer::new(SECRET, ISSUER, AUDIENCE)
        .issue(&grant, Timestamp::now())
        .unwrap()
        .0
}

/// A server on a database of its own, and an administrator to ask it.
pub struct Running {
    pub server: Server,
    pub database_url: String,
    pub folder: tempfile::TempDir,
    pub admin: Asker,
}

impl Running {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let database_url = database().await;
        let mut settings = settings(&database_url, folder.path());
        change(&mut settings);
        let server = Server::start(settings).await.unwrap();
        let admin = Asker::new(&server, Some(token("admin", Role::Admin)));
        Self {
            server,
            database_url,
            folder,
            admin,
        }
    }

    pub fn asker(&self, token: Option<String>) -> Asker {
        Asker::new(&self.server, token)
    }

    pub fn role(&self, role: Role) -> Asker {
        self.asker(Some(token(&format!("someone-{role}"), role)))
    }
}

#[derive(Clone)]
pub struct Asker {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

/// What came back.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
    pub text: String,
}

impl Got {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map(|value| value.to_str().unwrap())
            .unwrap_or_default()
    }

    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    /// Fails with the whole answer when the status is another.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code()), (status, code), "{}", self.text);
        let error = &self.body["error"];
        assert!(
            error["message"].as_str().is_some_and(|text| text.len() > 5),
            "{}",
            self.text
        );
        assert_eq!(
            error["traceId"].as_str().unwrap_or_default().len(),
            32,
            "{}",
            self.text
        );
        assert_eq!(error["traceId"], self.header("x-trace-id"));
        assert!(
            error["timestamp"]
                .as_str()
                .unwrap_or_default()
                .parse::<Timestamp>()
                .is_ok(),
            "{}",
            self.text
        );
        self
    }
}

impl Asker {
    pub fn new(server: &Server, token: Option<String>) -> Self {
        Self::at(&format!("http://{}", server.address), token)
    }

    pub fn at(base: &str, token: Option<String>) -> Self {
        Self {
            http: reqwest::Client::new(),
            base: base.to_owned(),
            token,
        }
    }

    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>, headers: &[(&str, &str)]) -> Got {
        self.try_ask(method, path, body, headers).await.unwrap()
    }

    pub async fn try_ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Got, reqwest::Error> {
        let path = if path.starts_with("/api") || path == "/health" {
            path.to_owned()
        } else {
            format!("/api/v1{path}")
        };
        let verb = method.to_uppercase().parse().unwrap();
        let mut request = self.http.request(verb, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await?;
        if (200..300).contains(&status) {
            let content_type = headers
                .get("content-type")
                .map_or("", |value| value.to_str().unwrap());
            let complaint = document::complaint(method, &path, status, content_type, &text);
            assert_eq!(
                complaint, None,
                "{method} {path} is not answered as documented: {text}"
            );
        }
        Ok(Got {
            status,
            headers,
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        })
    }

    pub async fn get(&self, path: &str) -> Got {
        self.ask("get", path, None, &[]).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Got {
        self.ask("post", path, Some(body), &[]).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Got {
        self.ask("put", path, Some(body), &[]).await
    }

    pub async fn delete(&self, path: &str) -> Got {
        self.ask("delete", path, None, &[]).await
    }
}

/// Asks until the answer is right, for 20 s.
pub async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..200 {
        if let Some(value) = attempt().await {
            return value;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("still not so after 20 s: {what}");
}

/// A few lines of YAML that would be a thousand million words.
pub fn anchor_bomb() -> String {
    let first = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    let next = (1..9).map(|level| {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        format!("a{level}: &a{level} [{aliases}]\n")
    });
    std::iter::once(first).chain(next).collect()
}

/// A definition with these properties of `spec`.
pub fn definition(name: &str, properties: Value) -> Value {
    let (plural, group) = name.split_once('.').unwrap();
    let mut kind = plural.trim_end_matches('s').to_owned();
    kind[..1].make_ascii_uppercase();
    serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": properties}},
            }}}],
        },
    })
}
