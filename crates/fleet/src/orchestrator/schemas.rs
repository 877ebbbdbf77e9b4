//! How definitions get in: found in charts or given, kept per version of their operator, compared with their neighbours.

use gantry_fleet_domain::{
    crd_diff::Crd,
    crd_digest::{self, digest},
    crd_policy::Approval,
    fields::is_dns_subdomain,
    operator::Repository,
    version::OperatorVersion,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Fleet, Record, Work,
    comparisons::{Judged, api_versions, is_covered, judged},
    operators::room_for_crd,
    sets,
};
use crate::{
    Error,
    error::is_outage,
    infrastructure::{
        charts::{ChartError, Definitions, Packed},
        http::Credentials,
        store::{
            crd_schemas,
            crds::{self as store, CrdRow, SchemaRow},
            operators::{self, OperatorRow, VersionRow},
            time,
        },
    },
};

/// Begun so often and never finished, a chart is given up.
const MAX_ATTEMPTS: i32 = 3;

/// Finds the definitions in a chart and keeps them. What is wrong with the chart is noted with its version; what is
/// wrong with the way to it is an error, and tried again.
pub async fn discover(
    fleet: &Fleet,
    operator: &OperatorRow,
    repository: &Repository,
    version: &VersionRow,
    credentials: Option<&Credentials>,
) -> Result<(), Error> {
    let fetched = fleet
        .charts
        .fetch(repository, &operator.chart_name, version, credentials)
        .await;
    let found = match fetched {
        Ok(packed) => read(fleet, operator, version, packed).await?,
        Err(error) => Err(error),
    };
    let found = match found {
        Ok(found) => Ok(found),
        Err(error) if error.is_passing() => {
            return Err(Error::Unavailable {
                code: "CHART_REPOSITORY_UNREACHABLE",
                message: error.to_string(),
            });
        }
        Err(error) => Err(error.to_string()),
    };
    match keep(fleet, operator, version, found).await {
        // A chart that the database does not take is one that cannot be read: those of other versions are.
        Err(error) if !may_pass(&error) => {
            tracing::warn!(
                operator = operator.name,
                version = version.version,
                error = &error as &dyn std::error::Error,
                "a chart was not kept"
            );
            let why = Err("what is in the chart cannot be kept".to_owned());
            keep(fleet, operator, version, why).await
        }
        kept => kept,
    }
}

/// Reads a chart, unless that was begun and not finished too often: one that ends the server must not do so for ever. An end
/// in order in the middle of it counts too, and hardly ever comes three times in a row.
async fn read(
    fleet: &Fleet,
    operator: &OperatorRow,
    version: &VersionRow,
    packed: Packed,
) -> Result<Result<Definitions, ChartError>, Error> {
    // Before it counts as begun: what another chart does to the server is not this one's fault.
    let _turn = fleet.charts.turn().await;
    if !operators::begin_reading(&fleet.pool, operator.id, &version.version, MAX_ATTEMPTS).await? {
        return Ok(Err(ChartError::Unfinished(MAX_ATTEMPTS)));
    }
    let found = fleet.charts.definitions(packed, &operator.default_values).await;
    operators::end_reading(&fleet.pool, operator.id, &version.version).await?;
    Ok(found)
}

/// Whether the same may work in a while.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Database(error) => is_outage(error),
        other => !matches!(other, Error::Invalid(_)),
    }
}

/// Writes what was found in a chart, or why nothing was.
async fn keep(
    fleet: &Fleet,
    operator: &OperatorRow,
    version: &VersionRow,
    found: Result<Definitions, String>,
) -> Result<(), Error> {
    let (discovery, found) = match found {
        Ok(found) => ("Discovered", found),
        Err(why) => (
            "Failed",
            Definitions {
                notes: vec![why],
                ..Definitions::default()
            },
        ),
    };
    let (mut notes, mut definitions) = (found.notes, found.definitions);
    // In one order for everybody: two operators that bring the same ones must not wait for each other.
    definitions.sort_by(|one, other| name_of(one).cmp(name_of(other)));
    let brings: Vec<String> = definitions
        .iter()
        .map(name_of)
        .filter(|name| !name.contains('\0'))
        .map(str::to_owned)
        .collect();
    let brings = notes.is_empty().then_some(brings.as_slice());
    let mut work = Work::of(fleet, super::SYSTEM, None).await?;
    // What was read with other values than the operator has by now does not count; it is read again.
    let is_same = |now: &OperatorRow| now.id == operator.id && now.default_values == operator.default_values;
    let Some(operator) = operators::lock(work.db(), &operator.name).await?.filter(is_same) else {
        return Ok(());
    };
    let mut kept = Vec::new();
    for definition in definitions {
        match put(
            fleet,
            &mut work,
            definition,
            Some(&operator.name),
            &version.version,
            Source::Chart,
        )
        .await
        {
            Ok(put) => {
                if put.is_replaced {
                    notes.push(format!(
                        "{} was registered with another schema in version {}; the chart's counts now",
                        put.name, version.version
                    ));
                }
                kept.push(put.name);
            }
            // One that another operator brings as well, or one too many, is no reason to lose the others.
            Err(Error::Conflict { message, .. }) => notes.push(message),
            Err(Error::Invalid(details)) => notes.extend(details.into_iter().map(|detail| detail.message)),
            Err(other) => return Err(other),
        }
    }
    let message = (!notes.is_empty()).then(|| notes.join("; ").replace('\0', "\u{fffd}"));
    let written = operators::set_discovery(
        work.db(),
        operator.id,
        version,
        discovery,
        message.as_deref(),
        brings,
        found.digest.as_deref(),
    )
    .await?;
    if !written {
        return Ok(());
    }
    sets::settle(&mut work, &operator).await?;
    // One that fails as it did before is no news.
    if discovery == "Failed" && message == version.discovery_message {
        return work.commit().await;
    }
    work.record(Record {
        action: "operator.definitions-discovered",
        outcome: if discovery == "Failed" { "Failed" } else { "Succeeded" },
        target_kind: "operator",
        target_id: &operator.id.to_string(),
        details: json!({"name": operator.name, "version": version.version, "definitions": kept, "message": message}),
    })
    .await?;
    work.commit().await
}

