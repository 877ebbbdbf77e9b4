//! JWTs: who signed what, with which algorithm, for whom and until when. A key is bound to one algorithm, so that a
//! public key can never be taken for a shared secret.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use gantry_fleet_domain::{
    access::{Caller, LocalUser, Role, is_own_name},
    cluster::Environment,
};
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode,
    errors::ErrorKind,
    jwk::{AlgorithmParameters, EllipticCurve, JwkSet},
};
use serde::{Deserialize, Serialize};
use url::Url;
use uuid::Uuid;

use super::http;

pub const ISSUER: &str = "gantry-fleet";
pub const AUDIENCE: &str = "gantry-fleet";
const SHORTEST_SECRET: usize = 32;
/// Seconds by which clocks may differ.
const LEEWAY: i64 = 30;
const MAX_KEY_SET: usize = 1 << 20;
/// How often keys are read again because of one that is not known.
const UNKNOWN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("failed to read the key {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{0} has fewer than 32 bytes: too short a secret can be guessed")]
    Short(PathBuf),
    #[error("{0} is neither an RSA nor an EC (P-256) public key in PEM")]
    NoKey(PathBuf),
    #[error("failed to fetch the keys of {0}")]
    Fetch(Url, #[source] reqwest::Error),
    #[error("{0} does not answer with a key set")]
    NoKeySet(Url),
    #[error("failed to sign a token")]
    Sign(#[source] jsonwebtoken::errors::Error),
}

/// Where keys come from that tokens may be signed with.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// HS256.
    Secret(PathBuf),
    /// RS256 or ES256, by what is in it.
    PublicKey(PathBuf),
    /// RS256 and ES256.
    Jwks(Url),
}

struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    verifies: DecodingKey,
}

/// What is in a token. Some issuers write one role as text.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    sub: String,
    iss: String,
    aud: Several,
    exp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<f64>,
    /// Nobody here looks at it, and not every issuer tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<i64>,
    #[serde(default)]
    roles: Several,
    #[serde(default, skip_serializing)]
    role: Several,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    environments: Option<Several>,
    /// Of the local user who logged in for it. Under a name that no identity provider uses for something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gantry_user: Option<Uuid>,
    /// How often that user had changed the password then.
    #[serde(default, skip_serializing_if = "is_zero")]
    gantry_generation: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands in a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(untagged)]
enum Several {
    One(String),
    Many(Vec<String>),
    #[default]
    None,
}

impl Several {
    fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(text) => std::slice::from_ref(text).iter(),
            Self::Many(texts) => texts.iter(),
            Self::None => [].iter(),
        }
        .map(String::as_str)
    }
}

/// Why a token is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    Expired,
    /// It is for somebody with a name that only the server itself may have.
    OwnName,
    /// Signed by nobody we know; a key set that was fetched long ago may not have the key yet.
    UnknownKey,
    Invalid,
}

/// Keys of one source, which come and go without the others.
struct Source {
    from: KeySource,
    keys: RwLock<Arc<Vec<Key>>>,
}

pub struct Verifier {
    sources: Vec<Source>,
    http: reqwest::Client,
    issuer: String,
    audience: String,
    /// By a clock that nobody can put back.
    fetched: tokio::sync::Mutex<Option<Instant>>,
}

impl Verifier {
    /// Files must be there and hold keys: what is wrong with them is a mistake of whoever wrote the configuration. An
    /// identity provider that is away is none: its tokens count when it is back.
    pub async fn load(
        sources: Vec<KeySource>,
        issuer: &str,
        audience: &str,
        http: reqwest::Client,
    ) -> Result<Self, TokenError> {
        let source = |from| Source {
            from,
            keys: RwLock::default(),
        };
        let verifier = Self {
            sources: sources.into_iter().map(source).collect(),
            http,
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            fetched: tokio::sync::Mutex::new(None),
        };
        for (source, failure) in verifier.reload().await {
            match source {
                KeySource::Jwks(_) => told(&failure),
                KeySource::Secret(_) | KeySource::PublicKey(_) => return Err(failure),
            }
        }
        Ok(verifier)
    }

    pub fn sources(&self) -> impl Iterator<Item = &KeySource> {
        self.sources.iter().map(|source| &source.from)
    }

    /// Whether a source has given any keys yet.
    pub fn has_keys(&self, place: usize) -> bool {
        self.sources.get(place).is_some_and(|source| {
            let keys = source.keys.read().unwrap_or_else(PoisonError::into_inner);
            !keys.is_empty()
        })
    }

