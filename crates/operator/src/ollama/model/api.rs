//! Ollama's API, as far as a store needs it.

use std::time::Duration;

use futures::{StreamExt, stream::BoxStream};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::name::ModelName;
use crate::workload::reach::innermost;

/// Longest wait for an answer that is not a download.
const DEADLINE: Duration = Duration::from_secs(10);
/// More than any answer needs; a server cannot fill our memory.
const MOST_BYTES: usize = 4 << 20;
const MOST_LINE: usize = 256 << 10;

/// Why a question has no good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nobody answered, or somebody who is not Ollama.
    Unreachable(String),
    /// Ollama's own words.
    Said(String),
}

/// What Ollama tells about a model; the Model's ConfigMap holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Info {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parameters: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub quantization: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub family: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub format: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
}

/// One line of a download.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PullLine {
    pub status: String,
    pub error: Option<String>,
    pub digest: Option<String>,
    pub total: Option<u64>,
    pub completed: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tags {
    models: Vec<Listed>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Listed {
    name: String,
    digest: String,
    size: u64,
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    format: String,
    family: String,
    parameter_size: String,
    quantization_level: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Shown {
    capabilities: Vec<String>,
}

/// One Ollama server.
#[derive(Clone)]
pub struct Ollama {
    pub client: Client,
    /// What paths are appended to.
    pub base: String,
}

impl Ollama {
    /// A model in this store, if it is there.
    pub async fn find(&self, model: &ModelName) -> Result<Option<Info>, Fault> {
        let tags: Tags = self.ask(Method::GET, "/api/tags", None).await?;
        let Some(listed) = tags.models.into_iter().find(|listed| model.is(&listed.name)) else {
            return Ok(None);
        };
        // Older servers do not tell what a model can do; that is no reason to doubt that it is there.
        let shown: Shown = self
            .ask(Method::POST, "/api/show", Some(json!({"model": listed.name})))
            .await
            .unwrap_or_default();
        Ok(Some(Info {
            name: listed.name,
            digest: listed.digest,
            size: Some(listed.size),
            parameters: listed.details.parameter_size,
            quantization: listed.details.quantization_level,
            family: listed.details.family,
            format: listed.details.format,
            capabilities: shown.capabilities,
        }))
    }

    /// Removes a model's weights; fine when they are not there.
    pub async fn delete(&self, model: &ModelName) -> Result<(), Fault> {
        if self.find(model).await?.is_none() {
            return Ok(());
        }
        let body = json!({"model": model.short(), "name": model.short()});
        let call = self.send(Method::DELETE, "/api/delete", Some(body));
        within(DEADLINE, call).await.map(|_| ())
    }

    /// Starts a download, or goes on with one, and returns what is told about it.
    pub async fn pull(
        &self,
        model: &ModelName,
        insecure: bool,
    ) -> Result<BoxStream<'static, Result<PullLine, Fault>>, Fault> {
        let name = model.short();
        let body = json!({"model": name, "name": name, "insecure": insecure, "stream": true});
        let call = self.send(Method::POST, "/api/pull", Some(body));
        Ok(lines(within(DEADLINE * 3, call).await?.into_body()))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<T, Fault> {
        let call = async {
            let bytes = collect(self.send(method, path, body).await?).await?;
            serde_json::from_slice(&bytes)
                .map_err(|error| Fault::Unreachable(format!("its answer is not Ollama's: {error}")))
        };
        within(DEADLINE, call).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Response<Body>, Fault> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string().into_bytes())))
            .map_err(|error| Fault::Unreachable(error.to_string()))?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| Fault::Unreachable(innermost(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = collect(response).await.unwrap_or_default();
        let said = serde_json::from_slice::<PullLine>(&bytes).ok();
        Err(match said.and_then(|said| said.error) {
            Some(words) => Fault::Said(words),
            None => Fault::Unreachable(format!("it answers with status {status}")),
        })
    }
}

async fn within<T>(deadline: Duration, call: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let late = |_| {
        Err(Fault::Unreachable(format!(
            "no answer within {} s",
            deadline.as_secs()
        )))
    };
    tokio::time::timeout(deadline, call).await.unwrap_or_else(late)
}

async fn collect(response: Response<Body>) -> Result<Vec<u8>, Fault> {
    let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
    body.map(|body| body.to_bytes().to_vec())
        .map_err(|error| Fault::Unreachable(error.to_string()))
}

/// Objects by line; what is left when the connection ends is a line too.
fn lines(body: Body) -> BoxStream<'static, Result<PullLine, Fault>> {
    let start = (body.into_data_stream(), Vec::<u8>::new(), false);
    futures::stream::unfold(start, |(mut data, mut buffer, ended)| async move {
        let mut ended = ended;
        loop {
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Some((decode(&line), (data, buffer, ended)));
            }
            if ended {
                let line = std::mem::take(&mut buffer);
                return (!line.trim_ascii().is_empty()).then(|| (decode(&line), (data, buffer, true)));
            }
            match data.next().await {
                Some(Ok(bytes)) if buffer.len() + bytes.len() <= MOST_LINE => {
                    buffer.extend_from_slice(&bytes);
                }
                Some(Ok(_)) => {
                    let fault = Fault::Unreachable("a line of its answer is too long".to_owned());
                    return Some((Err(fault), (data, Vec::new(), true)));
                }
                Some(Err(error)) => {
                    let fault = Fault::Unreachable(format!("the download broke off: {}", innermost(&error)));
                    return Some((Err(fault), (data, Vec::new(), true)));
                }
                None => ended = true,
            }
        }
    })
    .boxed()
}

fn decode(line: &[u8]) -> Result<PullLine, Fault> {
    serde_json::from_slice(line)
        .map_err(|error| Fault::Unreachable(format!("its answer is not Ollama's: {error}")))
}
