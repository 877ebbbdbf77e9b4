//! Clusters: registered when they can be reached, with credentials that only their row's key opens.

use std::time::Duration;

use gantry_fleet_api as api;
use gantry_fleet_domain::{
    cluster::{self, Health, NewCluster},
    fields::Complaints,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Ask, Begun, Fleet, Record, Reply, Work,
    credentials::{Proven, is_another, prove, read_kubeconfig},
    reach,
};
use crate::{
    Error,
    error::is_taken,
    infrastructure::{
        keys::{KeyError, Place, Sealed},
        kubernetes::{Look, Unreachable, deployer, reader},
        store::{
            Window, accesses, audit,
            clusters::{self as store, ClusterRow},
            deployers, idempotency, labels, time,
        },
    },
};

pub const KIND: &str = "cluster";

pub async fn list(fleet: &Fleet, filter: &store::Filter, window: Window) -> Result<api::Clusters, Error> {
    let (rows, total) = store::list(&fleet.pool, filter, cluster::FRESH, window).await?;
    Ok(api::Clusters {
        page: api::Page::new(total, window.limit, window.offset, rows.len()),
        clusters: rows.into_iter().map(wire).collect(),
    })
}

pub async fn get(fleet: &Fleet, name: &str) -> Result<(api::Cluster, i64), Error> {
    let row = row(fleet, name).await?;
    let revision = row.revision;
    Ok((wire(row), revision))
}

async fn row(fleet: &Fleet, name: &str) -> Result<ClusterRow, Error> {
    let mut connection = fleet.pool.acquire().await?;
    store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))
}

/// What the last look found; it is at most a minute old while the cluster is enabled.
pub async fn health(fleet: &Fleet, name: &str) -> Result<api::ClusterHealth, Error> {
    let row = row(fleet, name).await?;
    let shown = shown(&row);
    let is_known = shown.health != Health::Unknown;
    Ok(api::ClusterHealth {
        api_server_reachable: row.latency_ms.is_some() && is_known,
        api_server_latency_ms: row
            .latency_ms
            .and_then(|ms| u64::try_from(ms).ok())
            .filter(|_| is_known),
        cluster_name: row.name,
        health_status: shown.health.name().to_owned(),
        reason: shown.reason,
        message: shown.message,
        since: shown.since,
        kubernetes_version: row.kubernetes_version,
        node_health: api::NodeHealth {
            ready: count(row.nodes_ready),
            not_ready: count(row.nodes_not_ready),
        },
        definitions_seen_at: row.definitions_seen_at.map(Into::into),
        deployed_operators: Vec::new(),
        last_checked: row.checked_at.map(Into::into),
    })
}

