//! What handlers are given: the caller, the question, the body. Whatever is wrong with them is told in the API's own words.

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{HeaderMap, header, request::Parts},
};
use gantry_fleet_api::Operation;
use gantry_fleet_domain::access::Caller;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use url::form_urlencoded;

use super::{
    App,
    answer::{Trace, about},
    body_bounds, is_large,
};
use crate::{
    Error,
    infrastructure::{store::Window, yaml},
    orchestrator::Ask,
};

const LONGEST_KEY: usize = 255;
/// Everything before it is read and thrown away.
const MOST_SKIPPED: u64 = 1_000_000;

/// The name in the path.
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let Path(name) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| Error::invalid("name", "is not text"))?;
        let name = checked_name("name", name)?;
        note(parts, &name);
        Ok(Self(name))
    }
}

/// The name in the path, and what of it is meant.
pub struct NameAndPart(pub String, pub String);

impl<S: Send + Sync> FromRequestParts<S> for NameAndPart {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let Path((name, part)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|_| Error::invalid("path", "is not text"))?;
        let name = checked_name("name", name)?;
        note(parts, &name);
        Ok(Self(name, checked_name("path", part)?))
    }
}

/// The log tells what a request is about.
fn note(parts: &Parts, name: &str) {
    let operation = parts.extensions.get::<Operation>();
    match operation.map(|operation| operation.spec().tag) {
        Some("operators") => about("operator", name),
        Some("clusters") => about("cluster", name),
        Some("crds") => about("crd", name),
        _ => {}
    }
}

fn checked_name(field: &str, name: String) -> Result<String, Error> {
    if name.len() > 253 || name.chars().any(char::is_control) {
        return Err(Error::invalid(field, "is not a name"));
    }
    Ok(name)
}

/// The parameters after the question mark, of which only known ones are taken.
pub struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = parts.uri.query().unwrap_or_default();
        let pairs: Vec<(String, String)> = form_urlencoded::parse(text.as_bytes())
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        let known = parts
            .extensions
            .get::<Operation>()
            .map(|operation| operation.spec().query)
            .unwrap_or_default();
        for (name, value) in &pairs {
            if !known.iter().any(|parameter| parameter.name == name) {
                let short: String = name.chars().take(80).collect();
                return Err(Error::invalid(&short, "is not a parameter of this operation"));
            }
            if value.contains('\0') {
                return Err(Error::invalid(name, "must not have zero bytes"));
            }
        }
        Ok(Self(pairs))
    }
}

impl Query {
    pub fn text(&self, name: &str) -> Option<String> {
        let found = self.0.iter().rev().find(|(key, _)| key == name);
        found
            .map(|(_, value)| value.clone())
            .filter(|value| !value.is_empty())
    }

    pub fn parsed<T: std::str::FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, Error> {
        match self.text(name) {
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| Error::invalid(name, format!("must be {expected}"))),
            None => Ok(None),
        }
    }

    /// One of these words, in whatever case; as it is written here.
    pub fn one_of(&self, name: &str, words: &[&'static str]) -> Result<Option<String>, Error> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match words.iter().find(|word| word.eq_ignore_ascii_case(&text)) {
            Some(word) => Ok(Some((*word).to_owned())),
            None => Err(Error::invalid(
                name,
                format!("must be one of {}", words.join(", ")),
            )),
        }
    }

    /// `label=a=b&label=c=d` or `label=a=b,c=d`, as an object that rows must contain.
    pub fn labels(&self) -> Result<Value, Error> {
        let mut labels = Map::new();
        for (_, value) in self.0.iter().filter(|(name, _)| name == "label") {
            for pair in value.split(',').filter(|pair| !pair.is_empty()) {
                let (key, value) = pair
                    .split_once('=')
                    .ok_or_else(|| Error::invalid("label", "must be key=value"))?;
                labels.insert(key.to_owned(), Value::String(value.to_owned()));
            }
        }
        Ok(Value::Object(labels))
    }

    pub fn window(&self) -> Result<Window, Error> {
        self.window_of(20)
    }

    /// All where no limit is given.
    pub fn window_or_all(&self) -> Result<Window, Error> {
        self.window_of(Window::ALL.limit)
    }

    fn window_of(&self, limit: u32) -> Result<Window, Error> {
        let given = self.parsed("limit", "a number from 1 to 100")?;
        if given.is_some_and(|limit| !(1..=100).contains(&limit)) {
            return Err(Error::invalid("limit", "must be a number from 1 to 100"));
        }
        let limit = given.unwrap_or(limit);
        let offset = self.parsed("offset", "a number from 0 on")?.unwrap_or(0);
        if offset > MOST_SKIPPED {
            return Err(Error::invalid(
                "offset",
                format!("must be at most {MOST_SKIPPED}; narrow the list by its filters instead"),
            ));
        }
        Ok(Window { limit, offset })
    }
}

