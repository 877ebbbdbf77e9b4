//! Local users: login with lockout, passwords, and removal that takes their name out of everything.

use std::collections::BTreeSet;

use gantry_fleet_api as api;
use gantry_fleet_domain::{
    access::{Caller, LocalUser, Role},
    cluster::Environment,
    fields::Complaints,
    lockout,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Ask, Begun, Fleet, Record, Reply, Work, work::NO_USER};
use crate::{
    Error,
    error::is_taken,
    infrastructure::{
        store::{
            Window, audit, idempotency,
            people::{self as store, UserRow},
            time,
        },
        tokens::{FileIssuer, Grant},
    },
};

const KIND: &str = "user";
const LOGIN: &str = "user.login";
const PASSWORD: &str = "user.password-changed";
const SHORTEST_PASSWORD: usize = 12;
const LONGEST_PASSWORD: usize = 1024;
/// Who a login under an unknown name is recorded as, and of whom.
const ANYBODY: &str = "system:anybody";
const UNKNOWN: &str = "unknown";
/// The same words for a wrong name, a wrong password and a locked account: none is told, nor that a guess was right.
const WRONG: &str = "the username or the password is wrong, or too many logins failed and it has to wait";

/// Checks a password and issues a token.
pub async fn login(fleet: &Fleet, trace_id: &str, body: api::Login) -> Result<api::LoggedIn, Error> {
    let issuer = issuer(fleet)?;
    if body.password.0.len() > LONGEST_PASSWORD || body.username.len() > 256 {
        return Err(Error::Unauthorized(WRONG));
    }
    let mut connection = fleet.pool.acquire().await?;
    let user = store::user(&mut connection, &body.username).await?;
    drop(connection);
    let now = fleet.now();
    // As if there were none where it is locked: no guess is right then, and how long it takes tells nothing.
    let stored = user
        .as_ref()
        .filter(|user| lockout::still_locked(user.locked_until.map(Into::into), now).is_none())
        .map(|user| user.password_hash.clone());
    let fits = fleet.passwords.matches(body.password.0, stored, now).await?;
    let mut work = match &user {
        Some(user) => Work::by_user(fleet, user.id, None, trace_id)
            .await
            .map_err(|error| match error {
                Error::Unauthorized(_) => Error::Unauthorized(WRONG),
                other => other,
            })?,
        None => Work::of(fleet, ANYBODY, Some(trace_id)).await?,
    };
    // Of nobody, where there is no user: the same is done and written down, so that how long it takes does not tell either
    // that there is none.
    let id = user.as_ref().map_or_else(Uuid::new_v4, |user| user.id);
    let guess = guessed(&mut work, id, fits, now).await?;
    let Some(user) = user.filter(|_| guess.is_right) else {
        // What was typed as a name is not kept: it may be a password.
        let target = if work.person == id {
            id.to_string()
        } else {
            UNKNOWN.to_owned()
        };
        let details = json!({"locked": guess.was_locked});
        note(work, LOGIN, "Failed", &target, details).await?;
        return Err(Error::Unauthorized(WRONG));
    };
    let id = user.id.to_string();
    let answer = logged_in(fleet, issuer, user, now).await?;
    note(work, LOGIN, "Succeeded", &id, Value::Null).await?;
    Ok(answer)
}

fn issuer(fleet: &Fleet) -> Result<&FileIssuer, Error> {
    fleet.issuer.as_ref().ok_or_else(|| {
        Error::refused(
            "LOGIN_DISABLED",
            "this server has no local users; get a token from your identity provider",
        )
    })
}

/// What became of a guess at a password.
struct Guess {
    is_right: bool,
    was_locked: bool,
}

/// Counts it. Looked at when the guess is known, one after the other: many at once are no more guesses.
async fn guessed(work: &mut Work<'_>, id: Uuid, fits: bool, now: Timestamp) -> Result<Guess, Error> {
    let noted = store::locked_until(work.db(), id).await?.map(Into::into);
    let locked = lockout::still_locked(noted, now);
    let guess = Guess {
        is_right: fits && locked.is_none(),
        was_locked: locked.is_some(),
    };
    if guess.is_right {
        store::succeeded(work.db(), id).await?;
        return Ok(guess);
    }
    let until = match locked {
        Some(until) => Some(until),
        None => lockout::locked_until(store::failed(work.db(), id).await?, now),
    };
    store::set_lock(work.db(), id, until.map(time)).await?;
    Ok(guess)
}

