//! Operators: registered when their chart is really there, and kept up to date with their repository.

use gantry_fleet_api as api;
use gantry_fleet_domain::{
    fields::Complaints,
    operator::{NewOperator, repository, values},
    version::has_update,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Ask, Begun, Fleet, Record, Reply, Work,
    repositories::{
        checked, credentials_of, is_registry, kept, known, latest_of, renew, row, seal, spelling,
        take_versions, unknown, versions_of,
    },
};
use crate::{
    Error,
    error::is_taken,
    infrastructure::store::{
        Window, crds, labels,
        operators::{self as store, OperatorRow},
        time,
    },
};

pub(super) const KIND: &str = "operator";

pub async fn list(fleet: &Fleet, filter: &store::Filter, window: Window) -> Result<api::Operators, Error> {
    let (rows, total) = store::list(&fleet.pool, filter, window).await?;
    Ok(api::Operators {
        page: api::Page::new(total, window.limit, window.offset, rows.len()),
        operators: rows.into_iter().map(wire).collect(),
    })
}

pub async fn get(fleet: &Fleet, name: &str) -> Result<(api::Operator, i64), Error> {
    let mut connection = fleet.pool.acquire().await?;
    let row = store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let revision = row.revision;
    Ok((wire(row), revision))
}

pub async fn versions(fleet: &Fleet, name: &str, window: Window) -> Result<api::OperatorVersions, Error> {
    let mut connection = fleet.pool.acquire().await?;
    let row = store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let (versions, total) = store::versions(&mut connection, &row, window).await?;
    drop(connection);
    let page = api::Page::new(total, window.limit, window.offset, versions.len());
    let versions = versions
        .into_iter()
        .map(|version| api::OperatorVersion {
            is_latest: row.latest_version.as_ref() == Some(&version.version),
            is_current: row.current_version.as_ref() == Some(&version.version),
            version: version.version,
            app_version: version.app_version,
            release_date: version.released_at.map(Into::into),
            is_deprecated: version.deprecated,
            digest: version.digest,
            changelog_url: version.changelog_url,
            crd_discovery: version.discovery,
            crd_discovery_message: version.discovery_message,
            crd_names: version.crd_names,
        })
        .collect();
    Ok(api::OperatorVersions { versions, page })
}

pub async fn register(fleet: &Fleet, ask: &Ask, body: api::RegisterOperator) -> Result<Reply, Error> {
    let new = NewOperator {
        name: body.name,
        description: body.description,
        namespace: body.namespace,
        chart_repository: body.chart_repository,
        chart_name: body.chart_name,
        current_version: body.current_version,
        labels: body.labels,
        default_values: Value::Object(body.default_values),
    };
    let repository = new.check()?;
    let credentials = body
        .chart_repository_credentials
        .map(|given| checked(&repository, given))
        .transpose()?
        .flatten();
    if let Some(reply) = ask.answered(fleet).await? {
        return Ok(reply);
    }
    let found = versions_of(fleet, &repository, &new.chart_name, credentials.as_ref()).await?;
    let id = Uuid::new_v4();
    let sealed = match &credentials {
        Some(credentials) => Some(seal(fleet, id, credentials).await?),
        None => None,
    };
    let latest = latest_of(&found);
    let current = match &new.current_version {
        Some(wanted) => Some(spelling(&found, wanted).ok_or_else(|| {
            Error::invalid(
                "currentVersion",
                format!("the repository has no version {wanted} of this chart"),
            )
        })?),
        None => latest.clone(),
    };
    let found = kept(found, [current.as_deref(), latest.as_deref()]);
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let limit = fleet.limits.operators;
    if store::count(work.db()).await? >= i64::from(limit) {
        return Err(Error::Conflict {
            code: "OPERATOR_LIMIT_REACHED",
            message: format!("there are {limit} operators already, which is the limit of this server"),
        });
    }
    let now = time(work.now);
    let row = OperatorRow {
        id,
        name: new.name,
        description: new.description,
        namespace: new.namespace,
        chart_repository: new.chart_repository,
        chart_name: new.chart_name,
        has_update: has_update(current.as_deref(), latest.as_deref()),
        current_version: current,
        latest_version: latest,
        labels: json!(new.labels),
        default_values: new.default_values,
        revision: 1,
        created_at: now,
        updated_at: now,
        has_credentials: sealed.is_some(),
        crd_names: Vec::new(),
    };
    // At once: what its versions bring is found out in the background.
    store::insert(work.db(), &row).await.map_err(|error| {
        if is_taken(&error, "operators_name_key") {
            Error::Conflict {
                code: "OPERATOR_ALREADY_EXISTS",
                message: format!("there is an operator {:?} already", row.name),
            }
        } else {
            error.into()
        }
    })?;
    store::set_versions(work.db(), row.id, &found, is_registry(&row)).await?;
    store::seal(work.db(), row.id, sealed.as_ref()).await?;
    let details = json!({"name": row.name, "chart": row.chart_name, "repository": row.chart_repository});
    finish(work, row, "operator.registered", details, 201).await
}

