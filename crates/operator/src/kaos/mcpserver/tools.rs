//! Asking a running server for its tools, over MCP.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{StreamExt, stream::BoxStream};
use gantry_kit::probe::Answer;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use rmcp::{
    ServiceExt,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        StreamableHttpClientTransport,
        streamable_http_client::{
            SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
            StreamableHttpPostResponse,
        },
    },
};
use sse_stream::{Sse, SseStream};

use super::validate::PORT;
use crate::{
    settings::Reach,
    workload::reach::{self, innermost},
};

/// More than any list of tools needs; a server cannot fill our memory.
const MOST_BYTES: usize = 4 << 20;
const MOST_TOOLS: usize = 1000;
const SESSION: &str = "mcp-session-id";

/// Knows how to get to a server from where this process runs.
#[derive(Clone)]
pub struct Asker {
    client: Client,
    reach: Reach,
    /// What went wrong last, in our words; the transport wraps it beyond recognition.
    fault: Arc<Mutex<Option<String>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{0}")]
    Unreachable(String),
    #[error("the server answered with status {0}")]
    Status(StatusCode),
    #[error("the answer is no MCP message: {0}")]
    Decode(String),
}

impl Asker {
    /// `client` is that of the API server; directly reached servers get a plain one.
    pub fn new(client: Client, reach: Reach) -> Self {
        let client = reach::client(client, reach);
        Self {
            client,
            reach,
            fault: Arc::default(),
        }
    }

    /// The names of the tools, sorted.
    pub fn tools(
        &self,
        namespace: &str,
        service: &str,
        address: &str,
    ) -> impl Future<Output = Answer<Vec<String>>> + Send + 'static {
        let base = reach::base(self.reach, namespace, service, address, PORT);
        let asker = Self {
            fault: Arc::default(),
            ..self.clone()
        };
        async move {
            let mut why = String::new();
            // Where today's servers answer, and where some older ones do.
            for path in ["/mcp", "/"] {
                match list(asker.clone(), format!("{base}{path}")).await {
                    Ok(tools) => return Ok(tools),
                    Err(fault) if why.is_empty() => why = fault,
                    Err(_) => {}
                }
            }
            Err(why)
        }
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, McpError> {
        self.client
            .send(request)
            .await
            .map_err(|error| self.note(Fault::Unreachable(innermost(&error))))
    }

    fn note(&self, fault: Fault) -> McpError {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.to_string());
        McpError::Client(fault)
    }

    fn explain(&self, error: impl ToString) -> String {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        fault.unwrap_or_else(|| error.to_string())
    }
}

async fn list(asker: Asker, uri: String) -> Result<Vec<String>, String> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(uri);
    config.allow_stateless = true;
    let transport = StreamableHttpClientTransport::with_client(asker.clone(), config);
    let client = ().serve(transport).await.map_err(|error| asker.explain(error))?;
    let listed = client
        .list_all_tools()
        .await
        .map_err(|error| asker.explain(error));
    let _ = client.cancel().await;
    let mut names: Vec<String> = listed?
        .into_iter()
        .take(MOST_TOOLS)
        .map(|tool| tool.name.into_owned())
        .collect();
    names.sort();
    Ok(names)
}

type McpError = StreamableHttpError<Fault>;

impl StreamableHttpClient for Asker {
    type Error = Fault;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, McpError> {
        let body =
            serde_json::to_vec(&message).map_err(|error| self.note(Fault::Decode(error.to_string())))?;
        let request = request("POST", &uri, session_id.as_deref(), &custom_headers, body)?;
        let response = self.send(request).await?;
        let status = response.status();
        if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !status.is_success() {
            return Err(self.note(Fault::Status(status)));
        }
        let session = header(&response, SESSION);
        let kind = header(&response, "content-type");
        if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return Ok(StreamableHttpPostResponse::Sse(events(response), session));
        }
        let bytes = Limited::new(response.into_body(), MOST_BYTES)
            .collect()
            .await
            .map_err(|error| self.note(Fault::Unreachable(error.to_string())))?
            .to_bytes();
        let message: ServerJsonRpcMessage =
            serde_json::from_slice(&bytes).map_err(|error| self.note(Fault::Decode(error.to_string())))?;
        Ok(StreamableHttpPostResponse::Json(message, session))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), McpError> {
        let request = request("DELETE", &uri, Some(&session_id), &custom_headers, Vec::new())?;
        self.send(request).await?;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, McpError> {
        let request = request("GET", &uri, session_id.as_deref(), &custom_headers, Vec::new())?;
        let response = self.send(request).await?;
        if response.status().is_success() {
            Ok(events(response))
        } else {
            Err(McpError::ServerDoesNotSupportSse)
        }
    }
}

fn request(
    method: &str,
    uri: &str,
    session: Option<&str>,
    custom: &HashMap<HeaderName, HeaderValue>,
    body: Vec<u8>,
) -> Result<Request<Body>, McpError> {
    let mut request = Request::builder()
        .method(method)
        .uri(uri)
        .header(header::ACCEPT, "application/json, text/event-stream")
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(session) = session {
        request = request.header(SESSION, session);
    }
    for (name, value) in custom {
        request = request.header(name, value);
    }
    request
        .body(Body::from(body))
        .map_err(|error| McpError::Client(Fault::Decode(error.to_string())))
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    response
        .headers()
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(ToOwned::to_owned)
}

fn events(response: Response<Body>) -> BoxStream<'static, Result<Sse, SseError>> {
    SseStream::new(Limited::new(response.into_body(), MOST_BYTES).map_err(std::io::Error::other)).boxed()
}