/// A token for somebody who has proven to be this user.
async fn logged_in(
    fleet: &Fleet,
    issuer: &FileIssuer,
    user: UserRow,
    now: Timestamp,
) -> Result<api::LoggedIn, Error> {
    let roles: BTreeSet<Role> = user.roles.iter().filter_map(|role| role.parse().ok()).collect();
    let environments: Option<BTreeSet<Environment>> = user
        .environments
        .as_ref()
        .map(|names| names.iter().filter_map(|name| name.parse().ok()).collect());
    let grant = Grant {
        subject: &user.username,
        roles: &roles,
        environments: environments.as_ref(),
        user: Some(LocalUser {
            id: user.id,
            generation: user.generation,
        }),
        lifetime: fleet.token_lifetime,
    };
    let (token, expires_at) = issuer
        .issue(&grant, now)
        .map_err(|error| Error::internal("failed to issue a token", error))?;
    if fleet.verifier.verify(&token, now).is_err() {
        // The secret is a new one.
        fleet.verifier.reload_secrets().await;
    }
    Ok(api::LoggedIn {
        token,
        expires_at,
        user: api::LoggedInUser {
            role: roles
                .first()
                .map(|role| role.name().to_owned())
                .unwrap_or_default(),
            username: user.username,
            roles: user.roles,
            environments: user.environments,
        },
    })
}

/// Gives the caller another password, who knows the current one: a token alone, which may have been found somewhere, is not
/// enough. It is guessed at no faster than at a login. All tokens from before end, also the one that this was asked with.
pub async fn change_password(
    fleet: &Fleet,
    ask: &Ask,
    body: api::ChangePassword,
) -> Result<api::LoggedIn, Error> {
    let mut complaints = Complaints::default();
    check_password(&mut complaints, "newPassword", &body.new_password);
    if body.new_password == body.current_password {
        complaints.add("newPassword", "must be another one than the current");
    }
    complaints.or(())?;
    let Some(caller) = ask.caller.user else {
        return Err(Error::refused(
            "NO_LOCAL_USER",
            "only local users have a password here; change yours where your token comes from",
        ));
    };
    let issuer = issuer(fleet)?;
    let mut connection = fleet.pool.acquire().await?;
    let user = store::user_by_id(&mut connection, caller.id).await?;
    drop(connection);
    let mut user = user.ok_or(Error::Unauthorized(NO_USER))?;
    let current = body.current_password.0;
    let fits = current.len() <= LONGEST_PASSWORD
        && fleet
            .passwords
            .matches(current, Some(user.password_hash.clone()), fleet.now())
            .await?;
    let hash = fleet.passwords.hash(body.new_password.0).await?;
    let mut work = Work::by(fleet, &ask.caller, &ask.trace_id).await?;
    let (id, now) = (user.id.to_string(), work.now);
    let guess = guessed(&mut work, user.id, fits, now).await?;
    if !guess.is_right {
        let details = json!({"locked": guess.was_locked});
        note(work, PASSWORD, "Failed", &id, details).await?;
        return Err(Error::refused(
            "WRONG_PASSWORD",
            "the current password is wrong, or too many guesses failed and it has to wait",
        ));
    }
    // What was checked may be another one's by now.
    user.generation = store::set_password(work.db(), user.id, user.generation, &hash)
        .await?
        .ok_or(Error::Unauthorized(NO_USER))?;
    let answer = logged_in(fleet, issuer, user, now).await?;
    note(work, PASSWORD, "Succeeded", &id, Value::Null).await?;
    Ok(answer)
}

async fn note(
    mut work: Work<'_>,
    action: &str,
    outcome: &str,
    user: &str,
    details: Value,
) -> Result<(), Error> {
    work.record(Record {
        action,
        outcome,
        target_kind: KIND,
        target_id: user,
        details,
    })
    .await?;
    work.commit().await
}

/// Refuses a token whose user was removed since it was issued, or has another password, on whichever replica that was.
pub async fn still_there(fleet: &Fleet, caller: &Caller) -> Result<(), Error> {
    match caller.user {
        Some(user) if !store::is_user(&fleet.pool, user.id, user.generation).await? => {
            Err(Error::Unauthorized(NO_USER))
        }
        _ => Ok(()),
    }
}

/// Writes down that somebody was refused something.
pub async fn denied(
    fleet: &Fleet,
    caller: &Caller,
    trace_id: &str,
    operation: &'static str,
) -> Result<(), Error> {
    let mut work = Work::by(fleet, caller, trace_id).await?;
    work.record(Record {
        action: "access.denied",
        outcome: "Denied",
        target_kind: "operation",
        target_id: operation,
        details: Value::Null,
    })
    .await?;
    work.commit().await
}

