//! What every request passes before its handler: token, rate, right, deadline.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{ConnectInfo, Request, State},
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use gantry_fleet_api::Operation;
use gantry_fleet_domain::{access::Caller, origin, rate::Answer};

use super::{
    App,
    access::action,
    answer::{Trace, put},
};
use crate::{Error, infrastructure::tokens::Rejected, orchestrator::people};

const FORWARDED_FOR: &str = "x-forwarded-for";
/// Registering asks other servers, which have deadlines of their own below this.
const DEADLINE: Duration = Duration::from_secs(90);

pub async fn guard(
    State((app, operation)): State<(App, Operation)>,
    mut request: Request,
    next: Next,
) -> Response {
    let begin = Instant::now();
    let mut limit = None;
    let response = match admit(&app, operation, &mut request, &mut limit).await {
        Ok(()) => match tokio::time::timeout(DEADLINE, next.run(request)).await {
            Ok(response) => response,
            Err(_) => Error::Unavailable {
                code: "TIMEOUT",
                message: "it took too long; look whether it was done before you try again".to_owned(),
            }
            .into_response(),
        },
        Err(error) => error.into_response(),
    };
    let mut response = response;
    tell(&app, &mut response, limit);
    let (status, took) = (response.status().as_u16(), begin.elapsed());
    app.fleet.metrics.answered(operation.id(), status, took);
    log(operation, status, took, response.extensions().get::<Arc<Error>>());
    response
}

/// What is left, in the usual headers.
fn tell(app: &App, response: &mut Response, limit: Option<Answer>) {
    let Some(limit) = limit else { return };
    let seconds = limit.full_after.as_secs();
    for (name, value) in [
        ("x-ratelimit-limit", limit.limit.to_string()),
        ("x-ratelimit-remaining", limit.remaining.to_string()),
        (
            "x-ratelimit-reset",
            (app.fleet.now().as_second() + seconds).to_string(),
        ),
    ] {
        put(response, HeaderName::from_static(name), &value);
    }
}

/// One line for each request that may change something; those that only look are many, and told on request.
fn log(operation: Operation, status: u16, took: Duration, error: Option<&Arc<Error>>) {
    let (operation, reads) = (operation.id(), operation.only_reads());
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let code = error.map(|error| error.code());
    let code = code.as_deref();
    if reads {
        tracing::debug!(operation, status, duration_ms, code, "a request was answered");
    } else {
        tracing::info!(operation, status, duration_ms, code, "a request was answered");
    }
}

async fn admit(
    app: &App,
    operation: Operation,
    request: &mut Request,
    limit: &mut Option<Answer>,
) -> Result<(), Error> {
    request.extensions_mut().insert(operation);
    let Some(right) = action(operation) else {
        let who = from(app, request);
        let here = count_here(app, operation, &who, limit)?;
        return count(app, operation, &who, here, limit).await;
    };
    let header = request.headers().get(header::AUTHORIZATION).cloned();
    let caller = match authenticate(app, header).await {
        Ok(caller) => caller,
        Err(refusal) => return Err(refuse(app, refusal, &from(app, request), limit)),
    };
    // Before it can be refused: who was is what the line is read for.
    tracing::Span::current().record("user", caller.subject.as_str());
    // The database is asked for nobody who has asked too often.
    let here = count_here(app, operation, &caller.subject, limit)?;
    people::still_there(&app.fleet, &caller).await?;
    count(app, operation, &caller.subject, here, limit).await?;
    if let Err(denied) = caller.may(right, None) {
        let trace = request
            .extensions()
            .get::<Trace>()
            .map(|trace| trace.id.clone())
            .unwrap_or_default();
        people::denied(&app.fleet, &caller, &trace, operation.id()).await?;
        return Err(Error::Forbidden(denied.to_string()));
    }
    request.extensions_mut().insert(caller);
    Ok(())
}

/// Whom those who have no token are counted as.
fn from(app: &App, request: &Request) -> String {
    let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>() else {
        return String::new();
    };
    let lines = request.headers().get_all(FORWARDED_FOR).iter();
    // A line that is no text is not of a proxy either.
    let lines = lines.map(|line| line.to_str().unwrap_or_default());
    origin::counted_by(origin::sender(peer.ip(), lines, &app.trusted_proxies))
}

