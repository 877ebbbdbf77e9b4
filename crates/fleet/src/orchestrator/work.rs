//! One request that changes something: one transaction with the change, the audit entry and the answer, so that all of
//! them are there or none. A request that is repeated with its key gets the first answer again, or
//! where only the name of what it is about was kept, what there is of that by then.

use gantry_fleet_api::Operation;
use gantry_fleet_domain::access::Caller;
use gantry_ledger::Entry;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use super::{Fleet, marks};
use crate::{
    Error,
    infrastructure::store::{audit, idempotency, people, time},
};

/// Of a token whose user was removed, or has another password.
pub(super) const NO_USER: &str = "the user of this token was removed, or has changed the password since";

/// What is known of a request, whatever it is about.
#[derive(Clone, Debug)]
pub struct Ask {
    pub caller: Caller,
    pub operation: Operation,
    pub trace_id: String,
    /// `Idempotency-Key`.
    pub key: Option<String>,
    /// Of path and body: what the key stands for. Not to be kept as it is, see `marks`.
    pub digest: [u8; 32],
    /// `If-Match`.
    pub if_match: Option<String>,
    /// When it came.
    pub begun: tokio::time::Instant,
}

/// What is answered.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
    pub revision: Option<i64>,
    pub replayed: bool,
    /// Whose state this is, where that is kept for a request that is repeated, and not the body.
    pub about: Option<String>,
}

impl Reply {
    pub fn json(status: u16, body: &impl Serialize, revision: Option<i64>) -> Result<Self, Error> {
        Ok(Self {
            status,
            body: to_json(body)?,
            revision,
            replayed: false,
            about: None,
        })
    }

    /// That something is not there any more.
    pub fn gone() -> Self {
        Self {
            status: 204,
            body: Vec::new(),
            revision: None,
            replayed: false,
            about: None,
        }
    }
}

fn to_json(body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body).map_err(|error| Error::internal("failed to write the answer", error))
}

/// What is written down of what was done.
#[derive(Debug)]
pub struct Record<'r> {
    pub action: &'r str,
    pub outcome: &'r str,
    pub target_kind: &'r str,
    pub target_id: &'r str,
    /// What may have to be erased one day. The chain holds only a commitment to it.
    pub details: Value,
}

pub struct Work<'f> {
    fleet: &'f Fleet,
    transaction: Transaction<'static, Postgres>,
    pub person: Uuid,
    pub now: Timestamp,
    trace_id: Option<String>,
    key: Option<String>,
}

pub enum Begun<'f> {
    Fresh(Work<'f>),
    Repeated(Reply),
}

impl Ask {
    /// The first answer to a request that is repeated; asked before anything slow is done for it.
    pub async fn answered(&self, fleet: &Fleet) -> Result<Option<Reply>, Error> {
        let Some(key) = &self.key else { return Ok(None) };
        let mut connection = fleet.pool.acquire().await?;
        let person = match self.caller.user {
            Some(user) => Some(user.id),
            None => people::known(&mut connection, &self.caller.subject).await?,
        };
        let Some(person) = person else { return Ok(None) };
        let Some(answered) = idempotency::find(&mut connection, person, key).await? else {
            return Ok(None);
        };
        drop(connection);
        let mark = marks::mark(fleet, &self.digest).await?;
        self.replay(answered, &mark).map(Some)
    }

    fn replay(&self, answered: idempotency::Answered, mark: &[u8]) -> Result<Reply, Error> {
        if answered.operation != self.operation.id() || answered.request != mark {
            return Err(Error::Conflict {
                code: "IDEMPOTENCY_KEY_REUSED",
                message: "this Idempotency-Key was used for another request; take a new one for each"
                    .to_owned(),
            });
        }
        let is_there = answered.body.is_some() || answered.about.is_some();
        match answered.status.filter(|_| is_there) {
            Some(status) => Ok(Reply {
                status: u16::try_from(status).unwrap_or(500),
                body: answered.body.unwrap_or_default(),
                revision: answered.revision,
                replayed: true,
                about: answered.about,
            }),
            None => Err(Error::Conflict {
                code: "REQUEST_IN_PROGRESS",
                message: "the same request is being worked on; ask again in a moment".to_owned(),
            }),
        }
    }

    /// Whether what is there is what the caller saw.
    pub fn check_match(&self, revision: i64) -> Result<(), Error> {
        let Some(wanted) = &self.if_match else {
            return Ok(());
        };
        let ours = etag(revision);
        let fits = |tag: &str| tag.trim() == "*" || tag.trim() == ours;
        if wanted.split(',').any(fits) {
            Ok(())
        } else {
            Err(Error::Changed)
        }
    }

