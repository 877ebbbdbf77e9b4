//! What a schema would do to the objects that clusters have: the difference between a break on paper and one that hurts.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use gantry_fleet_api as api;
use gantry_fleet_domain::{
    crd_diff::{Crd, Harm, Proof},
    fields::Complaints,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Ask, Fleet, Record, Work, accesses,
    crds::{KIND, find, missing, read_proposal, say_whose},
    reach,
};
use crate::{
    Error,
    infrastructure::{
        kubernetes::{
            explain,
            objects::{self, ListError},
        },
        store::{
            clusters::{self as cluster_store, ClusterRow},
            crds as store,
        },
    },
};

const MAX_CLUSTERS: usize = 20;
const AT_ONCE: usize = 5;
const TRIES: usize = 4;
/// For one cluster; all of them together have `prove_within`.
const PATIENCE: Duration = Duration::from_secs(60);

#[tracing::instrument(name = "operator.validate", skip_all, fields(crd = name, operator, version))]
pub async fn prove(
    fleet: &Fleet,
    ask: &Ask,
    name: &str,
    body: api::ProveCrd,
    turn: impl Send,
) -> Result<api::CrdProof, Error> {
    let mut complaints = Complaints::default();
    if body.clusters.is_empty() || body.clusters.len() > MAX_CLUSTERS {
        complaints.add("clusters", format!("must name 1 to {MAX_CLUSTERS} clusters"));
    }
    complaints.or(())?;
    let mut connection = fleet.pool.acquire().await?;
    let row = store::get(&mut connection, name)
        .await?
        .ok_or_else(|| missing(name))?;
    let history = store::history(&mut connection, row.id).await?;
    let mut clusters = Vec::new();
    for cluster in &body.clusters {
        let found = cluster_store::get(&mut connection, cluster).await?;
        clusters.push(found.ok_or_else(|| Error::NotFound {
            kind: super::clusters::KIND,
            name: cluster.clone(),
        })?);
    }
    let stored = match &body.operator_version {
        Some(version) => find(&history, version)?,
        None => history.first().ok_or_else(|| missing(name))?,
    };
    // Of a proposal the version is not known.
    let version = body
        .new_schema_definition
        .is_none()
        .then_some(&*stored.operator_version);
    say_whose(row.operator_name.as_deref(), version);
    let stored = store::definition(&mut connection, row.id, &stored.operator_version).await?;
    drop(connection);
    let new = match body.new_schema_definition {
        Some(given) => read_proposal(&stored, given)?,
        None => stored,
    };
    let new = Crd::parse(&new).map_err(|error| Error::invalid("newSchemaDefinition", error.to_string()))?;
    if new.name != name {
        return Err(Error::invalid(
            "newSchemaDefinition",
            format!("is the definition of {}", new.name),
        ));
    }
    // What was sent is no more; clusters may take their time.
    drop(turn);
    // Before anything is read: who looks at other people's objects is known, whatever comes of it.
    record(fleet, ask, &row.id.to_string(), name, &clusters).await?;
    let (new, until) = (&new, ask.begun + fleet.prove_within);
    let mut proofs: Vec<api::ClusterProof> = stream::iter(clusters)
        .map(|cluster| async move { on_cluster(fleet, &cluster, new, until).await })
        .buffered(AT_ONCE)
        .collect()
        .await;
    proofs.sort_by(|one, other| one.cluster_name.cmp(&other.cluster_name));
    Ok(api::CrdProof {
        crd_name: name.to_owned(),
        hurts_nobody: proofs.iter().all(is_harmless),
        clusters: proofs,
        proved_at: fleet.now(),
    })
}

async fn record(
    fleet: &Fleet,
    ask: &Ask,
    id: &str,
    name: &str,
    clusters: &[ClusterRow],
) -> Result<(), Error> {
    // By their ids: the name of a cluster goes with the cluster, and this entry is not one of its own.
    let clusters: Vec<Uuid> = clusters.iter().map(|cluster| cluster.id).collect();
    let mut work = Work::by(fleet, &ask.caller, &ask.trace_id).await?;
    work.record(Record {
        action: "crd.proof-asked",
        outcome: "Succeeded",
        target_kind: KIND,
        target_id: id,
        details: json!({"name": name, "clusters": clusters}),
    })
    .await?;
    work.commit().await
}

