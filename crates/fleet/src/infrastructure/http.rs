//! Asking strangers over HTTP: bounded in time and size, not led to addresses that are nobody's (a cloud's metadata
//! service), and not from https to http.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures::StreamExt as _;
use gantry_fleet_domain::kubeconfig::is_nobodys;
use reqwest::{
    Client, Response,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::trace;

const MAX_REDIRECTS: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("failed to reach {host}: {why}")]
    Reach { host: String, why: String },
    #[error("{host} answers {status}")]
    Status { host: String, status: u16 },
    #[error("{host} sends more than {} MiB", most >> 20)]
    TooLarge { host: String, most: usize },
    #[error("{0} is an address where no server is that is meant for this")]
    NobodysAddress(String),
}

impl HttpError {
    /// Whether it may be otherwise in a while.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Reach { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            Self::TooLarge { .. } | Self::NobodysAddress(_) => false,
        }
    }
}

pub fn client() -> Result<Client, reqwest::Error> {
    Client::builder()
        .user_agent(concat!("gantry-fleet/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(5))
        .read_timeout(Duration::from_secs(15))
        .timeout(Duration::from_secs(60))
        .dns_resolver(Arc::new(Somebodys))
        .redirect(Policy::custom(|attempt| {
            let from_https = attempt
                .previous()
                .last()
                .is_some_and(|url| url.scheme() == "https");
            if attempt.previous().len() >= MAX_REDIRECTS {
                attempt.error("too many redirects")
            } else if from_https && attempt.url().scheme() != "https" {
                attempt.error("a redirect from https to http")
            } else if is_nobodys_url(attempt.url()) {
                attempt.error("a redirect to an address that is nobody's")
            } else {
                attempt.follow()
            }
        }))
        .build()
}

/// Part of the message, by which the reason is known again.
pub const NOBODYS: &str = "the name leads to addresses that are nobody's";

/// The addresses of a name, without those that are nobody's.
pub async fn resolve(name: &str) -> io::Result<std::vec::IntoIter<SocketAddr>> {
    let found = tokio::net::lookup_host((name, 0)).await?;
    let good: Vec<SocketAddr> = found.filter(|address| !is_nobodys(address.ip())).collect();
    if good.is_empty() {
        return Err(io::Error::other(NOBODYS));
    }
    Ok(good.into_iter())
}

struct Somebodys;

impl Resolve for Somebodys {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move { Ok(Box::new(resolve(name.as_str()).await?) as Addrs) })
    }
}

/// Names are the resolver's business; literal addresses never get there.
fn is_nobodys_url(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => is_nobodys(address.into()),
        Some(Host::Ipv6(address)) => is_nobodys(address.into()),
        _ => false,
    }
}

/// Whether nobody on the way reads what is sent there, or writes what comes back: TLS, or this machine itself.
pub fn is_private(url: &Url) -> bool {
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || url.scheme() == "http" && is_here
}

pub fn host(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        _ => "the server".to_owned(),
    }
}

pub async fn send(request: reqwest::RequestBuilder, url: &Url) -> Result<Response, HttpError> {
    if is_nobodys_url(url) {
        return Err(HttpError::NobodysAddress(host(url)));
    }
    let request = request.headers(trace::headers());
    request.send().await.map_err(|error| reach(url, error))
}

fn reach(url: &Url, error: reqwest::Error) -> HttpError {
    // The innermost cause says it best; the address is ours to write.
    let error = error.without_url();
    let mut why = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        why = inner.to_string();
        source = inner.source();
    }
    HttpError::Reach { host: host(url), why }
}

/// The whole body, if it is not too much.
pub async fn body(answer: Response, url: &Url, most: usize) -> Result<Vec<u8>, HttpError> {
    let status = answer.status().as_u16();
    if !answer.status().is_success() {
        return Err(HttpError::Status {
            host: host(url),
            status,
        });
    }
    let too_large = || HttpError::TooLarge {
        host: host(url),
        most,
    };
    if answer.content_length().is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let mut stream = answer.bytes_stream();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| reach(url, error))?;
        if bytes.len() + part.len() > most {
            return Err(too_large());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

pub async fn get(
    client: &Client,
    url: &Url,
    credentials: Option<&Credentials>,
    most: usize,
) -> Result<Vec<u8>, HttpError> {
    let mut request = client.get(url.clone());
    if let Some(credentials) = credentials {
        request = credentials.put_on(request);
    }
    body(send(request, url).await?, url, most).await
}

/// A name and a password for somebody else's server. Never printed.
#[derive(Clone, Serialize, Deserialize)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl Credentials {
    pub fn put_on(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        request.basic_auth(&self.username, Some(&self.password))
    }
}