pub async fn register(fleet: &Fleet, ask: &Ask, body: api::RegisterCluster) -> Result<Reply, Error> {
    let new = NewCluster {
        name: body.name,
        description: body.description,
        environment: body.environment,
        labels: body.labels,
    };
    let environment = new.check()?;
    let credentials = read_kubeconfig(fleet, &body.kubeconfig)?;
    if let Some(reply) = ask.answered(fleet).await? {
        return Ok(reply);
    }
    let id = Uuid::new_v4();
    let Proven { look, identity } = prove(fleet, ask, id, &credentials, "registration").await?;
    let sealed = fleet
        .keys
        .seal(place(id), credentials.document.to_string().as_bytes())
        .await
        .map_err(locked)?;
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let limit = fleet.limits.clusters;
    if store::count(work.db()).await? >= i64::from(limit) {
        return Err(Error::Conflict {
            code: "CLUSTER_LIMIT_REACHED",
            message: format!("there are {limit} clusters already, which is the limit of this server"),
        });
    }
    let now = time(work.now);
    let verdict = cluster::verdict(&Look::sight(&Ok(look.clone())));
    let mut row = ClusterRow {
        id,
        name: new.name,
        description: new.description,
        environment: environment.name().to_owned(),
        api_server_url: credentials.server,
        kubernetes_version: look.version.clone(),
        nodes_ready: look.ready as i32,
        nodes_not_ready: look.not_ready as i32,
        latency_ms: i32::try_from(look.latency.as_millis()).ok(),
        health: verdict.health.name().to_owned(),
        health_reason: verdict.reason.to_owned(),
        health_message: verdict.message,
        health_since: Some(now),
        checked_at: Some(now),
        definitions_seen_at: None,
        labels: json!(new.labels),
        enabled: true,
        revision: 1,
        registered_at: now,
        updated_at: now,
        read_at: now,
    };
    let seen = store::insert(work.db(), &row, &sealed, fleet.health_interval)
        .await
        .map_err(|error| {
            if is_taken(&error, "clusters_name_key") {
                Error::Conflict {
                    code: "CLUSTER_ALREADY_EXISTS",
                    message: format!("there is a cluster {:?} already", row.name),
                }
            } else {
                error.into()
            }
        })?;
    (row.health_since, row.checked_at, row.read_at) = (Some(seen), Some(seen), seen);
    store::set_identity(work.db(), id, identity.as_deref()).await?;
    if let Ok(crds) = &look.crds {
        store::set_crds(work.db(), id, crds).await?;
        row.definitions_seen_at = Some(seen);
    }
    let details = json!({"name": row.name, "environment": row.environment, "server": row.api_server_url});
    let reply = finish(work, row, "cluster.registered", details, 201).await?;
    fleet.metrics.clusters_registered.inc();
    Ok(reply)
}

pub async fn change(fleet: &Fleet, ask: &Ask, name: &str, body: api::ChangeCluster) -> Result<Reply, Error> {
    let mut complaints = Complaints::default();
    if let Some(description) = &body.description {
        complaints.at_most("description", description, 2000);
    }
    if let Some(labels) = &body.labels {
        complaints.labels("labels", labels);
    }
    let environment = match body
        .environment
        .as_deref()
        .map(str::parse::<cluster::Environment>)
    {
        Some(Ok(environment)) => Some(environment),
        Some(Err(error)) => {
            complaints.add("environment", error.to_string());
            None
        }
        None => None,
    };
    complaints.or(())?;
    if let Some(reply) = ask.answered(fleet).await? {
        return Ok(reply);
    }
    let before = row(fleet, name).await?;
    ask.check_match(before.revision)?;
    let renewed = match &body.kubeconfig {
        Some(kubeconfig) => {
            let credentials = read_kubeconfig(fleet, kubeconfig)?;
            let proven = prove(fleet, ask, before.id, &credentials, "new credentials").await?;
            let plain = credentials.document.to_string();
            let sealed = fleet
                .keys
                .seal(place(before.id), plain.as_bytes())
                .await
                .map_err(locked)?;
            Some(Renewed {
                sealed,
                server: credentials.server,
                identity: proven.identity,
            })
        }
        None => None,
    };
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let mut row = store::lock(work.db(), name).await?.ok_or_else(|| missing(name))?;
    ask.check_match(row.revision)?;
    if row.id != before.id {
        return Err(Error::Changed);
    }
    let mut changed = Vec::new();
    if let Some(description) = body.description {
        changed.push("description");
        row.description = description;
    }
    if let Some(environment) = environment {
        changed.push("environment");
        environment.name().clone_into(&mut row.environment);
    }
    if let Some(labels) = body.labels {
        changed.push("labels");
        row.labels = json!(labels);
    }
    if let Some(enabled) = body.is_enabled {
        changed.push("isEnabled");
        row.enabled = enabled;
    }
    if let Some(renewed) = &renewed {
        changed.push("kubeconfig");
        row.api_server_url.clone_from(&renewed.server);
        let known = store::identity(work.db(), row.id).await?;
        if is_another(known.as_deref(), renewed.identity.as_deref()) {
            return Err(Error::Conflict {
                code: "ANOTHER_CLUSTER",
                message: format!(
                    "the kubeconfig leads to another cluster than {name:?}; register that one under a name of its own, and \
                     delete {name:?} if it is gone"
                ),
            });
        }
        if let Some(identity) = &renewed.identity {
            store::set_identity(work.db(), row.id, Some(identity)).await?;
        }
    }
    row.revision += 1;
    row.updated_at = time(work.now);
    let now = time(work.now);
    store::update(
        work.db(),
        &row,
        renewed.as_ref().map(|renewed| &renewed.sealed),
        now,
    )
    .await?;
    let id = row.id;
    let reply = finish(
        work,
        row,
        "cluster.changed",
        json!({"name": name, "changed": changed}),
        200,
    )
    .await?;
    fleet.connections.forget(id);
    Ok(reply)
}