fn name_of(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().unwrap_or_default()
}

/// Neither text nor JSON in the database can have one. A statement that fails for it would take its transaction along.
fn has_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_zero),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || has_zero(value)),
        _ => false,
    }
}

/// Who says so.
#[derive(Clone, Copy)]
pub(super) enum Source<'g> {
    /// What will be installed.
    Chart,
    Person {
        guide: Option<&'g str>,
    },
}

pub(super) struct Put {
    pub name: String,
    /// What somebody said of the same version was something else.
    pub is_replaced: bool,
}

/// Keeps a definition as one version of its operator has it, and compares it with its neighbours. What is in a chart wins
/// over what somebody said would be in it: else a harmless schema could be registered before the chart is there, and what the
/// chart breaks would need no approval.
pub(super) async fn put(
    fleet: &Fleet,
    work: &mut Work<'_>,
    mut definition: Value,
    operator: Option<&str>,
    operator_version: &str,
    source: Source<'_>,
) -> Result<Put, Error> {
    let (guide, from_chart) = match source {
        Source::Chart => (None, true),
        Source::Person { guide } => (guide, false),
    };
    if has_zero(&definition) {
        let name: String = name_of(&definition)
            .chars()
            .filter(|c| *c != '\0')
            .take(80)
            .collect();
        return Err(Error::invalid(
            "schemaDefinition",
            format!("the definition {name:?} has a zero character, which cannot be kept"),
        ));
    }
    let crd =
        Crd::parse(&definition).map_err(|error| Error::invalid("schemaDefinition", error.to_string()))?;
    let full = format!("{}.{}", crd.plural, crd.group);
    if crd.name != full || !is_dns_subdomain(&full) {
        return Err(Error::invalid(
            "schemaDefinition",
            format!(
                "metadata.name is {:?}, which no API server takes: it must be spec.names.plural and spec.group, {full:?}, \
                 in lower case",
                crd.name
            ),
        ));
    }
    strip(&mut definition);
    let version: OperatorVersion =
        operator_version
            .parse()
            .map_err(|error: gantry_fleet_domain::version::NotAVersion| {
                Error::invalid("operatorVersion", error.to_string())
            })?;
    let order = |schema: &SchemaRow| schema.operator_version.parse::<OperatorVersion>().ok();
    let now = time(work.now);
    store::take_turn(work.db(), &crd.name, operator).await?;
    let (id, history) = if let Some(mut row) = store::lock(work.db(), &crd.name).await? {
        check_owner(&row, operator)?;
        if let (None, Some(operator)) = (&row.operator_name, operator) {
            room_for_crd(work, fleet, operator).await?;
        }
        let history = store::history(work.db(), row.id).await?;
        let is_known = history
            .iter()
            .any(|schema| order(schema).as_ref() == Some(&version));
        let is_adopted = row.operator_name.is_none() && operator.is_some();
        row.operator_name = row.operator_name.or_else(|| operator.map(str::to_owned));
        row.migration_guide = guide.map(str::to_owned).or(row.migration_guide);
        // A chart that is read again changes nothing.
        if !is_known || is_adopted || guide.is_some() {
            store::update(work.db(), &row, now).await?;
        }
        (row.id, history)
    } else {
        if let Some(operator) = operator {
            room_for_crd(work, fleet, operator).await?;
        }
        let id = store::insert(work.db(), &crd.name, operator, guide, now).await?;
        (id, Vec::new())
    };
    let row = SchemaRow {
        operator_version: operator_version.to_owned(),
        position: 0,
        api_versions: api_versions(&crd),
        api_group: crd.group,
        kind: crd.kind,
        scope: crd.scope,
        digest: digest(&definition),
        changes: "[]".to_owned(),
        back: None,
        approval: Approval::NotRequired.name().to_owned(),
        approved_by: None,
        approved_at: None,
        approval_notes: None,
        from_chart,
        created_at: now,
    };
    let same = history
        .iter()
        .find(|schema| order(schema).as_ref() == Some(&version));
    let (name, is_replaced) = (crd.name, same.is_some());
    if let Some(same) = same {
        if digest_of(work, id, same).await? == row.digest {
            if from_chart && !same.from_chart {
                crd_schemas::set_from_chart(work.db(), id, &same.operator_version).await?;
            }
            return Ok(Put {
                name,
                is_replaced: false,
            });
        }
        if !from_chart || same.from_chart {
            return Err(Error::Conflict {
                code: "CRD_VERSION_ALREADY_EXISTS",
                message: format!(
                    "{name} is known with another schema in version {operator_version}, which is kept"
                ),
            });
        }
    }
    let place = Place {
        id,
        version: &version,
        history: &history,
        same,
    };
    insert(work, place, row, definition).await?;
    Ok(Put { name, is_replaced })
}

