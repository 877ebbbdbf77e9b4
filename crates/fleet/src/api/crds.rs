//! `/crds`.

use axum::{Json, extract::State};
use gantry_fleet_api as api;

use super::{
    App,
    answer::about,
    extract::{Bare, Name, NameAndPart, Query, Sent},
};
use crate::{
    Error,
    infrastructure::store::crds::Filter,
    orchestrator::{Reply, crds, proof, waivers},
};

pub async fn list(State(app): State<App>, query: Query) -> Result<Json<api::Crds>, Error> {
    let filter = Filter {
        operator_name: query.text("operatorName"),
        group: query.text("group"),
        status: query.one_of("status", &["Active", "Deprecated", "Removed"])?,
        approval: query.one_of(
            "approvalStatus",
            &["NotRequired", "Pending", "Waived", "Approved", "Rejected"],
        )?,
    };
    crds::list(&app.fleet, &filter, query.window()?).await.map(Json)
}

pub async fn register(State(app): State<App>, sent: Sent<api::RegisterCrd>) -> Result<Reply, Error> {
    // One that is sent as text is named by its answer only.
    if let Some(name) = sent.body.schema_definition["metadata"]["name"].as_str() {
        about("crd", name);
    }
    about("version", &sent.body.operator_version);
    crds::register(&app.fleet, &sent.ask, sent.body).await
}

pub async fn show(State(app): State<App>, Name(name): Name, query: Query) -> Result<Reply, Error> {
    crds::get(&app.fleet, &name, query.window_or_all()?).await
}

pub async fn change(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::ChangeCrd>,
) -> Result<Reply, Error> {
    crds::change(&app.fleet, &sent.ask, &name, sent.body).await
}

pub async fn diff(
    State(app): State<App>,
    Name(name): Name,
    query: Query,
) -> Result<Json<api::CrdDiff>, Error> {
    let (from, to) = (query.text("from"), query.text("to"));
    crds::diff(&app.fleet, &name, from.as_deref(), to.as_deref())
        .await
        .map(Json)
}

pub async fn validate(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::ValidateCrd>,
) -> Result<Json<api::CrdValidation>, Error> {
    crds::validate(&app.fleet, &name, sent.body).await.map(Json)
}

pub async fn approve(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::ApproveCrd>,
) -> Result<Reply, Error> {
    if let Some(version) = &sent.body.operator_version {
        about("version", version);
    }
    crds::approve(&app.fleet, &sent.ask, &name, sent.body).await
}

pub async fn deprecate(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::DeprecateCrd>,
) -> Result<Reply, Error> {
    crds::deprecate(&app.fleet, &sent.ask, &name, sent.body).await
}

pub async fn prove(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::ProveCrd>,
) -> Result<Json<api::CrdProof>, Error> {
    proof::prove(&app.fleet, &sent.ask, &name, sent.body, sent.turn)
        .await
        .map(Json)
}

pub async fn waivers(
    State(app): State<App>,
    Name(name): Name,
    query: Query,
) -> Result<Json<api::Waivers>, Error> {
    waivers::list(&app.fleet, &name, query.window()?).await.map(Json)
}

pub async fn waive(
    State(app): State<App>,
    Name(name): Name,
    sent: Sent<api::AddWaiver>,
) -> Result<Reply, Error> {
    waivers::add(&app.fleet, &sent.ask, &name, sent.body).await
}

pub async fn unwaive(
    State(app): State<App>,
    NameAndPart(name, fingerprint): NameAndPart,
    Bare(ask): Bare,
) -> Result<Reply, Error> {
    waivers::remove(&app.fleet, &ask, &name, &fingerprint).await
}
