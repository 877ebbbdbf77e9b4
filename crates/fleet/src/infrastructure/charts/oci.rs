//! Charts in OCI registries: tags are versions, the chart is a layer. Asked without credentials first, then as the
//! registry wants it: with a token that it gives to anybody or to those it knows, or with name and password.

use std::time::Duration;

use gantry_fleet_domain::operator::is_token_server_of;
use reqwest::{Client, Method, Response, StatusCode, header};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use super::{ChartError, ChartVersion, sha256};
use crate::infrastructure::{
    http::{self, Credentials, HttpError},
    lean, yaml,
};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CHART: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
const MAX_JSON: usize = 4 << 20;
/// What a manifest is known by, as registries tell it with the manifest.
const DIGEST: &str = "docker-content-digest";
/// Nodes of JSON that is no list: small in bytes may be large in memory.
const MAX_NODES: usize = 20_000;
/// Pages of tags, and tags of all of them.
const MAX_PAGES: usize = 20;
const MAX_TAGS: usize = 20_000;
/// By the specification of registries.
const LONGEST_TAG: usize = 128;

#[derive(Deserialize)]
struct Tags {
    #[serde(default, deserialize_with = "tags")]
    tags: Vec<String>,
}

/// No more than are taken in all.
fn tags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut tags = Vec::new();
    lean::each(deserializer, |tag: String| {
        if tags.len() < MAX_TAGS && tag.len() <= LONGEST_TAG {
            tags.push(tag);
        }
    })?;
    Ok(tags)
}

pub async fn versions(
    client: &Client,
    base: &Url,
    chart: &str,
    credentials: Option<&Credentials>,
) -> Result<Vec<ChartVersion>, ChartError> {
    let mut registry = Registry::new(client, base, chart, credentials)?;
    let mut url = registry.url("tags/list?n=1000")?;
    let mut tags = Vec::new();
    for _ in 0..MAX_PAGES {
        let answer = registry.get(&url, None).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            break;
        }
        let next = next_page(&url, &answer);
        let bytes = http::body(answer, &url, MAX_JSON).await?;
        let page: Tags = serde_json::from_slice(&bytes)
            .map_err(|_| ChartError::Index("it does not list tags".to_owned()))?;
        tags.extend(page.tags.into_iter().take(MAX_TAGS - tags.len()));
        match next {
            Some(next) if tags.len() < MAX_TAGS => url = next,
            _ => break,
        }
    }
    if tags.is_empty() {
        return Err(ChartError::NoChart {
            chart: chart.to_owned(),
            hint: String::new(),
        });
    }
    let version = |tag: String| ChartVersion {
        // A tag cannot have a plus; Helm writes an underscore for it.
        version: tag.replace('_', "+"),
        app_version: None,
        released_at: None,
        deprecated: false,
        digest: None,
        location: tag,
        changelog_url: None,
    };
    Ok(tags.into_iter().map(version).collect())
}

/// What is under each of these tags now, as the digest of its manifest: a tag can be published anew at any time. Nothing for
/// those that could not be asked for; a registry that does not answer is not asked for the others, nor is one that is so
/// slow that they would take longer than `patience`.
pub async fn digests(
    client: &Client,
    base: &Url,
    chart: &str,
    tags: &[&str],
    credentials: Option<&Credentials>,
    patience: Duration,
) -> Result<Vec<Option<String>>, ChartError> {
    let mut registry = Registry::new(client, base, chart, credentials)?;
    let until = Instant::now() + patience;
    let mut digests = Vec::with_capacity(tags.len());
    for tag in tags {
        let Ok(digest) = tokio::time::timeout_at(until, registry.digest(tag)).await else {
            break;
        };
        let is_away = matches!(&digest, Err(error) if error.is_passing());
        digests.push(digest.ok().flatten());
        if is_away {
            break;
        }
    }
    digests.resize(tags.len(), None);
    Ok(digests)
}

/// The chart under a tag, and the digest of its manifest.
pub async fn fetch(
    client: &Client,
    base: &Url,
    chart: &str,
    tag: &str,
    credentials: Option<&Credentials>,
    most: usize,
) -> Result<(Vec<u8>, String), ChartError> {
    let mut registry = Registry::new(client, base, chart, credentials)?;
    let url = registry.url(&format!("manifests/{tag}"))?;
    let answer = registry.get(&url, Some(MANIFEST)).await?;
    let bytes = http::body(answer, &url, MAX_JSON).await?;
    let manifest_digest = format!("sha256:{}", sha256(&bytes));
    let manifest = small(&bytes)
        .ok_or_else(|| ChartError::Archive("its manifest is not JSON, or too large".to_owned()))?;
    let layer = manifest["layers"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|layer| layer["mediaType"] == CHART);
    let digest = layer
        .and_then(|layer| layer["digest"].as_str())
        .and_then(|digest| digest.strip_prefix("sha256:"))
        .filter(|digest| digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit()))
        .ok_or_else(|| ChartError::Archive("what is there under this tag is no Helm chart".to_owned()))?;
    let url = registry.url(&format!("blobs/sha256:{digest}"))?;
    let bytes = http::body(registry.get(&url, None).await?, &url, most).await?;
    if sha256(&bytes) == digest {
        Ok((bytes, manifest_digest))
    } else {
        Err(ChartError::Digest)
    }
}

