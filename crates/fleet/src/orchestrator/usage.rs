//! What the clusters that have a definition mean for it: what a comparison has to know of them, and in which environments a
//! schema may be used.

use std::collections::BTreeSet;

use gantry_fleet_api as api;
use gantry_fleet_domain::{
    cluster::{self, Environment},
    crd_diff::{ServerVersion, Waiver},
    crd_policy::{Approval, Change},
    crd_use::{Decision, Installed, Life, STORED_VERSION_REMOVED, Step, may_use},
};
use jiff::{SignedDuration, civil::Date};
use serde::Deserialize;
use sqlx::PgConnection;

use super::{
    Fleet,
    comparisons::{Compared, Known},
};
use crate::{
    Error,
    infrastructure::store::{
        clusters,
        crds::{self, CrdRow, OnClusterRow, SchemaRow, UnseenRow},
    },
};

/// The oldest server, and all versions that anything is stored in. One server whose version cannot be read could be older.
pub(super) fn known(clusters: &[OnClusterRow]) -> Known {
    let servers: Result<Vec<ServerVersion>, _> = clusters
        .iter()
        .map(|cluster| cluster.kubernetes_version.parse())
        .collect();
    let stored: BTreeSet<String> = clusters
        .iter()
        .flat_map(|cluster| cluster.stored_versions.iter().cloned())
        .collect();
    Known {
        server: servers.ok().and_then(|servers| servers.into_iter().min()),
        stored: (!stored.is_empty()).then_some(stored),
    }
}

/// The clusters that have a definition or may have it, and all environments.
pub(super) struct Around {
    pub environments: Vec<Environment>,
    pub clusters: Vec<OnClusterRow>,
    unseen: Vec<UnseenRow>,
}

pub(super) async fn around(
    fleet: &Fleet,
    connection: &mut PgConnection,
    row: &CrdRow,
) -> Result<Around, Error> {
    let fresh = fresh(fleet);
    Ok(Around {
        environments: environments(&mut *connection).await?,
        clusters: crds::on_clusters(&mut *connection, row.id, &row.name, fresh).await?,
        unseen: crds::unseen(&mut *connection, &row.name, fresh).await?,
    })
}

/// What was seen in a cluster counts for as long as its health does after the next look was due.
pub(super) fn fresh(fleet: &Fleet) -> SignedDuration {
    cluster::FRESH + fleet.health_interval
}

/// The three that everybody has, and those with names of their own.
async fn environments(connection: &mut PgConnection) -> Result<Vec<Environment>, Error> {
    let mut all = vec![
        Environment::Development,
        Environment::Staging,
        Environment::Production,
    ];
    for name in clusters::environments(connection).await? {
        let environment = environment(&name);
        if !all.contains(&environment) {
            all.push(environment);
        }
    }
    Ok(all)
}

fn environment(name: &str) -> Environment {
    name.parse()
        .unwrap_or_else(|_| Environment::Other(name.to_owned()))
}

/// What of a change decides where it may be used.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    field_path: String,
    is_breaking: bool,
    fingerprint: String,
}

/// The history of a definition as steps, in the same order. There may be megabytes of it.
pub(super) fn steps(history: &[SchemaRow], waived: &[Waiver], today: Date) -> Vec<Step> {
    let is_waived = |change: &Place| {
        let holds = |waiver: &&Waiver| waiver.expires >= today;
        let mut waivers = waived.iter().filter(holds);
        waivers.any(|waiver| waiver.fingerprint == change.fingerprint)
    };
    let step = |schema: &SchemaRow| {
        let places = |changes: &str| -> Option<Vec<String>> {
            let changes: Vec<Place> = serde_json::from_str(changes).ok()?;
            let breaking = changes.into_iter();
            let breaking = breaking.filter(|change| change.is_breaking && !is_waived(change));
            Some(breaking.map(|change| change.field_path).collect())
        };
        Step {
            operator_version: schema.operator_version.clone(),
            position: schema.position,
            // One that is not known is none that lets pass.
            approval: Approval::from_name(&schema.approval).unwrap_or(Approval::Pending),
            breaking: places(&schema.changes).unwrap_or_default(),
            back: schema.back.as_deref().and_then(places),
            api_versions: schema.api_versions.clone(),
        }
    };
    history.iter().map(step).collect()
}

