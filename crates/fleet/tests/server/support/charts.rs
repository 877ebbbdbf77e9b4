//! A chart repository on this machine: an index and archives, served for real.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderMap, Method, StatusCode},
    response::IntoResponse,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const INDEX: &str = "charts/index.yaml";

type Files = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

pub struct Repository {
    pub url: String,
    files: Files,
    index: Arc<Mutex<Value>>,
    /// The `Authorization` that it asks for.
    wanted: Arc<Mutex<Option<String>>>,
    /// Whether it tells the digests of manifests, which registries should and not all do.
    pub tells_digests: Arc<AtomicBool>,
    /// The digest that is told is never that of the manifest.
    pub tells_others: Arc<AtomicBool>,
    /// And another one each time.
    pub is_fickle: Arc<AtomicBool>,
    /// It does not answer.
    pub hangs: Arc<AtomicBool>,
    /// Manifests that were asked for in full.
    pub manifests: Arc<AtomicUsize>,
    /// When the index was asked for: once by every visit.
    pub visits: Arc<Mutex<Vec<Instant>>>,
}

#[derive(Clone, Default)]
struct Shared {
    files: Files,
    wanted: Arc<Mutex<Option<String>>>,
    tells_digests: Arc<AtomicBool>,
    tells_others: Arc<AtomicBool>,
    is_fickle: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    told: Arc<AtomicUsize>,
    manifests: Arc<AtomicUsize>,
    visits: Arc<Mutex<Vec<Instant>>>,
}

impl Shared {
    fn digest(&self, content: &[u8]) -> String {
        let mut hash = Sha256::new_with_prefix(content);
        if self.tells_others.load(Ordering::SeqCst) {
            hash.update("another one");
        }
        if self.is_fickle.load(Ordering::SeqCst) {
            hash.update(self.told.fetch_add(1, Ordering::SeqCst).to_be_bytes());
        }
        format!("sha256:{}", gantry_fleet_domain::hex(&hash.finalize()))
    }
}

impl Repository {
    pub async fn start() -> Self {
        let shared = Shared::default();
        let router = Router::new()
            .route(
                "/{*path}",
                axum::routing::get(
                    async |State(shared): State<Shared>,
                           Path(path): Path<String>,
                           method: Method,
                           headers: HeaderMap| {
                        if shared.hangs.load(Ordering::SeqCst) {
                            std::future::pending::<()>().await;
                        }
                        let wanted = shared.wanted.lock().unwrap().clone();
                        let given = headers.get("authorization").map(|value| value.to_str().unwrap());
                        if wanted.is_some() && wanted.as_deref() != given {
                            return StatusCode::UNAUTHORIZED.into_response();
                        }
                        let Some(content) = shared.files.lock().unwrap().get(&path).cloned() else {
                            return StatusCode::NOT_FOUND.into_response();
                        };
                        if path == INDEX {
                            shared.visits.lock().unwrap().push(Instant::now());
                        }
                        if path.contains("/manifests/") {
                            if method == Method::GET {
                                shared.manifests.fetch_add(1, Ordering::SeqCst);
                            }
                            if shared.tells_digests.load(Ordering::SeqCst) {
                                let told = [("docker-content-digest", shared.digest(&content))];
                                return (told, content).into_response();
                            }
                        }
                        content.into_response()
                    },
                ),
            )
            .with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/charts", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let repository = Self {
            url,
            files: shared.files,
            wanted: shared.wanted,
            tells_digests: shared.tells_digests,
            tells_others: shared.tells_others,
            is_fickle: shared.is_fickle,
            hangs: shared.hangs,
            manifests: shared.manifests,
            visits: shared.visits,
            index: Arc::new(Mutex::new(json!({"apiVersion": "v1", "entries": {}}))),
        };
        repository.write_index();
        repository
    }

    /// From now on only for those who know.
    pub fn lock(&self, username: &str, password: &str) {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let known = STANDARD.encode(format!("{username}:{password}"));
        *self.wanted.lock().unwrap() = Some(format!("Basic {known}"));
    }

    fn write_index(&self) {
        let text = self.index.lock().unwrap().to_string();
        self.put(INDEX, text.into_bytes());
    }

    pub fn put(&self, path: &str, content: Vec<u8>) {
        self.files.lock().unwrap().insert(path.to_owned(), content);
    }

    /// Writes other things into the index about a version.
    pub fn amend(&self, name: &str, version: &str, fields: &Value) {
        {
            let mut index = self.index.lock().unwrap();
            let entries = index["entries"][name].as_array_mut().unwrap();
            let entry = entries
                .iter_mut()
                .find(|entry| entry["version"] == version)
                .unwrap();
            for (field, value) in fields.as_object().unwrap() {
                entry[field] = value.clone();
            }
        }
        self.write_index();
    }

    pub fn remove(&self, path: &str) -> Vec<u8> {
        self.files.lock().unwrap().remove(path).unwrap()
    }

    /// Adds a chart with these files; again, it is published anew.
    pub fn chart(&self, name: &str, version: &str, files: &[(&str, String)]) {
        let mut all = vec![(
            "Chart.yaml",
            format!("apiVersion: v2\nname: {name}\nversion: {version}\n"),
        )];
        all.extend(files.iter().cloned());
        let archive = packed(name, &all);
        let digest: String = gantry_fleet_domain::hex(&Sha256::digest(&archive));
        self.archive(name, version, archive, Some(&digest));
    }

    /// The same as a registry has it, at `oci_url`; again, the tag is published anew.
    pub fn push(&self, name: &str, version: &str, files: &[(&str, String)]) {
        let mut all = vec![(
            "Chart.yaml",
            format!("apiVersion: v2\nname: {name}\nversion: {version}\n"),
        )];
        all.extend(files.iter().cloned());
        let archive = packed(name, &all);
        let digest = format!("sha256:{}", gantry_fleet_domain::hex(&Sha256::digest(&archive)));
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "layers": [{
                "mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "digest": digest,
                "size": archive.len(),
            }],
        });
        let home = format!("v2/charts/{name}");
        self.put(&format!("{home}/blobs/{digest}"), archive);
        self.put(
            &format!("{home}/manifests/{version}"),
            manifest.to_string().into_bytes(),
        );
        let manifests = format!("{home}/manifests/");
        let files = self.files.lock().unwrap();
        let tags: Vec<&str> = files
            .keys()
            .filter_map(|path| path.strip_prefix(&manifests))
            .collect();
        let tags = json!({"name": name, "tags": tags}).to_string();
        drop(files);
        self.put(&format!("{home}/tags/list"), tags.into_bytes());
    }

    pub fn oci_url(&self) -> String {
        self.url.replace("http://", "oci://")
    }

    /// Adds whatever bytes as a chart.
    pub fn archive(&self, name: &str, version: &str, archive: Vec<u8>, digest: Option<&str>) {
        let file = format!("{name}-{version}.tgz");
        self.put(&format!("charts/{file}"), archive);
        let entry = json!({
            "name": name, "version": version, "urls": [file], "digest": digest,
            "created": "2026-01-02T03:04:05.123456789Z", "appVersion": "9.9",
        });
        {
            let mut index = self.index.lock().unwrap();
            let entries = &mut index["entries"][name];
            match entries {
                Value::Array(all) => {
                    all.retain(|known| known["version"] != version);
                    all.push(entry);
                }
                other => *other = json!([entry]),
            }
        }
        self.write_index();
    }
}

pub fn packed(name: &str, files: &[(&str, String)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(
        Vec::new(),
        flate2::Compression::fast(),
    ));
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, format!("{name}/{path}"), content.as_bytes())
            .unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}
