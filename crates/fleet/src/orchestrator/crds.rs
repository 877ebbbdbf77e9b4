//! Definitions as they are asked for, compared, approved where they break, and deprecated.

use gantry_fleet_api as api;
use gantry_fleet_domain::{
    crd_diff::{ServerVersion, Verdict, Waiver, is_definition},
    crd_policy::{Approval, Change, proposed},
    fields::Complaints,
    version::OperatorVersion,
};
use jiff::{Timestamp, civil::Date};
use serde_json::{Value, json};

use super::{
    Ask, Begun, Fleet, Record, Reply, Work,
    comparisons::{self, MAX_CHANGES, compared},
    schemas::{Source, put},
    sets, usage, waivers,
};
use crate::{
    Error,
    infrastructure::{
        store::{
            Window, crd_schemas,
            crds::{self as store, CrdRow, SchemaRow},
            operators, time,
        },
        yaml,
    },
};

pub(super) const KIND: &str = "crd";

pub async fn list(fleet: &Fleet, filter: &store::Filter, window: Window) -> Result<api::Crds, Error> {
    let (rows, total) = store::list(&fleet.pool, filter, window).await?;
    Ok(api::Crds {
        page: api::Page::new(total, window.limit, window.offset, rows.len()),
        crds: rows.into_iter().map(wire).collect(),
    })
}

/// With this part of its history.
pub async fn get(fleet: &Fleet, name: &str, part: Window) -> Result<Reply, Error> {
    let mut connection = fleet.pool.acquire().await?;
    let row = store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let known = Known::read(fleet, &mut connection, row).await?;
    drop(connection);
    known.reply(200, part, waivers::today(fleet)).await
}

pub async fn register(fleet: &Fleet, ask: &Ask, body: api::RegisterCrd) -> Result<Reply, Error> {
    let definition = read_definition("schemaDefinition", body.schema_definition)?;
    let mut complaints = Complaints::default();
    if let Some(guide) = &body.migration_guide {
        complaints.at_most("migrationGuide", guide, 100_000);
    }
    if let Err(error) = body.operator_version.parse::<OperatorVersion>() {
        complaints.add("operatorVersion", error.to_string());
    }
    if let Some(operator) = &body.operator_name {
        complaints.dns_label("operatorName", operator);
    }
    complaints.or(())?;
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return again(fleet, reply).await,
    };
    let operator = match &body.operator_name {
        Some(name) => Some(
            operators::lock(work.db(), name)
                .await?
                .ok_or_else(|| Error::invalid("operatorName", format!("there is no operator {name:?}")))?,
        ),
        None => None,
    };
    if ask.if_match.is_some() {
        // Another version of what the caller saw; of something that is not there they saw nothing.
        let name = definition["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        store::take_turn(work.db(), &name, body.operator_name.as_deref()).await?;
        let row = store::lock(work.db(), &name).await?.ok_or(Error::Changed)?;
        ask.check_match(row.revision)?;
    }
    let name = put(
        fleet,
        &mut work,
        definition,
        body.operator_name.as_deref(),
        &body.operator_version,
        Source::Person {
            guide: body.migration_guide.as_deref(),
        },
    )
    .await?
    .name;
    if let Some(operator) = operator {
        sets::settle(&mut work, &operator).await?;
    }
    finish(
        fleet,
        work,
        &name,
        "crd.registered",
        json!({"name": name, "operatorVersion": body.operator_version}),
        201,
    )
    .await
}

pub async fn change(fleet: &Fleet, ask: &Ask, name: &str, body: api::ChangeCrd) -> Result<Reply, Error> {
    let mut complaints = Complaints::default();
    complaints.at_most("migrationGuide", &body.migration_guide, 100_000);
    complaints.or(())?;
    let (mut work, mut row) = match locked(fleet, ask, name).await? {
        Ok(locked) => locked,
        Err(reply) => return Ok(reply),
    };
    row.migration_guide = (!body.migration_guide.is_empty()).then_some(body.migration_guide);
    let now = time(work.now);
    store::update(work.db(), &row, now).await?;
    finish(
        fleet,
        work,
        name,
        "crd.changed",
        json!({"name": name, "changed": ["migrationGuide"]}),
        200,
    )
    .await
}

