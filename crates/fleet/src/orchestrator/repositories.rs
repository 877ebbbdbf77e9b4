//! What the chart repositories of operators have: asked when a person wants to know, and visited from time to time.

use std::time::Duration;

use gantry_fleet_api as api;
use gantry_fleet_domain::{
    fields::Complaints,
    operator::{Repository, keeps_secrets, repository},
    version::{OperatorVersion, has_update, is_kept, latest},
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Fleet, Record, SYSTEM, Work, clusters,
    operators::{KIND, missing},
    schemas, sets,
};
use crate::{
    Error,
    infrastructure::{
        charts::{ChartError, ChartVersion},
        http::Credentials,
        keys::{Place, Sealed},
        store::{
            Window,
            operators::{self as store, OperatorRow, VersionRow},
            time,
        },
    },
};

/// Older ones are of no use to a fleet, except those that are needed; and some repositories have thousands.
const MAX_VERSIONS: usize = 200;
/// The current one and the latest release.
const NEEDED: usize = 2;
/// Said of a version until it is read again.
const PUBLISHED_ANEW: &str = "its tag was published anew, and is read again";

pub(super) async fn row(fleet: &Fleet, name: &str) -> Result<OperatorRow, Error> {
    let mut connection = fleet.pool.acquire().await?;
    store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))
}

pub(super) fn is_registry(row: &OperatorRow) -> bool {
    matches!(repository(&row.chart_repository), Ok(Repository::Oci(_)))
}

/// Those that are kept of all that a repository has, with the ones that are needed.
pub(super) fn kept(found: Vec<VersionRow>, needed: [Option<&str>; NEEDED]) -> Vec<VersionRow> {
    let needed: Vec<&str> = needed.into_iter().flatten().collect();
    (0..)
        .zip(found)
        .filter(|(place, version)| is_kept(*place, &version.version, MAX_VERSIONS, &needed))
        .map(|(_, version)| version)
        .collect()
}

/// The versions of an operator that are known.
pub(super) async fn known(
    connection: &mut PgConnection,
    row: &OperatorRow,
) -> Result<Vec<VersionRow>, Error> {
    let window = Window {
        limit: (MAX_VERSIONS + NEEDED) as u32,
        offset: 0,
    };
    Ok(store::versions(connection, row, window).await?.0)
}

/// A version that is not known, as the repository has it: it may be older than those that are kept.
pub(super) async fn unknown(
    fleet: &Fleet,
    name: &str,
    wanted: &str,
) -> Result<Option<(Uuid, VersionRow)>, Error> {
    if wanted.parse::<OperatorVersion>().is_err() {
        return Ok(None);
    }
    let mut connection = fleet.pool.acquire().await?;
    let row = store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let is_known = spelling(&known(&mut connection, &row).await?, wanted).is_some();
    drop(connection);
    if is_known {
        return Ok(None);
    }
    let repository =
        repository(&row.chart_repository).map_err(|message| Error::invalid("chartRepository", message))?;
    let credentials = credentials_of(fleet, &row).await?;
    let found = versions_of(fleet, &repository, &row.chart_name, credentials.as_ref()).await?;
    let version = spelling(&found, wanted);
    let is_it = |row: &VersionRow| Some(&row.version) == version.as_ref();
    Ok(found.into_iter().find(is_it).map(|version| (row.id, version)))
}

/// Writes what a repository has, and gives what of it is kept. The operator changes only if its latest version does.
pub(super) async fn take_versions(
    work: &mut Work<'_>,
    name: &str,
    found: Vec<VersionRow>,
) -> Result<(OperatorRow, Vec<VersionRow>), Error> {
    let mut row = store::lock(work.db(), name).await?.ok_or_else(|| missing(name))?;
    let latest = latest_of(&found);
    let found = kept(found, [row.current_version.as_deref(), latest.as_deref()]);
    store::set_versions(work.db(), row.id, &found, is_registry(&row)).await?;
    sets::settle(work, &row).await?;
    if latest != row.latest_version {
        row.has_update = has_update(row.current_version.as_deref(), latest.as_deref());
        row.latest_version = latest;
        row.revision += 1;
        row.updated_at = time(work.now);
        let now = time(work.now);
        store::update(work.db(), &row, now).await?;
    }
    Ok((row, found))
}

