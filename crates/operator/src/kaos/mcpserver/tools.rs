//! Asking a running server for its tools, over MCP.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use gantry_kit::probe::Answer;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use rmcp::{
    Peer, RoleClient, ServiceError, ServiceExt,
    model::{ClientJsonRpcMessage, PaginatedRequestParams, ServerJsonRpcMessage},
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

/// More than any list of tools needs, all its pages together; a server cannot fill our memory.
const MOST_BYTES: usize = 4 << 20;
const MOST_TOOLS: usize = 1000;
/// A name is for people and models; together they must leave room in an object for the rest of the status.
const LONGEST_NAME: usize = 256;
const MOST_NAMES: usize = 64 << 10;
/// A page may be empty and still name another one.
const MOST_PAGES: usize = 200;
const SESSION: &str = "mcp-session-id";

/// Knows how to get to a server from where this process runs.
#[derive(Clone)]
pub struct Asker {
    client: Client,
    reach: Reach,
    /// What went wrong last, in our words; the transport wraps it beyond recognition.
    fault: Arc<Mutex<Option<String>>>,
    /// Bytes that the server may still send.
    left: Arc<AtomicUsize>,
}

#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{0}")]
    Unreachable(String),
    #[error("the server answered with status {0}")]
    Status(StatusCode),
    #[error("the answer is no MCP message: {0}")]
    Decode(String),
    #[error("its list of tools is longer than {} MiB", MOST_BYTES >> 20)]
    TooLong,
}

/// The tools of a server as they are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tools {
    /// Sorted, each once.
    pub names: Vec<String>,
    /// How many more it lists, with names that are too long for a status, or too many.
    pub left_out: usize,
}

impl Tools {
    fn of(mut names: Vec<String>) -> Self {
        names.sort();
        names.dedup();
        let listed = names.len();
        let mut room = MOST_NAMES;
        names.retain(|name| {
            let fits = name.len() <= LONGEST_NAME.min(room);
            if fits {
                room -= name.len();
            }
            fits
        });
        Self {
            left_out: listed - names.len(),
            names,
        }
    }
}

impl Asker {
    /// `client` is that of the API server; directly reached servers get a plain one.
    pub fn new(client: Client, reach: Reach) -> Self {
        let client = reach::client(client, reach);
        Self {
            client,
            reach,
            fault: Arc::default(),
            left: Arc::default(),
        }
    }