pub async fn list(fleet: &Fleet, window: Window) -> Result<api::Users, Error> {
    let (rows, total) = store::users(&fleet.pool, window).await?;
    Ok(api::Users {
        page: api::Page::new(total, window.limit, window.offset, rows.len()),
        users: rows.into_iter().map(wire).collect(),
    })
}

pub async fn create(fleet: &Fleet, ask: &Ask, body: api::CreateUser) -> Result<Reply, Error> {
    let (roles, environments) = check(&body)?;
    if let Some(reply) = ask.answered(fleet).await? {
        return Ok(reply);
    }
    let password_hash = fleet.passwords.hash(body.password.0).await?;
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let id = store::id_of(work.db(), &body.username).await?;
    let row = UserRow {
        id,
        username: body.username,
        password_hash,
        roles,
        environments,
        failures: 0,
        locked_until: None,
        generation: 0,
        created_at: time(work.now),
    };
    store::insert(work.db(), &row).await.map_err(|error| {
        if is_taken(&error, "users_username_key") || is_taken(&error, "users_pkey") {
            Error::Conflict {
                code: "USER_ALREADY_EXISTS",
                message: format!("there is a user {:?} already", row.username),
            }
        } else {
            error.into()
        }
    })?;
    let reply = Reply::json(201, &wire(row.clone()), None)?;
    work.record(Record {
        action: "user.created",
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &id.to_string(),
        details: json!({"username": row.username, "roles": row.roles}),
    })
    .await?;
    work.finish(reply).await
}

/// Removes a user, and their name and details from the audit log. What they did stays under an id.
pub async fn delete(fleet: &Fleet, ask: &Ask, username: &str) -> Result<Reply, Error> {
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let user = store::user(work.db(), username)
        .await?
        .ok_or_else(|| Error::NotFound {
            kind: KIND,
            name: username.to_owned(),
        })?;
    let id: Uuid = user.id;
    if id == work.person {
        return Err(Error::Conflict {
            code: "CANNOT_DELETE_SELF",
            message: "you cannot delete yourself; ask another administrator".to_owned(),
        });
    }
    let now = time(work.now);
    store::delete(work.db(), id).await?;
    idempotency::forget_of(work.db(), id).await?;
    idempotency::forget_about(work.db(), id, idempotency::PEOPLE, username).await?;
    audit::erase_target(work.db(), KIND, &id.to_string()).await?;
    store::erase(work.db(), id, now).await?;
    work.record(Record {
        action: "user.deleted",
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &id.to_string(),
        details: Value::Null,
    })
    .await?;
    work.finish(Reply::gone()).await
}

fn check(body: &api::CreateUser) -> Result<(Vec<String>, Option<Vec<String>>), Error> {
    let mut complaints = Complaints::default();
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@' | '+');
    if !(1..=128).contains(&body.username.len()) || !body.username.chars().all(good) {
        complaints.add("username", "must be 1 to 128 letters, digits and . - _ @ +");
    }
    check_password(&mut complaints, "password", &body.password);
    if body.roles.is_empty() {
        complaints.add("roles", "must name at least one role");
    }
    let mut roles = Vec::new();
    for role in &body.roles {
        match role.parse::<Role>() {
            Ok(role) => roles.push(role.name().to_owned()),
            Err(error) => complaints.add("roles", error.to_string()),
        }
    }
    let mut environments = body.environments.as_ref().map(|_| Vec::new());
    for name in body.environments.iter().flatten() {
        match name.parse::<Environment>() {
            Ok(environment) => {
                if let Some(all) = &mut environments {
                    all.push(environment.name().to_owned());
                }
            }
            Err(error) => complaints.add("environments", error.to_string()),
        }
    }
    complaints.or((roles, environments)).map_err(Into::into)
}

fn check_password(complaints: &mut Complaints, field: &str, password: &api::Password) {
    let length = password.0.chars().count();
    if length < SHORTEST_PASSWORD || password.0.len() > LONGEST_PASSWORD {
        complaints.add(
            field,
            format!("must have {SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters"),
        );
    }
}

fn wire(row: UserRow) -> api::User {
    api::User {
        user_id: row.id,
        username: row.username,
        roles: row.roles,
        environments: row.environments,
        locked_until: row.locked_until.map(Into::into),
        created_at: row.created_at.into(),
    }
}