struct Registry<'c> {
    client: &'c Client,
    root: Url,
    path: String,
    credentials: Option<&'c Credentials>,
    with: With,
}

/// What a request carries.
enum With {
    Nothing,
    Token(String),
    Credentials,
}

impl<'c> Registry<'c> {
    fn new(
        client: &'c Client,
        base: &Url,
        chart: &str,
        credentials: Option<&'c Credentials>,
    ) -> Result<Self, ChartError> {
        let bad = || ChartError::Index("its address cannot be used".to_owned());
        let host = base.host_str().ok_or_else(bad)?;
        // As other clients do: a registry on this very machine is asked without TLS.
        let scheme = if matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
            "http"
        } else {
            "https"
        };
        let port = base.port().map(|port| format!(":{port}")).unwrap_or_default();
        let root = Url::parse(&format!("{scheme}://{host}{port}/")).map_err(|_| bad())?;
        let path = format!("{}/{chart}", base.path().trim_matches('/'));
        Ok(Self {
            client,
            root,
            path: path.trim_matches('/').to_owned(),
            credentials,
            with: With::Nothing,
        })
    }

    fn url(&self, rest: &str) -> Result<Url, ChartError> {
        self.root
            .join(&format!("v2/{}/{rest}", self.path))
            .map_err(|_| ChartError::Index("its address cannot be used".to_owned()))
    }

    /// Asked for without the manifest, which some registries count as a download.
    async fn digest(&mut self, tag: &str) -> Result<Option<String>, ChartError> {
        let url = self.url(&format!("manifests/{tag}"))?;
        let answer = self.ask(Method::HEAD, &url, Some(MANIFEST)).await?;
        if !answer.status().is_success() {
            // Says what went wrong.
            http::body(answer, &url, 0).await?;
            return Ok(None);
        }
        let told = answer.headers().get(DIGEST).and_then(|value| value.to_str().ok());
        if let Some(told) = told {
            return Ok(Some(told.to_owned()));
        }
        let answer = self.get(&url, Some(MANIFEST)).await?;
        let bytes = http::body(answer, &url, MAX_JSON).await?;
        Ok(Some(format!("sha256:{}", sha256(&bytes))))
    }

    async fn get(&mut self, url: &Url, accept: Option<&str>) -> Result<Response, ChartError> {
        self.ask(Method::GET, url, accept).await
    }

    /// Asks, and once again with what the registry wants.
    async fn ask(&mut self, method: Method, url: &Url, accept: Option<&str>) -> Result<Response, ChartError> {
        for again in [false, true] {
            let mut request = self.client.request(method.clone(), url.clone());
            if let Some(accept) = accept {
                request = request.header(header::ACCEPT, accept);
            }
            request = match (&self.with, self.credentials) {
                (With::Token(token), _) => request.bearer_auth(token),
                (With::Credentials, Some(credentials)) => credentials.put_on(request),
                _ => request,
            };
            let answer = http::send(request, url).await?;
            if answer.status() != StatusCode::UNAUTHORIZED {
                return Ok(answer);
            }
            if again {
                break;
            }
            let challenge = answer
                .headers()
                .get(header::WWW_AUTHENTICATE)
                .and_then(|value| value.to_str().ok());
            self.with = self.what_it_wants(challenge.unwrap_or_default()).await?;
        }
        Err(ChartError::Credentials)
    }

    async fn what_it_wants(&self, challenge: &str) -> Result<With, ChartError> {
        let (scheme, fields) = challenge.split_once(' ').ok_or(ChartError::Credentials)?;
        if scheme.eq_ignore_ascii_case("basic") && self.credentials.is_some() {
            return Ok(With::Credentials);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ChartError::Credentials);
        }
        let field = |name: &str| {
            fields
                .split(',')
                .find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='))
                .map(|value| value.trim_matches('"'))
        };
        let mut url = field("realm")
            .and_then(|realm| Url::parse(realm).ok())
            .ok_or(ChartError::Credentials)?;
        if url.scheme() != "https" && self.root.scheme() == "https" {
            return Err(ChartError::Credentials);
        }
        url.query_pairs_mut()
            .append_pair("service", field("service").unwrap_or_default())
            .append_pair("scope", &format!("repository:{}:pull", self.path));
        // A token for anybody may come from anywhere; name and password are for the registry, and not for whom it names.
        let credentials = self.credentials.filter(|_| is_token_server_of(&self.root, &url));
        if self.credentials.is_some() && credentials.is_none() {
            tracing::warn!(
                registry = self.root.host_str(),
                server = url.host_str(),
                "a registry wants its credentials to be sent to another server, which is not done"
            );
        }
        let answer = match http::get(self.client, &url, credentials, MAX_JSON).await {
            Ok(bytes) => bytes,
            Err(HttpError::Status {
                status: 401 | 403, ..
            }) => return Err(ChartError::Credentials),
            Err(error) => return Err(error.into()),
        };
        let answer = small(&answer).ok_or(ChartError::Credentials)?;
        let token = answer["token"]
            .as_str()
            .or_else(|| answer["access_token"].as_str());
        token
            .map(|token| With::Token(token.to_owned()))
            .ok_or(ChartError::Credentials)
    }
}