    pub fn tools(
        &self,
        namespace: &str,
        service: &str,
        address: &str,
    ) -> impl Future<Output = Answer<Tools>> + Send + 'static {
        let base = reach::base(self.reach, namespace, service, address, PORT);
        let asker = self.clone();
        async move {
            let mut why = String::new();
            // Where today's servers answer, and where some older ones do.
            for path in ["/mcp", "/"] {
                let asker = Self {
                    fault: Arc::default(),
                    left: Arc::new(AtomicUsize::new(MOST_BYTES)),
                    ..asker.clone()
                };
                match list(asker, format!("{base}{path}")).await {
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

    /// The body of a response, as far as the server may still send.
    fn bounded(&self, response: Response<Body>) -> UnsyncBoxBody<Bytes, BoxError> {
        let left = self.left.clone();
        let room = left.load(Ordering::Relaxed);
        let counted = Limited::new(response.into_body(), room).map_frame(move |frame| {
            let read = frame.data_ref().map_or(0, Bytes::len);
            let rest = left.load(Ordering::Relaxed).saturating_sub(read);
            left.store(rest, Ordering::Relaxed);
            frame
        });
        counted.boxed_unsync()
    }

    fn events(&self, response: Response<Body>) -> BoxStream<'static, Result<Sse, SseError>> {
        let asker = self.clone();
        let body = self.bounded(response).map_err(move |error| {
            if error.is::<LengthLimitError>() {
                asker.note(Fault::TooLong);
            }
            std::io::Error::other(error)
        });
        SseStream::new(body).boxed()
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

async fn list(asker: Asker, uri: String) -> Result<Tools, String> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(uri);
    config.allow_stateless = true;
    let transport = StreamableHttpClientTransport::with_client(asker.clone(), config);
    let client = ().serve(transport).await.map_err(|error| asker.explain(error))?;
    let listed = pages(&client).await.map_err(|error| asker.explain(error));
    let _ = client.cancel().await;
    Ok(Tools::of(listed?))
}

/// Page by page, and not for ever: a server may always name a next one.
async fn pages(server: &Peer<RoleClient>) -> Result<Vec<String>, ServiceError> {
    let mut names = Vec::new();
    let mut cursor = None;
    for _ in 0..MOST_PAGES {
        let asked = PaginatedRequestParams::default().with_cursor(cursor);
        let page = server.list_tools(Some(asked)).await?;
        let room = MOST_TOOLS - names.len();
        names.extend(
            page.tools
                .into_iter()
                .take(room)
                .map(|tool| tool.name.into_owned()),
        );
        cursor = page.next_cursor;
        if cursor.is_none() || names.len() == MOST_TOOLS {
            break;
        }
    }
    Ok(names)
}

type McpError = StreamableHttpError<Fault>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

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
            return Ok(StreamableHttpPostResponse::Sse(self.events(response), session));
        }
        let bytes = self
            .bounded(response)
            .collect()
            .await
            .map_err(|error| {
                self.note(if error.is::<LengthLimitError>() {
                    Fault::TooLong
                } else {
                    Fault::Unreachable(error.to_string())
                })
            })?
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
            Ok(self.events(response))
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

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::{Value, json};

    use super::*;

    /// A server whose every page of tools, each of `per_page` with so long a description, names a next one. Returns what
    /// it was asked for and the answer.
    async fn asked(per_page: usize, description: usize, stream: bool) -> (usize, Answer<Tools>) {
        let pages = Arc::new(AtomicUsize::new(0));
        let counter = pages.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let pages = counter.clone();
            async move {
                let respond = |status: StatusCode, kind: &str, text: String| {
                    let builder = Response::builder().status(status).header("content-type", kind);
                    builder.body(Body::from(text.into_bytes()))
                };
                if request.method() != Method::POST {
                    return respond(StatusCode::METHOD_NOT_ALLOWED, "text/plain", String::new());
                }
                let bytes = request.into_body().collect().await.unwrap().to_bytes();
                let message: Value = serde_json::from_slice(&bytes).unwrap();
                let result = match message["method"].as_str().unwrap_or_default() {
                    "initialize" => json!({
                        "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                        "serverInfo": {"name": "endless", "version": "1"},
                    }),
                    "tools/list" => {
                        let page = pages.fetch_add(1, Ordering::SeqCst);
                        let tools: Vec<Value> = (0..per_page)
                            .map(|n| {
                                let words = "x".repeat(description);
                                json!({"name": format!("t{page}-{n}"), "description": words, "inputSchema": {"type": "object"}})
                            })
                            .collect();
                        json!({"tools": tools, "nextCursor": (page + 1).to_string()})
                    }
                    _ => return respond(StatusCode::ACCEPTED, "text/plain", String::new()),
                };
                let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
                if stream {
                    let event = format!("event: message\ndata: {reply}\n\n");
                    respond(StatusCode::OK, "text/event-stream", event)
                } else {
                    respond(StatusCode::OK, "application/json", reply)
                }
            }
        });
        let asker = Asker::new(Client::new(service, "ns"), Reach::Proxy);
        let deadline = std::time::Duration::from_secs(20);
        let answer = tokio::time::timeout(deadline, asker.tools("ns", "svc", "")).await;
        (pages.load(Ordering::SeqCst), answer.expect("it ends"))
    }

    #[tokio::test]
    async fn a_list_of_tools_without_end_is_cut() {
        for stream in [false, true] {
            let (pages, tools) = asked(300, 10, stream).await;
            assert_eq!((pages, tools.unwrap().names.len()), (4, MOST_TOOLS));
        }
        let (pages, tools) = asked(0, 0, false).await;
        assert_eq!((pages, tools.unwrap().names.len()), (MOST_PAGES, 0));
    }

    #[tokio::test]
    async fn all_pages_together_are_bounded() {
        let (pages, tools) = asked(1, 1 << 20, false).await;
        let why = tools.unwrap_err();
        assert!(why.contains("longer than 4 MiB"), "{why}");
        // Four for each of the two paths that are tried.
        assert!(pages <= 8, "{pages} pages");
    }

    #[test]
    fn names_fit_into_a_status() {
        let names = ["b", "a", "b", &"x".repeat(LONGEST_NAME), &"y".repeat(2 << 20)].map(ToOwned::to_owned);
        let tools = Tools::of(names.to_vec());
        let told: Vec<usize> = tools.names.iter().map(String::len).collect();
        assert_eq!((told, tools.left_out), (vec![1, 1, LONGEST_NAME], 1));
        let many = (0..MOST_TOOLS).map(|n| format!("{n:0>200}"));
        let tools = Tools::of(many.collect());
        assert_eq!(tools.names.len(), MOST_NAMES / 200);
        assert_eq!(tools.names.len() + tools.left_out, MOST_TOOLS);
    }
}