/// Credentials that were proven and are about to be stored.
struct Renewed {
    sealed: Sealed,
    server: String,
    identity: Option<String>,
}

/// Our accounts in the cluster are taken away, if the cluster answers. The credentials go with the row, the row's key with
/// them, and what the audit log knew of the cluster beside its chain. That it was there, and who removed it, stays. Nothing
/// would take a deployer back afterwards, so one that is bound has to be taken away before, unless it is to be left.
pub async fn delete(fleet: &Fleet, ask: &Ask, name: &str, leave_deployer: bool) -> Result<Reply, Error> {
    let removal = match row(fleet, name).await {
        Ok(before) if ask.check_match(before.revision).is_ok() => take_ours_away(fleet, before.id).await?,
        _ => Removal::default(),
    };
    let mut work = match ask.begin(fleet).await? {
        Begun::Fresh(work) => work,
        Begun::Repeated(reply) => return Ok(reply),
    };
    let row = store::lock(work.db(), name).await?.ok_or_else(|| missing(name))?;
    ask.check_match(row.revision)?;
    // Whose row is held gets no other one.
    let holder = deployers::holder(work.db(), row.id).await?;
    let left = holder.filter(|holder| removal.unbound != Some(*holder));
    if let Some(deployment) = left
        && !leave_deployer
    {
        return Err(still_bound(name, deployment, removal.failure.as_ref()));
    }
    let id = row.id.to_string();
    let hours = accesses::take_of(work.db(), row.id).await?;
    store::delete(work.db(), row.id).await?;
    idempotency::forget_about(work.db(), row.id, idempotency::CLUSTERS, &row.name).await?;
    audit::erase_target(work.db(), KIND, &id).await?;
    audit::erase_attempts(work.db(), KIND, &id, &row.api_server_url).await?;
    // Everything that can take long is done: from here on all others wait who write.
    for hour in &hours {
        super::accesses::record_hour(&mut work, hour, Value::Null).await?;
    }
    if let Some(deployment) = left {
        work.record(Record {
            action: "cluster.deployer-left",
            outcome: "Succeeded",
            target_kind: KIND,
            target_id: &id,
            details: json!({"deployment": deployment}),
        })
        .await?;
    }
    work.record(Record {
        action: "cluster.deleted",
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: &id,
        details: Value::Null,
    })
    .await?;
    let reply = work.finish(Reply::gone()).await?;
    fleet.connections.forget(row.id);
    // A look that was under way may have made the account anew; those that begin now find no cluster.
    if let Some(client) = removal.client {
        let _ = tokio::time::timeout(REMOVAL, reader::remove(&client, row.id)).await;
    }
    Ok(reply)
}

fn still_bound(name: &str, deployment: Uuid, failure: Option<&Unreachable>) -> Error {
    let why = failure.map_or("it was bound a moment ago", |failure| &failure.message);
    Error::Conflict {
        code: "DEPLOYER_BOUND",
        message: format!(
            "the deployer of deployment {deployment} is bound in {name:?} and could not be taken away: {why}. This server goes \
             on trying; delete {name:?} again when it answers. If it is gone for good, delete it with ?leaveDeployer=true"
        ),
    }
}

