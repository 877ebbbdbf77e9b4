//! `/clusters`.

use axum::{Json, extract::State};
use gantry_fleet_api as api;
use gantry_fleet_domain::cluster::Environment;

use super::{
    App,
    answer::about,
    extract::{Bare, Name, Query, Sent},
};
use crate::{
    Error,
    infrastructure::store::clusters::Filter,
    orchestrator::{Reply, clusters},
};

pub async fn list(State(app): State<App>, query: Query) -> Result<Json<api::Clusters>, Error> {
    let environment: Option<Environment> = query.parsed("environment", "the name of an environment")?;
    let filter = Filter {
        environment: environment.map(|environment| environment.name().to_owned()),
        health: query.one_of("healthStatus", &["Unknown", "Healthy", "Degraded", "Unhealthy"])?,
        labels: query.labels()?,
    };
    clusters::list(&app.fleet, &filter, query.window()?)
        .await
        .map(Json)
}

pub async fn register(State(app): State<App>, sent: Sent<api::RegisterCluster>) -> Result<Reply, Error> {
    about("cluster", &sent.body.name);
    clusters::register(&app.fleet, &sent.ask, sent.body).await
}

pub async fn show(State(app): State<App>, Name(name): Name) -> Result<Reply, Error> {
    let (cluster, revision) = clusters::get(&app.fleet, &name).await?;
    Reply::json(200, &cluster, Some(revision))
}

pub async fn change(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::ChangeCluster>,
) -> Result<Reply, Error> {
    clusters::change(&app.fleet, &sent.ask, &name, sent.body).await
}

pub async fn remove(
    State(app): State<App>,
    Name(name): Name,
    query: Query,
    Bare(ask): Bare,
) -> Result<Reply, Error> {
    let leave = query.parsed("leaveDeployer", "true or false")?.unwrap_or(false);
    clusters::delete(&app.fleet, &ask, &name, leave).await
}

pub async fn health(State(app): State<App>, Name(name): Name) -> Result<Json<api::ClusterHealth>, Error> {
    clusters::health(&app.fleet, &name).await.map(Json)
}