/// Counts a request by itself, without anybody else's word.
fn count_here(
    app: &App,
    operation: Operation,
    who: &str,
    limit: &mut Option<Answer>,
) -> Result<Option<Answer>, Error> {
    let here = app.rates.take(who, operation, app.fleet.now());
    match here {
        Some(answer) if !answer.allowed => {
            *limit = here;
            Err(too_many(&answer))
        }
        _ => Ok(here),
    }
}

/// And with those of the other replicas.
async fn count(
    app: &App,
    operation: Operation,
    who: &str,
    here: Option<Answer>,
    limit: &mut Option<Answer>,
) -> Result<(), Error> {
    let Some(here) = here else { return Ok(()) };
    let (fleet, rates) = (&app.fleet, &app.rates);
    let answer = rates.share(&fleet.pool, who, operation, here, fleet.now()).await;
    *limit = Some(answer);
    if answer.allowed {
        Ok(())
    } else {
        Err(too_many(&answer))
    }
}

fn too_many(answer: &Answer) -> Error {
    Error::TooMany {
        retry_after: answer.retry_after.as_secs().max(1),
    }
}

/// Why somebody is not let in.
enum Refusal {
    /// What they show, if anything, nobody has signed whom we know: anybody can send that, as often as they like.
    Stranger(&'static str),
    /// They were known, and are not any more; or we cannot say.
    Known(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Known(error)
    }
}

/// Counts strangers by where they are. Only they are refused for their number: a token that counts, or did, is looked at
/// whoever else is behind the same address.
fn refuse(app: &App, refusal: Refusal, who: &str, limit: &mut Option<Answer>) -> Error {
    let words = match refusal {
        Refusal::Stranger(words) => words,
        Refusal::Known(error) => return error,
    };
    let answer = app.rates.take_stranger(who, app.fleet.now());
    if answer.allowed {
        return Error::Unauthorized(words);
    }
    let error = too_many(&answer);
    *limit = Some(answer);
    error
}

/// Who it is by the token. Whether they are still there is asked later, of the database.
async fn authenticate(app: &App, header: Option<HeaderValue>) -> Result<Caller, Refusal> {
    let Some(header) = header else {
        return Err(Refusal::Stranger(
            "a token is needed: send it as Authorization: Bearer TOKEN",
        ));
    };
    let token = header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .ok_or(Refusal::Stranger(
            "the Authorization header is not of the form Bearer TOKEN",
        ))?;
    let (verifier, now) = (&app.fleet.verifier, app.fleet.now());
    let mut verdict = verifier.verify(token, now);
    if verdict == Err(Rejected::UnknownKey) && verifier.reload_for_unknown().await {
        verdict = verifier.verify(token, now);
    }
    verdict.map_err(|rejected| match rejected {
        Rejected::Expired => Refusal::Known(Error::Unauthorized("the token has expired")),
        Rejected::OwnName => Refusal::Known(Error::Unauthorized(
            "the token is for a subject that begins with system:, a name of the server itself",
        )),
        Rejected::UnknownKey | Rejected::Invalid => Refusal::Stranger("the token is not valid here"),
    })
}

/// Paths and methods that there are not. Strangers do not learn which ones there are.
pub async fn unknown(State(app): State<App>, request: Request) -> Response {
    let name = format!("{} {}", request.method(), request.uri().path());
    let header = request.headers().get(header::AUTHORIZATION).cloned();
    let who = from(&app, &request);
    drop(request);
    let mut limit = None;
    let error = match authenticate(&app, header).await {
        Ok(caller) => no_such_path(&app, &caller, name, &mut limit).await,
        Err(refusal) => refuse(&app, refusal, &who, &mut limit),
    };
    let mut response = error.into_response();
    tell(&app, &mut response, limit);
    response
}

/// Those who may know are counted as well, each by themselves: nobody else is refused for what they ask.
async fn no_such_path(app: &App, caller: &Caller, name: String, limit: &mut Option<Answer>) -> Error {
    let answer = app.rates.take_unknown(&caller.subject, app.fleet.now());
    *limit = Some(answer);
    if !answer.allowed {
        return too_many(&answer);
    }
    match people::still_there(&app.fleet, caller).await {
        Ok(()) => Error::NotFound { kind: "path", name },
        Err(gone) => gone,
    }
}