    /// Reads the keys of one source again, by its place among them. When that fails, those from before stay.
    pub async fn reload_one(&self, place: usize) -> Result<(), TokenError> {
        match self.sources.get(place) {
            Some(source) => self.read(source).await,
            None => Ok(()),
        }
    }

    /// Reads all keys again, each source by itself, and gives those that failed.
    pub async fn reload(&self) -> Vec<(&KeySource, TokenError)> {
        let read = self
            .sources
            .iter()
            .map(|source| async move { Some((&source.from, self.read(source).await.err()?)) });
        let done = futures::future::join_all(read).await;
        done.into_iter().flatten().collect()
    }

    /// Reads secrets again that are in files; nobody is asked for them.
    pub async fn reload_secrets(&self) {
        for source in &self.sources {
            if let KeySource::Secret(_) = source.from
                && let Err(failure) = self.read(source).await
            {
                told(&failure);
            }
        }
    }

    async fn read(&self, source: &Source) -> Result<(), TokenError> {
        let keys = match &source.from {
            KeySource::Secret(path) => vec![Key {
                id: None,
                algorithm: Algorithm::HS256,
                verifies: DecodingKey::from_secret(&read_secret(path)?),
            }],
            KeySource::PublicKey(path) => vec![public_key(path)?],
            KeySource::Jwks(url) => fetch(&self.http, url).await?,
        };
        *source.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        Ok(())
    }

    /// Reads keys again because of one that is not known; not more often than every ten seconds, whatever strangers
    /// send.
    pub async fn reload_for_unknown(&self) -> bool {
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|at| at.elapsed() < UNKNOWN) {
            return false;
        }
        let failures = self.reload().await;
        *fetched = Some(Instant::now());
        for (_, failure) in &failures {
            told(failure);
        }
        failures.len() < self.sources.len()
    }

    /// Whose token it is, if it counts now.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Caller, Rejected> {
        let header = decode_header(token).map_err(|_| Rejected::Invalid)?;
        let keys: Vec<Arc<Vec<Key>>> = self
            .sources
            .iter()
            .map(|source| source.keys.read().unwrap_or_else(PoisonError::into_inner).clone())
            .collect();
        let fits = |key: &&Key| {
            key.algorithm == header.alg
                && match (&key.id, &header.kid) {
                    (Some(ours), Some(theirs)) => ours == theirs,
                    _ => true,
                }
        };
        let mut rejected = Rejected::UnknownKey;
        for key in keys.iter().flat_map(|keys| keys.iter()).filter(fits) {
            let mut validation = Validation::new(key.algorithm);
            validation.set_issuer(&[&self.issuer]);
            validation.set_audience(&[&self.audience]);
            validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
            // It would ask another clock than ours.
            validation.validate_exp = false;
            match decode::<Claims>(token, &key.verifies, &validation) {
                Ok(token) => return counting(&token.claims, now),
                Err(error) => {
                    rejected = match error.kind() {
                        ErrorKind::InvalidSignature => rejected,
                        _ => return Err(Rejected::Invalid),
                    };
                }
            }
        }
        Err(rejected)
    }
}

fn told(failure: &TokenError) {
    let error = failure as &dyn std::error::Error;
    tracing::warn!(error, "token keys could not be read; it is tried again");
}

/// The caller of a token with a good signature, if its time is now.
fn counting(claims: &Claims, now: Timestamp) -> Result<Caller, Rejected> {
    let now = now.as_second();
    if claims.exp.saturating_add(LEEWAY) < now {
        return Err(Rejected::Expired);
    }
    if claims.nbf.is_some_and(|from| from > (now + LEEWAY) as f64) {
        return Err(Rejected::Invalid);
    }
    if is_own_name(&claims.sub) {
        return Err(Rejected::OwnName);
    }
    Ok(caller(claims))
}

fn caller(claims: &Claims) -> Caller {
    let roles: BTreeSet<Role> = claims
        .roles
        .iter()
        .chain(claims.role.iter())
        .filter_map(|role| role.parse().ok())
        .collect();
    Caller {
        subject: claims.sub.clone(),
        roles,
        // A name that cannot be read grants nothing; the restriction itself stays.
        environments: claims
            .environments
            .as_ref()
            .map(|names| names.iter().filter_map(|name| name.parse().ok()).collect()),
        user: claims.gantry_user.map(|id| LocalUser {
            id,
            generation: claims.gantry_generation,
        }),
    }
}