    pub async fn begin<'f>(&self, fleet: &'f Fleet) -> Result<Begun<'f>, Error> {
        // Before the transaction: who holds one connection must not wait for another.
        let keyed = match &self.key {
            Some(key) => Some((key, marks::mark(fleet, &self.digest).await?)),
            None => None,
        };
        let mut work = Work::by(fleet, &self.caller, &self.trace_id).await?;
        if let Some((key, mark)) = keyed {
            let taken = idempotency::take(
                &mut work.transaction,
                work.person,
                key,
                self.operation.id(),
                &mark,
                time(work.now),
            )
            .await?;
            if !taken {
                let answered = idempotency::find(&mut work.transaction, work.person, key).await?;
                return match answered {
                    Some(answered) => self.replay(answered, &mark).map(Begun::Repeated),
                    None => Err(Error::Conflict {
                        code: "REQUEST_IN_PROGRESS",
                        message: "the same request is being worked on; ask again in a moment".to_owned(),
                    }),
                };
            }
            work.key = Some(key.clone());
        }
        Ok(Begun::Fresh(work))
    }
}

pub fn etag(revision: i64) -> String {
    format!("\"{revision}\"")
}

impl<'f> Work<'f> {
    /// Work in somebody's name that is no request, such as a background task's.
    pub async fn of(fleet: &'f Fleet, subject: &str, trace_id: Option<&str>) -> Result<Self, Error> {
        let mut connection = fleet.pool.acquire().await?;
        let person = people::id_of(&mut connection, subject).await?;
        drop(connection);
        let transaction = fleet.pool.begin().await?;
        Ok(Self {
            fleet,
            transaction,
            person,
            now: fleet.now(),
            trace_id: trace_id.map(str::to_owned),
            key: None,
        })
    }

    /// Work of somebody who asked for it. A local user may have been removed since their token was looked at: then nothing
    /// is done in their name, and the name that was erased does not come back.
    pub async fn by(fleet: &'f Fleet, caller: &Caller, trace_id: &str) -> Result<Self, Error> {
        match caller.user {
            Some(user) => Self::by_user(fleet, user.id, Some(user.generation), trace_id).await,
            None => Self::of(fleet, &caller.subject, Some(trace_id)).await,
        }
    }

    /// Work of a local user, with a token of this generation if with one.
    pub async fn by_user(
        fleet: &'f Fleet,
        user: Uuid,
        generation: Option<i32>,
        trace_id: &str,
    ) -> Result<Self, Error> {
        let mut transaction = fleet.pool.begin().await?;
        if !people::hold_user(&mut transaction, user, generation).await? {
            return Err(Error::Unauthorized(NO_USER));
        }
        Ok(Self {
            fleet,
            transaction,
            person: user,
            now: fleet.now(),
            trace_id: Some(trace_id.to_owned()),
            key: None,
        })
    }

    pub fn db(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    /// Adds an entry to the audit log. The head is held from here to the end of the transaction, so this comes last.
    pub async fn record(&mut self, record: Record<'_>) -> Result<(), Error> {
        let head = audit::lock_head(&mut self.transaction).await?;
        let mut salt = [0; 16];
        aws_lc_rs::rand::fill(&mut salt).map_err(|error| Error::internal("failed to make a salt", error))?;
        let details = (!record.details.is_null()).then(|| record.details.to_string());
        let body = json!({
            "action": record.action,
            "outcome": record.outcome,
            "actor": self.person,
            "target": {"kind": record.target_kind, "id": record.target_id},
            "trace": self.trace_id,
            "details": details.as_deref().map(|text| commitment(&salt, text)),
        });
        let entry = Entry::next(&head, self.now.to_string(), body);
        let head = entry.head();
        let signed = self
            .fleet
            .signer
            .as_ref()
            .map(|signer| json!(signer.sign(audit::LEDGER, &head)));
        let new = audit::NewAudit {
            at: time(self.now),
            action: record.action,
            outcome: record.outcome,
            actor: self.person,
            target_kind: record.target_kind,
            target_id: record.target_id,
            trace_id: self.trace_id.as_deref(),
            details: details.as_deref().map(|text| (&salt[..], text)),
        };
        audit::append(
            &mut self.transaction,
            &head,
            signed.as_ref(),
            &entry.to_line(),
            &new,
        )
        .await?;
        Ok(())
    }

    /// Commits, and remembers the answer for a request that is repeated.
    pub async fn finish(mut self, reply: Reply) -> Result<Reply, Error> {
        if let Some(key) = &self.key {
            idempotency::answer(
                &mut self.transaction,
                self.person,
                key,
                idempotency::Kept {
                    status: reply.status,
                    body: reply.about.is_none().then_some(reply.body.as_slice()),
                    about: reply.about.as_deref(),
                    revision: reply.revision,
                },
            )
            .await?;
        }
        self.transaction.commit().await?;
        Ok(reply)
    }

    pub async fn commit(self) -> Result<(), Error> {
        self.transaction.commit().await?;
        Ok(())
    }
}

/// Binds an entry to its details without telling anything of them once salt and text are gone.
pub fn commitment(salt: &[u8], text: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"gantry-fleet/audit-details\0");
    hash.update(salt);
    hash.update(text.as_bytes());
    gantry_fleet_domain::hex(&hash.finalize())
}