pub async fn change(fleet: &Fleet, ask: &Ask, name: &str, body: api::ChangeOperator) -> Result<Reply, Error> {
    let mut complaints = Complaints::default();
    if let Some(description) = &body.description {
        complaints.at_most("description", description, 2000);
    }
    if let Some(labels) = &body.labels {
        complaints.labels("labels", labels);
    }
    if let Some(given) = &body.default_values {
        values(&mut complaints, "defaultValues", &Value::Object(given.clone()));
    }
    complaints.or(())?;
    let renewed = match body.chart_repository_credentials.clone() {
        Some(given) => Some(renew(fleet, name, given).await?),
        None => None,
    };
    let older = match &body.current_version {
        Some(wanted) => unknown(fleet, name, wanted).await?,
        None => None,
    };
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let mut row = store::lock(work.db(), name).await?.ok_or_else(|| missing(name))?;
    ask.check_match(row.revision)?;
    let mut complaints = Complaints::default();
    for (field, wanted, is) in [
        ("name", &body.name, &row.name),
        ("namespace", &body.namespace, &row.namespace),
        ("chartRepository", &body.chart_repository, &row.chart_repository),
        ("chartName", &body.chart_name, &row.chart_name),
    ] {
        if wanted.as_ref().is_some_and(|wanted| wanted != is) {
            complaints.add(field, "cannot be changed; register another operator");
        }
    }
    let mut changed = Vec::new();
    if let Some(wanted) = &body.current_version {
        let known = known(work.db(), &row).await?;
        let older = older.filter(|(id, _)| *id == row.id).map(|(_, version)| version);
        match (spelling(&known, wanted), older) {
            (Some(version), _) => {
                changed.push("currentVersion");
                row.current_version = Some(version);
            }
            (None, Some(older)) => {
                changed.push("currentVersion");
                store::add_version(work.db(), row.id, &older).await?;
                store::visit_soon(work.db(), row.id).await?;
                row.current_version = Some(older.version);
            }
            (None, None) => complaints.add(
                "currentVersion",
                format!("the repository has no version {wanted} of this chart"),
            ),
        }
    }
    complaints.or(())?;
    if let Some(description) = body.description {
        changed.push("description");
        row.description = description;
    }
    if let Some(labels) = body.labels {
        changed.push("labels");
        row.labels = json!(labels);
    }
    let mut other_values = false;
    if let Some(given) = body.default_values.map(Value::Object) {
        changed.push("defaultValues");
        other_values = fleet.charts.use_values() && given != row.default_values;
        row.default_values = given;
    }
    if let Some((id, sealed)) = &renewed {
        if *id != row.id {
            return Err(Error::Changed);
        }
        changed.push("chartRepositoryCredentials");
        store::seal(work.db(), row.id, sealed.as_ref()).await?;
    }
    // Other values may render other definitions, and other credentials reach charts that could not be read.
    if other_values || renewed.is_some() {
        store::forget_attempts(work.db(), row.id).await?;
        store::read_again(work.db(), row.id, other_values).await?;
        store::visit_soon(work.db(), row.id).await?;
    }
    row.has_update = has_update(row.current_version.as_deref(), row.latest_version.as_deref());
    row.revision += 1;
    let now = time(work.now);
    store::update(work.db(), &row, now).await?;
    let row = store::get(work.db(), name).await?.ok_or_else(|| missing(name))?;
    finish(
        work,
        row,
        "operator.changed",
        json!({"name": name, "changed": changed}),
        200,
    )
    .await
}