pub async fn deprecate(
    fleet: &Fleet,
    ask: &Ask,
    name: &str,
    body: api::DeprecateCrd,
) -> Result<Reply, Error> {
    let mut complaints = Complaints::default();
    if body.reason.trim().is_empty() {
        complaints.add("reason", "must say why");
    }
    complaints.at_most("reason", &body.reason, 2000);
    complaints.at_most(
        "migrationGuide",
        body.migration_guide.as_deref().unwrap_or_default(),
        100_000,
    );
    complaints.or(())?;
    let (mut work, mut row) = match locked(fleet, ask, name).await? {
        Ok(locked) => locked,
        Err(reply) => return Ok(reply),
    };
    let now = time(work.now);
    if row.status != "Removed" {
        "Deprecated".clone_into(&mut row.status);
    }
    row.deprecated_at = row.deprecated_at.or(Some(now));
    row.deprecation_reason = Some(body.reason);
    if body.migration_guide.is_some() {
        row.migration_guide = body.migration_guide;
    }
    store::update(work.db(), &row, now).await?;
    finish(fleet, work, name, "crd.deprecated", json!({"name": name}), 200).await
}

pub async fn approve(fleet: &Fleet, ask: &Ask, name: &str, body: api::ApproveCrd) -> Result<Reply, Error> {
    let (decided, action) = match body.decision {
        api::Decision::Approve => (Approval::Approved, "crd.approved"),
        api::Decision::Reject => (Approval::Rejected, "crd.rejected"),
    };
    let mut complaints = Complaints::default();
    complaints.at_most("notes", &body.notes, 2000);
    if decided == Approval::Rejected && body.notes.trim().is_empty() {
        complaints.add("notes", "must say why it is rejected");
    }
    complaints.or(())?;
    let (mut work, row) = match locked(fleet, ask, name).await? {
        Ok(locked) => locked,
        Err(reply) => return Ok(reply),
    };
    let history = store::history(work.db(), row.id).await?;
    let is_named = body.operator_version.is_some();
    let waiting = |schema: &&SchemaRow| {
        Approval::from_name(&schema.approval).is_some_and(|now| now.may_become(decided, is_named))
    };
    let schema = match &body.operator_version {
        Some(version) => Some(find(&history, version)?),
        None => history.iter().find(waiting),
    };
    let Some(schema) = schema.filter(waiting) else {
        return Err(Error::Conflict {
            code: "NOTHING_TO_APPROVE",
            message: format!("no schema of {name} waits for an approval"),
        });
    };
    let (person, now) = (work.person, time(work.now));
    crd_schemas::decide(
        work.db(),
        row.id,
        &schema.operator_version,
        decided.name(),
        person,
        &body.notes,
        now,
    )
    .await?;
    store::update(work.db(), &row, now).await?;
    let details = json!({"name": name, "operatorVersion": schema.operator_version, "notes": body.notes});
    finish(fleet, work, name, action, details, 200).await
}

