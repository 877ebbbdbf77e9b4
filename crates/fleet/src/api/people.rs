//! `/authentication` and `/users`.

use axum::{Json, extract::State};
use gantry_fleet_api as api;

use super::{
    App,
    extract::{Bare, Name, Query, Sent},
};
use crate::{
    Error,
    orchestrator::{Reply, people},
};

pub async fn login(State(app): State<App>, sent: Sent<api::Login>) -> Result<Json<api::LoggedIn>, Error> {
    people::login(&app.fleet, &sent.ask.trace_id, sent.body)
        .await
        .map(Json)
}

pub async fn change_password(
    State(app): State<App>,
    sent: Sent<api::ChangePassword>,
) -> Result<Json<api::LoggedIn>, Error> {
    people::change_password(&app.fleet, &sent.ask, sent.body)
        .await
        .map(Json)
}

pub async fn list(State(app): State<App>, query: Query) -> Result<Json<api::Users>, Error> {
    people::list(&app.fleet, query.window()?).await.map(Json)
}

pub async fn create(State(app): State<App>, sent: Sent<api::CreateUser>) -> Result<Reply, Error> {
    people::create(&app.fleet, &sent.ask, sent.body).await
}

pub async fn remove(State(app): State<App>, Name(name): Name, Bare(ask): Bare) -> Result<Reply, Error> {
    people::delete(&app.fleet, &ask, &name).await
}
