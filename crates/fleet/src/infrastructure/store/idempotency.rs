//! Answers that were given, so that a request sent twice is done once.

use std::collections::BTreeSet;

use serde_json::Value;
use sqlx::{FromRow, PgConnection, PgPool};
use uuid::Uuid;

use super::Time;

/// Fields of answers that have the name of a cluster, other than its own.
pub const CLUSTERS: &[&str] = &["clusterName"];
/// And those that have somebody's.
pub const PEOPLE: &[&str] = &["username", "approvedBy", "approver"];
/// An answer that tells of more than this is looked through instead.
const MOST_TOLD: usize = 1000;

#[derive(Clone, FromRow)]
pub struct Answered {
    pub operation: String,
    pub request: Vec<u8>,
    pub status: Option<i16>,
    pub body: Option<Vec<u8>>,
    /// Whose state is the answer, where that is kept instead of the body.
    pub about: Option<String>,
    /// Of what was answered with.
    pub revision: Option<i64>,
}

pub async fn find(
    connection: &mut PgConnection,
    person: Uuid,
    key: &str,
) -> Result<Option<Answered>, sqlx::Error> {
    sqlx::query_as(
        "select operation, request, status, body, about, revision from idempotency where person = $1 and key = $2",
    )
    .bind(person)
    .bind(key)
    .fetch_optional(connection)
    .await
}

/// Takes the key for this transaction. Waits for another that has it, and gives nothing if that one kept it.
pub async fn take(
    connection: &mut PgConnection,
    person: Uuid,
    key: &str,
    operation: &str,
    request: &[u8],
    now: Time,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "insert into idempotency (person, key, operation, request, created_at) values ($1, $2, $3, $4, $5)
         on conflict do nothing",
    )
    .bind(person)
    .bind(key)
    .bind(operation)
    .bind(request)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What is kept of an answer: its body, or what it is about.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'k> {
    pub status: u16,
    pub body: Option<&'k [u8]>,
    pub about: Option<&'k str>,
    pub revision: Option<i64>,
}

pub async fn answer(
    connection: &mut PgConnection,
    person: Uuid,
    key: &str,
    kept: Kept<'_>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "update idempotency set status = $3, body = $4, about = $5, revision = $6, told = $7 where person = $1 and key = $2",
    )
    .bind(person)
    .bind(key)
    .bind(i16::try_from(kept.status).unwrap_or(500))
    .bind(kept.body)
    .bind(kept.about)
    .bind(kept.revision)
    .bind(kept.body.and_then(told))
    .execute(connection)
    .await
    .map(drop)
}

/// What an answer tells of that may have to be erased: ids, and names in those fields. Answers are written without spaces.
fn told(body: &[u8]) -> Option<Vec<String>> {
    let mut told: BTreeSet<&[u8]> = body.windows(36).filter(|text| is_id(text)).collect();
    for field in CLUSTERS.iter().chain(PEOPLE) {
        let begin = format!("\"{field}\":\"");
        let places = body
            .windows(begin.len())
            .enumerate()
            .filter(|(_, text)| *text == begin.as_bytes());
        for (place, _) in places {
            let mut end = place + begin.len();
            while let Some(letter) = body.get(end).filter(|letter| **letter != b'"') {
                end += if *letter == b'\\' { 2 } else { 1 };
            }
            told.extend(body.get(place..=end));
        }
    }
    if told.len() > MOST_TOLD {
        return None;
    }
    let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
    Some(told.into_iter().map(text).collect())
}

fn is_id(text: &[u8]) -> bool {
    text.iter().enumerate().all(|(place, letter)| match place {
        8 | 13 | 18 | 23 => *letter == b'-',
        _ => matches!(letter, b'0'..=b'9' | b'a'..=b'f'),
    })
}

/// Forgets the answers that tell of something that is erased: by its id, or by its name in one of these fields. Answers to
/// others have it too, such as who approved a definition or where it runs. In the order of their keys, so that two who do
/// this do not wait for each other.
pub async fn forget_about(
    connection: &mut PgConnection,
    id: Uuid,
    fields: &[&str],
    name: &str,
) -> Result<(), sqlx::Error> {
    // As answers are written: without spaces.
    let mut told = vec![id.to_string()];
    told.extend(
        fields
            .iter()
            .map(|field| format!("\"{field}\":{}", Value::from(name))),
    );
    let mut found: Vec<(Uuid, String)> = sqlx::query_as(
        "select person, key from idempotency where told && $1 order by person, key for update",
    )
    .bind(&told)
    .fetch_all(&mut *connection)
    .await?;
    // Those of which that is not known.
    let looked_through: Vec<(Uuid, String)> = sqlx::query_as(
        "select person, key from idempotency i where i.told is null and i.body is not null and exists (
             select from unnest($1::text[]) told where position(convert_to(told, 'UTF8') in i.body) > 0)
         order by person, key for update",
    )
    .bind(&told)
    .fetch_all(&mut *connection)
    .await?;
    found.extend(looked_through);
    let (people, keys): (Vec<Uuid>, Vec<String>) = found.into_iter().unzip();
    sqlx::query(
        "delete from idempotency i using unnest($1::uuid[], $2::text[]) found(person, key)
         where i.person = found.person and i.key = found.key",
    )
    .bind(people)
    .bind(keys)
    .execute(connection)
    .await
    .map(drop)
}

/// Forgets the answers to somebody who cannot ask again.
pub async fn forget_of(connection: &mut PgConnection, person: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("delete from idempotency where person = $1")
        .bind(person)
        .execute(connection)
        .await
        .map(drop)
}

/// Forgets those from before this; what somebody else is about to forget is theirs.
pub async fn forget(pool: &PgPool, before: Time) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(
        "delete from idempotency where (person, key) in (
             select person, key from idempotency where created_at < $1 for update skip locked)",
    )
    .bind(before)
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_to_be_erased_is_found_as_it_is_asked_for() {
        let id = Uuid::new_v4();
        let body = serde_json::json!({
            "crdId": id, "name": "things", "clusters": [{"clusterName": "a \"b\\"}, {"clusterName": "c"}],
            "approvedBy": "jö@example.com", "text": "\"username\":\"x\"", "changedBy": "jo", "username": null,
        });
        let mut expected = vec![id.to_string()];
        for (field, name) in [
            ("clusterName", "a \"b\\"),
            ("clusterName", "c"),
            ("approvedBy", "jö@example.com"),
        ] {
            expected.push(format!("\"{field}\":{}", Value::from(name)));
        }
        expected.sort();
        let mut found = told(body.to_string().as_bytes()).unwrap();
        found.sort();
        assert_eq!(found, expected);
        // What is cut off is no reason to fail.
        assert_eq!(told(br#"{"username":"x\"#), Some(Vec::new()));
        let many: Vec<Uuid> = (0..=MOST_TOLD).map(|_| Uuid::new_v4()).collect();
        assert_eq!(told(serde_json::json!(many).to_string().as_bytes()), None);
    }
}