/// The body of a request, and what else is known of it.
pub struct Sent<T> {
    pub ask: Ask,
    pub body: T,
    /// Where bodies are large, held as long as there is something of it in memory.
    pub turn: Option<OwnedSemaphorePermit>,
}

impl<T: DeserializeOwned> FromRequest<App> for Sent<T> {
    type Rejection = Error;

    async fn from_request(request: Request, app: &App) -> Result<Self, Error> {
        let Asked { ask, bytes, is_json } = Asked::read(request, app).await?;
        if !is_json {
            return Err(Error::Refused {
                code: "UNSUPPORTED_MEDIA_TYPE",
                message: "the body must be JSON: send Content-Type: application/json".to_owned(),
                details: Vec::new(),
            });
        }
        // A few bytes of JSON may be a hundred in memory.
        let most = body_bounds(ask.operation).nodes;
        if !yaml::has_at_most(most, &bytes) {
            return Err(Error::Refused {
                code: "PAYLOAD_TOO_LARGE",
                message: format!(
                    "the body has more in it than this operation takes: {most} values and names"
                ),
                details: Vec::new(),
            });
        }
        // When all of it has arrived: who sends slowly keeps nobody waiting.
        let turn = if is_large(ask.operation) {
            app.large_bodies.clone().acquire_owned().await.ok()
        } else {
            None
        };
        let body = serde_json::from_slice(&bytes).map_err(|error| json_problem(&error))?;
        Ok(Self { ask, body, turn })
    }
}

/// A request whose body, if there is one, does not matter.
pub struct Bare(pub Ask);

impl<S: Send + Sync> FromRequest<S> for Bare {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        Ok(Self(Asked::read(request, state).await?.ask))
    }
}

/// The parser names fields and places; values it would quote are cut off, since they may be secrets.
fn json_problem(error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let twice = text.strip_prefix("duplicate field `");
    let message = match error.classify() {
        serde_json::error::Category::Data if twice.is_some() => {
            let field = twice.and_then(|rest| rest.split('`').next()).unwrap_or_default();
            format!("duplicate field `{field}`: it is given twice, perhaps in two of its spellings")
        }
        serde_json::error::Category::Data
            if text.starts_with("unknown field") || text.starts_with("missing field") =>
        {
            text
        }
        serde_json::error::Category::Data => {
            format!(
                "a field at line {} column {} has another type than it should",
                error.line(),
                error.column()
            )
        }
        _ => format!(
            "the body is not JSON at line {} column {}",
            error.line(),
            error.column()
        ),
    };
    Error::invalid("body", message)
}

/// A header as text; an error when it is there and is none.
fn header_text(headers: &HeaderMap, name: &str) -> Option<Result<String, ()>> {
    let value = headers.get(name)?;
    Some(value.to_str().map(str::to_owned).map_err(|_| ()))
}

struct Asked {
    ask: Ask,
    bytes: Bytes,
    is_json: bool,
}

impl Asked {
    async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Self, Error> {
        let caller = request.extensions().get::<Caller>().cloned().unwrap_or(Caller {
            subject: String::new(),
            roles: std::collections::BTreeSet::new(),
            environments: None,
            user: None,
        });
        let operation = request
            .extensions()
            .get::<Operation>()
            .copied()
            .unwrap_or(Operation::Login);
        let trace_id = request
            .extensions()
            .get::<Trace>()
            .map(|trace| trace.id.clone())
            .unwrap_or_default();
        let (headers, spec) = (request.headers(), operation.spec());
        let key = match header_text(headers, "idempotency-key") {
            Some(Ok(key)) if (1..=LONGEST_KEY).contains(&key.len()) => Some(key),
            Some(_) => {
                return Err(Error::invalid(
                    "Idempotency-Key",
                    "must be 1 to 255 characters of plain text",
                ));
            }
            None => None,
        };
        let if_match = match header_text(headers, "if-match") {
            Some(_) if !spec.if_match => {
                return Err(Error::invalid(
                    "If-Match",
                    "has no meaning for this operation, which would be done whatever it says; leave it out",
                ));
            }
            Some(Ok(tag)) => Some(tag),
            Some(Err(())) => return Err(Error::invalid("If-Match", "is not an ETag")),
            None => None,
        };
        let is_json = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| {
                value
                    .split(';')
                    .next()
                    .unwrap_or_default()
                    .trim()
                    .eq_ignore_ascii_case("application/json")
            });
        let begun = Instant::now();
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|_| Error::Refused {
                code: "PAYLOAD_TOO_LARGE",
                message: "the body is larger than this operation takes, or did not arrive".to_owned(),
                details: Vec::new(),
            })?;
        let mut hash = Sha256::new();
        for part in [method.as_str().as_bytes(), path.as_bytes(), &bytes] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Ok(Self {
            ask: Ask {
                caller,
                operation,
                trace_id,
                key: key.filter(|_| spec.idempotency_key),
                digest: hash.finalize().into(),
                if_match,
                begun,
            },
            bytes,
            is_json,
        })
    }
}