/// Only when all was seen.
fn is_harmless(proof: &api::ClusterProof) -> bool {
    proof.error.is_none()
        && proof.notes.is_empty()
        && proof.rejected + proof.rejected_when_changed + proof.pruned == 0
}

/// What is not known of it by then is told as its error: others may be done, and their answers are not to be lost.
async fn on_cluster(fleet: &Fleet, cluster: &ClusterRow, new: &Crd, until: Instant) -> api::ClusterProof {
    let mut answer = api::ClusterProof {
        cluster_name: cluster.name.clone(),
        kubernetes_version: cluster.kubernetes_version.clone(),
        is_installed: false,
        checked: 0,
        rejected: 0,
        rejected_when_changed: 0,
        pruned: 0,
        objects: Vec::new(),
        notes: Vec::new(),
        error: None,
    };
    if !cluster.enabled {
        answer.error =
            Some("the cluster is disabled and was not asked; enable it, or leave it out".to_owned());
        return answer;
    }
    let now = Instant::now();
    if now >= until {
        answer.error =
            Some("the time was over before it was asked; prove it again, with fewer clusters".to_owned());
        return answer;
    }
    let looked = tokio::time::timeout_at(until.min(now + PATIENCE), look(fleet, cluster, new)).await;
    match looked.unwrap_or_else(|_| Err("it took too long; prove fewer clusters at once".to_owned())) {
        Ok(None) => {}
        Ok(Some(Err(note))) => {
            answer.is_installed = true;
            answer.notes.push(note);
        }
        Ok(Some(Ok(proof))) => fill(&mut answer, proof),
        Err(why) => answer.error = Some(why),
    }
    answer
}

type Looked = Option<Result<Proof, String>>;

async fn look(fleet: &Fleet, cluster: &ClusterRow, new: &Crd) -> Result<Looked, String> {
    let mut tries = 0;
    loop {
        let access = reach::reader(fleet, cluster.id, "proof", Some(&new.name))
            .await
            .map_err(|why| why.message)?;
        let client = &access.client;
        let answer = async {
            let Some(document) = objects::definition(client, &new.name).await? else {
                return Ok(None);
            };
            let installed = match parse(document) {
                Ok(installed) => installed,
                Err(why) => return Ok(Some(Err(why))),
            };
            let server = cluster.kubernetes_version.parse().ok();
            objects::prove(client, &cluster.name, server, &installed, new)
                .await
                .map(Some)
        };
        let answer = answer.await;
        if answer.is_err() {
            accesses::failed(fleet, &access.counted).await;
        }
        match answer {
            Ok(found) => return Ok(found),
            // The reader may be from before the cluster had this definition: it is given the right, which takes a moment
            // to be known.
            Err(ListError::Api(kube::Error::Api(status))) if status.code == 403 && tries < TRIES => {
                if tries == 0 {
                    fleet.connections.forget(cluster.id);
                } else {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                tries += 1;
            }
            Err(ListError::Api(error)) => return Err(explain(&error).message),
            Err(other) => return Err(other.to_string()),
        }
    }
}

fn parse(document: Value) -> Result<Crd, String> {
    Crd::parse(&document).map_err(|error| format!("the cluster's own definition cannot be read: {error}"))
}

fn fill(answer: &mut api::ClusterProof, proof: Proof) {
    answer.is_installed = true;
    answer.checked = proof.checked;
    answer.rejected = proof.rejected;
    answer.rejected_when_changed = proof.rejected_when_changed;
    answer.pruned = proof.pruned;
    answer.notes = proof.notes;
    answer.objects = proof
        .objects
        .into_iter()
        .map(|object| api::HurtObject {
            namespace: object.namespace,
            name: object.name,
            harm: match object.harm {
                Harm::Rejected => "rejected",
                Harm::RejectedWhenChanged => "rejected-when-changed",
                Harm::Pruned => "pruned",
            }
            .to_owned(),
            reasons: object.reasons,
        })
        .collect();
}