/// For taking our accounts away.
const REMOVAL: Duration = Duration::from_secs(10);

/// What became of our accounts in a cluster that is about to be removed.
#[derive(Default)]
struct Removal {
    /// The deployment whose deployer was taken away.
    unbound: Option<Uuid>,
    /// Where they could be taken away.
    client: Option<kube::Client>,
    failure: Option<Unreachable>,
}

/// Best effort: a cluster that is gone must not keep its registration alive.
async fn take_ours_away(fleet: &Fleet, id: Uuid) -> Result<Removal, Error> {
    let mut unbound = None;
    // Or a renewal could bring it back after it was taken away.
    let deployment = deployers::end(&fleet.pool, id).await?;
    let removed = async {
        let reach::Owner { client, attempt, .. } = reach::owner(fleet, id, "removal", false).await?;
        let removal = async {
            // The stronger one first, if a deployment has it.
            if let Some(deployment) = deployment {
                deployer::unbind(&client, deployment).await?;
                unbound = Some(deployment);
            }
            reader::remove(&client, id).await
        };
        let removed = tokio::time::timeout(REMOVAL, removal).await;
        let removed = removed.unwrap_or_else(|_| Err(Unreachable::timeout(REMOVAL)));
        attempt.ended(fleet, removed).await.map(|()| client)
    };
    let (client, failure) = match removed.await {
        Ok(client) => (Some(client), None),
        Err(why) => {
            tracing::warn!(cluster = %id, reason = why.reason, "our accounts stay in the removed cluster");
            (None, Some(why))
        }
    };
    Ok(Removal {
        unbound,
        client,
        failure,
    })
}

pub fn place(id: Uuid) -> Place {
    Place {
        table: "clusters",
        column: "kubeconfig",
        row: id,
    }
}

/// What is sealed or opened when somebody asks for something.
pub(super) fn locked(error: KeyError) -> Error {
    if !error.is_passing() {
        return Error::internal("failed to seal or open credentials", error);
    }
    Error::Unavailable {
        code: "KEY_UNAVAILABLE",
        message: format!("the key that seals credentials cannot be used: {error}"),
    }
}

async fn finish(
    mut work: Work<'_>,
    row: ClusterRow,
    action: &str,
    details: Value,
    status: u16,
) -> Result<Reply, Error> {
    let id = row.id.to_string();
    let revision = row.revision;
    let reply = Reply::json(status, &wire(row), Some(revision))?;
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

fn missing(name: &str) -> Error {
    Error::NotFound {
        kind: KIND,
        name: name.to_owned(),
    }
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// As old as the database says, which dated the look.
fn shown(row: &ClusterRow) -> cluster::Shown {
    cluster::shown(
        &cluster::Stored {
            health: Health::from_name(&row.health).unwrap_or(Health::Unknown),
            reason: &row.health_reason,
            message: &row.health_message,
            since: row.health_since.map(Into::into),
            checked_at: row.checked_at.map(Into::into),
            is_enabled: row.enabled,
        },
        row.read_at.into(),
    )
}

fn wire(row: ClusterRow) -> api::Cluster {
    let shown = shown(&row);
    api::Cluster {
        health_status: shown.health.name().to_owned(),
        cluster_id: row.id,
        name: row.name,
        description: row.description,
        environment: row.environment,
        api_server_url: row.api_server_url,
        kubernetes_version: row.kubernetes_version,
        node_count: count(row.nodes_ready) + count(row.nodes_not_ready),
        health_reason: shown.reason,
        health_message: shown.message,
        health_since: shown.since,
        last_health_check_at: row.checked_at.map(Into::into),
        definitions_seen_at: row.definitions_seen_at.map(Into::into),
        labels: labels(&row.labels),
        is_enabled: row.enabled,
        deployed_operators: Vec::new(),
        registered_at: row.registered_at.into(),
        updated_at: row.updated_at.into(),
    }
}
