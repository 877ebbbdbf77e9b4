//! `/operators`.

use axum::{Json, extract::State};
use gantry_fleet_api as api;

use super::{
    App,
    answer::about,
    extract::{Bare, Name, Query, Sent},
};
use crate::{
    Error,
    infrastructure::store::operators::Filter,
    orchestrator::{Reply, operators},
};

pub async fn list(State(app): State<App>, query: Query) -> Result<Json<api::Operators>, Error> {
    let filter = Filter {
        namespace: query.text("namespace"),
        labels: query.labels()?,
        has_update: query.parsed("hasUpdate", "true or false")?,
    };
    operators::list(&app.fleet, &filter, query.window()?)
        .await
        .map(Json)
}

pub async fn register(State(app): State<App>, sent: Sent<api::RegisterOperator>) -> Result<Reply, Error> {
    about("operator", &sent.body.name);
    if let Some(version) = &sent.body.current_version {
        about("version", version);
    }
    operators::register(&app.fleet, &sent.ask, sent.body).await
}

pub async fn show(State(app): State<App>, Name(name): Name) -> Result<Reply, Error> {
    let (operator, revision) = operators::get(&app.fleet, &name).await?;
    Reply::json(200, &operator, Some(revision))
}

pub async fn change(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::ChangeOperator>,
) -> Result<Reply, Error> {
    operators::change(&app.fleet, &sent.ask, &name, sent.body).await
}

pub async fn remove(State(app): State<App>, Name(name): Name, Bare(ask): Bare) -> Result<Reply, Error> {
    operators::delete(&app.fleet, &ask, &name).await
}

pub async fn versions(
    State(app): State<App>,
    Name(name): Name,
    query: Query,
) -> Result<Json<api::OperatorVersions>, Error> {
    operators::versions(&app.fleet, &name, query.window()?)
        .await
        .map(Json)
}

pub async fn refresh(State(app): State<App>, Name(name): Name, Bare(ask): Bare) -> Result<Reply, Error> {
    operators::refresh(&app.fleet, &ask, &name).await
}
