//! TLS connections and the requests on them.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_rustls::TlsAcceptor;

use super::{
    access::Access,
    front::FrontProxy,
    path::{Question, Refusal, Version, question},
    render,
    source::Source,
};

const HANDSHAKE: Duration = Duration::from_secs(5);
const HEADERS: Duration = Duration::from_secs(120);
/// API servers keep a few connections each; others have no business here.
const MOST_CONNECTIONS: usize = 256;

/// What a connection is accepted with; replaced when a certificate is renewed or the API server changes its own.
#[derive(Clone)]
pub struct Terms {
    pub config: Arc<ServerConfig>,
    pub front: Arc<FrontProxy>,
}

pub struct Answers {
    pub source: Source,
    pub access: Access,
}

/// Serves for ever; nobody is accepted before there are terms.
pub async fn serve(listener: TcpListener, terms: watch::Receiver<Option<Terms>>, answers: Arc<Answers>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection of the metrics API");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(now) = terms.borrow().clone() else {
            continue;
        };
        let answers = answers.clone();
        tokio::spawn(async move {
            connection(stream, now, answers).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, terms: Terms, answers: Arc<Answers>) {
    let accepting = TlsAcceptor::from(terms.config).accept(stream);
    let stream = match tokio::time::timeout(HANDSHAKE, accepting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a handshake of the metrics API failed");
            return;
        }
        Err(_) => return,
    };
    // The verifier has checked that the authority signed it; the name is left to us.
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let trusted = certificate.is_some_and(|certificate| terms.front.allows(certificate));
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let (answers, front) = (answers.clone(), terms.front.clone());
        async move {
            let (parts, _) = request.into_parts();
            let told = answer(&answers, &front, trusted, &parts).await;
            Ok::<_, Infallible>(respond(told))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the metrics API ended");
    }
}

async fn answer(
    answers: &Answers,
    front: &FrontProxy,
    trusted: bool,
    request: &http::request::Parts,
) -> Result<Value, Refusal> {
    let asked = question(request.uri.path(), request.uri.query())?;
    if asked == Question::Health {
        return Ok(Value::from("ok"));
    }
    let user = trusted.then(|| front.user(&request.headers)).flatten();
    let Some(user) = user else {
        return Err(unauthorized(trusted, &request.headers));
    };
    if request.method != Method::GET {
        return Err(Refusal::new(405, "MethodNotAllowed", "metrics can only be read"));
    }
    let values = match asked {
        Question::Health => return Ok(Value::from("ok")),
        Question::OpenApi2 => return Ok(render::open_api_2()),
        Question::OpenApi3 => return Ok(render::open_api_3()),
        Question::Groups => return Ok(render::groups()),
        Question::Group(name) => return Ok(render::group(name)),
        Question::Resources(version) => return Ok(render::resources(version)),
        Question::Values(values) => values,
    };
    answers.access.check(user, &values).await?;
    let found = answers.source.values(&values).await?;
    let now = Timestamp::now();
    Ok(match values.version {
        Version::External1 => render::external(values.metric, &found, now),
        version => render::custom(version, values.metric, &found, now),
    })
}

fn unauthorized(trusted: bool, headers: &HeaderMap) -> Refusal {
    let why = if trusted {
        "the API server does not say for whom it asks"
    } else {
        "only the API server may ask, with its front proxy's certificate"
    };
    if !trusted && headers.contains_key("x-remote-user") {
        tracing::warn!("a request without the API server's certificate claims to speak for a user");
    }
    Refusal::new(401, "Unauthorized", why)
}

fn respond(told: Result<Value, Refusal>) -> Response<Full<Bytes>> {
    let (status, body) = match told {
        Ok(value) => (StatusCode::OK, value),
        Err(refusal) => (
            StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            render::refusal(&refusal),
        ),
    };
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
