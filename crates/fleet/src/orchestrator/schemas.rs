//! How definitions get in: found in charts or given, kept per version of their operator, compared with their neighbours.

use std::collections::BTreeSet;

use gantry_fleet_domain::{
    crd_diff::{Crd, Options, Report, ServerVersion, compare},
    crd_policy::{Approval, Change, assess, digest},
    fields::is_dns_subdomain,
    operator::Repository,
    version::OperatorVersion,
};
use serde_json::{Value, json};

use super::{Fleet, Record, Work, operators::room_for_crd, sets};
use crate::{
    Error,
    error::is_outage,
    infrastructure::{
        charts::Definitions,
        http::Credentials,
        store::{
            crds::{self as store, CrdRow, SchemaRow},
            operators::{self, OperatorRow, VersionRow},
            time,
        },
    },
};

/// Of each kind; a schema that changes everything needs no list of everything.
pub(super) const MAX_CHANGES: usize = 200;

/// Finds the definitions in a chart and keeps them. What is wrong with the chart is noted with its version; what is
/// wrong with the way to it is an error, and tried again.
pub async fn discover(
    fleet: &Fleet,
    operator: &OperatorRow,
    repository: &Repository,
    version: &VersionRow,
    credentials: Option<&Credentials>,
) -> Result<(), Error> {
    let found = fleet
        .charts
        .definitions(
            repository,
            &operator.chart_name,
            version,
            &operator.default_values,
            credentials,
        )
        .await;
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
            None,
        )
        .await
        {
            Ok(name) => kept.push(name),
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

/// Keeps a definition as one version of its operator has it, and compares it with its neighbours.
pub(super) async fn put(
    fleet: &Fleet,
    work: &mut Work<'_>,
    mut definition: Value,
    operator: Option<&str>,
    operator_version: &str,
    guide: Option<&str>,
) -> Result<String, Error> {
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
    let digest = digest(&definition);
    if let Some(same) = history
        .iter()
        .find(|schema| order(schema).as_ref() == Some(&version))
    {
        return if same.digest == digest {
            Ok(crd.name)
        } else {
            Err(Error::Conflict {
                code: "CRD_VERSION_ALREADY_EXISTS",
                message: format!(
                    "{} is known with another schema in version {operator_version}, which is kept",
                    crd.name
                ),
            })
        };
    }
    // Newest first: the first that is older is the one before, and the last that is newer the one after.
    let before = history
        .iter()
        .find(|schema| order(schema).is_some_and(|other| other < version));
    let after = history
        .iter()
        .rev()
        .find(|schema| order(schema).is_some_and(|other| other > version));
    let older = match before {
        Some(schema) => Some(store::definition(work.db(), id, &schema.operator_version).await?),
        None => None,
    };
    let (changes, approval) = judged(older, definition.clone()).await?;
    let row = SchemaRow {
        operator_version: operator_version.to_owned(),
        position: before.map_or(0, |schema| schema.position + 1),
        api_versions: api_versions(&crd),
        api_group: crd.group,
        kind: crd.kind,
        scope: crd.scope,
        digest,
        changes,
        approval: approval.name().to_owned(),
        approved_by: None,
        approved_at: None,
        approval_notes: None,
        created_at: now,
    };
    store::insert_schema(work.db(), id, &row, &definition).await?;
    if let Some(after) = after {
        let newer = store::definition(work.db(), id, &after.operator_version).await?;
        let (changes, anew) = judged(Some(definition), newer).await?;
        let covered = is_covered(&changes, &after.changes);
        let approval = Approval::after(Approval::from_name(&after.approval), anew, covered);
        store::set_changes(work.db(), id, &after.operator_version, &changes, approval.name()).await?;
    }
    Ok(crd.name)
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

/// Whether everything that breaks is among what broke before: an approval was given for that, and for no more. A list that
/// was cut short may hide something.
fn is_covered(changes: &Value, before: &Value) -> bool {
    let breaking = |changes: &Value| -> Option<BTreeSet<String>> {
        let changes: Vec<Change> = serde_json::from_value(changes.clone()).ok()?;
        (changes.len() < MAX_CHANGES).then(|| {
            let breaking = changes.into_iter().filter(|change| change.is_breaking);
            breaking.map(|change| change.fingerprint).collect()
        })
    };
    match (breaking(changes), breaking(before)) {
        (Some(now), Some(before)) => now.is_subset(&before),
        _ => false,
    }
}

async fn judged(before: Option<Value>, after: Value) -> Result<(Value, Approval), Error> {
    let Some(before) = before else {
        return Ok((json!([]), Approval::NotRequired));
    };
    // Without a look at clusters: the answer is kept, and they change.
    let report = compared(before, after, Known::default()).await?.report;
    let mut all = Change::breaking(&report);
    all.extend(Change::harmless(&report));
    all.truncate(MAX_CHANGES);
    Ok((json!(all), Approval::of(&report)))
}

/// What is known of the clusters that a comparison is for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub server: Option<ServerVersion>,
    /// The versions that objects are stored in.
    pub stored: Option<BTreeSet<String>>,
}

pub(super) struct Compared {
    pub report: Report,
    /// Those of the new definition.
    pub api_versions: Vec<String>,
}

/// A comparison takes up to a tenth of a second: away from those who answer requests.
pub(super) async fn compared(old: Value, new: Value, known: Known) -> Result<Compared, Error> {
    let compare = move || -> Result<Compared, Error> {
        let parse = |document: &Value| {
            Crd::parse(document).map_err(|error| Error::invalid("schemaDefinition", error.to_string()))
        };
        let (mut old, new) = (parse(&old)?, parse(&new)?);
        old.stored_versions = known.stored;
        let api_versions = api_versions(&new);
        if old.name == new.name {
            let report = assess(&old, &new, known.server);
            return Ok(Compared { report, api_versions });
        }
        let options = Options {
            forward: true,
            backward: true,
            server: known.server,
            ..Options::default()
        };
        let report = compare(&[old], &[new], &options);
        Ok(Compared { report, api_versions })
    };
    tokio::task::spawn_blocking(compare)
        .await
        .map_err(|error| Error::internal("failed to compare definitions", error))?
}

fn api_versions(crd: &Crd) -> Vec<String> {
    crd.versions.iter().map(|version| version.name.clone()).collect()
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