/// The background task's visit, which gives the time to the next one. A repository that is slow without end, one answer
/// after the other, must not keep others from their turn: it is given up, and asked again when all are.
pub async fn visit(fleet: &Fleet, row: &OperatorRow, patience: Duration) -> Result<SignedDuration, Error> {
    if let Ok(visited) = tokio::time::timeout(patience, look_at(fleet, row)).await {
        return visited;
    }
    let why = format!(
        "the repository did not answer all that it was asked within {} s",
        patience.as_secs()
    );
    tracing::warn!(
        operator = row.name,
        "a chart repository could not be visited: {why}"
    );
    // Said of the version whose turn it was, which comes after the others then.
    if let Some(version) = store::undiscovered(&fleet.pool, row.id, 1).await?.first() {
        store::put_off(&fleet.pool, row.id, &version.version, &why).await?;
    }
    Ok(fleet.refresh_interval)
}

/// New versions, then the definitions of some that are not known yet. A visit that finds nothing left to read is the first
/// after a pause: charts that could not be read before are tried again.
async fn look_at(fleet: &Fleet, row: &OperatorRow) -> Result<SignedDuration, Error> {
    let repository =
        repository(&row.chart_repository).map_err(|message| Error::invalid("chartRepository", message))?;
    let credentials = credentials_of(fleet, row).await?;
    let is_first = store::undiscovered(&fleet.pool, row.id, 1).await?.is_empty();
    let found = versions_of(fleet, &repository, &row.chart_name, credentials.as_ref()).await?;
    let mut work = Work::of(fleet, SYSTEM, None).await?;
    let before = row.latest_version.clone();
    let (after, found) = take_versions(&mut work, &row.name, found).await?;
    if is_first {
        store::read_again(work.db(), row.id, false).await?;
    }
    if after.latest_version != before {
        let details = json!({"name": row.name, "latestVersion": after.latest_version});
        work.record(Record {
            action: "operator.version-found",
            outcome: "Succeeded",
            target_kind: KIND,
            target_id: &row.id.to_string(),
            details,
        })
        .await?;
    }
    work.commit().await?;
    let waiting = store::undiscovered(&fleet.pool, row.id, 5).await?;
    let was_anew = |version: &VersionRow| version.discovery_message.as_deref() == Some(PUBLISHED_ANEW);
    let is_asked = waiting.iter().any(was_anew);
    let mut away = None;
    for version in &waiting {
        match schemas::discover(fleet, row, &repository, version, credentials.as_ref()).await {
            // The others may be elsewhere, and must not wait for it.
            Err(error @ Error::Unavailable { .. }) => {
                store::put_off(&fleet.pool, row.id, &version.version, &error.to_string()).await?;
                away = Some(error);
            }
            done => done?,
        }
    }
    if let Some(error) = away {
        return Err(error);
    }
    let mut more = !store::undiscovered(&fleet.pool, row.id, 1).await?.is_empty();
    // Asked for each tag, so once, when everything else is done. Not again after what that led to: a registry that tells
    // another digest each time would have its charts read without end.
    if !more && !is_asked && is_registry(row) {
        let tags: Vec<&str> = found.iter().map(|version| version.location.as_str()).collect();
        let digests = fleet
            .charts
            .digests(&repository, &row.chart_name, &tags, credentials.as_ref())
            .await
            .map_err(|error| refuse(&error))?;
        let versions: Vec<&str> = found.iter().map(|version| version.version.as_str()).collect();
        more = store::republished(&fleet.pool, row.id, &versions, &digests, PUBLISHED_ANEW).await?;
    }
    Ok(if more {
        SignedDuration::from_secs(1)
    } else {
        fleet.refresh_interval
    })
}

/// Credentials that may be used, or none when their user name is empty.
pub(super) fn checked(
    repository: &Repository,
    given: api::RepositoryCredentials,
) -> Result<Option<Credentials>, Error> {
    let mut complaints = Complaints::default();
    let field = "chartRepositoryCredentials";
    complaints.at_most(field, &given.username, 256);
    complaints.at_most(field, &given.password, 16 << 10);
    if given.username.contains(':') || given.username.chars().any(char::is_control) {
        complaints.add(field, "must have a user name without colons");
    }
    if !given.username.is_empty() && !keeps_secrets(repository) {
        complaints.add(field, "are not sent over plain http; use https:// or oci://");
    }
    complaints.or(())?;
    Ok((!given.username.is_empty()).then_some(Credentials {
        username: given.username,
        password: given.password,
    }))
}