pub fn read_secret(path: &PathBuf) -> Result<Vec<u8>, TokenError> {
    let text = std::fs::read(path).map_err(|source| TokenError::Read {
        path: path.clone(),
        source,
    })?;
    let secret = text.trim_ascii().to_vec();
    if secret.len() < SHORTEST_SECRET {
        return Err(TokenError::Short(path.clone()));
    }
    Ok(secret)
}

fn public_key(path: &PathBuf) -> Result<Key, TokenError> {
    let text = std::fs::read(path).map_err(|source| TokenError::Read {
        path: path.clone(),
        source,
    })?;
    let rsa = DecodingKey::from_rsa_pem(&text).map(|key| (Algorithm::RS256, key));
    let (algorithm, verifies) = rsa
        .or_else(|_| DecodingKey::from_ec_pem(&text).map(|key| (Algorithm::ES256, key)))
        .map_err(|_| TokenError::NoKey(path.clone()))?;
    Ok(Key {
        id: None,
        algorithm,
        verifies,
    })
}

async fn fetch(client: &reqwest::Client, url: &Url) -> Result<Vec<Key>, TokenError> {
    let failed = |error: reqwest::Error| TokenError::Fetch(url.clone(), error.without_url());
    let answer = client
        .get(url.clone())
        .timeout(Duration::from_secs(10))
        .send()
        .await
        .and_then(reqwest::Response::error_for_status)
        .map_err(failed)?;
    let bytes = http::body(answer, url, MAX_KEY_SET)
        .await
        .map_err(|_| TokenError::NoKeySet(url.clone()))?;
    let set: JwkSet = serde_json::from_slice(&bytes).map_err(|_| TokenError::NoKeySet(url.clone()))?;
    Ok(set
        .keys
        .iter()
        .filter_map(|jwk| {
            let algorithm = match &jwk.algorithm {
                AlgorithmParameters::RSA(_) => Algorithm::RS256,
                AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
                    Algorithm::ES256
                }
                // A shared secret has no place in a public document.
                _ => return None,
            };
            Some(Key {
                id: jwk.common.key_id.clone(),
                algorithm,
                verifies: DecodingKey::from_jwk(jwk).ok()?,
            })
        })
        .collect())
}

/// Signs tokens of local users, with the shared secret.
pub struct Issuer {
    key: EncodingKey,
    /// `iss`.
    name: String,
    audience: String,
}

/// Issues with the secret that is in a file now: it may be another one than at the start.
pub struct FileIssuer {
    file: PathBuf,
    name: String,
    audience: String,
}

impl FileIssuer {
    pub fn open(file: PathBuf, issuer: &str, audience: &str) -> Result<Self, TokenError> {
        read_secret(&file)?;
        Ok(Self {
            file,
            name: issuer.to_owned(),
            audience: audience.to_owned(),
        })
    }

    pub fn issue(&self, grant: &Grant<'_>, now: Timestamp) -> Result<(String, Timestamp), TokenError> {
        Issuer::new(&read_secret(&self.file)?, &self.name, &self.audience).issue(grant, now)
    }
}

/// What a token is to say.
pub struct Grant<'g> {
    pub subject: &'g str,
    pub roles: &'g BTreeSet<Role>,
    pub environments: Option<&'g BTreeSet<Environment>>,
    /// The local user it is for; the token ends with them, and with their password.
    pub user: Option<LocalUser>,
    pub lifetime: SignedDuration,
}

impl Issuer {
    pub fn new(secret: &[u8], issuer: &str, audience: &str) -> Self {
        Self {
            key: EncodingKey::from_secret(secret),
            name: issuer.to_owned(),
            audience: audience.to_owned(),
        }
    }

    pub fn issue(&self, grant: &Grant<'_>, now: Timestamp) -> Result<(String, Timestamp), TokenError> {
        let expires = now + grant.lifetime;
        let claims = Claims {
            sub: grant.subject.to_owned(),
            iss: self.name.clone(),
            aud: Several::One(self.audience.clone()),
            exp: expires.as_second(),
            nbf: None,
            iat: Some(now.as_second()),
            roles: Several::Many(grant.roles.iter().map(|role| role.name().to_owned()).collect()),
            role: Several::None,
            environments: grant
                .environments
                .map(|names| Several::Many(names.iter().map(|name| name.name().to_owned()).collect())),
            gantry_user: grant.user.map(|user| user.id),
            gantry_generation: grant.user.map_or(0, |user| user.generation),
        };
        let token = encode(&Header::new(Algorithm::HS256), &claims, &self.key).map_err(TokenError::Sign)?;
        Ok((token, expires))
    }
}