pub async fn diff(
    fleet: &Fleet,
    name: &str,
    from: Option<&str>,
    to: Option<&str>,
) -> Result<api::CrdDiff, Error> {
    let mut connection = fleet.pool.acquire().await?;
    let row = store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let history = store::history(&mut connection, row.id).await?;
    let waived = waivers::of(&mut connection, row.id).await?;
    let to = match to {
        Some(version) => find(&history, version)?,
        None => history.first().ok_or_else(|| missing(name))?,
    };
    let from = match from {
        Some(version) => find(&history, version)?,
        None => history
            .iter()
            .find(|schema| schema.position < to.position)
            .ok_or_else(|| {
                Error::invalid(
                    "from",
                    format!("there is no version before {}", to.operator_version),
                )
            })?,
    };
    let older = store::definition(&mut connection, row.id, &from.operator_version).await?;
    let newer = store::definition(&mut connection, row.id, &to.operator_version).await?;
    let clusters = store::on_clusters(&mut connection, row.id, name, usage::fresh(fleet)).await?;
    drop(connection);
    let mut report = compared(older, newer, usage::known(&clusters)).await?.report;
    report.waive(&waived, waivers::today(fleet));
    Ok(api::CrdDiff {
        clusters: clusters.into_iter().map(usage::on_cluster).collect(),
        crd_name: name.to_owned(),
        from: from.operator_version.clone(),
        to: to.operator_version.clone(),
        report: json!(report),
    })
}

/// In the span of a validation, which begins before they are known.
pub(super) fn say_whose(operator: Option<&str>, version: Option<&str>) {
    let span = tracing::Span::current();
    span.record("operator", operator).record("version", version);
}

#[tracing::instrument(name = "operator.validate", skip_all, fields(crd = name, operator, version))]
pub async fn validate(
    fleet: &Fleet,
    name: &str,
    body: api::ValidateCrd,
) -> Result<api::CrdValidation, Error> {
    let mut complaints = Complaints::default();
    if let Some(Err(error)) = body
        .new_operator_version
        .as_deref()
        .map(str::parse::<OperatorVersion>)
    {
        complaints.add("newOperatorVersion", error.to_string());
    }
    let server = match body.server_version.as_deref().map(str::parse::<ServerVersion>) {
        Some(Err(error)) => {
            complaints.add("serverVersion", error.to_string());
            None
        }
        Some(Ok(server)) => Some(server),
        None => None,
    };
    complaints.or(())?;
    let mut connection = fleet.pool.acquire().await?;
    let row = store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let history = store::history(&mut connection, row.id).await?;
    let waived = waivers::of(&mut connection, row.id).await?;
    say_whose(row.operator_name.as_deref(), body.new_operator_version.as_deref());
    let from = match &body.from_operator_version {
        Some(version) => find(&history, version)?,
        None => history.first().ok_or_else(|| missing(name))?,
    };
    let old = store::definition(&mut connection, row.id, &from.operator_version).await?;
    let around = usage::around(fleet, &mut connection, &row).await?;
    drop(connection);
    let new = read_proposal(&old, body.new_schema_definition)?;
    let mut known = usage::known(&around.clusters);
    known.server = server.or(known.server);
    let today = waivers::today(fleet);
    // Whether it needs an approval is found out as when it is registered, which does not depend on clusters.
    let mut alone = compared(old.clone(), new.clone(), comparisons::Known::default()).await?;
    alone.report.waive(&waived, today);
    let mut report = compared(old, new, known).await?.report;
    report.waive(&waived, today);
    fleet.metrics.crds_validated.inc();
    let newest = from.position;
    let mut steps = apart(move || usage::steps(&history, &waived, today)).await?;
    steps.retain(|step| step.position <= newest);
    let version = body.new_operator_version.as_deref();
    let wanted = usage::proposed(&alone, version);
    let requires_approval = wanted.approval == Approval::Pending;
    steps.push(wanted);
    let wanted = &steps[steps.len() - 1..];
    let usage = usage::of(&row, wanted, &steps, &around);
    let usage = usage.into_iter().next_back().unwrap_or_default();
    let changes = |some| changes(some, version, None);
    let breaking = changes(Change::breaking(&report));
    Ok(api::CrdValidation {
        crd_name: name.to_owned(),
        is_compatible: breaking.is_empty() && !usage.iter().any(usage::loses_objects),
        requires_approval,
        usage,
        clusters: around.clusters.into_iter().map(usage::on_cluster).collect(),
        breaking_changes: breaking,
        non_breaking_changes: changes(Change::harmless(&report)),
        validated_at: fleet.now(),
        rollback: api::RollbackVerdict {
            verdict: report.backward.unwrap_or(Verdict::Safe).words().to_owned(),
            points_of_no_return: report
                .points_of_no_return
                .iter()
                .map(|point| format!("{}: {}", point.when, point.because))
                .collect(),
        },
    })
}