/// A schema that is not registered, as the step that it would be. It is newer than all that runs.
pub(super) fn proposed(compared: &Compared, version: Option<&str>) -> Step {
    let breaking = Change::breaking(&compared.report);
    Step {
        operator_version: version.unwrap_or("this schema").to_owned(),
        position: i32::MAX,
        approval: Approval::of(&compared.report),
        breaking: breaking.into_iter().map(|change| change.field_path).collect(),
        // Nothing is newer.
        back: None,
        api_versions: compared.api_versions.clone(),
    }
}

/// Of each that is wanted, in every environment. The steps are all there are.
pub(super) fn of(row: &CrdRow, wanted: &[Step], steps: &[Step], around: &Around) -> Vec<Vec<api::SchemaUse>> {
    let life = match (row.status.as_str(), &row.deprecation_reason) {
        ("Removed", _) => Life::Removed,
        ("Deprecated", reason) => Life::Deprecated {
            reason: reason.as_deref().unwrap_or("no reason is given"),
        },
        _ => Life::Active,
    };
    let seen = around.clusters.iter().map(|cluster| Installed {
        cluster: cluster.cluster_name.clone(),
        environment: environment(&cluster.environment),
        is_seen: cluster.is_seen,
        position: cluster.position,
        stored_versions: cluster.stored_versions.clone(),
    });
    let unseen = around.unseen.iter().map(|cluster| Installed {
        cluster: cluster.cluster_name.clone(),
        environment: environment(&cluster.environment),
        is_seen: false,
        position: None,
        stored_versions: Vec::new(),
    });
    let installed: Vec<Installed> = seen.chain(unseen).collect();
    let decide = |wanted: &Step, environment: &Environment| {
        let decision = may_use(&row.name, environment, wanted, steps, &installed, life);
        wire(environment, decision)
    };
    wanted
        .iter()
        .map(|wanted| {
            around
                .environments
                .iter()
                .map(|environment| decide(wanted, environment))
                .collect()
        })
        .collect()
}

pub(super) fn loses_objects(usage: &api::SchemaUse) -> bool {
    usage.reason == STORED_VERSION_REMOVED
}

fn wire(environment: &Environment, decision: Decision) -> api::SchemaUse {
    api::SchemaUse {
        environment: environment.name().to_owned(),
        may_be_used: decision.may_be_used,
        reason: decision.reason.to_owned(),
        message: decision.message,
    }
}

pub(super) fn on_cluster(row: OnClusterRow) -> api::CrdOnCluster {
    api::CrdOnCluster {
        cluster_name: row.cluster_name,
        environment: row.environment,
        kubernetes_version: row.kubernetes_version,
        stored_versions: row.stored_versions,
        operator_version: row.operator_version,
        digest: row.digest,
        seen_at: row.seen_at.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infrastructure::store::time;

    fn cluster(version: &str, stored: &[&str]) -> OnClusterRow {
        OnClusterRow {
            cluster_name: "c".to_owned(),
            environment: "Staging".to_owned(),
            kubernetes_version: version.to_owned(),
            stored_versions: stored.iter().map(|&name| name.to_owned()).collect(),
            operator_version: None,
            position: None,
            digest: String::new(),
            is_seen: true,
            seen_at: time(jiff::Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn the_oldest_server_counts_and_everything_that_is_stored() {
        assert_eq!(known(&[]), Known::default());
        let two = [cluster("v1.33.1", &["v1"]), cluster("v1.9.2", &["v1beta1", "v1"])];
        let got = known(&two);
        assert_eq!(got.server, Some("1.9".parse().unwrap()));
        assert_eq!(
            got.stored.unwrap().into_iter().collect::<Vec<_>>(),
            ["v1", "v1beta1"]
        );
        assert_eq!(
            known(&[cluster("v1.33.1", &["v1"]), cluster("?", &[])]).server,
            None
        );
    }
}