/// Of what is stored; a digest of another form says nothing.
async fn digest_of(work: &mut Work<'_>, id: Uuid, schema: &SchemaRow) -> Result<String, Error> {
    if schema.digest.starts_with(crd_digest::FORM) {
        return Ok(schema.digest.clone());
    }
    Ok(digest(
        &store::definition(work.db(), id, &schema.operator_version).await?,
    ))
}

/// Where a schema belongs.
#[derive(Clone, Copy)]
struct Place<'h> {
    id: Uuid,
    version: &'h OperatorVersion,
    /// Newest first.
    history: &'h [SchemaRow],
    /// What it replaces.
    same: Option<&'h SchemaRow>,
}

/// Compares it with the one before and writes it; the one after it is compared anew.
async fn insert(
    work: &mut Work<'_>,
    place: Place<'_>,
    mut row: SchemaRow,
    definition: Value,
) -> Result<(), Error> {
    let Place {
        id,
        version,
        history,
        same,
    } = place;
    let order = |schema: &SchemaRow| schema.operator_version.parse::<OperatorVersion>().ok();
    // Newest first: the first that is older is the one before, and the last that is newer the one after.
    let before = history
        .iter()
        .find(|schema| order(schema).is_some_and(|other| other < *version));
    let after = history
        .iter()
        .rev()
        .find(|schema| order(schema).is_some_and(|other| other > *version));
    let older = match before {
        Some(schema) => Some(store::definition(work.db(), id, &schema.operator_version).await?),
        None => None,
    };
    let judgement = judged(older, definition.clone()).await?;
    if let Some(same) = same {
        row.operator_version.clone_from(&same.operator_version);
        still(same, &judgement).name().clone_into(&mut row.approval);
        (row.changes, row.back) = (judgement.changes, Some(judgement.back));
        crd_schemas::replace(work.db(), id, &row, &definition).await?;
    } else {
        row.position = before.map_or(0, |schema| schema.position + 1);
        judgement.approval.name().clone_into(&mut row.approval);
        (row.changes, row.back) = (judgement.changes, Some(judgement.back));
        crd_schemas::insert(work.db(), id, &row, &definition).await?;
    }
    if let Some(after) = after {
        let newer = store::definition(work.db(), id, &after.operator_version).await?;
        let judgement = judged(Some(definition), newer).await?;
        let approval = still(after, &judgement);
        crd_schemas::set_changes(
            work.db(),
            id,
            &after.operator_version,
            &judgement.changes,
            Some(&judgement.back),
            approval.name(),
        )
        .await?;
    }
    Ok(())
}

/// What is left of the decision on a schema that is compared anew.
fn still(schema: &SchemaRow, judged: &Judged) -> Approval {
    let covered = is_covered(&judged.changes, &schema.changes);
    Approval::after(Approval::from_name(&schema.approval), judged.approval, covered)
}

fn check_owner(row: &CrdRow, operator: Option<&str>) -> Result<(), Error> {
    match (&row.operator_name, operator) {
        (Some(owner), Some(other)) if owner != other => Err(Error::Conflict {
            code: "CRD_BELONGS_TO_ANOTHER",
            message: format!("{} belongs to operator {owner:?}", row.name),
        }),
        _ => Ok(()),
    }
}

/// What a server added is not part of the definition.
fn strip(definition: &mut Value) {
    if let Some(fields) = definition.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = definition.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| matches!(name.as_str(), "name" | "labels" | "annotations"));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
}