pub(super) fn find<'h>(history: &'h [SchemaRow], version: &str) -> Result<&'h SchemaRow, Error> {
    let wanted = version.parse::<OperatorVersion>().ok();
    history
        .iter()
        .find(|schema| {
            schema.operator_version == version
                || (wanted.is_some() && schema.operator_version.parse::<OperatorVersion>().ok() == wanted)
        })
        .ok_or_else(|| Error::NotFound {
            kind: "crd_version",
            name: version.to_owned(),
        })
}

/// The definition that is proposed, whole or as a schema for every version of the one that is there.
pub(super) fn read_proposal(current: &Value, given: Value) -> Result<Value, Error> {
    let field = "newSchemaDefinition";
    let proposal = read_text(field, given)?;
    if !is_definition(&proposal) {
        let versions = current["spec"]["versions"].as_array().map_or(1, Vec::len);
        if yaml::nodes(&proposal).saturating_mul(versions) > yaml::DEFINITION.nodes {
            return Err(Error::invalid(
                field,
                format!(
                    "is too large for each of the {versions} versions that there are; send the whole definition"
                ),
            ));
        }
    }
    proposed(current, proposal).map_err(|why| Error::invalid(field, why))
}

fn read_definition(field: &str, given: Value) -> Result<Value, Error> {
    let document = read_text(field, given)?;
    if is_definition(&document) {
        Ok(document)
    } else {
        Err(Error::invalid(
            field,
            "is not a CustomResourceDefinition of apiextensions.k8s.io",
        ))
    }
}

/// An object as it is, or the YAML or JSON of one.
fn read_text(field: &str, given: Value) -> Result<Value, Error> {
    match given {
        Value::String(text) => {
            yaml::document(&text, yaml::DEFINITION).map_err(|error| Error::invalid(field, error.to_string()))
        }
        Value::Object(_) => Ok(given),
        _ => Err(Error::invalid(
            field,
            "must be an object, or YAML or JSON as text",
        )),
    }
}

/// The row with its lock, or the answer to a request that was repeated.
pub(super) async fn locked<'f>(
    fleet: &'f Fleet,
    ask: &Ask,
    name: &str,
) -> Result<Result<(Work<'f>, CrdRow), Reply>, Error> {
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return again(fleet, reply).await.map(Err),
    };
    let row = store::lock(work.db(), name).await?.ok_or_else(|| missing(name))?;
    ask.check_match(row.revision)?;
    Ok(Ok((work, row)))
}

/// What there is of a definition by now is the answer to a request that is repeated.
async fn again(fleet: &Fleet, reply: Reply) -> Result<Reply, Error> {
    let Some(name) = &reply.about else {
        return Ok(reply);
    };
    let shown = get(fleet, name, Window::ALL).await?;
    Ok(Reply {
        status: reply.status,
        replayed: true,
        ..shown
    })
}

async fn finish(
    fleet: &Fleet,
    mut work: Work<'_>,
    name: &str,
    action: &str,
    details: Value,
    status: u16,
) -> Result<Reply, Error> {
    let row = store::get(work.db(), name).await?.ok_or_else(|| missing(name))?;
    let (id, today) = (row.id.to_string(), waivers::day(work.now));
    let known = Known::read(fleet, work.db(), row).await?;
    let mut reply = known.reply(status, Window::ALL, today).await?;
    reply.about = Some(name.to_owned());
    work.record(Record {
        action,
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &id,
        details,
    })
    .await?;
    work.finish(reply).await
}

pub(super) fn missing(name: &str) -> Error {
    Error::NotFound {
        kind: KIND,
        name: name.to_owned(),
    }
}