pub(super) async fn seal(fleet: &Fleet, id: Uuid, credentials: &Credentials) -> Result<Sealed, Error> {
    let plain = serde_json::to_vec(credentials)
        .map_err(|error| Error::internal("failed to write the credentials", error))?;
    fleet.keys.seal(place(id), &plain).await.map_err(clusters::locked)
}

/// Proves other credentials of a repository and seals them.
pub(super) async fn renew(
    fleet: &Fleet,
    name: &str,
    given: api::RepositoryCredentials,
) -> Result<(Uuid, Option<Sealed>), Error> {
    let row = row(fleet, name).await?;
    let repository =
        repository(&row.chart_repository).map_err(|message| Error::invalid("chartRepository", message))?;
    let credentials = checked(&repository, given)?;
    versions_of(fleet, &repository, &row.chart_name, credentials.as_ref()).await?;
    let sealed = match &credentials {
        Some(credentials) => Some(seal(fleet, row.id, credentials).await?),
        None => None,
    };
    Ok((row.id, sealed))
}

pub(super) async fn credentials_of(fleet: &Fleet, row: &OperatorRow) -> Result<Option<Credentials>, Error> {
    if !row.has_credentials {
        return Ok(None);
    }
    let Some(sealed) = store::sealed(&fleet.pool, row.id).await? else {
        return Ok(None);
    };
    let plain = fleet
        .keys
        .open(place(row.id), &sealed)
        .await
        .map_err(clusters::locked)?;
    serde_json::from_slice(&plain)
        .map(Some)
        .map_err(|error| Error::internal("failed to read the repository's credentials", error))
}

pub fn place(id: Uuid) -> Place {
    Place {
        table: "operators",
        column: "credentials",
        row: id,
    }
}

/// All versions that a repository has, the newest first.
pub(super) async fn versions_of(
    fleet: &Fleet,
    repository: &Repository,
    chart: &str,
    credentials: Option<&Credentials>,
) -> Result<Vec<VersionRow>, Error> {
    let found = fleet
        .charts
        .versions(repository, chart, credentials)
        .await
        .map_err(|error| refuse(&error))?;
    let mut parsed: Vec<(OperatorVersion, ChartVersion)> = found
        .into_iter()
        .filter_map(|chart| Some((chart.version.parse().ok()?, chart)))
        .collect();
    parsed.sort_by(|left, right| right.0.cmp(&left.0));
    parsed.dedup_by(|later, kept| later.1.version == kept.1.version);
    if parsed.is_empty() {
        return Err(Error::refused(
            "CHART_NOT_FOUND",
            "the repository has this chart, but no version of it that is a semantic version",
        ));
    }
    // What a repository says is not always what can be kept.
    let text = |text: &String| !text.contains('\0');
    let row = |(_, chart): (OperatorVersion, ChartVersion)| VersionRow {
        version: chart.version,
        app_version: chart.app_version.filter(text),
        released_at: chart
            .released_at
            .filter(|at| *at >= Timestamp::UNIX_EPOCH)
            .map(time),
        deprecated: chart.deprecated,
        digest: chart.digest.filter(text),
        location: chart.location.replace('\0', "%00"),
        changelog_url: chart.changelog_url.filter(text),
        discovery: "Pending".to_owned(),
        discovery_message: None,
        crd_names: Vec::new(),
    };
    Ok(parsed.into_iter().map(row).collect())
}

fn refuse(error: &ChartError) -> Error {
    let code = match error {
        ChartError::NoChart { .. } => "CHART_NOT_FOUND",
        _ => "CHART_REPOSITORY_UNREACHABLE",
    };
    Error::refused(code, error.to_string())
}

pub(super) fn latest_of(versions: &[VersionRow]) -> Option<String> {
    let parsed: Vec<OperatorVersion> = versions
        .iter()
        .filter(|version| !version.deprecated)
        .filter_map(|version| version.version.parse().ok())
        .collect();
    latest(&parsed).map(|version| version.as_str().to_owned())
}

/// A version as the repository spells it: `1.2.0` finds `v1.2.0`.
pub(super) fn spelling(versions: &[VersionRow], wanted: &str) -> Option<String> {
    let wanted: OperatorVersion = wanted.parse().ok()?;
    let is = |version: &&VersionRow| {
        version
            .version
            .parse::<OperatorVersion>()
            .is_ok_and(|version| version == wanted)
    };
    versions.iter().find(is).map(|version| version.version.clone())
}
