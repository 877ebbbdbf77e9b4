//! What can go wrong in a use case, in the API's own codes. No value of a request is repeated except names.

use gantry_fleet_api::Detail;
use gantry_fleet_domain::fields::Complaints;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the request is not valid")]
    Invalid(Vec<Detail>),
    #[error("{message}")]
    Refused {
        code: &'static str,
        message: String,
        details: Vec<Detail>,
    },
    #[error("there is no {kind} {name:?}")]
    NotFound { kind: &'static str, name: String },
    #[error("{message}")]
    Conflict { code: &'static str, message: String },
    #[error(
        "it has changed since you looked: your If-Match does not fit; get it again and repeat your change"
    )]
    Changed,
    #[error("{0}")]
    Unauthorized(&'static str),
    #[error("{0}")]
    Forbidden(String),
    #[error("{message}")]
    Unavailable { code: &'static str, message: String },
    #[error("too many requests; try again in {retry_after} s")]
    TooMany { retry_after: i64 },
    #[error("the database did not do its part")]
    Database(#[source] sqlx::Error),
    #[error("{what}")]
    Internal {
        what: &'static str,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Error {
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::Invalid(vec![Detail {
            field: field.to_owned(),
            message: message.into(),
        }])
    }

    pub fn internal(what: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Internal {
            what,
            source: Some(Box::new(source)),
        }
    }

    pub fn refused(code: &'static str, message: impl Into<String>) -> Self {
        Self::Refused {
            code,
            message: message.into(),
            details: Vec::new(),
        }
    }

    pub fn code(&self) -> String {
        match self {
            Self::Invalid(_) => "VALIDATION_ERROR".to_owned(),
            Self::Refused { code, .. } | Self::Conflict { code, .. } | Self::Unavailable { code, .. } => {
                (*code).to_owned()
            }
            Self::NotFound { kind, .. } => format!("{}_NOT_FOUND", kind.to_ascii_uppercase()),
            Self::Changed => "PRECONDITION_FAILED".to_owned(),
            Self::Unauthorized(_) => "UNAUTHORIZED".to_owned(),
            Self::Forbidden(_) => "FORBIDDEN".to_owned(),
            Self::TooMany { .. } => "RATE_LIMIT_EXCEEDED".to_owned(),
            Self::Database(error) if is_outage(error) => "DATABASE_UNAVAILABLE".to_owned(),
            Self::Database(_) | Self::Internal { .. } => "INTERNAL_ERROR".to_owned(),
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::Refused {
                code: "PAYLOAD_TOO_LARGE",
                ..
            } => 413,
            Self::Refused {
                code: "UNSUPPORTED_MEDIA_TYPE",
                ..
            } => 415,
            Self::Invalid(_) | Self::Refused { .. } => 400,
            Self::Unauthorized(_) => 401,
            Self::Forbidden(_) => 403,
            Self::NotFound { .. } => 404,
            Self::Conflict { .. } => 409,
            Self::Changed => 412,
            Self::TooMany { .. } => 429,
            Self::Unavailable { .. } => 503,
            Self::Database(error) if is_outage(error) => 503,
            Self::Database(_) | Self::Internal { .. } => 500,
        }
    }
}

/// Whether trying again later can help: the server is away, restarting or full.
pub fn is_outage(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        // Connection exceptions, resources, operator's intervention, system errors, transactions that lost a race, and
        // what is not available at the moment: a lock, or a database that takes no connections.
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            ["08", "40", "53", "55", "57", "58"]
                .iter()
                .any(|class| code.starts_with(class))
        }),
        _ => false,
    }
}

/// Whether the database ended it for the time that it took, and not for anything that is wrong with the database.
fn is_too_slow(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .is_some_and(|code| code == "57014")
}

/// Whether a row is there already; and by which constraint.
pub fn is_taken(error: &sqlx::Error, constraint: &str) -> bool {
    error
        .as_database_error()
        .is_some_and(|error| error.is_unique_violation() && error.constraint() == Some(constraint))
}

/// Whether the database cannot keep a value that was given to it: text or JSON with a zero byte, or a time out of its range.
fn is_unkeepable(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .is_some_and(|code| ["22021", "22P05", "22008"].contains(&code.as_ref()))
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if is_unkeepable(&error) {
            return Self::invalid(
                "request",
                "has a zero byte in a text, or a time that is out of range; neither can be kept",
            );
        }
        if is_too_slow(&error) {
            return Self::Unavailable {
                code: "QUERY_TIMEOUT",
                message: "the database was at it for too long, so nothing was done; narrow what you ask for (a filter, a smaller offset), or try again later"
                    .to_owned(),
            };
        }
        Self::Database(error)
    }
}

impl From<Complaints> for Error {
    fn from(complaints: Complaints) -> Self {
        Self::Invalid(
            complaints
                .0
                .into_iter()
                .map(|complaint| Detail {
                    field: complaint.field,
                    message: complaint.message,
                })
                .collect(),
        )
    }
}
