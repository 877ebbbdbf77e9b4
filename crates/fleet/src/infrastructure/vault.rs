//! Vault's transit engine: it wraps and unwraps keys and never gives its own away.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use url::Url;

use super::http::{self, HttpError};

/// A key, and a little around it.
const MAX_ANSWER: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    #[error("failed to reach Vault")]
    Reach(#[source] reqwest::Error),
    #[error("Vault answers {status} to {path}; check the token's policy and the key's name")]
    Refused { status: u16, path: String },
    /// Of a ciphertext: altered, of another row, or of a key or a version of it that is gone.
    #[error("Vault does not open it")]
    DoesNotOpen,
    #[error("Vault's answer has no {0}")]
    Answer(&'static str),
    #[error("failed to read Vault's token from {path}")]
    Token {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("there is no token for Vault: what it is read from is empty")]
    NoToken,
    #[error("{0} is not the address of a Vault")]
    Address(String),
    #[error(
        "Vault has to be asked over https, or anybody on the way reads its token and the keys; plain http is only for this machine itself"
    )]
    Plain,
    #[error("failed to read Vault's answer")]
    Body(#[source] HttpError),
}

pub enum VaultToken {
    Text(String),
    /// Read at each use: an agent renews it.
    File(std::path::PathBuf),
}

pub struct Vault {
    http: reqwest::Client,
    address: Url,
    mount: String,
    key: String,
    token: VaultToken,
}

impl Vault {
    pub fn new(address: &str, mount: &str, key: &str, token: VaultToken) -> Result<Self, VaultError> {
        let bad = || VaultError::Address(address.to_owned());
        let address = Url::parse(address).map_err(|_| bad())?;
        if address.cannot_be_a_base() {
            return Err(bad());
        }
        if !http::is_private(&address) {
            return Err(VaultError::Plain);
        }
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(5))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(VaultError::Reach)?;
        Ok(Self {
            http,
            address,
            mount: mount.to_owned(),
            key: key.to_owned(),
            token,
        })
    }

    pub fn name(&self) -> String {
        format!("vault:{}/{}", self.mount, self.key)
    }

    /// The ciphertext as Vault writes it, with the version of the key in it.
    pub async fn encrypt(&self, context: &str, plain: &[u8]) -> Result<Vec<u8>, VaultError> {
        let body = json!({"plaintext": STANDARD.encode(plain), "associated_data": STANDARD.encode(context)});
        let answer = self.ask("encrypt", &body).await?;
        let text = answer["data"]["ciphertext"]
            .as_str()
            .ok_or(VaultError::Answer("data.ciphertext"))?;
        Ok(text.as_bytes().to_vec())
    }

    /// What ciphertexts of the newest version of the key begin with, such as `vault:v2:`. Seen from one that is made for it:
    /// that needs no right that sealing does not need.
    pub async fn version(&self) -> Result<String, VaultError> {
        let sample = self.encrypt("gantry-fleet/v1\0version", b"which version").await?;
        let sample = String::from_utf8_lossy(&sample);
        match sample.rsplit_once(':') {
            Some((version, _)) => Ok(format!("{version}:")),
            None => Err(VaultError::Answer("version in data.ciphertext")),
        }
    }

    pub async fn decrypt(&self, context: &str, sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        let body = json!({
            "ciphertext": String::from_utf8_lossy(sealed),
            "associated_data": STANDARD.encode(context),
        });
        let answer = self.ask("decrypt", &body).await;
        let answer = answer.map_err(|error| match error {
            VaultError::Refused { status: 400, .. } => VaultError::DoesNotOpen,
            other => other,
        })?;
        answer["data"]["plaintext"]
            .as_str()
            .and_then(|text| STANDARD.decode(text).ok())
            .ok_or(VaultError::Answer("data.plaintext"))
    }

    async fn ask(&self, verb: &str, body: &Value) -> Result<Value, VaultError> {
        let path = format!("v1/{}/{verb}/{}", self.mount, self.key);
        let mut url = self.address.clone();
        url.set_path(&path);
        let token = match &self.token {
            VaultToken::Text(token) => token.clone(),
            VaultToken::File(file) => tokio::fs::read_to_string(file)
                .await
                .map_err(|source| VaultError::Token {
                    path: file.display().to_string(),
                    source,
                })?
                .trim()
                .to_owned(),
        };
        // An agent writes it anew, perhaps. Vault would call it a bad request.
        if token.is_empty() {
            return Err(VaultError::NoToken);
        }
        let answer = self
            .http
            .post(url)
            .header("X-Vault-Token", token)
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .map_err(|error| VaultError::Reach(error.without_url()))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(VaultError::Refused {
                status: status.as_u16(),
                path,
            });
        }
        let bytes = http::body(answer, &self.address, MAX_ANSWER)
            .await
            .map_err(VaultError::Body)?;
        serde_json::from_slice(&bytes).map_err(|_| VaultError::Answer("JSON"))
    }
}