/// What is JSON, and not large in memory either.
fn small(bytes: &[u8]) -> Option<Value> {
    yaml::has_at_most(MAX_NODES, bytes)
        .then(|| serde_json::from_slice(bytes).ok())
        .flatten()
}

/// `Link: </v2/…?last=x&n=1000>; rel="next"`, on the same registry only.
fn next_page(url: &Url, answer: &Response) -> Option<Url> {
    let link = answer.headers().get(header::LINK)?.to_str().ok()?;
    let (target, rest) = link.strip_prefix('<')?.split_once('>')?;
    let next = url.join(target).ok()?;
    (rest.contains("rel=\"next\"") && next.origin() == url.origin()).then_some(next)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn a_registry_that_slows_down_is_not_asked_without_end() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = Url::parse(&format!("oci://{}/charts", listener.local_addr().unwrap())).unwrap();
        // Two answers, and then silence.
        tokio::spawn(async move {
            let mut silent = Vec::new();
            for number in 0.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                if number < 2 {
                    let _ = stream.read(&mut [0; 4096]).await.unwrap();
                    let answer =
                        "HTTP/1.1 200 OK\r\ndocker-content-digest: sha256:x\r\nconnection: close\r\n\r\n";
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
                silent.push(stream);
            }
        });
        let (client, tags) = (http::client().unwrap(), ["1", "2", "3", "4"]);
        let found = digests(&client, &base, "x", &tags, None, Duration::from_secs(2));
        let found = tokio::time::timeout(Duration::from_secs(12), found).await;
        let some = Some("sha256:x".to_owned());
        assert_eq!(
            found.expect("it ends before a single request would").unwrap(),
            [some.clone(), some, None, None]
        );
    }
    #[tokio::test]
    async fn tags_are_taken_within_bounds() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let long = "x".repeat(LONGEST_TAG + 1);
        for (tag, expected) in [("1.0.0", MAX_TAGS), ("", MAX_TAGS), (long.as_str(), 0)] {
            let page = format!(
                r#"{{"tags":[{}]}}"#,
                vec![format!("\"{tag}\""); MAX_TAGS + 1].join(",")
            );
            let page: Tags = serde_json::from_str(&page).unwrap();
            assert_eq!(page.tags.len(), expected, "{tag:.20}");
        }
        let none: Tags = serde_json::from_str(r#"{"tags":null}"#).unwrap();
        assert!(none.tags.is_empty());
        // Pages without end.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = Url::parse(&format!("oci://{}/charts", listener.local_addr().unwrap())).unwrap();
        let page = format!(r#"{{"tags":[{}]}}"#, vec!["\"1\""; MAX_TAGS / 2 + 1].join(","));
        let head = "HTTP/1.1 200 OK\r\nlink: <?more>; rel=\"next\"\r\nconnection: close\r\n\r\n";
        let asked = tokio::spawn(async move {
            for number in 0.. {
                let Ok(connection) = tokio::time::timeout(Duration::from_secs(2), listener.accept()).await
                else {
                    return number;
                };
                let (mut stream, _) = connection.unwrap();
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                stream
                    .write_all(format!("{head}{page}").as_bytes())
                    .await
                    .unwrap();
            }
            0
        });
        let found = versions(&http::client().unwrap(), &base, "x", None).await;
        assert_eq!((found.unwrap().len(), asked.await.unwrap()), (MAX_TAGS, 2));
    }

    #[test]
    fn answers_that_are_small_in_bytes_alone_are_not_read() {
        assert!(small(br#"{"layers":[{}]}"#).is_some());
        let wide = format!(r#"{{"layers":[{}{{}}]}}"#, "{},".repeat(MAX_NODES));
        assert!(small(wide.as_bytes()).is_none());
    }
}