/// Changes that a version brought at this time, or would bring.
fn changes(changes: Vec<Change>, version: Option<&str>, at: Option<Timestamp>) -> Vec<api::SchemaChange> {
    let wire = |change: Change| api::SchemaChange {
        change_type: change.change_type,
        field_path: change.field_path,
        previous_type: change.previous_type,
        new_type: change.new_type,
        is_breaking: change.is_breaking,
        description: change.description,
        severity: change.severity,
        action: change.action,
        fingerprint: change.fingerprint,
        operator_version: version.map(str::to_owned),
        changed_at: at,
        is_waived: change.is_waived,
    };
    changes.into_iter().take(MAX_CHANGES).map(wire).collect()
}

/// The original counts schemas by text.
fn schema_version(position: i32) -> String {
    format!("{}.0", position.saturating_add(1))
}

fn wire(row: CrdRow) -> api::Crd {
    api::Crd {
        crd_id: row.id,
        name: row.name,
        group: row.api_group,
        kind: row.kind,
        scope: row.scope,
        versions: row.api_versions,
        operator_name: row.operator_name,
        operator_version: row.operator_version,
        status: row.status,
        schema_version: schema_version(row.position),
        approval_status: row.approval,
        approved_by: row.approved_by,
        approved_at: row.approved_at.map(Into::into),
        migration_guide: row.migration_guide,
        deprecated_at: row.deprecated_at.map(Into::into),
        deprecation_reason: row.deprecation_reason,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

/// All that is known of a definition.
struct Known {
    row: CrdRow,
    history: Vec<SchemaRow>,
    waived: Vec<Waiver>,
    around: usage::Around,
    /// The definition itself.
    newest: Value,
}

impl Known {
    async fn read(fleet: &Fleet, connection: &mut sqlx::PgConnection, row: CrdRow) -> Result<Self, Error> {
        let history = store::history(&mut *connection, row.id).await?;
        Ok(Self {
            waived: waivers::of(&mut *connection, row.id).await?,
            around: usage::around(fleet, &mut *connection, &row).await?,
            newest: match history.first() {
                Some(schema) => store::definition(&mut *connection, row.id, &schema.operator_version).await?,
                None => Value::Null,
            },
            history,
            row,
        })
    }

    async fn reply(self, status: u16, part: Window, today: Date) -> Result<Reply, Error> {
        let revision = self.row.revision;
        apart(move || Reply::json(status, &self.wire(part, today), Some(revision))).await?
    }

    fn wire(self, part: Window, today: Date) -> api::CrdWithHistory {
        let total = self.history.len();
        let begin = usize::try_from(part.offset).unwrap_or(total).min(total);
        let end = begin.saturating_add(part.limit as usize).min(total);
        let steps = usage::steps(&self.history, &self.waived, today);
        let usage = usage::of(&self.row, &steps[begin..end], &steps, &self.around);
        let schema = |(schema, usage): (SchemaRow, Vec<api::SchemaUse>)| -> api::CrdSchema {
            let stored: Vec<Change> = serde_json::from_str(&schema.changes).unwrap_or_default();
            let created_at = schema.created_at.into();
            api::CrdSchema {
                changes: changes(stored, Some(&schema.operator_version), Some(created_at)),
                operator_version: schema.operator_version,
                schema_version: schema_version(schema.position),
                versions: schema.api_versions,
                digest: schema.digest,
                approval_status: schema.approval,
                approved_by: schema.approved_by,
                approved_at: schema.approved_at.map(Into::into),
                approval_notes: schema.approval_notes,
                usage,
                created_at,
            }
        };
        let history = self.history.into_iter().skip(begin).zip(usage);
        api::CrdWithHistory {
            crd: wire(self.row),
            schema_definition: self.newest,
            schema_history: history.map(schema).collect(),
            schema_history_total: total as u64,
            clusters: self.around.clusters.into_iter().map(usage::on_cluster).collect(),
        }
    }
}

/// A long history takes a part of a second to read and to write: away from those who answer requests.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("failed to read the history of a definition", error))
}