pub async fn delete(fleet: &Fleet, ask: &Ask, name: &str) -> Result<Reply, Error> {
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let row = store::lock(work.db(), name).await?.ok_or_else(|| missing(name))?;
    ask.check_match(row.revision)?;
    let now = time(work.now);
    crds::disown(work.db(), name, now).await?;
    store::delete(work.db(), row.id).await?;
    let record = Record {
        action: "operator.deleted",
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &row.id.to_string(),
        details: json!({"name": name}),
    };
    work.record(record).await?;
    work.finish(Reply::gone()).await
}

/// Asks the repository now. What its versions bring, and those whose charts could not be read before, is found out in the
/// background.
pub async fn refresh(fleet: &Fleet, ask: &Ask, name: &str) -> Result<Reply, Error> {
    if let Some(reply) = ask.answered(fleet).await? {
        return Ok(reply);
    }
    let row = row(fleet, name).await?;
    let repository =
        repository(&row.chart_repository).map_err(|message| Error::invalid("chartRepository", message))?;
    let credentials = credentials_of(fleet, &row).await?;
    let found = versions_of(fleet, &repository, &row.chart_name, credentials.as_ref()).await?;
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let (row, found) = take_versions(&mut work, name, found).await?;
    store::forget_attempts(work.db(), row.id).await?;
    store::read_again(work.db(), row.id, false).await?;
    store::visit_soon(work.db(), row.id).await?;
    finish(
        work,
        row,
        "operator.refreshed",
        json!({"name": name, "versions": found.len()}),
        200,
    )
    .await
}

async fn finish(
    mut work: Work<'_>,
    row: OperatorRow,
    action: &str,
    details: Value,
    status: u16,
) -> Result<Reply, Error> {
    let record = Record {
        action,
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &row.id.to_string(),
        details,
    };
    let revision = row.revision;
    let reply = Reply::json(status, &wire(row), Some(revision))?;
    work.record(record).await?;
    work.finish(reply).await
}

pub(super) fn missing(name: &str) -> Error {
    Error::NotFound {
        kind: KIND,
        name: name.to_owned(),
    }
}

fn wire(row: OperatorRow) -> api::Operator {
    api::Operator {
        operator_id: row.id,
        name: row.name,
        description: row.description,
        namespace: row.namespace,
        chart_repository: row.chart_repository,
        chart_name: row.chart_name,
        current_version: row.current_version,
        latest_version: row.latest_version,
        has_update: row.has_update,
        crd_names: row.crd_names,
        labels: labels(&row.labels),
        default_values: row.default_values.as_object().cloned().unwrap_or_default(),
        has_chart_repository_credentials: row.has_credentials,
        deployed_cluster_count: 0,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

/// How many definitions an operator may have.
pub async fn room_for_crd(work: &mut Work<'_>, fleet: &Fleet, operator: &str) -> Result<(), Error> {
    let limit = fleet.limits.crds_per_operator;
    if crds::of_operator(work.db(), operator).await? >= i64::from(limit) {
        return Err(Error::Conflict {
            code: "CRD_LIMIT_REACHED",
            message: format!(
                "operator {operator:?} has {limit} definitions already, which is the limit of this server"
            ),
        });
    }
    Ok(())
}
